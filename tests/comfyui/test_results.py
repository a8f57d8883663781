"""What the page shows of a run: credit heatmap, reward table, curves, sidebar."""

import re

import pytest

from comfyui_otca.tests.comfyui.canvas import CELLS


@pytest.fixture
def ran(small):
    """OTCA's small workflow after one iteration."""
    (execution,) = small.run_and_wait()
    assert execution.end == "execution_success", execution.detail
    return small


def test_reward_table_and_heatmap(ran):
    check_reward_table(ran)
    ran.show(9)
    heatmap = ran.page.locator(".otca-heatmap canvas")
    heatmap.wait_for()
    check_heatmap_by_keyboard(ran, heatmap)
    check_heatmap_by_mouse(ran, heatmap)


def check_reward_table(ran):
    ran.show(8)
    table = ran.page.locator(".otca-scores table").first
    table.wait_for()
    heads = table.locator("thead th").all_inner_texts()
    for name in ("clip_t", "colorfulness", "sharpness", "accuracy"):
        assert any(name in head for head in heads), heads
    assert table.locator("tbody tr").count() == 8 + 2  # a row a sample, one a prompt
    sockets = ran.page.evaluate(
        "() => app.graph.getNodeById(8).inputs.filter(input => !input.widget).map(input => input.name)"
    )
    assert sockets == ["trajectories", *(f"reward_{number}" for number in range(1, 6))], "the used ones and a free one"


def check_heatmap_by_mouse(ran, heatmap):
    advantages = heatmap.evaluate(CELLS)
    assert advantages["colours"] > 5 and advantages["orange"] > 2, advantages

    tooltip = ran.page.locator(".otca-tooltip")
    box = heatmap.bounding_box()
    # Within the first prompt's rows: nothing is to be said of the gap between two prompts.
    middle = box["x"] + box["width"] * 0.45, box["y"] + box["height"] * 0.27
    ran.page.mouse.move(*middle)
    tooltip.wait_for()
    text = tooltip.inner_text()
    for symbol in ("ΔS", "w", "z", "Ã", "clip_t", "colorfulness", "sharpness"):
        assert re.search(rf"(^|\W){symbol}\b" if symbol.isascii() else symbol, text), f"{symbol} is not in: {text}"

    ran.page.mouse.click(*middle)
    ran.page.locator(".otca-heatmap-preview img").wait_for()
    ran.wait("() => document.querySelector('.otca-heatmap-preview img')?.naturalWidth === 40")

    ran.page.get_by_role("button", name="Colour: weight w").click()
    weights = heatmap.evaluate(CELLS)
    assert weights["colours"] > 5 and weights["orange"] == 0, weights


def check_heatmap_by_keyboard(ran, heatmap):
    keyboard, spoken = ran.page.keyboard, ran.page.locator(".otca-heatmap [aria-live]")
    ran.page.get_by_role("button", name="hold samples").focus()
    keyboard.press("Tab")
    assert heatmap.evaluate("canvas => document.activeElement === canvas")
    keyboard.press("ArrowDown")
    first = spoken.inner_text()
    keyboard.press("ArrowDown")
    second = spoken.inner_text()
    assert first and second and first != second

    keyboard.press("Enter")
    ran.wait("() => document.querySelector('.otca-heatmap-preview img')?.naturalWidth === 40")
    source = ran.page.locator(".otca-heatmap-preview img").get_attribute("src")
    keyboard.press("ArrowRight")
    ran.wait(
        """before => { const img = document.querySelector('.otca-heatmap-preview img');
            return img?.naturalWidth === 40 && img.src !== before; }""",
        source,
    )
    keyboard.press("Escape")
    assert ran.page.locator(".otca-heatmap-preview").is_hidden()
    assert heatmap.evaluate("canvas => document.activeElement === canvas")


def test_the_heatmap_and_its_open_picture_follow_the_iterations(ran):
    ran.show(9)
    heatmap = ran.page.locator(".otca-heatmap canvas")
    heatmap.focus()
    ran.page.keyboard.press("ArrowDown")
    ran.page.keyboard.press("Enter")
    shown = """before => {
        const img = document.querySelector(".otca-heatmap-preview img");
        return img?.naturalWidth === 40 && img.src !== before && img.src;
    }"""
    first = ran.wait(shown, "")
    where = ran.page.locator(".otca-heatmap-preview figcaption").inner_text()
    before = heatmap.evaluate("canvas => canvas.toDataURL()")
    ran.run_and_wait()
    ran.wait("before => document.querySelector('.otca-heatmap canvas').toDataURL() !== before", before)
    ran.wait(shown, first)
    sample = re.compile(r"sample \d+ · step \d+")
    now = ran.page.locator(".otca-heatmap-preview figcaption").inner_text()
    assert sample.search(now)[0] == sample.search(where)[0]


