// The diagnosis: the faults of the data, in numbers first and then in pictures.

import { histogram, learningCurve } from "./charts.js";
import { count, fixed, number, percent, plural } from "./format.js";
import { button, field, gallery, head, html, problem, progressLine, section, table, tile, tiles } from "./parts.js";
import { compute } from "./service.js";
import { changed, mayAct, perform, state, task, to } from "./store.js";

const AT_ONCE = 24;

// How many suspects are shown, by diagnosis.
const numShown = new Map();

export function diagnosisView() {
  const runId = state.route.query.get("run") ?? "";
  const key = `diagnosis ${runId}`;
  const { value, busy, progress, error } = task(key);
  const diagnose = () => perform(key, (onProgress) => compute("/api/diagnosis", { run_id: runId }, onProgress));
  const ready = state.runs.filter((run) => run.state === "RUN_STATE_READY");
  const change = (event) => { location.hash = to(["diagnosis"], { run: event.target.value }); };
  return html`
    ${head("Diagnosis")}
    <div class="card ask">
      <div class="fields">
        ${field("seen-by", "Seen by", (props) => html`<select ...${props} value=${runId} onChange=${change}>
          <option value="">the data alone</option>
          ${ready.map((run) => html`<option key=${run.run_id} value=${run.run_id}>the learners of ${run.name}</option>`)}</select>`)}
        <div class="field submit">${button(busy ? "Looking…" : value ? "Look again" : "Look at the data", diagnose, { class: "main", disabled: busy || !mayAct("trainer") })}</div>
      </div>
      ${!value && !busy && html`<p class="dim">Wrong labels, duplicates, outliers, imbalance, and what a subset could be worth. It needs neither a run nor a worker; learners of a run help it to see.</p>`}
      ${busy && progressLine(progress)} ${problem(error)}
    </div>
    ${value && findings(key, value.diagnosis)}`;
}

const findings = (key, found) => html`
  ${summary(found)}
  ${found.worst_fitting.length > 0
    // Where targets are no classes, no label is called wrong.
    ? section("worst", "Worst fitting", gallery("Examples whose target fits worst", found.worst_fitting.slice(0, AT_ONCE)), "targets that a head which has not seen them misses by most")
    : suspects(key, found)}
  ${confusion(found)} ${duplicates(found)} ${balance(found)} ${learnability(found)}
  ${found.outliers.ranked.length > 0 && section("outliers", "Outliers", gallery("Examples far from everything", found.outliers.ranked.slice(0, AT_ONCE)), "far from everything, the farthest first")}`;

function summary({ label_errors: errors, duplicates: copies, outliers, imbalance, redundancy, learnability: learnable }) {
  return tiles(
    tile("suspect labels", count(errors.num_suspects)),
    tile("wrong labels, estimated", percent(errors.noise_rate), `95% interval ${percent(errors.noise_low)} to ${percent(errors.noise_high)}`),
    tile("duplicates too many", count(copies.surplus)),
    tile("outliers", count(outliers.count)),
    imbalance && tile("largest to smallest class", `${fixed(imbalance.ratio, 1)} : 1`),
    redundancy && tile("stands for 90% of the data", percent(redundancy.share_for_90), "by facility location"),
    learnable && tile("fraction worth asking for", percent(learnable.suggested_fraction, 0)));
}

function suspects(key, { suspects: all, class_names: names }) {
  const shown = Math.min(numShown.get(key) ?? AT_ONCE, all.length);
  const byId = new Map(all.map((each) => [Number(each.id), each]));
  const caption = (id) => {
    const { given, suggested } = byId.get(id);
    return html`<s>${names[given]}</s> <b><span class="unseen">looks like </span>${names[suggested]}</b>`;
  };
  const showMore = () => {
    numShown.set(key, shown + AT_ONCE);
    changed();
  };
  return section("suspects", "Suspects", html`
    ${all.length === 0 ? html`<p class="dim">No label looks wrong.</p>` : gallery("Examples whose label looks wrong", all.slice(0, shown).map(({ id }) => id), caption)}
    ${shown < all.length && button(`Show ${count(Math.min(AT_ONCE, all.length - shown))} of ${count(all.length - shown)} more`, showMore)}`,
  all.length > 0 && "labels that look wrong, the worst first");
}

function confusion({ confusion: pairs, class_names: names }) {
  if (!pairs?.length) return null;
  const columns = [["labelled", "long"], ["looks like", "long"], ["examples", "numeric"], ["of the class", "numeric"]];
  return section("confusion", "Classes taken for each other", table("Classes taken for each other", columns, pairs.slice(0, 10).map((pair) => ({
    key: `${pair.given} ${pair.suggested}`, cells: [names[pair.given], names[pair.suggested], count(pair.count), percent(pair.share)],
  }))));
}

function duplicates({ duplicates: found, groups }) {
  return section("duplicates", "Duplicates", html`
    <p>${plural(found.exact_groups, "group")} of the same, ${count(found.near_groups)} of nearly the same; ${count(found.surplus)} would go if one of each stayed; ${plural(found.conflicting, "group has", "groups have")} more than one label.</p>
    ${groups.length > 0 && html`<ol class="groups">${groups.slice(0, 12).map((group, place) => html`<li key=${place}>
      ${gallery(`Group ${place + 1} of examples that are alike`, group.slice(0, 8))}
      ${group.length > 8 && html`<p class="dim">and ${count(group.length - 8)} more</p>`}
    </li>`)}</ol>`}`);
}

function balance({ class_names: names, class_counts: counts, imbalance }) {
  if (!names || !counts) return null;
  const told = (label) => `${count(counts[label])} (${names[label]})`;
  return section("balance", "Classes", html`
    ${imbalance && html`<p>From ${told(imbalance.smallest)} to ${told(imbalance.largest)}: as many as ${fixed(imbalance.effective_classes, 1)} equal classes.</p>`}
    ${histogram("Classes of the data", names, [{ name: "number", counts: counts.map(Number) }])}`);
}

function learnability({ learnability: found }) {
  if (!found?.sizes?.length) return null;
  return section("learnability", "What is learnable", html`<p>${found.why}</p>${learningCurve(found.sizes.map(number), found.accuracies.map(number))}`);
}
