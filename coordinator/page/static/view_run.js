// @ts-check
// One run: how far it is, its learners on a timeline and in a table, its soup, what it cost.

import { h } from "./dom.js";
import { post } from "./api.js";
import { confirmFirst } from "./dialogs.js";
import { bytes, count, duration, fixed, moment, number, percent, plural } from "./format.js";
import { alphaOf, fateOf, hasEnded, standingOf, tally, tried } from "./learner.js";
import { badge, bar, button, empty, table, tile, tiles } from "./parts.js";
import { to } from "./router.js";
import { soupChart, soupLegend } from "./soup_chart.js";
import { mayAct, now, runById, state } from "./store.js";
import { settingsOf } from "./settings.js";
import { timeline } from "./timeline.js";

const STAGES = [["initializing", "initial weights", "initialization_seconds"], ["sharding", "shards", "sharding_seconds"],
  ["training", "learners", "training_seconds"], ["merging", "soup", "merging_seconds"]];

export const title = () => runById(state.route.parts[1])?.name ?? "Run";

export function view() {
  const run = runById(state.route.parts[1]);
  if (!run) return notThere();
  return [head(run), rail(run), messages(run), soupSection(run), learnersSection(run), costs(run), settings(run)];
}

export function notThere() {
  return [h("h1", { tabindex: "-1" }, "Run"), state.hasService
    ? empty("This page has no run of that id: it may be an old one. A terminal shows all:", `lipt run show ${state.route.parts[1]}`)
    : h("p", { class: "dim" }, "Asking the coordinator…")];
}

/** The run's name and where one can go from it. @param {any} run @param {string} [part] */
export function head(run, part) {
  const mayCancel = mayAct("admin") && !hasEnded(run);
  return h("div", { class: "head", key: "head" },
    h("div", null,
      h("p", { class: "crumbs" }, h("a", { href: to(["runs"]) }, "Runs"), part && [" / ", h("a", { href: to(["runs", run.run_id]) }, run.name)]),
      h("h1", { tabindex: "-1" }, part ?? run.name, " ", badge(standingOf(run)))),
    h("div", { class: "actions" },
      mayCancel && button("Cancel the run", () => askToCancel(run), { key: "cancel", class: "danger" }),
      !part && h("a", { class: "button", key: "diagnosis", href: to(["diagnosis"], { run: run.run_id }) }, "Diagnosis"),
      !part && h("a", { class: "button main", key: "subsets", href: to(["runs", run.run_id, "subsets"]) }, "Subsets")));
}

function askToCancel(run) {
  confirmFirst(`Cancel ${run.name}?`, "Its workers drop what they train, and it cannot be taken up again.", "Cancel the run", async () => {
    try {
      await post(`/api/runs/${encodeURIComponent(run.run_id)}/cancel`, {});
      return "";
    } catch (error) {
      return /** @type {Error} */ (error).message;
    }
  });
}

function rail(run) {
  const at = standingOf(run).word;
  const place = STAGES.findIndex(([name]) => name === at);
  return h("ol", { class: "rail", "aria-label": "Stages", key: "rail" }, STAGES.map(([name, shown, cost], index) => {
    const seconds = number(run.costs?.[cost] ?? 0);
    const isNow = index === place;
    const isDone = at === "ready" || (place >= 0 ? index < place : seconds > 0);
    return h("li", { key: name, class: isNow ? "now" : isDone ? "done" : "open", "aria-current": isNow ? "step" : undefined },
      h("span", { class: "sign", "aria-hidden": "true" }, isNow ? "▸" : isDone ? "✓" : "·"),
      h("span", { class: "stage" }, shown, h("span", { class: "unseen" }, isNow ? ", now" : isDone ? ", done" : ", not yet")),
      h("span", { class: "dim" }, isNow ? share(run, name) : isDone ? duration(seconds) : "–"));
  }));
}

function share(run, stage) {
  if (stage === "training") {
    const { done, all } = tally(run);
    return `${done} of ${all}${timeLeft(run)}`;
  }
  const total = number(run.progress?.total);
  return number(run.progress?.ahead) > 0 ? "waiting for its turn" : total > 0 ? percent(number(run.progress.done) / total, 0) : "…";
}

/** A guess, once two learners are in: they come on at the pace that they came in at. */
function timeLeft(run) {
  const { done, all } = tally(run);
  const starts = run.learners.filter((learner) => learner.leased_at).map((learner) => Date.parse(learner.leased_at));
  if (done < 2 || done >= all) return "";
  const seconds = (now() - Math.min(...starts)) / 1000 / done * (all - done);
  return `, about ${duration(Math.max(10, Math.round(seconds / 5) * 5)).replace(" 0 s", "")} left`;
}

