"""Credit by measured gradient noise: against gradients of single steps, exactness, windows, resume and what refuses it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from comfyui_otca.tests import training
from comfyui_otca.trainer import matching
from comfyui_otca.trainer.credit.exact import step_gradients
from comfyui_otca.trainer.credit.inverse_variance import StepNoise, inverse_variance, inverse_variance_weights
from comfyui_otca.trainer.credit.steps import combined, tcd, uniform
from comfyui_otca.trainer.grpo import UpdateSettings, update
from comfyui_otca.trainer.rewards import reward_class
from comfyui_otca.trainer.run import checkpoint
from comfyui_otca.trainer.types import Advantages, Fused, MatchingSettings, Scores

pytestmark = pytest.mark.anywhere
RATE = UpdateSettings(learning_rate=1e-3)


def noise(model):
    return model.memo[StepNoise].figures


@pytest.fixture
def toy(load_toy, perturb):
    return perturb(load_toy())


def advantages(credit, z):
    scores = Scores(z[:, None], ("r",), (1.0,), torch.arange(len(z)) // 3, torch.zeros(len(z), 0), (), ())
    fused, valid = Fused(z, torch.ones(len(z), 1)), torch.ones(len(z), dtype=torch.bool)
    return Advantages(credit.weights * z[:, None], z[:, None], fused, valid, scores, credit, {})


def advantage(count=6):
    return torch.randn(count, generator=torch.Generator().manual_seed(1))


def asked(model, taken, decay=0.5):
    return inverse_variance_weights(model, taken, decay)


def squares(model, taken, z, groups=None):
    """E|∇ log p|² of each step by gradients of every step alone, of all samples or of these groups of them."""
    totals = torch.zeros(len(taken.trained), dtype=torch.float64)
    for rows in groups or [torch.arange(len(z))]:
        own = torch.zeros_like(z)
        own[rows] = z[rows]
        found = step_gradients(model, taken, reward_class("sharpness")(), own, torch.zeros_like(z), {})
        totals += (found.policy * len(z)).double().square().sum(1)
    return totals / z.double().square().sum()


def test_inverse_variance_by_hand():
    torch.testing.assert_close(inverse_variance(torch.tensor([1.0, 2.0, 4.0])), torch.tensor([12.0, 6.0, 3.0]) / 7)


@pytest.mark.parametrize("batch_size", [0, 2, 4])
@pytest.mark.parametrize("keep_graph", [False, True])
def test_the_next_weights_are_the_inverse_of_what_the_update_saw(toy, sample, batch_size, keep_graph):
    taken, z = sample(toy, keep_graph=keep_graph), advantage()
    first = asked(toy, taken)
    assert torch.equal(first.weights, torch.ones(6, len(taken.trained))) and first.measures == 0.5
    size = 6 if keep_graph or not batch_size else batch_size
    expected = squares(toy, replace(taken, kept=None), z, list(torch.arange(6).split(size)))
    update(toy, taken, advantages(first, z), replace(RATE, batch_size=batch_size))
    again = asked(toy, sample(toy))
    torch.testing.assert_close(again.weights[2].double(), inverse_variance(expected), rtol=1e-4, atol=1e-5)
    assert torch.allclose(again.weights.mean(1), torch.ones(6)) and again.weights.std(1).min() > 0.05
    torch.testing.assert_close(again.raw.sum(1), torch.ones(6))


def test_what_weighs_the_steps_does_not_change_what_is_measured(toy, load_toy, perturb, sample):
    """Weights that all samples share, other factors of the ratio, and a combination with TCD."""
    found = []
    for change in ("none", "weights", "scale", "tcd"):
        model = perturb(load_toy())
        taken, z = sample(model), advantage()
        credit = asked(model, taken)
        if change == "weights":
            credit = replace(credit, weights=credit.weights * torch.tensor([3.0, 0.5, 0.1])[: len(taken.trained)])
        if change == "scale":
            credit = replace(credit, ratio_scale=tuple(0.1 + 0.2 * j for j in range(len(taken.trained))))
        if change == "tcd":
            credit = combined(tcd(taken.latents, taken.final, taken.trained), credit)
            assert credit.measures == 0.5 and "inverse variance" in credit.method
        update(model, taken, advantages(credit, z), RATE)
        found.append(asked(model, sample(model)).weights[0])
    for other in found[1:3]:
        torch.testing.assert_close(other, found[0], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found[3], found[0]) and (found[3] - found[0]).abs().max() < 0.5, "other samples count"


@pytest.mark.parametrize("change", [{}, {"epochs": 2}, {"kl_coefficient": 0.1}, {"sampled_steps": 2}])
def test_training_is_the_same_to_the_bit(load_toy, perturb, sample, change):
    states = []
    for measures in (0.9, None):
        model = perturb(load_toy())
        taken = sample(model)
        credit = replace(uniform(taken.latents, taken.final, taken.trained), measures=measures)
        metrics = update(model, taken, advantages(credit, advantage()), replace(RATE, **change))
        assert noise(model).numel() == (0 if measures is None else 4 * len(taken.trained))
        states.append((metrics["gradient_norm"], model.policy.trained_state()))
    assert states[0][0] == states[1][0]
    for name, tensor in states[0][1].items():
        assert torch.equal(tensor, states[1][1][name]), name


def test_averages_are_slow_and_belong_to_a_steps_noise_levels(toy, sample, small_settings):
    taken, z = sample(toy, replace(small_settings(), window=(0, 2))), advantage()
    one = squares(toy, taken, z)
    update(toy, taken, advantages(asked(toy, taken), z), replace(RATE, learning_rate=0.0))
    moved = sample(toy, replace(small_settings(), window=(1, 2)), seed=8)
    weights = asked(toy, moved).weights[0]
    assert weights.tolist() == [1, 1], "one that is known alone is its own mean, one that is new weighs 1"
    other = squares(toy, moved, -z)
    update(toy, moved, advantages(asked(toy, moved), -z), replace(RATE, learning_rate=0.0))
    both = sample(toy, replace(small_settings(), window=(0, 3)))
    expected = torch.stack([one[0], (one[1] * 0.25 + other[0] * 0.5) / 0.75, other[1]])
    torch.testing.assert_close(asked(toy, both).weights[0].double(), inverse_variance(expected), rtol=1e-4, atol=1e-5)
    fewer = sample(toy, replace(small_settings(), steps=3))
    assert torch.equal(asked(toy, fewer).weights, torch.ones(6, 2)), "other noise levels"


def test_what_could_not_be_measured_stays(toy, sample):
    taken = sample(toy)
    update(toy, taken, advantages(asked(toy, taken), advantage()), RATE)
    before = noise(toy)
    again = sample(toy)
    judged = advantages(asked(toy, again), advantage())
    judged.step_advantage[:, 1] = 0.0
    update(toy, again, judged, RATE)
    assert torch.equal(noise(toy)[:, 1], before[:, 1]) and not torch.equal(noise(toy)[:, 0], before[:, 0])
    last, broken = noise(toy), sample(toy)
    update(toy, broken, advantages(asked(toy, broken), torch.full((6,), torch.nan)), RATE)
    assert torch.equal(noise(toy), last), "a dropped update"


def test_a_checkpoint_holds_it(toy, load_toy, sample, tmp_path):
    taken = sample(toy)
    checkpoint.save(toy, tmp_path / "before", 1)
    update(toy, taken, advantages(asked(toy, taken), advantage()), RATE)
    checkpoint.save(toy, tmp_path / "after", 1)
    other = load_toy()
    checkpoint.restore(other, tmp_path / "after")
    assert torch.equal(noise(other), noise(toy)) and noise(other).dtype == torch.float64
    checkpoint.restore(other, tmp_path / "before")
    assert not noise(other).numel(), "what is not in the checkpoint is forgotten"
    checkpoint.restore(other, tmp_path / "after")
    other.make_fresh()
    assert not noise(other).numel()


def with_node(graph):
    graph["9"] = {
        "class_type": "OTCA_StepCredit",
        "inputs": {"method": "inverse_variance", "trajectories": ["3", 0], "model": ["1", 0], "decay": 0.8},
    }
    return graph


def test_a_resumed_training_is_the_same_to_the_last_digit(small_graph, tmp_path):
    from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
    from comfyui_otca.trainer.workflow.running import Workflow

    def graph(iterations):
        return Workflow(with_node(small_graph({"OTCA_TrainingRun": {"iterations": iterations}})), NODE_CLASS_MAPPINGS)

    assert training.train(graph(4), tmp_path / "whole") == 0
    assert training.train(graph(2), tmp_path / "parts") == 0
    assert training.train(graph(4), tmp_path / "parts", resume=True) == 0
    whole = training.untimed(tmp_path / "whole")
    assert training.untimed(tmp_path / "parts")[:4] == whole and len(whole) == 4
    training.assert_same_tensors(tmp_path / "whole" / "lora.safetensors", tmp_path / "parts" / "lora.safetensors")


# -- bad input -------------------------------------------------------------------------------------------------------------


def test_bad_input_says_what_to_do(toy, load_toy, sample):
    taken = sample(toy)
    with pytest.raises(
        ValueError, match="not the one that sampled these trajectories. Fix: connect the model of SDE Sampler"
    ):
        inverse_variance_weights(load_toy(), taken, 0.5)
    with pytest.raises(ValueError, match=r"decay must lie in \[0, 1\), not 1"):
        inverse_variance_weights(toy, taken, 1)
    judged = advantages(asked(toy, taken), advantage())
    with pytest.raises(ValueError, match="the credit inverse variance goes by the gradients of GRPO Step"):
        matching.update(toy, taken, judged, MatchingSettings(learning_rate=1e-3))


def test_a_graph_with_matching_step_is_refused_before_it_runs(small_graph):
    from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
    from comfyui_otca.trainer.checks.preflight import problems
    from comfyui_otca.trainer.workflow.running import Workflow

    assert not [p for p in problems(Workflow(with_node(small_graph()), NODE_CLASS_MAPPINGS)) if p.severity == "error"]
    found = [str(p) for p in problems(Workflow(with_node(small_graph(source="quickstart.json")), NODE_CLASS_MAPPINGS))]
    assert any("OTCA_StepCredit" in text and "Matching Step measures none" in text for text in found)
