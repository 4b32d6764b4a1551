// @ts-check
// Accuracy by the number of examples: a line, its points with their numbers.

import { h } from "./dom.js";
import { count, percent } from "./format.js";
import { linear, ticks } from "./scale.js";
import { state } from "./store.js";

const HEIGHT = 200;
const LEFT = 46;

/** @param {number[]} sizes @param {number[]} accuracies */
export function learningCurve(sizes, accuracies) {
  const width = Math.min(state.width, 620);
  const lowest = Math.floor(Math.min(...accuracies) * 10) / 10;
  const x = linear(Math.log(sizes[0]), Math.log(sizes[sizes.length - 1]), LEFT + 20, width - 34);
  const y = linear(lowest, Math.min(1, Math.max(...accuracies) + 0.05), HEIGHT - 30, 14);
  const points = sizes.map((size, place) => /** @type {[number, number]} */ ([x(Math.log(size)), y(accuracies[place])]));
  return h("svg", {
    class: "chart curve", role: "img", width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`,
    "aria-label": `Accuracy by number of examples: ${sizes.map((size, place) => `${percent(accuracies[place])} with ${count(size)}`).join(", ")}.`,
  },
  ticks(lowest, 1, 4).filter((value) => y(value) > 6).map((value) => h("g", { key: `tick ${value}`, class: "tick" },
    h("line", { x1: LEFT, x2: width - 8, y1: y(value), y2: y(value) }),
    h("text", { x: LEFT - 7, y: y(value) + 4, "text-anchor": "end" }, percent(value, 0)))),
  h("polyline", { key: "line", points: points.map((point) => point.join(",")).join(" ") }),
  points.map(([left, top], place) => h("g", { key: sizes[place], class: "point" },
    h("title", null, `${percent(accuracies[place])} with ${count(sizes[place])} examples`),
    h("circle", { cx: left, cy: top, r: 4 }),
    h("text", { x: left, y: HEIGHT - 10, "text-anchor": "middle" }, place % 2 === 0 || width > 500 ? count(sizes[place]) : ""))));
}
