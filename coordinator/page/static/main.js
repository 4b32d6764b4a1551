// @ts-check
// The page: who is there, what they look at, and drawing it whenever something has changed.

import { get, onSignedOut, post } from "./api.js";
import { closeDialog, drawDialog } from "./dialogs.js";
import { patch } from "./dom.js";
import { banner, topBar } from "./frame.js";
import { askAgain } from "./gallery.js";
import * as live from "./live.js";
import * as router from "./router.js";
import { signInForm } from "./sign_in.js";
import { changed, onChange, state } from "./store.js";
import { say, tellOfRuns } from "./toasts.js";
import * as compare from "./view_compare.js";
import * as diagnosis from "./view_diagnosis.js";
import * as queue from "./view_queue.js";
import * as run from "./view_run.js";
import * as runs from "./view_runs.js";
import * as subsets from "./view_subsets.js";
import * as workers from "./view_workers.js";

const TICK_MS = 1_000;

const place = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** @returns {{view: () => any[], title: () => string}} */
function viewHere() {
  const [first, second, third] = state.route.parts;
  if (first === "runs" && second) return third === "subsets" ? subsets : run;
  return { workers, queue, diagnosis, compare }[first] ?? runs;
}

function draw() {
  const here = viewHere();
  const form = state.signIn.needed;
  state.width = place("content").clientWidth || state.width;
  patch(place("top"), topBar(signOut));
  patch(place("banner"), banner());
  patch(place("content"), form ? signInForm(signedIn) : state.me ? here.view() : []);
  drawDialog();
  document.body.classList.toggle("stale", state.connection.kind === "away" && !form);
  document.title = form ? "Sign in · lipt" : `${state.connection.kind === "away" ? "Away · " : ""}${here.title()} · lipt`;
}

/** Elsewhere: what is read next is the new view's heading. */
function moved() {
  closeDialog();
  draw();
  scrollTo(0, 0);
  /** @type {HTMLElement | null} */ (place("content").querySelector("h1"))?.focus();
}

/** @param {{name: string, roles: string[]}} me */
function signedIn(me) {
  state.me = me;
  state.signIn = { needed: false, message: "" };
  state.connection = { ...state.connection, kind: state.connection.kind === "away" ? "away" : "connecting" };
  live.follow();
  void loadInfo();
  changed();
}

function needSignIn() {
  if (state.signIn.needed) return;
  live.stop();
  closeDialog();
  state.signIn = { needed: true, message: state.me ? "Your session has ended. Sign in again to go on where you were." : refusedLink() };
  state.me = null;
  changed();
}

/** @returns {string} why one is back from a link that did not let one in */
function refusedLink() {
  return new URLSearchParams(location.search).has("refused") ? "That link was used before or is too old: a link is good for one minute and one time. Make a new one." : "";
}

async function signOut() {
  await post("/api/sign-out", {}).catch(() => null);
  live.stop();
  // Nothing of what was seen stays behind.
  location.replace("/");
}

async function loadInfo() {
  try {
    state.info = await get("/api/info");
    changed();
  } catch {
    // The stream says that the coordinator is away; when it is back this is asked again.
  }
}

onChange(draw);
onSignedOut(needSignIn);
addEventListener("lipt-change", changed);
new ResizeObserver(changed).observe(place("content"));
live.listenTo({
  runs: tellOfRuns,
  connection: (isBack) => {
    if (!isBack) return;
    say("The coordinator is back.", "good");
    askAgain();
    void loadInfo();
  },
});
router.follow(moved);
document.querySelector(".skip")?.addEventListener("click", (event) => {
  event.preventDefault();
  place("content").focus();
});
setInterval(changed, TICK_MS);

try {
  signedIn(await get("/api/me"));
} catch (error) {
  if (/** @type {any} */ (error).status === 401) needSignIn();
  else say(/** @type {Error} */ (error).message, "bad");
}
