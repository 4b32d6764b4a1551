// @ts-check
// The runs, newest first, and how the service stands as a whole.

import { h } from "./dom.js";
import { count, duration, moment, number, percent } from "./format.js";
import { standingOf, tally } from "./learner.js";
import { badge, bar, button, empty, table, tile, tiles } from "./parts.js";
import { go, to } from "./router.js";
import { openStartDialog } from "./start_dialog.js";
import { mayAct, now, state } from "./store.js";

/** Ticked for comparison; two at most. @type {string[]} */
let ticked = [];

export const title = () => "Runs";

export function view() {
  const admin = mayAct("admin");
  return [
    h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Runs"),
      h("div", { class: "actions" },
        state.runs.length > 1 && button("Compare", () => go(to(["compare", ...ticked])), {
          disabled: ticked.length !== 2, key: "compare", title: "Tick two runs to see them side by side",
        }),
        admin && button("Start a run", openStartDialog, { class: "main", key: "start" }))),
    overview(),
    state.runs.length > 0 ? runsTable() : state.hasService ? noRuns(admin) : h("p", { class: "dim" }, "Asking the coordinator…"),
    state.numRuns > state.runs.length && h("p", { class: "dim" }, `${count(state.numRuns)} runs in all; `, h("code", null, "lipt run list"), " has the older ones."),
  ];
}

function overview() {
  const data = state.info?.dataset;
  if (!data || !state.hasService) return null;
  const busy = state.workers.filter((worker) => worker.assignment).length;
  const open = state.runs.reduce((sum, run) => sum + tally(run).queued, 0);
  const shape = number(data.channels) > 0 ? `${data.channels}×${data.height}×${data.width}` : undefined;
  return tiles(
    tile("data", data.source, shape), tile("examples", count(data.num_examples)),
    tile("classes", count(data.class_names.length)),
    tile("workers", `${count(busy)} of ${count(state.numWorkers)} busy`),
    tile("learners waiting", count(open)), tile("computing", count(state.computations.filter((item) => item.computing).length)));
}

function noRuns(admin) {
  return empty(admin ? "No runs yet. Start one here, or on a terminal:" : "No runs yet. Whoever is admin starts one:",
    "lipt run start --watch", "lipt-worker --coordinator HOST:PORT    # on every machine that is to train");
}

function runsTable() {
  const several = state.runs.length > 1;
  const columns = [
    { name: "run" }, { name: "state", class: "lead" }, { name: "learners", class: "grow" }, { name: "soup", class: "numeric" },
    { name: "took", class: "numeric" }, { name: "began" }, ...(several ? [{ name: "compare", class: "ticks" }] : []),
  ];
  return table("Runs, newest first", columns, state.runs.map((run) => {
    const learners = tally(run);
    return {
      key: run.run_id,
      cells: [
        h("a", { href: to(["runs", run.run_id]), class: "name" }, run.name),
        badge(standingOf(run)),
        h("span", { class: "inline-progress" }, bar(learners.done, learners.all, `learners of ${run.name} that are in`), ` ${learners.done} of ${learners.all}`),
        run.soup ? percent(run.soup.soup_accuracy) : "–",
        duration(((run.ended_at ? Date.parse(run.ended_at) : now()) - Date.parse(run.created_at)) / 1000),
        moment(run.created_at),
        ...(several ? [tick(run)] : []),
      ],
    };
  }));
}

function tick(run) {
  const isTicked = ticked.includes(run.run_id);
  return h("label", { class: "tick-box" }, h("input", {
    type: "checkbox", initial: isTicked, disabled: !isTicked && ticked.length >= 2,
    on: {
      change: (/** @type {Event} */ event) => {
        const on = /** @type {HTMLInputElement} */ (event.target).checked;
        ticked = on ? [...ticked, run.run_id] : ticked.filter((id) => id !== run.run_id);
        dispatchEvent(new Event("lipt-change"));
      },
    },
  }), h("span", { class: "unseen" }, `compare ${run.name}`));
}
