"""Implicit Reward Guidance on the canvas: pictures, progress, caching, and the model that others go on training."""

from __future__ import annotations

import pytest
import torch

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.trainer import rollout
from comfyui_otca.trainer.policy import lora
from comfyui_otca.trainer.workflow.running import NodeError, Workflow, WorkflowError

PROMPTS = "a red circle\na blue square"


@pytest.fixture(scope="session")
def load_model(load_toy):
    return load_toy


@pytest.fixture
def adapter(load_model, perturb, tmp_path):
    return lora.save(perturb(load_model(lora_rank=3), scale=0.3), tmp_path / "loud.safetensors", {})[0]


@pytest.fixture
def workflow(adapter):
    """workflow(guides=…): Load Flow Model and this node, which is "2"."""

    def make(**changes):
        inputs = {
            "model": ["1", 0],
            "guides": f"{adapter} = 1.5",
            "prompts": PROMPTS,
            "guidance": 3.5,
            "seed": 3,
            "steps": 3,
            "width": 40,
            "height": 40,
            "pictures": 2,
            **changes,
        }
        loader = {"model": "shapes-flux", "lora_rank": 4, "lora_alpha": 4.0, "seed": 0, "dtype": "auto"}
        graph = {
            "1": {"class_type": "OTCA_LoadFlowModel", "inputs": loader},
            "2": {"class_type": "OTCA_ImplicitRewardGuidance", "inputs": inputs},
        }
        return Workflow(graph, NODE_CLASS_MAPPINGS)

    return make


def ran(workflow):
    seen = []
    [images] = workflow.run(targets=["2"], on_node=lambda node, cached: cached or seen.append(node))["2"]
    return images, seen


def test_pictures_of_every_prompt_and_seed(workflow, comfyui, adapter, load_model, small_settings):
    with torch.inference_mode():
        images, _ = ran(workflow(guides=f"# the tuned model\n{adapter} = 1", batch_size=3))
    tuned = load_model()
    lora.put_on(tuned, adapter)
    texts = ["a red circle", "a red circle", "a blue square", "a blue square"]
    expected = rollout.generate(tuned, texts, small_settings(steps=3, batch_size=3), [3, 4, 3, 4])
    assert torch.equal(images, expected)
    assert [(bar.value, bar.total) for bar in comfyui.bars] == [(6, 6)], (
        "three steps of two batches, the base is not asked"
    )


def test_it_runs_again_when_something_changed(workflow, adapter, load_model, perturb):
    own = workflow()
    first, seen = ran(own)
    assert seen == ["1", "2"] and ran(own)[1] == []
    lora.save(perturb(load_model(lora_rank=3), seed=8, scale=0.3), adapter, {})
    second, seen = ran(own)
    assert seen == ["2"] and not torch.equal(first, second), "an adapter that was trained on is read again"
    own.set("2.guides", f"{adapter} = 0")
    assert ran(own)[1] == ["2"]


def test_the_model_can_be_trained_afterwards(small_graph, adapter, tmp_path, monkeypatch):
    """Under ComfyUI's inference mode, on the model that GRPO Step updates."""
    monkeypatch.chdir(tmp_path)
    graph = small_graph()
    loader = next(node for node, entry in graph.items() if entry["class_type"] == "OTCA_LoadFlowModel")
    inputs = {
        "model": [loader, 0],
        "guides": f"{adapter} = 2",
        "prompts": PROMPTS,
        "guidance": 3.5,
        "seed": 0,
        "steps": 2,
        "width": 40,
        "height": 40,
        "pictures": 1,
    }
    graph["90"] = {"class_type": "OTCA_ImplicitRewardGuidance", "inputs": inputs}
    guided, plain = Workflow(graph, NODE_CLASS_MAPPINGS), Workflow(small_graph(), NODE_CLASS_MAPPINGS)
    states = []
    for workflow in (guided, plain):
        with torch.inference_mode():
            if workflow is guided:
                workflow.run(targets=["90"])
            step = workflow.find("GRPOStep")
            states.append(workflow.run(targets=step)[step[0]][0].policy.trained_state())
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"guides": "runs/color"}, "guide 'runs/color' is not RUN=γ"),
        ({"guides": ""}, "no guide is named"),
        ({"guides": "nowhere = 1"}, "adapter 'nowhere' was not found"),
        ({"prompts": "\n"}, "no prompts"),
    ],
)
def test_bad_input_is_named(workflow, changes, told):
    with pytest.raises(WorkflowError) as caught:
        ran(workflow(**changes))
    [problem] = caught.value.problems
    assert (problem.node_id, problem.input) == ("2", next(iter(changes))) and told in problem.message and problem.fix


def test_a_step_that_is_never_reached(workflow, adapter):
    with pytest.raises(NodeError, match="step 3 does not exist, they are 0 … 2. Fix: "):
        ran(workflow(guides=f"{adapter} = 0:1, 3:0"))
