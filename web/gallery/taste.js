// @ts-check
/** What a taste that is learned from the clicks says, how sure it is, and the button that keeps it as a file. */
import { t } from "../lib/language.js";
import { poll } from "../lib/poll.js";
import { button, h, setText } from "../sidebar/dom.js";

const POLL_MS = 2000;

const TEXT = {
  works: t("looking at pictures …"),
};

/**
 * @param {GalleryServer} server
 * @param {{changed: () => void}} options `changed`: scores came, and are worth reading again
 */
export function tasteBar(server, { changed }) {
  let on = false;
  let scored = -1;
  const learn = button("pi-heart", t("Learn My Taste"), begin, { title: t("Learns from your opinions what you like, on this machine, and shows on each picture how probably you like it") });
  const encoder = h("select.otca-input", { "aria-label": t("Image encoder") });
  const status = h("p.otca-note", { role: "status" });
  const save = button("pi-save", t("Keep as a file"), keep);
  const element = h("div.otca-gallery-taste", {}, learn, encoder, save, status);
  encoder.hidden = save.hidden = true;
  encoder.addEventListener("change", () => follow.refresh());
  const failed = (/** @type {Error} */ failure) => setText(status, failure.message);
  const follow = poll(read, { every: POLL_MS, isSeen: () => document.visibilityState === "visible" && element.isConnected, failed });

  function begin() {
    on = true;
    learn.hidden = true;
    encoder.hidden = false;
    setText(status, TEXT.works);
    follow.refresh();
  }

  async function read() {
    if (!on) return false;
    const told = await server.getJson(`/otca/gallery/taste?encoder=${encodeURIComponent(encoder.value)}`);
    if (encoder.options.length !== told.encoders.length) {
      encoder.replaceChildren(...told.encoders.map((/** @type {string} */ name) => h("option", { value: name }, name)));
      encoder.value = told.encoder;
    }
    const { agreement, works, problem, pairs: have, least } = told;
    save.hidden = !agreement;
    const [mean, error, pairs] = agreement ?? [];
    const errorText = error === null ? t("no error: one prompt alone") : `± ${Math.round(100 * error)} %`;
    const parts = [
      problem ||
        (agreement
          ? t("agrees with {share} % of {pairs} of your choices that it had not seen ({error})", {
              share: String(Math.round(100 * mean)),
              error: errorText,
              pairs,
            })
          : !works &&
            t(
              "My Taste has {have} of the {least} pairs that it needs. A pair is a liked and a disliked picture of one prompt, two with other stars, or an answer in Compare….",
              { have, least },
            )),
      agreement && t("{count} scored", { count: told.scored }),
      works && TEXT.works,
    ];
    setText(status, parts.filter(Boolean).join(" · "));
    if (told.scored !== scored) changed();
    scored = told.scored;
    return works;
  }

  async function keep() {
    try {
      const { file } = await server.postJson("/otca/gallery/taste", { name: "my-taste" });
      setText(status, t("Saved as {file}: choose it in Reward: My Taste.", { file }));
    } catch (failure) {
      failed(failure);
    }
  }

  return {
    element,
    /** Something was said: it is learned of, too. */
    soon() {
      scored = -1;
      follow.refresh();
    },
    dispose: follow.end,
  };
}
