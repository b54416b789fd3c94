// The theme: light, dark, or as the system says.

import { byId } from "./dom.js";

const LABELS = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };
const NAMES = Object.keys(LABELS);

/**
 * Apply the theme that is kept, and let the button go on to the next.
 *
 * @param {Settings} settings
 * @param {() => void} onChanged after the colours changed
 */
export function setUpTheme(settings, onChanged) {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const wanted = () => (NAMES.includes(settings.values.theme) ? settings.values.theme : "auto");
  const apply = () => {
    const systemTheme = system.matches ? "dark" : "light";
    document.documentElement.dataset.theme = wanted() === "auto" ? systemTheme : wanted();
    byId("theme").setAttribute("aria-label", LABELS[wanted()]);
    byId("theme").title = LABELS[wanted()];
    onChanged();
  };
  system.addEventListener("change", apply);
  byId("theme").addEventListener("click", () => {
    settings.update({ theme: NAMES[(NAMES.indexOf(wanted()) + 1) % NAMES.length] });
    apply();
  });
  apply();
}
