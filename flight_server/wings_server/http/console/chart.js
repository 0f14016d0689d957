// Line charts of the last minutes, drawn as data comes.

import { fill, h, setText, svg } from "./dom.js";

const WIDTH = 600;
const HEIGHT = 150;
const POINTS_MAX = 150;

/**
 * A chart of one or more series against time.
 *
 * Args: `label` for screen readers; `names` of the series, at most three; `format(value)`.
 */
export class Chart {
  #points = [];

  constructor(label, names, format) {
    Object.assign(this, { label, names, format });
    this.lines = names.map((_, index) => svg("path", { class: `series-${index + 1}` }));
    this.area = svg("path", { class: "area series-1" });
    this.cross = svg("line", { class: "axis", y1: 0, y2: HEIGHT, visibility: "hidden" });
    this.svg = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
      svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT, y2: HEIGHT }),
      svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT / 2, y2: HEIGHT / 2 }),
      this.area, this.lines, this.cross);
    this.values = names.map(() => h("b", {}, "–"));
    this.most = h("span", {}, "");
    this.legend = h("div", { class: "legend" },
      names.map((name, index) => h("span", {}, h("i", { class: `series-${index + 1}` }), `${name} `, this.values[index])), this.most);
    this.element = h("div", { class: "chart" }, this.legend, this.svg);
    this.svg.addEventListener("pointermove", (event) => this.#point(event));
    this.svg.addEventListener("pointerleave", () => this.#unpoint());
  }

  /** Add the values of the series at a time; null: none. */
  push(at, values) {
    this.#points.push({ at, values });
    if (this.#points.length > POINTS_MAX) this.#points.shift();
    this.#draw();
  }

  #x(at) {
    const end = this.#points.at(-1).at;
    const begin = Math.min(this.#points[0].at, end - 60_000);
    return ((at - begin) / (end - begin)) * WIDTH;
  }

  #draw() {
    const most = Math.max(1, ...this.#points.flatMap((point) => point.values.map((value) => value ?? 0)));
    const y = (value) => HEIGHT - (value / most) * (HEIGHT - 12);
    this.lines.forEach((line, index) => line.setAttribute("d", this.#path(index, y)));
    const path = this.#path(0, y);
    const drawn = this.#points.filter((point) => point.values[0] !== null);
    this.area.setAttribute("d", drawn.length < 2 ? "" : `${path}L${this.#x(drawn.at(-1).at).toFixed(1)} ${HEIGHT}L${this.#x(drawn[0].at).toFixed(1)} ${HEIGHT}Z`);
    this.#say(this.#points.at(-1));
    setText(this.most, `most ${this.format(most)}`);
    this.svg.setAttribute("aria-label", `${this.label}: ${this.names.map((name, index) => `${name} ${this.format(this.#points.at(-1).values[index])}`).join(", ")}`);
  }

  #path(index, y) {
    let path = "";
    let isOpen = false;
    for (const { at, values } of this.#points) {
      if (values[index] === null) isOpen = false;
      else {
        path += `${isOpen ? "L" : "M"}${this.#x(at).toFixed(1)} ${y(values[index]).toFixed(1)}`;
        isOpen = true;
      }
    }
    return path;
  }

  #say({ values }) {
    values.forEach((value, index) => setText(this.values[index], this.format(value)));
  }

  #point(event) {
    if (this.#points.length < 2) return;
    const box = this.svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH;
    const nearest = this.#points.reduce((best, point) =>
      Math.abs(this.#x(point.at) - x) < Math.abs(this.#x(best.at) - x) ? point : best);
    this.cross.setAttribute("x1", this.#x(nearest.at));
    this.cross.setAttribute("x2", this.#x(nearest.at));
    this.cross.setAttribute("visibility", "visible");
    this.#say(nearest);
    setText(this.most, new Date(nearest.at).toLocaleTimeString("sv-SE"));
  }

  #unpoint() {
    this.cross.setAttribute("visibility", "hidden");
    if (this.#points.length) this.#draw();
  }
}

/** Turns counts that grow into rates a second; a count that shrank, or of another origin, begins anew. */
export class Rates {
  #last = new Map();

  /** Return the rate of a count since it was last told, null the first time. */
  of(key, value, at, origin = "") {
    const before = this.#last.get(key);
    this.#last.set(key, { value, at, origin });
    if (before === undefined || before.origin !== origin || value < before.value || at <= before.at) return null;
    return ((value - before.value) * 1_000) / (at - before.at);
  }
}

/** Return a horizontal bar, a share of 0 to 1. */
export function meter(share) {
  const bar = h("i");
  bar.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return h("span", { class: "meter", "aria-hidden": "true" }, bar);
}

/** A row of figures: `tiles([["Rows", "rows"], …])`; `set(name, text, note)` changes one. */
export class Tiles {
  constructor(names) {
    this.parts = new Map();
    const tiles = names.map(([label, name]) => {
      const parts = { value: h("span", {}, "–"), note: h("small", {}, "") };
      this.parts.set(name, parts);
      return h("div", { class: "tile" }, h("dt", {}, label), h("dd", {}, parts.value, parts.note));
    });
    this.element = fill(h("dl", { class: "tiles" }), tiles);
  }

  set(name, text, note = "") {
    const parts = this.parts.get(name);
    setText(parts.value, text);
    setText(parts.note, note);
    parts.value.parentElement.title = text;
  }
}
