// Dialogs: the browser's own, which keep the focus within and give it back.

import { token } from "./api.js";
import { field, h } from "./dom.js";

let open = null;

/** Ask for a token; `message` says why the last one was refused, empty where there was none. */
export function tokenDialog(message) {
  if (open) return;
  const input = h("input", { type: "password", name: "token", autocomplete: "off", spellcheck: "false", required: true, "aria-invalid": message ? "true" : null });
  let isEntered = false;
  const form = h("form", { method: "dialog", onsubmit: () => {
    isEntered = input.value.trim() !== "";
    if (isEntered) token.set(input.value.trim());
  } },
    h("h2", {}, "A token, please"),
    h("p", {}, message ? `The last one was refused: ${message}` : "This server answers callers with a token. It stays in this tab, and goes with it."),
    field("Token", input),
    h("p", { class: "soft" }, "An operator makes one: ", h("code", {}, "wings token create NAME --grant 'read=*'")),
    h("div", { class: "actions" },
      h("button", { type: "button", onclick: () => open.close() }, "Not now"),
      h("button", { class: "primary" }, "Continue")));
  show(form, "A token", () => {
    if (!isEntered) token.refuse();
  });
  input.focus();
}

/** Ask whether to go on; returns the user's answer. */
export function confirmed(title, text, label) {
  return new Promise((resolve) => {
    let isSure = false;
    const sure = h("button", { class: "primary" }, label);
    const form = h("form", { method: "dialog", onsubmit: () => {
      isSure = true;
    } },
      h("h2", {}, title), h("p", {}, text),
      h("div", { class: "actions" }, h("button", { type: "button", onclick: () => open.close() }, "Cancel"), sure));
    show(form, title, () => resolve(isSure));
    sure.focus();
  });
}

function show(content, label, onClose) {
  open = h("dialog", { "aria-label": label }, content);
  open.addEventListener("close", () => {
    open.remove();
    open = null;
    onClose();
  });
  document.body.append(open);
  open.showModal();
}
