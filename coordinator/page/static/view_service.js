// The service: workers with their health, and the computations with those that wait.

import { count, duration, number, relative, standing } from "./format.js";
import { badge, bar, empty, head, html, moment, table, waiting } from "./parts.js";
import { age, runById, state, to } from "./store.js";

const SILENT_SECONDS = 30;

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
  const health = silence > SILENT_SECONDS ? "silent" : worker.assignment ? "busy" : worker.idle_reason ? "blocked" : "idle";
  const { lipt, torch, ...others } = worker.versions ?? {};
  const all = Object.entries(others).map(([name, version]) => `${name} ${version}`).join(", ");
  return {
    key: worker.worker_id,
    cells: [
      html`<span class="name" title=${worker.worker_id}>${worker.name}</span>`,
      badge(standing(health)),
      html`<span class="name">${worker.assignment || html`<span class="dim">${worker.idle_reason || "nothing"}</span>`}</span>`,
      worker.device, relative(silence), moment(worker.joined_at), worker.certificate_expires_at ? moment(worker.certificate_expires_at) : "none",
      html`<span class="dim" title=${all || undefined}>${[lipt && `lipt ${lipt}`, torch && `torch ${torch}`].filter(Boolean).join(", ") || "–"}</span>`,
    ],
  };
}

const JOBS = { InitializeWeights: "initial weights", CutShards: "shards", MakeSoup: "soup", SelectSubset: "subset", DiagnoseData: "diagnosis", MapExamples: "map", ShowExamples: "pictures" };

export function queueView() {
  return html`
    ${head("Queue")}
    ${state.computations.length > 0 ? computations() : empty("The queue is empty.")}`;
}

function computations() {
  const columns = [["job"], ["state"], ["run", "long"], ["progress"], ["time", "numeric"], ["callers", "numeric"], ["queue"]];
  return table("Running jobs, then queued ones", columns, state.computations.map((item, place) => {
    const { done, total, activity, ahead } = item.progress ?? {};
    return {
      key: `${item.queue} ${item.job} ${item.run_id} ${place}`,
      cells: [
        JOBS[item.job] ?? item.job,
        badge(standing(item.computing ? "running" : "queued")),
        item.run_id ? runLink(item.run_id) : "the data",
        item.computing ? html`<span class="inline-progress">${bar(done, total, `progress of ${item.job}`)} ${activity}</span>` : `${count(ahead ?? 0)} ahead`,
        duration(number(item.seconds) + age() / 1000),
        number(item.num_callers) > 0 ? count(item.num_callers) : "the run",
        item.queue,
      ],
    };
  }));
}

const runLink = (id) => html`<a class="name" href=${to(["runs", id])}>${runById(id)?.name ?? id}</a>`;
