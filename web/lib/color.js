// @ts-check
/** Colours of values, readable without red-green vision: viridis where a value has a size, PuOr where it has a sign. */

const VIRIDIS = stops("440154 482878 3e4989 31688e 26828e 1f9e89 35b779 6ece58 b5de2b fde725");

/** Purple is negative, orange positive. Zero is the page's paper: white in a light theme, near black in a dark one. */
const DIVERGING_LIGHT = stops("2d004b 542788 8073ac b2abd2 d8daeb f7f7f7 fee0b6 fdb863 e08214 b35806 7f3b08");
const DIVERGING_DARK = stops("d9c8ff b49cf2 8b71cf 64509a 43386a 2b2b2f 63421a 985c12 cf7f1a f5a53c ffd28a");

/** Okabe and Ito's colours without black and yellow, which vanish on one of the two themes. */
export const OBJECTIVES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c8c", "#7a5cc0"];

/**
 * @param {number} value in [0, limit]
 * @param {number} limit
 */
export function sequential(value, limit) {
  return css(mixed(VIRIDIS, value / limit));
}

/**
 * @param {number} value in [−limit, limit]
 * @param {number} limit
 * @param {boolean} dark whether the paper is dark
 */
export function diverging(value, limit, dark) {
  return css(mixed(dark ? DIVERGING_DARK : DIVERGING_LIGHT, (value / limit + 1) / 2));
}

/**
 * Whether a colour is dark, by its relative luminance (WCAG), in 0…255 per channel.
 *
 * @param {number[]} color
 */
export function isDark([red, green, blue]) {
  const [r, g, b] = [red, green, blue].map((channel) => (channel / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b < 0.18;
}

/**
 * The colour at t of [0, 1] between evenly spaced stops; t beyond the ends is the end.
 *
 * @param {number[][]} stops
 * @param {number} t
 */
export function mixed(stops, t) {
  const place = Math.min(1, Math.max(0, t)) * (stops.length - 1);
  const from = Math.min(Math.floor(place), stops.length - 2);
  return stops[from].map((channel, i) => channel + (place - from) * (stops[from + 1][i] - channel));
}

/** @param {string} hexes */
function stops(hexes) {
  return hexes.split(" ").map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
}

/** @param {number[]} color */
function css(color) {
  return `rgb(${color.map(Math.round).join(", ")})`;
}
