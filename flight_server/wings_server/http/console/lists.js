// What pages with lists share: their head, the choice of a namespace, a search, pages of a list.

import { act, sql } from "./api.js";
import { debounced, fill, h } from "./dom.js";
import { count, firstOf, shortName } from "./format.js";
import { problem } from "./notices.js";
import { DEFAULT, remember } from "./routes.js";

/** Return the head of a page: where it is, its title, which is the tab's too, and what is beside it. */
export function head(title, { crumbs = [], beside = [] } = {}) {
  title ||= "(no name)";
  document.title = `${title} · Wings`;
  const above = crumbs.length ? h("nav", { class: "crumbs", "aria-label": "Where" }, crumbs.map(([label, address]) => [h("a", { href: address }, label), "/"])) : null;
  return h("div", {}, above, h("div", { class: "head" }, h("h1", { class: "grow" }, title), beside));
}

/** Return a search field that keeps its text in the address. */
export function search(found, label, changed) {
  const input = h("input", { type: "search", placeholder: label, "aria-label": label, value: found.keys.get("q") ?? "", spellcheck: "false" });
  input.addEventListener("input", debounced(() => {
    remember(found, { q: input.value });
    changed(input.value);
  }));
  return input;
}

/** Return the choice of a namespace, filled once the server has told of them. */
export function namespaces(found, signal, changed) {
  const chosen = found.keys.get("namespace") ?? DEFAULT;
  const select = h("select", { "aria-label": "Namespace" }, h("option", { value: chosen }, shortName(chosen)));
  select.addEventListener("change", () => {
    remember(found, { namespace: select.value === DEFAULT ? "" : select.value });
    changed(select.value);
  });
  act("list-namespaces", {}, { signal }).then((names) => {
    const all = new Set([chosen, ...names.map((each) => each.namespace)]);
    fill(select, [...all].sort().map((name) => h("option", { value: name, selected: name === chosen }, shortName(name))));
  }, () => {});  // The page's own call tells what is wrong.
  return select;
}

/** Pages of a list, asked for one after the other as they come into sight. */
export class Paged {
  #asked = 0;
  #isBusy = false;

  /**
   * `ask(after, limit)` returns the rows that come after a row, null: the first; `count()` how many
   * there are in all, asked where the first page is not all.
   */
  constructor(ask, { limit = 200, count, onRows, onError, signal }) {
    Object.assign(this, { ask, limit, count, onRows, onError, signal, rows: [], isWhole: false, all: null });
  }

  /** Begin again. */
  async reset() {
    this.#asked += 1;
    this.#isBusy = false;
    this.rows = [];
    this.isWhole = false;
    this.all = null;
    await this.more();
    const asked = this.#asked;
    if (this.isWhole || this.count === undefined) return;
    const all = await this.count().catch(() => null);  // Some may be listed, and not counted.
    if (asked !== this.#asked || this.signal.aborted) return;
    this.all = all;
    this.onRows(this.rows);
  }

  /** Get the next page, if there is one. */
  async more() {
    if (this.#isBusy || this.isWhole) return;
    this.#isBusy = true;
    const asked = this.#asked;
    try {
      const found = await this.ask(this.rows.at(-1) ?? null, this.limit);
      if (asked !== this.#asked || this.signal.aborted) return;
      this.isWhole = found.length < this.limit;
      this.rows = this.rows.concat(found);
      this.#isBusy = false;
      this.onRows(this.rows);
    } catch (error) {
      if (asked !== this.#asked || this.signal.aborted) return;
      this.#isBusy = false;
      this.isWhole = true;
      this.onError(error);
    }
  }

  /** How many there are, as far as is known. */
  get size() {
    if (this.isWhole) return count(this.rows.length);
    return this.all === null ? `${count(this.rows.length)}+` : firstOf(this.rows.length, this.all);
  }
}

/** A place for the last error: `show(error, retry)`, `clear()`. */
export class ErrorPlace {
  element = h("div");

  show(error, retry) {
    fill(this.element, problem(error, retry));
  }

  clear() {
    if (this.element.firstChild) fill(this.element);
  }
}

/** Return how many rows a system table has with a text in a column, as a statement of SQL counts them. */
export async function counted(what, table, where, parameters, signal) {
  const { rows } = await sql(`SELECT count(${what}) AS size FROM system.${table} WHERE ${where}`, { parameters, signal });
  return rows[0].size;
}
