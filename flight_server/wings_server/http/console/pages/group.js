// One share group: its lag, who holds what since when, and its dead letters.

import { act, poll } from "../api.js";
import { Chart, Rates, Tiles } from "../chart.js";
import { fill, h, panel } from "../dom.js";
import { ago, count, duration, json, moment, partition, perSecond, rough, short, shortName } from "../format.js";
import { ErrorPlace, head } from "../lists.js";
import { empty } from "../notices.js";
import { may } from "../rights.js";
import { route } from "../routes.js";
import { Table } from "../table.js";
import { history } from "../traffic.js";
import { deadLetters } from "./dead_letters.js";
import { seekForm } from "./seek.js";

export async function render(main, found, signal) {
  const [topic, name] = found.parts;
  fill(main, head(name, { crumbs: [["Share groups", route("groups")], [shortName(topic), route("topic", [topic, "groups"])]] }));
  const [groups, described] = await Promise.all([act("share-list", { topic }, { signal }), act("describe-topic", { topic }, { signal })]);
  const group = groups.find((each) => each.group === name);
  if (group === undefined) {
    main.append(empty("There is no such share group", `The topic ${topic} has none of this name.`, `wings share create ${name} ${shortName(topic)}`));
    return;
  }
  const errors = new ErrorPlace();
  const tiles = new Tiles([["Lag", "lag"], ["Held", "held"], ["Members", "members"], ["Oldest unfinished", "oldest"], ["Done", "done"], ["Failed", "failed"]]);
  const chart = new Chart("Messages of this group", ["unfinished", "held"], short);
  const done = new Chart("Messages finished a second", ["done", "failed", "delivered again"], perSecond);
  const rates = new Rates();
  const members = membersTable();
  const holds = holdsTable(topic);
  main.append(...[errors.element, tiles.element,
    h("div", { class: "grid" },
      panel("Lag", null, h("div", { class: "body" }, chart.element)),
      panel("Finished", null, h("div", { class: "body" }, done.element))),
    panel("Members", null, members.whole),
    panel("Who holds what", null, holds.whole),
    deadLetters(group, await may("admin", group.config.dlq_topic ?? ""), signal),
    (await may("admin", topic)) && seekForm(group, described.partition_key !== null, signal, () => look().catch(() => {})),
    panel("Settings", null, h("div", { class: "body" }, settings(group.config)))].filter(Boolean));
  void history({ topic, group: name }, ["accepted", "redelivered", "dead_lettered"], signal).then((past) => {
    chart.past(past.map((each) => [each.at, [each.lag, each.in_flight]]));
    done.past(past.map((each) => [each.at, [each.accepted, each.dead_lettered, each.redelivered]]));
  }, () => {});
  async function look() {
    const known = await act("share-members", { topic, group: name }, { signal });
    errors.clear();
    tiles.set("lag", count(known.lag), "messages not finished");
    tiles.set("held", count(known.in_flight), `of ${count(group.config.in_flight_max)} a partition`);
    tiles.set("oldest", known.oldest ? rough(known.oldest.age_ms) : "none", known.oldest ? `offset ${count(known.oldest.offset)}` : "");
    chart.push(Date.now(), [known.lag, known.in_flight]);
    const [accepted, failed, again] = ["accepted", "dead_lettered", "redelivered"].map((each) => rates.of(each, known.counts[each], Date.now()));
    done.push(Date.now(), [accepted, failed, again]);
    const mayBeDue = group.config.deliver_at_column === null && known.lag > 0;
    const isLeft = mayBeDue && known.members.length === 0 && accepted === 0;
    tiles.set("members", isLeft ? "none" : count(known.members.length), isLeft ? "nobody holds a message" : "", isLeft);
    tiles.set("done", perSecond(accepted), `${count(known.counts.accepted)} since the start`);
    tiles.set("failed", perSecond(failed), `${count(known.counts.dead_lettered)} since the start`);
    members.rows = known.members;
    holds.rows = known.holds;
  }
  await poll(look, { interval: 1_500, signal, onError: (error) => errors.show(error) });
}

function membersTable() {
  return new Table([
    { label: "Member", text: (row) => row.member },
    { label: "Messages held", right: true, text: (row) => count(row.messages) },
    { label: "Holds since", right: true, text: (row) => ago(row.since) },
  ], { label: "Members", key: (row) => row.member, tall: false, empty: () => empty("No member holds a message", "Workers show here while they work.", "wings share work GROUP TOPIC -- COMMAND") });
}

function holdsTable(topic) {
  const link = (row) => h("a", { href: route("message", [topic, json(row.partition), row.first]) }, range(row));
  return new Table([
    { label: "Messages", right: true, text: range, node: link },
    { label: "Partition", text: (row) => partition(row.partition), className: "mono" },
    { label: "Member", text: (row) => row.member },
    { label: "Delivery", right: true, text: (row) => row.delivery_count, node: (row) => (row.delivery_count > 1 ? h("span", { class: "tag warn" }, `${row.delivery_count}`) : `${row.delivery_count}`) },
    { label: "Since", text: (row) => moment(row.since) },
    { label: "Lock ends in", right: true, text: (row) => duration(Date.parse(row.until) - Date.now()) },
  ], { label: "Held messages, the longest held first", key: (row) => `${json(row.partition)} ${row.first}`, empty: () => empty("Nothing is held", "Every message is finished, or waits for a worker.") });
}

function range({ first, last }) {
  return first === last ? count(first) : `${count(first)} – ${count(last)}`;
}

function settings(config) {
  const facts = [
    ["Lock", duration(config.lock_duration_ms)],
    ["Delivery limit", count(config.delivery_limit)],
    ["Held at most", `${count(config.in_flight_max)} a partition`],
    ["Order", config.ordering === "partition" ? "in order within a partition" : "none"],
    ["Acquire", config.acquire_mode],
    ["Begins at", typeof config.start === "string" ? config.start : json(config.start)],
    ["Dead letters", config.dlq_topic ?? "dropped"],
  ];
  return h("dl", { class: "facts" }, facts.map(([label, value]) => [h("dt", {}, label), h("dd", {}, value)]));
}
