"""Lists below text boxes, in every ComfyUI that is there and in both of its renderers."""

from __future__ import annotations

import pytest

from comfyui_otca.tools.canvases.templates import TEMPLATES

LIST, OPTIONS = ".otca-suggestions[role=listbox]", ".otca-suggestions [role=option]"

ALL_INPUTS = """id => {
    const node = app.graph.getNodeById(id);
    node.showAdvanced = true;
    node.onConfigure?.({});
    node.setSize(node.computeSize());
}"""


@pytest.fixture
def boxes(canvas):
    """OTCA's workflow, and boxes(node, widget): opens that widget's box by a click, and returns it."""
    canvas.load(TEMPLATES["otca"].canvas)

    def opened(node, name):
        canvas.page.evaluate(ALL_INPUTS, node)
        canvas.show(node)
        if canvas.renderer == "nodes2":
            box = canvas.page.locator(f'[data-node-id="{node}"] input[aria-label="{name}"]')
            box.click()
            return box
        canvas.wait(  # what moves the canvas is drawn a frame later
            "([id, name]) => app.graph.getNodeById(id).widgets.find(w => w.name === name).last_y > 0", [node, name]
        )
        canvas._click(node, name)
        return canvas.page.locator(".graphdialog input.value")

    yield opened
    canvas.page.keyboard.press("Escape")
    canvas.page.keyboard.press("Escape")


def offered(canvas):
    canvas.page.locator(OPTIONS).first.wait_for()
    return canvas.page.locator(OPTIONS).all_inner_texts()


def test_a_click_opens_the_list_and_a_click_chooses(canvas, boxes):
    boxes(12, "best_metric")
    names = ["sum", "clip_t", "colorfulness", "sharpness", "accuracy"]
    assert offered(canvas) == [f"evaluation/{name}" for name in names]
    canvas.page.locator(OPTIONS, has_text="evaluation/sharpness").click()
    canvas.wait(
        "() => app.graph.getNodeById(12).widgets.find(w => w.name === 'best_metric').value === 'evaluation/sharpness'"
    )
    assert canvas.page.locator(LIST).count() == 0
    assert canvas.prompt()["12"]["inputs"]["best_metric"] == "evaluation/sharpness"


def test_by_keyboard_with_the_roles_that_a_screen_reader_needs(canvas, boxes):
    box = boxes(2, "file")
    assert "shapes_train.txt" in offered(canvas)
    assert box.get_attribute("role") == "combobox" and box.get_attribute("aria-expanded") == "true"
    canvas.page.keyboard.press("Escape")
    canvas.page.locator(LIST).wait_for(state="detached")
    assert box.get_attribute("aria-expanded") == "false" and box.is_visible(), "Escape closes the list, and not the box"
    box.fill("sign")
    assert offered(canvas) == ["signs.txt"]
    canvas.page.keyboard.press("ArrowDown")
    marked = box.get_attribute("aria-activedescendant")
    assert canvas.page.locator(f"#{marked}").get_attribute("aria-selected") == "true"
    canvas.page.keyboard.press("Enter")
    canvas.wait("() => app.graph.getNodeById(2).widgets.find(w => w.name === 'file').value === 'signs.txt'")


def test_any_other_text_is_as_good(canvas, boxes):
    box = boxes(2, "file")
    offered(canvas)
    box.fill("not/there/yet.txt")
    canvas.page.keyboard.press("Enter")
    canvas.wait("() => app.graph.getNodeById(2).widgets.find(w => w.name === 'file').value === 'not/there/yet.txt'")


def test_the_device_s_list_says_what_there_is(canvas, boxes):
    box = boxes(1, "device")
    assert offered(canvas)[:2] == ["auto", "cpu"]
    box.press("Escape")
