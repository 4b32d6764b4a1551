// @ts-check
// Small pieces that several views are made of.

import { h } from "./dom.js";
import { count, MISSING, number } from "./format.js";
import { state } from "./store.js";

/** @param {import("./learner.js").Fate} fate */
export function badge(fate) {
  return h("span", { class: `badge ${fate.tone}` }, h("span", { class: "sign", "aria-hidden": "true" }, fate.sign), fate.word);
}

/** @param {string} name @param {any} value @param {string} [title] */
export function tile(name, value, title) {
  return h("div", { class: "tile", key: name, title }, h("dt", null, name), h("dd", null, value));
}

/** @param {...any} tiles */
export function tiles(...tiles) {
  return h("dl", { class: "tiles" }, tiles);
}

/**
 * A table that becomes cards where there is no room for columns.
 *
 * @param {string} caption for those who do not see it
 * @param {{name: string, class?: string, hidden?: boolean}[]} columns the first is the row's header; on
 *     cards those of class "lead" stand beside it, and "grow" and "long" ones have a line of their own
 * @param {{key: string | number, cells: any[], class?: string}[]} rows
 */
export function table(caption, columns, rows) {
  return h("div", { class: "wide" }, h("table", { class: "cards", role: "table" },
    h("caption", { class: "unseen" }, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map((column) =>
      h("th", { scope: "col", role: "columnheader", class: column.class },
        column.hidden ? h("span", { class: "unseen" }, column.name) : column.name)))),
    h("tbody", { role: "rowgroup" }, rows.map((row) => h("tr", { key: row.key, class: row.class, role: "row" },
      row.cells.map((cell, place) => h(place === 0 ? "th" : "td", {
        scope: place === 0 ? "row" : undefined,
        role: place === 0 ? "rowheader" : "cell",
        class: [columns[place].class, cell === MISSING && "void"].filter(Boolean).join(" ") || undefined,
        "data-name": columns[place].hidden ? undefined : columns[place].name,
      }, cell)))))));
}

/** @param {any} done @param {any} total @param {string} label */
export function bar(done, total, label) {
  const [part, whole] = [number(done), number(total)];
  return h("progress", { max: whole > 0 ? whole : 1, value: whole > 0 ? Math.min(part, whole) : undefined, "aria-label": label });
}

/** @param {any} progress of a computation, in the contract's form */
export function progressLine(progress) {
  const told = progress ?? { activity: "asking", done: 0, total: 0, ahead: 0 };
  const ahead = number(told.ahead ?? 0);
  const total = number(told.total ?? 0);
  const text = ahead > 0
    ? `waiting for its turn, ${count(ahead)} before it`
    : `${told.activity || "beginning"}${total > 0 ? `, ${count(told.done)} of ${count(total)}` : ""}`;
  return h("p", { class: "progress", key: "progress" }, bar(told.done ?? 0, total, "progress"), " ", text);
}

/** @param {string} text */
export function problem(text) {
  return text ? h("p", { class: "problem", role: "alert", key: "problem" }, text) : null;
}

/** What to do where there is nothing to see. @param {any} text @param {...string} commands */
export function empty(text, ...commands) {
  return h("div", { class: "empty" }, h("p", null, text), commands.length > 0 && h("pre", { tabindex: "0" }, h("code", null, commands.join("\n"))));
}

/** @param {string} text @param {() => void} act @param {Record<string, any>} [props] */
export function button(text, act, props = {}) {
  return h("button", { type: "button", ...props, on: { click: act } }, text);
}

/**
 * A field with its label and a hint below.
 *
 * @param {string} id @param {string} name @param {any} control description without its id
 * @param {string} [hint]
 */
export function field(id, name, control, hint) {
  control.props.id = id;
  if (hint) control.props["aria-describedby"] = `${id}-hint`;
  return h("div", { class: "field", key: id }, h("label", { for: id }, name), control,
    hint && h("p", { class: "hint", id: `${id}-hint` }, hint));
}

/** Class names as people know them; a number where there is no name. @param {number} label */
export function className(label) {
  return state.info?.dataset?.class_names?.[label] ?? String(label);
}
