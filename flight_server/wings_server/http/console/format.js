// Numbers, sizes, times and values as people read them.

const COUNT = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** 12,345,678 */
export function count(value) {
  return value === null || value === undefined ? "–" : COUNT.format(value);
}

/** How much of a list is shown: "first 500 of 1,203", or "12" where that is all. */
export function firstOf(shown, all) {
  return shown < all ? `first ${count(shown)} of ${count(all)}` : count(shown);
}

/** 12.3M */
export function short(value) {
  return value === null || value === undefined ? "–" : Math.abs(value) < 10_000 ? COUNT.format(round(value)) : SHORT.format(value);
}

function round(value) {
  return Math.abs(value) >= 100 ? Math.round(value) : Math.round(value * 10) / 10;
}

/** 1.4 MiB */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(value) : round(value)} ${UNITS[unit]}`;
}

export const perSecond = (value) => (value === null || value === undefined ? "–" : `${short(value)}/s`);
export const bytesPerSecond = (value) => (value === null || value === undefined ? "–" : `${bytes(value)}/s`);

const SPANS = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1_000], ["ms", 1]];

/** A duration in milliseconds in at most two units: 1 h 20 min. */
export function duration(milliseconds) {
  if (milliseconds === null || milliseconds === undefined) return "–";
  if (milliseconds < 1) return "0 s";
  const first = SPANS.findIndex(([, size]) => milliseconds >= size);
  const [unit, size] = SPANS[first];
  const many = Math.floor(milliseconds / size);
  const rest = SPANS[first + 1];
  const left = rest === undefined || rest[0] === "ms" ? 0 : Math.floor((milliseconds - many * size) / rest[1]);
  return left > 0 ? `${many} ${unit} ${left} ${rest[0]}` : `${many} ${unit}`;
}

/** A span of time in its largest unit: "3 min". */
export function rough(milliseconds) {
  return duration(milliseconds).replace(/(?<= [a-z]+) \d+ [a-z]+$/, "");
}

/** How long ago a time of the API was: "3 min ago". */
export function ago(text) {
  if (!text) return "never";
  const gone = Date.now() - Date.parse(text);
  return gone < 1_500 ? "now" : `${duration(gone).replace(/ \d+ (min|s|h)$/, gone < 3_600_000 ? "" : "$&")} ago`;
}

/** A time of the API in the user's zone, to the second. */
export function moment(text) {
  if (!text) return "–";
  const at = new Date(text);
  return Number.isNaN(at.getTime()) ? String(text) : at.toLocaleString("sv-SE");
}

/** The value of a cell in one line. */
export function cell(value) {
  if (value === null || value === undefined) return "null";
  return typeof value === "string" ? value : json(value);
}

/** A value as JSON; integers beyond 2^53 keep all their digits. */
export function json(value, indent = 0) {
  return written(value, indent, "");
}

function written(value, indent, before) {
  if (typeof value === "bigint") return value.toString();
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  const inner = before + " ".repeat(indent);
  const parts = Array.isArray(value)
    ? value.map((each) => written(each, indent, inner))
    : Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${written(each, indent, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  if (parts.length === 0) return open + close;
  if (indent === 0) return open + parts.join(", ") + close;
  return `${open}\n${inner}${parts.join(`,\n${inner}`)}\n${before}${close}`;
}

/** A partition's value as the console shows it; a topic without a key has one, which is null. */
export function partition(value) {
  return value === null || value === undefined ? "all" : typeof value === "string" ? value : json(value);
}

const NAME = /^tenants\/([^/]+)\/namespaces\/([^/]+)(?:\/topics\/(.+))?$/;

/** A full name shortened: the default tenant goes without saying. */
export function shortName(full) {
  const match = NAME.exec(full);
  if (match === null) return full;
  const [, tenant, namespace, topic] = match;
  const place = tenant === "default" ? namespace : `${tenant}/${namespace}`;
  if (topic === undefined) return place;
  return place === "default" ? topic : `${place}.${topic}`;
}

/** The namespace and the id in a topic's full name. */
export function partsOf(full) {
  const at = full.lastIndexOf("/topics/");
  return { namespace: full.slice(0, at), id: full.slice(at + "/topics/".length) };
}
