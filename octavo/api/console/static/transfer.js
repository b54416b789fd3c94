// Conversations as files, out and in. No DOM: this runs anywhere.

import { newConversation, titleOf } from "./store.js";

const FORMAT = "octavo-conversations";
const MAX_MESSAGES = 10_000;
const ROLES = { user: "You", assistant: "Assistant", tool: "Tool result" };

/** Conversations as JSON that {@link fromJson} reads. */
export function toJson(conversations) {
  return `${JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 2)}\n`;
}

/** A conversation for people, as Markdown. */
export function toMarkdown(conversation) {
  const parts = [`# ${titleOf(conversation)}`];
  for (const message of conversation.messages) {
    parts.push(`## ${ROLES[message.role]}`);
    if (message.reasoning) parts.push(quote(message.reasoning));
    if (message.content) parts.push(message.content);
    for (const call of message.tool_calls ?? []) {
      parts.push(`Tool call \`${call.function.name}\`:`, `\`\`\`json\n${call.function.arguments}\n\`\`\``);
    }
  }
  return `${parts.join("\n\n")}\n`;
}

const quote = (text) => text.trim().split("\n").map((line) => `> ${line}`).join("\n");

/**
 * The conversations of a file: one that this page wrote, or a list of messages with role and content. Every field is
 * checked and copied, others are left out, and each conversation gets a new id.
 *
 * @throws {Error} with a sentence
 */
export function fromJson(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON.");
  }
  const found = Array.isArray(value) ? [{ messages: value }] : value?.format === FORMAT && value.conversations;
  if (!Array.isArray(found)) throw new Error("The file holds no conversations.");
  return found.map(readConversation);
}

function readConversation(value) {
  if (!Array.isArray(value?.messages) || value.messages.length > MAX_MESSAGES) {
    throw new Error("A conversation in the file has no list of messages.");
  }
  // The system prompt is one of the page's settings.
  const messages = value.messages.filter((message) => message?.role !== "system").map(readMessage);
  const name = typeof value.name === "string" ? value.name.slice(0, 200) : "";
  return { ...newConversation(), name, messages };
}

function readMessage(value) {
  const { role, content } = value ?? {};
  if (!Object.hasOwn(ROLES, role)) throw new Error("A message in the file is of neither the user, the assistant nor a tool.");
  if (typeof content !== "string") throw new Error("A message in the file has no text.");
  if (role === "user") return { role, content };
  if (role === "tool") return { role, content, tool_call_id: text(value.tool_call_id) };
  const calls = Array.isArray(value.tool_calls) ? value.tool_calls.slice(0, 128) : [];
  return { role, content, reasoning: text(value.reasoning), tool_calls: calls.map(readCall), finish_reason: "stop" };
}

function readCall(value) {
  const { name, arguments: given } = value?.function ?? {};
  return { id: text(value?.id), type: "function", function: { name: text(name), arguments: text(given) } };
}

const text = (value) => (typeof value === "string" ? value : "");
