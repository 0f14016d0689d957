// Sources of files: how many of the files of each are open, finished and dead, and each file of one.

import { act, poll } from "../api.js";
import { Tiles } from "../chart.js";
import { confirmed } from "../dialogs.js";
import { fill, h, panel } from "../dom.js";
import { ago, count } from "../format.js";
import { ErrorPlace, head, Paged, search } from "../lists.js";
import { empty } from "../notices.js";
import { route } from "../routes.js";
import { Table } from "../table.js";

const STATES = [["", "all"], ["open", "open"], ["finished", "finished"], ["dead", "dead"]];
const SHOWN_MAX = 200;
const KINDS = { open: "", finished: "good", dead: "bad" };

export async function render(main, found, signal) {
  const [source] = found.parts;
  await (source === undefined ? sources(main, found, signal) : one(main, source, found, signal));
}

async function sources(main, found, signal) {
  const errors = new ErrorPlace();
  const size = h("span", { class: "soft number" });
  let query = found.keys.get("q") ?? "";
  const number = (name, label) => ({ label, right: true, text: (row) => count(row[name]), sort: (row) => row[name] });
  const table = new Table([
    { label: "Source", text: (row) => row.source, node: (row) => h("a", { href: route("ingest", [row.source]) }, row.source), sort: (row) => row.source },
    number("open", "Open"), number("finished", "Finished"),
    { ...number("dead", "Dead"), node: (row) => (row.dead ? h("span", { class: "tag bad" }, count(row.dead)) : count(row.dead)) },
    number("position", "Records read"),
  ], {
    label: "Sources",
    key: (row) => row.source,
    empty: () => (errors.element.firstChild ? null : none(query)),
    onOpen: (row) => {
      location.hash = route("ingest", [row.source]);
    },
  });
  async function look() {
    const rows = await act("shard-sources", { contains: query, limit: SHOWN_MAX }, { signal });
    errors.clear();
    table.rows = rows;
    fill(size, rows.length === SHOWN_MAX ? `first ${SHOWN_MAX}, there are more: find one by its name` : `${rows.length} sources`);
  }
  fill(main, head("Ingest", { beside: [size] }),
    search(found, "Find sources by a part of their name", (text) => {
      query = text;
      look().catch((error) => errors.show(error));
    }),
    errors.element, h("section", { class: "panel", "aria-label": "Sources" }, table.whole));
  await poll(look, { interval: 5_000, signal, onError: (error) => {
    errors.show(error);
    table.draw();
  } });
}

function none(query) {
  if (query) return empty("No source has this in its name", "Try a shorter part of it.");
  return empty("Files become rows, each exactly once", "A pipeline reads files as they arrive; its source is named in its configuration:", "wings ingest run --source pipeline.toml");
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
    for (const name of ["open", "finished", "dead", "position"]) tiles.set(name, count(counts[name]));
  }, { interval: 3_000, signal, onError: (error) => errors.show(error) });
}
