"""What a user does on the canvas, in every ComfyUI that is there and in both of its renderers."""

import base64
import json
import re

import pytest

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.comfyui.canvas import CELLS
from comfyui_otca.tests.comfyui.server import PACK
from comfyui_otca.tools.canvases.templates import TEMPLATES
from comfyui_otca.trainer.types import REPLACED

EXAMPLES = list(TEMPLATES)
ALL_NODES = {str(number) for number in range(1, 15)}  # 15 is the note
CREDIT_AND_BELOW = {"9", "10", "11", "12", "13"}

# What changes from one queued iteration to the next.
MOVES = {
    "OTCA_PromptDataset": "index",
    "OTCA_SDESampler": "seed",
    "OTCA_StepCredit": "seed",
    "OTCA_MixGRPOWindow": "iteration",
    "OTCA_MyPictures": "index",
}
HOLD = {"2.index control_after_generate": "fixed", "3.seed control_after_generate": "fixed"}

# Those of our templates' names that the dialog shows, once it shows some.
OUR_TEMPLATES = """ours => {
    const heads = [...document.querySelectorAll("[role=dialog] h3")].map(head => head.textContent.trim());
    const shown = heads.filter(name => ours.includes(name));
    return shown.length > 1 && shown;
}"""


# The names that the user of this project gave, and plain words for the same.
NAMES = {
    "Load Flow Model": "load model",
    "SDE Sampler": "sample groups",
    "Reward Stack": "score samples",
    "TCD Weights": "step credit",
    "MOCA Fuse": "combine rewards",
    "GRPO Step": "update: grpo",
}


def with_numbers(name: str) -> list:
    """Sorts 5b before 14b."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def test_the_search_shows_a_node_first_by_its_title_and_finds_it_by_plain_words(canvas):
    """Among ours: the rank beside nodes of ComfyUI is ComfyUI's."""
    canvas.page.evaluate("() => app.extensionManager.command.execute('Workspace.SearchBox.Toggle')")
    search, options = canvas.page.get_by_role("combobox").first, canvas.page.locator("[role=option]:visible")
    titles = sorted((node.TITLE for node in NODE_CLASS_MAPPINGS.values()), key=len, reverse=True)
    aliases = canvas.comfyui.object_info["OTCA_SDESampler"].get("search_aliases")  # an older ComfyUI has none
    plain = NAMES.items() if aliases else ()
    for title, typed in [*zip(NAMES, NAMES, strict=True), *plain]:
        search.fill(typed)
        options.filter(has_text=re.compile(rf"^\W*{title}")).first.wait_for()
        ours = [name for text in options.all_inner_texts() for name in titles if text.strip().startswith(name)]
        assert ours[0] == title or (typed != title and title in ours), (typed, ours)
    canvas.page.keyboard.press("Escape")


# What front ends wrote of a reward while it had `rescale`: before 1.49 no names but those of the slots.
OLD = {"coefficient": 0.5, "held_out": True, "name": "mine", "rescale": 10, "clip": "0, 1"}


@pytest.mark.parametrize("by_name", [True, False])
def test_a_canvas_that_was_saved_with_an_input_that_is_no_more_keeps_its_other_values(canvas, tmp_path, by_name):
    content = json.loads(TEMPLATES["otca"].canvas.read_text(encoding="utf-8"))
    node = next(node for node in content["nodes"] if node["type"] == "OTCA_RewardSharpness")
    node["inputs"] = [{"name": name, "type": "*", "widget": {"name": name}, "link": None} for name in OLD]
    node |= {"widgets_values": list(OLD.values()), "widgets_values_named": OLD}
    if not by_name:
        del node["widgets_values_named"]
    (old := tmp_path / "old.json").write_text(json.dumps(content), encoding="utf-8")
    canvas.load(old)
    read = "id => Object.fromEntries(app.graph.getNodeById(id).widgets.map(({ name, value }) => [name, value]))"
    values = canvas.page.evaluate(read, node["id"])
    assert {name: values.get(name) for name in OLD} == OLD | {"rescale": None}


# A credit node of before, as a page wrote it: its sockets, and its values in their order.
BEFORE = {
    "OTCA_LearnedCredit": (
        ["trajectories", "scores", "model"],
        {"measure_every": 3, "groups": 1, "decay": 0.8, "w_min": 0.25},
    ),
    "OTCA_UniformWeights": (["trajectories"], {"timestep_fraction": 0.6, "seed": 7}),
    "OTCA_GRPOGuard": (["trajectories"], {}),
}
ORIGINS = {"trajectories": 3, "scores": 8, "model": 1}  # whose first output it is


