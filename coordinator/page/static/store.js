// @ts-check
// What the page knows, in one place; whoever changes it says so, and the page is drawn anew.

export const state = {
  /** @type {{name: string, roles: string[]} | null} nobody until /api/me has said who */
  me: null,
  /** Whether the sign-in form is to be shown, and what is said above it. */
  signIn: { needed: false, message: "" },
  info: /** @type {any} */ (null),
  strategies: /** @type {any[] | null} */ (null),
  /** Runs by id, in the order of their creation, newest first. @type {any[]} */
  runs: [],
  numRuns: 0,
  workers: /** @type {any[]} */ ([]),
  numWorkers: 0,
  computations: /** @type {any[]} */ ([]),
  /** Whether the first full answer was here. */
  hasService: false,
  connection: /** @type {{kind: "connecting" | "live" | "away", since: number, lastHeard: number}} */ ({
    kind: "connecting", since: Date.now(), lastHeard: 0,
  }),
  /** The coordinator's clock less this one's, in milliseconds. */
  clockSkew: 0,
  route: /** @type {{parts: string[], query: URLSearchParams}} */ ({ parts: ["runs"], query: new URLSearchParams() }),
  /** Of the content, in CSS pixels: charts are drawn in real ones. */
  width: 960,
  /** What was asked for and is there, is awaited, or was refused, by what it is. @type {Map<string, Task>} */
  tasks: new Map(),
};

/**
 * @typedef {object} Task
 * @property {any} value what came, null before
 * @property {any} progress
 * @property {string} error
 * @property {boolean} busy
 */

/** @type {() => void} */
let draw = () => {};
let scheduled = false;

/** @param {() => void} drawer */
export function onChange(drawer) {
  draw = drawer;
}

/** Have the page drawn soon. Changes that follow each other closely are drawn once. */
export function changed() {
  if (scheduled) return;
  scheduled = true;
  setTimeout(() => {
    scheduled = false;
    draw();
  }, 40);
}

/** @param {string} key @returns {Task} */
export function task(key) {
  return state.tasks.get(key) ?? { value: null, progress: null, error: "", busy: false };
}

/** @param {string} key @param {Partial<Task>} news */
export function setTask(key, news) {
  state.tasks.set(key, { ...task(key), ...news });
  changed();
}

/**
 * Do something once at a time, and keep how it went.
 *
 * @param {string} key
 * @param {(onProgress: (progress: any) => void) => Promise<any>} work
 * @returns {Promise<any>} what came, or null where it was refused: the task says why
 */
export async function perform(key, work) {
  if (task(key).busy) return null;
  setTask(key, { busy: true, error: "", progress: null });
  try {
    const value = await work((progress) => setTask(key, { progress }));
    setTask(key, { value, busy: false, progress: null });
    return value;
  } catch (error) {
    setTask(key, { busy: false, progress: null, error: error instanceof Error ? error.message : String(error) });
    return null;
  }
}

/** @param {string} runId */
export function runById(runId) {
  return state.runs.find((run) => run.run_id === runId);
}

/** @param {string} role */
export function mayAct(role) {
  return state.me !== null && (state.me.roles.includes("admin") || state.me.roles.includes(role));
}

/** How old what is shown is, in milliseconds; while the coordinator is away time stands still. */
export function age() {
  const { kind, lastHeard } = state.connection;
  return kind === "live" ? Date.now() - lastHeard : 0;
}

/** The coordinator's time, in milliseconds. */
export function now() {
  const { kind, lastHeard } = state.connection;
  return (kind === "away" && lastHeard > 0 ? lastHeard : Date.now()) + state.clockSkew;
}
