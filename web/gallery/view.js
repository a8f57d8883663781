// @ts-check
/** The gallery: what is listed, the picture that is marked, and what the user says of it. The same in the sidebar and in a tab of its own. */
import { count as counted } from "../lib/format.js";
import { t } from "../lib/language.js";
import { nothingSaid, saidBy, withOpinions } from "../lib/opinions.js";
import { newId, outbox } from "../lib/outbox.js";
import { poll } from "../lib/poll.js";
import { button, h, setText } from "../sidebar/dom.js";
import { exchangeDialog } from "./exchange.js";
import { pictureList } from "./list.js";
import { pictureView } from "./picture.js";
import { comparePairs } from "./pairs.js";
import { tasteBar } from "./taste.js";
import { trainDialog } from "./train.js";

const POLL_MS = 2000;
const MOST_IDS = 200; // of one request for details
const TILE = 168; // wanted width of a tile in pixels
const KEPT = "otca.gallery.waiting"; // in the tab's own store
const DONE = "otca.gallery.done";
const MOST_DONE = 200; // opinions that Z goes back through

const TEXT = {
  search: t("Words of prompts, names, models, tags"),
  group: t("Group"),
  groups: /** @type {[string, string][]} */ ([["", t("none")], ["prompt", t("same prompt")], ["graph", t("same graph")]]),
  order: t("Order"),
  orders: /** @type {[string, string][]} */ ([["newest", t("newest first")], ["stars", t("best first")], ["taste", t("by my taste")]]),
  said: t("Opinion"),
  saids: /** @type {[string, string][]} */ ([
    ["", t("any")],
    ["nothing", t("none yet")],
    ["something", t("some")],
    ["liked", t("liked")],
    ["disliked", t("disliked")],
    ...[5, 4, 3, 2, 1].map((least) => [`stars${least}`, least === 5 ? t("5 stars") : least === 1 ? t("any stars") : t("{least} stars or more", { least })]),
  ]),
  model: t("Model"),
  anyModel: t("any"),
  total: (/** @type {number} */ listed, /** @type {number} */ total) =>
    listed === total ? counted(total, t("{count} picture"), t("{count} pictures")) : t("{listed} of {total} pictures", { listed, total }),
  reading: (/** @type {number} */ read, /** @type {number} */ all) => t("reading {read} of {all}", { read, all }),
};

/**
 * @param {GalleryServer} server
 * @param {{own: boolean, openWorkflow: (graph: SavedGraph, name: string) => Promise<string>}} options `own`: it has a tab of its own;
 *   `openWorkflow` says where it was opened
 */
