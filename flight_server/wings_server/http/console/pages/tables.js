// The tables that a statement can name, with their columns: a list, and completion while one types.

import { act, sql } from "../api.js";
import { fill, h, panel } from "../dom.js";
import { partsOf } from "../format.js";

const TOPICS_MAX = 500;
const OFFERED_MAX = 8;
const SYSTEM_COLUMNS = [["__partition", "string"], ["__offset", "int64"], ["__timestamp", "timestamp"]];
const SYSTEM_TABLES = ["topics", "partitions", "segments", "consumers", "groups", "nodes", "dead_letters", "files"];
const WORDS = ["select", "from", "where", "group by", "order by", "limit", "count(*)", "sum", "avg", "min", "max", "distinct", "having", "join", "between", "is not null", "desc", "with", "case when", "union all"];

const quoted = (name) => (/^[a-z_][a-z0-9_]*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`);

/** The tables of a namespace: `load(namespace)`; `element` lists them, and `insert(text)` takes a choice. */
export class Tables {
  tables = [];

  constructor(insert, signal) {
    Object.assign(this, { insert, signal });
    this.list = h("div", { class: "body tables" });
    this.element = panel("Tables", null, this.list);
  }

  async load(namespace) {
    const topics = await act("list-topics", { namespace, limit: TOPICS_MAX }, { signal: this.signal });
    const own = topics.map((each) => ({ name: quoted(partsOf(each.topic).id), columns: [...each.schema.fields.map(({ name, type }) => [name, type]), ...SYSTEM_COLUMNS] }));
    this.tables = [...own, ...SYSTEM_TABLES.map((name) => ({ name: `system.${name}`, columns: null }))];
    const more = topics.length === TOPICS_MAX && h("span", { class: "soft" }, `The first ${TOPICS_MAX} topics; others can be named too.`);
    fill(this.list, this.tables.map((table) => this.#entry(table)), more);
  }

  #entry(table) {
    const choice = (text, label, beside) => h("button", { type: "button", class: "link mono", onclick: () => this.insert(text) }, label, beside && h("span", { class: "soft" }, ` ${beside}`));
    const inside = h("div", {});
    const opened = async ({ target }) => {
      if (!target.open || inside.firstChild) return;
      table.columns ??= await this.#described(table.name);
      fill(inside, choice(table.name, `from ${table.name}`), table.columns.map(([column, type]) => choice(quoted(column), column, type)));
    };
    return h("details", { ontoggle: opened }, h("summary", { class: "mono" }, table.name), inside);
  }

  /** Return the columns of a system table. */
  async #described(name) {
    const { rows } = await sql(`DESCRIBE wings.${name}`, { signal: this.signal }).catch(() => ({ rows: [] }));
    return rows.map((row) => [row.column_name, row.column_type.toLowerCase()]);
  }

  /** Return what may stand for the word that a text ends with: names of tables and columns first. */
  offers(before) {
    const word = /[\w."-]*$/.exec(before)[0].toLowerCase();
    if (word.length < 2) return { word, offers: [] };
    const isTable = /\b(from|join)\s+[\w."-]*$/i.test(before);
    const names = this.tables.map((table) => table.name);
    const columns = this.tables.flatMap((table) => (table.columns ?? []).map(([column]) => quoted(column)));
    const all = isTable ? names : [...columns, ...names, ...WORDS];
    const offers = [...new Set(all)].filter((each) => each.toLowerCase().replaceAll('"', "").startsWith(word.replaceAll('"', "")) && each.toLowerCase() !== word);
    return { word, offers: offers.slice(0, OFFERED_MAX) };
  }
}
