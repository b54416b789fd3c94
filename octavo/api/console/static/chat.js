// The chat: a conversation on screen, and the one request that may be running for it.

import { newAnswer, takeChunk } from "./answer.js";
import { streamChat } from "./client.js";
import { ConversationList } from "./conversations.js";
import { button, byId, element } from "./dom.js";
import { MessageView } from "./message.js";
import { continuationBody, requestBody } from "./request.js";
import { newConversation } from "./store.js";

const KEEP_INTERVAL = 1000; // between savings of an answer that is coming, in milliseconds
const SUGGESTIONS = [
  "Explain recursion with a short Python example.",
  "Write a haiku about rain.",
  "Derive the quadratic formula step by step.",
];

/**
 * @param {ConversationStore} store
 * @param {Settings} settings
 * @param {() => string} model the model that is chosen
 * @param {() => Object|null} server the server's status, if it is known
 * @param {(error: Error) => void} onRejected told of requests that the server rejected
 */
export class Chat {
  #views = [];
  #abort = null;

  constructor({ store, settings, model, server, onRejected }) {
    this.store = store;
    this.settings = settings;
    this.model = model;
    this.server = server;
    this.onRejected = onRejected;
    this.messages = byId("messages");
    this.prompt = byId("prompt");
    this.list = new ConversationList(store, () => this.conversation.id, {
      open: (conversation) => this.open(conversation),
      remove: (id) => this.#remove(id),
      rename: (id, name) => this.#rename(id, name),
      tell: (text) => this.#tell(text),
    });
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    byId("stop").addEventListener("click", () => this.stop());
    byId("new-chat").addEventListener("click", () => this.startNew());
    this.prompt.addEventListener("keydown", (event) => {
      // While characters are being composed, as for Chinese, Enter chooses one.
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.send();
      }
    });
    this.prompt.addEventListener("input", () => this.#fitPrompt());
    window.addEventListener("pagehide", () => {
      if (this.isBusy) this.#keep(this.conversation);
      this.#abort?.abort("interrupted");
    });
    this.open(store.get(settings.openId) ?? newConversation());
  }

  get isBusy() {
    return this.#abort !== null;
  }

  /** Show a conversation; a running answer of another one ends. */
  open(conversation) {
    this.stop();
    const last = conversation.messages.at(-1);
    if (last?.role === "assistant" && !last.finish_reason && !last.error) last.finish_reason = "interrupted";
    this.conversation = conversation;
    this.settings.openId = conversation.id;
    this.#showAll();
    this.showList();
    this.list.setPanel(false);
  }

  startNew() {
    this.open(newConversation());
    this.prompt.focus();
  }

  stop() {
    this.#abort?.abort("stopped");
  }

  /** The list of conversations that are kept. */
  showList() {
    this.list.show();
  }

  /** Send what is written. */
  async send() {
    const text = this.prompt.value.trim();
    if (!text || this.isBusy) return;
    this.prompt.value = "";
    this.#fitPrompt();
    this.conversation.messages.push({ role: "user", content: text });
    await this.#answer();
  }

