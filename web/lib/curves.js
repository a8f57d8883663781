// @ts-check
// The arithmetic of every chart: ticks, scales, running means, and what remains of 10,000 iterations on 300 pixels.

/**
 * [lowest, highest] of the finite values, or null where there is none.
 *
 * @param {Values} values
 * @returns {[number, number] | null}
 */
export function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value === null || !Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : null;
}

/**
 * Widens a range by 5 % at both ends, a single value by more; what is never negative gets no axis below zero.
 *
 * @param {[number, number]} range
 * @returns {[number, number]}
 */
export function padded([low, high]) {
  const room = low === high ? Math.abs(low) * 0.1 || 1 : (high - low) * 0.05;
  return [low >= 0 ? Math.max(0, low - room) : low - room, high + room];
}

/**
 * Maps a domain linearly onto a range of pixels.
 *
 * @param {[number, number]} domain
 * @param {[number, number]} pixels
 * @returns {(value: number) => number}
 */
export function scale([from, to], [start, end]) {
  const factor = to === from ? 0 : (end - start) / (to - from);
  return (value) => start + (value - from) * factor;
}

/**
 * About `count` multiples of 1, 2 or 5 times a power of ten inside [low, high].
 *
 * @param {number} low
 * @param {number} high
 * @param {number} count
 */
export function niceTicks(low, high, count) {
  const rough = (high - low) / count;
  if (!(rough > 0)) return [low];
  const magnitude = 10 ** Math.floor(Math.log10(rough));
  const size = rough / magnitude;
  const step = (size < Math.sqrt(2) ? 1 : size < Math.sqrt(10) ? 2 : size < Math.sqrt(50) ? 5 : 10) * magnitude;
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index++) {
    ticks.push(Number((index * step).toPrecision(12)) || 0);
  }
  return ticks;
}

/**
 * Ticks of an axis that counts: whole numbers only.
 *
 * @param {number} low
 * @param {number} high
 * @param {number} count
 */
export function wholeTicks(low, high, count) {
  const ticks = niceTicks(low, high, count).filter(Number.isInteger);
  return ticks.length ? ticks : [Math.ceil(low)];
}

/**
 * At each point the mean of the values before it, over a tenth of all (the trainer's rewards.png uses the same window).
 *
 * @param {Values} values
 */
export function runningMean(values) {
  const window = Math.max(1, Math.floor(values.length / 10));
  /** @type {Value[]} */
  const means = [];
  let total = 0;
  let count = 0;
  for (let index = 0; index < values.length; index++) {
    const entering = values[index];
    if (isNumber(entering)) {
      total += entering;
      count += 1;
    }
    const leaving = values[index - window];
    if (isNumber(leaving)) {
      total -= leaving;
      count -= 1;
    }
    means.push(count ? total / count : null);
  }
  return means;
}

/**
 * [xs, ...lines], where most of the points are of none of the lines without those: what is measured now and then becomes one line.
 *
 * @param {Numbers} xs
 * @param {Values[]} lines
 * @returns {[Numbers, ...Values[]]}
 */
export function joined(xs, lines) {
  const rows = [...xs.keys()].filter((row) => lines.some((ys) => isNumber(ys[row])));
  if (2 * rows.length >= xs.length) return [xs, ...lines];
  return [rows.map((row) => xs[row]), ...lines.map((ys) => rows.map((row) => ys[row]))];
}

/** @type {(value: unknown) => value is number} */
const isNumber = /** @type {any} */ (Number.isFinite);

/**
 * The points worth drawing: of each pixel column its first, lowest, highest and last, so no spike is lost.
 * A column in which nothing is known becomes null, which leaves a gap in the line.
 *
 * @param {Numbers} xs
 * @param {Values} ys
 * @param {[number, number]} domain
 * @param {number} columns
 * @returns {Point[]}
 */
