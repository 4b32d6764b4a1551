// @ts-check
// What became of a learner, and what of a run: a word, a sign and a tone, so that colour is never the only sign.

import { fixed, word } from "./format.js";

/** @typedef {{word: string, sign: string, tone: "good" | "busy" | "bad" | "quiet" | "faint"}} Fate */

/** @param {any} learner @returns {Fate} */
export function fateOf(learner) {
  const ingredient = learner.ingredient;
  switch (learner.state) {
    case "LEARNER_STATE_LEASED": {
      const phase = word(learner.phase, "LEARNER_PHASE_");
      return { word: phase === "unspecified" || phase === "" ? "leased" : phase, sign: "▸", tone: "busy" };
    }
    case "LEARNER_STATE_DONE":
      if (!ingredient) return { word: "in", sign: "•", tone: "quiet" };
      return ingredient.kept
        ? { word: "kept", sign: "✓", tone: "good" }
        : { word: "discarded", sign: "×", tone: "faint" };
    case "LEARNER_STATE_FAILED":
      return { word: "failed", sign: "!", tone: "bad" };
    case "LEARNER_STATE_DROPPED":
      return { word: "dropped", sign: "×", tone: "faint" };
    default:
      return { word: "queued", sign: "·", tone: "faint" };
  }
}

/** @param {any} learner */
export function alphaOf(learner) {
  if (!learner.ingredient) return "–";
  return learner.ingredient.kept ? `α ${fixed(learner.ingredient.alpha, 2)}` : "discarded";
}

/** @param {any} run @returns {Fate} */
export function standingOf(run) {
  const state = word(run.state, "RUN_STATE_");
  switch (state) {
    case "ready":
      return { word: state, sign: "✓", tone: "good" };
    case "failed":
      return { word: state, sign: "!", tone: "bad" };
    case "cancelled":
      return { word: state, sign: "×", tone: "faint" };
    case "held":
      return { word: state, sign: "‖", tone: "bad" };
    case "pending":
      return { word: state, sign: "·", tone: "quiet" };
    default:
      return { word: state, sign: "▸", tone: "busy" };
  }
}

/** @param {any} run whether it will change no more */
export function hasEnded(run) {
  return ["RUN_STATE_READY", "RUN_STATE_FAILED", "RUN_STATE_CANCELLED"].includes(run.state);
}

/** @param {any} run how many learners are in, at work and waiting */
export function tally(run) {
  const states = run.learners.map((learner) => learner.state);
  const of = (name) => states.filter((state) => state === name).length;
  return {
    all: states.length,
    done: of("LEARNER_STATE_DONE"),
    leased: of("LEARNER_STATE_LEASED"),
    queued: of("LEARNER_STATE_QUEUED"),
    lost: of("LEARNER_STATE_FAILED") + of("LEARNER_STATE_DROPPED"),
  };
}

/** Those that the soup has tried, in its order. @param {any} run */
export function tried(run) {
  return run.learners.filter((learner) => learner.ingredient)
    .sort((a, b) => a.ingredient.position - b.ingredient.position);
}
