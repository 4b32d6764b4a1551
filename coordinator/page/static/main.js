// The page: signing in, the frame around every view, and drawing it whenever the state has changed.

import { button, commands, field, html, problem, relative, submit, word } from "./parts.js";
import { call, follow, post, unfollow } from "./service.js";
import { changed, closeDialog, perform, readRoute, runById, say, state, task, to } from "./store.js";
import { render, useLayoutEffect, useRef } from "./vendor/htm-preact.js";
import { diagnosisView, subsetsView } from "./view_data.js";
import { compareView, queueView, runsView, runView, workersView } from "./view_service.js";

const place = (id) => document.getElementById(id);
const VIEWS = { runs: ["Runs", runsView], workers: ["Workers", workersView], queue: ["Queue", queueView], diagnosis: ["Diagnosis", diagnosisView] };

/** The title and the view of the route. */
function viewHere() {
  const [first, id, part] = state.route.parts;
  if (first === "compare") return ["Two runs", compareView];
  if (first !== "runs" || !id) return Object.hasOwn(VIEWS, first) ? VIEWS[first] : VIEWS.runs;
  const name = runById(id)?.name ?? "Run";
  return part === "subsets" ? [`Subsets of ${name}`, subsetsView] : [name, runView];
}

function draw() {
  const [title, view] = viewHere();
  const [isForm, isAway] = [state.signIn.needed, state.connection.kind === "away"];
  const { paddingLeft, paddingRight } = getComputedStyle(place("content"));
  const room = place("content").clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight);
  state.width = Math.floor(room) || state.width;
  render(topBar(), place("top"));
  render(isAway && state.me && banner(), place("banner"));
  render(isForm ? signInForm() : state.me && html`<${View} key=${state.route.parts.join("/")} view=${view} />`, place("content"));
  render(state.toasts.map(({ text, tone }) => html`<p class="toast ${tone}">${text}</p>`), place("toasts"));
  render(state.dialog && html`<${Dialog} key=${state.dialog.title} ...${state.dialog} />`, place("dialogs"));
  document.title = isForm ? "Sign in · lipt" : `${isAway ? "Away · " : ""}${title} · lipt`;
}

const View = ({ view }) => view();

/** The browser's own dialog, which keeps the focus inside and gives it back at the end. */
function Dialog({ title, content }) {
  const element = useRef();
  useLayoutEffect(() => element.current.showModal(), []);
  const closed = () => {
    state.dialog = null;
    changed();
  };
  return html`<dialog ref=${element} aria-labelledby="dialog-title" onClose=${closed}>
    <h2 id="dialog-title">${title}</h2>${content()}
  </dialog>`;
}

function topBar() {
  const [here] = state.route.parts;
  const numbers = { workers: state.numWorkers, queue: state.computations.length };
  return html`
    <a class="brand" href=${to(["runs"])} aria-label="lipt, to the runs">lipt</a>
    ${state.me && html`<nav aria-label="Views">${Object.entries(VIEWS).map(([path, [name]]) => html`
      <a key=${path} href=${to([path])} aria-current=${here === path ? "page" : undefined}>${name}${numbers[path] > 0 && html`<span class="tally">${numbers[path]}</span>`}</a>`)}</nav>`}
    <div class="who">
      ${state.me && html`
        <span class="connection ${state.connection.kind}"><span class="dot" aria-hidden="true" />${state.connection.kind}</span>
        <span class="me" title="signed in as ${state.me.name}">${state.me.name}</span>
        <span class="role">${state.me.roles.join(", ")}</span>`}
      ${state.me && button("Sign out", signOut, { class: "plain" })}
    </div>`;
}

function banner() {
  const { since, lastHeard } = state.connection;
  // The part that ticks is not read out.
  return html`<p class="banner"><strong>The coordinator has been unreachable since ${new Date(since).toLocaleTimeString()}.</strong>
    ${" "}${lastHeard > 0 && "This page shows its last state. "}It reconnects automatically.
    <span class="dim" aria-hidden="true"> ${relative((Date.now() - since) / 1000)}</span></p>`;
}

function signInForm() {
  const { busy, error } = task("sign in");
  const signIn = async (event) => {
    event.preventDefault();
    const token = event.target.elements.token.value.trim();
    await perform("sign in", () => post("/api/sign-in", { token }).then(enter));
  };
  return html`<section class="sign-in">
    <h1 tabindex="-1">Sign in</h1>
    ${problem(state.signIn.message)}
    <p>On a machine with access, this prints a link that signs you in:</p>
    ${commands("lipt dashboard")}
    <p>Or paste a token. An admin makes one with <code>lipt token create --role trainer</code>.</p>
    <form onSubmit=${signIn}>
      ${field("token", "Token", (props) => html`<input ...${props} name="token" type="password" autocomplete="off" spellcheck=${false} required />`)}
      ${problem(error)}
      <div class="actions">${submit("Sign in", busy, "Signing in…")}</div>
    </form>
  </section>`;
}

/** Show the page to the signed-in caller. */
async function enter() {
  const { name, roles } = await call("AccessService/WhoAmI");
  state.me = { name, roles: roles.map((role) => word(role, "ROLE_")) };
  state.signIn = { needed: false, message: "" };
  if (state.connection.kind !== "away") state.connection = { ...state.connection, kind: "connecting" };
  void follow();
  void loadInfo();
  changed();
}

const loadInfo = () => perform("info", () => call("InfoService/GetInfo"));

function needSignIn() {
  if (state.signIn.needed) return;
  unfollow();
  closeDialog();
  const refused = new URLSearchParams(location.search).has("refused");
  const usedLink = "That link was used or has expired: a link is valid once, within a minute. Make a new one.";
  state.signIn = { needed: true, message: state.me ? "Your session has ended. Sign in again to continue here." : refused ? usedLink : "" };
  state.me = null;
  changed();
}

async function signOut() {
  await post("/api/sign-out", {}).catch(() => null);
  unfollow();
  // Nothing of what was seen stays behind.
  location.replace("/");
}

addEventListener("draw", draw);
addEventListener("session-ended", needSignIn);
addEventListener("coordinator-back", () => {
  say("The coordinator is back.", "good");
  void loadInfo();
});
addEventListener("hashchange", () => {
  const before = state.route.parts.join("/");
  state.route = readRoute();
  draw();
  // The query alone shows no other view.
  if (state.route.parts.join("/") === before) return;
  closeDialog();
  scrollTo(0, 0);
  // What is read next is the new view's heading.
  place("content").querySelector("h1")?.focus();
});
new ResizeObserver(changed).observe(place("content"));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  place("content").focus();
});
setInterval(changed, 1_000);

try {
  await enter();
} catch (error) {
  if (error.status === 401) needSignIn();
  else say(error.message, "bad");
}
