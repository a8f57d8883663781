// @ts-check
/** Opinions out and in: as a file of JSON lines, and from the votes that were given while a workflow asked. */
import { t } from "../lib/language.js";
import { openDialog } from "../sidebar/dialogs.js";
import { button, h, setText } from "../sidebar/dom.js";

const TEXT = {
  votesNote: t("Takes the votes of Reward: Vote as pairs: which picture of a prompt was better."),
};

/**
 * @param {GalleryServer} server
 * @param {{changed: () => void}} options `changed`: opinions came in
 */
export function exchangeDialog(server, { changed }) {
  const told = h("p.otca-note", { role: "status" });
  const error = h("div.otca-error", { role: "alert" });
  const file = h("input.otca-input", { type: "file", accept: ".jsonl,.json,.txt", id: "otca-opinions-file" });
  const out = h("a.otca-button", { href: server.routeUrl("/otca/gallery/opinions"), download: "opinions.jsonl" }, h("i.pi.pi-download", { "aria-hidden": "true" }), t("Save as a file"));
  const votes = button("pi-inbox", t("Take in votes"), () => take(() => server.postJson("/otca/gallery/votes", {})), { title: TEXT.votesNote });
  file.addEventListener("change", () => {
    const chosen = file.files?.[0];
    if (chosen) take(() => chosen.text().then((lines) => server.postJson("/otca/gallery/opinions", { lines })));
    file.value = ""; // the same file may be chosen again
  });
  openDialog(
    t("Opinions in and out"),
    h("p.otca-note", {}, t("A file of JSON lines holds what you said of your pictures, their prompts and the names of their files, and no picture. What is there already does not come in twice.")),
    h("div.otca-buttons", {}, out, votes),
    h("label.otca-gallery-field", { for: "otca-opinions-file" }, h("span", {}, t("Take in a file")), file),
    h("p.otca-note", {}, TEXT.votesNote),
    told,
    error,
  );

  /** @param {() => Promise<{new: number, known: number, unread: number}>} ask */
  async function take(ask) {
    setText(told, "");
    setText(error, "");
    try {
      const answer = await ask();
      setText(
        told,
        [
          t("New: {added}. There already: {known}.", { added: answer.new, known: answer.known }),
          answer.unread && t("Without their pictures, and so left out: {count}.", { count: answer.unread }),
        ]
          .filter(Boolean)
          .join(" "),
      );
      changed();
    } catch (failure) {
      setText(error, failure.message);
    }
  }
}
