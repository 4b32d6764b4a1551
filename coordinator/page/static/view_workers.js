// @ts-check
// The workers: what each does, when it was heard of, when its certificate ends.

import { h } from "./dom.js";
import { count, moment, number, relative } from "./format.js";
import { badge, empty, table } from "./parts.js";
import { age, now, state } from "./store.js";

const SILENT_SECONDS = 30;
const SOON_MS = 14 * 86_400_000;
const URGENT_MS = 2 * 86_400_000;

const COLUMNS = [
  { name: "worker", class: "long" }, { name: "health", class: "lead" }, { name: "at work on", class: "long" }, { name: "device" },
  { name: "heard" }, { name: "joined" }, { name: "certificate ends" }, { name: "versions" },
];

export const title = () => "Workers";

export function view() {
  return [
    h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Workers ", h("span", { class: "dim" }, state.hasService ? count(state.numWorkers) : ""))),
    state.workers.length === 0
      ? state.hasService ? empty("No workers are here. Start one on every machine that is to train:", "lipt-worker --coordinator HOST:PORT") : h("p", { class: "dim" }, "Asking the coordinator…")
      : table("Workers", COLUMNS, state.workers.map(row)),
    state.numWorkers > state.workers.length && h("p", { class: "dim" }, `${count(state.workers.length)} of ${count(state.numWorkers)} are shown, those at work first.`),
  ];
}

function row(worker) {
  const silence = number(worker.seconds_since_heard) + age() / 1000;
  return {
    key: worker.worker_id,
    cells: [
      h("span", { class: "name", title: worker.worker_id }, worker.name),
      health(worker, silence),
      h("span", { class: "name" }, worker.assignment || h("span", { class: "dim" }, worker.idle_reason || "nothing")),
      worker.device,
      relative(silence),
      moment(worker.joined_at),
      certificate(worker.certificate_expires_at),
      versions(worker.versions),
    ],
  };
}

function health(worker, silence) {
  if (silence > SILENT_SECONDS) return badge({ word: "silent", sign: "!", tone: "bad" });
  if (worker.assignment) return badge({ word: "at work", sign: "▸", tone: "busy" });
  return worker.idle_reason ? badge({ word: "kept from work", sign: "‖", tone: "bad" }) : badge({ word: "waits", sign: "·", tone: "quiet" });
}

function certificate(stamp) {
  if (!stamp) return h("span", { class: "dim" }, "none shown");
  const left = Date.parse(stamp) - now();
  if (left > SOON_MS) return moment(stamp);
  const fate = left <= 0 ? "ended" : left < URGENT_MS ? "ends at once" : "ends soon";
  return h("span", null, badge({ word: fate, sign: "!", tone: "bad" }), " ", moment(stamp));
}

function versions(found) {
  const { lipt, torch, ...others } = found ?? {};
  const all = Object.entries(others).map(([name, version]) => `${name} ${version}`).join(", ");
  return h("span", { class: "dim", title: all || undefined }, [lipt && `lipt ${lipt}`, torch && `torch ${torch}`].filter(Boolean).join(", ") || "–");
}
