// Share groups of a namespace, with the lag and the members of those in sight.

import { act, poll } from "../api.js";
import { fill, h } from "../dom.js";
import { count, duration, shortName } from "../format.js";
import { ErrorPlace, head, namespaces } from "../lists.js";
import { empty } from "../notices.js";
import { DEFAULT, route } from "../routes.js";
import { Table } from "../table.js";

const LOOKED_AT_MAX = 50;

export async function render(main, found, signal) {
  const errors = new ErrorPlace();
  const figures = new Map();
  const keyOf = (row) => `${row.topic} ${row.group}`;
  let namespace = found.keys.get("namespace") ?? DEFAULT;
  const figure = (value) => ({ right: true, text: (row) => {
    const known = figures.get(keyOf(row));
    return known === undefined ? "" : value(known);
  } });
  const table = new Table([
    { label: "Group", text: (row) => row.group, node: (row) => h("a", { href: route("group", [row.topic, row.group]) }, row.group), sort: (row) => row.group },
    { label: "Topic", wide: true, text: (row) => shortName(row.topic), node: (row) => h("a", { href: route("topic", [row.topic]) }, shortName(row.topic)), sort: (row) => row.topic },
    { label: "Lag", ...figure((known) => count(known.lag)), sort: (row) => figures.get(keyOf(row))?.lag },
    { label: "Held", wide: true, ...figure((known) => count(known.in_flight)) },
    { label: "Members", wide: true, ...figure((known) => count(known.members.length)) },
    { label: "Oldest unfinished", ...figure((known) => (known.oldest ? duration(known.oldest.age_ms) : "–")) },
    { label: "Dead letters", wide: true, text: (row) => (row.config.dlq_topic ? shortName(row.config.dlq_topic) : "dropped") },
  ], {
    label: "Share groups",
    key: keyOf,
    empty: () => (errors.element.firstChild ? null : none()),
    onOpen: (row) => {
      location.hash = route("group", [row.topic, row.group]);
    },
  });
  async function list() {
    table.rows = await act("share-list", { namespace }, { signal });
    errors.clear();
  }
  async function look() {
    for (const row of table.seen.slice(0, LOOKED_AT_MAX)) {
      const { topic, group } = row;
      figures.set(keyOf(row), await act("share-members", { topic, group }, { signal }));
    }
    table.draw();
  }
  const show = (error) => {
    errors.show(error);
    table.draw();
  };
  fill(main, head("Share groups", { beside: [namespaces(found, signal, (name) => {
    namespace = name;
    list().then(look).catch(show);
  })] }), errors.element, h("section", { class: "panel", "aria-label": "Share groups" }, table.whole));
  void poll(list, { interval: 10_000, signal, onError: show });
  await poll(look, { interval: 2_000, signal, onError: show });
}

function none() {
  return empty("No share groups", "A share group is a queue over a topic: each message is held by one worker until it is done.",
    "wings share create GROUP TOPIC\nwings share work GROUP TOPIC -- COMMAND");
}
