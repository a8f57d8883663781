"""The iteration that the docs show: facts that can be checked by hand, and the same numbers as the graph's."""

from __future__ import annotations

import pytest
import torch

from comfyui_otca.docs.one_iteration import one_iteration
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.trainer.workflow.running import Workflow


@pytest.fixture(scope="module")
def shown():
    return one_iteration()


def test_it_is_on_policy_and_every_sample_has_all_its_credit(shown):
    trajectories, advantages, metrics = shown
    assert trajectories.trained == (0, 1, 2) and advantages.step_advantage.shape == (6, 3)
    torch.testing.assert_close(advantages.credit.weights.mean(1), torch.ones(6))
    assert (advantages.credit.weights >= 0.5).all()
    z, weights = advantages.fused.advantage, advantages.credit.weights
    torch.testing.assert_close(advantages.step_advantage, weights * z[:, None], rtol=0, atol=0)
    # On-policy every ratio is 1, so that the loss is -mean Ã and nothing is clipped.
    assert metrics["ratio/mean"] == 1.0 and metrics["clip/high"] == metrics["clip/low"] == 0.0
    assert metrics["loss"] == pytest.approx(-advantages.step_advantage.mean().item(), abs=1e-6)


def test_the_adapter_has_moved(shown):
    trajectories, _, metrics = shown
    model = trajectories.model
    assert metrics["gradient_norm"] > 0 and metrics["kl/reference"] > 0 and model.policy.version == 1
    # LoRA's B begins at zero, and AdamW's first step is the learning rate wherever there is a gradient.
    moved = [value.abs().max() for name, value in model.policy.trainable_named().items() if "lora_B" in name]
    assert moved and max(moved).item() == pytest.approx(1e-3, rel=1e-2)


def test_the_graph_computes_the_same(shown, small_graph, real_model):
    trajectories, advantages, metrics = shown
    changes = {
        "OTCA_PromptDataset": {"file": "", "prompts": "a red circle\na blue square", "shuffle": False},
        "OTCA_SDESampler": {"keep_graph": "off", "seed": 7},
        "OTCA_GRPOStep": {"ema_decay": 0.0},
    }
    graph = small_graph(changes)
    node = {entry["class_type"]: node_id for node_id, entry in graph.items()}
    stack = graph[node["OTCA_RewardStack"]]["inputs"]
    del stack["reward_3"], stack["reward_4"]
    step = node["OTCA_GRPOStep"]
    model, report = Workflow(graph, NODE_CLASS_MAPPINGS).run(targets=[step])[step]
    assert torch.equal(report.trajectories.latents, trajectories.latents)
    assert torch.equal(report.advantages.step_advantage, advantages.step_advantage)
    assert {name: value for name, value in report.metrics.items() if name in metrics and "seconds" not in name} == {
        name: value for name, value in metrics.items() if "seconds" not in name
    }
    trained = trajectories.model.policy.trained_state()
    assert all(torch.equal(value, trained[name]) for name, value in model.policy.trained_state().items())
