// @ts-check
/** Where ten thousand pictures lie in a list that scrolls: rows of tiles below the headings of their groups. Only those in view are made. */

export const GAP = 6; // pixels between two tiles
const HEADING = 34; // pixels

/**
 * @typedef {{key: string, label: string, count: number}} Group pictures that stand together, in the list's order
 * @typedef {{top: number, height: number, group: number, first: number, count: number}} Line `count` 0: the heading of its group
 * @typedef {{lines: Line[], height: number, columns: number, tile: number}} Layout
 */

/**
 * @param {Group[]} groups
 * @param {number} width of the list in pixels
 * @param {number} wanted width of a tile; it becomes as much wider as the list has room
 * @param {boolean} headings
 * @returns {Layout}
 */
export function layout(groups, width, wanted, headings) {
  const columns = Math.max(1, Math.floor((width + GAP) / (wanted + GAP)));
  const tile = Math.max(1, Math.floor((width - GAP * (columns - 1)) / columns));
  /** @type {Line[]} */
  const lines = [];
  let top = 0;
  let first = 0;
  for (const [group, { count }] of groups.entries()) {
    if (headings) {
      lines.push({ top, height: HEADING, group, first, count: 0 });
      top += HEADING;
    }
    for (let done = 0; done < count; done += columns) {
      lines.push({ top, height: tile + GAP, group, first: first + done, count: Math.min(columns, count - done) });
      top += tile + GAP;
    }
    first += count;
  }
  return { lines, height: top, columns, tile };
}

/**
 * The lines that are at least partly between two heights.
 *
 * @param {Layout} layout
 * @param {number} from
 * @param {number} to
 */
export function linesBetween({ lines }, from, to) {
  const begin = firstLine(lines, (line) => line.top + line.height > from);
  const end = firstLine(lines, (line) => line.top >= to);
  return lines.slice(begin, Math.max(begin, end));
}

/**
 * The line that a picture is in.
 *
 * @param {Layout} layout
 * @param {number} place
 */
export function lineOf({ lines }, place) {
  return lines[firstLine(lines, (line) => line.first + line.count > place)];
}

/**
 * @param {Line[]} lines of which those that hold come last
 * @param {(line: Line) => boolean} holds
 */
function firstLine(lines, holds) {
  let [low, high] = [0, lines.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(lines[middle])) high = middle;
    else low = middle + 1;
  }
  return low;
}
