"""A real ComfyUI, a real Chromium, and the page between them. Skipped, saying what is missing, where they are not there."""

from __future__ import annotations

import functools
import re
import subprocess
import time
from pathlib import Path

import pytest

from comfyui_otca.tests.comfyui.canvas import BROWSER_OPTIONS, Canvas, chromium
from comfyui_otca.tests.comfyui.native.asking import Inside
from comfyui_otca.tests.comfyui.server import ComfyUI, Installation, installations, targets
from comfyui_otca.tools.canvases.templates import TEMPLATES

FOUND = targets()
NEWEST = max(FOUND, key=lambda found: found.age, default=None)
RENDERERS = ["classic", "nodes2"]

# Eight samples to an iteration instead of forty-eight.
SMALL = {
    "2.prompts_per_iteration": 2,
    "3.group_size": 4,
    "3.steps": 4,
    "12.evaluation_prompts": "a red circle on a blue background\na green square on a black background",
    "12.evaluation_seeds": 1,
}


# What an older ComfyUI is asked without --everything: does the pack load, are its templates what they should be, do they run.
BASICS = ["test_canvas", "test_pack", "test_fresh", "test_value"]
# What both renderers show by the same elements: without --everything it is tried in Nodes 2.0, where the page has that.
ALIKE = ["test_accessibility", "test_results", "test_votes"]


def pytest_collection_modifyitems(config, items):
    ours = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    tried = [item for item in ours if _is_tried(item, config.getoption("everything"))] if FOUND else ours[:1]
    if left := set(ours).difference(tried):  # without a ComfyUI, one test says for all that there is none
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]


def _is_tried(item, everything: bool) -> bool:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    target = next((value for value in params.values() if isinstance(value, Installation)), None)
    if target is None:
        return True
    # The newest core with its own page beside the newest one: only where a page is seen.
    if target == params.get("comfyui") != NEWEST and target.folder == NEWEST.folder:
        return everything and "open_canvas" in item.fixturenames
    return everything or target.folder == NEWEST.folder or item.path.stem in BASICS


MISSING = "no ComfyUI with a .venv in ~/comfy/ComfyUI*; name one by COMFYUI_PATH (and COMFYUI_PYTHON)"


def each(found: list[Installation]) -> dict:
    return dict(params=found or [None], ids=lambda one: f"comfyui-{one.name}" if one else "no-comfyui")


@pytest.fixture(autouse=True)
def _no_toy(real_model):
    """What is trained here and in ComfyUI is one model."""


@pytest.fixture(scope="session", **each(installations()))
def installation(request):
    """Every ComfyUI that is there, not running."""
    return request.param or pytest.skip(MISSING)


@functools.cache
def need_diffusers(installation: Installation) -> None:
    """Skips a test of diffusers' layout in a ComfyUI that has only what its own requirements and ours name."""
    code = "import importlib.util as u; print(*[n for n in ('diffusers', 'peft', 'accelerate') if not u.find_spec(n)])"
    lacking = subprocess.run(
        [installation.python, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    if lacking:
        pytest.skip(f"ComfyUI {installation.name}'s Python lacks {', '.join(lacking)} (docs/maintaining.md)")


@pytest.fixture(scope="session")
def inside(installation, tmp_path_factory):
    """What `native/inside.py` answers in each ComfyUI."""
    asked = Inside(installation, tmp_path_factory.mktemp("native") / "log")
    yield asked
    asked.close()


@pytest.fixture(scope="session", **each(FOUND))
def comfyui(request, tmp_path_factory):
    """A running ComfyUI, one after the other for every version that is there."""
    if request.param is None:
        pytest.skip(MISSING)
    with ComfyUI(request.param, tmp_path_factory.mktemp("comfyui")) as server:
        yield server


@pytest.fixture
def newest(comfyui):
    """Whether this is the newest ComfyUI that is there, with the newest front end."""
    return comfyui.installation == NEWEST


@pytest.fixture
def once(newest):
    """For what takes long and is the same in every ComfyUI: it is done in the newest."""
    if not newest:
        pytest.skip("once, in the newest ComfyUI, is enough")


@pytest.fixture(scope="package")  # not longer: while it lives, no other test could run an asyncio loop
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
    if chromium() is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on the PATH; name one by CHROMIUM_PATH")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=BROWSER_OPTIONS)
        yield browser
        browser.close()


@pytest.fixture(scope="package", params=RENDERERS)
def open_canvas(request, comfyui, browser):
    """ComfyUI's page in one renderer, opened once, since opening it takes longer than most tests."""
    page = browser.new_page(viewport={"width": 1600, "height": 900})
    canvas = Canvas(page, comfyui, request.param)
    if request.param == "nodes2" and canvas.renderer_is_hidden():
        page.close()
        name = comfyui.installation.name
        pytest.skip(f"ComfyUI {name} hides its experiment of Nodes 2.0, which shows no DOM widget")
    yield canvas
    page.close()


@pytest.fixture
def canvas(open_canvas, request, everything):
    """The page with an empty graph; the test fails at its end if page or server complained about something of ours."""
    again = open_canvas.renderer == "classic" and request.path.stem in ALIKE and not everything
    if again and not open_canvas.renderer_is_hidden():
        pytest.skip("in Nodes 2.0 it is the same: --everything")
    comfyui = open_canvas.comfyui
    log_start = comfyui.log_file.stat().st_size
    open_canvas.forget()
    yield open_canvas
    complaints = open_canvas.unexpected(open_canvas.complaints)
    assert not complaints, "the page complained:\n" + "\n".join(complaints)
    complaints = open_canvas.unexpected(comfyui.complaints(log_start))
    assert not complaints, "the server's log complains:\n" + "\n".join(complaints)


@pytest.fixture
def run_name(request):
    """A name of its own for each test's training run; each ComfyUI writes to folders of its own."""
    name = re.sub(r"comfyui-[\d.]+(-page-[\d.]+)?-?", "", request.node.name)
    return re.sub(r"\W+", "-", name).strip("-")


@pytest.fixture
def small(canvas, run_name):
    """OTCA's workflow on the canvas, small, with a run and an adapter of its own."""
    canvas.load(TEMPLATES["otca"].canvas)
    # Another seed is another model on the edge: ComfyUI's cache may still hold the last test's, trained.
    seed = time.monotonic_ns() % 10**6
    canvas.set({**SMALL, "1.seed": seed, "12.run_name": run_name, "13.filename": run_name})
    return canvas
