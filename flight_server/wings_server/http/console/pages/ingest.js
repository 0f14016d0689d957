// Sources of files: how many of their files are open, finished and dead, and each file.

import { act, poll } from "../api.js";
import { Tiles } from "../chart.js";
import { confirmed } from "../dialogs.js";
import { field, fill, h, panel } from "../dom.js";
import { ago, count } from "../format.js";
import { ErrorPlace, head, Paged } from "../lists.js";
import { empty } from "../notices.js";
import { route } from "../routes.js";
import { Table } from "../table.js";

const STATES = [["", "all"], ["open", "open"], ["finished", "finished"], ["dead", "dead"]];
const KINDS = { open: "", finished: "good", dead: "bad" };

export async function render(main, found, signal) {
  const [source] = found.parts;
  await (source === undefined ? sources(main) : one(main, source, found, signal));
}

/** The API tells of a source by its name: those that were looked at here are kept. */
function sources(main) {
  const names = kept();
  const input = h("input", { type: "text", spellcheck: "false", required: true, placeholder: "the name of a pipeline's source" });
  const form = h("form", { class: "row body", onsubmit: (event) => {
    event.preventDefault();
    location.hash = route("ingest", [input.value.trim()]);
  } }, field("Source", input, "grow"), h("button", { class: "primary" }, "Open"));
  const table = new Table([{ label: "Looked at lately", text: (name) => name, node: (name) => h("a", { href: route("ingest", [name]) }, name) }],
    { label: "Sources", key: (name) => name, tall: false, empty: none });
  fill(main, head("Ingest"), h("section", { class: "panel", "aria-label": "Sources" }, form, table.whole));
  table.rows = names;
}

function none() {
  return empty("Files become rows, each exactly once", "A pipeline reads files as they arrive; its source is named in its configuration:", "wings ingest run pipeline.toml");
}

const KEPT = "wings-sources";
const KEPT_MAX = 20;

function kept() {
  try {
    return JSON.parse(localStorage.getItem(KEPT) ?? "[]").filter((each) => typeof each === "string").slice(0, KEPT_MAX);
  } catch {
    return [];
  }
}

function keep(source) {
  localStorage.setItem(KEPT, JSON.stringify([source, ...kept().filter((each) => each !== source)].slice(0, KEPT_MAX)));
}

async function one(main, source, found, signal) {
  const errors = new ErrorPlace();
  const tiles = new Tiles([["Open", "open"], ["Finished", "finished"], ["Dead", "dead"], ["Records read", "position"]]);
  let state = found.keys.get("state") ?? "";
  const table = new Table([
    { label: "File", text: (row) => row.shard, className: "mono" },
    { label: "State", text: (row) => row.state, node: (row) => h("span", { class: `tag ${KINDS[row.state]}` }, row.state) },
    { label: "Records", right: true, text: (row) => count(row.position) },
    { label: "Failures", right: true, text: (row) => count(row.failures) },
    { label: "Error", text: (row) => row.error ?? "" },
    { label: "Last change", right: true, text: (row) => ago(row.updated_at ?? row.opened_at) },
    { label: "", text: (row) => (row.state === "dead" ? "Try again" : ""), node: (row) => (row.state === "dead" ? h("button", { type: "button", onclick: () => retry(row) }, "Try again") : "") },
  ], { label: "Files", key: (row) => row.shard, onEnd: () => paged.more(), empty: () => empty("No files", "None in this state.") });
  const paged = new Paged((last, limit) => act("shard-list", { source, limit, after: last === null ? "" : last.shard, ...(state && { state }) }, { signal }).then((answer) => answer.shards), {
    signal,
    onRows: (rows) => {
      table.rows = rows;
    },
    onError: (error) => errors.show(error, () => paged.reset()),
  });

  async function retry(row) {
    if (!(await confirmed("Try this file again?", `${row.shard} is opened again; a pipeline that runs takes it up.`, "Try again"))) return;
    await act("shard-reset", { source, shards: [row.shard] }, { signal }).catch((error) => errors.show(error));
    await paged.reset();
  }

  const select = h("select", { "aria-label": "State", onchange: () => {
    state = select.value;
    void paged.reset();
  } }, STATES.map(([value, label]) => h("option", { value, selected: value === state }, label)));
  fill(main, head(source, { crumbs: [["Ingest", route("ingest")]] }), errors.element, tiles.element, panel("Files", select, table.whole));
  void paged.reset();
  await poll(async () => {
    const counts = await act("shard-count", { source }, { signal });
    keep(source);
    for (const name of ["open", "finished", "dead", "position"]) tiles.set(name, count(counts[name]));
  }, { interval: 3_000, signal, onError: (error) => errors.show(error) });
}
