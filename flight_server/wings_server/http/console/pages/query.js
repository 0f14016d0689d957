// A query box: SQL over topics, the rows as a table or a file, with the tables there are and the
// statements that were run before.

import { act, sql } from "../api.js";
import { csv, save } from "../csv.js";
import { fill, h, panel } from "../dom.js";
import { cell, count, duration, partsOf } from "../format.js";
import { ErrorPlace, head, namespaces } from "../lists.js";
import { empty } from "../notices.js";
import { DEFAULT, remember } from "../routes.js";
import { Table } from "../table.js";
import { Tables } from "./tables.js";

const KEPT = "wings-query";
const HISTORY = "wings-queries";
const HISTORY_MAX = 50;
const LIMIT = 1_000;

/** Keep a text where there is room for it: statements run in a browser that has none too. */
function keep(storage, name, text) {
  try {
    storage.setItem(name, text);
  } catch {
    storage.removeItem(name);
  }
}

/** Statements that were run, the latest first; kept by this browser. */
const history = {
  all() {
    try {
      return JSON.parse(localStorage.getItem(HISTORY) ?? "[]").filter((each) => typeof each === "string");
    } catch {
      return [];
    }
  },
  add(text) {
    keep(localStorage, HISTORY, JSON.stringify([text, ...this.all().filter((each) => each !== text)].slice(0, HISTORY_MAX)));
  },
  forget: () => localStorage.removeItem(HISTORY),
};

export async function render(main, found, signal) {
  let namespace = found.keys.get("namespace") ?? DEFAULT;
  let running = null;
  const errors = new ErrorPlace();
  const state = h("span", { class: "soft number", role: "status" });
  const result = h("div");
  const text = h("textarea", { rows: 6, spellcheck: "false", "aria-label": "SQL statement" });
  text.value = found.keys.get("sql") ?? sessionStorage.getItem(KEPT) ?? "";
  const run = h("button", { class: "primary", type: "submit" }, "Run");
  const stop = h("button", { type: "button", hidden: true, onclick: () => running?.abort() }, "Cancel");

  async function execute() {
    text.value ||= text.placeholder;
    const statement = text.value.trim().replace(/;+$/, "");
    if (!statement) return;
    keep(sessionStorage, KEPT, text.value);
    history.add(statement);
    drawHistory();
    remember(found, { sql: statement });
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
      if (running === own) fill(state, own.signal.aborted ? "cancelled" : "");
      if (own.signal.aborted || signal.aborted) return;
      fill(result);  // An old result is not that of this statement.
      errors.show(error);
    } finally {
      if (running === own) stop.hidden = true;
    }
  }

  function insert(word, taken = 0) {
    text.setRangeText(word, text.selectionStart - taken, text.selectionEnd, "end");
    text.focus();
    hideOffers();
  }

  const tables = new Tables((word) => insert(/\s$|^$/.test(text.value.slice(0, text.selectionStart)) ? word : ` ${word}`), signal);
  const offers = h("div", { class: "offers", role: "listbox", "aria-label": "Completions", hidden: true });
  let chosen = -1;

  function hideOffers() {
    offers.hidden = true;
    chosen = -1;
  }

  function offer() {
    const { word, offers: found } = tables.offers(text.value.slice(0, text.selectionStart));
    chosen = -1;
    offers.hidden = found.length === 0;
    fill(offers, found.map((each) => h("button", { type: "button", role: "option", "aria-selected": "false", tabindex: "-1", onclick: () => insert(each, word.length) }, each)));
  }

  /** Move in the completions, take one, or leave them; returns whether the key was one of theirs. */
  function complete(key) {
    if (offers.hidden) return false;
    const all = [...offers.children];
    if (key === "Escape") hideOffers();
    else if (key === "Enter" && chosen >= 0) all[chosen].click();
    else if (key === "ArrowDown" || key === "ArrowUp") {
      chosen = (chosen + (key === "ArrowDown" ? 1 : all.length) + (chosen < 0 && key === "ArrowUp" ? 1 : 0)) % all.length;
      all.forEach((each, index) => each.setAttribute("aria-selected", String(index === chosen)));
    } else return false;
    return true;
  }

  const past = h("details", { class: "menu" });
  function drawHistory() {
    fill(past, h("summary", {}, "History"), h("div", {}, history.all().map((each) => h("button", { type: "button", class: "quiet mono", onclick: () => {
      text.value = each;
      past.open = false;
      text.focus();
    } }, each.replaceAll(/\s+/g, " ").slice(0, 120))),
      h("button", { type: "button", onclick: () => {
        history.forget();
        drawHistory();
      } }, "Forget all")));
  }

  text.addEventListener("input", offer);
  text.addEventListener("blur", (event) => {
    if (!offers.contains(event.relatedTarget)) hideOffers();
  });
  text.addEventListener("keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey && complete(event.key)) {
      event.preventDefault();
      return;
    }
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      void execute();
    }
  });
  const form = h("form", { class: "body", onsubmit: (event) => {
    event.preventDefault();
    void execute();
  } }, text, h("div", { class: "offered" }, offers), h("div", { class: "row" }, run, stop, state, h("span", { class: "soft grow" }, "Ctrl+Enter runs it; Tab leaves the box."),
    namespaces(found, signal, (name) => {
      namespace = name;
      for (const made of [tables.load(namespace), suggest(text, namespace, signal)]) made.catch(() => {});
    }), past, linkButton()));
  drawHistory();
  fill(main, head("Query"), h("div", { class: "split" }, h("section", { class: "panel", "aria-label": "Statement" }, form), tables.element), errors.element, result);
  void tables.load(namespace).catch(() => {});  // The statement's own error tells what is wrong.
  fill(result, panel("Result", null, empty("SQL over topics", "A topic is a table, with __partition, __offset and __timestamp after its own columns; system.topics, system.partitions and others tell of the log. Write a LIMIT: an answer is of one piece.")));
  await suggest(text, namespace, signal);
}

/** Return the button that copies this page's address, which carries the statement that was run last. */
function linkButton() {
  const button = h("button", { type: "button", onclick: async () => {
    await navigator.clipboard.writeText(location.href);
    button.textContent = "Copied";
  } }, "Copy link");
  return navigator.clipboard ? button : null;
}

/** Offer a statement over the first topic there is: beside what is typed, which may have begun. */
async function suggest(text, namespace, signal) {
  const [topic] = await act("list-topics", { namespace, limit: 1 }, { signal });
  text.placeholder = topic ? `select *\nfrom "${partsOf(topic.topic).id}"\nlimit ${LIMIT}` : "";
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
  const download = h("button", { type: "button", onclick: () => save("result.csv", csv(names, rows)) }, "Download CSV");
  fill(place, panel("Result", rows.length > 0 && download, table.whole));
  table.rows = numbered;
}
