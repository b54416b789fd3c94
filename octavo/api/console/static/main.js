// The page: puts chat, live figures and settings together.

import { Chat } from "./chat.js";
import { getJson } from "./client.js";
import { setUpDialog } from "./dialog.js";
import { byId, element } from "./dom.js";
import { Live } from "./live.js";
import { ConversationStore, Settings } from "./store.js";
import { setUpTheme } from "./theme.js";

const settings = new Settings(localStorage, sessionStorage);
const store = new ConversationStore(localStorage);
let serverStatus = null;
const server = () => serverStatus;
const chat = new Chat({ store, settings, server, model: () => byId("model").value, onRejected: showIfAboutKey });
const live = new Live(settings);

setUpDialog(settings, {
  server,
  onClosed: loadServer,
  onForget: () => {
    store.clear();
    chat.startNew();
  },
});
setUpTheme(settings, () => live.redraw());

for (const tab of document.querySelectorAll("[data-view]")) {
  tab.addEventListener("click", () => show(tab.dataset.view));
}

byId("show-conversations").addEventListener("click", () => show("chat"));

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open], :popover-open")) {
    chat.list.setPanel(false);
    chat.stop();
  }
  if (event.altKey && event.key.toLowerCase() === "n") {
    event.preventDefault();
    show("chat");
    chat.startNew();
  }
});

byId("model").addEventListener("change", () => settings.update({ model: byId("model").value }));

// Conversations that another tab changed.
window.addEventListener("storage", () => chat.showList());

loadServer();
byId("prompt").focus();

function show(view) {
  for (const tab of document.querySelectorAll("[data-view]")) {
    tab.setAttribute("aria-pressed", tab.dataset.view === view);
    byId(`view-${tab.dataset.view}`).hidden = tab.dataset.view !== view;
  }
  live.setOpen(view === "live");
}

/** Fill the list of models; the first that is served is taken unless another was chosen before. */
async function loadServer() {
  try {
    const [models, status] = await Promise.all([
      getJson("v1/models", settings.key), getJson("console/status", settings.key),
    ]);
    serverStatus = status;
    const names = models.data.map((model) => model.id);
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