export function decimate(xs, ys, domain, columns) {
  /** @type {(index: number) => Point} */
  const point = (index) => {
    const y = ys[index];
    return isNumber(y) ? [xs[index], y] : null;
  };
  if (xs.length <= columns * 2) return Array.from(xs, (_, index) => point(index));
  const toColumn = scale(domain, [0, columns]);
  /** @type {Point[]} */
  const kept = [];
  // Plain loops: this is done for ten thousand points, some ten times, whenever one of them is new.
  for (let start = 0; start < xs.length; ) {
    const column = Math.floor(toColumn(xs[start]));
    let [first, last, lowest, highest] = [-1, -1, -1, -1];
    let end = start;
    for (; end < xs.length && Math.floor(toColumn(xs[end])) === column; end++) {
      const y = ys[end];
      if (!isNumber(y)) continue;
      if (first < 0) first = lowest = highest = end;
      last = end;
      if (y < /** @type {number} */ (ys[lowest])) lowest = end;
      if (y > /** @type {number} */ (ys[highest])) highest = end;
    }
    if (first < 0) kept.push(null);
    else {
      const [earlier, later] = lowest < highest ? [lowest, highest] : [highest, lowest];
      kept.push(point(first));
      if (earlier !== first) kept.push(point(earlier));
      if (later !== earlier && later !== first) kept.push(point(later));
      if (last !== later && last !== first) kept.push(point(last));
    }
    start = end;
  }
  return kept;
}

/**
 * The `d` of an SVG path through points; null lifts the pen.
 *
 * @param {Point[]} points
 * @param {(value: number) => number} toX
 * @param {(value: number) => number} toY
 */
export function linePath(points, toX, toY) {
  let pen = "M";
  const parts = [];
  for (const point of points) {
    if (!point) {
      pen = "M";
      continue;
    }
    parts.push(`${pen}${toX(point[0]).toFixed(1)},${toY(point[1]).toFixed(1)}`);
    pen = "L";
  }
  return parts.join("");
}

/**
 * The `d` of a path that draws dots where its line has round ends: they stay round in a drawing that is stretched.
 *
 * @param {Point[]} points
 * @param {(value: number) => number} toX
 * @param {(value: number) => number} toY
 */
export function dotPath(points, toX, toY) {
  return points.map((point) => point && `M${toX(point[0]).toFixed(1)},${toY(point[1]).toFixed(1)}h0`).join("");
}

/**
 * Points that no line reaches, since both neighbours are unknown: they need a dot to be seen.
 *
 * @param {Point[]} points
 */
export function lonePoints(points) {
  return points.flatMap((point, index) => (point && !points[index - 1] && !points[index + 1] ? [point] : []));
}

/**
 * Means over at most `columns` equal stretches of the iterations, for pictures with one cell a stretch.
 *
 * @param {Numbers} xs
 * @param {Values} ys
 * @param {number} columns
 * @returns {{edges: number[], means: Value[]}} columns + 1 edges; iteration i covers [i - 0.5, i + 0.5].
 */
export function binMeans(xs, ys, columns) {
  const first = xs[0] - 0.5;
  const last = xs[xs.length - 1] + 0.5;
  const bins = Math.min(columns, Math.round(last - first));
  const totals = new Array(bins).fill(0);
  const counts = new Array(bins).fill(0);
  xs.forEach((x, index) => {
    const y = ys[index];
    if (!isNumber(y)) return;
    const bin = Math.min(bins - 1, Math.floor(((x - first) / (last - first)) * bins));
    totals[bin] += y;
    counts[bin] += 1;
  });
  return {
    edges: Array.from({ length: bins + 1 }, (_, bin) => first + ((last - first) * bin) / bins),
    means: totals.map((total, bin) => (counts[bin] ? total / counts[bin] : null)),
  };
}

/**
 * Index of the ascending value nearest to `x`.
 *
 * @param {Numbers} ascending
 * @param {number} x
 */
export function nearestIndex(ascending, x) {
  let low = 0;
  let high = ascending.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ascending[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - ascending[low - 1] <= ascending[low] - x ? low - 1 : low;
}

/**
 * A reward's evaluations as dots with the ends of their error bars.
 *
 * @param {Evaluation[]} evaluations
 * @param {string} name
 */
export function errorBars(evaluations, name) {
  return evaluations.flatMap(({ iteration, rewards }) => {
    const mean = rewards[name]?.mean;
    if (!isNumber(mean)) return [];
    const error = rewards[name].standard_error ?? 0;
    return [{ iteration, mean, error, low: mean - error, high: mean + error }];
  });
}

/**
 * The label of a tick: all its digits, since a tick is a round number.
 *
 * @param {number} value
 */
export function tickLabel(value) {
  const size = Math.abs(value);
  const text = size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential().replace("e+", "e") : String(value);
  return text.replaceAll("-", "\u2212");
}
