// The runs, newest first, two of them side by side, and the dialog that starts one.

import { soupChart, soupLegend } from "./charts.js";
import { bytes, count, duration, keptOf, number, percent, secondsOf, settingsOf, standingOf, tally, trainSeconds } from "./format.js";
import { badge, bar, button, commands, empty, field, head, html, moment, problem, submit, table, tile, tiles, waiting } from "./parts.js";
import { post } from "./service.js";
import { changed, closeDialog, mayAct, openDialog, perform, runById, state, task, to } from "./store.js";

// Ids of the runs to compare; two at most.
let ticked = [];

export function runsView() {
  const admin = mayAct("admin");
  const compare = () => { location.hash = to(["compare", ...ticked]); };
  return html`
    ${head("Runs", html`
      ${state.runs.length > 1 && button("Compare", compare, { disabled: ticked.length !== 2, title: "Tick two runs to see them side by side" })}
      ${admin && button("Start a run", openStartDialog, { class: "main" })}`)}
    ${overview()}
    ${state.runs.length > 0 ? runsTable() : state.hasService
      ? empty(admin ? "No runs yet. Start one here, or in a terminal:" : "No runs yet. An admin starts one:",
        "lipt run start --watch", "lipt-worker --coordinator HOST:PORT    # on every training machine")
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
    tile("queued learners", count(state.runs.reduce((sum, run) => sum + tally(run).queued, 0))),
    tile("running jobs", count(state.computations.filter((item) => item.computing).length)));
}

const COLUMNS = [["run"], ["state"], ["learners"], ["soup", "numeric"], ["time", "numeric"], ["started"], ["compare"]];

const runsTable = () => table("Runs, newest first", COLUMNS, state.runs.map((run) => {
  const { done, all } = tally(run);
  return {
    key: run.run_id,
    cells: [
      html`<a href=${to(["runs", run.run_id])} class="name">${run.name}</a>`,
      badge(standingOf(run)),
      html`<span class="inline-progress">${bar(done, all, `finished learners of ${run.name}`)} ${done} of ${all}</span>`,
      percent(run.soup?.soup_accuracy), duration(secondsOf(run)), moment(run.created_at), tick(run),
    ],
  };
}));

function tick(run) {
  const checked = ticked.includes(run.run_id);
  const change = () => {
    ticked = checked ? ticked.filter((id) => id !== run.run_id) : [...ticked, run.run_id];
    changed();
  };
  return html`<input type="checkbox" aria-label="compare ${run.name}" checked=${checked} disabled=${!checked && ticked.length >= 2} onChange=${change} />`;
}

const FACTS = [
  ["state", (run) => badge(standingOf(run))],
  ["soup", (run) => percent(run.soup?.soup_accuracy)],
  ["best learner", (run) => percent(run.soup?.best_learner_accuracy)],
  ["mean learner", (run) => percent(run.soup?.mean_learner_accuracy)],
  ["kept", keptOf],
  ["trained on workers", (run) => duration(trainSeconds(run))],
  ["to and from workers", (run) => bytes(number(run.costs?.bytes_to_workers) + number(run.costs?.bytes_from_workers))],
];

export function compareView() {
  const runs = state.route.parts.slice(1, 3).map(runById).filter(Boolean);
  const heading = head("Two runs", null, html`<a href=${to(["runs"])}>Runs</a>`);
  if (runs.length !== 2) return html`${heading} ${state.hasService ? empty("Tick two runs in the list, then compare them.") : waiting()}`;
  const columns = [["value", "long"], ...runs.map((run) => [run.name, "long"])];
  const [first, second] = runs.map((run) => new Map(settingsOf(run.config)));
  const differing = [...new Set([...first.keys(), ...second.keys()])].filter((name) => first.get(name) !== second.get(name));
  return html`
    ${heading}
    ${table("Results", columns, FACTS.map(([name, of]) => ({ key: name, cells: [name, ...runs.map(of)] })))}
    <h2>Settings that differ</h2>
    ${differing.length === 0 ? html`<p class="dim">None.</p>`
      : table("Settings that differ", columns, differing.map((name) => ({ key: name, cells: [name, first.get(name) ?? "–", second.get(name) ?? "–"] })))}
    <h2>Soups</h2>
    <div class="columns">${runs.map((run) => html`<div key=${run.run_id}>
      <h3><a href=${to(["runs", run.run_id])}>${run.name}</a></h3>
      ${soupChart(run, state.width > 760 ? (state.width - 32) / 2 : state.width) ?? html`<p class="dim">No soup yet.</p>`}
    </div>`)}</div>
    ${soupLegend()}`;
}

function openStartDialog() {
  state.tasks.delete("start a run");
  const defaults = settingsOf(state.info?.default_run);
  openDialog("Start a run", () => {
    const starting = task("start a run");
    return html`<form onSubmit=${start}>
      ${field("start-name", "Name", (props) => html`<input ...${props} name="name" type="text" maxlength="80" autofocus autocomplete="off" placeholder="optional" />`)}
      ${field("start-settings", "Settings", (props) => html`<textarea ...${props} name="settings" rows="6" spellcheck=${false} placeholder="learners.num_learners = 12" />`,
        "TOML, as in deploy/run.example.toml. Other settings keep the coordinator's defaults.")}
      <details><summary>The coordinator's defaults</summary>${commands(...defaults.map(([name, value]) => `${name} = ${value}`))}</details>
      ${problem(starting.error)}
      <div class="actions">${button("Close", closeDialog)}${submit("Start", starting.busy, "Starting…")}</div>
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
