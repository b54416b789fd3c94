// Requests put together from a conversation and the settings. No DOM: this runs anywhere.

import { NUMBERS } from "./sampling.js";

/** The request that asks for the next message of a conversation; it names only what the user set, and a limit. */
export function requestBody(messages, model, settings, server) {
  const body = { ...parseObject(settings.extra, "The further fields"), model, messages: messages.map(asSent) };
  if (settings.system) body.messages.unshift({ role: "system", content: settings.system });
  for (const { name } of NUMBERS) {
    const text = String(settings[name] ?? "").trim();
    if (text !== "") body[name] = Number(text);
  }
  if (server && !("max_completion_tokens" in body)) body.max_tokens ??= server.answer_limit;
  const stop = (settings.stop ?? "").split("\n").filter((line) => line !== "");
  if (stop.length) body.stop = stop;
  const tools = parseTools(settings.tools);
  if (tools.length) body.tools = tools;
  const schema = parseObject(settings.schema, "The JSON schema");
  if (schema) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  return body;
}

/** The request that lets the last answer go on where it ends. */
export function continuationBody(messages, model, settings, server) {
  return { ...requestBody(messages, model, settings, server), continue_final_message: true, add_generation_prompt: false };
}

/** Reasoning is not sent back: templates drop or rebuild it. */
function asSent(message) {
  if (message.role === "tool") return { role: "tool", tool_call_id: message.tool_call_id, content: message.content };
  const sent = { role: message.role, content: message.content };
  if (message.tool_calls?.length) sent.tool_calls = message.tool_calls;
  return sent;
}

/**
 * The tools that a text lists.
 *
 * @throws {Error} with a sentence
 */
export function parseTools(text) {
  const tools = parseJson(text, "The tools") ?? [];
  if (!Array.isArray(tools)) throw new Error("The tools must be a JSON list.");
  if (!tools.every((tool) => typeof tool?.function?.name === "string")) {
    throw new Error('Each tool must be like {"type": "function", "function": {"name": "…"}}.');
  }
  return tools;
}

/**
 * The JSON object that a text holds; undefined if the text is empty.
 *
 * @param {string} what names the text in an error
 * @throws {Error} with a sentence
 */
export function parseObject(text, what) {
  const value = parseJson(text, what);
  if (value === undefined || (typeof value === "object" && value !== null && !Array.isArray(value))) return value;
  throw new Error(`${what} must be a JSON object.`);
}

function parseJson(text, what) {
  if (!text?.trim()) return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what}: not JSON, ${error.message}.`);
  }
}
