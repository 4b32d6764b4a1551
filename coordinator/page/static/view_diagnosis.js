// The diagnosis: the faults of the data, in numbers and in pictures.

import { histogram } from "./charts.js";
import { count, fixed, percent } from "./format.js";
import { button, field, gallery, head, html, problem, progressLine, section, table, tile, tiles } from "./parts.js";
import { compute, get } from "./service.js";
import { mayAct, perform, state, task, to } from "./store.js";

const SHOWN = 32;

export function diagnosisView() {
  const runId = state.route.query.get("run") ?? "";
  const key = `diagnosis ${runId}`;
  const { value, busy, progress, error } = task(key);
  const diagnose = () => perform(key, async (onProgress) => {
    const { diagnosis } = await compute("/api/DiagnosisService/Diagnose", { run_id: runId }, onProgress);
    return get(`/api/diagnoses/${diagnosis.file.sha256}`);
  });
  const change = (event) => { location.hash = to(["diagnosis"], { run: event.target.value }); };
  return html`
    ${head("Diagnosis")}
    <div class="card ask">
      <div class="fields">
        ${field("seen-by", "Based on", (props) => html`<select ...${props} value=${runId} onChange=${change}>
          <option value="">the data alone</option>
          ${state.runs.filter((run) => run.state === "RUN_STATE_READY").map((run) => html`<option key=${run.run_id} value=${run.run_id}>the learners of ${run.name}</option>`)}</select>`)}
        <div class="field submit">${button(busy ? "Diagnosing…" : "Diagnose", diagnose, { class: "main", disabled: busy || !mayAct("trainer") })}</div>
      </div>
      <p class="dim">Wrong labels, duplicates, outliers, imbalance, and the smallest useful subset. It needs neither a run nor a worker.</p>
      ${busy && progressLine(progress)} ${problem(error)}
    </div>
    ${value && findings(value)}`;
}

const pictures = (id, title, ids, caption) => ids.length > 0 && section(id, title, gallery(title, ids.slice(0, SHOWN), caption), "the worst first");

function findings(found) {
  const { label_errors: errors, duplicates, outliers, imbalance, redundancy, learnability, class_names: names } = found;
  const suspects = new Map(errors.ranked.map((suspect) => [suspect.id, suspect]));
  const caption = (id) => html`<s>${names[suspects.get(id).given]}</s> <b><span class="unseen">looks like </span>${names[suspects.get(id).suggested]}</b>`;
  return html`
    ${tiles(
      tile("suspect labels", count(errors.num_suspects)),
      tile("wrong labels, estimated", percent(errors.noise_rate), `95% interval ${percent(errors.noise_low)} to ${percent(errors.noise_high)}`),
      tile("surplus duplicates", count(duplicates.surplus)), tile("outliers", count(outliers.count)),
      tile("largest to smallest class", `${fixed(imbalance.ratio, 1)} : 1`),
      tile("share that represents 90%", percent(redundancy.share_for_90), "by facility location"),
      tile("suggested fraction", percent(learnability.suggested_fraction, 0), learnability.reason))}
    ${found.worst_fitting.length > 0 ? pictures("worst", "Worst fitting targets", found.worst_fitting)
      : pictures("suspects", "Labels that look wrong", [...suspects.keys()], caption)}
    ${found.confusion.length > 0 && section("confusion", "Confused classes", table("Confused classes",
      [["labelled", "long"], ["looks like", "long"], ["examples", "numeric"], ["of the class", "numeric"]],
      found.confusion.slice(0, 10).map((pair) => ({ key: `${pair.given} ${pair.suggested}`, cells: [names[pair.given], names[pair.suggested], count(pair.count), percent(pair.share)] }))))}
    ${duplicates.groups.length > 0 && section("duplicates", "Duplicates", duplicates.groups.slice(0, 8).map((group, place) =>
      gallery(`Group ${place + 1} of near-duplicates`, group.slice(0, 8))))}
    ${section("balance", "Classes", histogram("Classes of the data", names, [{ name: "number", counts: found.class_counts }]))}
    ${pictures("outliers", "Outliers", outliers.ranked)}`;
}
