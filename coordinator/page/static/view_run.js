// One run: how far it is, its soup, its learners, its costs and settings.

import { soupChart, soupLegend } from "./charts.js";
import { alphaOf, bytes, count, duration, fateOf, fixed, hasEnded, keptOf, MISSING, number, percent, secondsOf, settingsOf, standingOf, tally, trainSeconds, tried } from "./format.js";
import { badge, bar, button, commands, empty, head, html, moment, problem, progressLine, section, table, tile, tiles, waiting } from "./parts.js";
import { call } from "./service.js";
import { closeDialog, mayAct, now, openDialog, perform, runById, state, task, to } from "./store.js";

const STAGES = [["initial weights", "initialization_seconds"], ["shards", "sharding_seconds"], ["learners", "training_seconds"], ["soup", "merging_seconds"]];

export function runView() {
  const run = runById(state.route.parts[1]);
  if (!run) return noRun();
  return html`${runHead(run)} ${messages(run)} ${soup(run)} ${learners(run)} ${costs(run)} ${settings(run)}`;
}

export const noRun = () => html`
  <h1 tabindex="-1">Run</h1>
  ${state.hasService ? empty("No such run on this page. For older runs, in a terminal:", `lipt run show ${state.route.parts[1]}`) : waiting()}`;

/** The run's name with where one can go from it; `part` names a view below the run. */
export function runHead(run, part) {
  const mayCancel = mayAct("admin") && !hasEnded(run);
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
  const kind = ["failed", "held"].includes(word) ? "problem" : "note";
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
      found && tile("validation examples", count(found.num_validation_examples)))}
    ${soupChart(run)} ${soupLegend()}`);
}

const COLUMNS = [["learner"], ["phase"], ["worker"], ["step"], ["loss", "numeric"], ["accuracy", "numeric"],
  ["density", "numeric"], ["alpha", "numeric"], ["soup after", "numeric"], ["time", "numeric"]];

function learners(run) {
  const { done, leased, queued, all } = tally(run);
  if (all === 0) return null;
  return section("learners", "Learners", table("Learners", COLUMNS, run.learners.map(learnerRow)),
    `${done} done, ${leased} in training, ${queued} queued`);
}

function learnerRow(learner) {
  const fate = fateOf(learner);
  const isQueued = learner.state === "LEARNER_STATE_QUEUED";
  const seconds = learner.state === "LEARNER_STATE_LEASED" && learner.leased_at
    ? (now() - Date.parse(learner.leased_at)) / 1000 : number(learner.train_seconds) || NaN;
  return {
    key: learner.index,
    class: fate.tone === "faint" && !isQueued ? "faint" : undefined,
    cells: [
      String(learner.index),
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
