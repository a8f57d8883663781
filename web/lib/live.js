// @ts-check
/** The widgets of the nodes that exist. */
export class LiveWidgets {
  /** @type {Map<GraphNode, Shown[]>} */
  #widgets = new Map();

  /**
   * @param {GraphNode} node
   * @param {Shown[]} widgets
   */
  add(node, widgets) {
    this.#widgets.set(node, widgets);
    const leave = node.onRemoved;
    node.onRemoved = (...details) => {
      leave?.apply(node, details);
      this.#release(node);
    };
  }

  /** @param {GraphNode | null | undefined} node */
  of(node) {
    return (node && this.#widgets.get(node)) || [];
  }

  /**
   * Releases all others: when another workflow is loaded, ComfyUI calls no onRemoved of nodes inside subgraphs.
   *
   * @param {GraphNode[]} nodes
   */
  keepOnly(nodes) {
    const kept = new Set(nodes);
    for (const node of this.#widgets.keys()) if (!kept.has(node)) this.#release(node);
  }

  /** @param {GraphNode} node */
  #release(node) {
    for (const widget of this.of(node)) widget.dispose?.();
    this.#widgets.delete(node);
  }
}
