// The dead letters of a share group, and their way back.

import { act, pause, sql } from "../api.js";
import { confirmed } from "../dialogs.js";
import { field, fill, h, panel, setText } from "../dom.js";
import { ago, count, firstOf, moment, partsOf, shortName } from "../format.js";
import { ErrorPlace } from "../lists.js";
import { empty, notice } from "../notices.js";
import { route } from "../routes.js";
import { Table } from "../table.js";

const SHOWN_MAX = 500;
const COLUMNS = "dead_letter_id, source_partition, source_offset, delivery_count, reason, error, dead_lettered_at, payload IS NOT NULL AS has_payload, __offset";

const GROUPS_MAX = 20;

const literal = (text) => `'${text.replaceAll("'", "''")}'`;

const words = (reason) => reason.replace("_", " ");

/** Return the panel of a group's dead letters. */
export function deadLetters(group, mayRedrive, signal) {
  const topic = group.config.dlq_topic;
  if (!topic) {
    return panel("Dead letters", null, empty("Dead letters are dropped", "Name a topic for messages that are rejected, or delivered too often:",
      `wings share alter ${group.group} ${shortName(group.topic)} --dlq-topic ${partsOf(group.topic).id}-dead`));
  }
  return new DeadLetters(group, topic, mayRedrive, signal).element;
}

