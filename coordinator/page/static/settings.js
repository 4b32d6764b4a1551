// @ts-check
// A run's settings by their dotted names, as run.toml and `--set` have them.

import { word } from "./format.js";

/** @param {any} config RunConfig @returns {[string, string][]} */
export function settingsOf(config) {
  return Object.entries(config ?? {}).flatMap(([name, value]) =>
    value !== null && typeof value === "object" && !Array.isArray(value)
      ? /** @type {[string, string][]} */ (settingsOf(value).map(([below, text]) => [`${name}.${below}`, text]))
      : [/** @type {[string, string]} */ ([name, told(value)])]);
}

function told(value) {
  if (Array.isArray(value)) return value.length > 0 ? value.join(", ") : "–";
  const text = String(value);
  // An enum's name is that of its type and then the value: WEIGHT_ENCODING_BITMASK.
  const kind = /^(PRECISION|WEIGHT_ENCODING|AUGMENTATION_METHOD|PRUNING_METHOD|SOUP_METHOD)_/.exec(text);
  return kind ? word(text, kind[0]).replaceAll(" ", "_") : text;
}

/**
 * Lines of NAME=VALUE as nested settings; values are numbers and booleans where they read as such.
 *
 * @param {string} text
 * @returns {Record<string, any>}
 */
export function readLines(text) {
  const settings = {};
  for (const line of text.split("\n").map((each) => each.trim()).filter(Boolean)) {
    const [name, ...rest] = line.split("=");
    if (rest.length === 0 || name.trim() === "") throw new Error(`“${line}” is not NAME=VALUE. Example: soup.num_alphas=5`);
    setAt(settings, name.trim(), valueOf(rest.join("=").trim()));
  }
  return settings;
}

/** @param {Record<string, any>} settings @param {string} name dotted @param {any} value */
export function setAt(settings, name, value) {
  const parts = name.split(".");
  const last = /** @type {string} */ (parts.pop());
  let place = settings;
  for (const part of parts) {
    if (!Object.hasOwn(place, part)) Object.defineProperty(place, part, { value: {}, enumerable: true });
    place = place[part];
  }
  Object.defineProperty(place, last, { value, enumerable: true, configurable: true, writable: true });
}

function valueOf(text) {
  if (/^["'].*["']$/.test(text)) return text.slice(1, -1);
  if (text === "true" || text === "false") return text === "true";
  return text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
}
