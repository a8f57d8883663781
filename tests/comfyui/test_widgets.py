"""What the widgets on the nodes do whatever the numbers are: they are given results, and nothing is trained."""

import pytest

from comfyui_otca.tests.comfyui.canvas import CELLS
from comfyui_otca.tests.comfyui.fed import answering, feed_heatmap, feed_run, feed_scores
from comfyui_otca.tools.canvases.templates import TEMPLATES

WIDGETS = {9: ".otca-heatmap", 8: ".otca-scores", 12: ".otca-curves", 1: ".otca-owner-line"}


@pytest.fixture
def fed(canvas):
    """OTCA's workflow with results of eight samples."""
    canvas.load(TEMPLATES["otca"].canvas)
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


def test_the_first_iteration_is_a_dot(fed):
    """It was drawn as a level line over the whole width, as if something had been learned to stay the same."""
    rows = [{"iteration": 1, "reward/clip_t/mean": 0.25}]
    answer = {"rows": rows, "evaluations": [], "changes": [], "more": False}
    drawn = fed.page.locator(".otca-curves-line path.otca-point:not(.otca-thin)")
    with answering(fed, {"**/otca/runs/fed/metrics*": answer}):
        fed.show(12)
        feed_run(fed, "fed", 1)
        drawn.wait_for(state="attached")
    box = drawn.bounding_box()
    line = fed.page.locator(".otca-curves-line").bounding_box()
    assert box["width"] < 12 and 0 <= box["x"] + box["width"] / 2 - line["x"] < 12, (box, line)


def test_while_prompts_wait_no_next_run_is_foretold_and_the_first_iteration_is_said_to_be_at_work(fed):
    """Training Run said "No iteration yet. Press Run" while it evaluated, and of twenty Runs what the first would continue."""
    tell = "([type, detail]) => comfyAPI.api.api.dispatchCustomEvent(type, detail)"
    fed.show(12)
    curves = fed.page.locator(".otca-curves")
    coming = curves.locator(".otca-curves-coming > span:not(.otca-curves-question)")
    fed.page.evaluate(tell, ["execution_start", {"prompt_id": "fed"}])
    fed.page.evaluate(tell, ["status", {"exec_info": {"queue_remaining": 2}}])
    assert "at work" in curves.inner_text() and coming.evaluate("element => element.hidden")
    fed.page.evaluate(tell, ["status", {"exec_info": {"queue_remaining": 0}}])
    assert "Press Run" in curves.inner_text() and not coming.evaluate("element => element.hidden")


# Train 20 on a graph that ComfyUI refuses: it queues nothing, and no event tells of a queue.
PRESSED_TWICE = """async id => {
    const { app } = comfyAPI.app, before = app.queuePrompt, asked = [];
    const { callback } = app.graph.getNodeById(id).widgets.find(({ name }) => name === "Train 20");
    app.queuePrompt = async (number, count) => { asked.push(count); return false; };
    try {
        await callback();
        await callback();
    } finally {
        app.queuePrompt = before;
    }
    return asked;
}"""


def test_train_20_stops_what_it_has_queued(fed):
    """There was no Stop: the red X ended one Run of twenty, and a second click on Train 20 queued twenty more."""
    tell = "([type, detail]) => comfyAPI.api.api.dispatchCustomEvent(type, detail)"
    button = "() => comfyAPI.app.app.graph.getNodeById(12).widgets.find(({ name }) => name === 'Train 20')"
    taken, workflow = [], fed.page.evaluate("() => comfyAPI.app.app.graph.id")
    entries = [
        [number, f"prompt {number}", {}, {"extra_pnginfo": {"workflow": {"id": each}}}]
        for number, each in enumerate((workflow, workflow, "another"))
    ]

    def answer(route):
        if route.request.method == "POST":
            taken.extend(route.request.post_data_json["delete"])
            entries[:] = [entry for entry in entries if entry[1] not in taken]
        route.fulfill(json={"queue_running": [], "queue_pending": entries})

    fed.page.route("**/queue", answer)
    try:
        fed.show(12)
        fed.page.evaluate(tell, ["status", {"exec_info": {"queue_remaining": 4}}])
        fed.wait(f"() => ({button})().label === 'Stop after this one (2 left)'")
        fed.page.evaluate(f"() => ({button})().callback()")
        fed.wait(f"() => ({button})().label === 'Train 20'")
        asked = fed.page.evaluate(PRESSED_TWICE, 12)
    finally:
        fed.page.unroute("**/queue", answer)
        fed.page.evaluate(tell, ["status", {"exec_info": {"queue_remaining": 0}}])
    assert taken == ["prompt 0", "prompt 1"] and [entry[1] for entry in entries] == ["prompt 2"]
    assert asked == [20, 20], "after a graph that was refused, the second click was a Stop of nothing"


