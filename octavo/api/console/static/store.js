// What the browser keeps: conversations, settings, the theme. Nothing here is sent anywhere.

const PREFIX = "octavo.";
const CHAT = `${PREFIX}chat.`;
export const MAX_CONVERSATIONS = 100;
// In characters. Browsers give a page about five million.
export const MAX_STORED = 3_000_000;

/** A new conversation without messages. */
export function newConversation() {
  return { id: randomId(), name: "", updated: Date.now(), messages: [] };
}

function randomId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** A title: the name that the user gave, or how the first message begins. */
export function titleOf(conversation) {
  if (conversation.name) return conversation.name;
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

  /** @returns {boolean} whether a conversation is kept */
  has(id) {
    return this.storage.getItem(CHAT + id) !== null;
  }

  /** A conversation as it was kept last; null if there is none. */
  get(id) {
    const found = readJson(this.storage, CHAT + id);
    return isConversation(found) ? found : null;
  }

  /**
   * Keep a conversation; without messages there is nothing to keep.
   *
   * @returns {boolean} false if it is too long for this browser; what was kept of it before stays
   */
  save(conversation) {
    if (!conversation.messages.length) return true;
    conversation.updated = Date.now();
    const text = JSON.stringify(conversation);
    const key = CHAT + conversation.id;
    if (text.length > MAX_STORED) return false;
    while (!this.#fits(key, text)) {
      if (!this.#removeOldest(key)) return false;
    }
    for (;;) {
      try {
        this.storage.setItem(key, text);
        return true;
      } catch {
        if (!this.#removeOldest(key)) return false;
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

  #fits(key, text) {
    const others = this.#keys().filter((other) => other !== key);
    const size = others.reduce((sum, other) => sum + this.storage.getItem(other).length, text.length);
    return others.length < MAX_CONVERSATIONS && size <= MAX_STORED;
  }

  /** @returns {boolean} false if there is no other conversation than that of `key` */
  #removeOldest(key) {
    const broken = this.#keys().find((other) => other !== key && !this.get(other.slice(CHAT.length)));
    const oldest = broken ?? this.list().map(({ id }) => CHAT + id).filter((other) => other !== key).at(-1);
    if (oldest) this.storage.removeItem(oldest);
    return Boolean(oldest);
  }
}

function isConversation(value) {
  return typeof value?.id === "string" && typeof (value.name ?? "") === "string" && Array.isArray(value.messages)
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

  /** The conversation that this tab shows: it is there again after a reload. */
  get openId() {
    return this.tabStorage.getItem(`${PREFIX}open`) ?? "";
  }

  set openId(id) {
    this.tabStorage.setItem(`${PREFIX}open`, id);
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
