// Charts as SVG in real pixels: the soup, a timeline of learners, classes.

import { alphaOf, count, duration, fateOf, number, percent, plural, tried } from "./format.js";
import { html } from "./parts.js";
import { now, state } from "./store.js";

const LEFT = 46; // room for the labels of the y axis

function linear(start, end, from, to) {
  const span = end - start || 1;
  return (value) => from + ((value - start) / span) * (to - from);
}

/** Round values between two, about `about` of them: steps are `factors` times powers of `base`. */
function ticks(start, end, about, base = 10, factors = [1, 2, 5, 10]) {
  const rough = Math.max(end - start, 1e-9) / about;
  const magnitude = base ** Math.floor(Math.log(rough) / Math.log(base));
  const step = magnitude * (factors.find((factor) => factor * magnitude >= rough) ?? base);
  const first = Math.ceil(start / step);
  return Array.from({ length: Math.floor(end / step + 1e-9) - first + 1 }, (_, place) => (first + place) * step);
}

/** Seconds in tens below one, and in what clocks count above. */
const timeTicks = (end, about) => (end < about ? ticks(0, end, about) : ticks(0, end, about, 60, [1, 2, 5, 10, 15, 30, 60]));

const shareAxis = (values, y, width) => values.map((value) => html`
  <g class="tick" key="tick ${value}">
    <line x1=${LEFT} x2=${width - 8} y1=${y(value)} y2=${y(value)} />
    <text x=${LEFT - 7} y=${y(value) + 4} text-anchor="end">${percent(value, 0)}</text>
  </g>`);

const chart = (kind, width, height, summary, content) => html`
  <svg class="chart ${kind}" role="img" width=${width} height=${height} viewBox="0 0 ${width} ${height}" aria-label=${summary}>
    ${content}
  </svg>`;

/** The soup as it grows: a dot for each learner's own accuracy, a step for the soup's after it. */
export function soupChart(run) {
  const [height, bottom] = [230, 194];
  const learners = tried(run);
  if (learners.length === 0) return null;
  const width = Math.max(Math.min(state.width, LEFT + 12 + 110 * Math.max(run.learners.length, 4)), 240);
  const slot = (width - LEFT - 12) / run.learners.length;
  const values = learners.flatMap(({ ingredient }) => [ingredient.accuracy, ingredient.soup_accuracy]);
  const low = Math.max(0, Math.floor((Math.min(...values) - 0.01) * 20) / 20);
  const high = Math.min(1, Math.max(Math.ceil((Math.max(...values) + 0.005) * 20) / 20, low + 0.1));
  const y = linear(low, high, bottom, 22);
  const soups = learners.map(({ ingredient }) => ingredient.soup_accuracy);
  const steps = soups.flatMap((soup, place) => [0, 1].map((end) => `${LEFT + (place + end) * slot},${y(soup)}`));
  const kept = learners.filter(({ ingredient }) => ingredient.kept).length;
  const every = Math.ceil(26 / slot);
  const summary = `The soup's accuracy: ${percent(soups.at(-1))} after ${learners.length} of ${run.learners.length} learners were tried, ${kept} kept. The table of learners has every step.`;
  return chart("soup-chart", width, height, summary, html`
    ${shareAxis(ticks(low, high, 5), y, width)}
    <polyline class="soup" points=${steps.join(" ")} />
    ${learners.map(({ index, ingredient }, place) => {
      const x = LEFT + (place + 0.5) * slot;
      const rises = slot >= 44 && soups[place] !== soups[place - 1];
      return html`<g key=${index} class="ingredient ${ingredient.kept ? "kept" : "left"}">
        <title>learner ${index}: ${percent(ingredient.accuracy)} alone, ${alphaOf({ ingredient })}; soup ${percent(soups[place])}</title>
        <line x1=${x} x2=${x} y1=${bottom} y2=${y(ingredient.accuracy)} />
        <circle cx=${x} cy=${y(ingredient.accuracy)} r="5.5" />
        ${rises && html`<text class="rise" x=${x} y=${y(soups[place]) - 8} text-anchor="middle">${percent(soups[place])}</text>`}
        ${place % every === 0 && html`<text x=${x} y=${bottom + 15} text-anchor="middle">${index}${ingredient.kept ? "✓" : "×"}</text>`}
      </g>`;
    })}
    <text x=${LEFT} y=${height - 3}>learner, in the order in which they were tried</text>`);
}

export const soupLegend = () => html`
  <p class="legend"><span>━ soup after it</span><span>● ✓ alone, kept</span><span>◌ × alone, discarded</span></p>`;

