// The dialog of settings.

import { parseTools } from "./answer.js";
import { byId } from "./dom.js";

const NAMES = ["system", "temperature", "top_p", "max_tokens", "seed", "tools"];

/**
 * @param {Settings} settings
 * @param {() => void} onClosed after the values were taken over
 * @param {() => void} onForget delete all conversations
 */
export function setUpDialog(settings, { onClosed, onForget }) {
  const dialog = byId("settings");
  const form = byId("settings-form");
  const problem = byId("tools-problem");
  const fields = form.elements;

  byId("open-settings").addEventListener("click", () => {
    for (const name of NAMES) fields[name].value = settings.values[name] ?? "";
    fields.api_key.value = settings.key;
    problem.textContent = "";
    dialog.showModal();
  });

  // A dialog closes by its button or by Escape; both keep what was entered, unless it makes no sense.
  form.addEventListener("submit", (event) => {
    problem.textContent = describeProblem(fields.tools.value);
    if (problem.textContent) event.preventDefault();
  });
  dialog.addEventListener("close", () => {
    const values = Object.fromEntries(NAMES.map((name) => [name, fields[name].value]));
    if (describeProblem(values.tools)) delete values.tools;
    settings.update(values);
    settings.key = fields.api_key.value.trim();
    onClosed();
  });

  byId("forget").addEventListener("click", () => {
    if (window.confirm("Delete all conversations that this browser keeps?")) onForget();
  });
}

function describeProblem(tools) {
  try {
    parseTools(tools);
    return "";
  } catch (error) {
    return error.message;
  }
}
