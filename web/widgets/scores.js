// @ts-check
/**
 * The table of Reward Stack and Score Images: every sample's picture, what each reward gave it, coloured by how it stands
 * among the others, and below it which rewards conflict. Of a ranking also each sample's place.
 */
import { diverging, isDark } from "../lib/color.js";
import { fixed, signed, significant } from "../lib/format.js";
import { t } from "../lib/language.js";
import {
  columnDigits,
  correlationSentences,
  nextSort,
  scoreColumns,
  scoreGroups,
  thumbnailOffset,
} from "../lib/scores.js";
import { h, setText } from "../sidebar/dom.js";
import { themeOf } from "./heatmap_canvas.js";

const TEXT = {
  caption: t("Rewards of each sample; orange: above its prompt's average, purple: below"),
  sort: (/** @type {string} */ name) => t("Sort by {name}", { name }),
};

const FULL_COLOR = 2; // normalised advantages beyond two standard deviations are all the deepest colour
const THUMBNAIL = { sampled: 28, ranked: 36 };
const NARROWEST = 300; // of a new node: a column each for four rewards
export const OPENS = [440, 640]; // width and height of a new node, at which some ten samples are seen
const COLUMN = 54; // with more of them than fit, the table scrolls sideways
const NODES = ["OTCA_RewardStack", "OTCA_ScoreImages"];
const HEIGHT = { empty: 56, sampled: 260, ranked: 420 }; // fixed: what comes with an iteration must not push the node over the next one

/** @type {OurWidget} */
export const scoresWidget = {
  fits: (definition) => NODES.includes(definition.name ?? ""),
  create: (node, comfy) => new ScoreTable(node, comfy),
};

class ScoreTable {
  /** @type {Scores | null} */
  scores = null;
  /** @type {import("../lib/scores.js").Sort | null} */
  sort = null;
  sheet = ""; // URL of the samples' thumbnails
  dark = false;
  /** @type {number[]} */
  digits = []; // of each column
  failure = h("p.otca-error", { role: "alert" });
  empty = h("p.otca-scores-empty", {}, t("No scores yet. Queue the graph to see each picture's rewards."));
  table = h("div.otca-scores-table", { tabindex: "0", role: "region", "aria-label": TEXT.caption });
  correlation = h("details.otca-scores-correlation");
  said = h("ul.otca-scores-said");
  run = h("p.otca-scores-run"); // whose samples they are
  root = h("div.otca-scores", {}, this.failure, this.empty, this.run, this.table, this.said, this.correlation);

  /**
   * @param {GraphNode} node
   * @param {Comfy} comfy
   */
  constructor(node, comfy) {
    this.node = node;
    this.comfy = comfy;
    comfy.addElement(node, "otca_scores", this.root, { least: () => this.height() });
    this.dispose = comfy.onTheme(() => this.draw());
    if (node.size[0] < NARROWEST) node.setSize([NARROWEST, node.size[1]]);
    this.draw();
  }

  /** @returns {"ranked" | "sampled"} */
  get kind() {
    return this.scores?.places ? "ranked" : "sampled";
  }

  height() {
    const failure = this.failure.textContent ? 72 : 0;
    return HEIGHT[this.scores ? this.kind : "empty"] + failure;
  }

  /**
   * scores: the table; error: why the last run of this node failed; started: another run has begun.
   *
   * @param {string} kind
   * @param {any} data
   */
  show(kind, data) {
    if (kind === "scores") {
      if (data === this.scores) return;
      this.scores = data;
      this.sheet = data.thumbnails ? this.comfy.viewUrl(data.thumbnails, Date.now()) : "";
    } else if (kind === "error") {
      setText(this.failure, data.message);
    } else if (kind === "started") {
      setText(this.failure, "");
    } else {
      return;
    }
    this.draw();
    this.comfy.growNode(this.node);
  }

  draw() {
    this.failure.hidden = !this.failure.textContent;
    this.empty.hidden = this.scores !== null || !this.failure.hidden;
    setText(this.run, this.scores?.run ?? "");
    this.run.hidden = !this.run.textContent;
    this.table.hidden = this.said.hidden = this.correlation.hidden = this.scores === null;
    if (!this.scores) return;
    this.dark = themeOf(this.root).dark;
    const columns = scoreColumns(this.scores);
    const scrolled = this.table.scrollTop;
    this.table.replaceChildren(this.scoreTable(this.scores, columns));
    this.table.scrollTop = scrolled;
    this.said.replaceChildren(...(this.scores.said ?? []).map((text) => h("li", {}, text)));
    this.correlation.replaceChildren(...(columns.length > 1 ? this.correlationTable(this.scores, columns) : []));
  }

  /**
   * @param {Scores} scores
   * @param {import("../lib/scores.js").Column[]} columns
   */
  scoreTable(scores, columns) {
    const head = h(
      "tr",
      {},
      h("th", { scope: "col" }, h("span.otca-hidden", {}, t("sample"))),
      columns.map((column, index) => this.header(column, index)),
    );
    this.digits = columnDigits(scores);
    const body = scoreGroups(scores, this.sort).map(({ group, prompt, samples }) =>
      h(
        "tbody",
        {},
        h(
          "tr",
          {},
          h(
            "th.otca-scores-prompt",
            { scope: "rowgroup", colspan: columns.length + 1, title: prompt },
            h("span", {}, prompt),
          ),
        ),
        samples.map((row) => this.row(scores, row, prompt, columns, scores.beside?.[group] ?? null)),
      ),
    );
    const size = THUMBNAIL[this.kind];
    const shown = size * (scores.beside?.some((place) => place !== null) ? 2 : 1);
    const style = `min-width: ${shown + COLUMN * columns.length}px; --otca-thumbnail: ${shown}px`;
    const caption = scores.places ? t("Rewards of each picture; orange: above the average, purple: below") : TEXT.caption;
    return h("table", { style }, h("caption.otca-hidden", {}, caption), h("thead", {}, head), body);
  }

