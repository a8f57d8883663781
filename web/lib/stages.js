// @ts-check
// Colours of the nodes' title bars: one a stage of the pipeline, so that a graph reads at a glance.

/** @type {Record<string, string>} */
const TITLE_COLORS = {
  "OTCA/model": "#24394f",
  "OTCA/data": "#2f4048",
  "OTCA/sampling": "#224745",
  "OTCA/rewards": "#4b3e1e",
  "OTCA/credit": "#443354",
  "OTCA/fusion": "#523140",
  "OTCA/training": "#2d472d",
};

/**
 * Title colour of a node's category; undefined leaves ComfyUI's own.
 *
 * @param {string} category
 */
export function stageColor(category) {
  return TITLE_COLORS[category];
}
