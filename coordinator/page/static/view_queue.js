// @ts-check
// The queue: what the coordinator computes and what waits for it, and learners that wait for a worker.

import { h } from "./dom.js";
import { count, duration, number } from "./format.js";
import { hasEnded, tally } from "./learner.js";
import { badge, bar, empty, table } from "./parts.js";
import { to } from "./router.js";
import { age, runById, state } from "./store.js";

const JOBS = {
  MakeInitialWeights: "initial weights", CutShards: "shards", MakeSoup: "soup", SelectSubset: "subset",
  DiagnoseData: "diagnosis",
};

export const title = () => "Queue";

export function view() {
  const waiting = state.runs.filter((run) => !hasEnded(run) && tally(run).queued + tally(run).leased > 0);
  return [
    h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Queue")),
    h("section", { "aria-labelledby": "computations-title" }, h("h2", { id: "computations-title" }, "At the coordinator"),
      state.computations.length === 0 ? empty("Nothing is computed, and nothing waits.") : computations()),
    h("section", { "aria-labelledby": "waiting-title" }, h("h2", { id: "waiting-title" }, "Learners for workers"),
      waiting.length === 0 ? empty("No learner waits for a worker.") : table("Learners for workers",
        [{ name: "run", class: "long" }, { name: "waiting", class: "numeric" }, { name: "at work", class: "numeric" }, { name: "in", class: "numeric" }, { name: "waits for", class: "long" }],
        waiting.map((run) => ({ key: run.run_id, cells: [runLink(run.run_id), count(tally(run).queued), count(tally(run).leased), count(tally(run).done), run.waiting || (state.numWorkers === 0 ? "a worker" : "its turn")] })))),
  ];
}

function computations() {
  const columns = [{ name: "what" }, { name: "standing", class: "lead" }, { name: "run", class: "long" }, { name: "progress", class: "grow" },
    { name: "for", class: "numeric" }, { name: "asked for by", class: "numeric" }, { name: "lane" }];
  return table("What is computed, then what waits", columns, state.computations.map((item, place) => ({
    key: `${item.lane} ${item.job} ${item.run_id} ${place}`,
    cells: [
      JOBS[/** @type {keyof typeof JOBS} */ (item.job)] ?? item.job,
      badge(item.computing ? { word: "computing", sign: "▸", tone: "busy" } : { word: "waiting", sign: "·", tone: "quiet" }),
      item.run_id ? runLink(item.run_id) : "the data",
      progressOf(item),
      duration(number(item.seconds) + age() / 1000),
      number(item.num_callers) > 0 ? count(item.num_callers) : "the run",
      item.lane,
    ],
  })));
}

function progressOf(item) {
  const total = number(item.progress?.total);
  if (!item.computing) return `${count(item.progress?.ahead ?? 0)} before it`;
  return h("span", { class: "inline-progress" }, bar(item.progress?.done ?? 0, total, `progress of ${item.job}`), ` ${item.progress?.activity ?? ""}`);
}

function runLink(runId) {
  const run = runById(runId);
  return h("a", { class: "name", href: to(["runs", runId]) }, run ? run.name : runId);
}
