// A query box: SQL over topics, the rows as a table.

import { act, sql } from "../api.js";
import { fill, h, panel } from "../dom.js";
import { cell, count, duration, partsOf } from "../format.js";
import { ErrorPlace, head, namespaces } from "../lists.js";
import { empty } from "../notices.js";
import { DEFAULT } from "../routes.js";
import { Table } from "../table.js";

const KEPT = "wings-query";
const LIMIT = 1_000;

export async function render(main, found, signal) {
  let namespace = found.keys.get("namespace") ?? DEFAULT;
  let running = null;
  const errors = new ErrorPlace();
  const state = h("span", { class: "soft number", role: "status" });
  const result = h("div");
  const text = h("textarea", { rows: 6, spellcheck: "false", "aria-label": "SQL statement", placeholder: "select * from orders limit 100" });
  text.value = found.keys.get("sql") ?? sessionStorage.getItem(KEPT) ?? "";
  const run = h("button", { class: "primary", type: "submit" }, "Run");
  const stop = h("button", { type: "button", hidden: true, onclick: () => running?.abort() }, "Cancel");

  async function execute() {
    const statement = text.value.trim().replace(/;+$/, "");
    if (!statement) return;
    sessionStorage.setItem(KEPT, text.value);
    running?.abort();
    const own = (running = new AbortController());
    errors.clear();
    stop.hidden = false;
    fill(state, "running…");
    const begun = performance.now();
    try {
      const answer = await sql(statement, { namespace, signal: AbortSignal.any([signal, own.signal]) });
      fill(state, `${count(answer.rows.length)} rows in ${duration(performance.now() - begun)}`);
      show(result, answer);
    } catch (error) {
      fill(state, own.signal.aborted ? "cancelled" : "");
      if (!own.signal.aborted && !signal.aborted) errors.show(error);
    } finally {
      if (running === own) stop.hidden = true;
    }
  }

  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      void execute();
    }
  });
  const form = h("form", { class: "body", onsubmit: (event) => {
    event.preventDefault();
    void execute();
  } }, text, h("div", { class: "row" }, run, stop, state, h("span", { class: "soft grow" }, "Ctrl+Enter runs it; Tab leaves the box."),
    namespaces(found, signal, (name) => {
      namespace = name;
    })));
  fill(main, head("Query"), h("section", { class: "panel", "aria-label": "Statement" }, form), errors.element, result);
  fill(result, panel("Result", null, empty("SQL over topics", "A topic is a table, with __partition, __offset and __timestamp after its own columns; system.topics, system.partitions and others tell of the log. Write a LIMIT: an answer is of one piece.")));
  await suggest(text, namespace, signal);
}

/** Offer a statement that fits: over the first topic there is. */
async function suggest(text, namespace, signal) {
  if (text.value) return;
  const [topic] = await act("list-topics", { namespace, limit: 1 }, { signal });
  if (topic && !text.value) text.value = `select *\nfrom "${partsOf(topic.topic).id}"\nlimit ${LIMIT}`;
}

function show(place, { schema, rows }) {
  const names = schema.fields.map((each) => each.name);
  const isNumber = (type) => /^(u?int|float|double|half|decimal)/.test(type);
  const numbered = rows.map((row, number) => ({ number, row }));
  const table = new Table(schema.fields.map((each) => ({
    label: each.name,
    right: isNumber(each.type),
    className: "mono",
    text: ({ row }) => cell(row[each.name]).slice(0, 300),
    sort: ({ row }) => row[each.name],
  })), { label: "Result", key: ({ number }) => number, empty: () => empty("No rows", `The statement has ${names.length} columns and no rows.`) });
  fill(place, panel("Result", null, table.whole));
  table.rows = numbered;
}
