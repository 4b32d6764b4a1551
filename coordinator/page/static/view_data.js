// The data: the subsets of a run, listed and with their examples, and the diagnosis of its faults.

import { ExampleMap, gallery, histogram } from "./charts.js";
import { button, choice, count, duration, empty, field, fixed, head, html, moment, number, percent, problem, progressLine, section, submit, table, tile, tiles } from "./parts.js";
import { call, compute, get, ofRun } from "./service.js";
import { changed, fetched, mayAct, perform, runById, state, task, to } from "./store.js";
import { noRun, runHead } from "./view_service.js";

export function subsetsView() {
  const run = runById(state.route.parts[1]);
  if (!run) return noRun();
  const list = fetched(`subsets ${run.run_id}`, () => get(ofRun(run, "subsets")));
  const subsets = list.value?.subsets ?? [];
  const digests = ["show", "beside"].map((name) => state.route.query.get(name)).filter((digest) => subsets.some((subset) => subset.digest === digest));
  // The list leaves classes and examples out.
  const shown = digests.length > 0 && fetched(`details ${digests.join(" ")}`, () => get(ofRun(run, "subsets", digests.join("/beside/"))));
  return html`
    ${runHead(run, "Subsets")}
    ${mayAct("trainer") && subsetForm(run)}
    ${problem(list.error)}
    ${subsets.length > 0 ? subsetsTable(run, subsets, digests) : list.value && empty(run.state === "RUN_STATE_READY"
      ? "This run has no subset yet. Select one above, or in a terminal:" : "Once the run is ready, select subsets here, or in a terminal:",
    `lipt subset get --run ${run.run_id} --fraction 0.1 --out subset.npy`)}
    ${shown && (shown.value ? details(run, shown.value) : problem(shown.error) || html`<p class="dim">Fetching the subset…</p>`)}`;
}

let selected = "auto"; // in the form; its other fields are the browser's

function subsetForm(run) {
  const strategies = fetched("strategies", () => call("SubsetService/ListStrategies")).value?.strategies ?? [];
  const strategy = strategies.find((each) => each.name === selected);
  const select = (event) => {
    selected = event.target.value;
    changed();
  };
  const choosing = task(`choose of ${run.run_id}`);
  const ready = run.state === "RUN_STATE_READY";
  return html`<form class="card ask" aria-label="Select a subset" onSubmit=${(event) => choose(event, run)}>
    <div class="fields">
      ${field("strategy", "Strategy", (props) => choice({ ...props, name: "strategy", value: selected, onChange: select }, strategies.map(({ name }) => [name])))}
      ${field("size", "Keep", (props) => html`<input ...${props} name="size" type="number" min="0" step="any" required defaultValue="10" />`)}
      ${field("unit", "of them, in", (props) => choice({ ...props, name: "unit" }, [["percent", "percent of the data"], ["examples"]]))}
      <div class="field submit">${submit("Choose", ready ? choosing.busy : "not ready", "Choosing…")}</div>
    </div>
    ${strategy && html`<p class="dim">${strategy.name}: ${strategy.summary}. ${strategy.paper}</p>`}
    ${strategy?.options.length > 0 && html`<details key=${strategy.name}>
      <summary>Options of ${strategy.name}</summary>
      <div class="fields">${strategy.options.map((option) => optionField(strategy, option))}</div>
    </details>`}
    ${!ready && html`<p class="note">Subsets can be chosen once the run is ready.</p>`}
    ${choosing.busy && progressLine(choosing.progress)}
    ${problem(choosing.error)}
  </form>`;
}

function optionField(strategy, { name, default_value: preset, allowed_values: allowed, help }) {
  // Values are listed by name, or described: "integer >= 1", "epochs:N".
  const isListed = allowed.length > 1 && allowed.every((value) => /^[\w.-]+$/.test(value));
  const others = allowed.filter((value) => value !== preset).map((value) => [value]);
  return field(`option-${strategy.name}-${name}`, name, (props) => (isListed
    ? choice({ ...props, name: `option ${name}` }, [["", `${preset} (default)`], ...others])
    : html`<input ...${props} name="option ${name}" type="text" autocomplete="off" spellcheck=${false} placeholder=${preset} />`), help);
}

async function choose(event, run) {
  event.preventDefault();
  const form = [...new FormData(event.target)];
  const { strategy, size, unit } = Object.fromEntries(form);
  const options = Object.fromEntries(form.filter(([name, value]) => name.startsWith("option ") && value !== "")
    .map(([name, value]) => [name.slice("option ".length), value]));
  // Rounded: 7 percent are 0.07 and not 0.07000000000000001.
  const amount = unit === "percent" ? { fraction: Number((size / 100).toPrecision(12)) } : { budget: Math.round(size) };
  const answer = await perform(`choose of ${run.run_id}`, async (onProgress) => {
    const found = await compute("/api/SubsetService/GetSubset", { run_id: run.run_id, strategy, options, ...amount }, onProgress);
    // Before the next choice can begin: the last one is shown.
    await perform(`subsets ${run.run_id}`, () => get(ofRun(run, "subsets")));
    return found;
  });
  if (answer) location.hash = to(["runs", run.run_id, "subsets"], { show: answer.subset.digest });
}

