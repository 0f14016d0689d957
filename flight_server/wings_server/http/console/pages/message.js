// One message with all its columns.

import { act, exactJson, sql } from "../api.js";
import { fill, h, panel } from "../dom.js";
import { count, json, moment, partsOf, shortName } from "../format.js";
import { head } from "../lists.js";
import { notice } from "../notices.js";
import { route } from "../routes.js";

const SYSTEM = new Set(["__partition", "__offset", "__timestamp"]);

export async function render(main, found, signal) {
  const [name, partition, text] = found.parts;
  const offset = Number(text);
  const { namespace, id } = partsOf(name);
  const beside = [-1, 1].map((step) => offset + step).filter((each) => each >= 0).map((each) =>
    h("a", { class: "button", href: route("message", [name, partition, each]) }, each < offset ? "← Previous" : "Next →"));
  fill(main, head(`Message ${count(offset)}`, { crumbs: [["Topics", route("topics", [], { namespace })], [shortName(name), route("topic", [name])]], beside }));
  const statement = `SELECT * FROM "${id}" WHERE __partition = ? AND __offset = ?`;
  const [topic, answer] = await Promise.all([
    act("describe-topic", { topic: name }, { signal }),
    sql(statement, { namespace, parameters: [partition, offset], signal }),
  ]);
  const [row] = answer.rows;
  if (row === undefined) {
    main.append(notice("warn", "This message is not there", "It was never written, or retention has deleted it."));
    return;
  }
  const types = new Map(topic.schema.fields.map((each) => [each.name, each.type]));
  const place = [["Topic", name], ["Partition", partition === "null" ? "the only one" : partition], ["Offset", count(offset)], ["Timestamp", `${row.__timestamp} (${moment(row.__timestamp)})`]];
  const columns = Object.entries(row).filter(([column]) => !SYSTEM.has(column));
  main.append(
    panel("Where it is", null, h("div", { class: "body" }, h("dl", { class: "facts" }, place.map(([label, value]) => [h("dt", {}, label), h("dd", {}, value)])))),
    panel("Columns", copyButton(Object.fromEntries(columns)), h("div", { class: "body" },
      h("dl", { class: "facts" }, columns.map(([column, value]) => [
        h("dt", {}, h("code", {}, column), " ", h("span", { class: "tag" }, types.get(column) ?? "")),
        h("dd", {}, value === null ? h("span", { class: "soft" }, "null") : h("pre", {}, pretty(value))),
      ])))),
  );
}

/** Return a value as it is read best: JSON, also in a text, has a line for each key. */
function pretty(value) {
  if (typeof value !== "string") return json(value, 2);
  try {
    return /^\s*[[{]/.test(value) ? json(exactJson(value), 2) : value;
  } catch {
    return value;
  }
}

function copyButton(row) {
  const button = h("button", { type: "button", onclick: async () => {
    await navigator.clipboard.writeText(json(row, 2));
    button.textContent = "Copied";
  } }, "Copy as JSON");
  // Browsers lend the clipboard to pages of HTTPS and of this machine alone.
  return navigator.clipboard ? button : null;
}
