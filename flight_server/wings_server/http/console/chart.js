// Line charts of the last hour, drawn as data comes.

import { fill, h, setText, svg } from "./dom.js";

const WIDTH = 600;
const HEIGHT = 150;
const SPAN_MAX = 3_600_000;
const SPAN_MIN = 60_000;
const POINTS_MAX = 2_200;

/** A line is not drawn over a longer time without values. */
const GAP_MIN = 35_000;
const TICKS_MAX = 5;
const STEPS = [15_000, 60_000, 300_000, 600_000, 900_000];

/**
 * A chart of one or more series against time, with axes, and the values under the pointer.
 *
 * Args: `label` for screen readers; `names` of the series, at most three; `format(value)`; `base` of
 * the numbers on the axis: 10, or 2 for bytes.
 */
export class Chart {
  #points = [];
  #at = null;

  constructor(label, names, format, base = 10) {
    Object.assign(this, { label, names, format, base });
    this.lines = names.map((_, index) => svg("path", { class: `series-${index + 1}` }));
    this.area = svg("path", { class: "area series-1" });
    this.cross = svg("line", { class: "axis cross", y1: 0, y2: HEIGHT, visibility: "hidden" });
    const grid = [0, HEIGHT / 2, HEIGHT].map((y) => svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: y, y2: y }));
    this.svg = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", tabindex: "0", "aria-label": label },
      grid, this.area, this.lines, this.cross);
    this.values = names.map(() => h("b", {}, "–"));
    this.when = h("span", {}, "");
    this.marks = [1, 0.5, 0].map(() => h("span", {}, ""));
    this.times = h("div", { class: "times", "aria-hidden": "true" });
    this.tip = h("div", { class: "tip", hidden: true, "aria-hidden": "true" });
    const legend = h("div", { class: "legend" },
      names.map((name, index) => h("span", {}, h("i", { class: `series-${index + 1}` }), `${name} `, this.values[index])), this.when);
    this.element = h("div", { class: "chart" }, legend,
      h("div", { class: "plot" }, h("div", { class: "marks", "aria-hidden": "true" }, this.marks),
        h("div", { class: "canvas" }, this.svg, this.tip, this.times)));
    this.svg.addEventListener("pointermove", (event) => this.#point(event));
    for (const name of ["pointerleave", "blur"]) this.svg.addEventListener(name, () => this.#show(null));
    this.svg.addEventListener("keydown", (event) => this.#step(event));
  }

  /** Put points before those there are: `[at, values]`, the oldest first. */
  past(points) {
    const first = this.#points[0]?.at ?? Infinity;
    this.#points.unshift(...points.map(([at, values]) => ({ at, values })).filter(({ at, values }) => at < first && at > Date.now() - SPAN_MAX && values.some((value) => value !== null)));
    if (this.#points.length) this.#draw();
  }

  /** Add the values of the series at a time; null: none. */
  push(at, values) {
    if (values.every((value) => value === null)) return;
    this.#points.push({ at, values });
    while (this.#points.length > POINTS_MAX || this.#points[0].at < at - SPAN_MAX) this.#points.shift();
    this.#draw();
  }

  get #begin() {
    return Math.min(this.#points[0].at, this.#points.at(-1).at - SPAN_MIN);
  }

  #x(at) {
    return ((at - this.#begin) / (this.#points.at(-1).at - this.#begin)) * WIDTH;
  }

  #draw() {
    const most = ceiling(Math.max(this.base === 2 ? 1_024 : 1, ...this.#points.flatMap((point) => point.values.map((value) => value ?? 0))), this.base);
    const y = (value) => HEIGHT - (value / most) * HEIGHT;
    this.lines.forEach((line, index) => line.setAttribute("d", this.#path(index, y)));
    const path = this.#path(0, y);
    const drawn = this.#points.filter((point) => point.values[0] !== null);
    const isWhole = path.lastIndexOf("M") === 0;
    this.area.setAttribute("d", drawn.length < 2 || !isWhole ? "" : `${path}L${this.#x(drawn.at(-1).at).toFixed(1)} ${HEIGHT}L${this.#x(drawn[0].at).toFixed(1)} ${HEIGHT}Z`);
    this.marks.forEach((mark, index) => setText(mark, this.format([most, most / 2, 0][index])));
    fill(this.times, this.#ticks().map(([at, text]) => {
      const tick = h("span", {}, text);
      tick.style.left = `${(this.#x(at) / WIDTH) * 100}%`;
      return tick;
    }));
    this.#show(this.#at);
    this.svg.setAttribute("aria-label", `${this.label}: ${this.names.map((name, index) => `${name} ${this.format(this.#points.at(-1).values[index])}`).join(", ")}`);
  }

  #ticks() {
    const end = this.#points.at(-1).at;
    const step = STEPS.find((each) => (end - this.#begin) / each <= TICKS_MAX) ?? STEPS.at(-1);
    const zone = new Date(end).getTimezoneOffset() * 60_000;
    const ticks = [];
    for (let at = Math.ceil((this.#begin - zone) / step) * step + zone; at <= end; at += step) {
      if (Math.abs(this.#x(at) / WIDTH - 0.5) > 0.44) continue;  // Its text would reach beyond the chart.
      ticks.push([at, new Date(at).toLocaleTimeString("sv-SE").slice(0, step < 60_000 ? 8 : 5)]);
    }
    return ticks;
  }

  #path(index, y) {
    let path = "";
    let last = -Infinity;
    for (const { at, values } of this.#points) {
      if (values[index] === null) continue;
      path += `${at - last > GAP_MIN ? "M" : "L"}${this.#x(at).toFixed(1)} ${y(values[index]).toFixed(1)}`;
      last = at;
    }
    return path;
  }

  /** Show the values at a point: those of the last one where it is null. */
  #show(point) {
    this.#at = point;
    const { at, values } = point ?? this.#points.at(-1) ?? { at: 0, values: this.names.map(() => null) };
    values.forEach((value, index) => setText(this.values[index], this.format(value)));
    const time = point === null ? "" : new Date(at).toLocaleTimeString("sv-SE");
    setText(this.when, time);
    this.tip.hidden = point === null;
    this.cross.setAttribute("visibility", point === null ? "hidden" : "visible");
    if (point === null) return;
    const x = Math.max(0, this.#x(at));
    this.cross.setAttribute("x1", x);
    this.cross.setAttribute("x2", x);
    fill(this.tip, h("b", {}, time), this.names.map((name, index) => h("span", {}, `${name} ${this.format(values[index])}`)));
    this.tip.style.left = `${(x / WIDTH) * 100}%`;
    this.tip.classList.toggle("left", x > WIDTH / 2);
  }

  #point(event) {
    if (this.#points.length < 2) return;
    const box = this.svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH;
    this.#show(this.#points.reduce((best, point) => Math.abs(this.#x(point.at) - x) < Math.abs(this.#x(best.at) - x) ? point : best));
  }

  #step(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined || this.#points.length === 0) return;
    event.preventDefault();
    const now = this.#at === null ? this.#points.length : this.#points.indexOf(this.#at);
    this.#show(this.#points[Math.max(0, Math.min(this.#points.length - 1, now + step))]);
  }
}

/** Return the end of an axis for a value: 1, 2 or 5 times a power of ten, or a power of two. */
function ceiling(value, base) {
  if (base === 2) return 2 ** Math.ceil(Math.log2(value));
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((each) => each * power >= value) * power;
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

  set(name, text, note = "", isBad = false) {
    const parts = this.parts.get(name);
    setText(parts.value, text);
    setText(parts.note, note);
    parts.value.parentElement.title = text;
    parts.value.classList.toggle("bad", isBad);
  }
}
