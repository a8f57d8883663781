"""What the sidebar shows and does while trainings go on: memory, queue, tab title, a prompt tried, a failure, settings, keys."""

import json

import pytest

from .test_sidebar import TRAINER_SECONDS, sidebar, train, wait_for  # noqa: F401

pytestmark = pytest.mark.parametrize("open_canvas", ["classic"], indirect=True)


@pytest.fixture
def one_at_a_time(small):
    """The setting that lets a second training wait."""
    small.comfyui.post("/api/settings/OTCA.Trainings", 1)
    small.page.evaluate("() => app.extensionManager.setting.set('OTCA.Trainings', 1)")
    yield
    small.page.evaluate("() => app.extensionManager.setting.set('OTCA.Trainings', 0)")


def failed_run(small, name, node, error):
    """A run as the trainer leaves it that failed at that node, with the graph and the canvas that are open now."""
    graph = small.page.evaluate("async () => await app.graphToPrompt()")
    folder = small.comfyui.run_folder(name)
    folder.mkdir(parents=True)
    status = {"status": "failed", "place": "headless", "total": 3, "started": 9e9, "error": error, "node": node}
    for file, content in (("workflow", graph["output"]), ("canvas", graph["workflow"]), ("status", status)):
        (folder / f"{file}.json").write_text(json.dumps(content))


def choose(sidebar, name):  # noqa: F811
    sidebar.get_by_role("button", name="Read the runs again").click()
    sidebar.locator(f'[data-run="{name}"]').click()
    sidebar.locator(".otca-run-name", has_text=name).wait_for()


def selected(small):
    return small.page.evaluate("() => Object.values(app.canvas.selected_nodes ?? {}).map(node => String(node.id))")


def test_the_queue_is_changed_and_the_tab_says_how_far_a_run_is(once, small, sidebar, one_at_a_time, run_name):  # noqa: F811
    names = [f"{run_name}-{letter}" for letter in "abc"]
    sidebar.locator(".otca-memory-figures", has_text="GB").first.wait_for()
    title = small.page.title()
    for name in names:
        train(small, sidebar, name, 500)
    queue = sidebar.locator(".otca-queue")
    queue.get_by_text(f"begins when {names[0]} ends").wait_for()
    queue.get_by_role("button", name=f"Move {names[2]} up").click()
    queue.get_by_text(f"begins after {names[2]}").wait_for()
    queue.get_by_role("button", name=f"Take {names[1]} out of the queue").click()
    small.wait("() => document.querySelectorAll('.otca-queue-entry').length === 1")
    queue.get_by_role("button", name=f"Take {names[2]} out of the queue").click()
    queue.wait_for(state="hidden")

    sidebar.locator(f'[data-run="{names[0]}"]').click()
    small.wait("() => /^\\[OTCA \\d+%\\] /.test(document.title)")
    sidebar.get_by_role("button", name="Stop", exact=True).click()
    wait_for(sidebar, "stopped")
    small.wait("title => document.title === title", title)


def test_a_prompt_is_tried_while_comfyui_stays_usable(once, small, sidebar, run_name):  # noqa: F811
    train(small, sidebar, run_name, 1)
    wait_for(sidebar, "finished", "iteration 1 of 1")
    part = sidebar.locator(".otca-section", has_text="Before and after on any prompt")
    part.get_by_label("Prompt").fill("a red circle, \"quoted\" & 'so on'")
    part.get_by_label("Seed", exact=True).fill("7")
    part.get_by_role("button", name="Make both pictures").click()
    part.get_by_role("status").wait_for()
    part.locator(".otca-pair-figure").wait_for(timeout=TRAINER_SECONDS * 1000)
    assert "seed 7 · iteration 1" in part.locator("figcaption").inner_text()
    small.wait("() => [...document.querySelectorAll('.otca-pair-picture')].every(image => image.naturalWidth === 40)")
    part.get_by_label("Where before ends and after begins").fill("25")
    assert "75%" in part.locator(".otca-pair-before").get_attribute("style")

    # another page finds it again
    small.open()
    small.our_tab().click()
    choose(sidebar, run_name)
    part.locator(".otca-pair-figure").wait_for()
    assert len(list((small.comfyui.run_folder(run_name) / "before_after").glob("0*"))) == 1


