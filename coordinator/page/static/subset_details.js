// @ts-check
// One subset or two side by side: overlap, classes, the map, the most and the least wanted, and how to use it.

import { compute, post } from "./api.js";
import { h } from "./dom.js";
import { exampleMap } from "./example_map.js";
import { count, duration, number, percent } from "./format.js";
import { gallery } from "./gallery.js";
import { histogram } from "./histogram.js";
import { button, problem, progressLine, tile, tiles } from "./parts.js";
import { say } from "./toasts.js";
import { perform, task } from "./store.js";

/** @param {any} run @param {any[]} subsets one or two */
export function subsetDetails(run, subsets) {
  const names = namesOf(subsets);
  return h("section", { class: "details", key: subsets.map((subset) => subset.digest).join(" "), "aria-labelledby": "details-title" },
    h("h2", { id: "details-title" }, names.map((name, place) => [place > 0 && " beside ", h("span", { class: names.length > 1 ? `series s${place}` : undefined }, name)])),
    subsets.length === 2 && overlap(run, subsets, names),
    h("div", { class: "columns" }, subsets.map((subset, place) => h("div", { key: subset.digest }, facts(subset, names[place], subsets.length > 1)))),
    subsets[0].classes.length > 0 && [h("h3", { key: "classes" }, "Classes"), histogram(subsets.map((subset) => subset.classes), names)],
    mapSection(run, subsets, names),
    h("div", { class: "columns" }, subsets.map((subset, place) => h("div", { key: subset.digest }, wanted(subset, names[place])))));
}

function namesOf(subsets) {
  const names = subsets.map((subset) => `${subset.strategy} ${percent(subset.fraction, number(subset.fraction) < 0.01 ? 2 : 0)}`);
  return names[0] === names[1] ? subsets.map((subset, place) => `${names[place]} (${subset.digest.slice(0, 6)})`) : names;
}

function overlap(run, subsets, names) {
  const digests = subsets.map((subset) => subset.digest);
  const key = `overlap ${digests.join(" ")}`;
  const found = task(key);
  if (found.value === null && !found.busy && !found.error) {
    void perform(key, () => post(`/api/runs/${encodeURIComponent(run.run_id)}/side-by-side`, { digests }));
  }
  if (!found.value) return problem(found.error) ?? h("p", { class: "dim" }, "Comparing…");
  return tiles(tile("in both", count(found.value.both)), names.map((name, place) => tile(`only in ${name}`, count(found.value.only[place]))),
    tile("overlap", percent(found.value.jaccard), "in both, of those in either (Jaccard)"),
    found.value.by_chance !== undefined && tile("in both by chance", count(found.value.by_chance), "of two draws at random of their sizes"));
}

function facts(subset, name, beside) {
  const costs = subset.manifest?.costs ?? {};
  const words = subset.manifest?.findings?.words ?? [];
  return [
    beside && h("h3", { key: "name" }, name),
    tiles(tile("examples", `${count(subset.num_examples)} · ${percent(subset.fraction)}`),
      tile("weights", subset.weights?.weighted ? `${number(subset.weights.min).toPrecision(3)} to ${number(subset.weights.max).toPrecision(3)}` : "all equal"),
      costs.selection_seconds !== undefined && tile("chosen in", duration(costs.selection_seconds))),
    words.length > 0 && h("ul", { class: "words", key: "words" }, words.map((text, place) => h("li", { key: place }, String(text)))),
    subset.manifest?.stopped_early && h("p", { class: "note" }, String(subset.manifest.stopped_early)),
    h("div", { class: "code", key: "code" },
      h("pre", { tabindex: "0", "aria-label": `The lines that use ${name}` }, h("code", null, subset.code)),
      button("Copy", () => void copy(subset.code), { "aria-label": `Copy the lines that use ${name}` })),
  ];
}

/** @param {string} text */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.", "good");
  } catch {
    // Without TLS, other than on this machine, a page may not write to the clipboard.
    say("This browser does not let the page copy: select the lines and copy them.", "bad");
  }
}

function mapSection(run, subsets, names) {
  const digests = subsets.map((subset) => subset.digest);
  const key = `map ${digests.join(" ")}`;
  const found = task(key);
  const ask = () => void perform(key, (onProgress) => compute(`/api/runs/${encodeURIComponent(run.run_id)}/map`, { digests }, onProgress));
  return [
    h("h3", { key: "map-title" }, "Map of the examples"),
    found.value
      ? h("div", { key: "maps", class: "columns maps" }, names.map((name, place) => h("figure", { key: place },
        exampleMap(found.value.map, place, name),
        h("figcaption", { class: "dim" }, `${count(found.value.map.ids.length)} of the examples, alike ones close together${found.value.map.seen_by ? ` (seen by ${found.value.map.seen_by})` : ""}. Large and rimmed: taken by ${name}. The colour is the class.`))))
      : h("div", { key: "no-map" }, found.busy ? progressLine(found.progress) : button("Draw the map", ask), problem(found.error)),
  ];
}

/** How an end of the order was found. */
const WANTED_BY = { weight: "by their weights", score: "by their scores", order: "as they were chosen", draw: "a draw: its examples have no order" };

/** @param {any} subset @param {"most" | "least"} end */
function wantedBy(subset, end) {
  const by = subset.wanted_by?.[end];
  return by && h("p", { class: "dim", key: `${end}-by` }, WANTED_BY[/** @type {keyof typeof WANTED_BY} */ (by)] ?? by);
}

function wanted(subset, name) {
  return [
    h("h3", { key: "most-title" }, `Most wanted by ${name}`),
    wantedBy(subset, "most"),
    gallery(`Examples that ${name} wants most`, subset.most_wanted),
    h("h3", { key: "least-title" }, `Least wanted by ${name}`),
    wantedBy(subset, "least"),
    gallery(`Examples that ${name} wants least`, subset.least_wanted),
  ];
}
