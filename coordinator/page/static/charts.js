// Charts as SVG in real pixels: the soup, classes.

import { alphaOf, count, percent, tried } from "./format.js";
import { html } from "./parts.js";
import { state } from "./store.js";

const LEFT = 46; // room for the labels of the y axis

function linear(start, end, from, to) {
  const span = end - start || 1;
  return (value) => from + ((value - start) / span) * (to - from);
}

/** Round values between two, about `about` of them. */
function ticks(start, end, about) {
  const rough = Math.max(end - start, 1e-9) / about;
  const magnitude = 10 ** Math.floor(Math.log10(rough));
  const step = magnitude * [1, 2, 5, 10].find((factor) => factor * magnitude >= rough);
  const first = Math.ceil(start / step);
  return Array.from({ length: Math.floor(end / step + 1e-9) - first + 1 }, (_, place) => (first + place) * step);
}

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