export function galleryView(server, { own, openWorkflow }) {
  /** @type {Map<string, Known>} */
  const known = new Map();
  /** @type {Map<string, import("../lib/opinions.js").Opinion[]>} asked for, and not answered yet: what was kept since then, of which the answer may not know */
  const asking = new Map();
  /** @type {Set<string>} */
  let seen = new Set();
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let version = -1;
  let opinions = "";
  let better = ""; // the first picture of a pair that is being said
  let disposed = false;
  let asked = ""; // the filters of the list that is shown
  let forgotten = 0; // how often
  let unread = false; // details that were asked for last

  // ---- controls ----
  const search = h("input.otca-input", { type: "search", placeholder: TEXT.search, "aria-label": TEXT.search });
  const group = select(TEXT.group, TEXT.groups, "prompt");
  const order = select(TEXT.order, TEXT.orders, "newest");
  const said = select(TEXT.said, TEXT.saids, "");
  const model = select(TEXT.model, [["", TEXT.anyModel]], "");
  const since = h("input.otca-input", { type: "date" });
  const until = h("input.otca-input", { type: "date" });
  const status = h("p.otca-note.otca-gallery-status", { role: "status" });
  const hint = h("p.otca-note.otca-gallery-hint", { role: "status" });
  // Two, since the next read that succeeds clears only the second.
  const error = h("div.otca-error", { role: "alert" });
  const readError = h("div.otca-error", { role: "alert" });
  const none = h("p.otca-note.otca-gallery-none", {}, t("No picture fits. Change the filters, or make pictures: they appear here."));
  none.hidden = true;

  const list = pictureList({
    tile: TILE,
    source: (id) => server.routeUrl(`/otca/gallery/small/${id}`),
    known: (id) => known.get(id),
    wanted(ids) {
      seen = new Set(ids);
      askSoon();
    },
    clicked: (id, event) => event.shiftKey && pair(id),
    pressed,
    marked: (id) => showMarked(id),
  });
  const viewer = pictureView(server, { say: (id, kind, other, value) => say(id, kind, other, value), pressed });
  const taste = tasteBar(server, { changed: () => (order.value === "taste" ? readAnew() : forget()) });
  const filters = [
    field(TEXT.group, group),
    field(TEXT.order, order),
    field(TEXT.said, said),
    field(TEXT.model, model),
    field(t("From"), since),
    field(t("To"), until),
  ];
  const element = h(
    "div.otca-gallery",
    {},
    h(
      "div.otca-gallery-top",
      {},
      h(
        "div.otca-toolbar",
        {},
        button("pi-play", t("Train on these…"), () => guard(() => trainDialog(server, { ids: list.ids(), openWorkflow })), { class: "otca-button otca-primary" }),
        button("pi-arrows-h", t("Compare…"), () => guard(() => comparePairs(server, { say, kept: box.sent })), { title: t("Asks which of two pictures of the same prompt is better") }),
        button("pi-sort-alt", t("Opinions…"), () => exchangeDialog(server, { changed: () => follow.refresh() }), { title: t("Saves your opinions as a file, and takes in such a file or votes") }),
        !own && h("a.otca-button", { href: server.routeUrl("/otca/gallery"), target: "_blank", title: t("Opens the gallery in a tab of its own") }, h("i.pi.pi-external-link", { "aria-hidden": "true" }), t("Own tab")),
      ),
      search,
      h("details.otca-gallery-more", { open: own }, h("summary", {}, t("Groups, order, filters")), h("div.otca-gallery-filters", {}, filters)),
      taste.element,
      status,
      error,
      readError,
    ),
    h("div.otca-gallery-body", {}, h("div.otca-gallery-left", {}, list.element, none), viewer.element),
    h("footer.otca-gallery-foot", {}, hint, h("p.otca-note", {}, t("↑ like · ↓ dislike · 1–5 stars · J next · K previous · Z undo · P pair: the better one, then the other"))),
  );
  for (const control of [group, order, said, model, since, until]) control.addEventListener("change", readAnew);
  search.addEventListener("input", typed);
  // Keys typed here are no shortcuts of the graph.
  element.addEventListener("keydown", (event) => event.stopPropagation());

  const box = outbox({
    storage: sessionStorage,
    key: KEPT,
    send: async (/** @type {any} */ item) => {
      await server.postJson("/otca/gallery/say", item);
      for (const name of [item.picture, item.other]) asking.get(name)?.push(item);
      if (item.kind === "undo") follow.refresh();
      taste.soon();
    },
    changed: () => {
      showStatus();
      list.refresh();
    },
    refused: (item, failure) => {
      remember(done().filter((id) => id !== item.id));
      forget();
      setText(error, failure.message);
    },
  });
  let progress = { pictures: 0, read: 0, small: 0, slow: /** @type {string[]} */ ([]), problem: "" };
  let listed = { total: 0, shown: 0 };

  /**
   * @param {string} label
   * @param {[string, string][]} options
   * @param {string} value
   */
  function select(label, options, value) {
    const made = h("select.otca-input", { "aria-label": label });
    made.append(...options.map(([name, shown]) => h("option", { value: name }, shown)));
    made.value = value;
    return made;
  }

  /**
   * @param {string} label
   * @param {HTMLElement} control
   */
  function field(label, control) {
    return h("label.otca-gallery-field", {}, h("span", {}, label), control);
  }

  /** @param {Error} failure */
  function failed(failure) {
    if (!disposed) setText(readError, failure.message);
  }

  /** @param {() => unknown} action */
  async function guard(action) {
    setText(error, "");
    try {
      await action();
    } catch (failure) {
      setText(error, failure.message);
    }
  }

  function typed() {
    clearTimeout(timer);
    timer = setTimeout(readAnew, 250);
  }

  // ---- what is listed ----

  function query() {
    const seconds = (/** @type {HTMLInputElement} */ input, /** @type {number} */ days) => {
      if (!input.value) return "0";
      const [year, month, day] = input.value.split("-").map(Number);
      return String(Math.max(0, Math.floor(new Date(year, month - 1, day + days).getTime() / 1000)));
    };
    return new URLSearchParams({
      words: search.value.trim(),
      group: group.value,
      order: order.value,
      said: said.value,
      model: model.value,
      since: seconds(since, 0),
      until: seconds(until, 1),
    }).toString();
  }

  /**
   * The list again, if something has changed.
   *
   * @param {boolean} [anew]
   */
  async function read(anew = false) {
    const wanted = query();
    const state = anew ? null : await server.getJson("/otca/gallery/state");
    if (disposed) return false;
    if (state) {
      progress = state;
      const saidNow = JSON.stringify(state.opinions);
      const changed = state.version !== version;
      if (saidNow !== opinions && opinions) forget();
      opinions = saidNow;
      if (!changed && wanted === asked) {
        showStatus();
        return true;
      }
    }
    const answer = await server.getJson(`/otca/gallery/list?${wanted}`);
    if (disposed || wanted !== query()) return true;
    if (answer.version !== version) forget();
    [version, asked] = [answer.version, wanted];
    listed = { total: answer.total, shown: answer.ids.length };
    showModels(answer.models);
    const groups = answer.groups.map((/** @type {[string, string, number]} */ [key, label, count]) => ({ key, label, count }));
    list.update(groups, answer.ids, group.value !== "");
    none.hidden = answer.ids.length > 0 || !answer.complete;
    if (list.place() < 0 && answer.ids.length) list.mark(0, false);
    showStatus();
    return true;
  }

  function readAnew() {
    return read(true).catch(failed);
  }

  /** What is shown is asked for again; until that comes, it stays. */
  function forget() {
    forgotten += 1;
    for (const picture of known.values()) picture.old = true;
    askSoon();
    showMarked(list.ids()[list.place()] ?? null);
  }

  /** @param {[string, number][]} models */
  function showModels(models) {
    const chosen = model.value;
    const names = models.map(([name]) => name);
    if ([...model.options].slice(1).map(({ value }) => value).join("\n") === names.join("\n")) return;
    model.replaceChildren(h("option", { value: "" }, TEXT.anyModel), ...models.map(([name, count]) => h("option", { value: name }, `${name} (${count})`)));
    model.value = names.includes(chosen) ? chosen : "";
  }

  function showStatus() {
    const { pictures, read: done, small, slow, problem } = progress;
    const waiting = box.waiting().length;
    const parts = [
      TEXT.total(listed.shown, listed.total),
      done < pictures ? TEXT.reading(done, pictures) : small < pictures && TEXT.reading(small, pictures),
      slow.length > 0 && t("does not answer yet: {names}", { names: slow.join(", ") }),
      waiting > 0 && t("{count} not kept yet", { count: waiting }),
      problem,
    ];
    setText(status, parts.filter(Boolean).join(" · "));
  }

  let soon = 0;
  function askSoon() {
    if (!soon) soon = /** @type {any} */ (setTimeout(askDetails, 50));
  }

  async function askDetails() {
    soon = 0;
    const ids = [...seen].filter((id) => !asking.has(id) && (known.get(id)?.old ?? true)).slice(0, MOST_IDS);
    if (!ids.length || disposed) return;
    for (const id of ids) asking.set(id, []);
    const since = forgotten;
    try {
      const { pictures } = await server.postJson("/otca/gallery/details", { ids });
      for (const id of ids) {
        const found = pictures[id];
        if (!found) continue;
        const before = known.get(id);
        const kept = asking.get(id) ?? [];
        const old = kept.length > 0 || since !== forgotten; // then it is asked for once more
        known.set(id, { ...found, old, said: withOpinions(found.said, id, [...kept, ...box.waiting()]) });
        if (old) askSoon();
        if (before && (before.changed !== found.changed || before.note !== found.note)) list.reload([id]);
      }
      list.refresh();
      const marked = list.ids()[list.place()];
      if (ids.includes(marked)) showMarked(marked);
      unread = false;
    } catch (failure) {
      unread = true;
      failed(failure);
    } finally {
      for (const id of ids) asking.delete(id);
    }
  }

  // ---- the marked one, and what is said of it ----

  /** @param {string | null} id */
  function showMarked(id) {
    if (id && (known.get(id)?.old ?? true)) {
      seen.add(id);
      askSoon();
    }
    viewer.show(id, id ? known.get(id) : undefined);
  }

  /**
   * @param {string} id
   * @param {string} kind
   * @param {string} other
   * @param {any} value
   */
  function say(id, kind, other, value) {
    const opinion = { id: newId(), kind, picture: id, other, value };
    for (const name of kind === "pair" ? [id, other] : [id]) {
      const picture = known.get(name);
      if (picture) known.set(name, { ...picture, said: withOpinions(picture.said ?? nothingSaid(), name, [opinion]) });
    }
    remember([...done(), opinion.id]);
    box.push(opinion);
    list.refresh();
    showMarked(list.ids()[list.place()] ?? null);
  }

  /** @returns {string[]} ids of what was said in this tab, the last one at the end */
  function done() {
    try {
      const kept = JSON.parse(sessionStorage.getItem(DONE) ?? "[]");
      return Array.isArray(kept) ? kept : [];
    } catch {
      return [];
    }
  }

  /** @param {string[]} ids */
  function remember(ids) {
    try {
      sessionStorage.setItem(DONE, JSON.stringify(ids.slice(-MOST_DONE)));
    } catch {
      // The browser's store is full: Z ends at a reload.
    }
  }

  function undo() {
    const ids = done();
    const last = ids.pop();
    if (!last) return setText(hint, t("Nothing to undo in this tab."));
    remember(ids);
    setText(hint, t("Undone"));
    box.push({ id: newId(), kind: "undo", picture: null, other: last, value: null });
  }

  /** @param {string} id */
  function pair(id) {
    if (!better) {
      better = id;
      return setText(hint, t("Now press P on the picture that is worse, of the same prompt. Escape: leave it."));
    }
    const [first, second] = [known.get(better), known.get(id)];
    if (better === id) return undefined;
    // Where one is not known yet, the server says whether they are of the same prompt.
    if (first && second && first.prompt !== second.prompt) return setText(hint, t("A pair has to be of the same prompt. Choose another picture, or press Escape."));
    say(better, "pair", id, true);
    better = "";
    return setText(hint, "");
  }

  /** @param {KeyboardEvent} event */
  function pressed(event) {
    const typing = /** @type {HTMLElement} */ (event.target).closest("input, select, textarea");
    if (typing || event.altKey || event.defaultPrevented) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (event.ctrlKey || event.metaKey) {
      if (key !== "z") return;
    }
    const id = list.ids()[list.place()];
    /** @type {Record<string, () => void>} */
    const moves = {
      j: () => list.move(1),
      k: () => list.move(-1),
      ArrowRight: () => list.move(1),
      ArrowLeft: () => list.move(-1),
      PageDown: () => list.move(3 * list.columns()),
      PageUp: () => list.move(-3 * list.columns()),
      Home: () => list.mark(0),
      End: () => list.mark(list.ids().length - 1),
    };
    /** @type {Record<string, () => void>} */
    const once = {
      z: undo,
      p: () => id && pair(id),
      Escape: () => {
        better = "";
        setText(hint, "");
        setText(error, "");
      },
    };
    const picture = id ? known.get(id) : undefined;
    const opinion = id ? saidBy(key, picture?.said ?? nothingSaid()) : null;
    if (!moves[key] && !once[key] && !opinion) return;
    event.preventDefault();
    if (moves[key]) return moves[key]();
    if (event.repeat) return;
    if (once[key]) once[key]();
    else if (opinion) {
      setText(hint, "");
      say(id, opinion.kind, "", opinion.value);
    }
  }

  const isSeen = () => document.visibilityState === "visible";
  async function readAll() {
    const goesOn = await read();
    if (unread) askSoon();
    else if (readError.textContent) {
      setText(readError, "");
      list.again();
      viewer.again();
    }
    return goesOn;
  }
  const follow = poll(readAll, { every: POLL_MS, isSeen, failed });
  box.begin();
  readAnew().then(() => follow.refresh());
  return {
    element,
    focus: () => list.element.focus(),
    dispose() {
      disposed = true;
      follow.end();
      box.end();
      list.dispose();
      taste.dispose();
    },
  };
}
