// The sampling settings of a request: their names, ranges and explanations. No DOM: this runs anywhere.

/** Number settings; an empty one is not sent, so that the model's default applies. */
export const NUMBERS = [
  { name: "temperature", label: "Temperature", min: 0, max: 10, step: "any",
    help: "Higher is more varied, 0 always takes the most likely token." },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: "any",
    help: "Sample from the most likely tokens that together have this probability." },
  { name: "top_k", label: "Top k", min: -1, step: 1, help: "Sample from this many of the most likely tokens; 0 is all." },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: "any",
    help: "Leave out tokens less likely than this share of the most likely one." },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0, step: "any",
    help: "Above 1 makes tokens of the prompt and the answer less likely to come again." },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: "any",
    help: "Above 0 makes tokens that the answer holds less likely." },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: "any",
    help: "Above 0 makes tokens less likely the more often the answer holds them." },
  { name: "max_tokens", label: "Max tokens", min: 1, step: 1, help: "The longest answer, reasoning included." },
  { name: "min_tokens", label: "Min tokens", min: 0, step: 1, help: "The answer does not end before." },
  { name: "seed", label: "Seed", step: 1, help: "The same seed and settings give the same answer." },
];

/** All names under which the settings of a request are kept; a preset holds them. */
export const NAMES = ["system", ...NUMBERS.map(({ name }) => name), "stop", "tools", "schema", "extra"];

/** What an empty field stands for: the server's default. */
export function placeholderOf(name, server) {
  if (name === "max_tokens") return server ? String(server.answer_limit) : "";
  if (name === "seed") return "random";
  if (name === "min_tokens") return "0";
  const value = server?.sampling[name];
  return value === undefined ? "model's" : String(Number(value.toFixed(4)));
}
