// @ts-check
/** The gallery in a tab of its own. ComfyUI's page loads every module of ours, so nothing is done there. */
import { spoken } from "../lib/language.js";
import { answerOf } from "../vote/page.js";
import { PALETTE, openElsewhere } from "./canvas.js";
import { galleryView } from "./view.js";

if (document.body?.classList.contains("otca-gallery-page")) {
  document.documentElement.lang = spoken(); // for whoever has it read aloud
  document.body.dataset.palette = localStorage.getItem(PALETTE) ?? (matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark");
  const root = location.pathname.replace(/\/otca\/gallery\/?$/, "");
  const headers = { "Content-Type": "application/json" };
  const view = galleryView(
    {
      getJson: async (route) => answerOf(await fetch(root + route)),
      postJson: async (route, body) => answerOf(await fetch(root + route, { method: "POST", headers, body: JSON.stringify(body) })),
      routeUrl: (route) => root + route,
    },
    { own: true, openWorkflow: (graph, name) => openElsewhere(graph, name, root.replace(/\/api$/, "/")) },
  );
  document.body.append(view.element);
  view.focus();
}
