// @ts-check
// Where one is, kept in the address after "#": pages can be linked to, and "back" goes back.

import { changed, state } from "./store.js";

/** @param {string} hash @returns {{parts: string[], query: URLSearchParams}} */
export function read(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decoded);
  return { parts: parts.length > 0 ? parts : ["runs"], query: new URLSearchParams(query) };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** @param {string[]} parts @param {Record<string, string | undefined>} [query] @returns {string} for an href */
export function to(parts, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value);
  const tail = given.length > 0 ? `?${new URLSearchParams(/** @type {any} */ (given))}` : "";
  return `#/${parts.map(encodeURIComponent).join("/")}${tail}`;
}

/** @param {string} href */
export function go(href) {
  location.hash = href;
}

/** @param {() => void} moved called when one has gone elsewhere, not for a change of the query */
export function follow(moved) {
  state.route = read(location.hash);
  addEventListener("hashchange", () => {
    const before = state.route.parts.join("/");
    state.route = read(location.hash);
    if (state.route.parts.join("/") !== before) moved();
    changed();
  });
}
