// @ts-check
/**
 * How a graph is shown when it is opened for the first time.
 */

const TITLE = 30; // of a node, above its place
export const SMALLEST = 0.75; // below this, widgets' letters of 12 units are smaller than 9 pixels
const LARGEST = 1;
const TOP = 96; // what the page's menu and tabs cover
const BOTTOM = 24;
const SIDE = 16;

/**
 * The scale and offset of the canvas: the whole graph if it can be read then, else its beginning, the upper left.
 *
 * @param {number[][]} boxes x, y, width and height of each node's body
 * @param {{width: number, height: number, left: number}} page its size, and how much of it is covered at its left
 * @param {number} [smallest] scale
 */
export function opening(boxes, { width, height, left }, smallest = SMALLEST) {
  const x = Math.min(...boxes.map((box) => box[0]));
  const y = Math.min(...boxes.map((box) => box[1] - TITLE));
  const far = [0, 1].map((side) => Math.max(...boxes.map((box) => box[side] + box[side + 2])));
  const free = { width: width - left - 2 * SIDE, height: height - TOP - BOTTOM };
  const fits = Math.min(free.width / (far[0] - x), free.height / (far[1] - y), LARGEST);
  const scale = Math.max(fits, smallest);
  const spare = [free.width - scale * (far[0] - x), free.height - scale * (far[1] - y)].map((rest) => Math.max(rest, 0) / 2);
  return {
    scale,
    offset: [(left + SIDE + spare[0]) / scale - x, (TOP + spare[1]) / scale - y],
  };
}
