// The page's state in one place, and its address. Code that changes the state calls `changed`.

export const state = {
  me: null, // {name, roles}; null until the caller is known
  signIn: { needed: false, message: "" },
  runs: [], // newest first
  numRuns: 0,
  workers: [],
  numWorkers: 0,
  computations: [],
  hasService: false, // whether the first event of the live stream has arrived
  connection: { kind: "connecting", lastHeard: 0 }, // or "live", or "away" with the time since when
  clockSkew: 0, // the coordinator's clock less this one's, in milliseconds
  route: readRoute(),
  width: 960, // of the content in CSS pixels: charts are drawn in real ones
  tasks: new Map(), // requests by name: {value, progress, error, busy}
  dialog: null, // {title, content}
  toasts: [],
};

let scheduled = false;

/** Draw the page soon; changes that follow each other closely are drawn once. */
export function changed() {
  if (scheduled) return;
  scheduled = true;
  setTimeout(() => {
    scheduled = false;
    dispatchEvent(new Event("draw"));
  }, 40);
}

export function task(key) {
  return state.tasks.get(key) ?? { value: null, progress: null, error: "", busy: false };
}

function setTask(key, news) {
  state.tasks.set(key, { ...task(key), ...news });
  changed();
}

/** Run `work`, once at a time, and keep its outcome as a task; null where it failed. */
export async function perform(key, work) {
  if (task(key).busy) return null;
  setTask(key, { busy: true, error: "", progress: null });
  try {
    const value = await work((progress) => setTask(key, { progress }));
    setTask(key, { value, busy: false, progress: null });
    return value;
  } catch (error) {
    setTask(key, { busy: false, progress: null, error: error.message });
    return null;
  }
}

/** A task that is started when it is first looked at. */
export function fetched(key, work) {
  const found = task(key);
  if (found.value === null && !found.busy && !found.error) void perform(key, work);
  return task(key);
}

/** Show a message for some seconds; screen readers read it out. */
export function say(text, tone = "quiet") {
  const toast = { text, tone };
  state.toasts = [...state.toasts, toast].slice(-4);
  setTimeout(() => {
    state.toasts = state.toasts.filter((other) => other !== toast);
    changed();
  }, 7_000);
  changed();
}

export function openDialog(title, content) {
  state.dialog = { title, content };
  changed();
}

/** The browser's own closing gives the focus back; the dialog's event then clears the state. */
export function closeDialog() {
  document.querySelector("dialog[open]")?.close();
}

export const runById = (id) => state.runs.find((run) => run.run_id === id);

export const mayAct = (role) => state.me?.roles.some((own) => own === "admin" || own === role) ?? false;

/** The age of what is shown, in milliseconds; time stands still while the coordinator is away. */
export function age() {
  const { kind, lastHeard } = state.connection;
  return kind === "live" ? Date.now() - lastHeard : 0;
}

/** The coordinator's time, in milliseconds. */
export function now() {
  const { kind, lastHeard } = state.connection;
  return (kind === "away" && lastHeard > 0 ? lastHeard : Date.now()) + state.clockSkew;
}

/** The route is in the address after "#": views can be linked to, and "back" goes back. */
export function readRoute() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: (path || "runs").split("/"), query: new URLSearchParams(query) };
}

/** An href of a view. */
export function to(parts, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value);
  const tail = given.length > 0 ? `?${new URLSearchParams(given)}` : "";
  return `#/${parts.join("/")}${tail}`;
}