function subsetsTable(run, subsets, [first, second]) {
  const href = (query) => to(["runs", run.run_id, "subsets"], query);
  const columns = [["strategy", "long"], ["examples", "numeric"], ["of data", "numeric"], ["created"], ["digest"], ["show"]];
  return table("Subsets, newest first", columns, subsets.map(({ digest, strategy, num_examples: size, fraction, created_at: made }) => ({
    key: digest,
    class: digest === first || digest === second ? "chosen" : undefined,
    cells: [
      html`<span class="name">${strategy}</span>`, count(size), percent(fraction), moment(made),
      html`<code title=${digest}>${digest.slice(0, 10)}</code>`,
      html`<a href=${href({ show: digest })} aria-current=${digest === first && !second ? "true" : undefined}>Show<span class="unseen"> ${strategy}</span></a>
        ${first && first !== digest && digest !== second && html` · <a href=${href({ show: first, beside: digest })}>Side by side<span class="unseen"> with ${strategy}</span></a>`}`,
    ],
  })));
}

function details(run, { subsets, overlap }) {
  const names = subsets.map(({ strategy, fraction, digest }) => `${strategy} ${percent(fraction, fraction < 0.01 ? 2 : 0)}${subsets.length > 1 ? ` (${digest.slice(0, 6)})` : ""}`);
  const { classes } = subsets[0];
  const columns = (show) => html`<div class="columns">${subsets.map((subset, place) => html`<div key=${subset.digest}>${show(subset, names[place])}</div>`)}</div>`;
  return html`<section key=${subsets.map(({ digest }) => digest).join(" ")} aria-labelledby="details-title">
    <h2 id="details-title">${names.join(" and ")}</h2>
    ${overlap && tiles(tile("in both", count(overlap.shared)), tile("overlap", percent(overlap.jaccard), "in both, of those in either (Jaccard)"),
      tile("in both by chance", count(overlap.by_chance), "of two random draws with the same class counts"))}
    ${subsets.length > 1 && !overlap && html`<p class="note">The subsets belong to other data. Serve that data again to compare them.</p>`}
    ${columns(facts)}
    ${classes.length > 0 && html`<h3>Classes</h3>${histogram(`Classes of ${names.join(" and of ")}`, classes.map(({ name }) => name),
      subsets.map((subset, place) => ({ name: names[place], counts: subset.classes.map((each) => each.in_subset) })), classes.map((each) => each.in_data))}`}
    ${mapOf(run, subsets, names)}
    ${columns(samples)}
  </section>`;
}

function mapOf(run, subsets, names) {
  const digests = subsets.map(({ digest }) => digest);
  const key = `map ${digests.join(" ")}`;
  const { value, busy, progress, error } = task(key);
  const draw = () => perform(key, (onProgress) => compute(ofRun(run, "map"), { digests }, onProgress));
  return html`<h3>Map of the examples</h3>
    ${!value && (busy ? progressLine(progress) : button("Draw the map", draw))} ${problem(error)}
    ${value && html`<div class="columns">${names.map((name, place) => html`<figure key=${place}>
      <${ExampleMap} map=${value} place=${place} name=${name} />
      <figcaption class="dim">A sample of the examples by the soup's features (PCA). Large: chosen by ${name}. The colour is the class.</figcaption>
    </figure>`)}</div>`}`;
}

const samples = (subset, name) => [
  [`Chosen by ${name}`, subset.weights.weighted ? "the largest weights first" : "a random sample", subset.chosen],
  [`Not chosen by ${name}`, "a random sample", subset.not_chosen],
].map(([title, order, ids]) => html`
  <h3>${title} <span class="dim">${order}</span></h3>
  ${gallery(title, ids)}`);

function facts({ num_examples: size, fraction, weights, manifest }) {
  const costs = manifest?.costs ?? {};
  const words = manifest?.findings?.words ?? [];
  return html`
    ${tiles(tile("examples", `${count(size)} · ${percent(fraction)}`),
      tile("weights", weights.weighted ? `${number(weights.min).toPrecision(3)} to ${number(weights.max).toPrecision(3)}` : "all equal"),
      costs.selection_seconds !== undefined && tile("chosen in", duration(costs.selection_seconds)))}
    ${words.length > 0 && html`<ul class="dim">${words.map((text) => html`<li>${String(text)}</li>`)}</ul>`}
    ${manifest?.stopped_early && html`<p class="note">${String(manifest.stopped_early)}</p>`}`;
}

export function diagnosisView() {
  const runId = state.route.query.get("run") ?? "";
  const key = `diagnosis ${runId}`;
  const { value, busy, progress, error } = task(key);
  const diagnose = () => perform(key, async (onProgress) => {
    const { diagnosis } = await compute("/api/DiagnosisService/Diagnose", { run_id: runId }, onProgress);
    return get(`/api/diagnoses/${diagnosis.file.sha256}`);
  });
  const change = (event) => { location.hash = to(["diagnosis"], { run: event.target.value }); };
  const learners = state.runs.filter((run) => run.state === "RUN_STATE_READY").map((run) => [run.run_id, `the learners of ${run.name}`]);
  return html`
    ${head("Diagnosis")}
    <div class="card ask">
      <div class="fields">
        ${field("seen-by", "Based on", (props) => choice({ ...props, value: runId, onChange: change }, [["", "the data alone"], ...learners]))}
        <div class="field submit">${button(busy ? "Diagnosing…" : "Diagnose", diagnose, { class: "main", disabled: busy || !mayAct("trainer") })}</div>
      </div>
      <p class="dim">Wrong labels, duplicates, outliers, imbalance, and the smallest useful subset. It needs neither a run nor a worker.</p>
      ${busy && progressLine(progress)} ${problem(error)}
    </div>
    ${value && findings(value)}`;
}

const pictures = (id, title, ids, caption) => ids.length > 0 && section(id, title, gallery(title, ids.slice(0, 32), caption), "the worst first");

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
