// Presets: the system prompt and the settings of requests, kept under a name.

import { button, byId, element } from "./dom.js";
import { NAMES } from "./sampling.js";

/**
 * The row of the settings dialog that applies, saves and deletes presets.
 *
 * @param {Settings} settings
 * @param {() => Object} read what the dialog's fields hold
 * @param {(values: Object) => void} write put values into the fields
 */
export function setUpPresets(settings, { read, write }) {
  const choice = byId("preset");
  const name = byId("preset-name");
  const presets = () => settings.values.presets ?? {};
  const keep = (changed) => {
    settings.update({ presets: changed });
    show();
  };
  const show = () => {
    const names = Object.keys(presets()).sort((a, b) => a.localeCompare(b));
    choice.replaceChildren(element("option", { value: "" }, "Choose …"), ...names.map((each) => element("option", { value: each }, each)));
    choice.disabled = !names.length;
  };
  choice.addEventListener("change", () => {
    if (!Object.hasOwn(presets(), choice.value)) return;
    name.value = choice.value;
    write(presets()[choice.value]);
  });
  byId("preset-actions").append(
    button("Save preset", () => {
      const wanted = name.value.trim();
      if (!wanted) {
        name.focus();
        return;
      }
      const values = read();
      keep({ ...presets(), [wanted]: Object.fromEntries(NAMES.map((each) => [each, values[each]])) });
      choice.value = wanted;
    }),
    button("Delete preset", () => {
      const { [name.value.trim()]: _, ...others } = presets();
      keep(others);
      name.value = "";
    }),
  );
  show();
}
