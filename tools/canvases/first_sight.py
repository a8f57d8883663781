"""`python -m comfyui_otca.tools.canvases.first_sight`: the quickstart as a newcomer sees it, for docs and README.

In every ComfyUI that the tests find, in each of its renderers, after a few iterations: assets/pictures/first_sight_*.jpg.

    --only PART     of a picture's name
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from ...tests.comfyui.canvas import BROWSER_OPTIONS, Canvas, chromium
from ...tests.comfyui.server import ROOT, ComfyUI, Installation, targets
from .templates import TEMPLATES

PICTURES = ROOT / "assets" / "pictures"
ITERATIONS = 6
SMALL, LARGE = (1400, 900), (1920, 1080)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    only = parser.parse_args().only
    oldest, *_, newest = targets()
    own = targets()[-2]
    wanted: list[tuple[str, Installation, str, str, tuple[int, int]]] = [
        ("oldest_classic", oldest, "classic", "dark", SMALL),
        ("classic", own, "classic", "dark", SMALL),
        ("nodes2", own, "nodes2", "dark", SMALL),
        ("nodes2_light", own, "nodes2", "light", SMALL),
        ("newest_classic_light", newest, "classic", "light", LARGE),
        ("newest_nodes2", newest, "nodes2", "dark", LARGE),
    ]
    for name, installation, renderer, palette, size in wanted:
        if only in name:
            take(PICTURES / f"first_sight_{name}.jpg", installation, renderer, palette, size)


def take(target: Path, installation: Installation, renderer: str, palette: str, size: tuple[int, int]) -> None:
    """One picture of the page."""
    comfyui = ComfyUI(installation, Path(tempfile.mkdtemp(prefix="otca-first-sight-")))
    try:
        comfyui.wait_until_up()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=BROWSER_OPTIONS)
            canvas = Canvas(browser.new_page(viewport={"width": size[0], "height": size[1]}), comfyui, renderer)
            canvas.page.evaluate("name => app.extensionManager.setting.set('Comfy.ColorPalette', name)", palette)
            content = json.loads(TEMPLATES["quickstart"].canvas.read_text(encoding="utf-8"))
            canvas.page.evaluate(
                "content => app.loadGraphData(content, true, true, 'Quickstart', { openSource: 'template' })", content
            )
            canvas.set({"12.evaluate_every": 0})  # an evaluation takes longer than these iterations, and is not seen
            for _ in range(ITERATIONS):
                (execution,) = canvas.run_and_wait()
                assert execution.end == "execution_success", execution.detail
            canvas.page.wait_for_timeout(8000)  # until the page's own messages are gone
            picture = Image.open(io.BytesIO(canvas.page.screenshot())).convert("RGB")
            picture.save(target, "JPEG", quality=82, optimize=True)
            print(target)
    finally:
        comfyui.stop()


if __name__ == "__main__":
    main()
