// @ts-check
/** Asks which of two pictures of the same prompt is better, the most useful question next. */
import { t } from "../lib/language.js";
import { shownTogether, unseenPairs } from "../lib/opinions.js";
import { poll } from "../lib/poll.js";
import { openDialog } from "../sidebar/dialogs.js";
import { button, h, setText } from "../sidebar/dom.js";

const TRY_MS = 2000; // after a failure

/**
 * @param {GalleryServer} server
 * @param {{say: (id: string, kind: string, other: string, value: any) => void, kept: () => Promise<void>}} options `kept`: when the
 *   server has all that was said; asked before that, it may know no other pair than the last one
 */
export function comparePairs(server, { say, kept }) {
  /** @type {{pair: [string, string], prompt: string, why: string}[]} */
  let asked = [];
  let skipped = 0;
  /** @type {Set<string>} */
  const seen = new Set();
  let count = 0;
  const pictures = [0, 1].map((side) => {
    const image = h("img", { alt: "" });
    return {
      image,
      element: h(
        "button.otca-gallery-choice",
        { type: "button", "aria-label": side ? t("The right one is better") : t("The left one is better"), onclick: () => choose(side) },
        image,
      ),
    };
  });
  const prompt = h("p.otca-gallery-prompt", { tabindex: "0" });
  const why = h("p.otca-note", { role: "status" });
  const error = h("div.otca-error", { role: "alert" });
  const skip = button("pi-forward", t("Skip"), () => next(true));
  const dialog = openDialog(
    t("Which one is better?"),
    prompt,
    h("div.otca-gallery-choices", {}, pictures.map(({ element }) => element)),
    why,
    error,
    h("div.otca-row", {}, h("p.otca-note", {}, t("← or → the better one · Space skip · Escape ends")), skip),
  );
  dialog.classList.add("otca-gallery-compare");
  dialog.addEventListener("keydown", (event) => {
    /** @type {Record<string, () => void>} */
    const known = { ArrowLeft: () => choose(0), ArrowRight: () => choose(1), " ": () => next(true) };
    if (!known[event.key] || event.repeat) return;
    event.preventDefault();
    known[event.key]();
  });
  dialog.addEventListener("keyup", (event) => event.key === " " && event.preventDefault());
  const { refresh: more, end } = poll(read, { every: TRY_MS, isSeen: () => !asked.length, failed: (failure) => setText(error, failure.message) });
  dialog.addEventListener("close", end);
  more();

  async function read() {
    show();
    setText(prompt, t("Reading the opinions …"));
    await kept();
    asked = await unseenPairs(async (skip) => (await server.getJson(`/otca/gallery/pairs?skip=${skip}`)).pairs, skipped, seen);
    setText(error, "");
    show();
    return false;
  }

  function show() {
    const [first] = asked;
    for (const [side, { image, element }] of pictures.entries()) {
      element.hidden = !first;
      image.removeAttribute("src"); // else the picture before stands there, and is clicked, until this one is read
      if (first) image.src = server.routeUrl(`/otca/gallery/pictures/${first.pair[side]}`);
    }
    skip.disabled = !first;
    if (first && !dialog.contains(document.activeElement)) prompt.focus(); // a button that was hidden has lost it, and keys with it
    setText(prompt, first ? first.prompt : t("No two pictures of one prompt are left to compare. Make more pictures of the same prompt."));
    setText(why, [count > 0 && t("Answered: {count}", { count }), first?.why].filter(Boolean).join(" · "));
  }

  /** @param {number} side */
  function choose(side) {
    const [first] = asked;
    if (!first || !pictures.every(({ image }) => image.naturalWidth)) return; // nobody has seen them
    count += 1;
    say(first.pair[side], "pair", first.pair[1 - side], true);
    next(false);
  }

  /** @param {boolean} isSkipped */
  function next(isSkipped) {
    if (!asked.length) return;
    if (isSkipped) skipped += 1;
    seen.add(shownTogether(asked[0].pair));
    asked = asked.slice(1);
    if (asked.length) show();
    else more();
  }
}
