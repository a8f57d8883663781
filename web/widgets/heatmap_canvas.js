// @ts-check
/** Draws the credit heatmap on a 2D context. What and where is decided in lib/heatmap.js. */
import { OBJECTIVES, diverging, isDark, sequential } from "../lib/color.js";
import { fixed, signed, wrapped } from "../lib/format.js";
import { METRICS, cellBox, isGradient, labelled, meanOf } from "../lib/heatmap.js";
import { t } from "../lib/language.js";

const FONT = `${METRICS.font}px Inter, system-ui, sans-serif`;
const FALLBACK = { ink: ["--input-text", "#ddd"], faint: ["--descrip-text", "#999"], paper: ["--comfy-input-bg", "#222"] };

/**
 * The page's colours as the element sees them, with whether its paper is dark.
 *
 * @typedef {{ink: string, faint: string, paper: string, dark: boolean}} Theme
 *
 * @param {Element} element
 * @returns {Theme}
 */
export function themeOf(element) {
  const style = getComputedStyle(element);
  const color = (/** @type {string[]} */ [variable, fallback]) => style.getPropertyValue(variable).trim() || fallback;
  const paper = color(FALLBACK.paper);
  return { ink: color(FALLBACK.ink), faint: color(FALLBACK.faint), paper, dark: isDark(channels(paper)) };
}

/**
 * Palettes are written in any of CSS's colour notations; the browser reads them all.
 *
 * @param {string} color
 */
function channels(color) {
  const context = /** @type {OffscreenCanvasRenderingContext2D} */ (new OffscreenCanvas(1, 1).getContext("2d"));
  context.fillStyle = color;
  context.fillRect(0, 0, 1, 1);
  return [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)];
}

/**
 * What is drawn: `place` is the layout, `rows` are the values [rows][T'] from top to bottom.
 *
 * @typedef {import("../lib/heatmap.js").Cell | null} Mark
 * @typedef {object} Picture
 * @property {Credit} credit
 * @property {import("../lib/heatmap.js").Layout} place
 * @property {import("../lib/heatmap.js").Coloring} view
 * @property {number} neutral
 * @property {import("../lib/heatmap_rows.js").ColorScale} scale
 * @property {import("../lib/heatmap_rows.js").Section[]} sections
 * @property {Value[][]} rows
 * @property {Value[]} means
 * @property {string | null} meansLabel numbers of the prompts; null: of all
 * @property {{above: number, below: number}} meansLimit
 * @property {Mark} selected
 * @property {Mark} hovered
 */

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Picture} picture
 * @param {Theme} theme
 */
export function paint(context, picture, theme) {
  const { place } = picture;
  context.clearRect(0, 0, place.width, place.height);
  context.font = FONT;
  context.textBaseline = "alphabetic";
  paintScale(context, picture, theme);
  paintCells(context, picture, theme);
  paintGroups(context, picture, theme);
  paintMeans(context, picture, theme);
  paintAxis(context, picture, theme);
  paintShares(context, picture);
  paintMark(context, picture, picture.hovered, theme, 1);
  paintMark(context, picture, picture.selected, theme, 2);
}

/**
 * @param {Picture} picture
 * @param {number} value
 * @param {Theme} theme
 */
function colorOf({ view, scale }, value, theme) {
  return view === "advantage" ? diverging(value, scale.limit, theme.dark) : sequential(value, scale.limit);
}

