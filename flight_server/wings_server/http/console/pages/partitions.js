// The partitions of a topic, the largest first; those of a very wide topic a page at a time.

import { act } from "../api.js";
import { meter } from "../chart.js";
import { debounced, fill, h, panel } from "../dom.js";
import { ago, bytes, count, json, partition } from "../format.js";
import { counted, ErrorPlace, Paged } from "../lists.js";
import { empty } from "../notices.js";
import { Table } from "../table.js";

const ORDERS = [["bytes", "largest first"], ["rows", "most rows first"], ["last_timestamp", "latest first"], ["value", "by value"]];

export async function partitions(body, topic, { signal }) {
  const errors = new ErrorPlace();
  const size = h("span", { class: "soft number" });
  let order = "bytes";
  let contains = "";
  let most = 1;
  const table = new Table([
    { label: "Partition", text: (row) => partition(row.partition), className: "mono" },
    { label: "Size", right: true, text: (row) => bytes(row.bytes), node: (row) => [meter(row.bytes / most), bytes(row.bytes)] },
    { label: "Rows", right: true, text: (row) => count(row.next_offset - row.log_start_offset) },
    { label: "Starts at", right: true, text: (row) => count(row.log_start_offset) },
    { label: "Ends at", right: true, text: (row) => count(row.next_offset) },
    { label: "Last message", right: true, text: (row) => ago(row.last_timestamp) },
  ], { label: "Partitions", key: (row) => json(row.partition), onEnd: () => paged.more(), empty: () => empty("No partition has been written to", "A partition is born with the first row of its value.") });
  const paged = new Paged(
    () => act("partition-states", { topic: topic.topic, order, contains, skip: paged.rows.length, limit: paged.limit }, { signal }),
    {
      signal,
      count: () => counted("*", "partitions", "topic = ? AND strpos(partition, ?) > 0", [topic.topic, contains], signal),
      onRows: (rows) => {
        errors.clear();
        most = Math.max(1, ...rows.slice(0, 200).map((row) => row.bytes));
        table.rows = rows;
        fill(size, paged.size);
      },
      onError: (error) => errors.show(error, () => paged.reset()),
    },
  );
  const select = h("select", { "aria-label": "Order", onchange: () => {
    order = select.value;
    void paged.reset();
  } }, ORDERS.map(([value, label]) => h("option", { value }, label)));
  const find = h("input", { type: "search", placeholder: "Find by value", "aria-label": "Find partitions by value", spellcheck: "false" });
  find.addEventListener("input", debounced(() => {
    contains = find.value;
    void paged.reset();
  }));
  fill(body, errors.element, panel("Partitions", [size, find, select], table.whole));
  await paged.reset();
}