class DeadLetters {
  constructor(group, topic, mayRedrive, signal) {
    Object.assign(this, { group, topic, signal });
    this.own = `share_group = ${literal(group.group)} AND source_topic = ${literal(group.topic)}`;
    this.errors = new ErrorPlace();
    this.said = h("div");
    this.table = new Table([
      { label: "Message", right: true, text: (row) => count(row.source_offset), node: (row) => h("a", { href: route("message", [group.topic, row.source_partition, row.source_offset]) }, count(row.source_offset)) },
      { label: "Partition", text: (row) => row.source_partition, className: "mono" },
      { label: "Why", text: (row) => words(row.reason), node: (row) => h("span", { class: "tag bad" }, words(row.reason)) },
      { label: "Error", text: (row) => row.error ?? "–" },
      { label: "Deliveries", right: true, text: (row) => count(row.delivery_count) },
      { label: "Since", text: (row) => moment(row.dead_lettered_at) },
      { label: "Row", text: (row) => (row.has_payload ? "kept" : "gone") },
      ...(mayRedrive ? [{ label: "", text: () => "Send back", node: (row) => h("button", { type: "button", onclick: () => this.#one(row) }, "Send back") }] : []),
    ], { label: "Dead letters, the newest first", key: (row) => row.dead_letter_id, empty: () => (this.errors.element.firstChild ? null : empty("No dead letters", "Messages come here that a worker rejects, or that were delivered too often.")) });
    this.size = h("span", { class: "soft number" });
    this.kinds = new Table([
      { label: "Letters", right: true, text: (row) => `${count(row.letters)} ×` },
      { label: "Error", text: (row) => row.error ?? words(row.reason), node: (row) => h("button", { type: "button", class: "link", onclick: () => this.#only(row) }, row.error ?? words(row.reason)) },
      { label: "Why", text: (row) => words(row.reason), node: (row) => h("span", { class: "tag bad" }, words(row.reason)) },
      { label: "Last", right: true, text: (row) => ago(row.last) },
    ], { label: "Dead letters by error, the most first", key: (row) => `${row.reason} ${row.error}`, tall: false });
    this.filter = h("input", { type: "text", class: "mono", spellcheck: "false", placeholder: "reason = 'rejected'", "aria-label": "Which: a SQL predicate over the columns of dead letters" });
    this.to = h("input", { type: "text", spellcheck: "false", placeholder: "where they came from", "aria-label": "To another topic" });
    const form = h("form", { class: "row", onsubmit: (event) => {
      event.preventDefault();
      void this.#all();
    } },
      field("Which (a SQL predicate; empty: all)", this.filter, "grow"), mayRedrive && field("To", this.to),
      h("button", { type: "button", onclick: () => this.load() }, "Show"),
      mayRedrive && h("button", { class: "primary" }, "Redrive…"));
    this.element = panel("Dead letters", [this.size, h("a", { href: route("topic", [topic]) }, shortName(topic))],
      this.kinds.whole, h("div", { class: "body" }, form, this.errors.element, this.said), this.table.whole);
    void this.load();
  }

  /** Show the newest that pass the filter. */
  async load() {
    const { namespace, id } = partsOf(this.topic);
    const filter = this.filter.value.trim();
    const where = filter ? `${this.own} AND (\n${filter}\n)` : this.own;
    try {
      const ask = async (statement) => (await sql(statement, { namespace, signal: this.signal })).rows;
      const rows = await ask(`SELECT ${COLUMNS} FROM "${id}" WHERE ${where} ORDER BY __offset DESC LIMIT ${SHOWN_MAX}`);
      const [{ letters }] = rows.length < SHOWN_MAX ? [{ letters: rows.length }] : await ask(`SELECT count(*) AS letters FROM "${id}" WHERE ${where}`);
      const kinds = await ask(`SELECT error, reason, count(*) AS letters, max(dead_lettered_at) AS last FROM "${id}" WHERE ${this.own} GROUP BY error, reason ORDER BY letters DESC, error LIMIT ${GROUPS_MAX}`);
      this.errors.clear();
      this.table.rows = rows;
      this.kinds.rows = kinds;
      setText(this.size, firstOf(rows.length, letters));
    } catch (error) {
      if (this.signal.aborted) return;
      // The topic is made with the first dead letter.
      if (error.code !== "TOPIC_NOT_FOUND") this.errors.show(error, () => this.load());
      this.table.rows = [];
    }
  }

  /** Show the letters of one error alone. */
  #only({ error, reason }) {
    this.filter.value = `reason = ${literal(reason)} and error ${error === null ? "is null" : `= ${literal(error)}`}`;
    void this.load();
  }

  async #one(row) {
    if (await confirmed("Send this message back?", `Message ${count(row.source_offset)} is pushed again, once, to ${this.#target()}.`, "Send back")) {
      await this.#redrive({ filter: `dead_letter_id = ${literal(row.dead_letter_id)}`, offset: row.__offset, max_messages: 1 });
    }
  }

  async #all() {
    const filter = this.filter.value.trim();
    const which = filter ? `Those of this group with ${filter} are` : "All of this group are";
    if (await confirmed("Redrive dead letters?", `${which} pushed again, each once, to ${this.#target()}.`, "Redrive")) {
      await this.#redrive({ filter: filter ? `${this.own} AND (${filter})` : this.own });
    }
  }

  #target() {
    return this.to.value.trim() || "the topic they came from";
  }

  /** Redrive, a part of the topic after the other; tells how many went. */
  async #redrive(body) {
    const sum = { redriven: 0, already_redriven: 0, without_payload: 0, failed: 0 };
    const to = this.to.value.trim();
    let offset = body.offset ?? 0;
    try {
      for (;;) {
        const done = await act("share-redrive", { dlq_topic: this.topic, ...body, offset, ...(to && { to }) }, { signal: this.signal });
        for (const key of Object.keys(sum)) sum[key] += done[key];
        if (body.max_messages !== undefined || done.next_offset >= done.log_end_offset || done.next_offset <= offset) break;
        offset = done.next_offset;
        await pause(0, this.signal);
      }
      const { redriven, already_redriven, without_payload, failed } = sum;
      const rest = [[already_redriven, "had gone before"], [without_payload, "have no row any more"], [failed, "could not be sent"]].filter(([many]) => many).map(([many, what]) => `${count(many)} ${what}`);
      fill(this.said, notice(failed ? "warn" : "good", `${count(redriven)} sent back`, rest.join(", ") || "Each is pushed once, however often it is asked for."));
    } catch (error) {
      if (!this.signal.aborted) this.errors.show(error);
    }
    await this.load();
  }
}
