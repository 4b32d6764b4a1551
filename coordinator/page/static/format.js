// Numbers, times, settings and the states of runs and learners, as people read them.

import { now } from "./store.js";

export const MISSING = "–";

/** Floats come as numbers, or as texts where they are not finite; int64 always as texts. */
export function number(value) {
  const parsed = typeof value === "string" ? Number(value) : value;
  return Number.isFinite(parsed) ? parsed : NaN;
}

const unlessMissing = (show) => (value, ...how) => (Number.isNaN(number(value)) ? MISSING : show(number(value), ...how));

export const count = unlessMissing((value) => value.toLocaleString("en-US", { maximumFractionDigits: 0 }));
export const percent = unlessMissing((value, digits = 1) => `${(100 * value).toFixed(digits)}%`);
export const fixed = unlessMissing((value, digits) => value.toFixed(digits));

export const duration = unlessMissing((seconds) => {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const [minutes, hours] = [Math.floor(seconds / 60), Math.floor(seconds / 3600)];
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds) % 60} s`;
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
});

export const bytes = unlessMissing((size) => {
  const power = Math.min(Math.floor(Math.log10(Math.max(size, 1)) / 3), 4);
  const scaled = size / 1000 ** power;
  return `${scaled.toFixed(power === 0 || scaled >= 100 ? 0 : 1)} ${["B", "kB", "MB", "GB", "TB"][power]}`;
});

export function relative(seconds) {
  const size = Math.abs(seconds);
  if (size < 10) return "now";
  return seconds > 0 ? `${duration(size)} ago` : `in ${duration(size)}`;
}

/** "RUN_STATE_TRAINING" as "training". */
export const word = (name, prefix) => String(name ?? "").replace(prefix, "").toLowerCase().replaceAll("_", " ");

const SIGNS = {
  ready: ["✓", "good"], kept: ["✓", "good"], done: ["•", "quiet"],
  pending: ["·", "quiet"], idle: ["·", "quiet"], queued: ["·", "faint"],
  cancelled: ["×", "faint"], dropped: ["×", "faint"], discarded: ["×", "faint"],
  failed: ["!", "bad"], silent: ["!", "bad"], held: ["‖", "bad"], blocked: ["‖", "bad"],
};

/** A state is a word, a sign and a tone: colour is never the only sign. */
export function standing(word) {
  const [sign, tone] = SIGNS[word] ?? ["▸", "busy"];
  return { word, sign, tone };
}

export const standingOf = (run) => standing(word(run.state, "RUN_STATE_"));

export function fateOf({ state, phase, ingredient }) {
  const name = word(state, "LEARNER_STATE_");
  if (name === "leased") return standing(word(phase, "LEARNER_PHASE_").replace("unspecified", "") || "leased");
  if (name === "done") return standing(!ingredient ? "done" : ingredient.kept ? "kept" : "discarded");
  return standing(name);
}

export function alphaOf({ ingredient }) {
  if (!ingredient) return MISSING;
  return ingredient.kept ? `α ${fixed(ingredient.alpha, 2)}` : "discarded";
}

export const hasEnded = (run) => ["ready", "failed", "cancelled"].includes(standingOf(run).word);

/** Numbers of a run's learners. */
export function tally(run) {
  const of = (name) => run.learners.filter((learner) => learner.state === `LEARNER_STATE_${name}`).length;
  return { all: run.learners.length, done: of("DONE"), leased: of("LEASED"), queued: of("QUEUED") };
}

/** The learners that the soup has tried, in its order. */
export function tried(run) {
  return run.learners.filter((learner) => learner.ingredient)
    .sort((a, b) => a.ingredient.position - b.ingredient.position);
}

export const keptOf = (run) => `${tried(run).filter((learner) => learner.ingredient.kept).length} of ${run.learners.length}`;

export const trainSeconds = (run) => run.learners.reduce((sum, learner) => sum + number(learner.train_seconds), 0);

export const secondsOf = (run) => ((run.ended_at ? Date.parse(run.ended_at) : now()) - Date.parse(run.created_at)) / 1000;

/** A run's settings by their dotted names, as run.toml and `--set` have them: [name, text] pairs. */
export function settingsOf(config) {
  return Object.entries(config ?? {}).flatMap(([name, value]) =>
    value !== null && typeof value === "object" && !Array.isArray(value)
      ? settingsOf(value).map(([below, text]) => [`${name}.${below}`, text])
      : [[name, settingText(value)]]);
}

function settingText(value) {
  if (Array.isArray(value)) return value.join(", ") || MISSING;
  // An enum's name is that of its type and then the value: WEIGHT_ENCODING_BITMASK.
  const kind = /^(PRECISION|WEIGHT_ENCODING|AUGMENTATION_METHOD|PRUNING_METHOD|SOUP_METHOD)_/.exec(String(value));
  return kind ? word(value, kind[0]).replaceAll(" ", "_") : String(value);
}
