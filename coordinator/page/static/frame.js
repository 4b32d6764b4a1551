// @ts-check
// What is around every view: the name, the ways to go, how the connection stands, who one is.

import { h } from "./dom.js";
import { relative } from "./format.js";
import { button } from "./parts.js";
import { to } from "./router.js";
import { changed, state } from "./store.js";

const VIEWS = [["runs", "Runs"], ["workers", "Workers"], ["queue", "Queue"], ["diagnosis", "Diagnosis"]];

/** @param {() => void} signOut */
export function topBar(signOut) {
  const here = state.route.parts[0] === "compare" ? "runs" : state.route.parts[0];
  return [
    h("a", { class: "brand", href: to(["runs"]), "aria-label": "lipt, to the runs" }, "lipt"),
    state.me && h("nav", { "aria-label": "Views" }, VIEWS.map(([path, name]) =>
      h("a", { key: path, href: to([path]), "aria-current": here === path ? "page" : undefined }, name, tallyOf(path)))),
    h("div", { class: "who", key: "who" },
      state.me && connection(),
      state.me && h("span", { class: "me", title: `signed in as ${state.me.name}` }, state.me.name, h("span", { class: "role" }, state.me.roles.join(", "))),
      themeButton(),
      state.me && button("Sign out", signOut, { class: "plain", key: "sign-out" })),
  ];
}

function tallyOf(path) {
  const numbers = { workers: state.numWorkers, queue: state.computations.length };
  const found = numbers[/** @type {keyof typeof numbers} */ (path)];
  return found ? h("span", { class: "tally" }, String(found)) : null;
}

function connection() {
  const { kind } = state.connection;
  const text = { live: "live", away: "away", connecting: "connecting" }[kind];
  return h("span", { class: `connection ${kind}`, key: "connection" }, h("span", { class: "dot", "aria-hidden": "true" }), text);
}

function themeButton() {
  const theme = /** @type {any} */ (globalThis).liptTheme;
  const other = theme.shown() === "dark" ? "light" : "dark";
  return button(other === "dark" ? "☾" : "☀", () => {
    theme.toggle();
    changed();
  }, { class: "plain theme", key: "theme", "aria-label": `Show in ${other}`, title: `Show in ${other}` });
}

/** Says that the coordinator is away, and since when; nothing while it is there. */
export function banner() {
  if (state.connection.kind !== "away" || !state.me) return [];
  const { since, lastHeard } = state.connection;
  const at = new Date(since).toLocaleTimeString();
  return [
    h("p", { class: "banner" }, h("strong", null, `The coordinator has been away since ${at}.`), " ",
      lastHeard ? "What you see is how it stood then. " : "",
      "This page asks again by itself and goes on when it is back.",
      // What ticks is not read out.
      h("span", { class: "dim", "aria-hidden": "true" }, ` ${relative((Date.now() - since) / 1000)}`)),
  ];
}
