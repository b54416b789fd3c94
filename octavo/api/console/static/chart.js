// A chart over the last minutes, drawn by uPlot: two lines at most, axes with units, values under the pointer.

import { element } from "./dom.js";
import { uPlot } from "./libraries.js";

const SHORTEST = 30; // seconds that the axis shows at first
const LONGEST = 300;
const HEIGHT = 180;
const COLOURS = ["--accent", "--second"];

export class TimeChart {
  #rows;
  #plot = null;

  /** @param {Object} chart title, unit, series with labels, text(value), and top where the axis is fixed */
  constructor({ title, unit, series, text, top }) {
    this.title = `${title} (${unit})`;
    this.#rows = [[], ...series.map(() => [])];
    this.place = element("div");
    this.node = element("figure", { className: "chart" }, element("figcaption", {}, title, element("span", {}, unit)), this.place);
    this.options = {
      height: HEIGHT,
      cursor: { y: false, drag: { x: false, y: false } },
      legend: { isolate: false },
      scales: { x: { range: () => this.#span() }, y: { range: (_, __, most) => [0, top ?? Math.max(1, most * 1.1)] } },
      axes: [
        axis({ space: 70, values: (_, times) => times.map(clock) }),
        axis({ size: 60, values: (_, values) => values.map(text) }),
      ],
      series: [
        { label: "at", value: (_, time) => (Number.isFinite(time) ? clock(time) : "") },
        ...series.map(({ label }, index) => ({
          label,
          width: 2,
          stroke: () => colour(COLOURS[index]),
          dash: index ? [6, 4] : undefined,
          points: { size: 5, show: () => this.#rows[0].length < 20 },
          value: (_, value) => (Number.isFinite(value) ? `${text(value)} ${unit}` : "–"),
        })),
      ],
    };
    // Not at once: drawing changes the layout that is being observed.
    new ResizeObserver(() => requestAnimationFrame(() => this.draw())).observe(this.place);
  }

  /** Add values, one for each line; null is a gap. */
  push(time, values) {
    [time, ...values].forEach((value, index) => this.#rows[index].push(value));
    while (this.#rows[0][0] < time - LONGEST) this.#rows.forEach((row) => row.shift());
    this.draw();
  }

  /** Draw anew, in the page's colours and width. */
  draw() {
    const width = this.place.clientWidth;
    if (!width) return;
    this.#plot ??= new uPlot({ ...this.options, width }, this.#rows, this.place);
    if (this.#plot.width !== width) this.#plot.setSize({ width, height: HEIGHT });
    this.#plot.setData(this.#rows);
    // Without a pointer, the latest values stand below the chart.
    const last = this.#rows[0].length - 1;
    if (last >= 0 && !Number.isInteger(this.#plot.cursor.idx)) this.#plot.setLegend({ idx: last });
  }

  #span() {
    const [times] = this.#rows;
    const end = times.at(-1) ?? Date.now() / 1000;
    return [Math.min(times[0] ?? end, end - SHORTEST), end];
  }
}

function axis(options) {
  const grid = { stroke: () => colour("--line"), width: 1 };
  return { stroke: () => colour("--quiet"), grid, ticks: grid, ...options };
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
const clock = (time) => new Date(time * 1000).toLocaleTimeString("en-GB");
