// The service: its runs, one run, two side by side, its workers and its queue.

import { lossChart, soupChart, soupLegend } from "./charts.js";
import { alphaOf, badge, bar, button, bytes, commands, count, duration, empty, fateOf, field, fixed, head, html, keptOf, MISSING, moment, number, percent, problem, progressLine, relative, secondsOf, section, settingsOf, standing, standingOf, submit, table, tally, tile, tiles, trainSeconds, tried, waiting } from "./parts.js";
import { call, post } from "./service.js";
import { age, changed, closeDialog, mayAct, now, openDialog, perform, runById, state, task, to } from "./store.js";
import { mixtures } from "./view_mixtures.js";

let ticked = []; // ids of the runs to compare; two at most

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
  const data = task("info").value?.dataset;
  if (!data || !state.hasService) return null;
  const shape = number(data.channels) > 0 ? `${data.channels}×${data.height}×${data.width}` : undefined;
  return tiles(
    tile("data", data.source, shape), tile("examples", count(data.num_examples)),
    tile("classes", count(data.class_names.length)),
    tile("workers", `${count(state.workers.filter((worker) => worker.assignment).length)} of ${count(state.numWorkers)} busy`),
    tile("queued learners", count(state.runs.reduce((sum, run) => sum + tally(run).queued, 0))),
    tile("running jobs", count(state.computations.filter((item) => item.computing).length)));
}

const RUN_COLUMNS = [["run"], ["state"], ["learners"], ["soup", "numeric"], ["time", "numeric"], ["started"], ["compare"]];

