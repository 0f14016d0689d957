// Move a share group to another position, after a confirmation.

import { act, exactJson } from "../api.js";
import { confirmed } from "../dialogs.js";
import { field, fill, h, panel } from "../dom.js";
import { count, moment } from "../format.js";
import { ErrorPlace } from "../lists.js";
import { notice } from "../notices.js";

const PLACES = [["earliest", "the first message kept"], ["latest", "the end: skip all"], ["time", "a time"], ["offset", "an offset"]];

/** Return the form that moves a group; `moved()` is called after it did. */
export function seekForm(group, isKeyed, signal, moved) {
  const errors = new ErrorPlace();
  const said = h("div");
  const at = h("input", { type: "text", spellcheck: "false", placeholder: "2026-11-29 14:00" });
  const of = h("input", { type: "text", class: "mono", spellcheck: "false", placeholder: '"Oslo"' });
  const atField = field("At", at, "grow");
  const place = h("select", { onchange: () => {
    atField.hidden = !["time", "offset"].includes(place.value);
    at.placeholder = place.value === "time" ? "2026-11-29 14:00" : "1200";
  } }, PLACES.map(([value, label]) => h("option", { value }, label)));
  atField.hidden = true;

  /** Return the position, and its words; throws where the fields say none. */
  function asked() {
    const text = at.value.trim();
    if (place.value === "offset" && /^\d+$/.test(text)) return [Number(text), `offset ${count(Number(text))}`];
    if (place.value === "time" && !Number.isNaN(Date.parse(text))) return [{ timestamp: new Date(text).toISOString() }, `the first message at or after ${moment(text)}`];
    if (["earliest", "latest"].includes(place.value)) return [place.value, PLACES.find(([value]) => value === place.value)[1]];
    throw Object.assign(new Error(`${text || "nothing"} is no ${place.value}`), { code: "INVALID_ARGUMENT" });
  }

  async function seek(event) {
    event.preventDefault();
    errors.clear();
    fill(said);
    try {
      const [to, words] = asked();
      const partition = of.value.trim() === "" ? {} : { partition: exactJson(of.value) };
      if (!isKeyed && typeof to === "number") partition.partition = null;
      const where = "partition" in partition && isKeyed ? ` in partition ${of.value.trim()}` : "";
      if (!(await confirmed(`Move ${group.group}?`, `It goes to ${words}${where}. What its members hold is taken from them; messages after it are delivered, also those that were finished before.`, "Move it"))) return;
      await act("share-seek", { topic: group.topic, group: group.group, to, ...partition }, { signal });
      fill(said, notice("good", `${group.group} is moved`, `It goes on at ${words}${where}.`));
      moved();
    } catch (error) {
      if (!signal.aborted) errors.show(error instanceof SyntaxError ? Object.assign(error, { code: "INVALID_JSON" }) : error);
    }
  }

  return panel("Seek", null, h("form", { class: "body", onsubmit: seek },
    h("div", { class: "row" }, field("Move the group to", place), atField, isKeyed && field("Partition (as JSON; all if empty)", of, "grow"), h("button", {}, "Seek…")),
    errors.element, said));
}
