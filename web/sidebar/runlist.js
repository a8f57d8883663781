// @ts-check
/** The list of runs: what narrows and sorts it, and which runs are chosen to be compared. */
import { OBJECTIVES } from "../lib/color.js";
import { significant } from "../lib/format.js";
import { t } from "../lib/language.js";
import { EVERYTHING, SORTS, isNarrow, listed } from "../lib/library.js";
import { PLACE, STATUS, progress } from "../lib/runs.js";
import { button, h, keyedChildren, setText } from "./dom.js";
import { progressBar, statusBadge } from "./runview.js";

const TEXT = {
  search: t("Filter by name or notes"),
  sorts: /** @type {Record<string, string>} */ ({ newest: t("Newest first"), name: t("By name"), score: t("By score") }),
  iterations: (/** @type {Run} */ { iteration, total }) => (total ? `${iteration} / ${total}` : String(iteration)),
};

export const MOST_COMPARED = OBJECTIVES.length; // one colour a run

let query = EVERYTHING; // stays while the tab is closed

/**
 * What the list calls.
 * @typedef {{choose(id: string): void, compare(runs: Run[]): void}} ListActions
 *
 * @param {ListActions} actions
 */
export function runList(actions) {
  const list = h("ul.otca-runs", { "aria-label": t("Runs") });
  const count = h("span.otca-quiet", { role: "status" });
  const reset = button("pi-filter-slash", t("Show all"), () => {
    tools.show(EVERYTHING);
    ask(EVERYTHING);
  });
  const found = h("div.otca-row.otca-found", {}, count, reset);
  const tools = listTools((/** @type {Partial<typeof query>} */ change) => ask({ ...query, ...change }));
  const bar = compareBar(() => actions.compare(chosenRuns()), clear);

  /** @type {Run[]} */
  let runs = [];
  /** @type {Run | undefined} */
  let current;
  /** @type {Set<string>} */
  const chosen = new Set();
  const updateEntries = keyedChildren(
    list,
    (/** @type {Entry} */ { run }) => run.id,
    () => runEntry({ ...actions, mark, move }),
  );

  /** @param {typeof query} next */
  function ask(next) {
    query = next;
    show();
  }

  /** @param {string} id */
  function mark(id) {
    if (!chosen.delete(id)) chosen.add(id);
    show();
  }

  function clear() {
    chosen.clear();
    show();
  }

  function chosenRuns() {
    return runs.filter(({ id }) => chosen.has(id));
  }

  /**
   * Moves the focus to another entry.
   *
   * @param {Element} from an item of the list
   * @param {string} key
   */
  function move(from, key) {
    const items = [...list.children];
    const to = { ArrowUp: items.indexOf(from) - 1, ArrowDown: items.indexOf(from) + 1, Home: 0, End: items.length - 1 }[key] ?? 0;
    const entry = /** @type {HTMLElement | undefined} */ (items[to]?.children[1]);
    entry?.focus();
  }

  function show() {
    const shown = listed(runs, query);
    const stop = shown.includes(/** @type {Run} */ (current)) ? current : shown[0]; // where Tab enters the list
    updateEntries(
      shown.map((run) => ({
        run,
        current: run === current,
        chosen: chosen.has(run.id),
        stop: run === stop,
        scored: query.sort === "score",
      })),
    );
    list.hidden = shown.length === 0;
    tools.element.hidden = runs.length < 2 && !isNarrow(query);
    found.hidden = !isNarrow(query);
    setText(count, shown.length ? t("{shown} of {all} runs", { shown: shown.length, all: runs.length }) : t("No run is like that."));
    bar.update(chosen.size);
  }

  show();
  return {
    element: h("div.otca-run-list", {}, tools.element, found, list, bar.element),
    /**
     * @param {Run[]} next the newest first
     * @param {Run | undefined} shown the one that is shown below the list
     */
    update(next, shown) {
      [runs, current] = [next, shown];
      for (const id of chosen) if (!runs.some((run) => run.id === id)) chosen.delete(id);
      show();
    },
  };
}

