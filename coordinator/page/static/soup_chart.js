// @ts-check
// The soup as it grows: each ingredient's own accuracy as a bar, the soup's after it as a step.

import { h } from "./dom.js";
import { percent } from "./format.js";
import { alphaOf, tried } from "./learner.js";
import { linear, ticks } from "./scale.js";
import { state } from "./store.js";

const HEIGHT = 220;
const LEFT = 46;
const TOP = 14;
const BOTTOM = 34;
const MOST_SLOT = 64;

/** @param {any} run @param {number} [room] pixels that it may take */
export function soupChart(run, room = state.width) {
  const learners = tried(run);
  if (learners.length === 0) return null;
  const width = Math.max(Math.min(room, LEFT + 12 + MOST_SLOT * Math.max(run.learners.length, 6)), 240);
  const slot = (width - LEFT - 8) / Math.max(run.learners.length, 1);
  const initial = run.soup ? run.soup.initial_accuracy : null;
  const values = learners.flatMap(({ ingredient }) => [ingredient.accuracy, ingredient.soup_accuracy]);
  const top = Math.min(1, Math.ceil((Math.max(...values) + 0.02) * 10) / 10);
  const y = linear(0, top, HEIGHT - BOTTOM, TOP);
  const x = (/** @type {number} */ place) => LEFT + place * slot;
  const last = learners[learners.length - 1].ingredient.soup_accuracy;
  const kept = learners.filter(({ ingredient }) => ingredient.kept).length;
  const points = learners.flatMap(({ ingredient }, place) => [`${x(place)},${y(ingredient.soup_accuracy)}`, `${x(place + 1)},${y(ingredient.soup_accuracy)}`]);
  const every = Math.ceil(24 / slot);
  return h("svg", {
    class: "chart soup-chart", role: "img", width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`,
    "aria-label": `The soup's accuracy: ${percent(last)} after ${learners.length} of ${run.learners.length} learners were tried, ${kept} kept. The table of learners has every step.`,
  },
  ticks(0, top, 5).map((value) => h("g", { key: `tick ${value}`, class: "tick" },
    h("line", { x1: LEFT, x2: width - 8, y1: y(value), y2: y(value) }),
    h("text", { x: LEFT - 7, y: y(value) + 4, "text-anchor": "end" }, percent(value, 0)))),
  learners.map((learner, place) => h("g", { key: `learner ${learner.index}`, class: `ingredient ${learner.ingredient.kept ? "kept" : "left"}` },
    h("title", null, `learner ${learner.index}: ${percent(learner.ingredient.accuracy)} alone, ${alphaOf(learner)}; soup ${percent(learner.ingredient.soup_accuracy)}`),
    h("rect", { x: x(place + 0.18), y: y(learner.ingredient.accuracy), width: slot * 0.64, height: Math.max(y(0) - y(learner.ingredient.accuracy), 1), rx: 2 }),
    place % every === 0 && h("text", { x: x(place + 0.5), y: HEIGHT - BOTTOM + 15, "text-anchor": "middle" }, `${learner.index}${learner.ingredient.kept ? "✓" : "×"}`))),
  initial !== null && h("line", { key: "initial", class: "initial", x1: LEFT, x2: width - 8, y1: y(initial), y2: y(initial) }),
  h("polyline", { key: "soup", class: "soup", points: points.join(" ") }),
  h("text", { key: "axis", class: "axis", x: LEFT, y: HEIGHT - 3 }, "learner, in the order in which they were tried"));
}

/** What the chart's signs mean. */
export function soupLegend() {
  const sign = (/** @type {string} */ kind) => h("svg", { class: "key soup-chart", width: 14, height: 12, viewBox: "0 0 14 12", "aria-hidden": "true" },
    kind === "soup" ? h("polyline", { class: "soup", points: "0,6 14,6" })
      : kind === "initial" ? h("line", { class: "initial", x1: 0, x2: 14, y1: 6, y2: 6 })
        : h("g", { class: `ingredient ${kind}` }, h("rect", { width: 14, height: 12, rx: 2 })));
  return h("p", { class: "legend" },
    h("span", null, sign("soup"), "soup after it"), h("span", null, sign("kept"), "✓ kept"),
    h("span", null, sign("left"), "× discarded"), h("span", null, sign("initial"), "initial weights"));
}
