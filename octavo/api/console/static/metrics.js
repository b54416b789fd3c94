// Prometheus' text format, and what can be read off two readings of it. No DOM: this runs anywhere.

const SAMPLE = /^(?:octavo|vllm):([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)/;
const BOUND = /(?:^|,)le="([^"]*)"/;

/**
 * One reading.
 *
 * @returns {{time: number, values: Map<string, number[]>, buckets: Map<string, Map<number, number>>}} samples of all
 *   label sets by name, without the prefix; buckets of histograms, summed over label sets, by upper bound.
 */
export function parseMetrics(text, time) {
  const values = new Map();
  const buckets = new Map();
  for (const line of text.split("\n")) {
    const found = SAMPLE.exec(line);
    if (!found) continue;
    const [, name, labels, number] = found;
    const value = toNumber(number);
    const bound = name.endsWith("_bucket") && BOUND.exec(labels ?? "");
    if (bound) {
      const histogram = name.slice(0, -"_bucket".length);
      if (!buckets.has(histogram)) buckets.set(histogram, new Map());
      const counts = buckets.get(histogram);
      const le = toNumber(bound[1]);
      counts.set(le, (counts.get(le) ?? 0) + value);
    } else {
      if (!values.has(name)) values.set(name, []);
      values.get(name).push(value);
    }
  }
  return { time, values, buckets };
}

const toNumber = (text) => (text === "+Inf" ? Infinity : text === "-Inf" ? -Infinity : Number(text));

/** The sum over engines and models; undefined if there is no such metric. */
export function sum(reading, name) {
  return reading.values.get(name)?.reduce((total, value) => total + value, 0);
}

/** The mean over engines; undefined if there is no such metric. */
export function mean(reading, name) {
  const values = reading.values.get(name);
  return values?.length ? sum(reading, name) / values.length : undefined;
}

/** How much a counter grew; a counter that fell has started again from zero. */
export function growth(before, now, name) {
  const end = sum(now, name);
  if (end === undefined) return undefined;
  const start = sum(before, name) ?? 0;
  return end >= start ? end - start : end;
}

/** A counter's growth a second. */
export function rate(before, now, name) {
  const grown = growth(before, now, name);
  return grown === undefined || now.time <= before.time ? undefined : grown / (now.time - before.time);
}

/** The mean of what a histogram saw between two readings; undefined if that is nothing. */
export function meanOf(before, now, histogram) {
  const count = growth(before, now, `${histogram}_count`);
  return count ? growth(before, now, `${histogram}_sum`) / count : undefined;
}

/**
 * A quantile of what a histogram saw between two readings, linear within a bucket.
 *
 * @param {number} share 0 to 1
 * @returns {number|undefined} undefined if it saw nothing
 */
export function quantile(before, now, histogram, share) {
  const after = now.buckets.get(histogram);
  if (!after) return undefined;
  const earlier = before.buckets.get(histogram) ?? new Map();
  const bounds = [...after.keys()].sort((a, b) => a - b);
  const hasRestarted = bounds.some((bound) => after.get(bound) < (earlier.get(bound) ?? 0));
  const counts = bounds.map((bound) => after.get(bound) - (hasRestarted ? 0 : earlier.get(bound) ?? 0));
  const total = counts.at(-1);
  if (!(total > 0)) return undefined;
  const rank = share * total;
  const index = counts.findIndex((count) => count >= rank && count > 0);
  const low = index ? bounds[index - 1] : 0;
  const below = index ? counts[index - 1] : 0;
  if (bounds[index] === Infinity) return low;
  return low + ((bounds[index] - low) * (rank - below)) / (counts[index] - below);
}
