// Numbers, times and states as people read them, and the small pieces of the views. Texts become text
// nodes: no markup is ever read.

import { now } from "./store.js";
import { html } from "./vendor/htm-preact.js";

export { html };

export const badge = ({ word, sign, tone }) => html`
  <span class="badge ${tone}"><span class="sign" aria-hidden="true">${sign}</span>${word}</span>`;

export const tile = (name, value, title) => html`
  <div class="tile" key=${name} title=${title}><dt>${name}</dt><dd>${value}</dd></div>`;

export const tiles = (...found) => html`<dl class="tiles">${found}</dl>`;

/** A view's heading with what can be done there. */
export const head = (title, actions, crumbs) => html`
  <div class="head">
    <div>${crumbs && html`<p class="crumbs">${crumbs}</p>`}<h1 tabindex="-1">${title}</h1></div>
    ${actions && html`<div class="actions">${actions}</div>`}
  </div>`;

export const section = (id, title, content, hint) => html`
  <section key=${id} aria-labelledby="${id}-title">
    <h2 id="${id}-title">${title} ${hint && html`<span class="dim">${hint}</span>`}</h2>
    ${content}
  </section>`;

// From this many columns on a table becomes cards where the page is narrow.
const MANY_COLUMNS = 5;

/**
 * A table; columns: [name, class], the first heads the row; rows: {key, cells, class}.
 * Cards are no tables to a browser, so the roles of their parts are written out.
 */
export const table = (caption, columns, rows) => html`
  <div class="wide" role="region" aria-label=${caption} tabindex="0"><table role="table" class=${columns.length >= MANY_COLUMNS ? "cards" : undefined}>
    <caption class="unseen">${caption}</caption>
    <thead role="rowgroup"><tr role="row">${columns.map(([name, kind]) => html`<th role="columnheader" scope="col" class=${kind}>${name}</th>`)}</tr></thead>
    <tbody role="rowgroup">${rows.map((row) => html`<tr role="row" key=${row.key} class=${row.class}>${row.cells.map((cell, place) => (place === 0
      ? html`<th role="rowheader" scope="row" data-name=${columns[0][0]}>${cell}</th>`
      : html`<td role="cell" class="${columns[place][1]} ${cell === MISSING ? "missing" : ""}" data-name=${columns[place][0]}>${cell}</td>`))}</tr>`)}</tbody>
  </table></div>`;

export function bar(done, total, label) {
  const whole = number(total) > 0 ? number(total) : 1;
  const value = number(total) > 0 ? Math.min(number(done), whole) : undefined;
  return html`<progress max=${whole} value=${value} aria-label=${label} />`;
}

/** Progress of a computation that was requested. */
export function progressLine(progress) {
  const { activity, done, total, ahead } = progress ?? {};
  const text = number(ahead) > 0
    ? `queued, ${count(ahead)} ahead`
    : `${activity || "beginning"}${number(total) > 0 ? `, ${count(done)} of ${count(total)}` : ""}`;
  return html`<p class="progress">${bar(done, total, "progress")} ${text}</p>`;
}

export const problem = (text) => text && html`<p class="problem" role="alert">${text}</p>`;

export const commands = (...lines) => html`<pre tabindex="0"><code>${lines.join("\n")}</code></pre>`;

/** What to do where there is nothing to see. */
export const empty = (text, ...lines) => html`
  <div class="empty"><p>${text}</p>${lines.length > 0 && commands(...lines)}</div>`;

export const waiting = () => html`<p class="dim">Asking the coordinator…</p>`;

export const button = (text, act, props) => html`<button type="button" onClick=${act} ...${props}>${text}</button>`;

export const submit = (text, busy, busyText) => html`
  <button type="submit" class="main" disabled=${busy !== false}>${busy === true ? busyText : text}</button>`;

/** A field with its label and a hint; `control` makes the control from its id and aria properties. */
export const field = (id, name, control, hint) => html`
  <div class="field" key=${id}>
    <label for=${id}>${name}</label>
    ${control({ id, "aria-describedby": hint && `${id}-hint` })}
    ${hint && html`<p class="hint" id="${id}-hint">${hint}</p>`}
  </div>`;

/** A select element; options: [value, text]. */
export const choice = (props, options) => html`<select ...${props}>${options.map(([value, text = value]) => html`
  <option key=${value} value=${value}>${text}</option>`)}</select>`;

/** A moment as how long ago it is; `stamp` is a text of the contract, or seconds. */
export function moment(stamp) {
  const then = typeof stamp === "number" ? stamp * 1000 : Date.parse(stamp);
  if (Number.isNaN(then)) return MISSING;
  const exact = new Date(then);
  return html`<time datetime=${exact.toISOString()} title=${exact.toLocaleString()}>${relative((now() - then) / 1000)}</time>`;
}

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
  failed: ["!", "bad"], silent: ["!", "bad"], held: ["‖", "bad"], unreadable: ["!", "bad"], blocked: ["‖", "bad"],
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
  const kind = /^(PRECISION|LEARNER_OPTIMIZER|WEIGHT_ENCODING|AUGMENTATION_METHOD|PRUNING_METHOD|SHARD_RULE|SOUP_METHOD)_/.exec(String(value));
  return kind ? word(value, kind[0]).replaceAll(" ", "_") : String(value);
}
