// The page: puts chat, live figures and settings together.

import { Chat } from "./chat.js";
import { getJson } from "./client.js";
import { setUpDialog } from "./dialog.js";
import { byId, element } from "./dom.js";
import { Live } from "./live.js";
import { ConversationStore, Settings } from "./store.js";

const settings = new Settings(localStorage, sessionStorage);
const store = new ConversationStore(localStorage);
const chat = new Chat({ store, settings, model: () => byId("model").value, onRefused: showIfAboutKey });
const live = new Live(settings);

setUpDialog(settings, {
  onClosed: loadModels,
  onForget: () => {
    store.clear();
    chat.startNew();
  },
});
setUpTheme();

for (const tab of document.querySelectorAll("[data-view]")) {
  tab.addEventListener("click", () => show(tab.dataset.view));
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && chat.isBusy && !byId("settings").open) chat.stop();
  if (event.altKey && event.key.toLowerCase() === "n") {
    event.preventDefault();
    show("chat");
    chat.startNew();
  }
});

byId("model").addEventListener("change", () => settings.update({ model: byId("model").value }));

// Conversations that another tab changed.
window.addEventListener("storage", () => chat.showList());

loadModels();
byId("prompt").focus();

function show(view) {
  for (const tab of document.querySelectorAll("[data-view]")) {
    tab.setAttribute("aria-pressed", tab.dataset.view === view);
    byId(`view-${tab.dataset.view}`).hidden = tab.dataset.view !== view;
  }
  live.setOpen(view === "live");
}

/** Fill the list of models; the first that is served is taken unless another was chosen before. */
async function loadModels() {
  try {
    const names = (await getJson("v1/models", settings.key)).data.map((model) => model.id);
    const chosen = names.includes(settings.values.model) ? settings.values.model : names[0];
    byId("model").replaceChildren(...names.map((name) => element("option", { selected: name === chosen }, name)));
    notice("");
  } catch (error) {
    notice(error.message);
  }
}

function showIfAboutKey(error) {
  if (error.status === 401) notice(error.message);
}

function notice(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = !text;
}

/** Light, dark, or as the system says; a click goes on to the next. */
function setUpTheme() {
  const names = ["auto", "light", "dark"];
  const labels = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const wanted = names.includes(settings.values.theme) ? settings.values.theme : "auto";
    document.documentElement.dataset.theme = wanted === "auto" ? (system.matches ? "dark" : "light") : wanted;
    byId("theme").textContent = labels[wanted];
  };
  system.addEventListener("change", apply);
  byId("theme").addEventListener("click", () => {
    const next = names[(names.indexOf(settings.values.theme ?? "auto") + 1) % names.length];
    settings.update({ theme: next });
    apply();
  });
  apply();
}
