// @ts-check
/** The list of pictures: only tiles in view are in the page, and the keys go to the one that is marked. */
import { t } from "../lib/language.js";
import { GAP, layout, lineOf, linesBetween } from "../lib/gallerylayout.js";
import { marksOf } from "../lib/opinions.js";
import { h, setText } from "../sidebar/dom.js";

const NARROW = 420; // pixels of a list in the sidebar, where tiles are smaller
const MARGIN = 400; // pixels above and below what is seen, in which tiles are ready

/**
 * @typedef {import("../lib/gallerylayout.js").Group} Group
 * @typedef {{element: HTMLElement, image: HTMLImageElement, signs: HTMLElement, badge: HTMLElement, id: string}} Tile
 *
 * @param {object} options
 * @param {number} options.tile wanted width of a tile in pixels
 * @param {(id: string) => string} options.source the address of a small picture
 * @param {(id: string) => Known | undefined} options.known
 * @param {(ids: string[]) => void} options.wanted these are seen
 * @param {(id: string, event: MouseEvent) => void} options.clicked
 * @param {(event: KeyboardEvent) => void} options.pressed
 * @param {(id: string | null) => void} options.marked
 */
export function pictureList({ tile: width, source, known, wanted, clicked, pressed, marked }) {
  /** @type {Group[]} */
  let groups = [];
  /** @type {string[]} */
  let ids = [];
  let headings = false;
  let place = -1; // of the marked one
  let laid = layout([], 1, width, false);
  let asked = 0;
  /** @type {Map<string, Tile>} */
  const shown = new Map();
  /** @type {Tile[]} */
  const spare = [];
  /** @type {Set<HTMLImageElement>} whose picture did not come */
  const unread = new Set();
  /** @type {Map<number, HTMLElement>} */
  const heads = new Map();

  const inner = h("div.otca-gallery-inner", { role: "presentation" });
  const element = h("div.otca-gallery-list", { tabindex: "0", role: "listbox", "aria-label": t("Pictures") }, inner);
  element.addEventListener("scroll", later, { passive: true });
  element.addEventListener("keydown", pressed);
  inner.addEventListener("click", (event) => {
    const id = /** @type {HTMLElement} */ (event.target).closest(".otca-gallery-tile")?.getAttribute("data-id");
    if (!id) return;
    mark(ids.indexOf(id), false);
    clicked(id, event);
  });
  const resized = globalThis.ResizeObserver && new ResizeObserver(() => arrange());
  resized?.observe(element);

  function later() {
    if (!asked) asked = requestAnimationFrame(show);
  }

  /** @param {ReturnType<typeof held>} [kept] */
  function arrange(kept = held()) {
    laid = layout(groups, inner.clientWidth, inner.clientWidth < NARROW ? width * 0.6 : width, headings);
    inner.style.height = `${laid.height}px`;
    const at = kept ? ids.indexOf(kept.id) : -1;
    if (kept && at >= 0 && element.scrollTop) element.scrollTop = lineOf(laid, at).top - kept.below; // at the top new ones come into view
    else if (place >= 0 && (at < 0 || at === place)) reveal();
    show();
  }

  /** The picture that stays where it is when the list changes: the marked one if it is seen, else the first that is seen. */
  function held() {
    const { scrollTop, clientHeight } = element;
    const lines = linesBetween(laid, scrollTop, scrollTop + clientHeight).filter(({ count }) => count);
    const line = lines.find(({ first, count }) => first <= place && place < first + count) ?? lines[0];
    if (!line) return null;
    return { id: ids[line.first <= place && place < line.first + line.count ? place : line.first], below: line.top - scrollTop };
  }

  function show() {
    asked = 0;
    const [from, to] = [element.scrollTop - MARGIN, element.scrollTop + element.clientHeight + MARGIN];
    const lines = linesBetween(laid, from, to);
    const first = lines.find(({ count }) => count)?.first ?? 0;
    const last = lines.reduce((end, line) => Math.max(end, line.first + line.count), first);
    const seen = new Set(ids.slice(first, last));
    for (const [id, tile] of shown) {
      if (seen.has(id)) continue;
      tile.element.hidden = true;
      spare.push(tile);
      shown.delete(id);
    }
    const wantedHeads = new Set();
    for (const line of lines) {
      if (line.count) for (let at = 0; at < line.count; at += 1) showTile(line.first + at, line.top, at);
      else {
        wantedHeads.add(line.group);
        showHead(line.group, line.top);
      }
    }
    for (const [group, head] of heads) {
      if (wantedHeads.has(group)) continue;
      head.remove();
      heads.delete(group);
    }
    wanted([...seen]);
  }

  /**
   * @param {number} group
   * @param {number} top
   */
  function showHead(group, top) {
    const head = heads.get(group) ?? h("div.otca-gallery-head", { "aria-hidden": "true" }, h("span.otca-gallery-label"), h("span.otca-quiet"));
    if (!heads.has(group)) {
      heads.set(group, head);
      inner.append(head);
    }
    head.style.top = `${top}px`;
    const { label, count } = groups[group];
    setText(head.firstChild, label || t("nothing known"));
    head.title = label;
    setText(head.lastChild, String(count));
  }

  /**
   * @param {number} number
   * @param {number} top
   * @param {number} column
   */
  function showTile(number, top, column) {
    const id = ids[number];
    const tile = shown.get(id) ?? spare.pop() ?? newTile();
    if (tile.id !== id) {
      tile.id = id;
      tile.element.setAttribute("data-id", id);
      tile.element.id = `otca-picture-${id}`;
      tile.image.removeAttribute("src"); // else the picture before stands there until this one is read
      tile.image.src = source(id);
    }
    shown.set(id, tile);
    tile.element.hidden = false;
    const { style } = tile.element;
    style.transform = `translate(${column * (laid.tile + GAP)}px, ${top}px)`;
    style.width = style.height = `${laid.tile}px`;
    tile.element.setAttribute("aria-posinset", String(number + 1));
    tile.element.setAttribute("aria-setsize", String(ids.length));
    showKnown(tile);
  }

  /** @param {Tile} tile */
  function showKnown(tile) {
    const picture = known(tile.id);
    const { signs, words } = picture ? marksOf(picture.said) : { signs: "", words: "" };
    setText(tile.signs, signs);
    const score = picture?.taste;
    setText(tile.badge, score === undefined || score === null ? "" : score.toFixed(2));
    const broken = picture?.note.includes("cannot be shown");
    tile.element.setAttribute("data-broken", String(Boolean(broken)));
    tile.element.setAttribute("data-tone", picture ? toneOf(picture.said) : "");
    tile.element.setAttribute("aria-selected", String(ids[place] === tile.id));
    tile.element.setAttribute("aria-label", [picture?.name, picture?.prompt.slice(0, 200), words, broken && picture?.note].filter(Boolean).join(", ") || t("Picture"));
    tile.element.title = picture ? [picture.prompt.slice(0, 300), picture.note].filter(Boolean).join("\n") : "";
  }

  /** @returns {Tile} */
  function newTile() {
    const image = h("img", { alt: "", decoding: "async", draggable: "false", onerror: () => unread.add(image), onload: () => unread.delete(image) });
    const signs = h("span.otca-gallery-signs", { "aria-hidden": "true" });
    const badge = h("span.otca-gallery-badge", { "aria-hidden": "true" });
    const element = h("div.otca-gallery-tile", { role: "option" }, image, signs, badge);
    inner.append(element);
    return { element, image, signs, badge, id: "" };
  }

  /**
   * @param {number} wanted
   * @param {boolean} [moves] scrolls there
   */
  function mark(wanted, moves = true) {
    if (!ids.length) return;
    place = Math.max(0, Math.min(ids.length - 1, wanted));
    if (moves) reveal();
    show();
    element.setAttribute("aria-activedescendant", `otca-picture-${ids[place]}`);
    marked(ids[place]);
  }

  function reveal() {
    const line = lineOf(laid, place);
    if (!line) return;
    const bottom = element.scrollTop + element.clientHeight;
    const head = headings && laid.lines[laid.lines.indexOf(line) - 1];
    const top = head && !head.count ? head.top : line.top; // the heading, too
    if (top < element.scrollTop) element.scrollTop = top;
    else if (line.top + line.height > bottom) element.scrollTop = line.top + line.height - element.clientHeight + GAP;
  }

  return {
    element,
    /**
     * @param {Group[]} given
     * @param {string[]} listed
     * @param {boolean} withHeadings
     */
    update(given, listed, withHeadings) {
      const before = ids[place];
      const kept = held();
      [groups, ids, headings] = [given, listed, withHeadings];
      const again = before === undefined ? -1 : ids.indexOf(before);
      place = again >= 0 || place < 0 ? again : Math.min(place, ids.length - 1);
      arrange(kept);
      if (ids[place] !== before) marked(ids[place] ?? null);
    },
    /** More is known of pictures that are seen. */
    refresh() {
      for (const tile of shown.values()) showKnown(tile);
    },
    /** @param {string[]} names of pictures whose files have changed */
    reload(names) {
      for (const name of names) {
        const tile = shown.get(name);
        if (tile) tile.image.src = source(name);
      }
    },
    /** The server answers again. */
    again() {
      for (const image of unread) image.src = String(image.src); // once more
    },
    mark,
    /** @param {number} steps */
    move: (steps) => mark(place + steps),
    place: () => place,
    columns: () => laid.columns,
    ids: () => ids,
    dispose() {
      resized?.disconnect();
      cancelAnimationFrame(asked);
    },
  };
}

/** @param {import("../lib/opinions.js").Said} said */
function toneOf({ thumb, stars }) {
  if (thumb > 0 || stars > 3) return "good";
  return thumb < 0 || (stars > 0 && stars < 3) ? "bad" : "";
}
