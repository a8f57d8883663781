"""Make Trainable's light before the first Run, with files of true size and no numbers: a click that makes it fit, and undo."""

import json

import pytest

from comfyui_otca.tests.tiny import sparse
from comfyui_otca.tools.canvases.templates import TEMPLATES

MAKE, SAMPLER, UPDATE = 7, 9, 17
SHOWN = "text => document.querySelector('.otca-light')?.textContent.includes(text)"


@pytest.fixture
def template(canvas):
    """The template z_image on the canvas, and its files where it looks for them."""
    files = sparse.z_image(canvas.comfyui.base / "models")
    canvas.load(TEMPLATES["z_image"].canvas)
    yield canvas
    for file in files.values():
        file.unlink(missing_ok=True)


def touch(canvas, values):
    """As a user who types: the page hears that the graph was changed."""
    canvas.set(values)
    canvas.page.evaluate("() => { app.canvas.emitBeforeChange(); app.canvas.emitAfterChange(); }")


def test_the_light_says_what_makes_it_fit_and_a_click_does_it(template):
    canvas, page = template, template.page
    canvas.wait(SHOWN, "(no GPU)")
    # As many pictures as no machine holds at once; one to a call takes what the template's one takes.
    touch(canvas, {f"{SAMPLER}.group_size": 1000, f"{UPDATE}.batch_size": 0})
    canvas.show(MAKE)
    canvas.wait(SHOWN, "Does not fit")
    page.wait_for_timeout(1500)
    page.locator(".otca-light button").click()
    canvas.wait(
        "([id, name]) => app.graph.getNodeById(id).widgets.find(w => w.name === name).value === 1",
        [UPDATE, "batch_size"],
    )
    page.get_by_text("Changed, so that it fits").first.wait_for()
    canvas.wait("text => !document.querySelector('.otca-light')?.textContent.includes(text)", "Does not fit")
    page.evaluate("() => app.extensionManager.workflow.activeWorkflow.changeTracker.undo()")
    canvas.wait(
        "([id, name]) => app.graph.getNodeById(id).widgets.find(w => w.name === name).value === 0",
        [UPDATE, "batch_size"],
    )
    canvas.wait(SHOWN, "Does not fit")


def test_files_that_are_missing_are_named(template):
    (template.comfyui.base / "models" / "vae" / "ae.safetensors").unlink()
    touch(template, {f"{SAMPLER}.group_size": 3})
    template.wait(
        SHOWN, "Files are missing: see ComfyUI's list. With them it needs about 22 GB of GPU memory; this machine"
    )
    assert not template.page.locator(".otca-light .otca-button").is_visible(), "there is nothing to press"


def test_a_new_sampler_is_set_to_what_its_model_is_made_for_once(canvas):
    """Not one that was loaded, nor a value that the user has changed."""
    values = "({ widgets }) => Object.fromEntries(widgets.map(w => [w.name, w.value]))"
    canvas.page.evaluate(
        """() => {
            const make = (type, x) => {
                const node = LiteGraph.createNode(type);
                node.pos = [x, 100];
                app.graph.add(node);
                return node;
            };
            const [model, sampler] = [make("OTCA_LoadFlowModel", 100), make("OTCA_SDESampler", 600)];
            make("OTCA_PromptDataset", 1100).connect(0, sampler, 1);
            model.widgets.find(w => w.name === "model").value = "shapes-flux";
            sampler.widgets.find(w => w.name === "steps").value = 6;
            model.connect(0, sampler, 0);
            app.canvas.emitBeforeChange();
            app.canvas.emitAfterChange();
        }"""
    )
    sampler = canvas.wait_for_value(
        f"""() => {{
            const found = ({values})(app.graph.nodes.find(node => node.type === "OTCA_SDESampler"));
            return found.width === 40 && found;
        }}"""
    )
    assert [sampler[name] for name in ("width", "height", "steps", "guidance")] == [40, 40, 6, 3.5]
    file = f"() => ({values})(app.graph.nodes.find(node => node.type === 'OTCA_PromptDataset')).file"
    canvas.wait(f"() => ({file})() === 'shapes_train.txt'")
    canvas.page.get_by_text("set to what the model is made for").first.wait_for()


def test_comfyui_lists_the_rewards_file_among_those_to_download(canvas, newest):
    """Its list reads the values of choices alone; a text box was not in it. Older pages have a dialog of their own."""
    if not newest:
        pytest.skip("once, in the newest page")
    page, warning = canvas.page, "Comfy.Workflow.ShowMissingModelsWarning"
    switch = "([name, on]) => app.extensionManager.setting.set(name, on)"
    page.evaluate(switch, [warning, True])
    try:
        page.evaluate(
            "content => app.loadGraphData(content, true, true, 'template', { openSource: 'template' })",
            json.loads(TEMPLATES["z_image"].canvas.read_text(encoding="utf-8")),
        )
        page.get_by_text("View details").first.click()
        for name, folder in (("HPS_v2.1_compressed.pt", "otca_rewards"), ("ae.safetensors", "vae")):
            page.get_by_text(name, exact=True).first.wait_for()
            page.get_by_text(folder, exact=True).first.wait_for()
        assert page.get_by_role("button", name="Download all").count()
    finally:
        page.evaluate(switch, [warning, False])
        if page.locator("[data-testid=properties-panel]").count():  # where the list stands
            page.get_by_role("button", name="Toggle properties panel").click()
        canvas.forget()  # that panel asks ComfyUI's registry about our nodes, which the tests do not let through
