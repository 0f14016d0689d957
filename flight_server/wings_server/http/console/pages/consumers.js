// Named consumers: how far each is behind in each topic, and in which partitions most.

import { act, poll } from "../api.js";
import { Chart, meter, Tiles } from "../chart.js";
import { fill, h, panel } from "../dom.js";
import { ago, count, partition, short, shortName } from "../format.js";
import { ErrorPlace, head, search } from "../lists.js";
import { empty } from "../notices.js";
import { route } from "../routes.js";
import { Table } from "../table.js";

const SHOWN_MAX = 500;

export async function render(main, found, signal) {
  const [name] = found.parts;
  await (name === undefined ? list(main, found, signal) : one(main, name, signal));
}

async function list(main, found, signal) {
  const errors = new ErrorPlace();
  const size = h("span", { class: "soft number" });
  let query = found.keys.get("q") ?? "";
  const table = new Table([
    { label: "Consumer", text: (row) => row.consumer, node: (row) => h("a", { href: route("consumers", [row.consumer]) }, row.consumer), sort: (row) => row.consumer },
    { label: "Topic", text: (row) => shortName(row.topic), node: (row) => h("a", { href: route("topic", [row.topic]) }, shortName(row.topic)), sort: (row) => row.topic },
    { label: "Partitions", right: true, text: (row) => count(row.partitions), sort: (row) => row.partitions },
    { label: "Lag", right: true, text: (row) => count(row.lag), sort: (row) => row.lag },
    { label: "Committed", right: true, text: (row) => ago(row.committed_at), sort: (row) => row.committed_at },
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
    errors.clear();
    table.rows = consumers.flatMap(({ consumer, topics }) => topics.map((topic) => ({ consumer, ...topic })));
    fill(size, consumers.length === SHOWN_MAX ? `the first ${SHOWN_MAX}` : `${consumers.length} consumers`);
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

function noConsumers(query) {
  if (query) return empty("No consumer has this in its name", "Try a shorter part of it.");
  return empty("No consumer has committed an offset", "A named consumer keeps how far it has read. In Python:",
    'with client.consumer("orders", name="reports") as consumer:\n    …');
}

async function one(main, name, signal) {
  const errors = new ErrorPlace();
  const tiles = new Tiles([["Lag", "lag"], ["Topics", "topics"], ["Partitions", "partitions"], ["Committed", "committed"]]);
  const chart = new Chart("Lag", ["messages behind"], short);
  let most = 1;
  const table = new Table([
    { label: "Topic", text: (row) => shortName(row.topic), node: (row) => h("a", { href: route("topic", [row.topic]) }, shortName(row.topic)) },
    { label: "Partition", text: (row) => partition(row.partition) },
    { label: "Lag", right: true, text: (row) => count(row.lag), node: (row) => [meter(row.lag / most), count(row.lag)], sort: (row) => row.lag },
    { label: "Reads next", right: true, text: (row) => count(row.offset) },
    { label: "Log ends at", right: true, text: (row) => count(row.next_offset) },
    { label: "Committed", right: true, text: (row) => ago(row.committed_at), sort: (row) => row.committed_at },
  ], { label: "Partitions with most lag", key: (row) => `${row.topic} ${JSON.stringify(row.partition)}`, empty: () => empty("It has no offsets", "Those of topics that you may read are shown.") });
  fill(main, head(name, { crumbs: [["Consumers", route("consumers")]] }), errors.element, tiles.element,
    panel("Lag", null, h("div", { class: "body" }, chart.element)),
    panel("Partitions with most lag", null, table.whole));
  await poll(async () => {
    const found = await act("consumer-lag", { consumer: name, limit: 200 }, { signal });
    errors.clear();
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
