// @ts-check
// The diagnosis: what is the matter with the data, in numbers first and then in pictures.

import { compute } from "./api.js";
import { h } from "./dom.js";
import { count, fixed, number, percent, plural } from "./format.js";
import { gallery } from "./gallery.js";
import { classBars } from "./histogram.js";
import { learningCurve } from "./learning_curve.js";
import { button, field, problem, progressLine, table, tile, tiles } from "./parts.js";
import { to } from "./router.js";
import { changed, mayAct, perform, state, task } from "./store.js";

const PAGE = 24;

/** How many suspects are shown, by diagnosis. @type {Map<string, number>} */
const shown = new Map();

export const title = () => "Diagnosis";

export function view() {
  const runId = state.route.query.get("run") ?? "";
  const key = `diagnosis ${runId}`;
  const found = task(key);
  const ask = () => void perform(key, (onProgress) => compute("/api/diagnosis", { run_id: runId }, onProgress));
  const ready = state.runs.filter((run) => run.state === "RUN_STATE_READY");
  return [
    h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Diagnosis")),
    h("div", { class: "card ask", key: "ask" },
      h("div", { class: "fields" },
        field("seen-by", "Seen by", h("select", {
          key: `runs ${ready.map((run) => run.run_id).join(" ")}`, initial: runId,
          on: { change: (/** @type {Event} */ event) => { location.hash = to(["diagnosis"], { run: /** @type {HTMLSelectElement} */ (event.target).value }); } },
        }, h("option", { value: "" }, "the data alone"), ready.map((run) => h("option", { key: run.run_id, value: run.run_id }, `the learners of ${run.name}`)))),
        h("div", { class: "field submit", key: "submit" }, button(found.busy ? "Looking…" : found.value ? "Look again" : "Look at the data", ask, { class: "main", disabled: found.busy || !mayAct("trainer") }))),
      !found.value && !found.busy && h("p", { class: "dim", key: "what" }, "Wrong labels, duplicates, outliers, imbalance, and what a subset could be worth. It needs neither a run nor a worker; learners of a run help it to see."),
      found.busy && progressLine(found.progress), problem(found.error)),
    found.value && findings(key, found.value.diagnosis),
  ];
}

function findings(key, found) {
  return [summary(found), suspects(key, found), confusion(found), duplicates(found), balance(found), learnability(found), outliers(found)];
}

function summary(found) {
  const errors = found.label_errors;
  return tiles(
    errors && tile("suspect labels", count(errors.num_suspects)),
    errors && tile("wrong labels, estimated", percent(errors.noise_rate), `95% interval ${percent(errors.noise_low)} to ${percent(errors.noise_high)}`),
    found.duplicates && tile("duplicates too many", count(found.duplicates.surplus)),
    tile("outliers", count(found.outliers.count)),
    found.imbalance && tile("largest to smallest class", `${fixed(found.imbalance.ratio, 1)} : 1`),
    found.redundancy && tile("stands for 90% of the data", percent(found.redundancy.share_for_90), "by facility location"),
    found.learnability && tile("fraction worth asking for", percent(found.learnability.suggested_fraction, 0)));
}

/** Of targets that are no classes none is called wrong: what fits them worst is shown. */
function worstFitting(found) {
  return h("section", { key: "worst", "aria-labelledby": "worst-title" },
    h("h2", { id: "worst-title" }, "Worst fitting ", h("span", { class: "dim" }, "targets that a head which has not seen them misses by most")),
    gallery("Examples whose target fits worst", found.worst_fitting.slice(0, PAGE)));
}

function suspects(key, found) {
  if (found.worst_fitting?.length > 0) return worstFitting(found);
  const all = found.suspects ?? [];
  const shownNow = Math.min(shown.get(key) ?? PAGE, all.length);
  const names = (/** @type {number} */ label) => found.class_names?.[label] ?? String(label);
  const byId = new Map(all.map((each) => [Number(each.id), each]));
  return h("section", { key: "suspects", "aria-labelledby": "suspects-title" },
    h("h2", { id: "suspects-title" }, "Suspects ", h("span", { class: "dim" }, all.length > 0 ? "labels that look wrong, the worst first" : "")),
    all.length === 0 ? h("p", { class: "dim" }, "No label looks wrong.")
      : gallery("Examples whose label looks wrong", all.slice(0, shownNow).map((each) => each.id), (id) => {
        const each = byId.get(id);
        return [h("s", null, names(each.given)), " ", h("b", null, h("span", { class: "unseen" }, "looks like "), names(each.suggested))];
      }),
    shownNow < all.length && button(`Show ${count(Math.min(PAGE, all.length - shownNow))} of ${count(all.length - shownNow)} more`, () => {
      shown.set(key, shownNow + PAGE);
      changed();
    }, { key: "more" }));
}

function confusion(found) {
  const pairs = (found.confusion ?? []).slice(0, 10);
  if (pairs.length === 0) return null;
  return h("section", { key: "confusion", "aria-labelledby": "confusion-title" },
    h("h2", { id: "confusion-title" }, "Classes taken for each other"),
    table("Classes taken for each other", [{ name: "labelled", class: "long" }, { name: "looks like", class: "long" }, { name: "examples", class: "numeric" }, { name: "of the class", class: "numeric" }],
      pairs.map((pair) => ({ key: `${pair.given} ${pair.suggested}`, cells: [found.class_names[pair.given], found.class_names[pair.suggested], count(pair.count), percent(pair.share)] }))));
}

function duplicates(found) {
  const told = found.duplicates;
  if (!told) return null;
  const groups = found.groups ?? [];
  return h("section", { key: "duplicates", "aria-labelledby": "duplicates-title" },
    h("h2", { id: "duplicates-title" }, "Duplicates"),
    h("p", null, `${plural(told.exact_groups, "group")} of the same, ${count(told.near_groups)} of nearly the same; ${count(told.surplus)} would go if one of each stayed; ${plural(told.conflicting, "group has", "groups have")} more than one label.`),
    groups.length > 0 && h("ol", { class: "groups" }, groups.slice(0, 12).map((group, place) => h("li", { key: place },
      gallery(`Group ${place + 1} of examples that are alike`, group.slice(0, 8)), group.length > 8 && h("p", { class: "dim" }, `and ${count(group.length - 8)} more`)))));
}

function balance(found) {
  if (!found.class_names || !found.class_counts) return null;
  return h("section", { key: "balance", "aria-labelledby": "balance-title" },
    h("h2", { id: "balance-title" }, "Classes"),
    found.imbalance && h("p", null, `From ${count(found.class_counts[found.imbalance.smallest])} (${found.class_names[found.imbalance.smallest]}) to ${count(found.class_counts[found.imbalance.largest])} (${found.class_names[found.imbalance.largest]}): as many as ${fixed(found.imbalance.effective_classes, 1)} equal classes.`),
    classBars(found.class_names, found.class_counts));
}

function learnability(found) {
  const told = found.learnability;
  if (!told?.sizes?.length) return null;
  return h("section", { key: "learnability", "aria-labelledby": "learnability-title" },
    h("h2", { id: "learnability-title" }, "What is learnable"),
    h("p", null, told.why), learningCurve(told.sizes.map(number), told.accuracies.map(number)));
}

function outliers(found) {
  const ranked = found.outliers.ranked;
  if (ranked.length === 0) return null;
  return h("section", { key: "outliers", "aria-labelledby": "outliers-title" },
    h("h2", { id: "outliers-title" }, "Outliers ", h("span", { class: "dim" }, "far from everything, the farthest first")),
    gallery("Examples far from everything", ranked.slice(0, PAGE)));
}
