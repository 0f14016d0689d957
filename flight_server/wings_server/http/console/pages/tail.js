// Live messages of a topic: what is committed, as it comes, by a filter and in the columns chosen.
//
// Each look asks which partitions were written to lately, and reads what is new in them by SQL.

import { act, poll, sql } from "../api.js";
import { debounced, field, fill, h, panel, setText } from "../dom.js";
import { cell, count, json, moment, partsOf } from "../format.js";
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

/** Partitions in which a time is looked up. */
const TIMED_MAX = 40;

const newestFirst = (a, b) => (a.__timestamp < b.__timestamp ? 1 : a.__timestamp > b.__timestamp ? -1 : b.__offset - a.__offset);

const quoted = (name) => `"${name.replaceAll('"', '""')}"`;

export async function tail(body, topic, { found, signal }) {
  const live = new Live(topic, found, signal);
  fill(body, live.element);
  await poll(() => live.look(), { interval: 1_000, signal, onError: (error) => live.fail(error) });
}

const invalid = (message) => Object.assign(new Error(message), { code: "INVALID_ARGUMENT" });

class Live {
  constructor(topic, found, signal) {
    Object.assign(this, { topic, found, signal });
    this.names = topic.schema.fields.map((each) => each.name);
    const asked = (found.keys.get("columns") ?? "").split(",").filter((name) => this.names.includes(name));
    this.columns = new Set(asked.length ? asked : this.names.slice(0, COLUMNS_MAX));
    this.filter = found.keys.get("filter") ?? "";
    this.isPaused = false;
    this.errors = new ErrorPlace();
    this.state = h("span", { class: "soft number", role: "status" }, "reading…");
    this.place = h("div");
    this.restart();
    this.pause = this.#pauseButton();
    this.element = panel("Live messages", [this.state, this.#step("Newer", 1), this.#step("Older", -1), this.pause, this.#columnsMenu()],
      h("div", { class: "body" }, this.#filterField(), this.#jumpForm(), this.errors.element), this.place);
    if (found.keys.get("at")) void this.#jump();
  }

  /** Forget what was read: the filter or the columns are others. */
  restart() {
    this.cursors = new Map();
    this.lows = new Map();
    this.isElsewhere = false;
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
      empty: () => this.isFirst ? empty("Reading", "The last messages of the topic.") : empty(this.filter ? "No new message passes the filter" : "Waiting for messages", "They appear here as they are committed.", `wings push ${partsOf(this.topic.topic).id} FILE.csv`),
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
      this.#again();
    }, 500));
    this.input = input;
    return h("label", { class: "field" }, "Filter: a SQL predicate over the columns, run by the server", input);
  }

