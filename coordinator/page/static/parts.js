// Small pieces that several views are made of. Texts become text nodes: no markup is ever read.

import { count, MISSING, number, relative } from "./format.js";
import { post } from "./service.js";
import { changed, now, say } from "./store.js";
import { html } from "./vendor/htm-preact.js";

export { html };

export const badge = ({ word, sign, tone }) => html`
  <span class="badge ${tone}"><span class="sign" aria-hidden="true">${sign}</span>${word}</span>`;

export const tile = (name, value, title) => html`
  <div class="tile" key=${name} title=${title}><dt>${name}</dt><dd>${value}</dd></div>`;

export const tiles = (...found) => html`<dl class="tiles">${found}</dl>`;

/** A view's heading with what can be done there. */
export const head = (title, actions, crumbs) => html`
  <div class="head">
    <div>${crumbs && html`<p class="crumbs">${crumbs}</p>`}<h1 tabindex="-1">${title}</h1></div>
    ${actions && html`<div class="actions">${actions}</div>`}
  </div>`;

export const section = (id, title, content, hint) => html`
  <section key=${id} aria-labelledby="${id}-title">
    <h2 id="${id}-title">${title} ${hint && html`<span class="dim">${hint}</span>`}</h2>
    ${content}
  </section>`;

/** A table; columns: [name, class], the first heads the row; rows: {key, cells, class}. */
export const table = (caption, columns, rows) => html`
  <div class="wide" role="region" aria-label=${caption} tabindex="0"><table>
    <caption class="unseen">${caption}</caption>
    <thead><tr>${columns.map(([name, kind]) => html`<th scope="col" class=${kind}>${name}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.key} class=${row.class}>${row.cells.map((cell, place) => (place === 0
      ? html`<th scope="row">${cell}</th>` : html`<td class=${columns[place][1]}>${cell}</td>`))}</tr>`)}</tbody>
  </table></div>`;

export function bar(done, total, label) {
  const whole = number(total) > 0 ? number(total) : 1;
  const value = number(total) > 0 ? Math.min(number(done), whole) : undefined;
  return html`<progress max=${whole} value=${value} aria-label=${label} />`;
}

/** Progress of a computation that was requested. */
export function progressLine(progress) {
  const { activity, done, total, ahead } = progress ?? {};
  const text = number(ahead) > 0
    ? `queued, ${count(ahead)} ahead`
    : `${activity || "beginning"}${number(total) > 0 ? `, ${count(done)} of ${count(total)}` : ""}`;
  return html`<p class="progress">${bar(done, total, "progress")} ${text}</p>`;
}

export const problem = (text) => text && html`<p class="problem" role="alert">${text}</p>`;

export const commands = (...lines) => html`<pre tabindex="0"><code>${lines.join("\n")}</code></pre>`;

/** What to do where there is nothing to see. */
export const empty = (text, ...lines) => html`
  <div class="empty"><p>${text}</p>${lines.length > 0 && commands(...lines)}</div>`;

export const waiting = () => html`<p class="dim">Asking the coordinator…</p>`;

export const button = (text, act, props) => html`<button type="button" onClick=${act} ...${props}>${text}</button>`;

export const submit = (text, busy, busyText) => html`
  <button type="submit" class="main" disabled=${busy !== false}>${busy === true ? busyText : text}</button>`;

/** A field with its label and a hint; `control` makes the control from its id and aria properties. */
export const field = (id, name, control, hint) => html`
  <div class="field" key=${id}>
    <label for=${id}>${name}</label>
    ${control({ id, "aria-describedby": hint && `${id}-hint` })}
    ${hint && html`<p class="hint" id="${id}-hint">${hint}</p>`}
  </div>`;

/** A moment as how long ago it is; `stamp` is a text of the contract, or seconds. */
export function moment(stamp) {
  const then = typeof stamp === "number" ? stamp * 1000 : Date.parse(stamp);
  if (Number.isNaN(then)) return MISSING;
  const exact = new Date(then);
  return html`<time datetime=${exact.toISOString()} title=${exact.toLocaleString()}>${relative((now() - then) / 1000)}</time>`;
}

const PICTURES_AT_ONCE = 64;
// By id: the picture, or null while it is on its way.
const pictures = new Map();

async function fetchPictures(missing) {
  for (const id of missing) pictures.set(id, null);
  for (let start = 0; start < missing.length; start += PICTURES_AT_ONCE) {
    const ids = missing.slice(start, start + PICTURES_AT_ONCE);
    const answer = await post("/api/pictures", { ids }).catch((error) => say(`No pictures: ${error.message}`, "bad"));
    for (const picture of answer?.pictures ?? []) pictures.set(picture.id, picture);
  }
  changed();
}

addEventListener("coordinator-back", () => {
  for (const [id, picture] of pictures) if (picture === null) pictures.delete(id);
});

/** Pictures of examples with their ids and captions: their class where none is given. */
export function gallery(label, ids, caption = (_, picture) => picture.class_name) {
  const wanted = ids.map(Number);
  const missing = wanted.filter((id) => !pictures.has(id));
  if (missing.length > 0) void fetchPictures(missing);
  return html`
    <ul class="gallery" aria-label=${label}>${wanted.map((id) => {
      const picture = pictures.get(id);
      return html`<li key=${id}><figure>
        ${thumbnail(id, picture)}
        <figcaption><span class="dim">${id}</span> ${picture && caption(id, picture)}</figcaption>
      </figure></li>`;
    })}</ul>`;
}

function thumbnail(id, picture) {
  if (!picture) return html`<div class="no-picture">…</div>`;
  // Nothing but a picture in the answer itself is ever loaded.
  if (picture.png?.startsWith("data:image/png;base64,")) {
    return html`<img src=${picture.png} alt="example ${id}, labelled ${picture.class_name}" />`;
  }
  return html`<div class="no-picture text">${picture.text ?? "no picture"}</div>`;
}
