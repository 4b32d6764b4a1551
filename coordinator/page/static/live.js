// @ts-check
// The stream of how the service stands: kept up, opened again when it breaks, and read into the store.

import { get } from "./api.js";
import { changed, state } from "./store.js";

// The coordinator gives a sign of life every 5 seconds.
const SILENCE_MS = 20_000;
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 5_000;

/** @type {EventSource | null} */
let source = null;
let pause = FIRST_PAUSE_MS;
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;
/** Told of what people should hear of: runs before and after. @type {(before: any[], after: any[]) => void} */
let onRuns = () => {};
/** @type {(isBack: boolean) => void} */
let onConnection = () => {};

/** @param {{runs: typeof onRuns, connection: typeof onConnection}} told */
export function listenTo(told) {
  onRuns = told.runs;
  onConnection = told.connection;
}

/** Follow the service until the session ends. */
export function follow() {
  stop();
  source = new EventSource("/api/live");
  source.addEventListener("service", (event) => heard(JSON.parse(event.data)));
  source.addEventListener("error", lost);
  watchdog();
}

export function stop() {
  source?.close();
  source = null;
  clearTimeout(timer);
}

function watchdog() {
  clearTimeout(timer);
  timer = setTimeout(lost, SILENCE_MS);
}

function lost() {
  stop();
  if (state.connection.kind !== "away") {
    const wasLive = state.connection.kind === "live";
    state.connection = { kind: "away", since: Date.now(), lastHeard: state.connection.lastHeard };
    if (wasLive) onConnection(false);
  }
  changed();
  timer = setTimeout(tryAgain, pause);
  pause = Math.min(pause * 1.6, LONGEST_PAUSE_MS);
}

/** An EventSource does not say why it ended: a plain request does. */
async function tryAgain() {
  try {
    state.me = await get("/api/me");
    follow();
  } catch (error) {
    // Without a session the sign-in form goes on from here.
    if (/** @type {any} */ (error).status !== 401) lost();
  }
}

/** @param {any} answer WatchServiceResponse */
function heard(answer) {
  watchdog();
  pause = FIRST_PAUSE_MS;
  const wasAway = state.connection.kind === "away";
  const firstOfStream = state.connection.kind !== "live";
  state.connection = { kind: "live", since: firstOfStream ? Date.now() : state.connection.since, lastHeard: Date.now() };
  state.clockSkew = Date.parse(answer.now) - Date.now();
  const before = state.runs;
  // The first answer of a stream has all runs, and what is not among them is not shown any more.
  state.runs = merged(firstOfStream ? [] : state.runs, answer.runs);
  state.workers = answer.workers;
  state.numWorkers = answer.num_workers;
  state.computations = answer.computations;
  state.numRuns = answer.num_runs;
  if (state.hasService) onRuns(before, state.runs);
  state.hasService = true;
  if (wasAway) onConnection(true);
  changed();
}

/** @param {any[]} old @param {any[]} news */
export function merged(old, news) {
  const byId = new Map(old.map((run) => [run.run_id, run]));
  for (const run of news) byId.set(run.run_id, run);
  return [...byId.values()].sort((a, b) => Date.parse(b.created_at) - Date.parse(a.created_at));
}