@pytest.mark.parametrize("old", BEFORE)
def test_a_canvas_with_a_node_of_before_opens_and_is_queued_as_what_it_is_now(canvas, tmp_path, old):
    sockets, values = BEFORE[old]
    content = json.loads(TEMPLATES["otca"].canvas.read_text(encoding="utf-8"))
    (node,) = (node for node in content["nodes"] if node["type"] == "OTCA_TCDWeights")
    links = dict(zip(ORIGINS, (24, 901, 902), strict=True))
    for slot, name in enumerate(sockets[1:], 1):
        content["links"].append([links[name], ORIGINS[name], 0, node["id"], slot, f"OTCA_{name.upper()}"])
        next(other for other in content["nodes"] if other["id"] == ORIGINS[name])["outputs"][0]["links"].append(
            links[name]
        )
    node.pop("widgets_values_named", None)
    node |= {"type": old, "properties": {"Node name for S&R": old}, "widgets_values": [*values.values()]}
    node["inputs"] = [{"name": name, "type": f"OTCA_{name.upper()}", "link": links[name]} for name in sockets]
    (file := tmp_path / "old.json").write_text(json.dumps(content), encoding="utf-8")
    canvas.load(file)
    entry = canvas.prompt()["9"]
    sources = {name: [str(origin), 0] for name, origin in ORIGINS.items() if name in sockets}
    assert (entry["class_type"], entry["inputs"]["method"]) == ("OTCA_StepCredit", REPLACED[old][1]["method"])
    assert {name: entry["inputs"].get(name) for name in REPLACED[old][2]} == {**values, **sources}


def test_a_canvas_with_preference_pairs_opens_and_is_queued_as_my_pictures(canvas, tmp_path):
    """As a page wrote it, without the names of its values."""
    content = json.loads(TEMPLATES["preference_pairs"].canvas.read_text(encoding="utf-8"))
    (node,) = (node for node in content["nodes"] if node["type"] == "OTCA_MyPictures")
    node.pop("widgets_values_named")
    node |= {"type": "OTCA_PreferencePairs", "inputs": [slot for slot in node["inputs"] if "widget" not in slot]}
    node["widgets_values"] = ["shapes_pairs", 3, 2, "fixed", False, 5, 48, 40, 6, 0.5, 3, "fog", 1, 2]
    (file := tmp_path / "old.json").write_text(json.dumps(content), encoding="utf-8")
    canvas.load(file)
    values = dict(
        zip(
            REPLACED["OTCA_PreferencePairs"][2][1:],
            ["shapes_pairs", 3, 2, False, 5, 48, 40, 6, 0.5, 3, "fog", 1, 2],
            strict=True,
        )
    )
    values |= {
        "learn_from": "pairs",
        "tag": "",
        "held_out": 0,
        "model": ["1", 0],
        "reward_1": ["3", 0],
        "reward_2": ["4", 0],
    }
    assert canvas.prompt()["2"].items() >= {"class_type": "OTCA_MyPictures", "inputs": values}.items()


