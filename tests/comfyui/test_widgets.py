"""What the widgets on the nodes do whatever the numbers are: they are given results, and nothing is trained."""

import pytest

from comfyui_otca.tests.comfyui.canvas import CELLS
from comfyui_otca.tests.comfyui.fed import feed_heatmap, feed_scores
from comfyui_otca.tests.comfyui.server import WORKFLOWS

WIDGETS = {9: ".otca-heatmap", 8: ".otca-scores", 12: ".otca-curves", 1: ".otca-owner-line"}


@pytest.fixture
def fed(canvas):
    """OTCA's workflow with results of eight samples."""
    canvas.load(WORKFLOWS / "otca.json")
    feed_heatmap(canvas, prompts=2, samples=4, steps=10)
    feed_scores(canvas, prompts=2, samples=4)
    return canvas


def width_of(canvas, node: int) -> float:
    canvas.show(node)
    canvas.page.locator(WIDGETS[node]).wait_for()
    return canvas.page.locator(WIDGETS[node]).evaluate("element => element.offsetWidth")


@pytest.mark.parametrize("node", WIDGETS)
def test_the_properties_panel_leaves_the_widgets_as_wide_as_their_nodes(fed, node):
    toggle = fed.page.get_by_role("button", name="Toggle properties panel")
    if not toggle.count():
        pytest.skip("this ComfyUI has no Properties panel")
    before = width_of(fed, node)
    toggle.click()
    fed.page.evaluate("id => app.canvas.selectItems([app.graph.getNodeById(id)])", node)
    panel = fed.page.locator("[data-testid=properties-panel]")
    panel.wait_for()
    title = fed.page.evaluate("id => app.graph.getNodeById(id).title", node)
    panel.get_by_text(title).first.wait_for()
    listed = panel.inner_text()
    fed.page.evaluate("() => app.canvas.deselectAll()")
    fed.page.locator("[data-testid=properties-panel]").get_by_role("button", name="Toggle properties panel").click()
    panel.wait_for(state="detached")
    assert "otca_" not in listed, listed
    assert width_of(fed, node) == before


@pytest.fixture
def heatmap(fed):
    """The heatmap's canvas, in view."""
    fed.show(9)
    found = fed.page.locator(".otca-heatmap canvas")
    found.wait_for()
    return found


def wait_for_note(canvas, pattern: str) -> None:
    canvas.wait("p => RegExp(p).test(document.querySelector('.otca-heatmap-note').textContent)", pattern)


def test_512_samples_are_shown_by_prompt_and_opened_one_by_one(fed, heatmap):
    feed_heatmap(fed, prompts=16, samples=32, steps=50)
    wait_for_note(fed, "^512 samples of 16 prompts")
    fed.show(9)  # the node has grown
    spoken = fed.page.locator(".otca-heatmap [aria-live]")
    heatmap.focus()
    keyboard = fed.page.keyboard
    keyboard.press("ArrowDown")
    assert "number 0; " in spoken.inner_text() and "reinforced samples" in spoken.inner_text()
    keyboard.press("ArrowDown")
    assert "number 0; " in spoken.inner_text() and "discouraged samples" in spoken.inner_text()
    keyboard.press("ArrowDown")
    assert "number 1; " in spoken.inner_text()

    keyboard.press("Enter")
    opened = spoken.inner_text()
    assert "number 1; sample " in opened and "step 0" in opened
    keyboard.press("ArrowDown")
    assert "number 1; sample " in spoken.inner_text() and spoken.inner_text() != opened
    keyboard.press("Escape")
    assert fed.page.get_by_role("button", name="back to the means").count() == 0
    assert heatmap.evaluate("canvas => document.activeElement === canvas")

    box = heatmap.bounding_box()
    fed.page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + 32)  # the first row, below the scale
    fed.page.get_by_role("button", name="back to the means").click()
    assert fed.page.get_by_role("button", name="back to the means").count() == 0


def test_one_extreme_sample_does_not_set_the_colours(fed, heatmap):
    before = heatmap.evaluate(CELLS)["colours"]
    feed_heatmap(fed, prompts=2, samples=4, steps=10, scale=1000)
    wait_for_note(fed, "^Colours end at .* One row goes beyond")
    fed.show(9)
    assert heatmap.evaluate(CELLS)["colours"] > before / 2, "the other rows are still told apart"