  /** Begin again from a message of the user's, with another text. */
  async #resend(message, text) {
    if (this.isBusy) return;
    const { messages } = this.conversation;
    messages.splice(messages.indexOf(message), Infinity, { role: "user", content: text.trim() });
    await this.#answer();
  }

  /** Change what the assistant said; nothing is asked. */
  #rewrite(message, text) {
    if (this.isBusy) return;
    message.content = text;
    this.store.save(this.conversation);
    this.#showAll();
  }

  async #regenerate(message) {
    if (this.isBusy) return;
    const { messages } = this.conversation;
    messages.splice(messages.indexOf(message), Infinity);
    await this.#answer();
  }

  async #answerCalls(message, results) {
    if (this.isBusy) return;
    message.tool_calls.forEach((call, index) => {
      this.conversation.messages.push({ role: "tool", tool_call_id: call.id, content: results[index] });
    });
    await this.#answer();
  }

  /** Ask for the next message. */
  async #answer() {
    const { conversation: { messages }, settings } = this;
    const answer = newAnswer();
    const makeBody = () => requestBody(messages.slice(0, -1), this.model(), settings.values, this.server());
    messages.push(answer);
    await this.#stream(answer, makeBody);
  }

  /** Let an answer that was cut go on. */
  async #continue(answer) {
    if (this.isBusy) return;
    const { conversation: { messages }, settings } = this;
    const body = continuationBody(messages, this.model(), settings.values, this.server());
    Object.assign(answer, { finish_reason: null, first: undefined, usage: undefined, error: undefined });
    await this.#stream(answer, () => body);
  }

  /** Run a request and show the answer, the last message, as it comes. */
  async #stream(answer, makeBody) {
    const { conversation } = this;
    const abort = new AbortController();
    this.#abort = abort;
    this.store.save(conversation);
    this.#showAll();
    this.showList();
    const view = this.#views.at(-1);
    this.#setBusy(true);
    const start = performance.now();
    const sinceStart = () => (performance.now() - start) / 1000;
    const paint = paced(() => this.#keepAtEnd(() => view.update({ isStreaming: true })));
    const keeping = setInterval(() => this.#keep(conversation), KEEP_INTERVAL);
    view.update({ isStreaming: true });
    this.messages.scrollTop = this.messages.scrollHeight;
    try {
      for await (const chunk of streamChat(makeBody(), this.settings.key, abort.signal)) {
        if (takeChunk(answer, chunk)) {
          answer.seconds = sinceStart();
          answer.first ??= answer.seconds;
          paint();
        }
      }
    } catch (error) {
      if (abort.signal.aborted) {
        answer.finish_reason = abort.signal.reason;
      } else {
        answer.error = error.message;
        this.onRejected(error);
      }
    }
    clearInterval(keeping);
    paint.cancel();
    this.#finish(conversation, answer, abort);
  }

  #finish(conversation, answer, abort) {
    if (this.#abort === abort) {
      this.#abort = null;
      this.#setBusy(false);
    }
    const isKept = this.#keep(conversation);
    if (conversation === this.conversation) {
      this.#keepAtEnd(() => this.#views.forEach((view) => view.update({ isLast: view.message === answer })));
      this.#tell(answer.error ?? (isKept ? "The answer is complete."
        : "The answer is complete. The conversation is too long to be kept in this browser."));
    }
    this.showList();
  }

  /** Keep a conversation that is in the list; one that was deleted meanwhile does not come back. */
  #keep(conversation) {
    return this.store.has(conversation.id) && this.store.save(conversation);
  }

  #tell(text) {
    byId("progress").textContent = text;
  }

  #setBusy(isBusy) {
    byId("send").hidden = isBusy;
    byId("stop").hidden = !isBusy;
    if (isBusy) this.#tell("The answer is coming.");
    this.prompt.focus();
  }

  #showAll() {
    const { messages } = this.conversation;
    this.#views = messages.map((message) => new MessageView(message, {
      edit: (text) => (message.role === "user" ? this.#resend(message, text) : this.#rewrite(message, text)),
      regenerate: () => this.#regenerate(message),
      continue: () => this.#continue(message),
      answerCalls: (results) => this.#answerCalls(message, results),
    }));
    this.#views.at(-1)?.update({ isLast: true });
    this.messages.replaceChildren(...this.#views.map((view) => view.node));
    if (!messages.length) this.messages.append(this.#welcome());
    this.messages.scrollTop = this.messages.scrollHeight;
  }

  #welcome() {
    const suggest = (text) => button(text, () => {
      this.prompt.value = text;
      this.send();
    });
    return element("div", { className: "empty" }, element("p", {}, "Ask something. Nothing leaves this server."),
      element("div", { className: "suggestions" }, ...SUGGESTIONS.map(suggest)));
  }

  #rename(id, name) {
    const conversation = id === this.conversation.id ? this.conversation : this.store.get(id);
    if (conversation) this.store.save(Object.assign(conversation, { name }));
  }

  #remove(id) {
    this.store.remove(id);
    if (id === this.conversation.id) this.startNew();
    else this.showList();
  }

  /** Change something, and follow its end if the reader was looking at the end. */
  #keepAtEnd(change) {
    const { messages } = this;
    const wasAtEnd = messages.scrollHeight - messages.scrollTop - messages.clientHeight < 80;
    change();
    if (wasAtEnd) messages.scrollTop = messages.scrollHeight;
  }

  /** The field is as high as its text, within what the style allows. */
  #fitPrompt() {
    this.prompt.style.height = "auto";
    if (this.prompt.value) this.prompt.style.height = `${this.prompt.scrollHeight + 2}px`;
  }
}

/** A function that does something soon, however often it is called before; slow work is done less often. */
function paced(work) {
  let isPlanned = false;
  let isCancelled = false;
  let pause = 0;
  const run = () => {
    isPlanned = false;
    if (isCancelled) return;
    const start = performance.now();
    work();
    pause = 3 * (performance.now() - start);
  };
  const paint = () => {
    if (isPlanned) return;
    isPlanned = true;
    setTimeout(() => requestAnimationFrame(run), pause);
  };
  paint.cancel = () => { isCancelled = true; };
  return paint;
}
