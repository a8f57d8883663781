"""How long a newcomer takes to the first point of a curve: seconds of each stage, and clicks.

    python bench/first_curve.py --comfyui ~/comfy/ComfyUI-0.33
        [--front-end ~/comfy/front-end-1.58.1] [--renderer nodes2] [--first-start]

Takes a ComfyUI with its environment, and a new folder for all that ComfyUI writes. Clones this repository into its custom nodes
as it was committed last, has pip install the requirements, starts ComfyUI, and opens its page. From there it does what a hand
does, by the mouse alone, and counts the clicks: *Templates*, the pack, the template by its shown name, *Run*. It ends when
Training Run shows the curve of the first iteration. `--first-start` is a ComfyUI that nobody has opened before: it opens the
templates by itself. Prints a table and the clicks.

A click is made as soon as the page lets it be made, so the seconds are the machine's: nobody reads or thinks. The clone is of a
local folder; over a network it takes as long as the network does.
"""

from __future__ import annotations

import argparse
import functools
import os
import platform
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright

from comfyui_otca.tests.comfyui.canvas import BROWSER_OPTIONS, SETTINGS, chromium
from comfyui_otca.tests.comfyui.server import PACK, ROOT, ComfyUI, Installation
from comfyui_otca.tools.canvases.templates import TEMPLATES

GOAL = 4
PATIENCE = 120_000  # ms
OPEN = "() => window.app?.extensionManager && app.graph?.nodes && LiteGraph.registered_node_types.OTCA_TrainingRun"
CURVE = """() => {
    const plot = document.querySelector(".otca-curves-line");
    return plot?.querySelector("path.otca-point")?.getAttribute("d") && plot.getBoundingClientRect().width > 0;
}"""


class Stages:
    """Seconds of each stage, and clicks since the page was opened."""

    def __init__(self):
        self.seconds: dict[str, float] = {}
        self.clicks: list[str] = []

    @contextmanager
    def stage(self, name: str):
        begun = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - begun

    def click(self, name: str, target) -> None:
        target.click(timeout=PATIENCE)
        self.clicks.append(name)


def install(folder: Path, python: Path, stages: Stages) -> None:
    """Puts the pack there as a user would."""
    with stages.stage("git clone, of a local folder"):
        subprocess.run(["git", "clone", "--quiet", "--no-local", ROOT, folder], check=True)
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "-r", folder / "requirements.txt"]
    with stages.stage("pip install -r requirements.txt"):
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    new = [line for line in done.stdout.splitlines() if line.startswith("Successfully installed")]
    print(*(new or ["All requirements were satisfied already."]), sep="\n")


def main() -> None:
    options = parse()
    stages, installation = Stages(), Installation(options.comfyui, python_of(options.comfyui), options.front_end)
    put = functools.partial(install, python=installation.python, stages=stages)
    comfyui = ComfyUI(installation, Path(tempfile.mkdtemp(prefix="otca-first-curve-")), put)
    try:
        with stages.stage("ComfyUI starts"):
            comfyui.wait_until_up()
        settings = {} if options.first_start else {"Comfy.TutorialCompleted": SETTINGS["Comfy.TutorialCompleted"]}
        if options.renderer:
            settings["Comfy.VueNodes.Enabled"] = options.renderer == "nodes2"
        comfyui.post("/api/settings", settings)
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium(), args=BROWSER_OPTIONS)
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            try:
                walk(page, comfyui.url, options, stages)
            finally:  # also of a page where nothing more happened
                if options.screenshot:
                    page.screenshot(path=options.screenshot)
            browser.close()
    finally:
        comfyui.stop()
    report(stages, installation, options)


def walk(page, url: str, options: argparse.Namespace, stages: Stages) -> None:
    """From the address to the first point."""
    with stages.stage("the page opens"):
        page.goto(url, timeout=PATIENCE)
        page.wait_for_function(OPEN, timeout=PATIENCE)
        if not options.first_start:
            page.locator(".templates-tab-button").wait_for(timeout=PATIENCE)
    dialog = page.get_by_role("dialog").filter(has=page.get_by_text(PACK, exact=True))
    with stages.stage("the template is found and opened"):
        if options.first_start:
            dialog.wait_for(timeout=PATIENCE)  # ComfyUI opens it by itself
        else:
            stages.click("Templates", page.locator(".templates-tab-button"))
        stages.click(PACK, dialog.get_by_text(PACK, exact=True))
        shown = TEMPLATES[options.template].title
        stages.click(shown, dialog.locator("h3").get_by_text(shown, exact=True))
        page.wait_for_function("() => app.graph.nodes.some(node => node.type === 'OTCA_TrainingRun')", timeout=PATIENCE)
        dialog.wait_for(state="detached", timeout=PATIENCE)
    with stages.stage("Run, until the curve has its first point"):
        stages.click("Run", page.get_by_role("button", name="Run", exact=True).first)
        page.wait_for_function(CURVE, timeout=PATIENCE)


def report(stages: Stages, installation: Installation, options: argparse.Namespace) -> None:
    print(
        f"\nComfyUI {installation.name}, {platform.processor() or platform.machine()}, {os.cpu_count()} cores", end=""
    )
    print(f", load {os.getloadavg()[0]:.1f} in the last minute\n")
    print("| stage | seconds |\n|---|---|")
    for name, seconds in stages.seconds.items():
        print(f"| {name} | {seconds:.1f} |")
    print(f"\n{len(stages.clicks)} clicks from the page to the curve (the goal is {GOAL}): {', '.join(stages.clicks)}")


def python_of(comfyui: Path) -> Path:
    return Path(os.environ.get("COMFYUI_PYTHON") or comfyui / ".venv" / "bin" / "python")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("template", nargs="?", choices=TEMPLATES, default="quickstart", metavar="TEMPLATE")
    parser.add_argument("--comfyui", type=Path, required=True, help="a ComfyUI with its environment in .venv")
    parser.add_argument(
        "--front-end", type=Path, help="a folder with comfyui-frontend-package, to serve in place of its own"
    )
    parser.add_argument(
        "--renderer", choices=["classic", "nodes2"], help="how nodes are drawn; else as ComfyUI does by itself"
    )
    parser.add_argument("--first-start", action="store_true", help="a ComfyUI that nobody has opened before")
    parser.add_argument("--screenshot", type=Path, help="where to put a picture of the page at the end")
    return parser.parse_args()


if __name__ == "__main__":
    main()
