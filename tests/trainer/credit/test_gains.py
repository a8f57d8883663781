"""Pictures on the way and what each step gains, against a model and rewards that can be worked out by hand."""

from __future__ import annotations

import math
import types
from dataclasses import replace

import numpy as np
import pytest
import torch

from comfyui_otca.canvas import results
from comfyui_otca.host import distributed
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.processes import together
from comfyui_otca.trainer.credit.gains import is_final, predictions, rewards_along, stepwise_gains
from comfyui_otca.trainer.credit.proxies import similarity
from comfyui_otca.trainer.families.condition import Condition
from comfyui_otca.trainer.rewards.base import Reward, RewardError, score_stack
from comfyui_otca.trainer.types import SamplerSettings, Trajectories
from comfyui_otca.trainer.workflow.running import NodeError, Workflow

pytestmark = pytest.mark.anywhere

NAN = float("nan")
SIGMAS = (1.0, 0.8, 0.4, 0.0)


class Mean(Reward):
    """The mean of a picture, and a count of what it saw."""

    def __init__(self, name="mean", coefficient=1.0, held_out=False, factor=1.0, fails_at=None):
        super().__init__(name, coefficient, held_out)
        self.factor, self.fails_at, self.seen = factor, fails_at, 0

    def score(self, images, prompts):
        self.seen += len(images)
        values = self.factor * images.mean((1, 2, 3))
        return values if self.fails_at is None else torch.where((values - self.fails_at).abs() < 1e-6, NAN, values)


class Linear:
    """v = x·c for prompt number c: x̂0 by K steps is x·(1 - σ·c/K)^K. Latents are pictures of one pixel."""

    device, policy = torch.device("cpu"), types.SimpleNamespace(is_sharded=False)

    def __init__(self):
        self.calls = self.rows = 0

    def come_back(self):
        pass

    def condition(self, prompts, settings):
        return Condition({"c": torch.arange(float(len(prompts)))})

    def guidance_at(self, sigma, settings):
        return 1.0

    def velocity(self, x, sigma, condition, guidance):
        self.calls, self.rows = self.calls + 1, self.rows + len(x)
        return x * condition.tensors["c"].reshape(-1, 1, 1, 1)

    def decode(self, latents, batch_size=0, texts=()):
        return latents.permute(0, 2, 3, 1).expand(-1, -1, -1, 3)


def walk(latents, trained, groups=None, shared_noise=True, batch_size=0):
    """Trajectories of B = 4, in two groups, through latents [4, 4] of one number each."""
    latents = torch.tensor(latents)[:, :, None, None, None]
    groups = torch.tensor([0, 0, 1, 1] if groups is None else groups)
    model = Linear()
    velocity = model.velocity(latents[:, 2], SIGMAS[2], Condition({"c": groups.float()}), 1.0)
    final = latents[:, 2] - SIGMAS[2] * velocity
    settings = SamplerSettings("dance_sde", 0.3, 3, 8, 8, 0.0, 1.0, shared_noise=shared_noise, batch_size=batch_size)
    return Trajectories(
        latents=latents,
        final=final,
        images=model.decode(final),
        sigmas=SIGMAS,
        trained=trained,
        stds=(0.1,) * 3,
        log_probs=torch.zeros(len(latents), len(trained)),
        groups=groups,
        share=distributed.Share(range(len(latents)), len(latents)),
        prompts=("zero", "one"),
        settings=settings,
        policy_version=0,
        seed=0,
        model=model,
    )


PATHS = [[2.0, 1.0, 3.0, 9.0], [2.0, 1.0, 5.0, 9.0], [4.0, 2.0, 1.0, 9.0], [4.0, 2.0, 6.0, 9.0]]


def scored(trajectories, *rewards):
    return score_stack(rewards or [Mean()], trajectories.images, trajectories.prompts, trajectories.groups)


def test_a_last_step_of_second_order_leads_elsewhere():
    euler = walk(PATHS, (0, 1))
    second_order = replace(euler, settings=replace(euler.settings, ode_solver="adams_bashforth"))
    assert [is_final(euler, point) for point in range(4)] == [False, False, True, True]
    assert [is_final(second_order, point) for point in range(4)] == [False, False, False, True]
    assert is_final(replace(second_order, trained=(1, 2)), 2), "what adds noise is an Euler step and noise"
    assert not is_final(replace(second_order, trained=(0, 1, 2), stds=(0.0,) * 3), 2), "and so no step of an ODE"


# -- looking ahead -----------------------------------------------------------------------------------------------------


def test_one_step_ahead_is_tweedie_and_several_are_euler_steps():
    trajectories = walk(PATHS, (0, 1), shared_noise=False)
    for steps in (1, 2, 5):
        found = [clean for clean, _, _ in predictions(Linear(), trajectories, [0, 1, 2], steps)]
        for point, clean in enumerate(found):
            c = trajectories.groups.double().numpy()
            expected = np.array([path[point] for path in PATHS]) * (1 - SIGMAS[point] * c / steps) ** steps
            np.testing.assert_allclose(clean[:, 0, 0, 0], expected, rtol=1e-6, atol=1e-7)


