// @ts-check
// The map of examples: alike ones lie close together, those that a subset takes stand out.

import { h } from "./dom.js";
import { count } from "./format.js";
import { linear } from "./scale.js";
import { className } from "./parts.js";

const SIZE = 460;
const MARGIN = 12;
const NUM_COLOURS = 12;

/** Drawn once for each answer: thousands of points are not looked through every second. @type {WeakMap<object, any[]>} */
const drawn = new WeakMap();

/**
 * @param {any} map ids, x, y, labels, and for each subset whether it has them
 * @param {number} place of the subset
 * @param {string} name
 */
export function exampleMap(map, place, name) {
  const chosen = map.chosen[place];
  const taken = chosen.filter(Boolean).length;
  if (!drawn.has(chosen)) drawn.set(chosen, points(map, chosen));
  return h("svg", {
    class: "map", role: "img", viewBox: `0 0 ${SIZE} ${SIZE}`, memo: chosen,
    "aria-label": `Map of ${count(map.ids.length)} examples, alike ones close together; ${name} takes ${count(taken)} of them. The histogram and the galleries say the same in numbers and pictures.`,
  }, drawn.get(chosen));
}

function points(map, chosen) {
  const [left, right, low, high] = [Math.min(...map.x), Math.max(...map.x), Math.min(...map.y), Math.max(...map.y)];
  const x = linear(left, right, MARGIN, SIZE - MARGIN);
  const y = linear(low, high, SIZE - MARGIN, MARGIN);
  // Those that are taken are drawn last, over the others.
  const order = map.ids.map((_, at) => at).sort((a, b) => Number(chosen[a]) - Number(chosen[b]));
  return order.map((at) => h("circle", {
    key: map.ids[at],
    class: `c${map.labels[at] >= 0 ? map.labels[at] % NUM_COLOURS : 0} ${chosen[at] ? "taken" : "left"}`,
    cx: x(map.x[at]).toFixed(1), cy: y(map.y[at]).toFixed(1), r: chosen[at] ? 4.2 : 2.4,
  }, h("title", null, `example ${map.ids[at]}: ${className(map.labels[at])}${chosen[at] ? ", taken" : ""}`)));
}
