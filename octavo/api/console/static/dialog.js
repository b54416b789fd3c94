// The dialog of settings.

import { byId, element } from "./dom.js";
import { setUpPresets } from "./presets.js";
import { parseObject, parseTools } from "./request.js";
import { NAMES, NUMBERS, placeholderOf } from "./sampling.js";

const CHECKS = {
  tools: parseTools,
  schema: (text) => parseObject(text, "The JSON schema"),
  extra: (text) => parseObject(text, "The further fields"),
};

/**
 * @param {Settings} settings
 * @param {() => Object|null} server the server's status, if it is known
 * @param {() => void} onClosed after the values were taken over
 * @param {() => void} onForget delete all conversations
 */
export function setUpDialog(settings, { server, onClosed, onForget }) {
  const dialog = byId("settings");
  const form = byId("settings-form");
  const fields = form.elements;
  byId("sampling").append(...NUMBERS.map(({ name, label, help, ...range }) => element("label", { title: help }, label,
    element("input", { ...range, name, type: "number", "aria-description": help }))));

  const read = () => Object.fromEntries(NAMES.map((name) => [name, fields[name].value]));
  const write = (values) => {
    for (const name of NAMES) fields[name].value = values[name] ?? "";
    byId("advanced").open = ["tools", "schema", "extra"].some((name) => fields[name].value);
    showProblems();
  };
  const showProblems = () => {
    const problems = Object.keys(CHECKS).map((name) => {
      const problem = describeProblem(name, fields[name].value);
      byId(`${name}-problem`).textContent = problem;
      return problem;
    });
    return problems.some(Boolean);
  };
  setUpPresets(settings, { read, write });

  byId("open-settings").addEventListener("click", () => {
    for (const { name } of NUMBERS) fields[name].placeholder = placeholderOf(name, server());
    write(settings.values);
    fields.api_key.value = settings.key;
    dialog.showModal();
  });

  // A dialog closes by its button or by Escape; both keep what was entered, unless it makes no sense.
  form.addEventListener("submit", (event) => {
    if (!showProblems()) return;
    event.preventDefault();
    byId("advanced").open = true;
  });
  dialog.addEventListener("close", () => {
    const values = Object.entries(read()).filter(([name, text]) => !describeProblem(name, text));
    settings.update(Object.fromEntries(values));
    settings.key = fields.api_key.value.trim();
    onClosed();
  });

  byId("reset").addEventListener("click", () => write({}));
  byId("forget").addEventListener("click", () => {
    if (window.confirm("Delete all conversations that this browser keeps?")) onForget();
  });
}

function describeProblem(name, text) {
  try {
    CHECKS[name]?.(text);
    return "";
  } catch (error) {
    return error.message;
  }
}
