// The subsets of a run: chosen, listed, and one or two of them with their examples.

import { ExampleMap, histogram } from "./charts.js";
import { count, duration, number, percent } from "./format.js";
import { button, empty, field, gallery, html, moment, problem, progressLine, submit, table, tile, tiles } from "./parts.js";
import { call, compute, get, ofRun } from "./service.js";
import { changed, fetched, mayAct, perform, runById, state, task, to } from "./store.js";
import { noRun, runHead } from "./view_run.js";

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

// Selected in the form; its other fields are the browser's.
const selected = { strategy: "auto", unit: "percent" };
const select = (what) => (event) => {
  selected[what] = event.target.value;
  changed();
};

function subsetForm(run) {
  const strategies = fetched("strategies", () => call("SubsetService/ListStrategies")).value?.strategies ?? [];
  const strategy = strategies.find((each) => each.name === selected.strategy);
  const choosing = task(`choose of ${run.run_id}`);
  const ready = run.state === "RUN_STATE_READY";
  return html`<form class="card ask" aria-label="Select a subset" onSubmit=${(event) => choose(event, run)}>
    <div class="fields">
      ${field("strategy", "Strategy", (props) => html`<select ...${props} name="strategy" value=${selected.strategy} onChange=${select("strategy")}>
        ${strategies.map(({ name }) => html`<option key=${name} value=${name}>${name}</option>`)}</select>`)}
      ${field("size", "Keep", (props) => html`<input ...${props} name="size" type="number" min="0" step="any" required defaultValue="10" />`)}
      ${field("unit", "of them, in", (props) => html`<select ...${props} name="unit" value=${selected.unit} onChange=${select("unit")}>
        <option value="percent">percent of the data</option><option value="examples">examples</option></select>`)}
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
  return field(`option-${strategy.name}-${name}`, name, (props) => (isListed
    ? html`<select ...${props} name="option ${name}"><option value="">${preset} (default)</option>
        ${allowed.filter((value) => value !== preset).map((value) => html`<option key=${value} value=${value}>${value}</option>`)}</select>`
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
  const answer = await perform(`choose of ${run.run_id}`, (onProgress) =>
    compute("/api/SubsetService/GetSubset", { run_id: run.run_id, strategy, options, ...amount }, onProgress));
  if (!answer) return;
  const { digest } = answer.subset;
  await perform(`subsets ${run.run_id}`, () => get(ofRun(run, "subsets")));
  location.hash = to(["runs", run.run_id, "subsets"], { show: digest });
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
    ${words.length > 0 && html`<ul class="words">${words.map((text) => html`<li>${String(text)}</li>`)}</ul>`}
    ${manifest?.stopped_early && html`<p class="note">${String(manifest.stopped_early)}</p>`}`;
}