  #pauseButton() {
    const button = h("button", { type: "button", "aria-pressed": "false", onclick: () => {
      this.#setPaused(!this.isPaused);
      if (this.isPaused || !this.isElsewhere) return;
      remember(this.found, { at: "", partition: "" });
      this.restart();
    } }, "Pause");
    return button;
  }

  #setPaused(isPaused) {
    this.isPaused = isPaused;
    this.pause.setAttribute("aria-pressed", String(isPaused));
    setText(this.pause, isPaused ? "Go on" : "Pause");
    this.#tell();
  }

  #step(label, step) {
    return h("button", { type: "button", onclick: () => this.#page(step) }, label);
  }

  /** Return the form that goes to an offset of a partition, or to a time. */
  #jumpForm() {
    const isKeyed = this.topic.partition_key !== null;
    this.at = h("input", { type: "text", spellcheck: "false", value: this.found.keys.get("at") ?? "", placeholder: "1200, or 2026-11-29 14:00" });
    this.values = h("datalist", { id: "partitions" });
    this.of = h("input", { type: "text", class: "mono", spellcheck: "false", list: "partitions", value: this.found.keys.get("partition") ?? (isKeyed ? "" : "null"), placeholder: '"Oslo"' });
    return h("form", { class: "row", onsubmit: (event) => {
      event.preventDefault();
      void this.#jump();
    } }, field("Offset or time", this.at), isKeyed && field("Partition (as JSON; of a time: all if empty)", this.of, "grow"), this.values, h("button", {}, "Go"));
  }

  /** Show the messages up to an offset, or up to the first one at or after a time; live ones pause. */
  async #jump() {
    const [at, of] = [this.at.value.trim(), this.of.value.trim()];
    if (!at) return;
    this.restart();
    this.isElsewhere = true;
    this.#setPaused(true);
    remember(this.found, { at, partition: this.topic.partition_key === null ? "" : of });
    await this.#try(async () => {
      const states = (await this.#states()).filter((state) => !of || json(state.partition) === of);
      if (states.length === 0) throw invalid(of ? `There is no partition ${of} with messages.` : "There are no messages yet.");
      const isOffset = /^[\d,]+$/.test(at);
      if (isOffset && !of) throw invalid("An offset is of one partition: name it.");
      const time = Date.parse(at);
      if (!isOffset && Number.isNaN(time)) throw invalid(`${at} is neither an offset nor a time.`);
      const offsetIn = async (state) => (isOffset ? Number(at.replaceAll(",", ""))
        : (await act("offset-for-timestamp", { topic: this.topic.topic, partition: state.partition, timestamp: new Date(time).toISOString() }, { signal: this.signal })).offset);
      const each = Math.max(1, Math.ceil(FIRST_ROWS / Math.min(states.length, TIMED_MAX)));
      const ranges = [];
      for (const state of states.slice(0, TIMED_MAX)) {
        const end = Math.max(state.log_start_offset, Math.min(await offsetIn(state) + 1, state.next_offset));
        ranges.push({ text: json(state.partition), start: Math.max(state.log_start_offset, end - each), end });
      }
      await this.#show(ranges);
    });
  }

  /** Show what is before, or after, what is shown; live messages pause. */
  async #page(step) {
    if (this.isPaging) return;
    this.isPaging = true;
    this.#setPaused(true);
    await this.#try(async () => {
      const each = Math.max(1, Math.ceil(FIRST_ROWS / Math.max(1, this.cursors.size)));
      const ranges = [];
      for (const state of await this.#states()) {
        const text = json(state.partition);
        const [low, high] = [this.lows.get(text), this.cursors.get(text)];
        if (low === undefined) continue;
        const [start, end] = step < 0 ? [Math.max(state.log_start_offset, low - each), low] : [high, Math.min(high + each, state.next_offset)];
        if (start < end) ranges.push({ text, start, end });
      }
      if (!(await this.#show(ranges))) setText(this.state, step < 0 ? "these are the oldest" : "these are the newest");
    });
    this.isPaging = false;
  }

  async #try(work) {
    try {
      this.errors.clear();
      await work();
    } catch (error) {
      if (!this.signal.aborted) this.fail(error);
    }
  }

  /** Add the rows of ranges where they belong; returns whether there were ranges. */
  async #show(ranges) {
    const { turn } = this;
    for (let at = 0; at < ranges.length; at += AT_ONCE) {
      const some = ranges.slice(at, at + AT_ONCE);
      const rows = await this.#read(some);
      if (turn !== this.turn) return false;
      this.#note(some);
      // The table does not grow without end: what is farthest from the rows that came is dropped.
      const isOlder = this.rows.length > 0 && rows.length > 0 && newestFirst(rows[0], this.rows[0]) > 0;
      const all = this.rows.concat(rows).sort(newestFirst);
      this.rows = isOlder ? all.slice(-ROWS_MAX) : all.slice(0, ROWS_MAX);
    }
    this.isFirst = false;
    this.table.rows = this.rows;
    this.#tell();
    return ranges.length > 0;
  }

  /** Remember which offsets were read: the first, and the next one, of each partition. */
  #note(ranges) {
    for (const { text, start, end } of ranges) {
      this.cursors.set(text, Math.max(end, this.cursors.get(text) ?? 0));
      this.lows.set(text, Math.min(start, this.lows.get(text) ?? start));
    }
  }

  async #states() {
    const states = await act("partition-states", { topic: this.topic.topic, order: "last_timestamp", limit: PARTITIONS_MAX }, { signal: this.signal });
    if (this.values.childElementCount !== states.length) fill(this.values, states.map((each) => h("option", { value: json(each.partition) })));
    return states;
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
    this.#again();
  }

  /** Read anew what is shown, with another filter or other columns. */
  #again() {
    if (this.isElsewhere) {
      void this.#jump();
    } else {
      this.#setPaused(false);
      this.restart();
    }
  }

  /** Read what is new. */
  async look() {
    if (this.isPaused) return;
    const { turn } = this;
    const ranges = this.#ranges(await this.#states());
    for (let at = 0; at < ranges.length; at += AT_ONCE) {
      const some = ranges.slice(at, at + AT_ONCE);
      const rows = await this.#read(some);
      if (turn !== this.turn || this.isPaused) return;
      this.#note(some);
      this.#add(rows);
    }
    if (this.isFirst) {
      this.isFirst = false;
      this.table.draw();
    }
    this.errors.clear();
    this.input.removeAttribute("aria-invalid");
    this.#tell();
  }

  /** Return the ranges of offsets to read; the first time, the last rows of the latest partitions. */
  #ranges(states) {
    const each = Math.max(1, Math.ceil(FIRST_ROWS / Math.max(1, states.length)));
    const ranges = [];
    for (const state of states.toReversed()) {
      const text = json(state.partition);
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
    if (this.isFirst) this.rows.sort(newestFirst);
    this.table.rows = this.rows;
  }

  fail(error) {
    this.errors.show(error);
    if (error.code === "INVALID_SQL") this.input.setAttribute("aria-invalid", "true");
  }

  #tell() {
    const skipped = this.skipped ? `, ${count(this.skipped)} passed over` : "";
    setText(this.state, `${count(this.rows.length)} shown${skipped}${this.isPaused ? ", paused" : ""}`);
  }
}
