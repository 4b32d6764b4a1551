// @ts-check
// Starting a run: what is asked for most often as fields, everything else by its name.

import { post } from "./api.js";
import { closeDialog, drawDialog, openDialog } from "./dialogs.js";
import { h } from "./dom.js";
import { button, field, problem } from "./parts.js";
import { go, to } from "./router.js";
import { readLines, setAt } from "./settings.js";
import { state } from "./store.js";

/** Name, what it is called here, and how it may be typed. @type {[string, string, Record<string, any>][]} */
const FIELDS = [
  ["model", "Model", { type: "text", spellcheck: "false" }],
  ["seed", "Seed", { type: "number", min: 0, step: 1 }],
  ["learners.num_learners", "Learners", { type: "number", min: 1, step: 1 }],
  ["learners.num_minibatches", "Minibatches of each", { type: "number", min: 1, step: 1 }],
  ["learners.num_steps", "Steps of each", { type: "number", min: 1, step: 1 }],
  ["learners.batch_size", "Batch size", { type: "number", min: 1, step: 1 }],
  ["learners.learning_rate", "Learning rate", { type: "number", min: 0, step: "any" }],
  ["pruning.density_min", "Density from", { type: "number", min: 0, max: 1, step: "any" }],
  ["pruning.density_max", "Density to", { type: "number", min: 0, max: 1, step: "any" }],
];

let busy = false;
let refused = "";

export function openStartDialog() {
  busy = false;
  refused = "";
  openDialog("Start a run", content);
}

function content() {
  return [
    h("form", { on: { submit: (/** @type {SubmitEvent} */ event) => void submit(event) } },
      h("p", { class: "dim" }, "What is left empty stays as the coordinator has it."),
      h("div", { class: "fields" },
        field("start-name", "Name", h("input", { name: "name", type: "text", maxlength: 80, autofocus: true, autocomplete: "off", placeholder: "made up" })),
        FIELDS.map(([name, shown, props]) => field(`start-${name.replace(".", "-")}`, shown,
          h("input", { name, autocomplete: "off", placeholder: presentOf(name), ...props })))),
      field("start-others", "Other settings", h("textarea", { name: "others", rows: 2, spellcheck: "false", placeholder: "soup.num_alphas=5" }),
        "One a line, by the names of deploy/run.example.toml."),
      problem(refused),
      h("div", { class: "actions" }, button("Leave it", closeDialog), h("button", { type: "submit", class: "main", disabled: busy }, busy ? "Starting…" : "Start"))),
  ];
}

function presentOf(name) {
  return String(name.split(".").reduce((at, part) => at?.[part], state.info?.default_run) ?? "");
}

/** @param {SubmitEvent} event */
async function submit(event) {
  event.preventDefault();
  const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
  const text = (/** @type {string} */ name) => String(form.get(name) ?? "").trim();
  busy = true;
  refused = "";
  drawDialog();
  try {
    const overrides = readLines(text("others"));
    for (const [name, , props] of FIELDS) {
      if (text(name) !== "") setAt(overrides, name, props.type === "number" ? Number(text(name)) : text(name));
    }
    const { run } = await post("/api/runs", { name: text("name"), overrides });
    closeDialog();
    go(to(["runs", run.run_id]));
  } catch (error) {
    refused = /** @type {Error} */ (error).message;
  }
  busy = false;
  drawDialog();
}
