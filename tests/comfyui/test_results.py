"""What the page shows of a run: credit heatmap, reward table, curves, sidebar."""

import re

import pytest

# The colours that fill at least 50 pixels where a heatmap's <canvas> has its cells, and how many of them are orange
# (reinforced): legend, labels and bars lie outside.
CELLS = """canvas => {
    const part = (from, to, length) => [Math.round(from * length), Math.round((to - from) * length)];
    const [left, width] = part(0.32, 0.85, canvas.width), [top, height] = part(0.2, 0.65, canvas.height);
    const { data } = canvas.getContext("2d").getImageData(left, top, width, height);
    const counts = new Map();
    for (let at = 0; at < data.length; at += 4) {
        const colour = data.slice(at, at + 4).join(" ");
        counts.set(colour, (counts.get(colour) ?? 0) + 1);
    }
    const cells = [...counts].filter(([, count]) => count >= 50).map(([colour]) => colour.split(" ").map(Number));
    return { colours: cells.length, orange: cells.filter(([r, g, b, a]) => a && r > g + 30 && g > b + 30).length };
}"""


@pytest.fixture
def ran(small):
    """The small quickstart after one iteration."""
    (execution,) = small.run_and_wait()
    assert execution.end == "execution_success", execution.detail
    return small


def test_heatmap(ran):
    ran.show(9)
    heatmap = ran.page.locator(".otca-heatmap canvas")
    heatmap.wait_for()
    advantages = heatmap.evaluate(CELLS)
    assert advantages["colours"] > 5 and advantages["orange"] > 2, advantages

    tooltip = ran.page.locator(".otca-tooltip")
    box = heatmap.bounding_box()
    middle = box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.4
    ran.page.mouse.move(*middle)
    tooltip.wait_for()
    text = tooltip.inner_text()
    for symbol in ("ΔS", "w", "z", "Ã", "clip_t", "colorfulness", "sharpness"):
        assert re.search(rf"(^|\W){symbol}\b" if symbol.isascii() else symbol, text), f"{symbol} is not in: {text}"

    ran.page.mouse.click(*middle)
    picture = ran.page.locator(".otca-heatmap-preview img")
    picture.wait_for()
    ran.wait("() => document.querySelector('.otca-heatmap-preview img')?.naturalWidth === 40")

    ran.page.get_by_role("button", name="Colour: weight w").click()
    weights = heatmap.evaluate(CELLS)
    assert weights["colours"] > 5 and weights["orange"] == 0, weights


def test_heatmap_follows_the_credit(ran):
    ran.show(9)
    heatmap = ran.page.locator(".otca-heatmap canvas")
    heatmap.wait_for()
    before = heatmap.evaluate("canvas => canvas.toDataURL()")
    ran.set({"9.w_min": 1.0})
    ran.run_and_wait()
    ran.wait("before => document.querySelector('.otca-heatmap canvas').toDataURL() !== before", before)


def test_reward_table(ran):
    ran.show(8)
    table = ran.page.locator(".otca-scores table").first
    table.wait_for()
    heads = table.locator("thead th").all_inner_texts()
    for name in ("clip_t", "colorfulness", "sharpness", "accuracy"):
        assert any(name in head for head in heads), heads
    assert table.locator("tbody tr").count() == 8 + 2  # a row a sample, one a prompt
    sockets = ran.page.evaluate("() => app.graph.getNodeById(8).inputs.map(input => input.name)")
    assert sockets == ["trajectories", *(f"reward_{number}" for number in range(1, 6))], "the used ones and a free one"


def test_curves_have_a_point_for_each_of_five_iterations_and_survive_a_reload(small, run_name):
    executions = small.run_and_wait(times=5)
    assert [execution.end for execution in executions] == ["execution_success"] * 5
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

    page.locator(".otca-tab-button").click()
    sidebar = page.locator(".otca-sidebar")
    entry = sidebar.locator(f'[data-run="{run_name}"]')
    entry.wait_for()
    entry.click()
    chart = sidebar.locator("figure.otca-chart", has_text="colorfulness").locator("path.otca-line.otca-thin")
    chart.wait_for()
    assert curve_points(chart) == 5
    page.locator(".otca-tab-button").click()


def curve_points(path) -> int:
    return len(re.findall("[ML]", path.get_attribute("d")))
