// @ts-check
// Numbers, times and names as people read them.

import { h } from "./dom.js";
import { now } from "./store.js";

export const MISSING = "–";

/** Floats come as numbers, or as texts where they are not finite; int64 always as texts. */
export function number(value) {
  const parsed = typeof value === "string" ? Number(value) : value;
  return Number.isFinite(parsed) ? parsed : NaN;
}

/** @param {any} value */
export function count(value) {
  const parsed = number(value);
  return Number.isNaN(parsed) ? MISSING : parsed.toLocaleString("en-US", { maximumFractionDigits: 0 });
}

/** @param {any} value a share @param {number} [digits] */
export function percent(value, digits = 1) {
  const parsed = number(value);
  return Number.isNaN(parsed) ? MISSING : `${(100 * parsed).toFixed(digits)}%`;
}

/** @param {any} value @param {number} digits */
export function fixed(value, digits) {
  const parsed = number(value);
  return Number.isNaN(parsed) ? MISSING : parsed.toFixed(digits);
}

/** "s" for all numbers but 1. @param {any} n @param {string} one @param {string} [many] */
export function plural(n, one, many = `${one}s`) {
  return `${count(n)} ${number(n) === 1 ? one : many}`;
}

/** @param {any} value seconds */
export function duration(value) {
  const seconds = number(value);
  if (Number.isNaN(seconds)) return MISSING;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const whole = Math.floor(seconds);
  const [minutes, hours, days] = [Math.floor(whole / 60), Math.floor(whole / 3600), Math.floor(whole / 86400)];
  if (minutes < 60) return `${minutes} min ${whole % 60} s`;
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${days} d ${hours % 24} h`;
}

/** @param {any} value */
export function bytes(value) {
  let size = number(value);
  if (Number.isNaN(size)) return MISSING;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (size < 1000) return `${size.toFixed(unit === "B" || size >= 100 ? 0 : 1)} ${unit}`;
    size /= 1000;
  }
  return `${size.toFixed(1)} TB`;
}

/**
 * A moment as how long ago it is, or how long away, its exact time at hand.
 *
 * @param {string | number} stamp as the contract has it, or in seconds
 */
export function moment(stamp) {
  const then = typeof stamp === "number" ? stamp * 1000 : Date.parse(stamp);
  if (Number.isNaN(then)) return MISSING;
  const seconds = (now() - then) / 1000;
  const exact = new Date(then);
  return h("time", { datetime: exact.toISOString(), title: exact.toLocaleString() }, relative(seconds));
}

/** @param {number} seconds */
export function relative(seconds) {
  const size = Math.abs(seconds);
  if (size < 5) return "now";
  const text = size < 60 ? `${Math.floor(size / 5) * 5} s`
    : size < 3600 ? `${Math.floor(size / 60)} min`
    : size < 172_800 ? `${Math.floor(size / 3600)} h`
    : `${Math.floor(size / 86_400)} d`;
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

/** "RUN_STATE_TRAINING" as "training". @param {string} name @param {string} prefix */
export function word(name, prefix) {
  return String(name ?? "").replace(prefix, "").toLowerCase().replaceAll("_", " ");
}

/** @param {string} text @param {number} length */
export function shortened(text, length) {
  return text.length <= length ? text : `${text.slice(0, length - 1)}…`;
}
