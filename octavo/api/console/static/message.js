// One message of a conversation as elements.

import { prettyArguments } from "./answer.js";
import { button, copyButton, element } from "./dom.js";
import { renderMarkdown } from "./markdown.js";

const NAMES = { user: "You", assistant: "Assistant", tool: "Tool result", system: "System" };

/**
 * Shows a message and follows its changes.
 *
 * @param {Object} message
 * @param {Object} on what buttons do: edit(text), regenerate(), answerCalls(results)
 */
export class MessageView {
  constructor(message, on) {
    this.message = message;
    this.on = on;
    this.node = element("article", { className: `message ${message.role}`, "aria-label": NAMES[message.role] ?? message.role });
    this.who = element("div", { className: "who" }, NAMES[message.role] ?? message.role);
    this.body = element("div", { className: message.role === "assistant" ? "body prose" : "body" });
    this.actions = element("div", { className: "actions" });
    this.node.append(this.who, this.body, this.actions);
    this.update();
  }

  /** Show the message as it is now. */
  update({ isStreaming = false, isLast = false } = {}) {
    const { message } = this;
    this.node.setAttribute("aria-busy", isStreaming);
    if (message.reasoning) this.#showReasoning(isStreaming);
    if (message.role === "assistant") renderMarkdown(this.body, message.content);
    else this.body.textContent = message.content;
    if (message.tool_calls?.length) this.#showCalls(isLast && !isStreaming);
    this.#showError();
    this.#showActions({ isStreaming, isLast });
  }

  /** Reasoning is folded once the answer begins, unless the reader opened or closed it by hand. */
  #showReasoning(isStreaming) {
    if (!this.reasoning) {
      this.reasoning = element("div", { className: "prose" });
      this.summary = element("summary");
      this.summary.addEventListener("click", () => { this.isByHand = true; });
      this.fold = element("details", { className: "reasoning" }, this.summary, this.reasoning);
      this.body.before(this.fold);
    }
    const isReasoning = isStreaming && !this.message.content && !this.message.tool_calls.length;
    this.summary.textContent = isReasoning ? "Reasoning …" : "Reasoning";
    if (!this.isByHand) this.fold.open = isReasoning;
    renderMarkdown(this.reasoning, this.message.reasoning);
  }

  #showCalls(canAnswer) {
    this.calls ??= element("div", { className: "calls" });
    if (!this.calls.parentNode) this.body.after(this.calls);
    const { tool_calls: calls } = this.message;
    const fields = calls.map((call, index) => element("textarea", {
      rows: 2, spellcheck: false, "aria-label": `Result of tool call ${index + 1}, ${call.function.name}`,
    }));
    this.calls.replaceChildren(...calls.map((call, index) => element("details", { className: "call", open: true },
      element("summary", {}, "Tool call ", element("code", {}, call.function.name || "…")),
      element("pre", { tabIndex: 0 }, element("code", {}, prettyArguments(call.function.arguments))),
      ...(canAnswer ? [element("label", {}, "Result", fields[index])] : []))));
    if (canAnswer) {
      this.calls.append(button("Send results", () => this.on.answerCalls(fields.map((field) => field.value))));
    }
  }

  #showError() {
    this.error?.remove();
    if (!this.message.error) return;
    this.error = element("p", { className: "error" }, this.message.error);
    this.actions.before(this.error);
  }

  #showActions({ isStreaming, isLast }) {
    const { message } = this;
    const parts = [];
    if (!isStreaming) {
      if (message.content) parts.push(copyButton(() => message.content));
      if (message.role !== "tool" && message.content) parts.push(button("Edit", () => this.#edit()));
      if (message.role === "assistant") parts.push(button("Regenerate", () => this.on.regenerate()));
      if (isLast && canContinue(message)) parts.push(button("Continue", () => this.on.continue()));
    }
    const figures = describeFigures(message);
    if (figures) parts.push(element("span", { className: "figures" }, figures));
    this.actions.replaceChildren(...parts);
  }

  /** The message as a field. A user's message is sent again; an answer is only changed. */
  #edit() {
    const label = this.message.role === "user" ? "Send" : "Save";
    const field = element("textarea", { value: this.message.content, rows: 4, "aria-label": "Edit the message" });
    const close = () => {
      editor.replaceWith(this.body);
      this.actions.hidden = false;
    };
    const send = () => { if (field.value.trim()) this.on.edit(field.value); };
    const editor = element("div", { className: "editor" }, field, element("div", { className: "buttons" },
      button("Cancel", close), button(label, send, { className: "send-edit" })));
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      }
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
    });
    this.body.replaceWith(editor);
    this.actions.hidden = true;
    field.focus();
  }
}

const ENDS = {
  length: "cut at the length limit",
  content_filter: "cut by a filter",
  abort: "ended by the server",
  stopped: "stopped",
  interrupted: "interrupted",
};

/** Whether an answer was cut in its text, so that the model can go on from there. */
function canContinue({ role, content, tool_calls: calls, finish_reason: reason }) {
  return role === "assistant" && content && !calls.length && ["length", "stopped", "interrupted"].includes(reason);
}

/** A line on how an answer came: its tokens, their speed, how it ended. */
function describeFigures({ usage, seconds, first, finish_reason: reason }) {
  const parts = [];
  if (usage?.completion) parts.push(usage.completion === 1 ? "1 token" : `${usage.completion} tokens`);
  if (usage?.completion > 1 && seconds > first) {
    parts.push(`${((usage.completion - 1) / (seconds - first)).toFixed(1)} tokens/s`);
  }
  if (first) parts.push(`first after ${first.toFixed(2)} s`);
  if (ENDS[reason]) parts.push(ENDS[reason]);
  return parts.join(", ");
}
