// @ts-check
// Dialogs: the browser's own, which keep the focus inside and give it back at the end.

import { h, patch } from "./dom.js";
import { button, problem } from "./parts.js";

/** What is open: a function of nothing to its content. @type {{title: string, content: () => any[], wide?: boolean} | null} */
let open = null;

/** @param {string} title @param {() => any[]} content called at every drawing */
export function openDialog(title, content) {
  open = { title, content };
  drawDialog();
}

export function closeDialog() {
  const element = /** @type {HTMLDialogElement | null} */ (document.querySelector("#dialogs dialog"));
  if (element?.open) element.close();
}

export function drawDialog() {
  const place = /** @type {Element} */ (document.getElementById("dialogs"));
  patch(place, open === null ? [] : [
    h("dialog", {
      key: open.title, "aria-labelledby": "dialog-title",
      made: (/** @type {HTMLDialogElement} */ element) => element.showModal(),
      on: {
        close: () => {
          open = null;
          drawDialog();
        },
      },
    }, h("h2", { id: "dialog-title" }, open.title), open.content()),
  ]);
}

/**
 * Ask before what cannot be taken back.
 *
 * @param {string} title @param {string} text @param {string} action @param {() => Promise<string>} act gives why not, if not
 */
export function confirmFirst(title, text, action, act) {
  let busy = false;
  let refused = "";
  openDialog(title, () => [
    h("p", null, text), problem(refused),
    h("div", { class: "actions" },
      button("Keep it", closeDialog, { autofocus: true }),
      button(busy ? "…" : action, async () => {
        busy = true;
        drawDialog();
        refused = await act();
        busy = false;
        if (refused === "") closeDialog();
        else drawDialog();
      }, { class: "danger", disabled: busy })),
  ]);
}
