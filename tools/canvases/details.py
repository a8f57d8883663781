"""`python -m comfyui_otca.tools.canvases.details`: parts of the quickstart's canvas, for docs.

In the newest ComfyUI that the tests find, in Nodes 2.0, after a few iterations: assets/pictures/comfyui_heatmap.png,
comfyui_rewards.png, and comfyui_sidebar.png, which shows a headless training.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from ...tests.comfyui.canvas import BROWSER_OPTIONS, Canvas, chromium
from ...tests.comfyui.server import ROOT, ComfyUI, targets
from .templates import TEMPLATES

PICTURES = ROOT / "assets" / "pictures"
ITERATIONS, HEADLESS = 6, 30
STACK, CREDIT, RUN = 8, 9, 12  # nodes of the quickstart
WIDTH, HEIGHT, SHARPER = 1400, 1350, 1.5  # picture points to a point of the page


def main() -> None:
    comfyui = ComfyUI(targets()[-1], Path(tempfile.mkdtemp(prefix="otca-details-")))
    try:
        train(comfyui.base / "output" / "otca" / "quickstart-headless")
        comfyui.wait_until_up()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=BROWSER_OPTIONS)
            canvas = Canvas(
                browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=SHARPER),
                comfyui,
                "nodes2",
            )
            content = json.loads(TEMPLATES["quickstart"].canvas.read_text(encoding="utf-8"))
            canvas.page.evaluate("content => app.loadGraphData(content)", content)
            canvas.set({f"{RUN}.evaluate_every": 0})
            for _ in range(ITERATIONS):
                (execution,) = canvas.run_and_wait()
                assert execution.end == "execution_success", execution.detail
            canvas.page.wait_for_timeout(8000)  # until the page's own messages are gone
            heatmap(canvas)
            rewards(canvas)
            sidebar(canvas)
    finally:
        comfyui.stop()


def train(folder: Path) -> None:
    workflow = TEMPLATES["quickstart"].api
    command = [sys.executable, "-m", "comfyui_otca", "train", workflow, "--output", folder, "--iterations", HEADLESS]
    subprocess.run([str(part) for part in command], check=True)


def heatmap(canvas: Canvas) -> None:
    """With a cell that was clicked, and what hovering says of another."""
    shown = grown(canvas, CREDIT, 900)
    drawn = shown.locator(".otca-heatmap canvas")
    drawn.click(position=place(drawn, 0.3, 0.2))
    shown.locator(".otca-heatmap-preview img").wait_for()
    canvas.page.wait_for_timeout(2000)
    drawn.hover(position=place(drawn, 0.45, 0.6))
    canvas.page.locator(".otca-tooltip").wait_for()
    clip(canvas.page, "comfyui_heatmap", [shown, canvas.page.locator(".otca-tooltip")])


def rewards(canvas: Canvas) -> None:
    """With the correlations open."""
    canvas.page.mouse.move(5, HEIGHT / 2)
    shown = grown(canvas, STACK, 900)
    shown.locator("summary").click()
    canvas.page.wait_for_timeout(1000)
    clip(canvas.page, "comfyui_rewards", [shown])


def sidebar(canvas: Canvas) -> None:
    """With the headless run open."""
    page = canvas.page
    canvas.our_tab().click()
    page.get_by_text("quickstart-headless").first.click()
    page.wait_for_timeout(4000)
    panel = page.locator(".otca-sidebar-container")
    clip(page, "comfyui_sidebar", [panel])


def grown(canvas: Canvas, id: int, height: int):
    """A node's element, in the middle of the view, made so high; away from all others, which it would lie behind."""
    canvas.page.evaluate(
        """([id, height]) => {
            const node = app.graph.getNodeById(id);
            node.setSize([node.size[0] + 60, height]);
            node.pos = [node.pos[0], -2000 * id];
            app.canvas.ds.scale = 1.2;
            app.canvas.centerOnNode(node);
            app.graph.setDirtyCanvas(true, true);
        }""",
        [id, height],
    )
    canvas.page.wait_for_timeout(3000)
    return canvas.page.locator(f'[data-node-id="{id}"]')


def place(element, right: float, down: float) -> dict[str, float]:
    box = element.bounding_box()
    return {"x": box["width"] * right, "y": box["height"] * down}


def clip(page: Page, name: str, elements: list) -> None:
    """Writes the part of the page that holds the elements, and a little around it."""
    boxes = [element.bounding_box() for element in elements]
    left, top = min(box["x"] for box in boxes) - 8, min(box["y"] for box in boxes) - 8
    right = max(box["x"] + box["width"] for box in boxes) + 8
    below = min(max(box["y"] + box["height"] for box in boxes) + 8, HEIGHT)
    area = {"x": max(left, 0), "y": max(top, 0), "width": right - left, "height": below - top}
    page.screenshot(path=PICTURES / f"{name}.png", clip=area)  # pyright: ignore[reportArgumentType]
    print(PICTURES / f"{name}.png")


if __name__ == "__main__":
    main()