/** @type {typeof paint} */
function paintScale(context, picture, theme) {
  const { place, view, neutral } = picture;
  const { limit, beyond } = picture.scale;
  const { x, y, width, height } = place.scale;
  const signs = view === "advantage" && !isGradient(picture.credit);
  const low = signs ? -limit : 0;
  for (let at = 0; at < width; at++) {
    context.fillStyle = colorOf(picture, low + ((at + 0.5) / width) * (limit - low), theme);
    context.fillRect(x + at, y, Math.min(1.5, width - at), height);
  }
  const middle = view === "weight" ? t("{weight} even", { weight: fixed(neutral) }) : signs ? "0" : "";
  const [most, least] = beyond ? ["≥ ", "≤ "] : ["", ""];
  const ends = signs ? [least + signed(low), most + signed(limit)] : ["0", most + fixed(limit)];
  const words = signs ? [t("{limit} discouraged", { limit: ends[0] }), t("reinforced {limit}", { limit: ends[1] })] : ends;
  const center = x + ((neutral - low) / (limit - low)) * width;
  const measure = (/** @type {string} */ text) => context.measureText(text).width;
  const room = Math.min(center - x, x + width - center) - measure(middle) / 2 - 6;
  const [left, right] = words.every((text) => measure(text) < room) ? words : ends;
  const line = y + height + METRICS.font;
  context.fillStyle = theme.ink;
  write(context, left, x, line, "left");
  write(context, right, x + width, line, "right");
  write(context, middle, center, line, "center");
  if (middle) context.fillRect(center - 0.5, y, 1, height + 2);
  context.fillStyle = theme.ink;
  write(context, view === "weight" ? "w" : signs ? "Ã" : "g", place.gutter, y + height, "right");
}

/** @type {typeof paint} */
function paintCells(context, picture, theme) {
  const { place, rows } = picture;
  const gap = { x: place.columnWidth >= 8 ? 1 : 0, y: place.rowHeight >= 7 ? 1 : 0 };
  const hatch = hatching(context, theme);
  rows.forEach((values, row) => {
    values.forEach((value, column) => {
      const box = cellBox(place, { row, column });
      context.fillStyle = value === null ? hatch : colorOf(picture, value, theme);
      const [x, y] = [snapped(context, box.x), snapped(context, box.y)];
      const [right, bottom] = [snapped(context, box.x + box.width), snapped(context, box.y + box.height)];
      context.fillRect(x, y, right - x - gap.x, bottom - y - gap.y);
    });
  });
}

/**
 * Edges on whole device pixels: neither seams nor overlaps between cells, at any zoom.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {number} length
 */
function snapped(context, length) {
  const ratio = context.getTransform().a;
  return Math.round(length * ratio) / ratio;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Theme} theme
 */
function hatching(context, theme) {
  const size = 6;
  const tile = new OffscreenCanvas(size, size);
  const pen = /** @type {OffscreenCanvasRenderingContext2D} */ (tile.getContext("2d"));
  pen.fillStyle = theme.dark ? "#4a4a4a" : "#d0d0d0";
  pen.fillRect(0, 0, size, size);
  pen.strokeStyle = theme.dark ? "#7d7d7d" : "#8f8f8f";
  pen.lineWidth = 1.2;
  pen.beginPath();
  for (const shift of [-size, 0, size]) {
    pen.moveTo(shift, size);
    pen.lineTo(shift + size, 0);
  }
  pen.stroke();
  return /** @type {CanvasPattern} */ (context.createPattern(tile, "repeat"));
}

/** @type {typeof paint} */
function paintGroups(context, { place, sections }, theme) {
  const lineHeight = METRICS.font + 2;
  const x = place.cells.x - METRICS.gap;
  const measure = (/** @type {string} */ text) => context.measureText(text).width;
  let written = -Infinity; // down to where there is text
  sections.forEach(({ prompt, number, last }, i) => {
    const { y, height } = place.groups[i];
    context.fillStyle = theme.faint;
    context.fillRect(x + 1, y, 1.5, Math.max(1, height - 1));
    const limit = Math.max(1, Math.floor(height / lineHeight));
    const name = number === last ? String(number) : `${number}–${last}`;
    const fitting = prompt && height >= lineHeight;
    const lines = place.wide && fitting ? wrapped(prompt, place.gutter, limit, measure) : [name];
    const top = y + (height - lines.length * lineHeight) / 2;
    if (top < written) return; // of low sections, as many are named as there is room for
    written = top + lines.length * lineHeight;
    context.fillStyle = theme.ink;
    lines.forEach((line, j) => write(context, line, place.gutter, top + j * lineHeight + METRICS.font - 1, "right"));
  });
}

