// The frame: routes, the side bar, the token, the colours, and what is told of the connection.

import { connection, events, poll, token } from "./api.js";
import { confirmed, tokenDialog } from "./dialogs.js";
import { fill, h, setText, svg } from "./dom.js";
import { head } from "./lists.js";
import { empty, problem } from "./notices.js";
import * as consumers from "./pages/consumers.js";
import * as group from "./pages/group.js";
import * as groups from "./pages/groups.js";
import * as ingest from "./pages/ingest.js";
import * as message from "./pages/message.js";
import * as nodes from "./pages/nodes.js";
import * as overview from "./pages/overview.js";
import * as query from "./pages/query.js";
import * as topic from "./pages/topic.js";
import * as topics from "./pages/topics.js";
import { parseRoute, route } from "./routes.js";

const PAGES = { overview, topics, topic, message, consumers, groups, group, ingest, nodes, query };

/** Of the side bar: the page, its label, and the path of its picture. */
const NAV = [
  ["overview", "Overview", "M3 13h4l3-8 4 14 3-6h4"],
  ["topics", "Topics", "M4 6h16M4 12h16M4 18h10"],
  ["consumers", "Consumers", "M12 4v12m0 0-4-4m4 4 4-4M5 20h14"],
  ["groups", "Share groups", "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6Zm8 0a3 3 0 1 0 0-6M2 20c0-4 2.5-6 6-6s6 2 6 6m2-6c3.5 0 6 2 6 6"],
  ["ingest", "Ingest", "M12 3v6m0 0L9 6m3 3 3-3M4 13v6a1 1 0 0 0 1 1h14a1 1 0 0 0 1-1v-6M4 13h5l1 2h4l1-2h5"],
  ["query", "Query", "M5 7l5 5-5 5M12 18h7"],
  ["nodes", "Nodes", "M4 5h16v5H4zM4 14h16v5H4zM8 7.5h.01M8 16.5h.01"],
];

/** Which entry of the side bar stands for a page that has none. */
const PARENTS = { topic: "topics", message: "topics", group: "groups" };

const main = document.getElementById("main");
const banner = document.getElementById("banner");
let leave = new AbortController();

function icon(path) {
  return svg("svg", { viewBox: "0 0 24 24", fill: "none", stroke: "currentColor", "stroke-width": "1.8", "stroke-linecap": "round", "stroke-linejoin": "round", "aria-hidden": "true" },
    svg("path", { d: path }));
}

async function show() {
  const found = parseRoute(location.hash);
  const page = Object.hasOwn(PAGES, found.page) ? PAGES[found.page] : { render: noPage };
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  drawNav(found.page);
  fill(main);
  scrollTo(0, 0);
  try {
    await page.render(main, found, signal);
  } catch (error) {
    if (!signal.aborted) main.append(problem(error, show));
  }
}

function noPage(place, { page }) {
  fill(place, head("There is no such page"), empty(`The console has no page “${page}”`, "Choose one of the others."));
}

function drawNav(page) {
  const current = PARENTS[page] ?? page;
  fill(document.getElementById("nav"), NAV.map(([name, label, path]) =>
    h("a", { href: route(name), "aria-current": name === current ? "page" : null }, icon(path), label)));
}

// ---- colours -----------------------------------------------------------------------------------

const THEMES = ["auto", "light", "dark"];
const THEME = "wings-theme";

function theme() {
  const found = localStorage.getItem(THEME);
  return THEMES.includes(found) ? found : "auto";
}

function wear(name) {
  localStorage.setItem(THEME, name);
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
}

function drawFoot() {
  const colours = h("button", { type: "button", class: "quiet", id: "theme", onclick: () => {
    wear(THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]);
    drawFoot();
    document.getElementById("theme").focus();
  } }, `Colours: ${theme()}`);
  const has = token.get() !== null;
  const access = h("button", { type: "button", class: "quiet", id: "access", onclick: () => (has ? forget() : tokenDialog("")) },
    has ? "Forget the token" : "Enter a token");
  const state = h("span", { class: "soft where" }, h("span", { class: `dot ${connection.isUp ? "good" : "bad"}` }), connection.isUp ? location.host : "not connected");
  fill(document.getElementById("foot"), state, colours, access);
}

async function forget() {
  if (await confirmed("Forget the token?", "This tab no longer presents it; it stays valid.", "Forget it")) token.forget();
}

// ---- the connection ----------------------------------------------------------------------------

function tellOfLoss() {
  const seconds = Math.max(1, Math.round((connection.nextAt - Date.now()) / 1_000));
  banner.className = "";
  fill(banner, `The server at ${location.host} does not answer. Trying again in ${seconds} s. `,
    h("button", { type: "button", onclick: () => connection.now() }, "Try now"));
  drawFoot();
}

async function watchReadiness() {
  await poll(async () => {
    const answer = await fetch("/readyz", { cache: "no-store" }).catch(() => null);
    if (answer === null) {
      connection.lose();
      return;
    }
    const found = await answer.json();
    const reason = answer.ok ? found.share_groups && `Share groups are closed: ${found.share_groups}` : `Not ready: ${found.message}`;
    banner.className = "warn";
    setText(banner, reason ?? "");
  }, { interval: 5_000, signal: new AbortController().signal, onError: () => {} });
}

events.addEventListener("lost", tellOfLoss);
events.addEventListener("back", () => {
  setText(banner, "");
  drawFoot();
});
events.addEventListener("token-needed", (event) => tokenDialog(event.detail));
events.addEventListener("token", (event) => {
  drawFoot();
  // A page that waited for the token goes on by itself, with what was typed there.
  if (!event.detail) void show();
});
addEventListener("hashchange", show);

wear(theme());
drawFoot();
void show();
void watchReadiness();
