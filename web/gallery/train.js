// @ts-check
/** "Train on these": what a training on the opinions would take, and its workflow on the canvas. */

/**
 * @param {GalleryServer} server
 * @param {(graph: SavedGraph, name: string) => Promise<string>} openWorkflow
 */
export async function trainDialog(server, openWorkflow) {}
