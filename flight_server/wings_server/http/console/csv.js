// Rows as CSV, as spreadsheets read it.

import { cell } from "./format.js";

/** Return rows as CSV: null is an empty field, and a text that a spreadsheet would compute is quoted. */
export function csv(names, rows) {
  const line = (values) => values.map(written).join(",");
  return [line(names), ...rows.map((row) => line(names.map((name) => row[name])))].join("\r\n") + "\r\n";
}

function written(value) {
  if (value === null || value === undefined) return "";
  const text = cell(value);
  // A text that begins so is a formula to spreadsheets.
  const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) || safe === "" ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** Have the browser save a text as a file. */
export function save(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  const link = document.createElement("a");
  Object.assign(link, { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1_000);
}
