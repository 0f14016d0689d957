// The dead letters of a share group, and their way back.

import { act, pause, sql } from "../api.js";
import { confirmed } from "../dialogs.js";
import { field, fill, h, panel } from "../dom.js";
import { count, moment, partsOf, shortName } from "../format.js";
import { ErrorPlace } from "../lists.js";
import { empty, notice } from "../notices.js";
import { route } from "../routes.js";
import { Table } from "../table.js";

const SHOWN_MAX = 500;
const COLUMNS = "dead_letter_id, source_partition, source_offset, delivery_count, reason, error, dead_lettered_at, payload IS NOT NULL AS has_payload, __offset";

const literal = (text) => `'${text.replaceAll("'", "''")}'`;

/** Return the panel of a group's dead letters. */
export function deadLetters(group, signal) {
  const topic = group.config.dlq_topic;
  if (!topic) {
    return panel("Dead letters", null, empty("Dead letters are dropped", "Name a topic for messages that are rejected, or delivered too often:",
      `wings share alter ${group.group} ${shortName(group.topic)} --dlq-topic ${partsOf(group.topic).id}-dead`));
  }
  return new DeadLetters(group, topic, signal).element;
}

class DeadLetters {
  constructor(group, topic, signal) {
    Object.assign(this, { group, topic, signal });
    this.own = `share_group = ${literal(group.group)} AND source_topic = ${literal(group.topic)}`;
    this.errors = new ErrorPlace();
    this.said = h("div");
    this.table = new Table([
      { label: "Message", right: true, text: (row) => count(row.source_offset), node: (row) => h("a", { href: route("message", [group.topic, row.source_partition, row.source_offset]) }, count(row.source_offset)) },
      { label: "Partition", text: (row) => row.source_partition, className: "mono" },
      { label: "Why", text: (row) => row.reason.replace("_", " "), node: (row) => h("span", { class: "tag bad" }, row.reason.replace("_", " ")) },
      { label: "Error", text: (row) => row.error ?? "–" },
      { label: "Deliveries", right: true, text: (row) => count(row.delivery_count) },
      { label: "Since", text: (row) => moment(row.dead_lettered_at) },
      { label: "Row", text: (row) => (row.has_payload ? "kept" : "gone") },
      { label: "", text: () => "Send back", node: (row) => h("button", { type: "button", onclick: () => this.#one(row) }, "Send back") },
    ], { label: "Dead letters, the newest first", key: (row) => row.dead_letter_id, empty: () => (this.errors.element.firstChild ? null : empty("No dead letters", "Messages come here that a worker rejects, or that were delivered too often.")) });
    this.filter = h("input", { type: "text", class: "mono", spellcheck: "false", placeholder: "reason = 'rejected'", "aria-label": "Which: a SQL predicate over the columns of dead letters" });
    this.to = h("input", { type: "text", spellcheck: "false", placeholder: "where they came from", "aria-label": "To another topic" });
    const form = h("form", { class: "row", onsubmit: (event) => {
      event.preventDefault();
      void this.#all();
    } },
      field("Which (a SQL predicate; empty: all)", this.filter, "grow"), field("To", this.to),
      h("button", { type: "button", onclick: () => this.load() }, "Show"),
      h("button", { class: "primary" }, "Redrive…"));
    this.element = panel("Dead letters", h("a", { href: route("topic", [topic]) }, shortName(topic)),
      h("div", { class: "body" }, form, this.errors.element, this.said), this.table.whole);
    void this.load();
  }

  /** Show the newest that pass the filter. */
  async load() {
    const { namespace, id } = partsOf(this.topic);
    const filter = this.filter.value.trim();
    const where = filter ? `${this.own} AND (\n${filter}\n)` : this.own;
    try {
      const { rows } = await sql(`SELECT ${COLUMNS} FROM "${id}" WHERE ${where} ORDER BY __offset DESC LIMIT ${SHOWN_MAX}`, { namespace, signal: this.signal });
      this.errors.clear();
      this.table.rows = rows;
    } catch (error) {
      if (this.signal.aborted) return;
      // The topic is made with the first dead letter.
      if (error.code !== "TOPIC_NOT_FOUND") this.errors.show(error, () => this.load());
      this.table.rows = [];
    }
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
