// The list of conversations: search, open, rename, save as files, read from files, delete.

import { button, byId, download, element } from "./dom.js";
import { titleOf } from "./store.js";
import { fromJson, toJson, toMarkdown } from "./transfer.js";

const MAX_FILE = 20 << 20; // bytes

/**
 * @param {ConversationStore} store
 * @param {() => string} openId the id of the conversation on screen
 * @param {Object} on what the list asks of the page: open(conversation), remove(id), rename(id, name), tell(text)
 */
export class ConversationList {
  #menuOf = null;
  #menuOpener = null;

  constructor(store, openId, on) {
    this.store = store;
    this.openId = openId;
    this.on = on;
    this.menu = byId("conversation-menu");
    byId("search").addEventListener("input", () => this.show());
    byId("export-all").addEventListener("click", () => {
      download("conversations.json", toJson(store.list()), "application/json");
    });
    byId("import").addEventListener("click", () => byId("import-file").click());
    byId("import-file").addEventListener("change", (event) => this.#import(event.target));
    byId("show-conversations").addEventListener("click", () => {
      this.setPanel(byId("show-conversations").getAttribute("aria-expanded") !== "true");
    });
    this.#setUpMenu();
  }

  /** Show what is kept and matches the search. */
  show() {
    const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = this.store.list().filter((conversation) => matches(conversation, words));
    byId("conversations").replaceChildren(...found.map((conversation) => this.#row(conversation)));
    byId("no-conversations").hidden = found.length > 0;
    byId("no-conversations").textContent = words.length ? "No conversation holds these words." : "No conversations yet.";
  }

  /** Open or close the panel that holds the list; wide screens always show it. */
  setPanel(isOpen) {
    byId("conversations-panel").classList.toggle("open", isOpen);
    byId("show-conversations").setAttribute("aria-expanded", isOpen);
  }

  #row(conversation) {
    const title = titleOf(conversation);
    const isOpen = conversation.id === this.openId();
    const menu = button("⋯", () => this.#openMenu(conversation, menu), { className: "more", "aria-label": `More for ${title}`, "aria-haspopup": "true" });
    return element("li", {},
      button(title, () => this.on.open(conversation), { className: "title", title, "aria-current": isOpen }), menu);
  }

  #setUpMenu() {
    const act = (label, work) => button(label, () => {
      this.menu.hidePopover();
      work(this.#menuOf);
    });
    this.menu.append(
      act("Rename", (conversation) => this.#rename(conversation)),
      act("Export as Markdown", (conversation) => {
        download(`${fileName(conversation)}.md`, toMarkdown(conversation), "text/markdown");
      }),
      act("Export as JSON", (conversation) => {
        download(`${fileName(conversation)}.json`, toJson([conversation]), "application/json");
      }),
      act("Delete", (conversation) => this.on.remove(conversation.id)),
    );
  }

  #openMenu(conversation, opener) {
    this.#menuOf = conversation;
    this.#menuOpener = opener;
    this.menu.showPopover();
    const place = opener.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.menu;
    this.menu.style.left = `${Math.max(8, Math.min(place.left, window.innerWidth - width - 8))}px`;
    this.menu.style.top = `${Math.max(8, Math.min(place.bottom, window.innerHeight - height - 8))}px`;
    this.menu.querySelector("button").focus();
  }

  /** The title as a field; Enter or leaving it takes the name, Escape does not. */
  #rename(conversation) {
    const row = this.#menuOpener.parentNode;
    const field = element("input", { value: titleOf(conversation), maxLength: 200, "aria-label": "Name of the conversation" });
    let isDone = false;
    const finish = (isTaken) => {
      if (isDone) return;
      isDone = true;
      if (isTaken && field.value.trim()) this.on.rename(conversation.id, field.value.trim());
      this.show();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") event.stopPropagation();
      if (event.key === "Enter" || event.key === "Escape") finish(event.key === "Enter");
    });
    field.addEventListener("blur", () => finish(true));
    row.replaceChildren(field);
    field.select();
  }

  async #import(input) {
    const [file] = input.files;
    try {
      if (file.size > MAX_FILE) throw new Error("The file is larger than 20 MB.");
      const found = fromJson(await file.text());
      const kept = found.filter((conversation) => conversation.messages.length && this.store.save(conversation));
      this.on.tell(`Imported ${kept.length} of ${found.length} conversations.`);
      if (kept.length) this.on.open(kept[0]);
    } catch (error) {
      this.on.tell(error.message);
    }
    input.value = "";
    this.show();
  }
}

function matches(conversation, words) {
  const text = [titleOf(conversation), ...conversation.messages.map(({ content }) => content)].join("\n").toLowerCase();
  return words.every((word) => text.includes(word));
}

const fileName = (conversation) => titleOf(conversation).replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) || "conversation";
