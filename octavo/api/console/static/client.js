// Asking the server. Paths are relative, so that the page also works below a proxy's prefix.

import { EventParser } from "./sse.js";

/** What went wrong, as a sentence for a person. */
export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

async function ask(path, key, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ServerError("The server does not answer. It may be starting, or stopped.");
  }
  if (!response.ok) throw new ServerError(await explain(response, key), response.status);
  return response;
}

async function explain(response, key) {
  if (response.status === 401) {
    return key ? "The server does not know this API key. Change it in the settings."
      : "This server needs an API key. Enter it in the settings.";
  }
  const body = await response.text().catch(() => "");
  try {
    const { error } = JSON.parse(body);
    if (typeof error.message === "string") return error.message;
  } catch {
    // Not ours: a proxy's page, perhaps.
  }
  return `The server answered with status ${response.status}.`;
}

export const getJson = async (path, key) => (await ask(path, key)).json();
export const getText = async (path, key) => (await ask(path, key)).text();

/**
 * The chunks of a streamed answer, as objects. Each tells how many tokens there are so far: an answer that is stopped
 * gets no last one.
 *
 * @param {Object} body of /v1/chat/completions
 * @param {AbortSignal} signal ends the request
 */
export async function* streamChat(body, key, signal) {
  const response = await ask("v1/chat/completions", key, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } }),
    signal,
  });
  const parser = new EventParser();
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      for (const data of parser.push(done ? decoder.decode() : decoder.decode(value, { stream: true }))) {
        if (data === "[DONE]") return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new ServerError(chunk.error.message ?? "The server failed.", chunk.error.code ?? 0);
        yield chunk;
      }
      if (done) throw new ServerError("The answer broke off: the connection closed before its end.");
    }
  } catch (error) {
    if (error instanceof TypeError) throw new ServerError("The answer broke off: the connection was lost.");
    throw error;
  } finally {
    reader.cancel().catch(() => {});
  }
}
