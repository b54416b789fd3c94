// A small line of how a figure went. The figure itself stands beside it as text, so the line is hidden from readers.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 150;
const HEIGHT = 40;

export class Sparkline {
  #values = [];

  /**
   * @param {number} kept values that the line shows
   * @param {number} [top] the value at the upper edge; else the largest one shown
   */
  constructor(kept, top) {
    this.kept = kept;
    this.top = top;
    this.node = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    this.node.append(shape("line", { x1: 0, y1: HEIGHT - 1, x2: WIDTH, y2: HEIGHT - 1 }));
  }

  /** Add a value; null is a gap. */
  push(value) {
    this.#values = [...this.#values.slice(1 - this.kept), value];
    const top = this.top ?? Math.max(1e-9, ...this.#values);
    const offset = this.kept - this.#values.length;
    const lines = [];
    let points = [];
    this.#values.forEach((each, index) => {
      if (each === null) {
        points = [];
        return;
      }
      if (!points.length) lines.push(points);
      const x = ((offset + index) * WIDTH) / (this.kept - 1);
      const y = HEIGHT - 1 - Math.min(1, each / top) * (HEIGHT - 3);
      points.push(`${x.toFixed(1)},${y.toFixed(1)}`);
    });
    this.node.querySelectorAll("polyline").forEach((line) => line.remove());
    this.node.append(...lines.map((line) => shape("polyline", { points: line.join(" ") })));
  }
}

function shape(tag, attributes) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}
