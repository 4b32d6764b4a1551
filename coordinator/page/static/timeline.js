// @ts-check
// The timeline: a lane for every worker, in it the learners that it has had, from lease to result.

import { h } from "./dom.js";
import { duration, number, percent, plural, shortened } from "./format.js";
import { fateOf } from "./learner.js";
import { linear, timeTicks } from "./scale.js";
import { now, state } from "./store.js";

const LANE = 26;
const BAR = 18;
const AXIS = 22;

/** @param {any} run */
export function timeline(run) {
  const out = run.learners.filter((learner) => learner.leased_at);
  if (out.length === 0) return null;
  const start = Math.min(...out.map((learner) => Date.parse(learner.leased_at)));
  const open = out.some((learner) => learner.state === "LEARNER_STATE_LEASED");
  const ends = out.map((learner) => endOf(learner, run)).filter((end) => end > 0);
  const end = Math.max(open ? now() : 0, start + 1000, ...ends);
  const seconds = (end - start) / 1000;
  const workers = [...new Set(out.map((learner) => learner.worker_name || "a worker"))].sort();
  const width = Math.max(state.width, 280);
  const names = Math.min(150, Math.max(70, width * 0.17));
  const x = linear(0, seconds, names, width - 8);
  const height = workers.length * LANE + AXIS;
  const busy = out.filter((learner) => learner.state === "LEARNER_STATE_LEASED").length;
  const summary = `Timeline of ${plural(out.length, "learner")} on ${plural(workers.length, "worker")} over ${duration(seconds)}; ${busy} at work now. The table below has them all.`;
  return h("svg", { class: "chart timeline", role: "img", "aria-label": summary, width, height, viewBox: `0 0 ${width} ${height}` },
    timeTicks(seconds, width / 120).map((at) => h("g", { key: `tick ${at}`, class: "tick" },
      h("line", { x1: x(at), x2: x(at), y1: 0, y2: height - AXIS }),
      h("text", { x: x(at), y: height - 7, "text-anchor": x(at) > width - 30 ? "end" : "middle" }, duration(at).replace(".0", "").replace(" 0 s", "")))),
    workers.map((worker, lane) => h("g", { key: `lane ${worker}`, class: "lane" },
      h("line", { x1: 0, x2: width, y1: (lane + 1) * LANE - 0.5, y2: (lane + 1) * LANE - 0.5 }),
      h("text", { x: 0, y: lane * LANE + 17 }, h("title", null, worker), shortened(worker, Math.floor(names / 7.6))))),
    out.map((learner) => {
      const from = x((Date.parse(learner.leased_at) - start) / 1000);
      const until = x(((endOf(learner, run) || end) - start) / 1000);
      return piece(learner, { from, until, y: workers.indexOf(learner.worker_name || "a worker") * LANE + (LANE - BAR) / 2 });
    }));
}

/** When it ended, 0 where it has not, or where nobody knows. */
function endOf(learner, run) {
  if (learner.committed_at) return Date.parse(learner.committed_at);
  if (learner.ended_at) return Date.parse(learner.ended_at);
  return learner.state !== "LEARNER_STATE_LEASED" && run.ended_at ? Date.parse(run.ended_at) : 0;
}

function piece(learner, { from, until, y }) {
  const fate = fateOf(learner);
  const span = Math.max(until - from - 1, 2);
  const share = learner.state === "LEARNER_STATE_LEASED" && learner.num_steps > 0 ? learner.step / learner.num_steps : 1;
  const accuracy = learner.ingredient ? `, ${percent(learner.ingredient.accuracy)} alone` : "";
  const told = `learner ${learner.index}: ${fate.word}${accuracy}, step ${number(learner.step)} of ${learner.num_steps}`;
  const label = `${learner.index} ${fate.sign}`;
  return h("g", { key: `learner ${learner.index}`, class: `piece ${fate.tone}` },
    h("title", null, told),
    h("rect", { class: "span", x: from, y, width: span, height: BAR, rx: 3 }),
    h("rect", { class: "done", x: from, y, width: Math.max(span * Math.min(share, 1), 0), height: BAR, rx: 3 }),
    span > label.length * 7 + 4 && h("text", { x: from + 5, y: y + 13 }, label));
}
