// @ts-check
// Two runs side by side: where their settings differ, how their soups grew, what they cost.

import { h } from "./dom.js";
import { bytes, duration, number, percent } from "./format.js";
import { standingOf, tried } from "./learner.js";
import { badge, empty, table } from "./parts.js";
import { to } from "./router.js";
import { settingsOf } from "./settings.js";
import { soupChart, soupLegend } from "./soup_chart.js";
import { runById, state } from "./store.js";

const FACTS = /** @type {[string, (run: any) => any][]} */ ([
  ["state", (run) => badge(standingOf(run))],
  ["soup", (run) => percent(run.soup?.soup_accuracy)],
  ["best learner", (run) => percent(run.soup?.best_learner_accuracy)],
  ["mean learner", (run) => percent(run.soup?.mean_learner_accuracy)],
  ["kept", (run) => `${tried(run).filter((learner) => learner.ingredient.kept).length} of ${run.learners.length}`],
  ["training", (run) => duration(run.costs?.training_seconds)],
  ["merging", (run) => duration(run.costs?.merging_seconds)],
  ["trained on workers", (run) => duration(run.learners.reduce((sum, learner) => sum + number(learner.train_seconds), 0))],
  ["to and from workers", (run) => bytes(number(run.costs?.bytes_to_workers) + number(run.costs?.bytes_from_workers))],
]);

export const title = () => "Two runs";

export function view() {
  const runs = state.route.parts.slice(1, 3).map(runById).filter(Boolean);
  const head = [h("div", { class: "head" }, h("div", null,
    h("p", { class: "crumbs" }, h("a", { href: to(["runs"]) }, "Runs")), h("h1", { tabindex: "-1" }, "Two runs")))];
  if (runs.length !== 2) return [...head, state.hasService ? empty("Tick two runs in the list, then compare them.") : h("p", { class: "dim" }, "Asking the coordinator…")];
  const names = runs.map((run) => run.name);
  const columns = [{ name: "what", class: "long" }, ...names.map((name) => ({ name, class: "long" }))];
  const room = state.width > 760 ? (state.width - 32) / 2 : state.width;
  return [
    ...head,
    table("How they went", columns, FACTS.map(([name, of]) => ({ key: name, cells: [name, ...runs.map(of)] }))),
    h("h2", { key: "differ" }, "Settings that differ"), differences(runs, columns),
    h("h2", { key: "soups" }, "Soups"),
    h("div", { class: "columns", key: "charts" }, runs.map((run) => h("div", { key: run.run_id },
      h("h3", null, h("a", { href: to(["runs", run.run_id]) }, run.name)),
      soupChart(run, room) ?? h("p", { class: "dim" }, "No soup yet.")))), soupLegend(),
  ];
}

function differences(runs, columns) {
  const [first, second] = runs.map((run) => new Map(settingsOf(run.config)));
  const names = [...new Set([...first.keys(), ...second.keys()])].filter((name) => first.get(name) !== second.get(name));
  return names.length === 0 ? h("p", { class: "dim", key: "same" }, "None: they have the same settings.")
    : table("Settings that differ", columns, names.map((name) => ({ key: name, cells: [name, first.get(name) ?? "–", second.get(name) ?? "–"] })));
}
