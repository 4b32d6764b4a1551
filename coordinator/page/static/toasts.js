// @ts-check
// What happens, said once: shown for some seconds, and read out by screen readers.

import { h, patch } from "./dom.js";
import { standingOf } from "./learner.js";

const SHOWN_MS = 7_000;
const MOST = 4;

/** @type {{id: number, text: string, tone: string}[]} */
let toasts = [];
let nextId = 0;

/** @param {string} text @param {"good" | "bad" | "quiet"} [tone] */
export function say(text, tone = "quiet") {
  const id = nextId++;
  toasts = [...toasts, { id, text, tone }].slice(-MOST);
  draw();
  setTimeout(() => {
    toasts = toasts.filter((toast) => toast.id !== id);
    draw();
  }, SHOWN_MS);
}

function draw() {
  const place = document.getElementById("toasts");
  if (place) patch(place, toasts.map(({ id, text, tone }) => h("p", { key: id, class: `toast ${tone}` }, text)));
}

/** Say which runs began or ended; steps and phases are to be seen, and not told.
 *
 * @param {any[]} before @param {any[]} after
 */
export function tellOfRuns(before, after) {
  const states = new Map(before.map((run) => [run.run_id, run.state]));
  for (const run of after) {
    const known = states.get(run.run_id);
    const { word, tone } = standingOf(run);
    if (known === undefined) say(`Run ${run.name} has begun.`);
    else if (known !== run.state && ["ready", "failed", "cancelled", "held"].includes(word)) {
      say(`Run ${run.name} is ${word}.`, tone === "good" ? "good" : tone === "bad" ? "bad" : "quiet");
    }
  }
}
