// The coordinator: requests to it, and the live stream of its state.

import { standingOf } from "./format.js";
import { changed, say, state } from "./store.js";

/** A refused request; `status` is 0 where nobody answered. */
class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let sessionEnded = () => {};
export function onSessionEnded(told) {
  sessionEnded = told;
}

async function send(path, body) {
  const request = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...request });
  } catch {
    throw new ApiError(0, "The coordinator does not answer. Once it is back, ask again.");
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => null);
  if (response.status === 401 && path !== "/api/sign-in") sessionEnded();
  throw new ApiError(response.status, answer?.error?.message ?? `The coordinator answered with status ${response.status}.`);
}

export const get = async (path) => (await send(path)).json();
export const post = async (path, body) => (await send(path, body)).json();

/** Addresses of a run's requests. */
export const ofRun = (run, ...rest) => ["/api/runs", ...[run.run_id, ...rest].map(encodeURIComponent)].join("/");

/** A request that takes a while: one JSON object a line, the last one is the result. */
export async function compute(path, body, onProgress) {
  const response = await send(path, body);
  let last = null;
  try {
    for await (const line of lines(response)) {
      const answer = JSON.parse(line);
      if (answer.error) throw new ApiError(response.status, answer.error.message);
      if (answer.progress) onProgress(answer.progress);
      else last = answer;
    }
  } catch (error) {
    if (error instanceof ApiError) throw error;
    last = null;
  }
  if (last === null) {
    throw new ApiError(0, "The coordinator went away before it was done. Ask again: what it had finished is kept.");
  }
  return last;
}

async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    yield* parts;
  }
  if (rest) yield rest;
}

const SILENCE_MS = 20_000; // the coordinator gives a sign of life every 5 seconds
const PAUSE_MS = 1_000;

let source = null;
let timer;
let onBack = () => {};

export function onCoordinatorBack(told) {
  onBack = told;
}

/** Follow the service until the session ends. */
export function follow() {
  unfollow();
  source = new EventSource("/api/live");
  source.addEventListener("service", (event) => heard(JSON.parse(event.data)));
  source.addEventListener("error", lost);
  timer = setTimeout(lost, SILENCE_MS);
}

export function unfollow() {
  source?.close();
  clearTimeout(timer);
}

function lost() {
  unfollow();
  const { kind, lastHeard } = state.connection;
  if (kind !== "away") state.connection = { kind: "away", since: Date.now(), lastHeard };
  changed();
  timer = setTimeout(tryAgain, PAUSE_MS);
}

/** An EventSource does not say why it ended: a plain request does. */
async function tryAgain() {
  try {
    state.me = await get("/api/me");
    follow();
  } catch (error) {
    // Without a session the sign-in form goes on from here.
    if (error.status !== 401) lost();
  }
}

function heard(service) {
  clearTimeout(timer);
  timer = setTimeout(lost, SILENCE_MS);
  const { kind, since } = state.connection;
  state.connection = { kind: "live", since: kind === "live" ? since : Date.now(), lastHeard: Date.now() };
  state.clockSkew = Date.parse(service.now) - Date.now();
  // The first event of a stream has all runs; the others have those that changed.
  const before = new Map(state.runs.map((run) => [run.run_id, run]));
  const runs = new Map([...(kind === "live" ? before : []), ...service.runs.map((run) => [run.run_id, run])]);
  if (state.hasService) for (const run of service.runs) tellOfRun(before.get(run.run_id), run);
  state.runs = [...runs.values()].sort((a, b) => Date.parse(b.created_at) - Date.parse(a.created_at));
  state.numRuns = service.num_runs;
  state.workers = service.workers;
  state.numWorkers = service.num_workers;
  state.computations = service.computations;
  state.hasService = true;
  if (kind === "away") onBack();
  changed();
}

/** Toasts say which runs begin or end; steps and phases are seen in the views. */
function tellOfRun(before, run) {
  const { word, tone } = standingOf(run);
  if (!before) say(`Run ${run.name} has begun.`);
  else if (before.state !== run.state && ["ready", "failed", "cancelled", "held"].includes(word)) {
    say(`Run ${run.name} is ${word}.`, tone);
  }
}
