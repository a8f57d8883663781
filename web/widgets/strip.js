// @ts-check
/** Training Run's pictures: the same prompts and seeds before training and at an evaluation, which a slider chooses. */
import { strip } from "../lib/learned.js";
import { t } from "../lib/language.js";
import { showCut } from "../sidebar/cuts.js";
import { h, setText } from "../sidebar/dom.js";

const TEXT = {
  first: (/** @type {number} */ iteration) => (iteration ? t("iteration {iteration}", { iteration }) : t("before training")),
};

const HEIGHT = 50; // of a picture, in units of the graph
const GAP = 3;
const NAMES = 70; // width of what a row is called
const MOST = 8;

/** @param {Comfy} comfy */
export function stripView(comfy) {
  const slider = h("input.otca-slider", { type: "range", min: 0, max: 0, value: 0, "aria-label": t("Evaluation whose pictures stand below those of before training"), oninput: () => show() });
  slider.addEventListener("keydown", (event) => event.stopPropagation()); // an arrow key does not move the graph, too
  const rows = [0, 1].map(() => ({ name: h("span.otca-strip-name"), pictures: h("div.otca-strip-pictures") }));
  const element = h("div.otca-strip", {}, slider, rows.map(({ name, pictures }) => h("div.otca-strip-row", {}, name, pictures)));
  element.hidden = true;
  /** @type {Grid[]} */
  let grids = [];
  /** @type {number[]} */
  let numbers = [];
  let run = "";
  let follows = true;

  function show() {
    const last = grids.length - 1;
    follows = Number(slider.value) === last;
    rows.forEach(({ name, pictures }, index) => {
      const grid = grids[index ? Number(slider.value) : 0];
      const text = TEXT.first(grid.iteration);
      setText(name, text);
      const url = comfy.routeUrl(`/otca/runs/${encodeURIComponent(run)}/pictures/samples-${grid.file}`);
      [...pictures.children].forEach((cell, place) => {
        const { prompt, box } = grid.pictures[numbers[place]];
        showCut(/** @type {HTMLElement} */ (cell), { run: text, url, size: grid.size, box }, prompt);
        /** @type {HTMLElement} */ (cell).title = prompt;
      });
    });
    slider.setAttribute("aria-valuetext", TEXT.first(grids[Number(slider.value)].iteration));
  }

  return {
    element,
    height: () => (element.hidden ? 0 : 2 * (HEIGHT + GAP) + 26),
    /**
     * @param {string} id of the run
     * @param {Grid[]} all
     * @param {number | undefined} since
     * @param {number} width that there is
     */
    update(id, all, since, width) {
      const shown = all.length ? all[all.length - 1].pictures[0].box : [0, 0, 1, 1];
      const each = (HEIGHT * shown[2]) / shown[3] + GAP;
      const fits = Math.max(1, Math.floor((width - NAMES) / each));
      ({ grids, numbers } = strip(all, since, Math.min(MOST, fits)));
      follows ||= id !== run;
      run = id;
      element.hidden = grids.length < 2; // before training alone, there is nothing to compare
      if (element.hidden) return;
      for (const { pictures } of rows) {
        pictures.replaceChildren(...numbers.map(() => h("div.otca-strip-picture", { role: "img", style: `aspect-ratio: ${shown[2]} / ${shown[3]}` })));
      }
      slider.max = String(grids.length - 1);
      if (follows) slider.value = slider.max;
      show();
    },
  };
}
