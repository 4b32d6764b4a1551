// @ts-check
// Classes as bars: how many of each the data has, and how many one subset or two of them take.

import { h } from "./dom.js";
import { count, percent } from "./format.js";

const WIDTH = 300;
const MOST = 200;

/**
 * @param {{name: string, in_data: any, in_subset: any}[][]} columns the classes of one subset or two
 * @param {string[]} names of the subsets
 */
export function histogram(columns, names) {
  const rows = columns[0].slice(0, MOST);
  const most = Math.max(1, ...columns.flat().map((row) => Number(row.in_subset)));
  return h("div", { class: "histogram" },
    h("table", null,
      h("caption", { class: "unseen" }, `Classes of ${names.join(" and of ")}`),
      h("thead", null, h("tr", null, h("th", { scope: "col" }, "class"), h("th", { scope: "col" }, "taken"),
        names.map((name, place) => h("th", { scope: "col", class: "numeric" }, names.length > 1 ? h("span", { class: `series s${place}` }, name) : "number")),
        h("th", { scope: "col", class: "numeric" }, "of data"))),
      h("tbody", null, rows.map((row, place) => {
        const parts = columns.map((column) => Number(column[place]?.in_subset ?? 0));
        return h("tr", { key: place },
          h("th", { scope: "row", title: row.name }, row.name),
          h("td", { class: "bars" }, h("svg", { viewBox: `0 0 ${WIDTH} 12`, preserveAspectRatio: "none", "aria-hidden": "true" },
            parts.map((part, at) => h("rect", { class: `bar s${at}`, x: 0, y: (12 / parts.length) * at, width: (WIDTH * part) / most, height: 12 / parts.length - (parts.length > 1 ? 1 : 0) })))),
          parts.map((part) => h("td", { class: "numeric" }, count(part))),
          h("td", { class: "numeric dim" }, `${count(row.in_data)}${parts.length === 1 && Number(row.in_data) > 0 ? ` · ${percent(parts[0] / Number(row.in_data), 0)}` : ""}`));
      }))),
    columns[0].length > MOST && h("p", { class: "dim" }, `The first ${MOST} of ${count(columns[0].length)} classes.`));
}

/** Classes of the data alone. @param {string[]} names @param {any[]} counts */
export function classBars(names, counts) {
  const rows = names.map((name, place) => ({ name, in_data: counts[place], in_subset: counts[place] }));
  const most = Math.max(1, ...counts.map(Number));
  return h("div", { class: "histogram" }, h("table", null,
    h("caption", { class: "unseen" }, "Classes of the data"),
    h("thead", null, h("tr", null, h("th", { scope: "col" }, "class"), h("th", { scope: "col" }, "in the data"), h("th", { scope: "col", class: "numeric" }, "number"))),
    h("tbody", null, rows.slice(0, MOST).map((row, place) => h("tr", { key: place },
      h("th", { scope: "row", title: row.name }, row.name),
      h("td", { class: "bars" }, h("svg", { viewBox: `0 0 ${WIDTH} 12`, preserveAspectRatio: "none", "aria-hidden": "true" },
        h("rect", { class: "bar s0", x: 0, y: 0, width: (WIDTH * Number(row.in_data)) / most, height: 12 }))),
      h("td", { class: "numeric" }, count(row.in_data)))))));
}
