/** The widgets of the nodes that exist. */
export class LiveWidgets {
  #widgets = new Map(); // node → [{show, dispose?}]

  add(node, widgets) {
    this.#widgets.set(node, widgets);
    const leave = node.onRemoved;
    node.onRemoved = (...given) => {
      leave?.apply(node, given);
      this.#release(node);
    };
  }

  of(node) {
    return this.#widgets.get(node) ?? [];
  }

  /** Releases all others: when another workflow is loaded, ComfyUI tells nodes inside subgraphs nothing of their end. */
  keepOnly(nodes) {
    const kept = new Set(nodes);
    for (const node of this.#widgets.keys()) if (!kept.has(node)) this.#release(node);
  }

  #release(node) {
    for (const widget of this.of(node)) widget.dispose?.();
    this.#widgets.delete(node);
  }
}