/** A lane for every worker, in it the learners that it has had, from lease to result. */
export function timeline(run) {
  const [lane, piece, axis] = [26, 18, 22];
  const leased = run.learners.filter((learner) => learner.leased_at);
  if (leased.length === 0) return null;
  const isOpen = (learner) => learner.state === "LEARNER_STATE_LEASED";
  const endOf = (learner) => Date.parse(learner.committed_at || learner.ended_at || (isOpen(learner) ? "" : run.ended_at)) || 0;
  const busy = leased.filter(isOpen).length;
  const start = Math.min(...leased.map((learner) => Date.parse(learner.leased_at)));
  const end = Math.max(busy > 0 ? now() : 0, start + 1000, ...leased.map(endOf));
  const seconds = (end - start) / 1000;
  const workerOf = (learner) => learner.worker_name || "a worker";
  const workers = [...new Set(leased.map(workerOf))].sort();
  const width = Math.max(state.width, 280);
  const names = Math.min(150, Math.max(70, width * 0.17));
  const x = linear(0, seconds, names, width - 8);
  const height = workers.length * lane + axis;
  const summary = `Timeline of ${plural(leased.length, "learner")} on ${plural(workers.length, "worker")} over ${duration(seconds)}; ${busy} at work now. The table below has them all.`;
  return chart("timeline", width, height, summary, html`
    ${timeTicks(seconds, width / 120).map((at) => html`<g key="tick ${at}" class="tick">
      <line x1=${x(at)} x2=${x(at)} y1="0" y2=${height - axis} />
      <text x=${x(at)} y=${height - 7} text-anchor=${x(at) > width - 30 ? "end" : "middle"}>${duration(at).replace(".0", "").replace(" 0 s", "")}</text>
    </g>`)}
    ${workers.map((worker, place) => html`<g key="lane ${worker}" class="lane">
      <line x1="0" x2=${width} y1=${(place + 1) * lane - 0.5} y2=${(place + 1) * lane - 0.5} />
      <text x="0" y=${place * lane + 17}><title>${worker}</title>${shortened(worker, Math.floor(names / 7.6))}</text>
    </g>`)}
    ${leased.map((learner) => {
      const fate = fateOf(learner);
      const from = x((Date.parse(learner.leased_at) - start) / 1000);
      const span = Math.max(x(((endOf(learner) || end) - start) / 1000) - from - 1, 2);
      const done = isOpen(learner) && learner.num_steps > 0 ? Math.min(learner.step / learner.num_steps, 1) : 1;
      const y = workers.indexOf(workerOf(learner)) * lane + (lane - piece) / 2;
      const alone = learner.ingredient ? `, ${percent(learner.ingredient.accuracy)} alone` : "";
      const label = `${learner.index} ${fate.sign}`;
      return html`<g key=${learner.index} class="piece ${fate.tone}">
        <title>learner ${learner.index}: ${fate.word}${alone}, step ${number(learner.step)} of ${learner.num_steps}</title>
        <rect class="span" x=${from} y=${y} width=${span} height=${piece} rx="3" />
        <rect class="done" x=${from} y=${y} width=${span * done} height=${piece} rx="3" />
        ${span > label.length * 7 + 4 && html`<text x=${from + 5} y=${y + 13}>${label}</text>`}
      </g>`;
    })}`);
}

const shortened = (text, length) => (text.length <= length ? text : `${text.slice(0, length - 1)}…`);

const MOST_CLASSES = 200;

/** Classes as bars: {name, in_data, in_subset}. */
export function histogram(caption, classes) {
  const most = Math.max(1, ...classes.map((each) => each.in_subset));
  const row = ({ name, in_data: all, in_subset: chosen }, place) => html`<tr key=${place}>
    <th scope="row" title=${name}>${name}</th>
    <td class="bars"><svg viewBox="0 0 ${most} 12" preserveAspectRatio="none" aria-hidden="true"><rect class="bar" width=${chosen} height="12" /></svg></td>
    <td class="numeric">${count(chosen)}</td>
    <td class="numeric dim">${count(all)}${all > 0 && ` · ${percent(chosen / all, 0)}`}</td>
  </tr>`;
  return html`<div class="histogram"><table>
    <caption class="unseen">${caption}</caption>
    <thead><tr>
      <th scope="col">class</th><th scope="col">examples</th><th scope="col" class="numeric">number</th><th scope="col" class="numeric">of data</th>
    </tr></thead>
    <tbody>${classes.slice(0, MOST_CLASSES).map(row)}</tbody>
  </table>${classes.length > MOST_CLASSES && html`<p class="dim">The first ${MOST_CLASSES} of ${count(classes.length)} classes.</p>`}</div>`;
}
