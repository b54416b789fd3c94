// The live view: what the server does now and did in the last minutes, read off its metrics.

import { getJson, getText } from "./client.js";
import { byId, element } from "./dom.js";
import { growth, mean, meanOf, parseMetrics, quantile, rate, sum } from "./metrics.js";
import { Sparkline } from "./sparkline.js";

const INTERVAL = 2000; // between readings, in milliseconds
const WINDOW = 30; // readings that latencies look back over: a minute
const KEPT = 150; // readings that lines show: five minutes

const TTFT = "time_to_first_token_seconds";
const ITL = "inter_token_latency_seconds";

/**
 * What each card shows: a value for its line from (the reading before, the one a minute before, this one, the server's
 * status), and how to write it; undefined is nothing to show yet.
 */
const CARDS = [
  { title: "Requests running", of: ({ now }) => sum(now, "num_requests_running"), text: whole },
  { title: "Requests waiting", of: ({ now }) => sum(now, "num_requests_waiting"), text: whole },
  { title: "Tokens a second", of: ({ before, now }) => rate(before, now, "generation_tokens_total"), text: amount },
  { title: "Prompt tokens a second", of: ({ before, now }) => rate(before, now, "prompt_tokens_total"), text: amount },
  { title: "Cache in use", of: ({ now }) => mean(now, "kv_cache_usage_perc"), text: percent, top: 1,
    note: ({ status }) => (status?.cache_tokens ? `of ${status.cache_tokens.toLocaleString("en")} tokens` : "") },
  { title: "Prompts found in the cache", of: hitShare, text: percent, top: 1, note: () => "of their tokens, last minute" },
  { title: "Time to first token", of: (all) => meanOf(all.earlier, all.now, TTFT), text: seconds, note: (all) => spread(all, TTFT) },
  { title: "Time between tokens", of: (all) => meanOf(all.earlier, all.now, ITL), text: seconds, note: (all) => spread(all, ITL) },
  { title: "Share of the memory's limit", of: limitShare, text: percent, top: 1,
    note: ({ status }) => (status?.decode_limit ? `${amount(status.decode_limit)} tokens/s for each request` : "") },
];

function hitShare({ earlier, now }) {
  const asked = growth(earlier, now, "prefix_cache_queries_total");
  return asked ? growth(earlier, now, "prefix_cache_hits_total") / asked : undefined;
}

/** Each token of a request needs all weights read once; the memory's speed bounds how often that can be. */
function limitShare({ earlier, now, status }) {
  const gap = meanOf(earlier, now, ITL);
  return status?.decode_limit && gap ? 1 / gap / status.decode_limit : undefined;
}

function spread({ earlier, now }, histogram) {
  const half = quantile(earlier, now, histogram, 0.5);
  return half === undefined ? "last minute" : `half within ${seconds(half)}, 95 % within ${seconds(quantile(earlier, now, histogram, 0.95))}`;
}

function whole(value) { return value.toFixed(0); }
function amount(value) { return value.toLocaleString("en", { maximumFractionDigits: value < 100 ? 1 : 0 }); }
function percent(value) { return `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`; }
function seconds(value) { return value < 1 ? `${(1000 * value).toFixed(value < 0.1 ? 1 : 0)} ms` : `${value.toFixed(2)} s`; }

/** Reads while the view is open and the tab is seen, not otherwise. */
export class Live {
  #readings = [];
  #timer = null;
  #isOpen = false;
  #isReading = false;
  #status = null;

  constructor(settings) {
    this.settings = settings;
    this.cards = CARDS.map((card) => {
      const value = element("div", { className: "value" }, "–");
      const note = element("p", { className: "note" });
      const line = new Sparkline(KEPT, card.top);
      byId("cards").append(element("section", { className: "card", "aria-label": card.title },
        element("h3", {}, card.title), value, note, line.node));
      return { ...card, value, noteNode: note, line };
    });
    document.addEventListener("visibilitychange", () => this.#schedule());
  }

  /** Begin or end to read. */
  setOpen(isOpen) {
    this.#isOpen = isOpen;
    this.#schedule();
  }

  #schedule() {
    clearInterval(this.#timer);
    this.#timer = null;
    if (this.#isOpen && !document.hidden) {
      this.#read();
      this.#timer = setInterval(() => this.#read(), INTERVAL);
    }
  }

  async #read() {
    if (this.#isReading) return; // the last answer is late: the server is busy enough
    this.#isReading = true;
    try {
      const [text, status] = await Promise.all([
        getText("metrics", this.settings.key),
        getJson("console/status", this.settings.key),
      ]);
      this.#take(parseMetrics(text, performance.now() / 1000), status);
      byId("live-state").textContent = status.is_healthy ? "" : "The engine is down; it is being restarted.";
    } catch (error) {
      byId("live-state").textContent = error.message;
    } finally {
      this.#isReading = false;
    }
  }

  #take(now, status) {
    const before = this.#readings.at(-1) ?? now;
    const earlier = this.#readings.at(-WINDOW) ?? this.#readings[0] ?? now;
    this.#readings = [...this.#readings.slice(-WINDOW), now];
    for (const card of this.cards) {
      const all = { before, earlier, now, status };
      const value = card.of(all);
      const isKnown = Number.isFinite(value);
      card.value.textContent = isKnown ? card.text(value) : "–";
      card.noteNode.textContent = card.note?.(all) ?? "";
      card.line.push(isKnown ? value : null);
    }
    if (JSON.stringify(status) !== JSON.stringify(this.#status)) {
      this.#status = status;
      this.#describe(status);
    }
  }

  #describe(status) {
    const facts = {
      Model: status.root,
      "Served as": status.models.join(", "),
      Device: status.device,
      "Longest sequence": `${status.max_model_len.toLocaleString("en")} tokens`,
      "Most requests in a step": status.max_num_seqs.toLocaleString("en"),
      Cache: `${status.cache_tokens.toLocaleString("en")} tokens`,
      "Speed limit": status.decode_limit ? `${amount(status.decode_limit)} tokens/s for each request: reading the weights once a token takes the memory's whole bandwidth` : "",
      Version: `Octavo ${status.version}`,
    };
    byId("server").replaceChildren(...Object.entries(facts).filter(([, text]) => text)
      .flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]));
    byId("decisions").replaceChildren(...status.decisions.map(({ name, value, reason }) => element("tr", {},
      element("th", { scope: "row" }, name), element("td", {}, value), element("td", {}, reason))));
  }
}
