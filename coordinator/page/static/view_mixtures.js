// A run's mixtures: for each target the shares of the sources, and what they are worth.

import { button, count, empty, fixed, html, moment, percent, problem, section, table, tile, tiles } from "./parts.js";
import { get, ofRun } from "./service.js";
import { fetched, perform } from "./store.js";

/** The newest mixtures of a ready run by source, the latest one open. */
export function mixtures(run) {
  if (run.sources.length === 0 || run.state !== "RUN_STATE_READY") return null;
  const key = `mixtures ${run.run_id}`;
  const ask = () => get(ofRun(run, "mixtures"));
  const { value, error, busy } = fetched(key, ask);
  return section("mixtures", "Mixtures", html`
    ${problem(error)}
    ${value?.mixtures.length === 0 && empty("No mixture yet. Fit the shares to a target, in a terminal:",
      `lipt mixture get --run ${run.run_id} --target-data DATA --out mixture.json`)}
    ${value?.mixtures.map(mixture)}
    <p>${button("Refresh", () => perform(key, ask), { disabled: busy })}</p>`, "shares of the sources for a target");
}

function mixture({ target_sha256: target, created_at: made, result }, place) {
  const name = target.slice(0, 10);
  const { shares, losses, verdict, findings, target_examples: size } = result ?? {};
  return html`<details key=${target} open=${place === 0}>
    <summary>Target <code title=${target}>${name}</code>${result && `, ${count(size)} examples`}, ${moment(made)}</summary>
    ${result ? html`<p>${verdict}</p>
      ${losses.merged !== undefined && tiles(tile("held-out loss of the mixture", fixed(losses.merged, 3), "of merged learners, on target examples that the shares were not fitted to"),
        tile("of equal shares", fixed(losses.uniform, 3)), tile("of shares by size", fixed(losses.size, 3)))}
      ${shareChart(`Shares for the target ${name}`, shares)}
      ${findings.length > 0 && html`<ul class="dim">${findings.map((text) => html`<li>${text}</li>`)}</ul>`}`
      : html`<p class="note">Its file is lost, or too large for this page. “lipt mixture get” writes it.</p>`}
  </details>`;
}

/** Shares as bars from 0 to 100%, with their 95% intervals as whiskers. */
const shareChart = (caption, shares) => html`<div class="histogram">${table(caption,
  [["source"], ["0 to 100%", "bars"], ["share", "numeric"], ["95% interval", "numeric"]],
  shares.map(({ source, share, interval: [low, high] }) => ({
    key: source,
    cells: [
      html`<span title=${source}>${source}</span>`,
      html`<svg viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true">
        <rect class="bar" width=${100 * share} height="12" />
        <path class="whisker" d="M${100 * low} 6H${100 * high}M${100 * low} 2v8M${100 * high} 2v8" /></svg>`,
      percent(share), `${fixed(100 * low, 0)} to ${percent(high, 0)}`,
    ],
  })))}</div>`;
