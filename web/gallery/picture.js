// @ts-check
/** One picture, large: how it was made, its stars, tags, and the regions that are liked or not. */
import { t } from "../lib/language.js";
import { boxBetween } from "../lib/opinions.js";
import { newId } from "../lib/outbox.js";
import { h, setText } from "../sidebar/dom.js";

const SMALL = 200; // pixels; a lower picture is magnified

const TEXT = {
  none: t("Choose a picture"),
  cannot: t("This picture cannot be shown."),
  region: t("A region: drag on the picture"),
  removeRegion: (/** @type {number} */ number) => t("Remove region {number}", { number }),
  tag: t("Add a tag"),
  removeTag: (/** @type {string} */ tag) => t("Remove the tag {tag}", { tag }),
  facts: { model: t("Model"), loras: t("LoRAs"), seed: t("Seed"), size: t("Size"), file: t("File"), about: t("Graph"), negative: t("Negative prompt"), note: t("Note") },
};

/**
 * @param {GalleryServer} server
 * @param {object} options
 * @param {(id: string, kind: string, other: string, value: any) => void} options.say
 * @param {(event: KeyboardEvent) => void} options.pressed
 */
export function pictureView(server, { say, pressed }) {
  /** @type {string | null} */
  let id = null;
  /** @type {Known | undefined} */
  let picture;
  let likes = true; // the region that is drawn next
  /** @type {[number, number] | null} */
  let from = null;
  /** @type {string | null} */
  let typedFor = null; // the picture that the tag is typed for: the list may go on to another one meanwhile

  const image = h("img", { alt: "", draggable: "false" });
  const drawn = h("div.otca-gallery-drawn");
  const boxes = h("div.otca-gallery-boxes", {});
  const stage = h("div.otca-gallery-stage", {}, image, boxes, drawn);
  const none = h("p.otca-note", {}, TEXT.none);
  const thumbs = [1, -1].map((value) =>
    h(
      "button",
      { type: "button", onclick: () => id && say(id, "thumb", "", picture?.said.thumb === value ? null : value) },
      value > 0 ? `👍 ${t("Like")}` : `👎 ${t("Dislike")}`,
    ),
  );
  const stars = [1, 2, 3, 4, 5].map((value) =>
    h("button.otca-gallery-star", { type: "button", "aria-label": t("{stars} of 5 stars", { stars: value }), onclick: () => id && say(id, "stars", "", picture?.said.stars === value ? null : value) }, "★"),
  );
  const regions = [true, false].map((like) =>
    h("button", { type: "button", "aria-pressed": String(like === likes), onclick: () => chooseRegion(like) }, like ? t("like it") : t("dislike it")),
  );
  const regionList = h("span.otca-gallery-chips");
  const tags = h("span.otca-gallery-chips");
  const tag = h("input.otca-input", { type: "text", maxlength: 100, placeholder: TEXT.tag, "aria-label": TEXT.tag });
  const prompt = h("p.otca-gallery-prompt", { tabindex: "0" });
  const facts = h("dl.otca-gallery-facts");
  const controls = h(
    "div.otca-gallery-say",
    {},
    h("div.otca-gallery-row", {}, h("span.otca-switch", { role: "group" }, thumbs), h("span.otca-gallery-stars", { role: "group" }, stars)),
    h("div.otca-gallery-row", {}, h("span.otca-note", {}, TEXT.region), h("span.otca-switch", { role: "group", "aria-label": TEXT.region }, regions), regionList),
    h("div.otca-gallery-row", {}, tags, tag),
  );
  const element = h("section.otca-gallery-view", { "aria-label": t("The picture that is marked") }, none, stage, controls, prompt, facts);
  element.addEventListener("keydown", pressed);
  tag.addEventListener("keydown", (event) => {
    const text = tag.value.trim();
    if (event.key !== "Enter" || !text || !id) return;
    say(typedFor ?? id, "tag", text, true);
    typedFor = null;
    tag.value = "";
  });
  tag.addEventListener("input", () => (typedFor ??= id));
  tag.addEventListener("blur", () => (typedFor = null));
  image.addEventListener("load", () => (image.style.height = image.naturalHeight < SMALL ? `${SMALL}px` : ""));
  image.addEventListener("error", () => setText(none, TEXT.cannot));
  stage.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !id || /** @type {HTMLElement} */ (event.target).closest("button")) return;
    stage.setPointerCapture(event.pointerId);
    from = at(event);
    event.preventDefault();
  });
  stage.addEventListener("pointermove", (event) => from && place(drawn, boxBetween(from, at(event))));
  stage.addEventListener("pointerup", (event) => {
    const box = from && boxBetween(from, at(event));
    from = null;
    place(drawn, null);
    if (box && id) say(id, "region", newId(), { like: likes, box });
  });
  stage.addEventListener("pointercancel", () => {
    from = null;
    place(drawn, null);
  });

  /** @param {boolean} like */
  function chooseRegion(like) {
    likes = like;
    for (const [number, each] of regions.entries()) each.setAttribute("aria-pressed", String((number === 0) === like));
    drawn.setAttribute("data-like", String(like));
  }

  /**
   * @param {PointerEvent} event
   * @returns {[number, number]} in shares of the picture
   */
  function at({ clientX, clientY }) {
    const { left, top, width, height } = image.getBoundingClientRect();
    return [(clientX - left) / width, (clientY - top) / height];
  }

  /**
   * @param {HTMLElement} part
   * @param {[number, number, number, number] | null | undefined} box
   */
  function place(part, box) {
    part.hidden = !box;
    if (!box) return;
    const [left, top, right, bottom] = box.map((share) => 100 * share);
    Object.assign(part.style, { left: `${left}%`, top: `${top}%`, width: `${right - left}%`, height: `${bottom - top}%` });
  }
  place(drawn, null);

  function showFacts() {
    if (!picture) return facts.replaceChildren();
    const { model, loras, seed, width, height, folder, name, about, negative, note } = picture;
    const rows = { model, loras: loras.join(", "), seed, size: width ? `${width} × ${height}` : "", file: `${folder}/${name}`, about, negative, note };
    return facts.replaceChildren(
      ...Object.entries(rows).flatMap(([key, value]) => (value ? [h("dt", {}, TEXT.facts[/** @type {keyof typeof rows} */ (key)]), h("dd", {}, value)] : [])),
    );
  }

  return {
    element,
    /** The server answers again. */
    again() {
      if (id && !image.naturalWidth) image.src = server.routeUrl(`/otca/gallery/pictures/${id}`);
    },
    /**
     * @param {string | null} chosen
     * @param {Known | undefined} found
     */
    show(chosen, found) {
      const other = chosen !== id;
      [id, picture] = [chosen, found];
      none.hidden = Boolean(id) && !found?.note.includes("cannot be shown");
      stage.hidden = controls.hidden = !id || !none.hidden;
      if (other) {
        from = null;
        place(drawn, null);
        setText(none, id ? TEXT.cannot : TEXT.none);
        image.removeAttribute("src");
        if (id) image.src = server.routeUrl(`/otca/gallery/pictures/${id}`);
      }
      if (id && found?.note.includes("cannot be shown")) setText(none, `${TEXT.cannot} ${found.note}`);
      const said = found?.said;
      thumbs[0].setAttribute("aria-pressed", String(said?.thumb === 1));
      thumbs[1].setAttribute("aria-pressed", String(said?.thumb === -1));
      for (const [number, star] of stars.entries()) star.setAttribute("aria-pressed", String(number < (said?.stars ?? 0)));
      const all = Object.entries(said?.regions ?? {});
      boxes.replaceChildren(
        ...all.map(([, { like, box }]) => {
          const part = h("div.otca-gallery-box", { "data-like": String(like) });
          place(part, box);
          return part;
        }),
      );
      regionList.replaceChildren(
        ...all.map(([name, { like }], number) =>
          h("button.otca-chip", { type: "button", "aria-label": TEXT.removeRegion(number + 1), title: TEXT.removeRegion(number + 1), onclick: () => id && say(id, "region", name, null) }, `${like ? "+" : "−"}${number + 1} ×`),
        ),
      );
      tags.replaceChildren(
        ...(said?.tags ?? []).map((name) =>
          h("button.otca-chip", { type: "button", "aria-label": TEXT.removeTag(name), title: TEXT.removeTag(name), onclick: () => id && say(id, "tag", name, null) }, `${name} ×`),
        ),
      );
      setText(prompt, found?.prompt ?? "");
      showFacts();
    },
  };
}