  /**
   * @param {import("../lib/scores.js").Column} column
   * @param {number} index
   */
  header({ name, heldOut, meaning }, index) {
    const { column, descending } = this.sort ?? {};
    const sorted = column === index ? (descending ? "descending" : "ascending") : null;
    const onclick = () => {
      this.sort = nextSort(this.sort, index);
      this.draw();
      /** @type {NodeListOf<HTMLButtonElement>} */ (this.table.querySelectorAll("thead button"))[index].focus();
    };
    return h(
      "th",
      { scope: "col", "aria-sort": sorted ?? "none" },
      h(
        "button",
        { type: "button", title: heldOut ? `${TEXT.sort(name)} (${t("Logged, never trained on")})` : TEXT.sort(name), onclick },
        h("span", {}, breakable(name)),
        sorted && h(`i.pi.pi-arrow-${sorted === "descending" ? "down" : "up"}`, { "aria-hidden": "true" }),
      ),
      meaning && h("span.otca-scores-meaning", { title: meaning }, meaning),
      heldOut && h("span.otca-badge", {}, t("held out")),
    );
  }

  /**
   * @param {Scores} scores
   * @param {import("../lib/scores.js").ScoreRow} row
   * @param {string} prompt
   * @param {import("../lib/scores.js").Column[]} columns
   * @param {number | null} source its place in the thumbnails
   */
  row(scores, { sample, values, advantages }, prompt, columns, source) {
    const title = scores.files?.[sample] ?? t("Sample {sample}: {prompt}", { sample, prompt });
    return h(
      "tr",
      {},
      h(
        "th",
        { scope: "row" },
        source !== null && this.thumbnail(scores, source, t("The picture that was edited")),
        this.thumbnail(scores, sample, title),
        this.place(scores.places?.[sample]),
        scores.totals && h("small", { title: t("The sum of what the rewards gave, by which the pictures rank") }, signed(scores.totals[sample])),
      ),
      columns.map(({ name }, index) => {
        const value = values[index];
        if (value === null) return h("td.otca-scores-masked", { title: t("not scored") }, fixed(null));
        const title = t("{name} {value}, normalised advantage {advantage}", { name, value: significant(value, 4), advantage: signed(advantages[index]) });
        return h(
          "td",
          { title, style: this.paint(advantages[index] ?? 0, FULL_COLOR) },
          fixed(value, this.digits[index]),
        );
      }),
    );
  }

  /** @param {number} [place] */
  place(place) {
    return place && h("span.otca-scores-place", { title: t("Place {place} in the ranking", { place }) }, place);
  }

  /**
   * @param {Scores} scores
   * @param {number} sample
   * @param {string} title
   */
  thumbnail(scores, sample, title) {
    const columns = scores.thumbnail_columns;
    const size = THUMBNAIL[this.kind];
    if (!this.sheet) return h("span", { title }, sample);
    const { x, y } = thumbnailOffset(sample, size, columns); // of the sheet, drawn smaller than it is
    const last = Math.max(scores.groups.length - 1, ...(scores.beside ?? []).map((place) => place ?? 0));
    const rows = Math.floor(last / columns) + 1;
    return h("span.otca-thumbnail", {
      role: "img",
      "aria-label": title,
      title,
      style:
        `width: ${size}px; height: ${size}px; background-image: url("${this.sheet}"); ` +
        `background-position: -${x}px -${y}px; background-size: ${size * columns}px ${size * rows}px`,
    });
  }

  /**
   * @param {Scores} scores
   * @param {import("../lib/scores.js").Column[]} columns
   */
  correlationTable({ correlation: matrix, places }, columns) {
    const sentences = correlationSentences(columns, matrix);
    const said = sentences.length ? sentences : [{ conflict: false, text: t("No conflicting rewards.") }];
    const lines = said.map(({ conflict, text }) =>
      h(
        conflict ? "li.otca-conflict" : "li",
        {},
        conflict && h("i.pi.pi-exclamation-triangle", { "aria-hidden": "true" }),
        text,
      ),
    );
    const title = places ? t("Correlation among the images") : t("Correlation within the prompts");
    return [
      h("summary", { title }, h("ul", {}, lines.shift())),
      h("ul", {}, lines),
      h("h4", {}, title),
      h(
        "table",
        {},
        h(
          "tr",
          {},
          h("td"),
          columns.map(({ name }) => h("th", { scope: "col", title: name }, h("span", {}, name))),
        ),
        columns.map(({ name }, i) =>
          h(
            "tr",
            {},
            h("th", { scope: "row", title: name }, h("span", {}, name)),
            columns.map((_, j) =>
              i === j ? h("td") : h("td", { style: this.paint(matrix[i][j] ?? 0, 1) }, signed(matrix[i][j])),
            ),
          ),
        ),
      ),
    ];
  }

  /**
   * Purple to orange, with ink that stands out from it.
   *
   * @param {number} value
   * @param {number} limit
   */
  paint(value, limit) {
    const color = diverging(value, limit, this.dark);
    const ink = isDark((color.match(/\d+/g) ?? []).map(Number)) ? "#fff" : "#111";
    return `background: ${color}; color: ${ink}`;
  }
}

/**
 * A name that may go on in the next line behind each of its underscores.
 *
 * @param {string} name
 */
function breakable(name) {
  return name.split(/(?<=_)/).flatMap((part, place) => (place ? [h("wbr"), part] : [part]));
}
