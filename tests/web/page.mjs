/** As much of a browser's page as the sidebar's modules ask for: a tree of elements, the focus, whether the page is seen. */

class Node {
  parentNode = null;

  remove() {
    this.parentNode?.take(this);
  }
}

class Text extends Node {
  constructor(data) {
    super();
    this.data = data;
  }

  get textContent() {
    return this.data;
  }

  set textContent(data) {
    this.data = data;
  }
}

class Element extends Node {
  childNodes = [];
  style = {};
  dataset = {};
  hidden = false;
  open = false;
  clientWidth = 0;
  clientHeight = 0;
  scrollTop = 0;
  selectedOptions = [];
  value = "";
  focusedWith = []; // the options of each focus()
  #attributes = new Map();
  #events = new EventTarget();

  constructor(tag) {
    super();
    this.tag = tag;
    const names = () => (this.getAttribute("class") ?? "").split(" ").filter(Boolean);
    this.classList = {
      add: (...more) => this.setAttribute("class", [...new Set([...names(), ...more])].join(" ")),
      contains: (name) => names().includes(name),
      remove: (name) => this.setAttribute("class", names().filter((each) => each !== name).join(" ")),
      toggle: (name, on) => this.classList[on ? "add" : "remove"](name),
    };
  }

  getAttribute(name) {
    return this.#attributes.get(name) ?? null;
  }

  setAttribute(name, value) {
    this.#attributes.set(name, String(value));
  }

  removeAttribute(name) {
    this.#attributes.delete(name);
  }

  get children() {
    return this.childNodes.filter((node) => node instanceof Element);
  }

  /** As of a <select>. */
  get options() {
    return this.children;
  }

  select() {}

  closest() {
    return null;
  }

  get firstChild() {
    return this.childNodes[0];
  }

  get firstElementChild() {
    return this.children[0] ?? null;
  }

  get nextElementSibling() {
    const beside = this.parentNode.children;
    return beside[beside.indexOf(this) + 1] ?? null;
  }

  get lastChild() {
    return this.childNodes.at(-1);
  }

  get textContent() {
    return this.childNodes.map((node) => node.textContent).join("");
  }

  set textContent(text) {
    this.replaceChildren(...(text === "" ? [] : [text]));
  }

  append(...nodes) {
    for (const node of nodes) this.insertBefore(node instanceof Node ? node : new Text(String(node)), null);
  }

  prepend(node) {
    this.insertBefore(node, this.childNodes[0] ?? null);
  }

  replaceChildren(...nodes) {
    for (const node of [...this.childNodes]) node.remove();
    this.append(...nodes);
  }

  insertBefore(node, next) {
    node.remove();
    this.childNodes.splice(next ? this.childNodes.indexOf(next) : this.childNodes.length, 0, node);
    node.parentNode = this;
  }

  /** As in a browser, what leaves the tree, be it only to come back elsewhere, loses the focus. */
  take(node) {
    if (node instanceof Element && node.contains(document.activeElement)) document.activeElement = document.body;
    this.childNodes.splice(this.childNodes.indexOf(node), 1);
    node.parentNode = null;
  }

  contains(node) {
    for (let at = node; at; at = at.parentNode) if (at === this) return true;
    return false;
  }

  focus(options) {
    this.focusedWith.push(options);
    document.activeElement = this;
    this.dispatchEvent(new Event("focus"));
  }

  addEventListener(type, callback) {
    this.#events.addEventListener(type, callback);
  }

  dispatchEvent(event) {
    this.#events.dispatchEvent(event);
  }

  click() {
    this.dispatchEvent(new Event("click"));
  }

  /** As of a <dialog>. */
  show() {
    this.open = true;
  }

  showModal() {
    this.open = true;
  }

  close() {
    this.open = false;
    this.dispatchEvent(new Event("close"));
  }

  getBoundingClientRect() {
    return { left: 0, width: this.clientWidth };
  }

  getContext() {
    return { fillRect() {} };
  }

  toDataURL() {
    return "data:,";
  }

  /** All below it of that class, in order. */
  all(name) {
    return this.children.flatMap((child) => [...(child.classList.contains(name) ? [child] : []), ...child.all(name)]);
  }
}

class Document extends EventTarget {
  visibilityState = "visible";
  title = "";
  documentElement = new Element("html");
  body = new Element("body");
  activeElement = this.body;

  createElement(tag) {
    return new Element(tag);
  }

  createElementNS(_, tag) {
    return new Element(tag);
  }
}

/** A page of its own for a test file; returns its document. */
export function openPage() {
  globalThis.document = new Document();
  document.head = new Element("head");
  globalThis.MutationObserver = class {
    observe() {}
    disconnect() {}
  };
  globalThis.ResizeObserver = class {
    constructor(callback) {
      this.callback = callback;
    }

    /** `element.resized()` after its size was set. */
    observe(element) {
      element.resized = () => this.callback([]);
    }

    disconnect() {}
  };
  globalThis.IntersectionObserver = class {
    constructor(callback) {
      this.callback = callback;
    }

    /** All is in view, unless a test says otherwise by `element.seen(false)`. */
    observe(element) {
      element.seen = (isIntersecting) => this.callback([{ isIntersecting }]);
      element.seen(true);
    }

    disconnect() {}
  };
  return document;
}

/** Has all promises that are ready do their work, and what follows from it. */
export async function settled() {
  for (let round = 0; round < 50; round++) await Promise.resolve();
}

// One that listens would keep node's process alive for ever.
globalThis.BroadcastChannel = class extends globalThis.BroadcastChannel {
  constructor(name) {
    super(name);
    this.unref();
  }
};
