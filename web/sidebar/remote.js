// @ts-check
/** A run that trains on another machine: where it is, and the token that `otca serve` printed there. */
import { t } from "../lib/language.js";
import { openDialog } from "./dialogs.js";
import { button, h, setText } from "./dom.js";
const TITLE = t("Watch a run that trains elsewhere");
const ADDRESS = "http://127.0.0.1:8191";

/**
 * Asks for address and token, and begins to watch; `show` is given the id of the copy.
 *
 * @param {Comfy} comfy
 * @param {(id: string) => void} show
 */
export function watchRemote(comfy, show) {
  const address = h("input.otca-input", { id: "otca-watch-address", type: "url", required: true, value: ADDRESS });
  const token = h("input.otca-input", { id: "otca-watch-token", type: "password", required: true, autocomplete: "off" });
  const name = h("input.otca-input", { id: "otca-watch-name", maxlength: 100 });
  const message = h("div.otca-error", { role: "alert" });
  const allowing = h("div");
  const submit = h("button.otca-button.otca-primary", { type: "submit" }, t("Watch"));
  const field = (/** @type {string} */ label, /** @type {HTMLElement} */ input) =>
    h("div.otca-field", {}, h("label", { for: input.id }, label), input);
  const form = h(
    "form.otca-form",
    {},
    h("p.otca-note", {}, t("There, start: otca serve RUN. It prints an address and a token. To reach it without opening a port: {command}.", { command: "ssh -L 8191:127.0.0.1:8191 USER@MACHINE" })),
    field(t("Address"), address),
    field(t("Token"), token),
    field(t("Name here (empty: its name there)"), name),
    message,
    allowing,
    h("div.otca-buttons.otca-end", {}, h("button.otca-button", { type: "button", onclick: () => dialog.close() }, t("Cancel")), submit),
  );

  async function watch() {
    submit.disabled = true;
    setText(message, "");
    allowing.replaceChildren();
    try {
      const here = name.value.trim();
      const { id } = await comfy.postJson("/otca/watch", {
        url: address.value.trim(),
        token: token.value.trim(),
        ...(here && { name: here }),
      });
      dialog.close();
      show(id);
    } catch (error) {
      if (!dialog.open) return comfy.toast("error", TITLE, error.message); // it was closed meanwhile
      setText(message, error.message);
      if (error.remember) allowing.append(allow(error));
    } finally {
      submit.disabled = false;
    }
  }

  /** @param {{kind: string, remember: string}} want */
  function allow({ kind, remember }) {
    return button("pi-check", t("Allow {what}", { what: remember }), async () => {
      try {
        await comfy.postJson("/otca/permissions/allow", { kind, what: remember });
        await watch();
      } catch (error) {
        setText(message, error.message);
      }
    });
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    watch();
  });
  const dialog = openDialog(TITLE, form);
  token.focus();
}
