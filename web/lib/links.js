// @ts-check
/**
 * Colours of our links and sockets: one for each type, readable on ComfyUI's dark and light canvas. What belongs together is alike:
 * models and their parts blue, pictures green, rewards orange, credit and what follows of it purple.
 *
 * @type {Record<string, string>}
 */
export const LINK_COLORS = {
  OTCA_MODEL: "#7f9cf5",
  OTCA_MEMORY: "#7d8fa9",
  OTCA_PROMPTS: "#c9a227",
  OTCA_TRAJECTORIES: "#2aa198",
  OTCA_REWARD: "#e08e2b",
  OTCA_SCORES: "#d9603b",
  OTCA_CREDIT: "#b267d9",
  OTCA_ADVANTAGES: "#d6559b",
  OTCA_REPORT: "#6aa84f",
};

/**
 * Makes a page's table of colours have ours, also after a palette is chosen: a palette empties the colours that it does not know,
 * and those that it has win.
 *
 * @param {Record<string, string>} table
 */
export function withLinkColors(table) {
  for (const [type, color] of Object.entries(LINK_COLORS)) {
    let chosen = "";
    Object.defineProperty(table, type, {
      get: () => chosen || color,
      set: (value) => (chosen = value),
      enumerable: true,
      configurable: true,
    });
  }
}

/** The same for what the page colours by its style sheets. */
export function linkColorRule() {
  const lines = Object.entries(LINK_COLORS).map(([type, color]) => `--color-datatype-${type}: ${color};`);
  return `:root { ${lines.join(" ")} }`;
}