def test_quickstart_opens_from_the_templates_browser(canvas):
    page, quickstart = canvas.page, TEMPLATES["quickstart"]
    page.locator(".templates-tab-button").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text(PACK, exact=True).click()
    names = [template.title for template in TEMPLATES.values()]
    shown = canvas.wait_for_value(OUR_TEMPLATES, names)
    assert shown == sorted(names, key=with_numbers)[: len(shown)], "by name, not as they lie on the disk"
    dialog.get_by_placeholder(re.compile("^Search")).fill(quickstart.title)  # only the first dozen are shown at once
    dialog.locator("h3", has_text=shown[-1]).wait_for(state="hidden")  # cards move until it has searched
    card = dialog.locator("h3", has_text=re.compile(rf"^\s*{re.escape(quickstart.title)}\s*$")).first
    card.wait_for()
    canvas.wait(  # its picture as it lies beside the workflow
        """() => [...document.querySelectorAll("[role=dialog] img")].filter(
            img => img.naturalWidth === 1024 && img.naturalHeight === 576).length >= 1"""
    )
    card.click()
    canvas.wait("() => app.graph.nodes.some(node => node.type === 'OTCA_TrainingRun')")
    nodes = {node["id"]: node["type"] for node in json.loads(quickstart.canvas.read_text())["nodes"]}
    opened = page.evaluate("() => app.graph.nodes.map(node => [Number(node.id), node.type, !!node.has_errors])")
    assert {id_: type_ for id_, type_, _ in opened} == nodes
    assert [type_ for _, type_, errors in opened if errors] == []
    unknown = page.evaluate(
        "() => app.graph.nodes.filter(n => !LiteGraph.registered_node_types[n.type]).map(n => n.type)"
    )
    assert unknown == []
    assert page.get_by_role("dialog").count() == 0, page.get_by_role("dialog").first.inner_text()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_canvas_file_and_the_exported_file_are_one_graph(canvas, name):
    if canvas.renderer == "nodes2":
        pytest.skip("what a renderer draws is not what is queued: once for each ComfyUI is enough")
    exported = json.loads(TEMPLATES[name].api.read_text(encoding="utf-8"))
    defaults = canvas.comfyui.object_info
    if missing := {content["class_type"] for content in exported.values()} - defaults.keys():
        pytest.skip(f"this ComfyUI is older than the model, and has no {', '.join(sorted(missing))}")
    canvas.load(TEMPLATES[name].canvas)
    queued = flat(canvas.prompt())
    (preview,) = queued.keys() - exported.keys()
    assert queued.pop(preview)["class_type"] == "PreviewImage"
    assert exported.keys() == queued.keys()
    for node, content in exported.items():
        assert queued[node]["class_type"] == content["class_type"]
        assert queued[node]["_meta"] == content["_meta"]
        declared = defaults[content["class_type"]]["input"].get("optional", {})
        for key, value in queued[node]["inputs"].items():
            expected = content["inputs"][key] if key in content["inputs"] else default_of(declared, key)
            assert value == expected, f"{node}.{key}"
    advancing = canvas.page.evaluate(
        """() => app.graph.nodes.flatMap(node => (node.widgets ?? []).flatMap(widget => (widget.linkedWidgets ?? [])
            .filter(linked => linked.value === "increment").map(() => `${node.id}.${widget.name}`)))"""
    )
    moves = {node: MOVES[content["class_type"]] for node, content in exported.items() if content["class_type"] in MOVES}
    assert set(advancing) == {f"{node}.{widget}" for node, widget in moves.items()}


def flat(prompt: dict) -> dict:
    """A prompt with the numbers that nodes of a subgraph have inside of it."""
    return {
        id.rsplit(":")[-1]: {
            **node,
            "inputs": {
                key: [value[0].rsplit(":")[-1], value[1]] if isinstance(value, list) else value
                for key, value in node["inputs"].items()
            },
        }
        for id, node in prompt.items()
    }


def test_the_button_shows_and_hides_advanced_inputs(canvas):
    canvas.load(TEMPLATES["otca"].canvas)
    assert {"group_size", "steps"} <= inputs_seen(canvas, 3)
    assert not {"eta", "batch_size"} & inputs_seen(canvas, 3)
    canvas.press(3, "Show advanced inputs")
    assert {"group_size", "eta", "batch_size"} <= inputs_seen(canvas, 3)


def test_a_linked_input_keeps_its_link_when_a_socket_for_another_reward_appears(canvas):
    canvas.load(TEMPLATES["otca"].canvas)
    switch, reward = canvas.page.evaluate(
        """() => {
            const stack = app.graph.getNodeById(8);
            return [["PrimitiveBoolean", "overlap"], ["OTCA_RewardSharpness", "reward_5"]].map(([type, input]) => {
                const node = LiteGraph.createNode(type);
                app.graph.add(node);
                node.connect(0, stack, stack.inputs.findIndex(each => each.name === input));
                return String(node.id);
            });
        }"""
    )
    canvas.wait("() => app.graph.getNodeById(8).inputs.some(input => input.name === 'reward_6')")
    inputs = canvas.prompt()["8"]["inputs"]
    assert inputs["overlap"] == [switch, 0]
    assert inputs["reward_5"] == [reward, 0]
    assert "reward_6" not in inputs


