// The processes that serve this log.

import { act, poll } from "../api.js";
import { fill, h } from "../dom.js";
import { ago, moment } from "../format.js";
import { ErrorPlace, head } from "../lists.js";
import { empty } from "../notices.js";
import { Table } from "../table.js";

export async function render(main, _, signal) {
  const errors = new ErrorPlace();
  const table = new Table([
    { label: "Flight", text: (row) => row.flight, node: (row) => [h("span", { class: "dot good" }), h("code", {}, row.flight)] },
    { label: "HTTP", text: (row) => row.http ?? "–", className: "mono" },
    { label: "Serves since", text: (row) => moment(row.since) },
    { label: "", right: true, text: (row) => (row.since ? ago(row.since) : "") },
  ], { label: "Nodes", key: (row) => row.flight, tall: false, empty: () => errors.element.firstChild ? null : alone() });
  fill(main, head("Nodes"), errors.element, h("section", { class: "panel", "aria-label": "Nodes" }, table.whole));
  await poll(async () => {
    table.rows = await act("list-nodes", {}, { signal });
    errors.clear();
  }, { interval: 3_000, signal, onError: (error) => {
    errors.show(error);
    table.draw();
  } });
}

function alone() {
  return empty("One server on its own", "It is not part of a cluster. Several processes serve one log so:",
    "wings serve --processes 4\nwings metadata serve --data-dir metadata");
}
