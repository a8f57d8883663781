"""Whose adapter is trained: templates opened one after the other, another name, another session."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from comfyui_otca.tests.comfyui.canvas import Canvas
from comfyui_otca.tests.training import untimed
from comfyui_otca.tools.canvases.templates import TEMPLATES

COMPARED = ["otca", "matching"]
SMALL = {
    "OTCA_PromptDataset": {"prompts_per_iteration": 2},
    "OTCA_SDESampler": {"group_size": 4, "steps": 5},
    "OTCA_TrainingRun": {"evaluation_prompts": "a red circle on a blue background", "evaluation_seeds": 1},
}


def ids(canvas, class_name):
    return canvas.page.evaluate(
        "type => app.graph.nodes.filter(node => node.type === type).map(node => node.id)", class_name
    )


def open_template(canvas, name, run_name):
    canvas.load(TEMPLATES[name].canvas)
    values = {**SMALL, "OTCA_TrainingRun": {**SMALL["OTCA_TrainingRun"], "run_name": run_name}}
    for class_name, inputs in values.items():
        (node,) = ids(canvas, class_name)
        canvas.set({f"{node}.{key}": value for key, value in inputs.items()})


def test_templates_one_after_the_other_each_begin_fresh(canvas, once, tmp_path):
    """R1: they trained on top of each other, since all have the same loader. Equal to a fresh process's to the bit."""
    if canvas.renderer != "classic":
        pytest.skip("the same in both renderers")
    comfyui, asked = canvas.comfyui, []
    for name in COMPARED:
        open_template(canvas, name, f"r1-{name}")
        prompt = canvas.prompt()
        (execution,) = canvas.run_and_wait()
        assert execution.end == "execution_success", execution.detail
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(prompt))
        asked.append(json.dumps([str(file), str(tmp_path / name)]) + "\n")
    fresh = [comfyui.installation.python, Path(__file__).with_name("fresh.py")]
    done = subprocess.run(fresh, input="".join(asked), env=comfyui.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in COMPARED:
        assert untimed(comfyui.run_folder(f"r1-{name}")) == untimed(tmp_path / name), name


# What Training Run says of the run that goes on.
SAYS = "text => document.querySelector('.otca-curves-coming span')?.textContent === text"


def test_new_run_by_one_click(small, run_name):
    """The loader says whose the adapter is; the button on Training Run takes the next free name, and a fresh adapter."""
    small.run_and_wait()
    small.wait(
        "text => document.querySelector('.otca-owner')?.textContent === text", f"Adapter: {run_name}, iteration 1"
    )
    small.press(12, "New run")
    small.wait(
        "name => app.graph.getNodeById(12).widgets.find(widget => widget.name === 'run_name').value === name",
        f"{run_name}-2",
    )
    small.wait(SAYS, f"The next Run begins a new run: {run_name}-2.")
    small.run_and_wait()
    small.wait(SAYS, f"The next Run continues {run_name}-2 (1), at seed {small.widget('3.seed')}.")
    assert [len(small.comfyui.metrics(name)) for name in (run_name, f"{run_name}-2")] == [1, 1]
    small.wait(
        "text => document.querySelector('.otca-owner')?.textContent === text", f"Adapter: {run_name}-2, iteration 1"
    )


def test_a_template_opened_again_shows_nothing_of_the_older_copy(small):
    """R3: its id was fixed, and results were found by it. Only which run its next Run continues, it says."""
    small.run_and_wait()
    small.show(9)
    small.wait(
        "() => !document.querySelector('.otca-heatmap-empty') || document.querySelector('.otca-heatmap-empty').hidden"
    )
    small.load(TEMPLATES["otca"].canvas)
    small.show(9)
    small.wait("() => /^The next Run/.test(document.querySelector('.otca-curves-coming span')?.textContent)")
    small.page.wait_for_timeout(1000)
    assert small.page.locator(".otca-heatmap-empty").first.is_visible()


def open_small(canvas, run_name, model_seed):
    """Template 01 from its file, small. The model's seed is one that no other test's run has."""
    canvas.load(TEMPLATES["quickstart"].canvas)
    canvas.set({**SMALLER, "1.seed": model_seed, "12.run_name": run_name})
    canvas.page.evaluate("() => { app.canvas.emitBeforeChange(); app.canvas.emitAfterChange(); }")


SMALLER = {
    "2.prompts_per_iteration": 2,
    "3.group_size": 4,
    "12.evaluation_prompts": "a red circle",
    "12.evaluation_seeds": 1,
    "12.evaluation_steps": 4,
}


def test_a_template_opened_again_goes_on_where_its_run_stopped(canvas, run_name):
    """It repeated the prompts and the noise of its beginning. A new run begins with the template's own values."""
    model_seed = time.monotonic_ns() % 10**6
    open_small(canvas, run_name, model_seed)
    canvas.run_and_wait(2)
    canvas.wait(SAYS, f"The next Run continues {run_name} (2), at seed 2.")

    open_small(canvas, run_name, model_seed)
    assert [canvas.widget(key) for key in ("3.seed", "2.index")] == [0, 0], "as in the file"
    canvas.wait(SAYS, f"The next Run continues {run_name} (2), at seed 2.")
    assert [canvas.widget(key) for key in ("3.seed", "2.index", "2.seed")] == [2, 2, 0]
    canvas.show(12)
    canvas.run_and_wait()
    canvas.wait(SAYS, f"The next Run continues {run_name} (3), at seed 3.")
    begun = json.loads((canvas.comfyui.run_folder(run_name) / "workflow.json").read_text())
    assert [begun["3"]["inputs"]["seed"], begun["2"]["inputs"]["index"]] == [0, 0], (
        "as one training that was never left"
    )

    open_small(canvas, run_name, model_seed)
    canvas.wait(SAYS, f"The next Run continues {run_name} (3), at seed 3.")
    canvas.set({"3.seed": 1})
    canvas.press(12, "New run")
    canvas.wait(SAYS, f"The next Run begins a new run: {run_name}-2.")
    assert [canvas.widget(key) for key in ("3.seed", "2.index")] == [1, 0], "what a person has set stays"


# Asks the model's own text encoder, and nothing else.
OWN_ENCODER = """() => {
    const find = type => app.graph.nodes.find(node => node.type === type);
    const stack = find("OTCA_RewardStack"), judge = LiteGraph.createNode("OTCA_RewardVLMJudge");
    for (const [slot, input] of stack.inputs.entries()) if (/^reward_/.test(input.name)) stack.disconnectInput(slot);
    app.graph.add(judge);
    find("OTCA_EmbeddedModel").connect(1, judge, judge.inputs.findIndex(input => input.name === "judge"));
    judge.connect(0, stack, stack.inputs.findIndex(input => input.name === "reward_1"));
    app.canvas.emitBeforeChange();
    app.canvas.emitAfterChange();
}"""
ALSO_HELD_OUT = """() => {
    const stack = app.graph.nodes.find(node => node.type === "OTCA_RewardStack");
    const other = LiteGraph.createNode("OTCA_RewardSharpness");
    app.graph.add(other);
    other.widgets.find(widget => widget.name === "held_out").value = true;
    other.connect(0, stack, stack.inputs.findIndex(input => input.name === "reward_2"));
    app.canvas.emitBeforeChange();
    app.canvas.emitAfterChange();
}"""
WARNS = "text => [...document.querySelectorAll('.otca-curves .otca-warning')].some(p => p.textContent.includes(text))"


def test_a_judge_that_reads_as_the_model_does_is_warned_of_before_run(canvas, once):
    said = "Reward: Judge is asked with the text encoder of the model that is trained, and no other reward is held out."
    canvas.load(TEMPLATES["quickstart_comfyui"].canvas)
    canvas.page.evaluate(OWN_ENCODER)
    canvas.wait(WARNS, said)
    canvas.page.evaluate(ALSO_HELD_OUT)
    canvas.wait(f"text => !({WARNS})(text)", said)


# What the page does with nodes. `ids`: of those in question.
TO_SUBGRAPH = "ids => { app.canvas.graph.convertToSubgraph(new Set(ids.map(id => app.graph.getNodeById(id)))); }"
COPIED = """() => {
    app.canvas.selectItems([...app.graph.nodes]);
    app.canvas.copyToClipboard();
    app.graph.clear();
    app.canvas.pasteFromClipboard();
}"""
ASKS = "text => document.querySelector('.otca-curves-question')?.textContent === text"
GOES_ON = "text => document.querySelector('.otca-curves-coming span')?.textContent.startsWith(text)"
OF_RUN = """run => document.querySelector('.otca-scores-run')?.textContent === run
    && document.querySelector('.otca-heatmap-note')?.textContent.startsWith(`${run}.`)"""


def adapters(canvas, name):
    """Files of Save LoRA, and whether each is the run's own as it stands."""
    own = (canvas.comfyui.run_folder(name) / "lora.safetensors").read_bytes()
    tensors = own[8 + int.from_bytes(own[:8], "little") :]  # behind the header, which says who wrote the file
    files = sorted((canvas.comfyui.base / "models" / "loras").glob(f"{name}*"))
    return {file.name: file.read_bytes().endswith(tensors) for file in files}


def _removed_and_undone(canvas):
    canvas.page.evaluate("() => app.canvas.selectItems([12, 13].map(id => app.graph.getNodeById(id)))")
    _press(canvas, "Delete")
    canvas.wait("() => !app.graph.getNodeById(12)")
    _press(canvas, "Control+z")
    canvas.wait("() => app.graph.getNodeById(12)?.inputs[0].link")


CHANGES = {
    "subgraph": lambda canvas: canvas.page.evaluate(TO_SUBGRAPH, [9, 10, 11, 12, 13]),
    "copy": lambda canvas: canvas.page.evaluate(COPIED),
    "undo": _removed_and_undone,
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_run_s_file_goes_on_when_its_nodes_get_other_numbers(small, run_name, change):
    """Another file was written without a word, and the one that the input names stayed at the first iteration."""
    small.run_and_wait()
    CHANGES[change](small)
    [execution] = small.run_and_wait()
    assert execution.end == "execution_success", execution.detail
    assert [row["iteration"] for row in small.comfyui.metrics(run_name)] == [1, 2]
    assert adapters(small, run_name) == {f"{run_name}.safetensors": True}
    assert not small.comfyui.run_folder(f"{run_name}-2").exists()


def test_another_method_is_asked_for_before_run(small, run_name):
    """By Ctrl+B or a mute alone, of which ComfyUI does not tell: the line said that the run goes on, and it began at zero."""
    new = f"{run_name}-2"
    small.run_and_wait()
    small.wait(SAYS, f"The next Run continues {run_name} (1), at seed {small.widget('3.seed')}.")
    small.wait(OF_RUN, run_name)
    _bypass(small, 6)
    small.wait(SAYS, f"{run_name} was trained by another method. The next Run begins a new run: {new}.")
    small.wait(ASKS, f"Continue {run_name} (1)Begin {new} from it")
    small.show(12)
    small.page.get_by_role("button", name=f"Begin {new} from it").click()
    small.wait(SAYS, f"The next Run begins a new run: {new}.")
    [execution] = small.run_and_wait()
    assert execution.end == "execution_success", execution.detail
    small.wait(OF_RUN, new)
    small.wait("text => document.querySelector('.otca-owner')?.textContent === text", f"Adapter: {new}, iteration 1")
    begun = json.loads((small.comfyui.run_folder(new) / "workflow.json").read_text())
    assert begun["1"]["inputs"]["start_from"] == run_name and "reward_3" not in begun["8"]["inputs"]
    _bypass(small, 5)
    small.wait(ASKS, f"Continue {new} (1)Begin {new}-2 from it")
    small.show(12)
    small.page.get_by_role("button", name=f"Continue {new} (1)").click()
    small.wait(GOES_ON, f"The next Run continues {new} (1)")
    [execution] = small.run_and_wait()
    assert execution.end == "execution_success", execution.detail
    small.wait(GOES_ON, f"The next Run continues {new} (2)")
    assert [len(small.comfyui.metrics(name)) for name in (run_name, new)] == [1, 2]


def _bypass(canvas, node, key="Control+b"):
    canvas.page.evaluate("id => app.canvas.selectItems([app.graph.getNodeById(id)])", node)
    _press(canvas, key)


def _press(canvas, key):
    canvas.page.locator("#graph-canvas").focus()
    canvas.page.keyboard.press(key)


def test_a_mute_is_another_method_until_it_is_undone(small, run_name):
    small.run_and_wait()
    small.wait(GOES_ON, f"The next Run continues {run_name} (1)")
    for undo in ("Control+m", "Control+z"):
        _bypass(small, 6, "Control+m")
        small.wait(ASKS, f"Continue {run_name} (1)Begin {run_name}-2 from it")
        _press(small, undo)
        small.wait(GOES_ON, f"The next Run continues {run_name} (1)")


def test_two_pages_go_on_with_one_run(small, run_name):
    """Each iteration once, whichever page asks for it, and both say where the run stands."""
    small.run_and_wait()
    graph = small.page.evaluate("() => app.graph.serialize()")
    other = Canvas(
        small.page.context.browser.new_page(viewport=small.page.viewport_size), small.comfyui, small.renderer
    )
    try:
        other.page.evaluate("graph => app.loadGraphData(graph)", graph)
        other.wait(GOES_ON, f"The next Run continues {run_name} (1)")
        other.run_and_wait()
        small.wait(GOES_ON, f"The next Run continues {run_name} (2)")
        [execution] = small.run_and_wait()
        assert execution.end == "execution_success", execution.detail
        assert [row["iteration"] for row in small.comfyui.metrics(run_name)] == [1, 2, 3]
    finally:
        other.page.close()


def test_hold_samples_after_a_cancelled_queue_holds_those_that_were_drawn(small, run_name):
    """It held those of the last prompt that was queued, which were never drawn: all was sampled again."""
    small.run_and_wait()
    small.page.route("**/prompt", _take_and_cancel)
    small.run(4)
    small.page.unroute("**/prompt")
    assert small.widget("3.seed") == 5
    small.show(9)
    small.page.get_by_role("button", name="hold samples").click()
    assert small.widget("3.seed") == 0
    small.set({"9.w_min": 0.1})
    [execution] = small.run_and_wait()
    assert not execution.ran & {"2", "3", "8"}, execution


def _take_and_cancel(route):
    """Answers as the server does for a prompt that it takes into its queue, from which it is then cleared."""
    taken = {"prompt_id": "cleared", "number": 1, "node_errors": {}}
    route.fulfill(json=taken) if route.request.method == "POST" else route.continue_()
