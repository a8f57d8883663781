// @ts-check
/** The gallery in a tab of its own. ComfyUI's page loads every module of ours, so nothing is done there. */
import { spoken } from "../lib/language.js";
import { serverAt } from "../vote/page.js";
import { PALETTE, openElsewhere } from "./canvas.js";
import { galleryView } from "./view.js";

if (document.body?.classList.contains("otca-gallery-page")) {
  document.documentElement.lang = spoken(); // for whoever has it read aloud
  document.body.dataset.palette = localStorage.getItem(PALETTE) ?? (matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark");
  const root = location.pathname.replace(/\/otca\/gallery\/?$/, "");
  const openWorkflow = (/** @type {SavedGraph} */ graph, /** @type {string} */ name) => openElsewhere(graph, name, root.replace(/\/api$/, "/"));
  const view = galleryView(serverAt(root), { own: true, openWorkflow });
  document.body.append(view.element);
  view.focus();
}
