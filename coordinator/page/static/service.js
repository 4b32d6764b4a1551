// The coordinator: requests to it, and the live stream of its state.

import { standingOf } from "./parts.js";
import { changed, say, state } from "./store.js";

/** The error of a refused request; `status` is 0 where nobody answered. */
const refused = (status, message) => Object.assign(new Error(message), { status });

async function send(path, body, signal) {
  const request = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", cache: "no-store", signal, ...request });
  } catch {
    throw refused(0, "The coordinator does not answer. Try again when it is back.");
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => null);
  if (response.status === 401 && path !== "/api/sign-in") dispatchEvent(new Event("session-ended"));
  throw refused(response.status, answer?.error?.message ?? `The coordinator answered with status ${response.status}.`);
}

export const get = async (path) => (await send(path)).json();
export const post = async (path, body) => (await send(path, body)).json();

/** A call of the contract, as "Service/Method". */
export const call = (method, body = {}) => post(`/api/${method}`, body);

/** Addresses of a run's requests. */
export const ofRun = (run, ...rest) => ["/api/runs", run.run_id, ...rest].join("/");

/** A request that takes a while: lines with progress, the last one has the result. */
export async function compute(path, body, onProgress) {
  let last = null;
  try {
    for await (const answer of lines(path, body)) {
      if (answer.progress) onProgress(answer.progress);
      else last = answer;
    }
  } catch (error) {
    if (error.status !== undefined) throw error;
    last = null;
  }
  if (last === null) throw refused(0, "The connection ended early. Try again: finished work is kept.");
  return last;
}

/** The answers of a stream: one JSON object a line. */
async function* lines(path, body, signal) {
  const response = await send(path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) {
      const answer = JSON.parse(part);
      if (answer.error) throw refused(response.status, answer.error.message);
      yield answer;
    }
  }
}

const SILENCE_MS = 20_000; // the coordinator gives a sign of life every 5 seconds
const PAUSE_MS = 1_000;
const NUM_RUNS = 50;

let stopping = new AbortController();

/** Follow the service until the session ends; ask again wherever the stream is cut. */
export async function follow() {
  unfollow();
  const { signal } = stopping;
  while (!signal.aborted) {
    const cut = new AbortController();
    signal.addEventListener("abort", () => cut.abort());
    let timer = setTimeout(() => cut.abort(), SILENCE_MS);
    try {
      for await (const service of lines("/api/InfoService/WatchService", { num_runs: NUM_RUNS }, cut.signal)) {
        clearTimeout(timer);
        timer = setTimeout(() => cut.abort(), SILENCE_MS);
        heard(service);
      }
    } catch (error) {
      // Without a session the sign-in form goes on from here.
      if (error.status === 401) break;
    }
    clearTimeout(timer);
    if (signal.aborted) break;
    const { kind, lastHeard } = state.connection;
    if (kind !== "away") state.connection = { kind: "away", since: Date.now(), lastHeard };
    changed();
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
}

export function unfollow() {
  stopping.abort();
  stopping = new AbortController();
}

function heard(service) {
  const { kind } = state.connection;
  state.connection = { kind: "live", lastHeard: Date.now() };
  state.clockSkew = Date.parse(service.now) - Date.now();
  // The first answer of a stream has all runs; the others have those that changed.
  const before = new Map(state.runs.map((run) => [run.run_id, run]));
  const runs = new Map([...(kind === "live" ? before : []), ...service.runs.map((run) => [run.run_id, run])]);
  if (state.hasService) for (const run of service.runs) announce(before.get(run.run_id), run);
  state.runs = [...runs.values()].sort((a, b) => Date.parse(b.created_at) - Date.parse(a.created_at));
  const { workers, computations, num_runs: numRuns, num_workers: numWorkers } = service;
  Object.assign(state, { workers, computations, numRuns, numWorkers, hasService: true });
  if (kind === "away") dispatchEvent(new Event("coordinator-back"));
  changed();
}

/** Toasts say which runs begin or end; steps and phases are seen in the views. */
function announce(before, run) {
  const { word, tone } = standingOf(run);
  if (!before) say(`Run ${run.name} has started.`);
  else if (before.state !== run.state && ["ready", "failed", "cancelled", "held", "unreadable"].includes(word)) {
    say(`Run ${run.name} is ${word}.`, tone);
  }
}
