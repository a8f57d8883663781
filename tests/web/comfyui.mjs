/** Stands in for ComfyUI's scripts/app.js and scripts/api.js. */

const bareNodes = () => Object.fromEntries(app.rootGraph.nodes.map(({ id }) => [id, { class_type: "", inputs: {} }]));

/** In place of a graph of bare nodes: what makes the prompt. */
export const comfyuiMakes = { prompt: null };

export const app = {
  settings: {},
  canvas: { default_connection_color_byType: {} },
  ui: { settings: new EventTarget() },
  rootGraph: { id: null, nodes: [], setDirtyCanvas() {} },
  extensionManager: { registerSidebarTab() {}, setting: { get: (id) => app.settings[id] }, toast: { add() {} } },
  graphToPrompt: async () => comfyuiMakes.prompt?.() ?? { output: bareNodes(), workflow: {} },
  async refreshComboInNodes() {},
  registerExtension(extension) {
    this.extension = extension;
  },
};

globalThis.window ??= globalThis;
globalThis.requestAnimationFrame ??= () => 0;
globalThis.localStorage ??= { getItem: () => null, setItem() {} };
import "./page.mjs"; // before all else: a channel that does not keep the process alive
globalThis.LGraphCanvas = { link_type_colors: {} };

export const api = new EventTarget();

/** route → what the server answers */
api.answers = new Map();

/** [route, what was posted] */
api.asked = [];

api.fetchApi = async (route, options) => {
  api.asked.push([route, options?.body && JSON.parse(options.body)]);
  if (route === "/otca/votes") return { ok: true, json: async () => ({ questions: [], seconds_each: null }) };
  if (!api.answers.has(route)) throw new Error(`nothing answers ${route}`);
  return { ok: true, json: async () => structuredClone(await api.answers.get(route)) };
};

api.apiURL = (route) => `/api${route}`;

api.queuePrompt = async () => ({ node_errors: {} });
api.getWorkflowTemplates = async () => ({});

// What replaces a method of ComfyUI's fails.
for (const object of [api, app]) {
  for (const [name, value] of Object.entries(object)) {
    if (typeof value === "function") Object.defineProperty(object, name, { writable: false, configurable: false });
  }
}

export function send(type, detail) {
  api.dispatchEvent(new CustomEvent(type, { detail }));
}
