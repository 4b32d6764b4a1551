// @ts-check
// Signing in with a token, where one has not come by a link of `lipt dashboard`.

import { post } from "./api.js";
import { h } from "./dom.js";
import { problem } from "./parts.js";
import { changed, state } from "./store.js";

let busy = false;
let refused = "";

/** @param {(me: {name: string, roles: string[]}) => void} signedIn */
export function signInForm(signedIn) {
  return [
    h("section", { class: "sign-in", key: "sign-in" },
      h("h1", { tabindex: "-1" }, "Sign in"),
      state.signIn.message && h("p", { class: "problem", role: "alert" }, state.signIn.message),
      h("p", null, "On a machine with access, this prints a link that signs you in:"),
      h("pre", { tabindex: "0" }, h("code", null, "lipt dashboard")),
      h("p", null, "Or paste a token. An admin makes one with ", h("code", null, "lipt token create --role trainer"), "."),
      h("form", { on: { submit: (/** @type {SubmitEvent} */ event) => void submit(event, signedIn) } },
        h("div", { class: "field" }, h("label", { for: "token" }, "Token"),
          h("input", { id: "token", name: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true, "aria-describedby": refused ? "token-problem" : undefined })),
        refused && h("div", { id: "token-problem", key: "refused" }, problem(refused)),
        h("div", { class: "actions" }, h("button", { type: "submit", class: "main", disabled: busy }, busy ? "Signing in…" : "Sign in")))),
  ];
}

/** @param {SubmitEvent} event @param {(me: any) => void} signedIn */
async function submit(event, signedIn) {
  event.preventDefault();
  const input = /** @type {HTMLInputElement} */ (/** @type {HTMLFormElement} */ (event.target).elements.namedItem("token"));
  busy = true;
  refused = "";
  changed();
  try {
    const me = await post("/api/sign-in", { token: input.value.trim() });
    input.value = "";
    signedIn(me);
  } catch (error) {
    refused = /** @type {Error} */ (error).message;
  }
  busy = false;
  changed();
}
