// @ts-check
// The subsets of a run: asked for, listed, and one or two of them side by side.

import { get } from "./api.js";
import { h } from "./dom.js";
import { count, moment, percent } from "./format.js";
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
  const digests = ["show", "beside"].map((name) => state.route.query.get(name)).filter((digest) => subsets.some((subset) => subset.digest === digest));
  const shown = digests.map((digest) => whole(run.run_id, /** @type {string} */ (digest)));
  const isWhole = shown.length > 0 && shown.every((each) => each.value);
  return [
    head(run, "Subsets"),
    mayAct("trainer") && subsetForm(run, (subset) => arrived(run, subset)),
    problem(list.error),
    subsets.length > 0 ? subsetsTable(run, subsets) : list.value && empty(run.state === "RUN_STATE_READY"
      ? "No subset has been asked of this run yet. Ask above, or on a terminal:" : "Subsets are chosen on the soup: once the run is ready, ask here, or on a terminal:",
    `lipt subset get --run ${run.run_id} --fraction 0.1 --out subset.npy`),
    isWhole ? subsetDetails(run, shown.map((each) => each.value.subset))
      : shown.map((each, place) => problem(each.error) ?? h("p", { class: "dim", key: place }, "Fetching the subset…")),
  ];
}

/** @param {string} runId */
function load(runId) {
  return perform(`subsets ${runId}`, () => get(`/api/runs/${encodeURIComponent(runId)}/subsets`));
}

/** A subset with its classes and its examples, which the list leaves out. @param {string} runId @param {string} digest */
function whole(runId, digest) {
  const key = wholeKey(runId, digest);
  const found = task(key);
  if (found.value === null && !found.busy && !found.error) {
    void perform(key, () => get(`/api/runs/${encodeURIComponent(runId)}/subsets/${encodeURIComponent(digest)}`));
  }
  return found;
}

const wholeKey = (/** @type {string} */ runId, /** @type {string} */ digest) => `subset ${digest} of ${runId}`;

function arrived(run, subset) {
  setTask(wholeKey(run.run_id, subset.digest), { value: { subset }, error: "" });
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
    { name: "made" }, { name: "digest" }, { name: "show", hidden: true }];
  return table("Subsets, newest first", columns, subsets.map((subset) => ({
    key: subset.digest,
    class: subset.digest === first || subset.digest === second ? "chosen" : undefined,
    cells: [
      h("span", { class: "name" }, subset.strategy),
      count(subset.num_examples),
      percent(subset.fraction),
      moment(subset.created_at),
      h("code", { title: subset.digest }, subset.digest.slice(0, 10)),
      h("span", { class: "links" },
        h("a", { href: to(["runs", run.run_id, "subsets"], { show: subset.digest }), "aria-current": subset.digest === first && !second ? "true" : undefined }, "Show", h("span", { class: "unseen" }, ` ${subset.strategy}`)),
        first && first !== subset.digest && subset.digest !== second &&
          h("a", { href: to(["runs", run.run_id, "subsets"], { show: first, beside: subset.digest }) }, "Side by side", h("span", { class: "unseen" }, ` with ${subset.strategy}`))),
    ],
  })));
}