def test_a_failure_leads_to_its_node(small, sidebar, run_name):  # noqa: F811
    failed_run(small, run_name, "9", "NodeError: no luck")
    choose(sidebar, run_name)
    show = sidebar.get_by_role("button", name="Show TCD Weights on the canvas")
    show.click()
    small.wait("() => app.canvas.selected_nodes?.[9]")
    tabs = small.page.evaluate("() => app.extensionManager.workflow.openWorkflows.length")
    small.page.evaluate("() => { app.canvas.deselectAll?.(); app.canvas.ds.offset = [9999, 9999]; }")
    show.click()
    small.wait("() => app.canvas.selected_nodes?.[9]")
    assert tabs == small.page.evaluate("() => app.extensionManager.workflow.openWorkflows.length"), "it was open"

    small.page.evaluate("() => app.graph.clear()")
    show.click()
    small.wait("() => app.canvas.selected_nodes?.[9]")
    inside = """() => {
        const { ds, canvas } = app.canvas, { pos, size } = app.graph.getNodeById(9), box = canvas.getBoundingClientRect();
        const x = (pos[0] + size[0] / 2 + ds.offset[0]) * ds.scale, y = (pos[1] + size[1] / 2 + ds.offset[1]) * ds.scale;
        return Math.abs(x - box.width / 2) < 5 && Math.abs(y - box.height / 2) < 40;
    }"""
    small.wait(inside)


def test_resume_on_canvas_from_a_fresh_page(small, sidebar, run_name):  # noqa: F811
    small.run_and_wait()
    assert len(small.comfyui.metrics(run_name)) == 1
    small.comfyui.post("/otca/release", {})
    small.open()
    small.page.evaluate("() => app.graph.clear()")
    small.our_tab().click()
    choose(sidebar, run_name)
    resume = sidebar.get_by_role("button", name="Resume on canvas")
    assert "The next Run then is iteration 2." in resume.get_attribute("title")
    resume.click()
    small.wait("() => app.graph.getNodeById(12)?.widgets.find(w => w.name === 'run_name')")
    small.wait("name => app.graph.getNodeById(1).widgets.find(w => w.name === 'resume_run').value === name", run_name)
    assert small.widget("12.run_name") == run_name
    small.run_and_wait()
    assert [row["iteration"] for row in small.comfyui.metrics(run_name)] == [1, 2]


def test_keys_open_the_tab_and_the_dialog(canvas):
    page = canvas.page
    page.locator("#graph-canvas").click(position={"x": 700, "y": 600})
    page.keyboard.press("o")
    page.locator(".otca-sidebar").wait_for()
    page.keyboard.press("o")
    page.locator(".otca-sidebar").wait_for(state="detached")
    page.keyboard.press("Shift+T")
    page.locator("dialog.otca-dialog[open]", has_text="Train headless").wait_for()
    page.keyboard.press("Escape")


def test_settings_show_folders_and_take_a_permission_back(canvas, tmp_path, run_name):
    page, comfyui = canvas.page, canvas.comfyui
    folder = comfyui.base / run_name
    folder.mkdir()
    comfyui.post("/otca/permissions/allow", {"kind": "read", "what": str(folder)})
    page.keyboard.press("Control+,")
    dialog = page.get_by_role("dialog").first
    dialog.get_by_text("OTCA", exact=True).first.click()
    path = str(comfyui.base / "output" / "otca")
    row = dialog.locator(".otca-setting-row", has_text=path).first
    row.wait_for()
    assert "decided by --base-directory" in row.inner_text()
    allowed = dialog.locator(".otca-setting-row", has_text=str(folder))
    allowed.get_by_role("button", name="Take back").click()
    allowed.wait_for(state="detached")
    given = [each["what"] for each in comfyui.get("/otca/permissions")["given"]]
    assert str(folder) not in given
    page.keyboard.press("Escape")


def test_new_nodes_begin_with_the_users_device_and_saved_ones_keep_theirs(small):
    set_ = "([id, value]) => app.extensionManager.setting.set(id, value)"
    small.page.evaluate(set_, ["OTCA.Device", "cpu"])
    try:
        made = small.page.evaluate(
            """() => {
                const node = LiteGraph.createNode("OTCA_LoadFlowModel");
                return node.widgets.find(widget => widget.name === "device").value;
            }"""
        )
        saved = small.page.evaluate("() => app.graph.serialize()")
        small.page.evaluate("saved => app.loadGraphData(saved)", saved)
        assert (made, small.widget("1.device")) == ("cpu", "auto")
    finally:
        small.page.evaluate(set_, ["OTCA.Device", "auto"])
