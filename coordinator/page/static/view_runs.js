// The runs, newest first, and the dialog that starts one.

import { count, duration, number, percent, secondsOf, settingsOf, standingOf, tally } from "./format.js";
import { badge, bar, button, commands, empty, field, head, html, moment, problem, submit, table, tile, tiles, waiting } from "./parts.js";
import { post } from "./service.js";
import { closeDialog, mayAct, openDialog, perform, state, task, to } from "./store.js";

export function runsView() {
  const admin = mayAct("admin");
  return html`
    ${head("Runs", admin && button("Start a run", openStartDialog, { class: "main" }))}
    ${overview()}
    ${state.runs.length > 0 ? runsTable() : state.hasService
      ? empty(admin ? "No runs yet. Start one here, or on a terminal:" : "No runs yet. An admin starts one:",
        "lipt run start --watch", "lipt-worker --coordinator HOST:PORT    # on every machine that is to train")
      : waiting()}
    ${state.numRuns > state.runs.length && html`<p class="dim">${count(state.numRuns)} runs in all; <code>lipt run list</code> has the older ones.</p>`}`;
}

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

function openStartDialog() {
  state.tasks.delete("start a run");
  const defaults = settingsOf(state.info?.default_run);
  openDialog("Start a run", () => {
    const starting = task("start a run");
    return html`<form onSubmit=${start}>
      ${field("start-name", "Name", (props) => html`<input ...${props} name="name" type="text" maxlength="80" autofocus autocomplete="off" placeholder="made up" />`)}
      ${field("start-settings", "Settings", (props) => html`<textarea ...${props} name="settings" rows="6" spellcheck=${false} placeholder="learners.num_learners = 12" />`,
        "TOML, as in deploy/run.example.toml. Settings left out keep the coordinator's defaults.")}
      <details><summary>The coordinator's defaults</summary>${commands(...defaults.map(([name, value]) => `${name} = ${value}`))}</details>
      ${problem(starting.error)}
      <div class="actions">${button("Leave it", closeDialog)}${submit("Start", starting.busy, "Starting…")}</div>
    </form>`;
  });
}

async function start(event) {
  event.preventDefault();
  const form = new FormData(event.target);
  const wanted = { name: form.get("name").trim(), settings: form.get("settings") };
  const answer = await perform("start a run", () => post("/api/runs", wanted));
  if (!answer) return;
  closeDialog();
  location.hash = to(["runs", answer.run.run_id]);
}
