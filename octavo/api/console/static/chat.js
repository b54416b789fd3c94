// The chat: a conversation on screen, and the one request that may be running for it.

import { newAnswer, requestBody, takeChunk } from "./answer.js";
import { streamChat } from "./client.js";
import { button, byId, element } from "./dom.js";
import { MessageView } from "./message.js";
import { newConversation } from "./store.js";

/**
 * @param {ConversationStore} store
 * @param {Settings} settings
 * @param {() => string} model the model that is chosen
 * @param {(error: Error) => void} onRefused told of requests that the server refused
 */
export class Chat {
  #views = [];
  #abort = null;

  constructor({ store, settings, model, onRefused }) {
    this.store = store;
    this.settings = settings;
    this.model = model;
    this.onRefused = onRefused;
    this.messages = byId("messages");
    this.prompt = byId("prompt");
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
    this.open(newConversation());
  }

  get isBusy() {
    return this.#abort !== null;
  }

  /** Show a conversation; a running answer of another one ends. */
  open(conversation) {
    this.stop();
    this.conversation = conversation;
    this.#showAll();
    this.showList();
  }

  startNew() {
    this.open(newConversation());
    this.prompt.focus();
  }

  stop() {
    this.#abort?.abort();
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

  async #regenerate() {
    if (this.isBusy) return;
    this.conversation.messages.pop();
    await this.#answer();
  }

  async #answerCalls(message, results) {
    if (this.isBusy) return;
    message.tool_calls.forEach((call, index) => {
      this.conversation.messages.push({ role: "tool", tool_call_id: call.id, content: results[index] });
    });
    await this.#answer();
  }

  /** Ask for the next message and show it as it comes. */
  async #answer() {
    const { conversation } = this;
    const answer = newAnswer();
    const abort = new AbortController();
    this.#abort = abort;
    conversation.messages.push(answer);
    this.#showAll();
    const view = this.#views.at(-1);
    this.#setBusy(true);
    const start = performance.now();
    const sinceStart = () => (performance.now() - start) / 1000;
    const paint = oncePerFrame(() => {
      this.#keepAtEnd(() => view.update({ isStreaming: true }));
    });
    view.update({ isStreaming: true });
    this.messages.scrollTop = this.messages.scrollHeight;
    try {
      const body = requestBody(conversation.messages.slice(0, -1), this.model(), this.settings.values);
      for await (const chunk of streamChat(body, this.settings.key, abort.signal)) {
        if (takeChunk(answer, chunk)) {
          answer.first ??= sinceStart();
          paint();
        }
      }
    } catch (error) {
      if (abort.signal.aborted) {
        answer.finish_reason = "stopped";
      } else {
        answer.error = error.message;
        this.onRefused(error);
      }
    }
    answer.seconds = sinceStart();
    paint.cancel();
    this.#finish(conversation, answer, abort);
  }

  #finish(conversation, answer, abort) {
    if (this.#abort === abort) {
      this.#abort = null;
      this.#setBusy(false);
    }
    const isKept = this.store.save(conversation);
    if (conversation === this.conversation) {
      this.#keepAtEnd(() => this.#views.forEach((view) => view.update({ isLast: view.message === answer })));
      byId("progress").textContent = answer.error ?? (isKept ? "The answer is complete."
        : "The answer is complete. The conversation is too long to be kept in this browser.");
    }
    this.showList();
  }

  #setBusy(isBusy) {
    byId("send").hidden = isBusy;
    byId("stop").hidden = !isBusy;
    if (isBusy) byId("progress").textContent = "The answer is coming.";
    this.prompt.focus();
  }

  #showAll() {
    const { messages } = this.conversation;
    this.#views = messages.map((message) => new MessageView(message, {
      edit: (text) => this.#resend(message, text),
      regenerate: () => this.#regenerate(),
      answerCalls: (results) => this.#answerCalls(message, results),
    }));
    this.#views.at(-1)?.update({ isLast: true });
    this.messages.replaceChildren(...this.#views.map((view) => view.node));
    if (!messages.length) {
      this.messages.append(element("p", { className: "empty" }, "Ask something. Nothing leaves this server."));
    }
    this.messages.scrollTop = this.messages.scrollHeight;
  }

  /** The list of conversations that are kept. */
  showList() {
    byId("conversations").replaceChildren(...this.store.list().map((conversation) => element("li", {},
      button(conversation.title, () => this.open(conversation), {
        title: conversation.title,
        "aria-current": conversation.id === this.conversation.id,
      }),
      button("×", () => this.#remove(conversation), { "aria-label": `Delete ${conversation.title}` }))));
  }

  #remove(conversation) {
    this.store.remove(conversation.id);
    if (conversation.id === this.conversation.id) this.startNew();
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

/** A function that does something at the next frame, however often it is called before. */
function oncePerFrame(work) {
  let handle = null;
  const paint = () => {
    handle ??= requestAnimationFrame(() => {
      handle = null;
      work();
    });
  };
  paint.cancel = () => cancelAnimationFrame(handle);
  return paint;
}