/** @type {typeof paint} */
function paintMeans(context, picture, theme) {
  const { place, neutral, means, meansLabel, meansLimit } = picture;
  const { x, y, width, height } = place.strip;
  // Bars stand on the neutral value, which lies where both the highest and the lowest bar fit.
  const base = y + (meansLimit.above / (meansLimit.above + meansLimit.below)) * height;
  const unit = height / (meansLimit.above + meansLimit.below);
  means.forEach((mean, column) => {
    if (mean === null) return;
    const length = (mean - neutral) * unit;
    const inset = Math.min(4, place.columnWidth * 0.15);
    context.fillStyle = picture.view === "advantage" ? (mean > 0 ? "#e08214" : "#8073ac") : "#3b8fc4";
    context.fillRect(x + column * place.columnWidth + inset, base - Math.max(0, length), place.columnWidth - 2 * inset, Math.abs(length));
  });
  context.fillStyle = theme.ink;
  context.fillRect(x, snapped(context, base - 0.5), width, 1);
  const lines = place.wide ? [meanOf(meansLabel)] : [t("mean"), ...(meansLabel === null ? [] : [t("prompt {numbers}", { numbers: meansLabel })])];
  const start = y + height / 2 - ((lines.length - 2) * (METRICS.font + 2)) / 2 - 2;
  lines.forEach((line, i) => writeInGutter(context, line, place.gutter + 2, start + i * (METRICS.font + 2)));
}

/** @type {typeof paint} */
function paintAxis(context, { place, credit }, theme) {
  const { x, y } = place.axis;
  const lines = [y + METRICS.font, y + 2 * METRICS.font + 3];
  const sigmas = credit.sigmas ?? [];
  context.fillStyle = theme.faint;
  writeInGutter(context, t("step"), place.gutter + 2, lines[0]);
  if (sigmas.length) write(context, "σ", place.gutter + 2, lines[1], "right");
  context.fillStyle = theme.ink;
  const width = context.measureText(sigmas.length ? "0.00" : "00").width + 5;
  for (const column of labelled(place.columns, place.columnWidth, width)) {
    const center = x + (column + 0.5) * place.columnWidth;
    const step = credit.trained[column];
    write(context, String(step), center, lines[0], "center");
    if (sigmas.length) write(context, fixed(sigmas[step]), center, lines[1], "center");
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Picture} picture
 */
function paintShares(context, { place }) {
  place.shares?.forEach(({ x, y, width, height }, /** @type {number} */ objective) => {
    context.fillStyle = OBJECTIVES[objective % OBJECTIVES.length];
    context.fillRect(x, y, width, Math.max(0, height - 1));
  });
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Picture} picture
 * @param {Mark} cell
 * @param {Theme} theme
 * @param {number} thickness
 */
function paintMark(context, { place }, cell, theme, thickness) {
  if (!cell) return;
  const { x, y, width, height } = cellBox(place, cell);
  // Two lines, light and dark, are seen on every colour; a low cell is framed outside of itself.
  const out = thickness;
  context.lineWidth = thickness + 2;
  context.strokeStyle = theme.dark ? "#000" : "#fff";
  context.strokeRect(x - out / 2, y - out / 2, width + out - 1, height + out - 1);
  context.lineWidth = thickness;
  context.strokeStyle = theme.dark ? "#fff" : "#000";
  context.strokeRect(x - out / 2, y - out / 2, width + out - 1, height + out - 1);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {string} text
 * @param {number} x
 * @param {number} y
 * @param {CanvasTextAlign} align
 */
function write(context, text, x, y, align) {
  context.textAlign = align;
  context.fillText(text, x, y);
}

/**
 * A word left of the cells, squeezed where it is longer than there is room: its length depends on the language.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {string} text
 * @param {number} x its end, and so the room for it
 * @param {number} y
 */
function writeInGutter(context, text, x, y) {
  context.textAlign = "right";
  context.fillText(text, x, y, x);
}
