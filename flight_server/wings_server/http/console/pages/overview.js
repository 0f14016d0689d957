// The log at a glance: what goes in and out at this server, and the topics written to lately.

import { act, call, poll } from "../api.js";
import { Chart, Rates, Tiles } from "../chart.js";
import { fill, h, panel } from "../dom.js";
import { ago, bytes, bytesPerSecond, count, perSecond, shortName } from "../format.js";
import { ErrorPlace, head } from "../lists.js";
import { empty, notice } from "../notices.js";
import { route } from "../routes.js";
import { Table } from "../table.js";
import { ratesOf, trafficPast } from "../traffic.js";

const BUSIEST = 12;

export async function render(main, _, signal) {
  const errors = new ErrorPlace();
  const rates = new Rates();
  const tiles = new Tiles([["Rows in", "rowsIn"], ["Bytes in", "bytesIn"], ["Rows out", "rowsOut"], ["Bytes out", "bytesOut"], ["Topics with traffic", "topics"]]);
  const rows = new Chart("Rows a second", ["in", "out"], perSecond);
  const sizes = new Chart("Bytes a second", ["in", "out"], bytesPerSecond, 2);
  const table = new Table([
    { label: "Topic", text: (row) => shortName(row.topic), node: (row) => h("a", { href: route("topic", [row.topic]) }, shortName(row.topic)) },
    { label: "Rows in", right: true, text: (row) => perSecond(row.rowsIn) },
    { label: "Rows out", right: true, text: (row) => perSecond(row.rowsOut) },
    { label: "Rows", wide: true, right: true, text: (row) => count(row.rows) },
    { label: "Size", wide: true, right: true, text: (row) => bytes(row.bytes) },
    { label: "Last message", right: true, text: (row) => ago(row.last_timestamp) },
  ], { label: "Busiest topics", key: (row) => row.topic, tall: false, empty: () => (errors.element.firstChild ? null : quiet()) });
  const needs = h("div");
  fill(main, head("Overview"), errors.element, needs, tiles.element,
    h("div", { class: "grid" },
      panel("Rows", null, h("div", { class: "body" }, rows.element)),
      panel("Bytes", null, h("div", { class: "body" }, sizes.element))),
    panel("Topics with traffic lately", h("a", { href: route("topics") }, "All topics"), table.whole));
  void trafficPast(rows, sizes, {}, signal);
  void poll(async () => showNeeds(needs, await call("GET", "/v1/health", undefined, { signal })), { interval: 10_000, signal, onError: () => fill(needs) });
  await poll(async () => {
    const traffic = await act("traffic", { limit: BUSIEST }, { signal });
    const at = performance.now();
    const names = traffic.topics.map((each) => each.topic);
    const totals = names.length ? await act("topic-totals", { topics: names }, { signal }) : [];
    errors.clear();
    const rate = (name) => rates.of(name, traffic[name], at, traffic.since);
    const [rowsIn, bytesIn, rowsOut, bytesOut] = ["rows_in", "bytes_in", "rows_out", "bytes_out"].map(rate);
    tiles.set("rowsIn", perSecond(rowsIn), `${count(traffic.rows_in)} since the start`);
    tiles.set("bytesIn", bytesPerSecond(bytesIn), `${bytes(traffic.bytes_in)} since the start`);
    tiles.set("rowsOut", perSecond(rowsOut), `${count(traffic.rows_out)} since the start`);
    tiles.set("bytesOut", bytesPerSecond(bytesOut), `${bytes(traffic.bytes_out)} since the start`);
    tiles.set("topics", count(traffic.topics_counted), `since ${ago(traffic.since)}`);
    rows.push(Date.now(), [rowsIn, rowsOut]);
    sizes.push(Date.now(), [bytesIn, bytesOut]);
    const read = performance.now();
    table.rows = totals.map((each) => ({ ...each, ...ratesOf(rates, each, read) }));
  }, { interval: 2_000, signal, onError: (error) => {
    errors.show(error);
    table.draw();
  } });
}

const LEVELS = { pushes_refused: "bad", share_groups_closed: "bad", node_silent: "bad", no_workers: "bad", faults: "bad" };

/** Show what needs a person: a line each, linked to its page. */
function showNeeds(place, { needs, needs_left_out: more }) {
  if (needs.length === 0) return fill(place);
  const kind = needs.some((each) => LEVELS[each.kind]) ? "bad" : "warn";
  const many = needs.length + more;
  return fill(place, notice(kind, `${count(many)} ${many === 1 ? "thing needs" : "things need"} you`, "",
    h("ul", {}, needs.map((each) => h("li", {}, h("a", { href: pageOf(each) }, each.message), ` – ${each.remedy}`)))));
}

/** The address of the page on which something that needs a person is seen. */
function pageOf({ topic, group, consumer }) {
  if (consumer !== undefined) return route("consumers");
  if (group !== undefined) return route("group", [topic, group]);
  return topic === undefined ? route("nodes") : route("topic", [topic]);
}

function quiet() {
  return empty("Nothing was pushed or read since the server started", "Make a topic, push to it, and watch it here:",
    "wings topic create orders --field 'id: int64' --field 'amount: double'\nwings push orders FILE.csv");
}
