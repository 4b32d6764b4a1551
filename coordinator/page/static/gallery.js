// @ts-check
// Pictures of examples, fetched once each and shown with what they are.

import { post } from "./api.js";
import { h } from "./dom.js";
import { changed } from "./store.js";

const MOST_AT_ONCE = 64;

/** By id: the picture, or null while it is on its way. @type {Map<number, any>} */
const pictures = new Map();
let failed = "";
let away = false;

/** Ask again for what could not be had, once the coordinator is back. */
export function askAgain() {
  if (!away) return;
  away = false;
  failed = "";
  for (const [id, picture] of pictures) if (picture === null) pictures.delete(id);
  changed();
}

/** @param {number[]} ids */
async function fetchMissing(ids) {
  const missing = ids.filter((id) => !pictures.has(id));
  for (const id of missing) pictures.set(id, null);
  for (let start = 0; start < missing.length; start += MOST_AT_ONCE) {
    try {
      const answer = await post("/api/pictures", { ids: missing.slice(start, start + MOST_AT_ONCE) });
      for (const picture of answer.pictures) pictures.set(Number(picture.id), picture);
    } catch (error) {
      failed = /** @type {Error} */ (error).message;
      away = true;
    }
  }
  if (missing.length > 0) changed();
}

/**
 * @param {string} label of the whole, for those who do not see it
 * @param {(number | string)[]} ids
 * @param {(id: number, picture: any) => any} [caption] what is said of each; its class where not given
 */
export function gallery(label, ids, caption = (_, picture) => picture.class_name) {
  const wanted = ids.map(Number);
  if (wanted.some((id) => !pictures.has(id))) void fetchMissing(wanted);
  return h("div", { class: "gallery-box" },
    failed && h("p", { class: "problem" }, `No pictures: ${failed}`),
    h("ul", { class: "gallery", "aria-label": label }, wanted.map((id) => {
      const picture = pictures.get(id);
      return h("li", { key: id }, h("figure", null, shown(id, picture),
        h("figcaption", null, h("span", { class: "dim" }, `${id}`), " ", picture ? caption(id, picture) : "")));
    })));
}

function shown(id, picture) {
  if (!picture) return h("div", { class: "no-picture", key: "none" }, "…");
  // Nothing but a picture in the answer itself is ever loaded.
  if (typeof picture.png === "string" && picture.png.startsWith("data:image/png;base64,")) {
    return h("img", { key: "picture", src: picture.png, alt: `example ${id}, labelled ${picture.class_name}` });
  }
  return h("div", { class: "no-picture text", key: "text" }, picture.text ?? "no picture");
}
