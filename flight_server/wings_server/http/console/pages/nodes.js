// The processes that serve this log: their versions, and what they use of their machines.

import { act, poll } from "../api.js";
import { meter } from "../chart.js";
import { fill, h } from "../dom.js";
import { bytes, count, duration, moment } from "../format.js";
import { ErrorPlace, head } from "../lists.js";
import { empty } from "../notices.js";
import { Table } from "../table.js";

export async function render(main, _, signal) {
  const errors = new ErrorPlace();
  const size = h("span", { class: "soft number" });
  const of = ({ disk }) => disk && disk.used_bytes / (disk.used_bytes + disk.free_bytes);
  const table = new Table([
    { label: "Node", text: (row) => `${row.flight} ${stateOf(row)}`, node: (row) => [h("span", { class: `dot ${stateOf(row) === "answers" ? "good" : "bad"}` }), h("code", {}, row.flight)] },
    { label: "State", text: stateOf, node: (row) => (stateOf(row) === "answers" ? "answers" : h("span", { class: "tag bad", title: row.error ?? "" }, stateOf(row))) },
    { label: "Version", wide: true, text: (row) => row.version ?? "–" },
    { label: "Up", wide: true, right: true, text: (row) => (row.since && !row.silent ? duration(Date.now() - Date.parse(row.since)) : "–"), node: (row) => h("span", { title: `Serves since ${moment(row.since)}` }, row.since && !row.silent ? duration(Date.now() - Date.parse(row.since)) : "–") },
    { label: "CPU", right: true, text: cpu },
    { label: "Memory", wide: true, right: true, text: memory, node: (row) => (row.memory_bytes ? [meter(row.memory_bytes / row.memory_limit_bytes), bytes(row.memory_bytes)] : "–") },
    { label: "Disk", right: true, text: disk, node: (row) => (row.disk ? [meter(of(row)), `${bytes(row.disk.free_bytes)} free`] : "–") },
    { label: "Certificate ends", wide: true, text: (row) => (row.certificate_ends_at ? moment(row.certificate_ends_at) : "–") },
    { label: "HTTP", wide: true, text: (row) => row.http ?? "–", className: "mono" },
  ], { label: "Nodes", key: (row) => `${row.flight} ${row.since}`, tall: false, empty: () => null });
  const alone = h("div");
  fill(main, head("Nodes", { beside: [size] }), errors.element, h("section", { class: "panel", "aria-label": "Nodes" }, table.whole), alone);
  await poll(async () => {
    table.rows = await act("node-states", {}, { signal });
    errors.clear();
    fill(size, `${count(table.rows.length)} ${table.rows.length === 1 ? "process" : "processes"}`);
    fill(alone, table.rows.length === 1 && empty("One server on its own", "Several processes serve one log so:", "wings serve --processes 4\nwings metadata serve --data-dir metadata"));
  }, { interval: 3_000, signal, onError: (error) => {
    errors.show(error);
    table.draw();
  } });
}

function stateOf({ silent, error }) {
  return silent ? "stopped answering" : error ? "does not answer" : "answers";
}

function cpu({ busy_cores: busy, cores }) {
  return busy === undefined || busy === null ? "–" : `${busy.toFixed(2)} of ${cores}`;
}

const memory = ({ memory_bytes: used, memory_limit_bytes: all }) => (used ? `${bytes(used)} of ${bytes(all)}` : "–");

const disk = ({ disk: found }) => (found ? `${bytes(found.free_bytes)} free of ${bytes(found.free_bytes + found.used_bytes)}` : "–");
