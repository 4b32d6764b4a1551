// Charts in real pixels: the soup, classes, a map of examples, and their pictures.

import { alphaOf, count, fixed, number, percent, table, tried } from "./parts.js";
import { post } from "./service.js";
import { changed, say, state } from "./store.js";
import { html, useLayoutEffect, useRef } from "./vendor/htm-preact.js";

const LEFT = 54; // room for the labels of the y axis
const MOST_CLASSES = 200;
const SIZE = 460; // of a map

/** The soup as it grows: a dot for each learner's own accuracy, a step for the soup's after it. */
export function soupChart(run, room = state.width) {
  const [height, bottom] = [230, 194];
  const learners = tried(run);
  if (learners.length === 0) return null;
  const width = Math.max(Math.min(room, LEFT + 12 + 110 * Math.max(run.learners.length, 4)), 240);
  const slot = (width - LEFT - 12) / run.learners.length;
  const values = learners.flatMap(({ ingredient }) => [ingredient.accuracy, ingredient.soup_accuracy]);
  const low = Math.max(0, Math.floor((Math.min(...values) - 0.01) * 20) / 20);
  const high = Math.min(1, Math.max(Math.ceil((Math.max(...values) + 0.005) * 20) / 20, low + 0.1));
  const y = (value) => bottom - ((value - low) / (high - low)) * (bottom - 22);
  const soups = learners.map(({ ingredient }) => ingredient.soup_accuracy);
  const steps = soups.flatMap((soup, place) => [0, 1].map((end) => `${LEFT + (place + end) * slot},${y(soup)}`));
  const kept = learners.filter(({ ingredient }) => ingredient.kept).length;
  const every = Math.ceil(26 / slot);
  const summary = `The soup's accuracy: ${percent(soups.at(-1))} after ${learners.length} of ${run.learners.length} learners were offered, ${kept} kept. The table of learners has every step.`;
  return html`<svg class="chart" role="img" width=${width} height=${height} viewBox="0 0 ${width} ${height}" aria-label=${summary}>
    ${[0, 0.25, 0.5, 0.75, 1].map((share) => low + share * (high - low)).map((value) => html`<g class="tick" key="tick ${value}">
      <line x1=${LEFT} x2=${width - 8} y1=${y(value)} y2=${y(value)} />
      <text x=${LEFT - 7} y=${y(value) + 4} text-anchor="end">${percent(value)}</text>
    </g>`)}
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
    <text x=${LEFT} y=${height - 3}>learners in the order in which they were offered</text>
  </svg>`;
}

export const soupLegend = () => html`
  <p class="legend dim"><span>━ soup after it</span><span>● ✓ alone, kept</span><span>◌ × alone, discarded</span></p>`;

const MOST_LINES = 12;
const NAME_HEIGHT = 13;

/** The next number of one digit. */
function roundedUp(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return Math.ceil(value / unit - 1e-9) * unit;
}

/** Losses of the learners in training, a line each with its learner's number at the end. */
export function lossChart(run, room = state.width) {
  const [height, bottom, top] = [230, 194, 12];
  const drawn = run.learners.filter(({ losses }) => losses?.length > 0);
  if (drawn.length === 0) return null;
  const shown = drawn.slice(0, MOST_LINES);
  const width = Math.max(Math.min(room, 640), 240);
  const right = width - 34;
  const last = Math.max(...shown.flatMap((learner) => learner.loss_steps), 1);
  const quarter = roundedUp(Math.max(...shown.flatMap(({ losses }) => losses.map(number)), 1e-3) / 4);
  const most = 4 * quarter;
  const x = (step) => LEFT + (number(step) / last) * (right - LEFT);
  const y = (loss) => bottom - (number(loss) / most) * (bottom - top);
  const names = shown.map((learner, place) => ({ place, at: y(learner.losses.at(-1)) })).sort((one, other) => one.at - other.at);
  // From the bottom up: names of lines that end close together are moved apart.
  let below = bottom + NAME_HEIGHT;
  for (const name of names.reverse()) below = name.at = Math.min(name.at, below - NAME_HEIGHT);
  const nameAt = new Map(names.map(({ place, at }) => [place, at]));
  const ends = shown.map(({ index, losses }) => `learner ${index} from ${fixed(losses[0], 3)} to ${fixed(losses.at(-1), 3)}`);
  return html`<svg class="chart" role="img" width=${width} height=${height} viewBox="0 0 ${width} ${height}" aria-label="Losses in training: ${ends.join("; ")}.">
    ${[0, 1, 2, 3, 4].map((times) => times * quarter).map((value) => html`<g class="tick" key="tick ${value}">
      <line x1=${LEFT} x2=${right} y1=${y(value)} y2=${y(value)} />
      <text x=${LEFT - 7} y=${y(value) + 4} text-anchor="end">${Number(value.toPrecision(2))}</text>
    </g>`)}
    ${shown.map(({ index, losses, loss_steps: steps }, place) => html`<g key=${index} class="loss l${place % 6}">
      <title>learner ${index}: loss ${fixed(losses.at(-1), 3)} after step ${count(steps.at(-1))}</title>
      <polyline points=${losses.map((loss, at) => `${x(steps[at])},${y(loss)}`).join(" ")} />
      <circle cx=${x(steps.at(-1))} cy=${y(losses.at(-1))} r="3" />
      <text x=${right + 6} y=${nameAt.get(place) + 4}>${index}</text>
    </g>`)}
    <text x=${LEFT} y=${bottom + 15}>0</text>
    <text x=${right} y=${bottom + 15} text-anchor="end">${count(last)}</text>
    <text x=${LEFT} y=${height - 3}>loss by step; at the end of a line its learner</text>
  </svg>
  ${drawn.length > shown.length && html`<p class="dim">The first ${shown.length} of ${drawn.length} learners.</p>`}`;
}