/** @param {(change: Partial<typeof query>) => void} ask */
function listTools(ask) {
  const option = (/** @type {string} */ value, /** @type {string} */ label) => h("option", { value }, label);
  const search = h("input.otca-input", { type: "search", placeholder: TEXT.search, "aria-label": TEXT.search });
  const status = h(
    "select.otca-input",
    { "aria-label": t("Status") },
    option("", t("Any status")),
    Object.entries(STATUS).map(([name, { word }]) => option(name, word)),
  );
  const sort = h(
    "select.otca-input",
    { "aria-label": t("Sort by"), title: t("Score: how far the rewards have risen since before training, in standard deviations, at the last evaluation") },
    SORTS.map((name) => option(name, TEXT.sorts[name])),
  );

  /** @param {typeof query} shown */
  function show(shown) {
    [search.value, status.value, sort.value] = [shown.text, shown.status, shown.sort];
  }

  search.addEventListener("input", () => ask({ text: search.value }));
  status.addEventListener("change", () => ask({ status: status.value }));
  sort.addEventListener("change", () => ask({ sort: sort.value }));
  for (const field of [search, status, sort]) field.addEventListener("keydown", (event) => event.stopPropagation());
  show(query);
  return { element: h("div.otca-list-tools", {}, search, status, sort), show };
}

/**
 * What can be done with the chosen runs.
 *
 * @param {() => void} compare
 * @param {() => void} clear
 */
function compareBar(compare, clear) {
  const note = h("span.otca-quiet", { role: "status" });
  const go = button("pi-chart-line", "", compare, { class: "otca-button otca-primary" });
  const element = h("div.otca-row.otca-compare-bar", {}, note, go, button("pi-times", t("Choose none"), clear));
  return {
    element,
    /** @param {number} count */
    update(count) {
      element.hidden = count === 0;
      const fits = count >= 2 && count <= MOST_COMPARED;
      go.hidden = !fits;
      note.hidden = fits;
      setText(note, count < 2 ? t("Choose another run to compare with.") : t("At most {most} runs can be compared.", { most: MOST_COMPARED }));
      setText(go.lastChild, t("Compare {count} runs", { count }));
    },
  };
}

/**
 * An entry of the list. `current`: its run is shown below; `stop`: Tab enters the list here; `scored`: it says its score.
 *
 * @typedef {{run: Run, current: boolean, chosen: boolean, stop: boolean, scored: boolean}} Entry
 *
 * @param {ListActions & {mark(id: string): void, move(from: Element, key: string): void}} actions
 * @returns {View<Entry>}
 */
function runEntry(actions) {
  const box = h("input.otca-choose", { type: "checkbox" });
  const title = h("span.otca-run-title");
  const badge = statusBadge();
  const state = h("span.otca-quiet");
  const bar = progressBar();
  const entry = h("button.otca-run-entry", { type: "button" }, title, badge.element, state, bar.element);
  const element = h("li", {}, box, entry);
  /** @type {Entry | null} */
  let shown = null;

  const act = (/** @type {(run: Run) => void} */ action) => () => shown && action(shown.run);
  box.addEventListener("change", act(({ id }) => actions.mark(id)));
  entry.addEventListener("click", (event) => {
    const adds = event.ctrlKey || event.metaKey;
    if (shown) (adds ? actions.mark : actions.choose)(shown.run.id);
  });
  entry.addEventListener("keydown", (event) => {
    if (["ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) actions.move(element, event.key);
    else if (event.key === " " && (event.ctrlKey || event.metaKey)) act(({ id }) => actions.mark(id))();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });

  return {
    element,
    update(next) {
      const before = shown;
      shown = next;
      if (before && sameEntry(before, next)) return;
      const { run, current, chosen, stop, scored } = next;
      entry.setAttribute("aria-current", String(current));
      entry.dataset.run = title.title = run.id;
      setText(title, run.id);
      badge.update(run);
      const score = scored && run.score !== null && run.score !== undefined && t("score {score}", { score: significant(run.score, 2) });
      setText(state, [PLACE[run.place], TEXT.iterations(run), score].filter(Boolean).join(" · "));
      bar.update(run);
      bar.element.hidden = progress(run) === 1; // in a long list only what is not done stands out
      box.checked = chosen;
      box.setAttribute("aria-label", t("Compare {name}", { name: run.id }));
      for (const control of [box, entry]) control.setAttribute("tabindex", stop ? "0" : "-1");
    },
  };
}

/**
 * Whether an entry shows the same: of two hundred, a poll changes one.
 *
 * @param {Entry} one
 * @param {Entry} other
 */
function sameEntry({ run: before, ...one }, { run: after, ...other }) {
  const keys = /** @type {(keyof typeof one)[]} */ (Object.keys(one));
  const fields = /** @type {(keyof Run)[]} */ (Object.keys(after));
  return keys.every((key) => one[key] === other[key]) && fields.every((field) => before[field] === after[field]);
}
