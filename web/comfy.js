// @ts-check
/**
 * All that this extension asks of ComfyUI's page. Only the modules of this folder import ComfyUI's scripts, so that a change of theirs
 * is mended here. Ours get it as one object, `comfy`, which tests put something else in place of.
 */
export { app } from "../../scripts/app.js";
export * from "./comfy/graph.js";
export * from "./comfy/layout.js";
export * from "./comfy/node.js";
export * from "./comfy/page.js";
export * from "./comfy/queue.js";
export * from "./comfy/requests.js";
export * from "./comfy/values.js";
