// What the browser keeps: conversations, settings, the theme. Nothing here is sent anywhere.

const PREFIX = "octavo.";
const CHAT = `${PREFIX}chat.`;
export const MAX_CONVERSATIONS = 100;
// In characters. Browsers give a page about five million.
export const MAX_STORED = 3_000_000;

/** A new conversation without messages. */
export function newConversation() {
  return { id: randomId(), title: "", updated: Date.now(), messages: [] };
}

function randomId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** A title: how the first message begins. */
export function titleOf(conversation) {
  const text = conversation.messages.find((message) => message.role === "user")?.content ?? "";
  return text.trim().replace(/\s+/g, " ").slice(0, 60) || "New chat";
}

/**
 * Conversations by id, each under a key of its own, so that two tabs do not overwrite each other's.
 * The oldest go when there are too many or they are too long.
 */
export class ConversationStore {
  constructor(storage) {
    this.storage = storage;
  }

  /** @returns {Object[]} all that can be read, the latest first */
  list() {
    return this.#keys()
      .map((key) => readJson(this.storage, key))
      .filter(isConversation)
      .sort((a, b) => b.updated - a.updated);
  }

  /**
   * Keep a conversation; without messages there is nothing to keep.
   *
   * @returns {boolean} false if it is too long for this browser
   */
  save(conversation) {
    if (!conversation.messages.length) return true;
    conversation.title = titleOf(conversation);
    conversation.updated = Date.now();
    const text = JSON.stringify(conversation);
    const others = this.list().filter((other) => other.id !== conversation.id);
    this.storage.removeItem(CHAT + conversation.id);
    if (text.length > MAX_STORED) return false;
    while (others.length && (others.length >= MAX_CONVERSATIONS || this.#size() + text.length > MAX_STORED)) {
      this.remove(others.pop().id);
    }
    for (;;) {
      try {
        this.storage.setItem(CHAT + conversation.id, text);
        return true;
      } catch {
        if (!others.length) return false;
        this.remove(others.pop().id);
      }
    }
  }

  remove(id) {
    this.storage.removeItem(CHAT + id);
  }

  clear() {
    for (const key of this.#keys()) this.storage.removeItem(key);
  }

  #keys() {
    return Array.from({ length: this.storage.length }, (_, index) => this.storage.key(index))
      .filter((key) => key.startsWith(CHAT));
  }

  #size() {
    return this.#keys().reduce((sum, key) => sum + this.storage.getItem(key).length, 0);
  }
}

function isConversation(value) {
  return typeof value?.id === "string" && Array.isArray(value.messages)
    && value.messages.every((message) => typeof message?.role === "string" && typeof message.content === "string");
}

/** The object under a key, null if there is none or it is broken. */
export function readJson(storage, key) {
  try {
    return JSON.parse(storage.getItem(key));
  } catch {
    return null;
  }
}

/** Settings of the page; the API key lives in the tab's storage, the others in the browser's. */
export class Settings {
  constructor(storage, tabStorage) {
    this.storage = storage;
    this.tabStorage = tabStorage;
    this.values = readJson(storage, `${PREFIX}settings`) ?? {};
  }

  get key() {
    return this.tabStorage.getItem(`${PREFIX}key`) ?? "";
  }

  set key(value) {
    this.tabStorage.setItem(`${PREFIX}key`, value);
  }

  update(values) {
    this.values = { ...this.values, ...values };
    try {
      this.storage.setItem(`${PREFIX}settings`, JSON.stringify(this.values));
    } catch {
      // Full: they hold until the page is closed.
    }
  }
}
