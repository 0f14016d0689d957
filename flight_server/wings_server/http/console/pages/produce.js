// Push a row to a topic: by a form made of its schema, or as JSON.

import { call, exactJson } from "../api.js";
import { field, fill, h, panel } from "../dom.js";
import { count, json, partition, partsOf } from "../format.js";
import { ErrorPlace } from "../lists.js";
import { empty, notice } from "../notices.js";
import { route } from "../routes.js";

const INTEGER = /^u?int\d+$/;
const FLOAT = /^(float|double|halffloat|float\d+)$/;
const PLAIN = /^(large_)?(string|utf8|binary)|^(timestamp|date|time|decimal|duration)/;

export function produce(body, topic, { signal, rights }) {
  if (!rights.write) {
    fill(body, empty("Needs the right write", "Your token may not push to this topic."));
    return;
  }
  const errors = new ErrorPlace();
  const said = h("div");
  const { namespace, id } = partsOf(topic.topic);
  const inputs = topic.schema.fields.map((each) => [each, inputOf(each)]);
  const text = h("textarea", { rows: 8, spellcheck: "false", "aria-label": "A row as JSON, or a list of rows" });
  const fields = h("div", { class: "grid" }, inputs.map(([each, input]) => field(labelOf(each, topic), input)));
  const way = h("button", { type: "button", "aria-pressed": "false", onclick: () => {
    const isJson = !text.hidden;
    if (!isJson) text.value = json(rowOf(inputs, true), 2);
    text.hidden = isJson;
    fields.hidden = !isJson;
    way.setAttribute("aria-pressed", String(!isJson));
  } }, "As JSON");
  text.hidden = true;

  async function push(event) {
    event.preventDefault();
    errors.clear();
    fill(said);
    try {
      const given = text.hidden ? rowOf(inputs) : exactJson(text.value);
      const data = Array.isArray(given) ? given : [given];
      const { batches: [result] } = await call("POST", "/v1/push", { namespace, batches: [{ topic: id, data }] }, { signal });
      if (result._tag === "error") throw Object.assign(new Error(result.message), { code: result.code });
      fill(said, notice("good", `${count(data.length)} ${data.length === 1 ? "row is" : "rows are"} committed`, "",
        h("ul", {}, result.committed.map((each) => h("li", {}, h("a", { href: route("message", [topic.topic, json(each.partition_value), each.start_offset]) },
          `offset ${count(each.start_offset)} of partition ${partition(each.partition_value)}`))))));
    } catch (error) {
      if (!signal.aborted) errors.show(error instanceof SyntaxError ? Object.assign(error, { code: "INVALID_JSON" }) : error);
    }
  }

  fill(body, panel("Produce", way, h("form", { class: "body", onsubmit: push }, fields, text, errors.element, said,
    h("div", { class: "row" }, h("button", { class: "primary" }, "Push"), h("span", { class: "soft" }, "An empty field is null, in a column that may be null.")))));
}

function labelOf({ name, type, nullable }, topic) {
  return h("span", { class: "row" }, name, h("span", { class: "tag" }, type), name === topic.partition_key && h("span", { class: "tag" }, "partition key"), !nullable && h("span", { class: "tag" }, "needed"));
}

function inputOf({ name, type, nullable }) {
  const label = { "aria-label": name, class: "mono", spellcheck: "false" };
  if (type === "bool") return h("select", label, ["", "true", "false"].map((value) => h("option", { value }, value)));
  if (INTEGER.test(type)) return h("input", { ...label, type: "text", inputmode: "numeric", required: !nullable });
  if (FLOAT.test(type)) return h("input", { ...label, type: "text", inputmode: "decimal", required: !nullable });
  const placeholder = type.startsWith("timestamp") ? "2026-11-29T14:00:00Z" : type.startsWith("date") ? "2026-11-29" : PLAIN.test(type) ? "" : "JSON";
  return h("input", { ...label, type: "text", placeholder });
}

/** Return the row of a form; of one that is half filled in, `isDraft`, what is no value yet is a text. */
function rowOf(inputs, isDraft = false) {
  return Object.fromEntries(inputs.map(([each, { value }]) => {
    try {
      return [each.name, valueOf(each, value)];
    } catch (error) {
      if (isDraft) return [each.name, value];
      throw Object.assign(new Error(`${each.name}: ${value || "nothing"} is no ${each.type}`), { code: "INVALID_ARGUMENT" });
    }
  }));
}

function valueOf({ type, nullable }, text) {
  if (PLAIN.test(type)) return text === "" && nullable ? null : text;
  if (text.trim() === "") {
    if (nullable) return null;
    throw new SyntaxError("empty");
  }
  if (INTEGER.test(type)) return BigInt(text.trim());
  if (FLOAT.test(type) && !Number.isNaN(Number(text))) return Number(text);
  return exactJson(text);
}
