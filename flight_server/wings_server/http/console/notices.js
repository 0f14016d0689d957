// Errors, missing rights and empty places in plain words.

import { Unreachable } from "./api.js";
import { h } from "./dom.js";

const RIGHT = /has no right to (.+) on (.+)$/;

/** Return what a person is told of an error; `retry`, where given, is a button's. */
export function problem(error, retry) {
  const again = retry && h("div", {}, h("button", { type: "button", onclick: retry }, "Try again"));
  if (error instanceof Unreachable) {
    return notice("warn", "The server does not answer", "This page goes on by itself once it does.");
  }
  if (error.code === "PERMISSION_DENIED") return denied(error.message);
  if (error.code === "UNAUTHENTICATED") {
    return notice("warn", "A token is needed", "This server answers only callers with a token.", again);
  }
  const title = TITLES[error.code] ?? "The server refused this";
  return notice("bad", error.code ? title : "The console failed", `${error.message}${error.code ? ` (${error.code})` : ""}`, again);
}

const TITLES = {
  TOPIC_NOT_FOUND: "There is no such topic",
  GROUP_NOT_FOUND: "There is no such share group",
  NAMESPACE_NOT_FOUND: "There is no such namespace",
  INVALID_JSON: "This is no JSON",
  INVALID_SQL: "The statement cannot be run",
  INVALID_ARGUMENT: "The server cannot do that",
  RESOURCE_EXHAUSTED: "A limit of the server is reached",
  UNAVAILABLE: "The server cannot answer now",
  STORAGE_CORRUPT: "Something stored is damaged",
  INTERNAL: "The server failed",
};

function denied(message) {
  const match = RIGHT.exec(message);
  if (match === null) return notice("warn", "A right is missing", message);
  const [, rights, name] = match;
  const right = rights.split(" or ")[0];
  const pattern = name === "the server" ? "*" : name === "anything" ? "TOPIC" : name;
  return notice("warn", `The right ${rights} is missing`, `${message}. An operator makes a token that has it:`,
    h("pre", {}, `wings token create NAME --grant '${right}=${pattern}'`));
}

/** Return a notice of a kind: "good", "warn" or "bad". */
export function notice(kind, title, text, ...more) {
  return h("div", { class: `notice ${kind}`, role: kind === "good" ? "status" : "alert" }, h("strong", {}, title), h("span", {}, text), ...more);
}

/** Return what stands where there is nothing yet, with the command that changes that. */
export function empty(title, text, command) {
  return h("div", { class: "empty" }, h("strong", {}, title), h("span", {}, text), command && h("pre", {}, command));
}
