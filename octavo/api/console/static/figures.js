// What the live view shows, read off the server's metrics. No DOM: this runs anywhere.

import { growth, mean, meanOf, parseMetrics, quantile, rate, sum } from "./metrics.js";

const TTFT = "time_to_first_token_seconds";
const ITL = "inter_token_latency_seconds";

const NOTHING = parseMetrics("", 0);

const LIMIT_HELP = "Without speculative decoding, each token of a request needs all weights read from memory once. The "
  + "memory bandwidth divided by the size of the weights therefore limits how fast one request can get its tokens. The "
  + "share is the measured tokens/s of a request divided by this limit: the closer to 100 %, the less there is to gain.";

/**
 * Figures as tiles: a value from (the reading before, the one a minute before, this one, the server's status), and how
 * to write it; undefined is nothing to show yet.
 */
export const TILES = [
  { title: "Generated", of: ({ before, now }) => rate(before, now, "generation_tokens_total"), text: perSecond },
  { title: "Prompts read", of: ({ before, now }) => rate(before, now, "prompt_tokens_total"), text: perSecond },
  { title: "Requests running", of: ({ now }) => sum(now, "num_requests_running"), text: whole,
    note: ({ status }) => `at most ${status.max_num_seqs.toLocaleString("en")}` },
  { title: "Requests waiting", of: ({ now }) => sum(now, "num_requests_waiting"), text: whole },
  { title: "Cache in use", of: ({ now }) => mean(now, "kv_cache_usage_perc"), text: percent,
    note: ({ status }) => `of ${status.cache_tokens.toLocaleString("en")} tokens` },
  { title: "Prefix cache hits", of: hitShare, text: percent, note: () => "of prompt tokens, last minute" },
  { title: "Time to first token", of: (all) => latency(all, TTFT), text: seconds, note: (all) => spread(all, TTFT) },
  { title: "Time between tokens", of: (all) => latency(all, ITL), text: seconds, note: (all) => spread(all, ITL) },
  { title: "Share of the memory bandwidth limit", of: limitShare, text: percent, help: LIMIT_HELP,
    note: ({ status }) => (status.decode_limit ? `limit: ${perSecond(status.decode_limit)} for each request` : "limit unknown") },
];

/** Figures as charts over time; `top` is the upper end of the axis where it is fixed. */
export const CHARTS = [
  { title: "Throughput", unit: "tokens/s", text: amount, series: [
    { label: "generated", of: ({ before, now }) => rate(before, now, "generation_tokens_total") },
    { label: "prompts", of: ({ before, now }) => rate(before, now, "prompt_tokens_total") },
  ] },
  { title: "Load", unit: "requests", text: amount, series: [
    { label: "running", of: ({ now }) => sum(now, "num_requests_running") },
    { label: "waiting", of: ({ now }) => sum(now, "num_requests_waiting") },
  ] },
  { title: "Cache in use", unit: "%", text: amount, top: 100, series: [
    { label: "in use", of: ({ now }) => 100 * mean(now, "kv_cache_usage_perc") },
    { label: "prefix hits", of: (all) => 100 * hitShare(all) },
  ] },
  { title: "Latency", unit: "ms", text: amount, series: [
    { label: "first token", of: (all) => 1000 * meanOf(all.earlier, all.now, TTFT) },
    { label: "between tokens", of: (all) => 1000 * meanOf(all.earlier, all.now, ITL) },
  ] },
];

function hitShare({ earlier, now }) {
  const asked = growth(earlier, now, "prefix_cache_queries_total");
  return asked ? growth(earlier, now, "prefix_cache_hits_total") / asked : undefined;
}

/** Of the last minute, or since the server's start if it was idle then. */
const latency = ({ earlier, now }, histogram) => meanOf(earlier, now, histogram) ?? meanOf(NOTHING, now, histogram);

function limitShare({ earlier, now, status }) {
  const gap = latency({ earlier, now }, ITL);
  return status.decode_limit && gap ? 1 / gap / status.decode_limit : undefined;
}

function spread({ earlier, now }, histogram) {
  const half = quantile(earlier, now, histogram, 0.5);
  return half === undefined ? "since the start; none in the last minute" : `p50 ${seconds(half)}, p95 ${seconds(quantile(earlier, now, histogram, 0.95))}`;
}

function whole(value) { return value.toFixed(0); }
export function amount(value) { return value.toLocaleString("en", { maximumFractionDigits: value < 100 ? 1 : 0 }); }
function perSecond(value) { return `${amount(value)} tokens/s`; }
function percent(value) { return `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`; }
function seconds(value) { return value < 1 ? `${(1000 * value).toFixed(value < 0.1 ? 1 : 0)} ms` : `${value.toFixed(2)} s`; }