function messages(run) {
  const isBad = ["RUN_STATE_FAILED", "RUN_STATE_HELD"].includes(run.state);
  const told = [[run.message, isBad ? "problem" : "note"], [run.waiting, "note waiting"], [run.fitted, "note"], [run.note, "note"]];
  return h("div", { class: "messages", key: "messages" }, told.filter(([text]) => text && text !== standingOf(run).word)
    .map(([text, kind], place) => h("p", { class: kind, key: place }, text)),
  run.waiting && state.numWorkers === 0 && h("pre", { tabindex: "0", key: "command" }, h("code", null, "lipt-worker --coordinator HOST:PORT")));
}

function soupSection(run) {
  const last = tried(run).at(-1);
  if (!run.soup && !last) return null;
  const soup = run.soup;
  return h("section", { "aria-labelledby": "soup-title", key: "soup" },
    h("h2", { id: "soup-title" }, "The soup"),
    tiles(
      soup && tile("initial weights", percent(soup.initial_accuracy), "theta*: what every learner starts from"),
      soup && tile("mean learner", percent(soup.mean_learner_accuracy)),
      soup && tile("best learner", percent(soup.best_learner_accuracy)),
      tile(soup ? "soup" : "soup so far", percent(soup ? soup.soup_accuracy : last.ingredient.soup_accuracy), "theta_p: what subsets are chosen on"),
      tile("kept", `${tried(run).filter((learner) => learner.ingredient.kept).length} of ${run.learners.length}`),
      soup && tile("judged on", `${plural(soup.num_validation_examples, "example")}`)),
    soupChart(run), soupLegend());
}

function learnersSection(run) {
  const { done, leased, queued, all } = tally(run);
  if (all === 0) return null;
  return h("section", { "aria-labelledby": "learners-title", key: "learners" },
    h("h2", { id: "learners-title" }, "Learners ", h("span", { class: "dim" }, `${done} in, ${leased} at work, ${queued} waiting`)),
    timeline(run), learnersTable(run));
}

const COLUMNS = [
  { name: "learner" }, { name: "phase", class: "lead" }, { name: "worker" }, { name: "step", class: "grow" },
  { name: "loss", class: "numeric" }, { name: "accuracy", class: "numeric" }, { name: "density", class: "numeric" },
  { name: "alpha", class: "numeric" }, { name: "soup after", class: "numeric" }, { name: "took", class: "numeric" },
];

function learnersTable(run) {
  return table("Learners", COLUMNS, run.learners.map((learner) => ({
    key: learner.index,
    class: fateOf(learner).tone === "faint" && learner.state !== "LEARNER_STATE_QUEUED" ? "faint" : undefined,
    cells: [
      String(learner.index),
      h("span", { title: learner.message || undefined }, badge(fateOf(learner)), number(learner.attempts) > 1 && h("span", { class: "dim" }, ` try ${learner.attempts}`)),
      h("span", { class: "name", title: learner.device }, learner.worker_name || "–"),
      steps(learner),
      learner.state === "LEARNER_STATE_QUEUED" || number(learner.loss) === 0 ? "–" : fixed(learner.loss, 3),
      learner.ingredient ? percent(learner.ingredient.accuracy) : "–",
      fixed(learner.density, 3),
      alphaOf(learner),
      learner.ingredient ? percent(learner.ingredient.soup_accuracy) : "–",
      took(learner),
    ],
  })));
}

function steps(learner) {
  if (learner.state === "LEARNER_STATE_QUEUED") return "–";
  return h("span", { class: "inline-progress" }, bar(learner.step, learner.num_steps, `steps of learner ${learner.index}`),
    ` ${count(learner.step)} of ${count(learner.num_steps)}`);
}

function took(learner) {
  if (learner.state === "LEARNER_STATE_LEASED" && learner.leased_at) return duration((now() - Date.parse(learner.leased_at)) / 1000);
  return number(learner.train_seconds) > 0 ? duration(learner.train_seconds) : "–";
}

function costs(run) {
  const spent = run.costs;
  if (!spent) return null;
  const end = run.ended_at ? Date.parse(run.ended_at) : now();
  return h("section", { "aria-labelledby": "costs-title", key: "costs" },
    h("h2", { id: "costs-title" }, "Costs"),
    tiles(tile("since it began", duration((end - Date.parse(run.created_at)) / 1000)),
      STAGES.map(([, shown, cost]) => number(spent[cost]) > 0 && tile(shown, duration(spent[cost]))),
      tile("trained on workers", duration(run.learners.reduce((sum, learner) => sum + number(learner.train_seconds), 0)), "the sum of all learners' training"),
      tile("to workers", bytes(spent.bytes_to_workers)), tile("from workers", bytes(spent.bytes_from_workers))));
}

function settings(run) {
  return h("details", { class: "settings", key: "settings" }, h("summary", null, "Settings"),
    h("dl", { class: "facts" }, [["id", run.run_id], ["began", moment(run.created_at)], ["ended", run.ended_at ? moment(run.ended_at) : "–"],
      ["fingerprint of its data", run.fingerprint], ...settingsOf(run.config)].map(([name, value]) =>
      h("div", { key: name }, h("dt", null, name), h("dd", null, value)))));
}