def test_what_learns_from_pairs_shows_its_dots_and_how_often_it_agrees(fed):
    """No reward scores samples there: a curve of 0.5, half of the pictures being chosen ones, was all that was shown."""
    values = {"std": 0.1, "standard_error": 0.02, "held_out": True}
    evaluations = [
        {"iteration": at, "rewards": {"colorfulness": {"mean": mean, **values}}} for at, mean in ((0, 0.3), (2, 0.4))
    ]
    rows = [{"iteration": 1}, {"iteration": 2, "opinions/agreement": 0.75, "opinions/agreement_error": 0.1}]
    answer = {"rows": rows, "evaluations": evaluations, "changes": [], "more": False, "grids": []}
    with answering(fed, {"**/otca/runs/pairs/*": answer}):
        fed.show(12)
        feed_run(fed, "pairs", 2)
        fed.page.locator(".otca-evaluation").first.wait_for(state="attached")
    dots = fed.page.locator(".otca-curves-list li").evaluate_all("""items => items.map(item => [
        item.querySelector("p").textContent,
        item.querySelector(".otca-evaluation").getAttribute("d").split("M").length - 1,
    ])""")
    assert dots == [["colorfulness 0.4held out", 2], ["agreement 0.75held out", 1]]
    heights = fed.page.locator(".otca-curves-line").evaluate_all(
        "plots => plots.map(({ clientHeight, clientWidth }) => [clientHeight, clientWidth])"
    )
    assert min(height for height, _ in heights) >= 60, f"20 pixels were shown of a curve: {heights}"
    assert fed.page.locator(".otca-curves-iterations").first.inner_text().split() == ["iteration", "0", "2"]
    assert "evaluations on the same prompts" in fed.page.locator(".otca-curves-legend").inner_text()


STOCK = """() => {
    app.graph.clear();
    const add = (type, x) => {
        const node = LiteGraph.createNode(type);
        node.pos = [x, 100];
        app.graph.add(node);
        return node;
    };
    const [model, text, sampler] = [add("CheckpointLoaderSimple", 0), add("CLIPTextEncode", 400), add("KSampler", 900)];
    model.connect(0, sampler, 0);
    model.connect(1, text, 0);
    text.connect(0, sampler, 1);
}"""

LINKS = """() => Object.fromEntries(app.graph.nodes.map(node => [node.type, Object.fromEntries(node.inputs
    .map((input, slot) => [input.name, node.getInputLink(slot)])
    .filter(([, link]) => link)
    .map(([name, link]) => [name, app.graph.getNodeById(link.origin_id).type]))]))"""

OVERLAPS = """() => app.graph.nodes.some(one => app.graph.nodes.some(other => one !== other
    && one.pos[0] < other.pos[0] + other.size[0] && other.pos[0] < one.pos[0] + one.size[0]
    && one.pos[1] - 30 < other.pos[1] + other.size[1] && other.pos[1] - 30 < one.pos[1] + one.size[1]))"""

ADD_LOADER = """async () => {
    const comfy = await import("/extensions/ComfyUI-OTCA/comfy.js");
    const { source, isUsed } = comfy.addLoraLoader();
    return [source, isUsed];
}"""


def test_a_loader_stands_between_a_model_and_its_sampler(canvas):
    canvas.page.evaluate(STOCK)
    assert canvas.page.evaluate(ADD_LOADER) == ["Load Checkpoint", True]
    links = canvas.page.evaluate(LINKS)
    assert links["LoraLoader"] == {"model": "CheckpointLoaderSimple", "clip": "CheckpointLoaderSimple"}
    assert links["KSampler"]["model"] == "LoraLoader" and links["CLIPTextEncode"]["clip"] == "LoraLoader"
    assert not canvas.page.evaluate(OVERLAPS)


def test_a_loader_that_nothing_can_be_connected_to_stands_beside_the_graph(canvas):
    canvas.load(TEMPLATES["otca"].canvas)
    links = canvas.page.evaluate(LINKS)
    overlapped = canvas.page.evaluate(OVERLAPS)
    assert canvas.page.evaluate(ADD_LOADER) == [None, False]
    assert canvas.page.evaluate(LINKS) == {**links, "LoraLoaderModelOnly": {}}
    assert canvas.page.evaluate(OVERLAPS) == overlapped
    seen = """() => {
        const node = app.graph.nodes.at(-1), [x, y, width, height] = app.canvas.ds.visible_area;
        return node.pos[0] >= x && node.pos[0] + node.size[0] <= x + width && node.pos[1] >= y;
    }"""
    canvas.wait(seen)  # the canvas knows what it shows from the next time that it is drawn on
