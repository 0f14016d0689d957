// Named consumers: how far each is behind in each topic, and in which partitions most; of a consumer
// group, its members.

import { act, poll } from "../api.js";
import { Chart, meter, Tiles } from "../chart.js";
import { fill, h, panel } from "../dom.js";
import { ago, count, firstOf, json, partition, short, shortName } from "../format.js";
import { counted, ErrorPlace, head, search } from "../lists.js";
import { empty } from "../notices.js";
import { route } from "../routes.js";
import { Table } from "../table.js";
import { history } from "../traffic.js";

const SHOWN_MAX = 500;

/** Most pages of a group's partitions that are asked for. */
const PAGES_MAX = 10;

/** How far back the trend of a member's lag looks, in milliseconds. */
const TREND_SPAN = 60_000;

export async function render(main, found, signal) {
  const [name] = found.parts;
  await (name === undefined ? list(main, found, signal) : one(main, name, signal));
}

async function list(main, found, signal) {
  const errors = new ErrorPlace();
  const size = h("span", { class: "soft number" });
  let query = found.keys.get("q") ?? "";
  let counts = {};
  const table = new Table([
    { label: "Consumer", text: (row) => row.consumer, node: (row) => h("a", { href: route("consumers", [row.consumer]) }, row.consumer), sort: (row) => row.consumer },
    { label: "Topic", text: (row) => shortName(row.topic), node: (row) => h("a", { href: route("topic", [row.topic]) }, shortName(row.topic)), sort: (row) => row.topic },
    { label: "Members", wide: true, right: true, text: (row) => count(row.members), sort: (row) => row.members },
    { label: "Partitions", wide: true, right: true, text: (row) => count(row.partitions), sort: (row) => row.partitions },
    { label: "Lag", right: true, text: (row) => count(row.lag), sort: (row) => row.lag },
    { label: "Committed", wide: true, right: true, text: (row) => ago(row.committed_at), sort: (row) => row.committed_at },
  ], {
    label: "Consumers",
    key: (row) => `${row.consumer} ${row.topic}`,
    empty: () => (errors.element.firstChild ? null : noConsumers(query)),
    onOpen: (row) => {
      location.hash = route("consumers", [row.consumer]);
    },
  });
  async function look() {
    const consumers = await act("list-consumers", { contains: query, limit: SHOWN_MAX }, { signal });
    const groups = await act("group-list", { contains: query, limit: SHOWN_MAX }, { signal });
    errors.clear();
    table.rows = rowsOf(consumers, groups);
    if (counts.query !== query || consumers.length < SHOWN_MAX) counts = { query, all: consumers.length };
    if (consumers.length === SHOWN_MAX && counts.all === SHOWN_MAX) counts.all = await counted("DISTINCT consumer", "consumers", "strpos(consumer, ?) > 0", [query], signal);
    fill(size, `${firstOf(consumers.length, counts.all)} consumers`);
  }
  fill(main, head("Consumers", { beside: [size] }),
    search(found, "Find consumers by a part of their name", (text) => {
      query = text;
      look().catch((error) => errors.show(error));
    }),
    errors.element, h("section", { class: "panel", "aria-label": "Consumers" }, table.whole));
  await poll(look, { interval: 3_000, signal, onError: (error) => {
    errors.show(error);
    table.draw();
  } });
}

/** Return a row for each topic of a consumer, also where a group has committed nothing of it yet. */
function rowsOf(consumers, groups) {
  const members = new Map(groups.map((each) => [each.consumer, each.members]));
  const rows = consumers.flatMap(({ consumer, topics }) => topics.map((topic) => ({ consumer, members: members.get(consumer), ...topic })));
  const known = new Set(rows.map((row) => `${row.consumer} ${row.topic}`));
  for (const { consumer, topics, members: some } of groups) {
    for (const topic of topics) if (!known.has(`${consumer} ${topic}`)) rows.push({ consumer, topic, members: some });
  }
  return rows;
}

function noConsumers(query) {
  if (query) return empty("No consumer has this in its name", "Try a shorter part of it.");
  return empty("No consumer has committed an offset", "A named consumer keeps how far it has read. In Python:",
    'with client.consumer("orders", name="reports") as consumer:\n    …');
}

