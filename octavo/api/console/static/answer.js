// An answer put together from the chunks of a stream. No DOM: this runs anywhere.

// More than any model writes; a server that never stops must not fill this page's memory.
const MAX_LENGTH = 4 << 20;

/** An empty message of the assistant. */
export function newAnswer() {
  return { role: "assistant", content: "", reasoning: "", tool_calls: [], finish_reason: null };
}

/**
 * Take a chunk into an answer.
 *
 * @returns {number} how many characters came
 */
export function takeChunk(answer, chunk) {
  if (chunk.usage) answer.usage = { prompt: chunk.usage.prompt_tokens, completion: chunk.usage.completion_tokens };
  const choice = chunk.choices?.[0];
  if (!choice) return 0;
  if (choice.finish_reason) answer.finish_reason = choice.finish_reason;
  const delta = choice.delta ?? {};
  const reasoning = delta.reasoning ?? delta.reasoning_content ?? "";
  const content = delta.content ?? "";
  let count = reasoning.length + content.length;
  answer.reasoning += reasoning;
  answer.content += content;
  for (const part of delta.tool_calls ?? []) count += takeCall(answer.tool_calls, part);
  if (answer.content.length + answer.reasoning.length > MAX_LENGTH) {
    throw new Error("The answer is longer than this page keeps.");
  }
  return count;
}

/** A call's id and name come first, its arguments in pieces, each with the call's index. */
function takeCall(calls, part) {
  const index = part.index ?? calls.length;
  if (!Number.isInteger(index) || index < 0 || index > 127) return 0;
  while (calls.length <= index) calls.push({ id: "", type: "function", function: { name: "", arguments: "" } });
  const call = calls[index];
  if (part.id) call.id = part.id;
  const piece = part.function ?? {};
  call.function.name += piece.name ?? "";
  call.function.arguments += piece.arguments ?? "";
  return (piece.name ?? "").length + (piece.arguments ?? "").length;
}

/** Arguments for people: indented if they are JSON. */
export function prettyArguments(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
