// A table that draws only the rows in sight, however many there are.

import { fill, h } from "./dom.js";

const OVERSCAN = 12;
const NEAR_END = 40;

const classOf = ({ right, wide }, ...others) => [right && "right", wide && "wide", ...others].filter(Boolean).join(" ") || null;

/**
 * Make a table.
 *
 * Columns are `{label, text, node?, right?, wide?, className?, sort?}`: `text(row)` is what a cell says, and
 * `node(row)` what stands in it where that is more than text; it is made anew when the text changes.
 * `sort(row)` makes a column's heading a button; one that is `wide` is left out on a phone.
 *
 * Options: `label` for screen readers; `key(row)` tells rows apart; `empty()` stands in for no rows;
 * `onEnd()` is called when the last rows come into sight; `onOpen(row)` on a click; `tall`: as high as
 * the window; `onSeen(rows)` with the rows in sight.
 */
export class Table {
  #rows = [];
  #isKnown = false;
  #shown = [];
  #drawn = new Map();
  #order = null;
  #frame = 0;

  constructor(columns, { label, key, empty, onEnd, onOpen, onSeen, tall = true }) {
    Object.assign(this, { columns, key, empty, onEnd, onOpen, onSeen });
    this.head = h("thead");
    this.body = h("tbody");
    this.above = h("tr", { class: "space", "aria-hidden": "true" }, h("td", { colspan: columns.length }));
    this.below = this.above.cloneNode(true);
    this.table = h("table", {}, h("caption", { class: "hidden" }, label), this.head, this.body);
    this.element = h("div", { class: `scroll ${tall ? "tall" : ""}`, tabindex: "0", role: "region", "aria-label": label, onscroll: () => this.#soon() }, this.table);
    this.none = h("div");
    this.whole = h("div", {}, this.element, this.none);
    this.#drawHead();
    new ResizeObserver(() => this.#soon()).observe(this.element);
  }

  get rows() {
    return this.#rows;
  }

  /** The rows in sight. */
  get seen() {
    return this.#shown.slice(...this.#window());
  }

  /** Show these rows; those that are there already keep their elements, and the focus. */
  set rows(rows) {
    this.#rows = rows;
    this.#isKnown = true;
    this.#arrange();
    this.draw();
  }

  #arrange() {
    if (this.#order === null) {
      this.#shown = this.#rows;
      return;
    }
    const { column, down } = this.#order;
    const value = (row) => column.sort(row) ?? -Infinity;
    this.#shown = this.#rows.toSorted((one, other) => {
      const [a, b] = [value(one), value(other)];
      return (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1);
    });
  }

  #drawHead() {
    const cells = this.columns.map((column) => {
      const isOrder = this.#order?.column === column;
      const arrow = isOrder ? (this.#order.down ? "↓" : "↑") : "";
      const inside = column.sort === undefined ? column.label
        : h("button", { type: "button", onclick: () => this.#sortBy(column) }, column.label, h("span", { "aria-hidden": "true" }, arrow));
      const sorted = isOrder ? (this.#order.down ? "descending" : "ascending") : null;
      return h("th", { scope: "col", class: classOf(column), "aria-sort": sorted }, inside);
    });
    const at = [...this.head.querySelectorAll("button")].indexOf(document.activeElement);
    fill(this.head, h("tr", {}, cells));
    if (at >= 0) this.head.querySelectorAll("button")[at]?.focus();
  }

  #sortBy(column) {
    const isSame = this.#order?.column === column;
    if (isSame && !this.#order.down) this.#order = null;
    else this.#order = { column, down: !isSame };
    this.#drawHead();
    this.#arrange();
    this.draw();
  }

  #soon() {
    if (this.#frame) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      this.draw();
    });
  }

  #window() {
    const height = this.rowHeight;
    const inSight = Math.ceil((this.element.clientHeight || 600) / height);
    const first = Math.max(0, Math.floor(this.element.scrollTop / height) - OVERSCAN);
    return [first, Math.min(this.#shown.length, first + inSight + 2 * OVERSCAN)];
  }

  get rowHeight() {
    return 2.125 * parseFloat(getComputedStyle(document.documentElement).fontSize);
  }

  /** Draw what is in sight, and tell of it. */
  draw() {
    const hasRows = this.#shown.length > 0;
    this.element.hidden = !hasRows;
    if (!hasRows) {
      this.#drawn.clear();
      fill(this.body);
      // Before the server has answered, that there are none is not known.
      fill(this.none, this.#isKnown ? this.empty?.() : null);
      return;
    }
    fill(this.none);
    const [first, end] = this.#window();
    const drawn = new Map();
    const wanted = this.#shown.slice(first, end).map((row, index) => {
      const key = this.key(row);
      const line = this.#drawn.get(key) ?? this.#line();
      drawn.set(key, line);
      this.#fillLine(line, row, first + index);
      return line.element;
    });
    this.#drawn = drawn;
    this.#place(first, end, wanted);
    this.table.setAttribute("aria-rowcount", String(this.#shown.length + 1));
    this.onSeen?.(this.#shown.slice(first, end));
    if (end > this.#shown.length - NEAR_END) this.onEnd?.();
  }

  #place(first, end, wanted) {
    const height = this.rowHeight;
    this.above.firstChild.style.height = `${first * height}px`;
    this.below.firstChild.style.height = `${(this.#shown.length - end) * height}px`;
    const lines = [...(first ? [this.above] : []), ...wanted, ...(end < this.#shown.length ? [this.below] : [])];
    const stays = new Set(lines);
    for (const element of [...this.body.children]) if (!stays.has(element)) element.remove();
    // One that is moved would lose the focus: only those out of place are.
    let at = this.body.firstChild;
    for (const element of lines) {
      if (element === at) at = at.nextSibling;
      else this.body.insertBefore(element, at);
    }
  }

  #line() {
    const cells = this.columns.map((column) =>
      h("td", { class: classOf(column, column.className) }));
    const line = { element: h("tr", {}, cells), cells, texts: [], row: null };
    if (this.onOpen) {
      line.element.addEventListener("click", (event) => {
        const isOwn = event.target.closest("a, button, input, label");
        if (!isOwn && !String(getSelection())) this.onOpen(line.row);
      });
    }
    return line;
  }

  #fillLine(line, row, index) {
    line.row = row;
    line.element.setAttribute("aria-rowindex", String(index + 2));
    this.columns.forEach((column, at) => {
      const text = String(column.text(row));
      if (line.texts[at] === text) return;
      line.texts[at] = text;
      const cell = line.cells[at];
      if (column.node) fill(cell, column.node(row));
      else cell.textContent = text;
      if (text.length > 24) cell.title = text.slice(0, 1_000);
      else cell.removeAttribute("title");
    });
  }
}
