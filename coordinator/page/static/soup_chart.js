// @ts-check
// The soup as it grows: each ingredient's own accuracy as a dot, the soup's after it as a step.

import { h } from "./dom.js";
import { percent } from "./format.js";
import { alphaOf, tried } from "./learner.js";
import { linear, ticks } from "./scale.js";
import { state } from "./store.js";

const HEIGHT = 230;
const LEFT = 46;
const TOP = 22;
const BOTTOM = 36;
const MOST_SLOT = 110;
const ROOM_FOR_LABEL = 44;

/** @param {any} run @param {number} [room] pixels that it may take */
export function soupChart(run, room = state.width) {
  const learners = tried(run);
  if (learners.length === 0) return null;
  const places = Math.max(run.learners.length, 1);
  const width = Math.max(Math.min(room, LEFT + 12 + MOST_SLOT * Math.max(places, 4)), 240);
  const slot = (width - LEFT - 12) / places;
  const [low, high] = rangeOf(learners);
  const y = linear(low, high, HEIGHT - BOTTOM, TOP);
  const x = (/** @type {number} */ place) => LEFT + place * slot;
  const last = learners[learners.length - 1].ingredient.soup_accuracy;
  const kept = learners.filter(({ ingredient }) => ingredient.kept).length;
  const points = learners.flatMap(({ ingredient }, place) => [x(place), x(place + 1)].map((left) => `${left},${y(ingredient.soup_accuracy)}`));
  const every = Math.ceil(26 / slot);
  return h("svg", {
    class: "chart soup-chart", role: "img", width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`,
    "aria-label": `The soup's accuracy: ${percent(last)} after ${learners.length} of ${run.learners.length} learners were tried, ${kept} kept. The table of learners has every step.`,
  },
  ticks(low, high, 5).map((value) => h("g", { key: `tick ${value}`, class: "tick" },
    h("line", { x1: LEFT, x2: width - 8, y1: y(value), y2: y(value) }),
    h("text", { x: LEFT - 7, y: y(value) + 4, "text-anchor": "end" }, percent(value, 0)))),
  h("polyline", { key: "soup", class: "soup", points: points.join(" ") }),
  learners.map((learner, place) => ingredient(learner, {
    x: x(place + 0.5), y, bottom: HEIGHT - BOTTOM, isNamed: place % every === 0,
    isRise: slot >= ROOM_FOR_LABEL && learner.ingredient.soup_accuracy !== learners[place - 1]?.ingredient.soup_accuracy,
  })),
  h("text", { key: "axis", class: "axis", x: LEFT, y: HEIGHT - 3 }, "learner, in the order in which they were tried"));
}

function ingredient(learner, { x, y, bottom, isNamed, isRise }) {
  const { accuracy, soup_accuracy: soup, kept } = learner.ingredient;
  return h("g", { key: `learner ${learner.index}`, class: `ingredient ${kept ? "kept" : "left"}` },
    h("title", null, `learner ${learner.index}: ${percent(accuracy)} alone, ${alphaOf(learner)}; soup ${percent(soup)}`),
    h("line", { x1: x, x2: x, y1: bottom, y2: y(accuracy) }),
    h("circle", { cx: x, cy: y(accuracy), r: 5.5 }),
    isRise && h("text", { class: "rise", x, y: y(soup) - 8, "text-anchor": "middle" }, percent(soup)),
    isNamed && h("text", { x, y: bottom + 15, "text-anchor": "middle" }, `${learner.index}${kept ? "✓" : "×"}`));
}

/** What is drawn, from 5 points to 5 points: dots need no zero. @param {any[]} learners @returns {[number, number]} */
function rangeOf(learners) {
  const values = learners.flatMap(({ ingredient: each }) => [each.accuracy, each.soup_accuracy]);
  const low = Math.max(0, Math.floor((Math.min(...values) - 0.01) * 20) / 20);
  return [low, Math.min(1, Math.max(Math.ceil((Math.max(...values) + 0.005) * 20) / 20, low + 0.1))];
}

/** What the chart's signs mean. */
export function soupLegend() {
  const sign = (/** @type {string} */ kind) => h("svg", { class: "key soup-chart", width: 14, height: 12, viewBox: "0 0 14 12", "aria-hidden": "true" },
    kind === "soup" ? h("polyline", { class: "soup", points: "0,6 14,6" })
      : h("g", { class: `ingredient ${kind}` }, h("circle", { cx: 7, cy: 6, r: 5 })));
  return h("p", { class: "legend" },
    h("span", null, sign("soup"), "soup after it"), h("span", null, sign("kept"), "✓ alone, kept"), h("span", null, sign("left"), "× alone, discarded"));
}