async function one(main, name, signal) {
  const errors = new ErrorPlace();
  const tiles = new Tiles([["Lag", "lag"], ["Topics", "topics"], ["Partitions", "partitions"], ["Committed", "committed"]]);
  const chart = new Chart("Lag", ["messages behind"], short);
  const members = membersTable();
  const trends = new Trends();
  let most = 1;
  const table = new Table([
    { label: "Topic", text: (row) => shortName(row.topic), node: (row) => h("a", { href: route("topic", [row.topic]) }, shortName(row.topic)) },
    { label: "Partition", text: (row) => partition(row.partition) },
    { label: "Member", text: (row) => row.member ?? "–" },
    { label: "Lag", right: true, text: (row) => count(row.lag), node: (row) => [meter(row.lag / most), count(row.lag)], sort: (row) => row.lag },
    { label: "Reads next", right: true, text: (row) => count(row.offset) },
    { label: "Log ends at", right: true, text: (row) => count(row.next_offset) },
    { label: "Committed", right: true, text: (row) => ago(row.committed_at), sort: (row) => row.committed_at },
  ], { label: "Partitions with most lag", key: (row) => `${row.topic} ${json(row.partition)}`, empty: () => empty("It has no offsets", "Those of topics that you may read are shown.") });
  fill(main, head(name, { crumbs: [["Consumers", route("consumers")]] }), errors.element, tiles.element,
    h("div", { class: "grid" },
      panel("Lag", null, h("div", { class: "body" }, chart.element)),
      panel("Members", null, members.whole)),
    panel("Partitions with most lag", null, table.whole));
  void history({ consumer: name }, [], signal).then((past) => chart.past(past.map((each) => [each.at, [each.lag]])), () => {});
  await poll(async () => {
    const found = await act("consumer-lag", { consumer: name, limit: 200 }, { signal });
    const group = await described(name, signal);
    errors.clear();
    members.rows = membersOf(group, trends);
    const names = new Map(group.members.map((each) => [each.member, nameOf(each)]));
    const owners = new Map(group.partitions.map((each) => [placeOf(each), names.get(each.member) ?? each.member]));
    for (const each of found.partitions) each.member = owners.get(placeOf(each));
    const lag = found.topics.reduce((sum, each) => sum + each.lag, 0);
    most = Math.max(1, ...found.partitions.map((each) => each.lag));
    tiles.set("lag", count(lag), "messages");
    tiles.set("topics", count(found.topics.length));
    tiles.set("partitions", count(found.topics.reduce((sum, each) => sum + each.partitions, 0)));
    tiles.set("committed", ago(found.topics.map((each) => each.committed_at).sort().at(-1)));
    chart.push(Date.now(), [lag]);
    table.rows = found.partitions;
  }, { interval: 2_000, signal, onError: (error) => errors.show(error) });
}

/** Return a group with all its partitions; of a consumer that never was one, without members. */
async function described(name, signal) {
  const group = { members: [], partitions: [] };
  let after = null;
  for (let page = 0; page < PAGES_MAX; page += 1) {
    let found;
    try {
      found = await act("group-describe", after === null ? { consumer: name } : { consumer: name, after }, { signal });
    } catch (error) {
      if (error.code === "GROUP_NOT_FOUND") return group;
      throw error;
    }
    if (page === 0) group.members = found.members;
    group.partitions.push(...found.partitions);
    after = found.next;
    if (after === null) break;
  }
  return group;
}

const nameOf = ({ member, instance }) => instance ?? member;

const placeOf = ({ topic, partition: value }) => `${topic} ${json(value)}`;

/** Return a row for each member, with what it reads and how far it is behind. */
function membersOf({ members, partitions }, trends) {
  const at = Date.now();
  return members.map(({ member, instance, assignment }) => {
    const own = partitions.filter((each) => each.member === member);
    const lag = own.reduce((sum, each) => sum + each.lag, 0);
    const topics = assignment.filter(({ slots }) => slots.length > 0).map(({ topic }) => shortName(topic));
    return { member, instance, topics, partitions: own.length, lag, trend: trends.of(member, lag, at) };
  });
}

function membersTable() {
  return new Table([
    { label: "Member", text: nameOf },
    { label: "Topics", text: (row) => row.topics.join(", ") || "–" },
    { label: "Partitions", right: true, text: (row) => count(row.partitions), sort: (row) => row.partitions },
    { label: "Lag", right: true, text: (row) => count(row.lag), sort: (row) => row.lag },
    { label: "Trend", right: true, text: (row) => trendText(row.trend), sort: (row) => row.trend },
  ], { label: "Members", key: (row) => row.member, tall: false, empty: () => empty("No members", "Consumers of this name that join as members share the partitions.", "wings consume NAME TOPIC --group") });
}

/** How the lag of each member has changed, in messages a second. */
class Trends {
  #points = new Map();

  /** Add the lag of a member; returns its change a second over the last minute, null if not known. */
  of(member, lag, at) {
    const points = this.#points.get(member) ?? [];
    points.push({ at, lag });
    while (points[0].at < at - TREND_SPAN) points.shift();
    this.#points.set(member, points);
    const [first] = points;
    return first.at === at ? null : ((lag - first.lag) * 1_000) / (at - first.at);
  }
}

function trendText(trend) {
  if (trend === null) return "–";
  if (Math.abs(trend) < 0.05) return "steady";
  return `${trend > 0 ? "grows" : "falls"} ${short(Math.abs(trend))}/s`;
}
