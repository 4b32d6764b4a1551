// The runs, newest first.

import { count, duration, number, percent, secondsOf, standingOf, tally } from "./format.js";
import { badge, bar, empty, head, html, moment, table, tile, tiles, waiting } from "./parts.js";
import { state, to } from "./store.js";

export const runsView = () => html`
  ${head("Runs")}
  ${overview()}
  ${state.runs.length > 0 ? runsTable() : state.hasService
    ? empty("No runs yet. An admin starts one:", "lipt run start --watch", "lipt-worker --coordinator HOST:PORT    # on every machine that is to train")
    : waiting()}
  ${state.numRuns > state.runs.length && html`<p class="dim">${count(state.numRuns)} runs in all; <code>lipt run list</code> has the older ones.</p>`}`;

function overview() {
  const data = state.info?.dataset;
  if (!data || !state.hasService) return null;
  const shape = number(data.channels) > 0 ? `${data.channels}×${data.height}×${data.width}` : undefined;
  return tiles(
    tile("data", data.source, shape), tile("examples", count(data.num_examples)),
    tile("classes", count(data.class_names.length)),
    tile("workers", `${count(state.workers.filter((worker) => worker.assignment).length)} of ${count(state.numWorkers)} busy`),
    tile("learners waiting", count(state.runs.reduce((sum, run) => sum + tally(run).queued, 0))),
    tile("computing", count(state.computations.filter((item) => item.computing).length)));
}

const COLUMNS = [["run"], ["state", "lead"], ["learners", "grow"], ["soup", "numeric"], ["took", "numeric"], ["began"]];

const runsTable = () => table("Runs, newest first", COLUMNS, state.runs.map((run) => {
  const { done, all } = tally(run);
  return {
    key: run.run_id,
    cells: [
      html`<a href=${to(["runs", run.run_id])} class="name">${run.name}</a>`,
      badge(standingOf(run)),
      html`<span class="inline-progress">${bar(done, all, `learners of ${run.name} that are in`)} ${done} of ${all}</span>`,
      percent(run.soup?.soup_accuracy), duration(secondsOf(run)), moment(run.created_at),
    ],
  };
}));