const runsTable = () => table("Runs, newest first", RUN_COLUMNS, state.runs.map((run) => {
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
  const defaults = settingsOf(task("info").value?.default_run);
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

const STAGES = [["initial weights", "initialization_seconds"], ["shards", "sharding_seconds"], ["learners", "training_seconds"], ["soup", "merging_seconds"]];

export function runView() {
  const run = runById(state.route.parts[1]);
  if (!run) return noRun();
  return html`${runHead(run)} ${messages(run)} ${soup(run)} ${learners(run)} ${mixtures(run)} ${costs(run)} ${settings(run)}`;
}

export const noRun = () => html`
  <h1 tabindex="-1">Run</h1>
  ${state.hasService ? empty("No such run on this page. For older runs, in a terminal:", `lipt run show ${state.route.parts[1]}`) : waiting()}`;

/** The run's name with where one can go from it; `part` names a view below the run. */
export function runHead(run, part) {
  const mayCancel = mayAct("admin") && !["ready", "failed", "cancelled", "unreadable"].includes(standingOf(run).word);
  return head(html`${part ?? run.name} ${badge(standingOf(run))}`, html`
    ${mayCancel && button("Cancel the run", () => confirmCancel(run), { class: "danger" })}
    ${!part && html`<a class="button" href=${to(["diagnosis"], { run: run.run_id })}>Diagnosis</a>`}
    ${!part && html`<a class="button main" href=${to(["runs", run.run_id, "subsets"])}>Subsets</a>`}`,
  html`<a href=${to(["runs"])}>Runs</a>${part && html` / <a href=${to(["runs", run.run_id])}>${run.name}</a>`}`);
}

function confirmCancel(run) {
  const key = `cancel ${run.run_id}`;
  const cancel = async () => {
    if (await perform(key, () => call("RunService/CancelRun", { run_id: run.run_id }))) closeDialog();
  };
  openDialog(`Cancel ${run.name}?`, () => html`
    <p>Its workers stop training, and the run cannot be resumed.</p>
    ${problem(task(key).error)}
    <div class="actions">
      ${button("Keep it", closeDialog, { autofocus: true })}
      ${button("Cancel the run", cancel, { class: "danger", disabled: task(key).busy })}
    </div>`);
}

function messages(run) {
  const { word } = standingOf(run);
  const kind = ["failed", "held", "unreadable"].includes(word) ? "problem" : "note";
  const shown = [[run.message, kind], [run.waiting_reason, "note"], [run.lowered_defaults, "note"], [run.initialization_note, "note"]];
  return html`${shown.filter(([text]) => text && text !== word).map(([text, tone]) => html`<p class=${tone}>${text}</p>`)}
    ${["initializing", "sharding", "merging"].includes(word) && progressLine(run.progress)}
    ${run.waiting_reason && state.numWorkers === 0 && commands("lipt-worker --coordinator HOST:PORT")}`;
}

function soup(run) {
  const found = run.soup;
  const last = tried(run).at(-1);
  if (!found && !last) return null;
  return section("soup", "The soup", html`
    ${tiles(
      found && tile("initial weights", percent(found.initial_accuracy), "theta*: what every learner starts from"),
      found && tile("mean learner", percent(found.mean_learner_accuracy)),
      found && tile("best learner", percent(found.best_learner_accuracy)),
      tile(found ? "soup" : "soup so far", percent(found?.soup_accuracy ?? last.ingredient.soup_accuracy), "theta_p: what subsets are chosen on"),
      tile("kept", keptOf(run)),
      found && tile("validation examples", `${count(found.num_validation_examples)} examples`))}
    ${soupChart(run)} ${soupLegend()}`);
}

const learnerColumns = (run) => [["learner"], ...(run.sources.length > 0 ? [["source"]] : []), ["phase"], ["worker"], ["step"], ["loss", "numeric"], ["accuracy", "numeric"],
  ["density", "numeric"], ["alpha", "numeric"], ["soup after", "numeric"], ["time", "numeric"]];

function learners(run) {
  const { done, leased, queued, all } = tally(run);
  if (all === 0) return null;
  return section("learners", "Learners", html`${lossChart(run)} ${table("Learners", learnerColumns(run), run.learners.map((learner) => learnerRow(learner, run.sources)))}`,
    `${done} done, ${leased} in training, ${queued} queued`);
}

function learnerRow(learner, sources) {
  const fate = fateOf(learner);
  const isQueued = learner.state === "LEARNER_STATE_QUEUED";
  const seconds = learner.state === "LEARNER_STATE_LEASED" && learner.leased_at
    ? (now() - Date.parse(learner.leased_at)) / 1000 : number(learner.train_seconds) || NaN;
  return {
    key: learner.index,
    class: fate.tone === "faint" && !isQueued ? "faint" : undefined,
    cells: [
      String(learner.index),
      ...(sources.length > 0 ? [html`<span class="name">${sources[learner.index % sources.length]}</span>`] : []),
      html`<span title=${learner.message || undefined}>${badge(fate)}${number(learner.attempts) > 1 && html`<span class="dim"> try ${learner.attempts}</span>`}</span>`,
      html`<span class="name" title=${learner.device}>${learner.worker_name || MISSING}</span>`,
      isQueued ? MISSING : html`<span class="inline-progress">${bar(learner.step, learner.num_steps, `steps of learner ${learner.index}`)} ${count(learner.step)} of ${count(learner.num_steps)}</span>`,
      isQueued || number(learner.loss) === 0 ? MISSING : fixed(learner.loss, 3),
      percent(learner.ingredient?.accuracy), fixed(learner.density, 3), alphaOf(learner),
      percent(learner.ingredient?.soup_accuracy), duration(seconds),
    ],
  };
}

function costs(run) {
  const spent = run.costs;
  return spent && section("costs", "Costs", tiles(
    tile("elapsed", duration(secondsOf(run))),
    STAGES.map(([label, cost]) => number(spent[cost]) > 0 && tile(label, duration(spent[cost]))),
    tile("trained on workers", duration(trainSeconds(run)), "the sum of all learners' training"),
    tile("to workers", bytes(spent.bytes_to_workers)), tile("from workers", bytes(spent.bytes_from_workers))));
}

function settings(run) {
  const facts = [["id", run.run_id], ["started", moment(run.created_at)], ["ended", run.ended_at ? moment(run.ended_at) : MISSING],
    ["data fingerprint", run.fingerprint], ...settingsOf(run.config)];
  return html`<details class="settings"><summary>Settings</summary>
    <dl class="facts">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
  </details>`;
}

export function workersView() {
  const columns = [["worker", "long"], ["state"], ["assignment", "long"], ["device"], ["last call"], ["registered"], ["certificate expires"], ["versions"]];
  return html`
    ${head(html`Workers <span class="dim">${state.hasService && count(state.numWorkers)}</span>`)}
    ${state.workers.length > 0 ? table("Workers", columns, state.workers.map(workerRow))
      : state.hasService ? empty("No worker is connected. Start one on every training machine:", "lipt-worker --coordinator HOST:PORT") : waiting()}
    ${state.numWorkers > state.workers.length && html`<p class="dim">${count(state.workers.length)} of ${count(state.numWorkers)} are shown, busy ones first.</p>`}`;
}

function workerRow(worker) {
  const silence = number(worker.seconds_since_last_call) + age() / 1000;
  const health = silence > 30 ? "silent" : worker.assignment ? "busy" : worker.idle_reason ? "blocked" : "idle";
  const { lipt, torch, ...others } = worker.versions ?? {};
  const all = Object.entries(others).map(([name, version]) => `${name} ${version}`).join(", ");
  return {
    key: worker.worker_id,
    cells: [
      html`<span class="name" title=${worker.worker_id}>${worker.name}</span>`,
      badge(standing(health)),
      html`<span class="name">${worker.assignment || html`<span class="dim">${worker.idle_reason || "nothing"}</span>`}</span>`,
      worker.device, relative(silence), moment(worker.joined_at), worker.certificate_expires_at ? moment(worker.certificate_expires_at) : "none",
      html`<span class="dim" title=${all || undefined}>${[lipt && `lipt ${lipt}`, torch && `torch ${torch}`].filter(Boolean).join(", ") || MISSING}</span>`,
    ],
  };
}

const JOBS = { InitializeWeights: "initial weights", CutShards: "shards", MakeSoup: "soup", SelectSubset: "subset", FitMixture: "mixture", DiagnoseData: "diagnosis", MapExamples: "map", ShowExamples: "pictures" };

export function queueView() {
  const columns = [["job"], ["state"], ["run", "long"], ["progress"], ["time", "numeric"], ["callers", "numeric"], ["queue"]];
  const rows = state.computations.map((item, place) => {
    const { done, total, activity, ahead } = item.progress ?? {};
    return {
      key: `${item.queue} ${item.job} ${item.run_id} ${place}`,
      cells: [
        JOBS[item.job] ?? item.job,
        badge(standing(item.computing ? "running" : "queued")),
        item.run_id ? html`<a class="name" href=${to(["runs", item.run_id])}>${runById(item.run_id)?.name ?? item.run_id}</a>` : "the data",
        item.computing ? html`<span class="inline-progress">${bar(done, total, `progress of ${item.job}`)} ${activity}</span>` : `${count(ahead ?? 0)} ahead`,
        duration(number(item.seconds) + age() / 1000),
        number(item.num_callers) > 0 ? count(item.num_callers) : "the run",
        item.queue,
      ],
    };
  });
  return html`
    ${head("Queue")}
    ${rows.length > 0 ? table("Running jobs, then queued ones", columns, rows) : empty("The queue is empty.")}`;
}
