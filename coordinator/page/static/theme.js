// Dark or light, as the system says or as was chosen here; set before anything is drawn, which is
// why this is no module.
"use strict";

(() => {
  const KEY = "lipt-theme";

  /** @returns {"light" | "dark"} what is shown now */
  function shown() {
    const chosen = document.documentElement.dataset.theme;
    if (chosen === "light" || chosen === "dark") return chosen;
    return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  }

  /** @param {string | null} theme */
  function apply(theme) {
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  }

  /** What was chosen is kept where the browser lets a page keep something. */
  function toggle() {
    const next = shown() === "dark" ? "light" : "dark";
    apply(next);
    try {
      localStorage.setItem(KEY, next);
    } catch {
      // It holds until the page is closed then.
    }
  }

  try {
    apply(localStorage.getItem(KEY));
  } catch {
    // As the system says, then.
  }
  Object.assign(globalThis, { liptTheme: { shown, toggle } });
})();