def inputs_seen(canvas, node: int) -> set[str]:
    """The names of a node's inputs as they are drawn: on the canvas, or as elements of the page."""
    canvas.show(node)
    canvas.page.wait_for_timeout(300)  # a frame may still be drawn
    names = canvas.page.evaluate(
        """([id, elements]) => {
            const node = app.graph.getNodeById(id), box = document.querySelector(`[data-node-id="${id}"]`);
            const texts = elements && box.innerText.split("\\n").map(line => line.trim());
            const seen = widget => elements ? texts.includes(widget.label ?? widget.name) : node.isWidgetVisible(widget);
            return node.widgets.filter(seen).map(widget => widget.name);
        }""",
        [node, canvas.renderer == "nodes2"],
    )
    return set(names)


def default_of(declared: dict, name: str):
    type_, *options = declared[name]
    return options[0]["default"]


def test_changing_the_credit_runs_only_the_credit_and_below(small, run_name):
    small.set(HOLD)
    (first,) = small.run_and_wait()
    assert first.end == "execution_success", first.detail
    assert first.ran >= {"1", "3", "8", *CREDIT_AND_BELOW}

    small.set({"9.w_min": 0.2})
    (second,) = small.run_and_wait()
    assert second.end == "execution_success", second.detail
    assert second.ran == CREDIT_AND_BELOW
    assert second.cached == ALL_NODES - CREDIT_AND_BELOW

    small.set({"10.recenter": "group"})
    (third,) = small.run_and_wait()
    assert third.ran == CREDIT_AND_BELOW - {"9"}
    assert [row["iteration"] for row in small.comfyui.metrics(run_name)] == [1, 2, 3]


def test_held_samples_are_not_sampled_again(small):
    executions = small.run_and_wait(times=2)
    assert [execution.end for execution in executions] == ["execution_success"] * 2
    small.page.evaluate(
        "() => app.loadGraphData(app.graph.serialize())"
    )  # as a change of tabs, which makes widgets anew
    small.show(9)
    hold = small.page.get_by_role("button", name="hold samples")
    assert hold.get_attribute("aria-pressed") == "false"
    hold.click()
    assert hold.get_attribute("aria-pressed") == "true"
    assert small.widget("2.index") == small.widget("3.seed") == 1, "stepped back to what was sampled last"
    (same,) = small.run_and_wait()
    assert same.ran == set()
    small.set({"9.w_min": 0.2})
    (held,) = small.run_and_wait()
    assert held.ran == CREDIT_AND_BELOW

    held_workflow = small.page.evaluate("() => app.graph.serialize()")
    hold.click()
    assert hold.get_attribute("aria-pressed") == "false"
    (released,) = small.run_and_wait()
    assert released.ran >= {"2", "3", "8", *CREDIT_AND_BELOW}
    assert small.widget("2.index") == small.widget("3.seed") == 3

    small.page.evaluate("workflow => app.loadGraphData(workflow)", held_workflow)
    small.show(9)
    small.wait("() => document.querySelector('.otca-heatmap [aria-pressed=true][title^=Keep]')")


def test_the_run_button_trains_and_the_stop_button_loses_nothing(small, run_name):
    with small.executions(1) as first:
        small.press_run()
    assert first[0].end == "execution_success"

    small.set({"3.group_size": 16, "3.steps": 10, "3.keep_graph": "off", "11.batch_size": 1})
    seen = len(small.events())
    with small.executions(1) as stopped:
        small.press_run()
        small.wait(
            """seen => otcaTest.events.slice(seen).some(
                ([type, data]) => type === "progress" && data.node === "11" && data.value > 2)""",
            seen,
            seconds=90,
        )
        small.press_stop()
    assert stopped[0].end == "execution_interrupted" and stopped[0].detail["node_id"] == "11"
    steps = [data for type_, data in small.events()[seen:] if type_ == "progress" and data["node"] == "11"]
    assert steps[-1]["value"] < steps[-1]["max"] / 2, "the update went on after Stop"
    assert [row["iteration"] for row in small.comfyui.metrics(run_name)] == [1]

    small.set({"3.group_size": 4, "3.steps": 4, "3.keep_graph": "auto", "11.batch_size": 0})
    with small.executions(1) as again:
        small.press_run()
    assert again[0].end == "execution_success", again[0].detail
    assert [row["iteration"] for row in small.comfyui.metrics(run_name)] == [1, 2]


