"""What the widgets on the nodes do whatever the numbers are: they are given results, and nothing is trained."""

import pytest

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
