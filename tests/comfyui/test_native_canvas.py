"""Training what ComfyUI's own nodes have loaded, on the canvas: pictures before and after, the LoRA in the stock loader, and
the same graph without ComfyUI's server."""

import io
import subprocess
import time
import urllib.parse
import urllib.request

import pytest
from PIL import Image

from comfyui_otca.tests.comfyui.canvas import RUN_SECONDS
from comfyui_otca.tests.comfyui.server import PACK, ROOT
from comfyui_otca.tests.training import untimed
from comfyui_otca.tools.canvases.templates import TEMPLATES

LOADER, TRAINABLE, BEFORE, BEFORE_SAMPLER, AFTER = 14, 1, "22", 20, "25"
ITERATIONS = 2
SMALL = {
    "2.prompts_per_iteration": 2,
    "3.group_size": 4,
    "3.steps": 4,
    "11.learning_rate": 3e-3,  # to be seen after one iteration
    "12.iterations": ITERATIONS,
    "12.evaluation_prompts": "a red circle on a blue background\na green square on a black background",
    "12.evaluation_seeds": 1,
    "20.steps": 4,
    "23.steps": 4,
}
HOLD = {"2.index control_after_generate": "fixed", "3.seed control_after_generate": "fixed"}


@pytest.fixture
def native(canvas, run_name):
    """ComfyUI's own nodes around a small training, with a run and an adapter of its own."""
    if canvas.renderer != "classic":
        pytest.skip("what is computed does not depend on how nodes are drawn")
    canvas.load(TEMPLATES["quickstart_comfyui"].canvas)
    seed = time.monotonic_ns() % 10**6  # ComfyUI's cache may still hold the last test's model
    canvas.set({**SMALL, "1.seed": seed, "12.run_name": run_name, "13.filename": run_name})
    return canvas


def iterate(canvas, times=1):
    """Runs the graph, and returns the pictures before and after of each run: their pixels."""
    first = len(canvas.events())
    for execution in canvas.run_and_wait(times):
        assert execution.end == "execution_success", execution.detail.get("exception_message")
    shown = {BEFORE: [], AFTER: []}
    for type_, detail in canvas.events()[first:]:
        if type_ == "executed" and detail["node"] in shown:
            shown[detail["node"]].append([picture(canvas.comfyui, file) for file in detail["output"]["images"]])
    return shown


def picture(comfyui, file):
    query = urllib.parse.urlencode(file)
    with urllib.request.urlopen(f"{comfyui.url}/view?{query}", timeout=30) as answer:
        return Image.open(io.BytesIO(answer.read())).tobytes()  # the file carries the graph, too


def test_training_shows_before_and_after(native, newest, run_name):
    times = 5 if newest else 2
    pictures = iterate(native, times)
    assert [row["iteration"] for row in native.comfyui.metrics(run_name)] == [*range(1, times + 1)]
    before, after = pictures[BEFORE][0], pictures[AFTER]
    assert len(before) == 4 and len(after) == times
    assert all(later != earlier for earlier, later in zip([before, *after], after, strict=False)), "no update is seen"
    native.wait(
        "text => document.querySelector('.otca-owner')?.textContent === text", f"Adapter: {run_name}, iteration {times}"
    )
    native.press(TRAINABLE, "Release memory")
    native.page.get_by_text("Nothing to release").first.wait_for()

    native.set({**HOLD, f"{BEFORE_SAMPLER}.seed": 8})
    (other,) = iterate(native)[BEFORE]
    native.set({f"{BEFORE_SAMPLER}.seed": 7})
    held = iterate(native)
    assert other != before and held[BEFORE] == [before], "training left something on the MODEL that it was given"
    recorded = len(native.comfyui.metrics(run_name))
    assert recorded == times + 1, "the prompts and noise that are held are trained on once"
    check_saved_lora(native, run_name, held[AFTER])


def check_saved_lora(native, run_name, tuned):
    """In ComfyUI's own loader, in front of the KSampler that shows the untouched model, it makes the pictures of Tuned Model."""
    names = native.page.evaluate(
        """async ([loader, sampler]) => {
            await app.refreshComboInNodes();
            const lora = LiteGraph.createNode("LoraLoaderModelOnly");
            app.graph.add(lora);
            app.graph.getNodeById(loader).connect(0, lora, 0);
            lora.connect(0, app.graph.getNodeById(sampler), 0);
            otcaTest.lora = lora.id;
            return lora.widgets[0].options.values;
        }""",
        [LOADER, BEFORE_SAMPLER],
    )
    assert f"{run_name}.safetensors" in names
    native.set({f"{native.page.evaluate('otcaTest.lora')}.lora_name": f"{run_name}.safetensors"})
    assert iterate(native)[BEFORE] == tuned


def test_the_export_trains_without_the_server_to_the_same_bits(once, native, run_name, tmp_path):
    with native.page.expect_download() as download:
        native.page.evaluate("() => app.extensionManager.command.execute('OTCA.ExportHeadless')")
    exported = tmp_path / download.value.suggested_filename
    download.value.save_as(exported)
    commands = native.page.locator("dialog.otca-dialog[open]").inner_text()
    assert f"validate {exported.name} --comfyui ComfyUI" in commands and "OTCA_EmbeddedModel" in commands, commands
    native.page.keyboard.press("Escape")

    comfyui, run = native.comfyui, tmp_path / "run"
    command = [
        comfyui.installation.python,
        ROOT,
        "train",
        exported,
        "--output",
        run,
        "--comfyui",
        comfyui.installation.folder,
        "--device",
        "cpu",
    ]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, env=comfyui.environment(), stdout=log, stderr=log, cwd=tmp_path)
    try:
        iterate(native, ITERATIONS)
        assert process.wait(RUN_SECONDS) == 0, (tmp_path / "log").read_text()
    finally:
        process.kill()
    assert untimed(comfyui.run_folder(run_name)) == untimed(run)


def test_a_template_of_a_newer_model_says_what_is_missing(canvas):
    """ComfyUI 0.3.64 does not know FLUX.2's nodes: the page complained of refused requests, which the fixture would see."""
    canvas.load(TEMPLATES["flux2_klein"].canvas)
    unknown = canvas.page.evaluate(
        "() => app.graph.nodes.filter(node => !LiteGraph.registered_node_types[node.type]).map(node => node.type)"
    )
    wants = canvas.page.evaluate(
        """async pack => {
            const comfy = await import(`/extensions/${pack}/comfy.js`);
            const { output } = await comfy.exportedGraph();
            await comfy.workflowsWants();
            await comfy.lastResults();
            return Object.values(output).map(entry => entry.class_type);
        }""",
        PACK,
    )
    assert set(unknown) - {"MarkdownNote"} <= set(wants)
