// @ts-check
/** What somebody has clicked about one group of pictures, and the answer that it makes. Every change is a new ballot. */
import { t } from "./language.js";

/**
 * mode: how it is voted. "pick": a best and a worst picture; "thumbs": up, down or neither for each; "order": the best in a row.
 *
 * @typedef {"pick" | "thumbs" | "order"} Mode
 * @typedef {object} Ballot
 * @property {Mode} mode
 * @property {number | null} best
 * @property {number | null} worst
 * @property {number[]} thumbs 1, 0 or -1 for each picture
 * @property {number[]} order all pictures as they are shown, …
 * @property {number} placed … and how many of the first ones have a place
 */

/** @type {Mode[]} */
export const MODES = ["pick", "thumbs", "order"];

/**
 * @param {number} count of pictures
 * @param {Mode} mode
 * @returns {Ballot}
 */
export function newBallot(count, mode) {
  const order = Array.from({ length: count }, (_, number) => number);
  return { mode, best: null, worst: null, thumbs: order.map(() => 0), order, placed: 0 };
}

/**
 * After a click on a picture; `second` is the other click, by the right button or with Shift. The same click again takes it back.
 *
 * @param {Ballot} ballot
 * @param {number} picture
 * @param {boolean} second
 * @returns {Ballot}
 */
export function clicked(ballot, picture, second) {
  const { mode, best, worst, thumbs } = ballot;
  if (mode === "pick") {
    const [mine, other] = second ? [worst, best] : [best, worst];
    const now = mine === picture ? null : picture;
    const left = other === picture ? null : other;
    return { ...ballot, best: second ? left : now, worst: second ? now : left };
  }
  if (mode === "thumbs") {
    const thumb = second ? -1 : 1;
    return { ...ballot, thumbs: thumbs.map((old, number) => (number !== picture ? old : old === thumb ? 0 : thumb)) };
  }
  const { order, placed } = ballot;
  if (order.indexOf(picture) >= placed) return second ? ballot : moved(ballot, picture, placed);
  const rest = order.filter((other) => other !== picture);
  return { ...ballot, order: rest.toSpliced(placed - 1, 0, picture), placed: placed - 1 };
}

/**
 * After a picture was put at a place in the order: that place and all before it count from then on.
 *
 * @param {Ballot} ballot
 * @param {number} picture
 * @param {number} place
 * @returns {Ballot}
 */
export function moved(ballot, picture, place) {
  const rest = ballot.order.filter((other) => other !== picture);
  const wasPlaced = ballot.order.indexOf(picture) < ballot.placed ? 0 : 1;
  return { ...ballot, order: rest.toSpliced(place, 0, picture), placed: Math.max(ballot.placed + wasPlaced, place + 1) };
}

/**
 * The answer to send: {kind: "order", order: the best first, those in one list alike}; null where it puts no picture above another.
 *
 * @param {Ballot} ballot
 */
export function answerOf(ballot) {
  const levels = levelsOf(ballot).filter((level) => level.length);
  return levels.length > 1 ? { kind: "order", order: levels } : null;
}

/**
 * @param {Ballot} ballot
 * @returns {number[][]}
 */
function levelsOf({ mode, best, worst, thumbs, order, placed }) {
  const all = order.toSorted((a, b) => a - b);
  if (mode === "thumbs") return [1, 0, -1].map((thumb) => all.filter((number) => thumbs[number] === thumb));
  if (mode === "order") return [...order.slice(0, placed).map((number) => [number]), all.filter((n) => order.indexOf(n) >= placed)];
  const others = all.filter((number) => number !== best && number !== worst);
  return [best === null ? [] : [best], others, worst === null ? [] : [worst]];
}

/**
 * What is written on a picture: {tone, text}; null for nothing.
 *
 * @param {Ballot} ballot
 * @param {number} picture
 * @returns {{tone: "good" | "bad", text: string} | null}
 */
export function markOf({ mode, best, worst, thumbs, order, placed }, picture) {
  if (mode === "pick" && picture === best) return { tone: "good", text: t("best") };
  if (mode === "pick" && picture === worst) return { tone: "bad", text: t("worst") };
  if (mode === "thumbs" && thumbs[picture]) return thumbs[picture] > 0 ? { tone: "good", text: t("up") } : { tone: "bad", text: t("down") };
  const place = order.indexOf(picture);
  return mode === "order" && place < placed ? { tone: "good", text: `${place + 1}.` } : null;
}

/**
 * In how many columns pictures are largest within a room of that size.
 *
 * @param {number} count
 * @param {number} width
 * @param {number} height
 * @param {number} aspect of a picture, width by height
 */
export function columnsFor(count, width, height, aspect) {
  let chosen = 1;
  let largest = 0;
  for (let columns = 1; columns <= count; columns++) {
    const rows = Math.ceil(count / columns);
    const side = Math.min(width / columns, (height / rows) * aspect);
    if (side > largest + 1e-9) [largest, chosen] = [side, columns];
  }
  return chosen;
}

/**
 * "about 40 s", "about 3 min", "about 2 h".
 *
 * @param {number} seconds
 */
export function roughly(seconds) {
  if (seconds < 90) return t("about {seconds} s", { seconds: Math.max(1, seconds < 20 ? Math.round(seconds) : Math.round(seconds / 10) * 10) });
  if (seconds < 5400) return t("about {minutes} min", { minutes: Math.round(seconds / 60) });
  return t("about {hours} h", { hours: Math.round(seconds / 3600) });
}