def test_rewards_along_the_way_by_hand():
    # Group 0: v = 0, x̂0 = x. Group 1: x̂0 = x·(1 - σ): 0, 0.2·2 = 0.4, and 0.6·x at the last step.
    trajectories = walk(PATHS, (0, 1))
    rewards = rewards_along(Linear(), trajectories, scored(trajectories), range(4))
    expected = [[2, 1, 3, 3], [2, 1, 5, 5], [0, 0.4, 0.6, 0.6], [0, 0.4, 3.6, 3.6]]
    torch.testing.assert_close(rewards[:, :, 0], torch.tensor(expected, dtype=torch.float32))
    scores = scored(trajectories, Mean("guard", held_out=True, factor=10.0), Mean("taught"))
    assert rewards_along(Linear(), trajectories, scores, [1]).shape == (4, 1, 1)
    both = rewards_along(Linear(), trajectories, scores, [1, 3], held_out=True)
    torch.testing.assert_close(both[0], torch.tensor([[1.0, 10.0], [3.0, 30.0]])), "held-out rewards stand behind"


def test_no_score_is_nan_on_the_way_and_at_the_final_points_too():
    """Whether the reward failed for the picture or does not apply to it: else the sample would gain more than any other."""
    trajectories = walk(PATHS, (0, 1))
    left_out = replace(scored(trajectories), values=torch.tensor([[math.inf], [3.0], [NAN], [5.0]]))
    final = rewards_along(Linear(), trajectories, left_out, [3])[:, 0, 0]
    assert final[[0, 2]].isnan().all() and final[[1, 3]].tolist() == [3.0, 5.0]
    assert not stepwise_gains(Linear(), trajectories, left_out).isinf().any()
    # The second sample at x_2, which is its final picture, too.
    gains = stepwise_gains(Linear(), trajectories, scored(trajectories, Mean(fails_at=5.0)))
    assert gains[:, :, 0].isnan().tolist() == [[False, False], [False, True], [False, False], [False, False]]


def test_nothing_is_asked_twice():
    """x_0 and x_1 are shared by a group whose first stochastic step is the second; the picture itself is scored already."""
    trajectories, judge, model = walk(PATHS, (1, 2)), Mean(), Linear()
    scores = scored(trajectories, judge)
    judge.seen = 0
    stepwise_gains(model, trajectories, scores)
    assert (model.calls, model.rows, judge.seen) == (1, 2, 2), "x_1 once a group; x_2 and x_3 are the picture"
    stepwise_gains(model, trajectories, scores, tweedie_steps=3)
    assert (model.calls, model.rows, judge.seen) == (1 + 6, 2 + 3 * (2 + 4), 2 + 2 + 4)
    apart = replace(trajectories, settings=replace(trajectories.settings, shared_noise=False, batch_size=3))
    stepwise_gains(model, apart, scores)
    assert (model.calls, model.rows) == (7 + 2, 20 + 4), "in parts of 3 and 1"


def test_what_the_rollout_kept_saves_the_first_call():
    trajectories = walk(PATHS, (0, 1), shared_noise=False)
    kept = torch.stack([clean for clean, _, _ in predictions(Linear(), trajectories, range(3))], 1)
    keeping = replace(trajectories, predictions=kept)
    for steps in (1, 4):
        model, other = Linear(), Linear()
        expected = [clean for clean, _, _ in predictions(other, trajectories, range(3), steps)]
        found = [clean for clean, _, _ in predictions(model, keeping, range(3), steps)]
        torch.testing.assert_close(found, expected)
        assert other.calls - model.calls == 3


def test_gains_add_up_to_what_the_whole_way_gained(still_model, sample, small_settings):
    """Σ_j g_j = r_T - r_0 over all T, with the real model, its decoder and two rewards."""
    from comfyui_otca.trainer.rewards import reward_class

    trajectories = sample(still_model, small_settings(kind="ode", shared_noise=False))
    assert trajectories.trained == (0, 1, 2, 3)
    judges = [reward_class(kind)() for kind in ("colorfulness", "sharpness")]
    scores = scored(trajectories, *judges)
    with torch.no_grad():
        noise = trajectories.latents[:, 0]
        condition = still_model.condition(trajectories.prompts, trajectories.settings).rows(trajectories.groups)
        velocity = still_model.velocity(noise.to(still_model.device), 1.0, condition, 3.5).cpu()
        start = still_model.decode(noise - velocity)
    first = torch.stack([judge.score(start, trajectories.texts) for judge in judges], 1)
    for steps in (1, 2):
        total = stepwise_gains(still_model, trajectories, scores, steps).sum(1)
        if steps == 1:
            torch.testing.assert_close(total, scores.values - first, rtol=1e-3, atol=1e-2)
        ends = rewards_along(still_model, trajectories, scores, [0, 4], steps)
        torch.testing.assert_close(total, ends[:, 1] - ends[:, 0], rtol=1e-4, atol=1e-3)
        assert torch.equal(ends[:, 1], scores.values)