def test_stop_ends_within_a_micro_step_and_an_ordinary_prompt_runs_afterwards(small):
    small.set({"3.group_size": 64, "3.steps": 100, "3.batch_size": 8, "2.prompts_per_iteration": 4})
    with small.executions(1) as ran:
        small.run()
        small.wait(
            "() => otcaTest.events.some(([type, data]) => type === 'progress' && data.node === '3' && data.value > 2)"
        )
        small.page.evaluate("() => comfyAPI.api.api.interrupt()")
    assert ran[0].end == "execution_interrupted"
    steps = [data for type_, data in small.events() if type_ == "progress" and data["node"] == "3"]
    assert steps[-1]["value"] < steps[-1]["max"] / 4, "sampling went on after Stop"
    small.wait(  # the server says that the prompt is interrupted just before it takes it from the queue
        """async () => {
            const queue = await (await fetch("/queue")).json();
            return queue.queue_running.length + queue.queue_pending.length === 0;
        }"""
    )

    small.page.evaluate(
        """() => {
            app.graph.clear();
            const image = LiteGraph.createNode("EmptyImage"), preview = LiteGraph.createNode("PreviewImage");
            app.graph.add(image);
            app.graph.add(preview);
            image.connect(0, preview, 0);
        }"""
    )
    (ordinary,) = small.run_and_wait()
    assert ordinary.end == "execution_success"
    assert len(ordinary.ran) == 2


def test_released_memory_is_taken_again(small):
    small.run_and_wait()
    small.press(1, "Release memory")
    small.page.get_by_text("Nothing to release").first.wait_for()
    small.comfyui.post("/free", {"unload_models": True, "free_memory": True})
    (execution,) = small.run_and_wait()
    assert execution.end == "execution_success", execution.detail


def test_the_heatmap_inside_a_subgraph(small):
    inner, fuse = small.page.evaluate(
        """() => {
            const { subgraph } = app.canvas.graph.convertToSubgraph(new Set([9, 10].map(id => app.graph.getNodeById(id))));
            const nodeOf = type => subgraph.nodes.find(node => node.type === type);
            const outer = app.graph.nodes.find(node => node.isSubgraphNode?.());
            return ["OTCA_TCDWeights", "OTCA_MOCAFuse"].map(type => `${outer.id}:${nodeOf(type).id}`);
        }"""
    )
    (execution,) = small.run_and_wait()
    assert execution.end == "execution_success", execution.detail
    assert {inner, fuse, "11", "12"} <= execution.ran
    small.page.evaluate(
        """id => {
            const [outer, inner] = id.split(":");
            app.canvas.setGraph(app.graph.getNodeById(outer).subgraph);
            app.canvas.ds.scale = 1;
            app.canvas.centerOnNode(app.canvas.graph.getNodeById(inner));
        }""",
        inner,
    )
    heatmap = small.page.locator(".otca-heatmap canvas")
    heatmap.wait_for()
    assert heatmap.evaluate(CELLS)["orange"] > 2
    small.page.evaluate("() => app.canvas.setGraph(app.rootGraph ?? app.graph)")


@pytest.mark.parametrize("open_canvas", ["classic"], indirect=True)
def test_a_saved_lora_dropped_on_the_canvas_opens_its_workflow(small, run_name):
    (execution,) = small.run_and_wait()
    assert execution.end == "execution_success", execution.detail
    saved_lora = small.comfyui.base / "models" / "loras" / f"{run_name}.safetensors"
    queued = small.prompt()
    small.page.evaluate("() => app.graph.clear()")
    small.page.evaluate(
        """([name, content]) => {
            const bytes = Uint8Array.from(atob(content), letter => letter.charCodeAt(0));
            const dataTransfer = new DataTransfer();
            dataTransfer.items.add(new File([bytes], name));
            const at = { bubbles: true, cancelable: true, clientX: 800, clientY: 450, dataTransfer };
            document.querySelector("#graph-canvas").dispatchEvent(new DragEvent("drop", at));
        }""",
        [saved_lora.name, base64.b64encode(saved_lora.read_bytes()).decode()],
    )
    small.wait("() => app.graph.nodes.some(node => node.type === 'OTCA_SaveLoRA')")
    opened = small.prompt()
    assert {key: node["class_type"] for key, node in opened.items()} == {k: n["class_type"] for k, n in queued.items()}
    assert opened["13"]["inputs"] == queued["13"]["inputs"] and opened["3"]["inputs"]["group_size"] == 4
