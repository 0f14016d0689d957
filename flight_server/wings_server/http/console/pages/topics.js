// All topics of a namespace: a row for each, its figures for those in sight.

import { act, poll } from "../api.js";
import { Rates } from "../chart.js";
import { fill, h } from "../dom.js";
import { ago, bytes, bytesPerSecond, count, perSecond, short, shortName } from "../format.js";
import { counted, ErrorPlace, head, namespaces, Paged, search } from "../lists.js";
import { empty } from "../notices.js";
import { DEFAULT, route } from "../routes.js";
import { Table } from "../table.js";
import { ratesOf } from "../traffic.js";

export async function render(main, found, signal) {
  const errors = new ErrorPlace();
  const size = h("span", { class: "soft number" });
  const figures = new Map();
  const rates = new Rates();
  let namespace = found.keys.get("namespace") ?? DEFAULT;
  let query = found.keys.get("q") ?? "";
  const of = (row) => figures.get(row.topic);
  const table = new Table(columns(of), {
    label: "Topics",
    key: (row) => row.uuid,
    empty: () => (errors.element.firstChild ? null : noTopics(query)),
    onEnd: () => paged.more(),
    onOpen: (row) => {
      location.hash = route("topic", [row.topic]);
    },
  });
  const paged = new Paged(
    (last, limit) => act("list-topics", { namespace, limit, contains: query, after: last === null ? "" : last.topic.split("/").at(-1) }, { signal }),
    {
      signal,
      count: () => counted("*", "topics", "strpos(topic, ?) = 1 AND strpos(substr(topic, ?), ?) > 0", [`${namespace}/topics/`, `${namespace}/topics/`.length + 1, query], signal),
      onRows: (rows) => {
        errors.clear();
        table.rows = rows;
        fill(size, `${paged.size} topics`);
        void look().catch(() => {});
      },
      onError: (error) => errors.show(error, () => paged.reset()),
    },
  );

  async function look() {
    const topics = table.seen.map((row) => row.topic);
    if (topics.length === 0) return;
    const totals = await act("topic-totals", { topics }, { signal });
    const at = performance.now();
    for (const each of totals) figures.set(each.topic, { ...each, ...ratesOf(rates, each, at) });
    table.draw();
  }

  fill(main,
    head("Topics", { beside: [size] }),
    h("div", { class: "row" },
      h("div", { class: "grow" }, search(found, "Find topics by a part of their name", (text) => {
        query = text;
        void paged.reset();
      })),
      namespaces(found, signal, (name) => {
        namespace = name;
        void paged.reset();
      })),
    errors.element,
    h("section", { class: "panel", "aria-label": "Topics" }, table.whole));
  await paged.reset();
  void poll(look, { interval: 2_000, signal, onError: (error) => errors.show(error) });
}

function columns(of) {
  const figure = (name, format) => ({
    right: true,
    text: (row) => (of(row) === undefined ? "" : format(of(row)[name])),
    sort: (row) => of(row)?.[name],
  });
  return [
    { label: "Topic", text: (row) => shortName(row.topic), node: (row) => h("a", { href: route("topic", [row.topic]) }, shortName(row.topic)), sort: (row) => row.topic },
    { label: "Key", wide: true, text: (row) => row.partition_key ?? "–" },
    { label: "Partitions", wide: true, ...figure("partitions", count) },
    { label: "Rows", wide: true, ...figure("rows", count) },
    { label: "Size", wide: true, ...figure("bytes", bytes) },
    { label: "Rows in", ...figure("rowsIn", perSecond) },
    { label: "Bytes in", wide: true, ...figure("bytesIn", bytesPerSecond) },
    { label: "Rows out", wide: true, ...figure("rowsOut", perSecond) },
    { label: "Bytes out", wide: true, ...figure("bytesOut", bytesPerSecond) },
    { label: "Retention", wide: true, text: (row) => retention(row.config) },
    { label: "Last message", ...figure("last_timestamp", ago) },
  ];
}

/** Return what a topic keeps, in a few words. */
export function retention({ retention_ms, retention_bytes, retention_on_acceptance }) {
  const kept = [];
  if (retention_ms !== null) kept.push(retention_ms % 86_400_000 === 0 ? `${count(retention_ms / 86_400_000)} d` : `${short(retention_ms / 3_600_000)} h`);
  if (retention_bytes !== null) kept.push(`${bytes(retention_bytes)} a partition`);
  if (retention_on_acceptance) kept.push("until finished");
  return kept.join(", ") || "for ever";
}

function noTopics(query) {
  if (query) return empty("No topic has this in its name", "Try a shorter part of it.");
  return empty("No topics yet", "A topic is a durable log of rows with a schema. Make one, and push to it:",
    "wings topic create orders --field 'id: int64' --field 'amount: double'\nwings push orders FILE.csv");
}
