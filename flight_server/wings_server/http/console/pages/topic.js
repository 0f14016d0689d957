// One topic: its figures, and a tab each for live messages, partitions, schema, settings, groups.

import { act, poll } from "../api.js";
import { Chart, Rates, Tiles } from "../chart.js";
import { confirmed } from "../dialogs.js";
import { field, fill, h, panel } from "../dom.js";
import { ago, bytes, bytesPerSecond, count, duration, json, moment, partsOf, perSecond, short, shortName } from "../format.js";
import { ErrorPlace, head } from "../lists.js";
import { empty, notice } from "../notices.js";
import { may } from "../rights.js";
import { route } from "../routes.js";
import { Table } from "../table.js";
import { ratesOf, trafficPast } from "../traffic.js";
import { partitions } from "./partitions.js";
import { produce } from "./produce.js";
import { tail } from "./tail.js";
import { retention } from "./topics.js";

const TABS = [["live", "Live"], ["produce", "Produce"], ["partitions", "Partitions"], ["schema", "Schema"], ["settings", "Settings"], ["groups", "Share groups"]];

export async function render(main, found, signal) {
  const [name, tab = "live"] = found.parts;
  const { namespace } = partsOf(name);
  const crumbs = [["Topics", route("topics", [], { namespace })]];
  fill(main, head(shortName(name), { crumbs }));
  const topic = await act("describe-topic", { topic: name }, { signal });
  const rights = { write: await may("write", name), admin: await may("admin", name) };
  const errors = new ErrorPlace();
  const figures = new Figures();
  const tabs = h("nav", { class: "tabs", "aria-label": "Of this topic" }, TABS.filter(([id]) => id !== "produce" || rights.write).map(([id, label]) =>
    h("a", { href: route("topic", [name, id]), "aria-current": id === tab ? "page" : null }, label)));
  const body = h("div", {});
  main.append(h("p", { class: "soft mono" }, name), errors.element, figures.tiles.element, figures.charts, tabs, body);
  void trafficPast(figures.rowsChart, figures.bytesChart, { topic: name }, signal);
  const begun = SHOWN[tab]?.(body, topic, { found, signal, figures, rights });
  void poll(async () => {
    const [totals] = await act("topic-totals", { topics: [name], tiers: tab === "settings" }, { signal });
    errors.clear();
    if (totals !== undefined) figures.add(totals);
  }, { interval: 2_000, signal, onError: (error) => errors.show(error) });
  await begun;
}

const SHOWN = {
  live: tail,
  produce,
  partitions,
  schema,
  settings,
  groups,
};

/** The tiles of a topic, its charts, and who wants to know of its totals. */
class Figures {
  rates = new Rates();
  tiles = new Tiles([["Rows", "rows"], ["Stored", "bytes"], ["Partitions", "partitions"], ["In", "in"], ["Out", "out"], ["Last message", "last"]]);
  rowsChart = new Chart("Rows a second", ["in", "out"], perSecond);
  bytesChart = new Chart("Bytes a second", ["in", "out"], bytesPerSecond, 2);
  charts = h("div", { class: "grid" },
    panel("Rows", null, h("div", { class: "body" }, this.rowsChart.element)),
    panel("Bytes", null, h("div", { class: "body" }, this.bytesChart.element)));
  listeners = [];

  add(totals) {
    const { rowsIn, bytesIn, rowsOut, bytesOut } = ratesOf(this.rates, totals, performance.now());
    this.tiles.set("rows", count(totals.rows), totals.messages > totals.rows ? `of ${short(totals.messages)} ever` : "");
    this.tiles.set("bytes", bytes(totals.bytes), totals.rows ? `${bytes(totals.bytes / totals.rows)} a row` : "");
    this.tiles.set("partitions", count(totals.partitions));
    this.tiles.set("in", perSecond(rowsIn), bytesPerSecond(bytesIn));
    this.tiles.set("out", perSecond(rowsOut), bytesPerSecond(bytesOut));
    this.tiles.set("last", totals.last_timestamp ? ago(totals.last_timestamp) : "none yet", totals.last_timestamp ? moment(totals.last_timestamp) : "");
    this.rowsChart.push(Date.now(), [rowsIn, rowsOut]);
    this.bytesChart.push(Date.now(), [bytesIn, bytesOut]);
    for (const tell of this.listeners) tell(totals);
  }
}

function schema(body, topic) {
  const table = new Table([
    { label: "Id", right: true, text: (row) => row.id },
    { label: "Column", text: (row) => row.name, node: (row) => [h("code", {}, row.name), row.name === topic.partition_key && h("span", { class: "tag" }, "partition key")] },
    { label: "Type", text: (row) => row.type, className: "mono" },
    { label: "May be null", text: (row) => (row.nullable ? "yes" : "no") },
  ], { label: "Columns", key: (row) => row.id });
  table.rows = topic.schema.fields;
  fill(body, panel(`${topic.schema.fields.length} columns`, h("span", { class: "tag" }, `version ${topic.schema_version}`), table.whole));
}

