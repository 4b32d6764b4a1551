// Dark or light, as the system says or as was chosen here. It runs before anything is drawn, so it
// is no module.
"use strict";

(() => {
  const KEY = "lipt-theme";
  const root = document.documentElement.dataset;
  // A browser may refuse to store anything: the choice holds until the page is closed then.
  const attempt = (act) => { try { return act(); } catch { return null; } };
  const shown = () => root.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const toggle = () => {
    root.theme = shown() === "dark" ? "light" : "dark";
    attempt(() => localStorage.setItem(KEY, root.theme));
  };
  const stored = attempt(() => localStorage.getItem(KEY));
  if (stored === "light" || stored === "dark") root.theme = stored;
  globalThis.liptTheme = { shown, toggle };
})();
