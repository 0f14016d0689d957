// Live messages of a topic: what is committed, as it comes, by a filter and in the columns chosen.
//
// Each look asks which partitions were written to lately, and reads what is new in them by SQL.

import { act, poll, sql } from "../api.js";
import { debounced, fill, h, panel, setText } from "../dom.js";
import { cell, count, moment, partsOf } from "../format.js";
import { ErrorPlace } from "../lists.js";
import { empty } from "../notices.js";
import { remember, route } from "../routes.js";
import { Table } from "../table.js";

const PARTITIONS_MAX = 200;
const AT_ONCE = 8;
const ROWS_MAX = 2_000;
const BEHIND_MAX = 500;
const FIRST_ROWS = 100;
const COLUMNS_MAX = 60;

const quoted = (name) => `"${name.replaceAll('"', '""')}"`;

export async function tail(body, topic, { found, signal }) {
  const live = new Live(topic, found, signal);
  fill(body, live.element);
  await poll(() => live.look(), { interval: 1_000, signal, onError: (error) => live.fail(error) });
}

class Live {
  constructor(topic, found, signal) {
    Object.assign(this, { topic, found, signal });
    this.names = topic.schema.fields.map((each) => each.name);
    const asked = (found.keys.get("columns") ?? "").split(",").filter((name) => this.names.includes(name));
    this.columns = new Set(asked.length ? asked : this.names.slice(0, COLUMNS_MAX));
    this.filter = found.keys.get("filter") ?? "";
    this.isPaused = false;
    this.errors = new ErrorPlace();
    this.state = h("span", { class: "soft number", role: "status" }, "waiting for messages");
    this.place = h("div");
    this.restart();
    this.element = panel("Live messages", [this.state, this.#pauseButton(), this.#columnsMenu()],
      h("div", { class: "body" }, this.#filterField(), this.errors.element), this.place);
  }

  /** Forget what was read: the filter or the columns are others. */
  restart() {
    this.cursors = new Map();
    this.rows = [];
    this.skipped = 0;
    this.isFirst = true;
    this.turn = (this.turn ?? 0) + 1;
    this.#makeTable();
  }

  #makeTable() {
    const shown = this.names.filter((name) => this.columns.has(name));
    const isKeyed = this.topic.partition_key !== null;
    this.table = new Table([
      { label: "Offset", right: true, text: (row) => count(row.__offset), node: (row) => h("a", { href: route("message", [this.topic.topic, row.__partition, row.__offset]) }, count(row.__offset)) },
      ...(isKeyed ? [{ label: "Partition", text: (row) => row.__partition, className: "mono" }] : []),
      { label: "Time", text: (row) => moment(row.__timestamp) },
      ...shown.map((name) => ({ label: name, text: (row) => cell(row[name]).slice(0, 300), className: "mono" })),
    ], {
      label: "Live messages, newest first",
      key: (row) => `${row.__partition} ${row.__offset}`,
      empty: () => empty(this.filter ? "No new message passes the filter" : "Waiting for messages", "They appear here as they are committed.", `wings push ${partsOf(this.topic.topic).id} FILE.csv`),
      onOpen: (row) => {
        location.hash = route("message", [this.topic.topic, row.__partition, row.__offset]);
      },
    });
    fill(this.place, this.table.whole);
    this.table.rows = this.rows;
  }

  #filterField() {
    const input = h("input", { type: "text", class: "mono", spellcheck: "false", value: this.filter, placeholder: "amount > 100 and status = 'late'", "aria-label": "Filter: a SQL predicate over the columns" });
    input.addEventListener("input", debounced(() => {
      this.filter = input.value.trim();
      remember(this.found, { filter: this.filter });
      this.errors.clear();
      this.restart();
    }, 500));
    this.input = input;
    return h("label", { class: "field" }, "Filter: a SQL predicate over the columns, run by the server", input);
  }

  #pauseButton() {
    const button = h("button", { type: "button", "aria-pressed": "false", onclick: () => {
      this.isPaused = !this.isPaused;
      button.setAttribute("aria-pressed", String(this.isPaused));
      setText(button, this.isPaused ? "Go on" : "Pause");
      this.#tell();
    } }, "Pause");
    return button;
  }

