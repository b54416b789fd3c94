// The live view: what the server does now and did in the last minutes, read off its metrics.

import { TimeChart } from "./chart.js";
import { getJson, getText } from "./client.js";
import { byId, element } from "./dom.js";
import { amount, CHARTS, TILES } from "./figures.js";
import { parseMetrics } from "./metrics.js";

const INTERVAL = 2000; // between readings, in milliseconds
const SECOND_READING = 500; // after the first one, so that rates show at once
const WINDOW = 30; // readings that latencies look back over: a minute

/** Reads while the view is open and the tab is seen, not otherwise. */
export class Live {
  #readings = [];
  #timer = null;
  #isOpen = false;
  #isReading = false;
  #status = null;

  constructor(settings) {
    this.settings = settings;
    this.tiles = TILES.map((tile) => {
      const value = element("div", { className: "value" }, "–");
      const note = element("p", { className: "note" });
      byId("tiles").append(element("section", { className: "tile", "aria-label": tile.title },
        element("h3", {}, tile.title, ...(tile.help ? helpMark(tile) : [])), value, note));
      return { ...tile, value, noteNode: note };
    });
    this.charts = CHARTS.map((chart) => ({ ...chart, view: new TimeChart(chart) }));
    byId("charts").append(...this.charts.map(({ view }) => view.node));
    document.addEventListener("visibilitychange", () => this.#schedule());
  }

  /** Begin or end to read. */
  setOpen(isOpen) {
    this.#isOpen = isOpen;
    this.#schedule();
  }

  /** Draw the charts anew, after the colours changed. */
  redraw() {
    for (const { view } of this.charts) view.draw();
  }

  #schedule() {
    clearTimeout(this.#timer);
    this.#timer = null;
    if (this.#isOpen && !document.hidden) this.#readAndGoOn();
  }

  async #readAndGoOn() {
    if (this.#isReading) return;
    this.#isReading = true;
    await this.#read();
    this.#isReading = false;
    if (!this.#isOpen || document.hidden) return;
    this.#timer = setTimeout(() => this.#readAndGoOn(), this.#readings.length === 1 ? SECOND_READING : INTERVAL);
  }

  async #read() {
    try {
      const [text, status] = await Promise.all([
        getText("metrics", this.settings.key),
        getJson("console/status", this.settings.key),
      ]);
      this.#take(parseMetrics(text, performance.now() / 1000), status);
      byId("live-state").textContent = status.is_healthy ? "" : "The engine is down; it is being restarted.";
    } catch (error) {
      byId("live-state").textContent = error.message;
    }
  }

  #take(now, status) {
    const before = this.#readings.at(-1) ?? now;
    const earlier = this.#readings.at(-WINDOW) ?? this.#readings[0] ?? now;
    this.#readings = [...this.#readings.slice(-WINDOW), now];
    const all = { before, earlier, now, status };
    for (const tile of this.tiles) {
      const value = tile.of(all);
      tile.value.textContent = Number.isFinite(value) ? tile.text(value) : "–";
      tile.noteNode.textContent = tile.note?.(all) ?? "";
    }
    const time = Date.now() / 1000;
    for (const { series, view } of this.charts) {
      const values = series.map(({ of }) => of(all));
      view.push(time, values.map((value) => (Number.isFinite(value) ? value : null)));
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
      "Max batch size": `${status.max_num_seqs.toLocaleString("en")} requests`,
      Cache: `${status.cache_tokens.toLocaleString("en")} tokens`,
      "Memory bandwidth limit": status.decode_limit ? `${amount(status.decode_limit)} tokens/s for each request` : "",
      Version: `Octavo ${status.version}`,
    };
    byId("server").replaceChildren(...Object.entries(facts).filter(([, text]) => text)
      .flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]));
    byId("decisions").replaceChildren(...status.decisions.map(({ name, value, reason }) => element("tr", {},
      element("th", { scope: "row" }, name), element("td", {}, value), element("td", {}, reason))));
  }
}

/** A mark beside a title that shows an explanation while it is pointed at or has the focus. */
function helpMark({ title, help }) {
  const id = `help-${title.toLowerCase().replaceAll(" ", "-")}`;
  const mark = element("button", { type: "button", className: "help", "aria-label": `About: ${title}`, "aria-describedby": id }, "?");
  return [mark, element("span", { id, className: "tip", role: "tooltip" }, help)];
}
