// The service: workers with their health and certificates, and the queue of computations and learners.

import { count, duration, hasEnded, number, relative, standing, tally } from "./format.js";
import { badge, bar, empty, head, html, moment, section, table, waiting } from "./parts.js";
import { age, now, runById, state, to } from "./store.js";

const SILENT_SECONDS = 30;
const DAY_MS = 86_400_000;

export function workersView() {
  const columns = [["worker", "long"], ["health", "lead"], ["at work on", "long"], ["device"], ["heard"], ["joined"], ["certificate ends"], ["versions"]];
  return html`
    ${head(html`Workers <span class="dim">${state.hasService && count(state.numWorkers)}</span>`)}
    ${state.workers.length > 0 ? table("Workers", columns, state.workers.map(workerRow))
      : state.hasService ? empty("No workers are here. Start one on every machine that is to train:", "lipt-worker --coordinator HOST:PORT") : waiting()}
    ${state.numWorkers > state.workers.length && html`<p class="dim">${count(state.workers.length)} of ${count(state.numWorkers)} are shown, those at work first.</p>`}`;
}

function workerRow(worker) {
  const silence = number(worker.seconds_since_heard) + age() / 1000;
  const health = silence > SILENT_SECONDS ? "silent" : worker.assignment ? "at work" : worker.idle_reason ? "kept from work" : "waiting";
  const { lipt, torch, ...others } = worker.versions ?? {};
  const all = Object.entries(others).map(([name, version]) => `${name} ${version}`).join(", ");
  return {
    key: worker.worker_id,
    cells: [
      html`<span class="name" title=${worker.worker_id}>${worker.name}</span>`,
      badge(standing(health)),
      html`<span class="name">${worker.assignment || html`<span class="dim">${worker.idle_reason || "nothing"}</span>`}</span>`,
      worker.device, relative(silence), moment(worker.joined_at), certificate(worker.certificate_expires_at),
      html`<span class="dim" title=${all || undefined}>${[lipt && `lipt ${lipt}`, torch && `torch ${torch}`].filter(Boolean).join(", ") || "–"}</span>`,
    ],
  };
}

function certificate(stamp) {
  if (!stamp) return html`<span class="dim">none shown</span>`;
  const days = (Date.parse(stamp) - now()) / DAY_MS;
  if (days > 14) return moment(stamp);
  const word = days <= 0 ? "ended" : days < 2 ? "ends at once" : "ends soon";
  return html`<span>${badge({ word, sign: "!", tone: "bad" })} ${moment(stamp)}</span>`;
}

const JOBS = { InitializeWeights: "initial weights", CutShards: "shards", MakeSoup: "soup", SelectSubset: "subset", DiagnoseData: "diagnosis", MapExamples: "map", ShowExamples: "pictures" };

export function queueView() {
  const open = state.runs.filter((run) => !hasEnded(run) && tally(run).queued + tally(run).leased > 0);
  const columns = [["run", "long"], ["waiting", "numeric"], ["at work", "numeric"], ["in", "numeric"], ["waits for", "long"]];
  return html`
    ${head("Queue")}
    ${section("computations", "At the coordinator", state.computations.length > 0 ? computations() : empty("Nothing is computed, and nothing waits."))}
    ${section("waiting", "Learners for workers", open.length === 0 ? empty("No learner waits for a worker.") : table("Learners for workers", columns, open.map((run) => {
      const { queued, leased, done } = tally(run);
      return { key: run.run_id, cells: [runLink(run.run_id), count(queued), count(leased), count(done), run.waiting || (state.numWorkers === 0 ? "a worker" : "its turn")] };
    })))}`;
}

function computations() {
  const columns = [["what"], ["standing", "lead"], ["run", "long"], ["progress", "grow"], ["for", "numeric"], ["asked for by", "numeric"], ["lane"]];
  return table("What is computed, then what waits", columns, state.computations.map((item, place) => {
    const { done, total, activity, ahead } = item.progress ?? {};
    return {
      key: `${item.lane} ${item.job} ${item.run_id} ${place}`,
      cells: [
        JOBS[item.job] ?? item.job,
        badge(standing(item.computing ? "computing" : "waiting")),
        item.run_id ? runLink(item.run_id) : "the data",
        item.computing ? html`<span class="inline-progress">${bar(done, total, `progress of ${item.job}`)} ${activity}</span>` : `${count(ahead ?? 0)} before it`,
        duration(number(item.seconds) + age() / 1000),
        number(item.num_callers) > 0 ? count(item.num_callers) : "the run",
        item.lane,
      ],
    };
  }));
}

const runLink = (id) => html`<a class="name" href=${to(["runs", id])}>${runById(id)?.name ?? id}</a>`;
