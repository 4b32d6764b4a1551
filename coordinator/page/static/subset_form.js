// @ts-check
// Asking for a subset: a strategy, a size, the strategy's own options.

import { compute, get } from "./api.js";
import { h } from "./dom.js";
import { field, problem, progressLine } from "./parts.js";
import { perform, state, task, changed } from "./store.js";

/** What is picked in the form; its fields are the browser's. */
const picked = { strategy: "auto", unit: "percent" };

/** @param {any} run @param {(subset: any) => void} arrived */
export function subsetForm(run, arrived) {
  if (state.strategies === null) void loadStrategies();
  const strategies = state.strategies ?? [];
  const strategy = strategies.find((each) => each.name === picked.strategy) ?? strategies[0];
  const asking = task(`subset of ${run.run_id}`);
  const ready = run.state === "RUN_STATE_READY";
  return h("form", {
    class: "card ask", key: "ask", "aria-label": "Ask for a subset",
    on: { submit: (/** @type {SubmitEvent} */ event) => void submit(event, run, arrived) },
  },
  h("div", { class: "fields" },
    field("strategy", "Strategy", h("select", {
      name: "strategy", initial: picked.strategy, key: `of ${strategies.length}`,
      on: { change: (/** @type {Event} */ event) => pick("strategy", event) },
    }, strategies.map((each) => h("option", { key: each.name, value: each.name }, each.name)))),
    field("size", "Keep", h("input", { name: "size", type: "number", min: 0, step: "any", required: true, initial: "10" })),
    field("unit", "of them, in", h("select", {
      name: "unit", initial: picked.unit, on: { change: (/** @type {Event} */ event) => pick("unit", event) },
    }, h("option", { value: "percent" }, "percent of the data"), h("option", { value: "examples" }, "examples"))),
    h("div", { class: "field submit", key: "submit" }, h("button", { type: "submit", class: "main", disabled: asking.busy || !ready }, asking.busy ? "Choosing…" : "Choose"))),
  strategy && h("p", { class: "dim", key: "summary" }, `${strategy.name}: ${strategy.summary}. `, strategy.paper),
  strategy?.options?.length > 0 && h("details", { key: `options of ${strategy.name}` }, h("summary", null, `Options of ${strategy.name}`),
    h("div", { class: "fields" }, strategy.options.map((option) => optionField(strategy, option)))),
  !ready && h("p", { class: "note", key: "not-ready" }, "Subsets can be chosen once the run is ready."),
  asking.busy && progressLine(asking.progress),
  problem(asking.error));
}

function optionField(strategy, option) {
  const name = `option ${option.name}`;
  const id = `option-${strategy.name}-${option.name}`;
  // Others say what a value has to be: "integer >= 1", "epochs:N".
  const listed = option.allowed_values.length > 1 && option.allowed_values.every((value) => /^[\w.-]+$/.test(value));
  const control = listed
    ? h("select", { name }, h("option", { value: "" }, `${option.default_value} (default)`),
      option.allowed_values.filter((value) => value !== option.default_value).map((value) => h("option", { key: value, value }, value)))
    : h("input", { name, type: "text", autocomplete: "off", spellcheck: "false", placeholder: option.default_value });
  return field(id, option.name, control, option.help);
}

/** @param {"strategy" | "unit"} what @param {Event} event */
function pick(what, event) {
  picked[what] = /** @type {HTMLSelectElement} */ (event.target).value;
  changed();
}

function loadStrategies() {
  if (task("strategies").error) return;
  void perform("strategies", async () => {
    state.strategies = (await get("/api/strategies")).strategies;
  });
}

/** @param {SubmitEvent} event @param {any} run @param {(subset: any) => void} arrived */
async function submit(event, run, arrived) {
  event.preventDefault();
  const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
  const size = Number(form.get("size"));
  const options = {};
  for (const [name, value] of form) if (name.startsWith("option ") && value !== "") options[name.slice("option ".length)] = String(value);
  const body = {
    strategy: form.get("strategy"), options,
    // Rounded: 7 percent are 0.07 and not 0.07000000000000001.
    ...(form.get("unit") === "percent" ? { fraction: Number((size / 100).toPrecision(12)) } : { budget: Math.round(size) }),
  };
  const answer = await perform(`subset of ${run.run_id}`, (onProgress) =>
    compute(`/api/runs/${encodeURIComponent(run.run_id)}/subsets`, body, onProgress));
  if (answer) arrived(answer.subset);
}