# Contrast (WCAG 2) between a heatmap's background and the labels that it draws left of its cells.
LABEL_CONTRAST = """canvas => {
    const luminance = rgb => rgb
        .map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const { backgroundColor } = getComputedStyle(canvas.closest(".otca-heatmap"));
    const background = backgroundColor.match(/[0-9.]+/g).map(Number).slice(0, 3);
    const { data } = canvas.getContext("2d").getImageData(0, 0, Math.round(canvas.width * 0.15), canvas.height);
    let most = 1;
    for (let at = 0; at < data.length; at += 4) {
        if (data[at + 3] < 250) continue;
        most = Math.max(most, contrast(luminance([...data.slice(at, at + 3)]), luminance(background)));
    }
    return { background, contrast: most };
}"""


@pytest.fixture
def light(canvas):
    """The light palette, and the dark one again afterwards."""
    choose = "palette => app.extensionManager.setting.set('Comfy.ColorPalette', palette)"
    canvas.page.evaluate(choose, "light")
    yield
    canvas.page.evaluate(choose, "dark")


def test_heatmap_is_legible_in_the_light_theme(light, ran):
    ran.show(9)
    heatmap = ran.page.locator(".otca-heatmap canvas")
    heatmap.wait_for()
    found = heatmap.evaluate(LABEL_CONTRAST)
    assert min(found["background"]) > 200, found
    assert found["contrast"] > 7, found
    assert heatmap.evaluate(CELLS)["orange"] > 2


def test_a_reward_that_fails_is_named_on_the_canvas(small):
    same = "two rewards of the stack share a name"
    small.expected.append(same)
    small.set({"5.name": "twin", "6.name": "twin"})
    (failed,) = small.run_and_wait()
    assert failed.end == "execution_error" and failed.detail["node_id"] == "8"
    small.page.keyboard.press("Escape")  # ComfyUI's own dialog
    small.show(8)
    message = small.page.locator(".otca-scores [role=alert]")
    message.wait_for()
    assert same in message.inner_text() and "twin" in message.inner_text()

    small.set({"6.name": "sharpness"})
    (mended,) = small.run_and_wait()
    assert mended.end == "execution_success", mended.detail
    assert message.is_hidden()


def test_curves_have_a_point_for_each_of_five_iterations_and_survive_a_reload(small, run_name):
    executions = small.run_and_wait(times=5)
    assert [execution.end for execution in executions] == ["execution_success"] * 5
    rows = small.comfyui.metrics(run_name)
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4, 5]
    assert len({row["loss"] for row in rows}) == 5
    assert small.widget("2.index") == small.widget("3.seed") == 5
    page = small.page
    small.show(12)
    small.wait("() => document.querySelector('.otca-curves-heading')?.textContent.includes('5 iterations')")
    assert curve_points(page.locator(".otca-curves-line path").first) == 5
    workflow = page.evaluate("() => app.graph.serialize()")

    small.open()
    page.evaluate("workflow => app.loadGraphData(workflow)", workflow)
    small.show(12)
    small.wait("() => document.querySelector('.otca-curves-heading')?.textContent.includes('5 iterations')")
    small.show(9)
    page.locator(".otca-heatmap canvas").wait_for()
    assert page.locator(".otca-heatmap canvas").evaluate(CELLS)["orange"] > 2

    small.our_tab().click()
    sidebar = page.locator(".otca-sidebar")
    entry = sidebar.locator(f'[data-run="{run_name}"]')
    entry.wait_for()
    entry.click()
    figure = sidebar.get_by_role("figure", name="colorfulness")
    figure.scroll_into_view_if_needed()  # what is out of view is not drawn
    chart = figure.locator("path.otca-line.otca-thin")
    chart.wait_for()
    assert curve_points(chart) == 5
    small.our_tab().click()


def curve_points(path) -> int:
    return len(re.findall("[ML]", path.get_attribute("d")))


def test_a_node_that_is_left_with_its_picture_open_is_opened_without_it(ran):
    """It grew by the picture at each change of tabs, until the picture lay below the window."""
    ran.show(9)
    height = "() => app.graph.getNodeById(9).size[1]"
    before = ran.page.evaluate(height)
    ran.page.locator(".otca-heatmap canvas").focus()
    ran.page.keyboard.press("ArrowDown")
    ran.page.keyboard.press("Enter")
    ran.wait("() => document.querySelector('.otca-heatmap-preview img')?.naturalWidth === 40")
    assert ran.page.evaluate(height) > before
    ran.page.evaluate("() => app.loadGraphData(app.graph.serialize())")
    ran.wait(f"before => ({height})() === before", before)
