// @ts-check
/** Numbers and texts as the page shows them. */

const MINUS = "\u2212";
const NOTHING = "–";

/**
 * "0.42", "−1.50"; "–" for null, which is how the server sends what is not finite.
 *
 * @param {Value | undefined} value
 */
export function fixed(value, digits = 2) {
  if (value === null || value === undefined) return NOTHING;
  const text = Math.abs(value).toFixed(digits);
  return value < 0 && Number(text) !== 0 ? MINUS + text : text;
}

/**
 * The same with "+" before what is above zero.
 *
 * @param {Value | undefined} value
 */
export function signed(value, digits = 2) {
  const text = fixed(value, digits);
  return (value ?? 0) > 0 && Number(text) !== 0 ? `+${text}` : text;
}

/**
 * Three significant digits where fixed digits would say 0.00: "−0.0123", "1.4e−5".
 *
 * @param {Value | undefined} value
 */
export function significant(value, digits = 3) {
  if (value === null || value === undefined) return NOTHING;
  const size = Math.abs(value);
  const text = size !== 0 && size < 1e-4 ? size.toExponential(digits - 2) : String(Number(size.toPrecision(digits)));
  return (value < 0 ? MINUS : "") + text.replace("-", MINUS);
}

/** @param {number} share */
export function percent(share) {
  return share > 0 && share < 0.01 ? "<1 %" : `${Math.round(share * 100)} %`;
}

/**
 * How many there are, in words.
 *
 * @param {number} number
 * @param {string} one "{count} step"
 * @param {string} more "{count} steps"
 */
export function count(number, one, more) {
  return (number === 1 ? one : more).replace("{count}", String(number));
}

/**
 * A text's lines of at most `width`, at most `limit` of them; the last one ends in … where text is left over.
 *
 * @param {string} text
 * @param {number} width
 * @param {number} limit
 * @param {(text: string) => number} measure gives a width
 */
export function wrapped(text, width, limit, measure) {
  const words = text.split(/\s+/).filter(Boolean);
  const lines = [];
  while (words.length && lines.length < limit) {
    let line = words.shift() ?? "";
    while (words.length && measure(`${line} ${words[0]}`) <= width) line += ` ${words.shift()}`;
    lines.push(line);
  }
  const last = lines.length - 1;
  return lines.map((line, i) => shortened(line, width, measure, i === last && words.length > 0));
}

/**
 * @param {string} line
 * @param {number} width
 * @param {(text: string) => number} measure
 * @param {boolean} more
 */
function shortened(line, width, measure, more) {
  if (!more && measure(line) <= width) return line;
  let end = line.length;
  while (end > 1 && measure(`${line.slice(0, end)}…`) > width) end -= 1;
  return `${line.slice(0, end).trimEnd()}…`;
}

const UNITS = ["bytes", "kB", "MB", "GB", "TB"];

/**
 * The size of a file, as in 24.8 MB.
 *
 * @param {number} bytes
 */
export function fileSize(bytes) {
  let size = bytes;
  let unit = 0;
  for (; size >= 999.5 && unit < UNITS.length - 1; unit++) size /= 1000;
  return `${unit ? size.toPrecision(3) : size} ${UNITS[unit]}`;
}