  #columnsMenu() {
    const boxes = this.names.map((name) => h("label", {}, h("input", { type: "checkbox", checked: this.columns.has(name), onchange: (event) => this.#choose(name, event.target.checked) }), name));
    return h("details", { class: "menu", onkeydown: (event) => {
      if (event.key !== "Escape") return;
      event.currentTarget.open = false;
      event.currentTarget.querySelector("summary").focus();
    } }, h("summary", {}, "Columns"), h("div", {}, boxes));
  }

  #choose(name, isChosen) {
    if (isChosen) this.columns.add(name);
    else this.columns.delete(name);
    remember(this.found, { columns: this.columns.size === this.names.length ? "" : [...this.columns].join(",") });
    this.restart();
  }

  /** Read what is new. */
  async look() {
    if (this.isPaused) return;
    const { turn } = this;
    const states = await act("partition-states", { topic: this.topic.topic, order: "last_timestamp", limit: PARTITIONS_MAX }, { signal: this.signal });
    const ranges = this.#ranges(states);
    for (let at = 0; at < ranges.length; at += AT_ONCE) {
      const some = ranges.slice(at, at + AT_ONCE);
      const rows = await this.#read(some);
      if (turn !== this.turn) return;
      for (const { text, end } of some) this.cursors.set(text, end);
      this.#add(rows);
    }
    this.isFirst = false;
    this.errors.clear();
    this.input.removeAttribute("aria-invalid");
    this.#tell();
  }

  /** Return the ranges of offsets to read; the first time, the last rows of the latest partitions. */
  #ranges(states) {
    const each = Math.max(1, Math.ceil(FIRST_ROWS / Math.max(1, states.length)));
    const ranges = [];
    for (const state of states.toReversed()) {
      const text = JSON.stringify(state.partition);
      const end = state.next_offset;
      // One that is new here was written to since, but not how much: some of its last rows.
      const known = this.cursors.get(text) ?? end - each;
      const start = Math.max(known, state.log_start_offset, end - BEHIND_MAX);
      if (this.cursors.has(text)) this.skipped += Math.max(0, start - Math.max(known, state.log_start_offset));
      if (start < end) ranges.push({ text, start, end });
    }
    return ranges;
  }

  async #read(ranges) {
    const { namespace, id } = partsOf(this.topic.topic);
    const shown = this.names.filter((name) => this.columns.has(name)).map(quoted);
    const columns = [...shown, "__partition", "__offset", "__timestamp"].join(", ");
    const filter = this.filter ? ` AND (\n${this.filter}\n)` : "";
    // One scan for each, as a common one would read all offsets between the least and the greatest.
    const scans = ranges.map(() => `(SELECT ${columns} FROM ${quoted(id)} WHERE __partition = ? AND __offset >= ? AND __offset < ?${filter})`);
    const parameters = ranges.flatMap(({ text, start, end }) => [text, start, end]);
    const found = await sql(`${scans.join(" UNION ALL ")} ORDER BY __timestamp DESC, __offset DESC`, { namespace, parameters, signal: this.signal });
    return found.rows;
  }

  #add(rows) {
    if (rows.length === 0) return;
    this.rows = rows.concat(this.rows).slice(0, ROWS_MAX);
    if (this.isFirst) this.rows.sort((a, b) => (a.__timestamp < b.__timestamp ? 1 : a.__timestamp > b.__timestamp ? -1 : b.__offset - a.__offset));
    this.table.rows = this.rows;
  }

  fail(error) {
    this.errors.show(error);
    if (error.code === "INVALID_SQL") this.input.setAttribute("aria-invalid", "true");
  }

  #tell() {
    const skipped = this.skipped ? `, ${count(this.skipped)} passed over` : "";
    setText(this.state, this.isPaused ? "paused" : `${count(this.rows.length)} shown${skipped}`);
  }
}
