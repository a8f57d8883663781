// @ts-check
/** The gallery's tab in ComfyUI's sidebar. */
import { t } from "../lib/language.js";
import { PALETTE, openForGallery } from "./canvas.js";
import { galleryView } from "./view.js";

const TAB = "otca-gallery";

/** @type {ReturnType<typeof galleryView> | null} */
let view = null; // in the open tab

/** @param {Comfy} comfy */
export function setupGallery(comfy) {
  comfy.registerSidebar({
    id: TAB,
    icon: "pi pi-images",
    title: t("Gallery"),
    tooltip: t("OTCA gallery: your pictures, and what you think of them"),
    type: "custom",
    /** @param {HTMLElement} container */
    render(container) {
      if (view && container.contains(view.element)) return; // called again whenever the page redraws the tab
      view?.dispose();
      view = galleryView(comfy, {
        own: false,
        openWorkflow: async (graph, name) => {
          await comfy.openWorkflow(graph, name);
          comfy.closeSidebar(TAB);
          return t("{name} is open on the canvas.", { name });
        },
      });
      container.replaceChildren(view.element);
      container.classList.add("otca-sidebar-container");
      view.focus();
    },
    destroy() {
      view?.dispose();
      view = null;
    },
  });
  openForGallery(comfy);
  const keep = () => localStorage.setItem(PALETTE, document.body.classList.contains("dark-theme") ? "dark" : "light");
  comfy.onTheme(keep);
  keep();
}