/** Classes as bars; series: {name, counts}, one or two; inData: numbers in the data. */
export function histogram(caption, names, series, inData) {
  const most = Math.max(1, ...series.flatMap(({ counts }) => counts));
  const height = 12 / series.length;
  const columns = [["class"], ["examples", "bars"], ...series.map(({ name }, at) => [html`<span class="series s${at}">${name}</span>`, "numeric"])];
  if (inData) columns.push(["in the data", "numeric dim"]);
  const row = (name, place) => ({
    key: place,
    cells: [
      html`<span title=${name}>${name}</span>`,
      html`<svg viewBox="0 0 ${most} 12" preserveAspectRatio="none" aria-hidden="true">${series.map(({ counts }, at) => html`
        <rect class="bar s${at}" y=${height * at} width=${counts[place]} height=${height} />`)}</svg>`,
      ...[...series.map(({ counts }) => counts), ...(inData ? [inData] : [])].map((counts) => count(counts[place])),
    ],
  });
  return html`<div class="histogram">${table(caption, columns, names.slice(0, MOST_CLASSES).map(row))}
    ${names.length > MOST_CLASSES && html`<p class="dim">The first ${MOST_CLASSES} of ${count(names.length)} classes.</p>`}</div>`;
}

/** Examples as points, the chosen ones over the others; drawn once for each answer. */
export function ExampleMap({ map, place, name }) {
  const canvas = useRef();
  const chosen = map.chosen[place];
  useLayoutEffect(() => {
    const context = canvas.current.getContext("2d");
    for (const drawn of [false, true]) {
      map.places.forEach(([x, y], at) => {
        if (chosen[at] !== drawn) return;
        // Neighbouring classes get hues far apart.
        context.fillStyle = `hsl(${(map.labels[at] * 137) % 360} 70% 50% / ${drawn ? 1 : 0.3})`;
        context.beginPath();
        context.arc(SIZE * x, SIZE * (1 - y), drawn ? 4 : 2.2, 0, 7);
        context.fill();
      });
    }
  }, [map]);
  return html`<canvas ref=${canvas} width=${SIZE} height=${SIZE} class="map" role="img"
    aria-label="Map of ${count(map.ids.length)} examples, similar ones close together; ${count(chosen.filter(Boolean).length)} of them chosen by ${name}." />`;
}

// By id: the picture, or null while it is on its way.
const pictures = new Map();

async function fetchPictures(missing) {
  for (const id of missing) pictures.set(id, null);
  const answer = await post("/api/pictures", { ids: missing }).catch((error) => say(`No pictures: ${error.message}`, "bad"));
  for (const picture of answer?.pictures ?? []) pictures.set(picture.id, picture);
  changed();
}

addEventListener("coordinator-back", () => {
  for (const [id, picture] of pictures) if (picture === null) pictures.delete(id);
});

/** Pictures of examples with their ids and captions: their class where none is given. */
export function gallery(label, ids, caption = (_, picture) => picture.class_name) {
  const wanted = ids.map(Number);
  const missing = wanted.filter((id) => !pictures.has(id));
  if (missing.length > 0) void fetchPictures(missing);
  return html`
    <ul class="gallery" aria-label=${label}>${wanted.map((id) => {
      const picture = pictures.get(id);
      return html`<li key=${id}><figure>
        ${thumbnail(id, picture)}
        <figcaption><span class="dim">${id}</span> ${picture && caption(id, picture)}</figcaption>
      </figure></li>`;
    })}</ul>`;
}

function thumbnail(id, picture) {
  if (!picture) return html`<div class="no-picture">…</div>`;
  // Nothing but a picture in the answer itself is ever loaded.
  if (picture.png?.startsWith("data:image/png;base64,")) {
    return html`<img src=${picture.png} alt="example ${id}, labelled ${picture.class_name}" />`;
  }
  return html`<div class="no-picture text">${picture.text ?? "no picture"}</div>`;
}