def test_the_rollouts_own_predictions(still_model, sample):
    trajectories = sample(still_model, keep_predictions=True)
    again = replace(trajectories, predictions=None)
    for point, (clean, rows, inverse) in enumerate(predictions(still_model, again, range(4))):
        torch.testing.assert_close(clean[inverse], trajectories.predictions[:, point], rtol=1e-4, atol=1e-4)
        assert len(rows) == (2 if point == 0 else 6)
        assert is_final(trajectories, point) == torch.equal(trajectories.predictions[:, point], trajectories.final)


# -- in the graph and over processes -----------------------------------------------------------------------------------


def _measured():
    own = distributed.share(4).rows
    trajectories = walk([PATHS[row] for row in own], (0, 1), [[0, 0, 1, 1][row] for row in own])
    scores = scored(trajectories, Mean(), Mean("other", coefficient=0.5, factor=3.0))
    gains = stepwise_gains(Linear(), trajectories, scores, 2)
    return distributed.whole(gains), distributed.whole(similarity("measured_gain", trajectories, Linear(), scores))


def test_processes_measure_what_one_does():
    """The first group ends amid the second of three processes, and objectives are scaled by the spread of all pictures."""
    expected = _measured()
    for found in together(3, _measured):
        torch.testing.assert_close(found, expected)


# -- in a graph --------------------------------------------------------------------------------------------------------

SMALL = {"OTCA_StepwiseGain": {"tweedie_steps": 2}}


def test_it_trains(writes_to, small_workflow, tmp_path):
    writes_to(tmp_path / "run")
    workflow = small_workflow(SMALL, source="stepwise_flow_grpo.json")
    assert workflow.validate() == []
    outputs = workflow.run()
    advantages, (_, report) = outputs["9"][0], outputs["10"]
    assert advantages.credit.trained == (1, 2), "ddim_sde's first step is deterministic"
    assert report.metrics["gradient_norm"] > 0 and report.metrics["seconds/credit"] > 0
    assert {f"gain/{name}/2" for name in ("clip_t", "colorfulness", "sharpness")} <= set(report.metrics)
    torch.testing.assert_close(outputs["8"][0].values, advantages.scores.values)


def test_on_the_canvas_it_shows_credit_and_advantages(small_workflow, comfyui):
    workflow = small_workflow(SMALL, source="stepwise_flow_grpo.json")
    try:
        with torch.inference_mode():
            workflow.run(targets=["9"])
            shown = workflow.ui["9"]
            credit, advantages = shown["otca_credit"][0], shown["otca_advantages"][0]
            assert list(shown) == ["otca_credit", "otca_advantages"], "the page wants credit first"
            assert credit["node"] == advantages["node"] == advantages["credit_node"] == "9"
            assert np.shape(credit["weights"]) == np.shape(advantages["step_advantage"]) == (6, 2)
            assert results.last_results("9") == {"credit": credit, "advantages": advantages}
            assert results.preview_png("9", 5, 3)
            assert comfyui.bars[-1].value == comfyui.bars[-1].total
            comfyui.interrupt_after = comfyui.checks + 3
            workflow.set("9.per_step", True)
            with pytest.raises(comfyui.Interrupt):
                workflow.run(targets=["9"])
    finally:
        results.results_by_node.clear()
        results.looks_by_node.clear()


def test_a_reward_that_breaks_on_the_way_is_named(small_graph, tmp_path):
    class Breaks(Mean):
        def score(self, images, prompts):
            if self.seen:
                raise ZeroDivisionError("at the second look")
            return super().score(images, prompts)

    node = {
        "RETURN_TYPES": ("OTCA_REWARD",),
        "FUNCTION": "build",
        "build": lambda self: (Breaks("brittle"),),
        "INPUT_TYPES": classmethod(lambda cls: {"required": {}}),
    }
    graph = small_graph(SMALL, "stepwise_flow_grpo.json")
    graph["4"] = {"class_type": "OTCA_Breaking", "inputs": {}}
    workflow = Workflow(graph, {**NODE_CLASS_MAPPINGS, "OTCA_Breaking": type("Breaking", (), node)})
    message = "Stepwise Gain.*'brittle' failed: ZeroDivisionError: at the second look"
    with pytest.raises(NodeError, match=message) as told:
        workflow.run(targets=["9"])
    assert isinstance(told.value.__cause__, RewardError)
