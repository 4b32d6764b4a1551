// @ts-check
// The subsets of a run: asked for, listed, and one or two of them side by side.

import { get } from "./api.js";
import { h } from "./dom.js";
import { count, moment, number, percent } from "./format.js";
import { empty, problem, table } from "./parts.js";
import { to } from "./router.js";
import { mayAct, perform, runById, setTask, state, task } from "./store.js";
import { subsetDetails } from "./subset_details.js";
import { subsetForm } from "./subset_form.js";
import { head, notThere } from "./view_run.js";

export const title = () => `Subsets of ${runById(state.route.parts[1])?.name ?? "a run"}`;

export function view() {
  const run = runById(state.route.parts[1]);
  if (!run) return notThere();
  const list = task(`subsets ${run.run_id}`);
  if (list.value === null && !list.busy && !list.error) void load(run.run_id);
  const subsets = list.value?.subsets ?? [];
  const shown = ["show", "beside"].map((name) => subsets.find((subset) => subset.digest === state.route.query.get(name))).filter(Boolean);
  return [
    head(run, "Subsets"),
    mayAct("trainer") && subsetForm(run, (subset) => arrived(run, subset)),
    problem(list.error),
    subsets.length > 0 ? subsetsTable(run, subsets) : list.value && empty(run.state === "RUN_STATE_READY"
      ? "No subset has been asked of this run yet. Ask above, or on a terminal:" : "Subsets are chosen on the soup: once the run is ready, ask here, or on a terminal:",
    `lipt subset get --run ${run.run_id} --fraction 0.1 --out subset.npy`),
    shown.length > 0 && subsetDetails(run, shown),
  ];
}

/** @param {string} runId */
function load(runId) {
  return perform(`subsets ${runId}`, () => get(`/api/runs/${encodeURIComponent(runId)}/subsets`));
}

function arrived(run, subset) {
  const key = `subsets ${run.run_id}`;
  const others = (task(key).value?.subsets ?? []).filter((other) => other.digest !== subset.digest);
  setTask(key, { value: { subsets: [subset, ...others] } });
  const first = state.route.query.get("show");
  const isOther = first && first !== subset.digest && others.some((other) => other.digest === first);
  location.hash = to(["runs", run.run_id, "subsets"], isOther ? { show: first, beside: subset.digest } : { show: subset.digest });
}

function subsetsTable(run, subsets) {
  const [first, second] = ["show", "beside"].map((name) => state.route.query.get(name));
  const columns = [{ name: "strategy", class: "long" }, { name: "examples", class: "numeric" }, { name: "of data", class: "numeric" },
    { name: "weights" }, { name: "made" }, { name: "digest" }, { name: "show", hidden: true }];
  return table("Subsets, newest first", columns, subsets.map((subset) => ({
    key: subset.digest,
    class: subset.digest === first || subset.digest === second ? "chosen" : undefined,
    cells: [
      h("span", { class: "name" }, subset.strategy),
      count(subset.num_examples),
      percent(subset.fraction),
      subset.weights?.weighted ? `${number(subset.weights.min).toPrecision(3)} to ${number(subset.weights.max).toPrecision(3)}` : "all equal",
      moment(subset.created_at),
      h("code", { title: subset.digest }, subset.digest.slice(0, 10)),
      h("span", { class: "links" },
        h("a", { href: to(["runs", run.run_id, "subsets"], { show: subset.digest }), "aria-current": subset.digest === first && !second ? "true" : undefined }, "Show", h("span", { class: "unseen" }, ` ${subset.strategy}`)),
        first && first !== subset.digest && subset.digest !== second &&
          h("a", { href: to(["runs", run.run_id, "subsets"], { show: first, beside: subset.digest }) }, "Side by side", h("span", { class: "unseen" }, ` with ${subset.strategy}`))),
    ],
  })));
}