function settings(body, topic, { figures, rights, signal }) {
  const { config } = topic;
  const facts = [
    ["Kept", retention(config)],
    ["Moves to the remote store", config.tier_after_ms === null ? "by the server's own setting" : `after ${duration(config.tier_after_ms)}`],
    ["Merged into segments of", `${bytes(config.segment_bytes)}, ${config.segment_format}`],
    ["Largest batch", config.batch_bytes_max === null ? "the server's limit" : bytes(config.batch_bytes_max)],
    ["Table", topic.table ? `${topic.table.identifier}, ${count(topic.table.lag_rows)} rows behind` : config.table ?? "no"],
    ["Partition key", topic.partition_key ?? "none: one partition"],
    ["Created", moment(topic.created_at)],
    ["UUID", topic.uuid],
  ];
  const tiers = new Table([
    { label: "Tier", text: (row) => row.tier },
    { label: "Pages", right: true, text: (row) => count(row.pages) },
    { label: "Rows", right: true, text: (row) => count(row.rows) },
    { label: "Size", right: true, text: (row) => bytes(row.bytes) },
  ], { label: "Tiers", key: (row) => row.tier, tall: false });
  figures.listeners.push((totals) => {
    if (totals.tiers) tiers.rows = totals.tiers;
  });
  fill(body, h("div", { class: "grid" },
    panel("Settings", null, h("div", { class: "body" },
      h("dl", { class: "facts" }, facts.map(([label, value]) => [h("dt", {}, label), h("dd", {}, String(value))])),
      h("details", {}, h("summary", {}, "As JSON"), h("pre", {}, json(config, 2))))),
    rights.admin && retentionForm(topic, signal),
    panel("Tiers", null, tiers.whole)));
}

const DAY = 86_400_000;
const MIB = 1_048_576;

/** Return the form that changes how long, and how much, a topic keeps. */
function retentionForm(topic, signal) {
  const { config } = topic;
  const errors = new ErrorPlace();
  const days = h("input", { type: "text", inputmode: "decimal", value: config.retention_ms === null ? "" : String(config.retention_ms / DAY), placeholder: "for ever" });
  const size = h("input", { type: "text", inputmode: "decimal", value: config.retention_bytes === null ? "" : String(config.retention_bytes / MIB), placeholder: "as much as comes" });
  const said = h("div");
  const number = (input, unit) => (input.value.trim() === "" ? null : Math.round(Number(input.value) * unit));
  return panel("Change retention", null, h("form", { class: "body", onsubmit: async (event) => {
    event.preventDefault();
    fill(said);
    errors.clear();
    const asked = { retention_ms: number(days, DAY), retention_bytes: number(size, MIB) };
    if (Object.values(asked).some((each) => Number.isNaN(each))) {
      errors.show(Object.assign(new Error("Give numbers, or leave a field empty to keep everything."), { code: "INVALID_ARGUMENT" }));
      return;
    }
    if (!(await confirmed("Change retention?", `${shortName(topic.topic)} keeps: ${retention({ ...config, ...asked })}. What is beyond that is deleted, for good.`, "Change it"))) return;
    try {
      await act("alter-topic", { topic: topic.topic, config: asked }, { signal });
      fill(said, notice("good", "Retention is changed", `Kept: ${retention({ ...config, ...asked })}.`));
    } catch (error) {
      errors.show(error);
    }
  } }, field("Days", days), field("MiB a partition", size), errors.element, said, h("div", {}, h("button", { class: "primary" }, "Change…"))));
}

async function groups(body, topic, { signal }) {
  const table = new Table([
    { label: "Group", text: (row) => row.group, node: (row) => h("a", { href: route("group", [row.topic, row.group]) }, row.group) },
    { label: "Delivery limit", right: true, text: (row) => row.config.delivery_limit },
    { label: "Lock", right: true, text: (row) => duration(row.config.lock_duration_ms) },
    { label: "Order", text: (row) => row.config.ordering },
    { label: "Dead letters", text: (row) => (row.config.dlq_topic ? shortName(row.config.dlq_topic) : "dropped") },
  ], { label: "Share groups", key: (row) => row.group, tall: false, empty: () => empty("No share group works on this topic", "A share group is a queue over the log: many workers, each message held by one at a time.", `wings share create GROUP ${partsOf(topic.topic).id}`) });
  fill(body, panel("Share groups", null, table.whole));
  table.rows = await act("share-list", { topic: topic.topic }, { signal });
}
