"""Learned credit: shares by hand and by a plain loop, when it measures, what it remembers; in graphs and over processes."""

from __future__ import annotations

import json
import types
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comfyui_otca.__main__ import main
from comfyui_otca.host import distributed, stopping
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.processes import together
from comfyui_otca.tests.trainer.credit.test_gains import PATHS, Linear, Mean, scored, walk
from comfyui_otca.trainer.advantages import fuse
from comfyui_otca.trainer.credit.gains import rewards_along
from comfyui_otca.trainer.credit.learned import LearnedShares, learned, looks_ahead, moments
from comfyui_otca.trainer.memo import Memos
from comfyui_otca.trainer.rewards.base import RewardError
from comfyui_otca.trainer.run import checkpoint, record
from comfyui_otca.trainer.types import LEFT_OUT
from comfyui_otca.trainer.workflow.running import Workflow

pytestmark = pytest.mark.anywhere

NAN = float("nan")
cases = settings(max_examples=60, deadline=None, derandomize=True, database=None)

# -- the moments -------------------------------------------------------------------------------------------------------


def plain(rewards, groups):
    """Var(g_j), Cov(g_j, R) and Var(R) of one reward r [N][T+1] by a loop over groups, samples and steps."""
    steps = len(rewards[0]) - 1
    gain, shared, total, freedom = [0.0] * steps, [0.0] * steps, 0.0, 0
    for group in sorted(set(groups)):
        own = [row for row, number in zip(rewards, groups, strict=True) if number == group and np.isfinite(row).all()]
        if len(own) < 2:
            continue
        freedom += len(own) - 1
        ways = [row[-1] - row[0] for row in own]
        for row in own:
            way = row[-1] - row[0] - sum(ways) / len(ways)
            total += way * way
            for j in range(steps):
                g = row[j + 1] - row[j] - sum(other[j + 1] - other[j] for other in own) / len(own)
                gain[j] += g * g
                shared[j] += g * way
    return [[x / max(freedom, 1) for x in values] for values in (gain, shared, [total])]


def test_moments_by_hand():
    # Gains of group 0: (1, 2) and (3, 0), centred (-1, 1) and (1, -1), R centred 0 and 0; of group 1: (0, 4) and (4, 4),
    # centred (-2, 0) and (2, 0), R centred -2 and 2. Two degrees of freedom.
    rewards = torch.tensor([[0, 1, 3], [5, 8, 8], [1, 1, 5], [1, 5, 9]])[:, :, None]
    found = moments(rewards, torch.tensor([0, 0, 1, 1]))
    assert found.gain[:, 0].tolist() == [(1 + 1 + 4 + 4) / 2, (1 + 1) / 2]
    assert found.shared[:, 0].tolist() == [(4 + 4) / 2, 0]
    assert found.total.tolist() == [(4 + 4) / 2]


@cases
@given(st.integers(0, 10**6), st.integers(1, 6), st.floats(0, 0.4))
def test_covariances_add_up_to_one_for_any_rewards(seed, steps, gaps):
    draws = np.random.default_rng(seed)
    groups = np.sort(draws.integers(0, 3, 12))
    rewards = draws.normal(size=(12, steps + 1, 2)) * 10.0 ** draws.integers(-3, 4, (1, steps + 1, 1))
    rewards[draws.random(12) < gaps, draws.integers(0, steps + 1), 0] = NAN
    found = moments(torch.from_numpy(rewards), torch.from_numpy(groups))
    for k in range(2):
        gain, shared, [total] = plain(rewards[:, :, k].tolist(), groups.tolist())
        np.testing.assert_allclose(found.gain[:, k], gain, rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(found.shared[:, k], shared, rtol=1e-8, atol=1e-8 * max(1, total))
        assert found.total[k].item() == pytest.approx(total, rel=1e-8)
        if total:
            assert (found.shared[:, k] / found.total[k]).sum().item() == pytest.approx(1.0, abs=1e-9)


def test_variances_of_independent_gains_add_up_too():
    gains = np.random.default_rng(0).normal(size=(4000, 4)) * [3.0, 1.0, 0.0, 2.0]
    rewards = torch.from_numpy(np.cumsum(np.c_[np.zeros(4000), gains], 1))[:, :, None]
    found = moments(rewards, torch.arange(4000) // 10)
    shares = (found.gain / found.total)[:, 0]
    assert shares.tolist() == pytest.approx([9 / 14, 1 / 14, 0, 4 / 14], abs=0.04)
    assert shares.sum().item() == pytest.approx(1.0, abs=0.06)


def test_what_cannot_be_measured_is_zero():
    rewards = torch.ones(4, 3, 3)
    rewards[:, :, 1] = torch.rand(4, 1)  # nothing changes on the way
    rewards[[0, 2], 1, 2] = torch.tensor([NAN, torch.inf])  # one sample of each group is left
    found = moments(rewards, torch.tensor([0, 0, 1, 1]))
    assert not found.gain.any() and not found.shared.any() and not found.total.any()
    rewards = torch.full((3, 3, 2), 0.1)  # and no rounding error passes for a spread
    rewards[:, 1] = 0.7
    rewards[:, 1, 1] = torch.tensor([0.3, 0.2, 0.6])  # all pictures end with the score that they began with
    found = moments(rewards, torch.zeros(3))
    assert not found.gain[:, 0].any() and found.gain[:, 1].all() and not found.total.any() and not found.shared.any()


# -- from moments to weights -------------------------------------------------------------------------------------------


class Remembering(Linear):
    """`Linear` with what a model remembers."""

    def __init__(self):
        super().__init__()
        self.policy = types.SimpleNamespace(is_sharded=False, version=0)
        self.memo = Memos()


OPTIONS = {"measure_every": 1, "groups": 0, "decay": 0.0, "w_min": 0.0}


def asked(model, trajectories, *rewards, scores=None, **options):
    trajectories = replace(trajectories, model=model)
    return learned(model, trajectories, scores or scored(trajectories, *rewards), **{**OPTIONS, **options})


def expected_weights(trajectories, scores, w_min, k=0):
    """By the formulas, from the rewards of all points: of variances where they add up to one, else of covariances."""
    points = range(len(trajectories.sigmas))
    rewards = rewards_along(Linear(), trajectories, scores, points)[:, :, k].double().tolist()
    gain, shared, [total] = plain(rewards, trajectories.groups.tolist())
    chosen = gain if abs(sum(gain) / total - 1) <= 0.1 else [max(0.0, value) for value in shared]
    own = [chosen[j] / total for j in trajectories.trained]
    return [w_min + (1 - w_min) * len(own) * value / sum(own) for value in own], sum(gain) / total


def test_weights_are_the_shares_of_the_trained_steps():
    """r of the paths: 2, 1, 3, 3 and 2, 1, 5, 5 with v = 0; 0, 0.4, 0.6, 0.6 and 0, 0.4, 3.6, 3.6 (see test_gains)."""
    trajectories = walk(PATHS, (0, 1))
    credit = asked(Remembering(), trajectories, Mean(), w_min=0.25)
    assert credit.by_objective.shape == (4, 2, 1) and credit.objectives == ("mean",)
    torch.testing.assert_close(credit.by_objective[0, :, 0], torch.tensor([0.25, 1.75])), "step 1 decides everything"
    torch.testing.assert_close(credit.weights, credit.by_objective[:, :, 0])
    torch.testing.assert_close(credit.raw, torch.tensor([0.0, 1.0]).expand(4, 2))
    assert credit.metrics == {"credit/variance/mean": pytest.approx(1.0)}
    assert credit.method == "learned" and credit.trained == (0, 1)


# Paths whose points vary within groups at both steps: the variances add up to 1.0 in the first, to far more in the second.
ADDING = [[2.0, 1.0, 1.0, 9.0], [2.0, 3.0, 3.0, 9.0], [4.0, 2.0, 7.0, 9.0], [4.0, 2.0, 5.0, 9.0]]
UNDOING = [[2.0, 1.0, 3.0, 9.0], [2.0, 9.0, 4.0, 9.0], [4.0, 5.0, 1.0, 9.0], [4.0, 2.0, 2.0, 9.0]]


@pytest.mark.parametrize(("paths", "by_variance"), [(ADDING, True), (UNDOING, False)])
@pytest.mark.parametrize("w_min", [0.0, 0.5])
def test_variances_where_they_add_up_and_floored_covariances_elsewhere(paths, by_variance, w_min):
    trajectories = walk(paths, (0, 1))
    scores = scored(trajectories, Mean(), Mean("triple", factor=3.0))
    credit = asked(Remembering(), trajectories, scores=scores, w_min=w_min)
    expected, variance = expected_weights(trajectories, scores, w_min)
    assert (abs(variance - 1) <= 0.1) == by_variance
    for k, name in enumerate(("mean", "triple")):  # no unit matters
        assert credit.by_objective[2, :, k].tolist() == pytest.approx(expected, rel=1e-5)
        assert credit.metrics[f"credit/variance/{name}"] == pytest.approx(variance)
    assert credit.weights.mean(1).tolist() == pytest.approx([1.0] * 4)


def test_objectives_of_their_own():
    """Rewards that see other pixels of the picture would; here one of them fails for a group, so that the other decides."""
    trajectories = walk(ADDING, (0, 1))
    # The second reward fails at 1.0, so of group 0 one sample is left, and group 1 alone counts.
    credit = asked(Remembering(), trajectories, Mean(), Mean("fails", fails_at=1.0))
    first, second = credit.by_objective[0].T.tolist()
    assert first == pytest.approx(expected_weights(trajectories, scored(trajectories), 0.0)[0])
    assert second == pytest.approx([0.0, 2.0]) and first != pytest.approx(second)
    torch.testing.assert_close(credit.weights[0], torch.tensor([first, second]).mean(0))


def test_nothing_found_is_uniform_and_latents_that_overflowed_are_left_out():
    trajectories = walk([[2.0, 1.0, 3.0, 9.0]] * 4, (0, 1))
    model = Remembering()
    credit = asked(model, trajectories)
    assert torch.equal(credit.by_objective, torch.ones(4, 2, 1)) and torch.equal(credit.weights, torch.ones(4, 2))
    assert credit.metrics == {} and model.memo[LearnedShares]["mean"].again == 1, "it is not asked again at once"
    none = replace(scored(trajectories), values=torch.tensor([[NAN], [LEFT_OUT], [NAN], [NAN]]))
    assert torch.equal(asked(Remembering(), trajectories, scores=none).weights, torch.ones(4, 2))
    # The picture of what overflowed may have a score nevertheless. Of group 1 one sample is left; in group 0, r is 2, 1, 3
    # and 2, 1, 5. With group 1 the first gain would vary too.
    asked(model := Remembering(), walk([*PATHS[:3], [4.0, 2.0, 6.0, torch.inf]], (0, 1)))
    assert model.memo[LearnedShares]["mean"].figures[2].tolist() == [0.0, 1.0]


# -- averages ----------------------------------------------------------------------------------------------------------


def test_averages_are_bias_corrected_exponential_ones():
    """As quotients of them, with weights decay^age·(1 - decay) / (1 - decay^n), of measurements of one scale."""
    model, decay, found = Remembering(), 0.6, []
    for paths in (PATHS, ADDING, UNDOING):
        trajectories = walk(paths, (0, 1))
        credit = asked(model, trajectories, decay=decay)
        model.policy.version += 1
        rewards = rewards_along(Linear(), trajectories, scored(trajectories), range(4))[:, :, 0].double().tolist()
        found.append(plain(rewards, [0, 0, 1, 1]))
    ages = np.array([2, 1, 0])
    weights = decay**ages * (1 - decay) / (1 - decay**3)
    assert weights.sum() == pytest.approx(1)
    gain, shared, total = (
        sum(w * np.array(one[i]) / sum(one[0]) for w, one in zip(weights, found, strict=True)) for i in range(3)
    )
    variance = gain.sum() / total[0]
    assert abs(variance - 1) > 0.1 and credit.metrics["credit/variance/mean"] == pytest.approx(variance)
    share = np.maximum(0, shared[:2]) / total[0]
    assert credit.by_objective[0, :, 0].tolist() == pytest.approx((2 * share / share.sum()).tolist(), rel=1e-5)


def test_measured_once_every_so_many_updates():
    model, trajectories, judge = Remembering(), walk(PATHS, (0, 1)), Mean()
    seen = []
    scores = scored(trajectories, judge)
    for version in (0, 0, 1, 2, 3, 4, 4, 6):
        model.policy.version, judge.seen = version, 0
        credit = asked(model, trajectories, scores=scores, measure_every=3)
        seen.append(judge.seen > 0)
    assert seen == [True, False, False, False, True, False, False, True]
    assert credit.by_objective[0, :, 0].tolist() == pytest.approx([0.0, 2.0]), "what was found stays"
    # A step that could not be measured, since no sample has a score, has the mean of the others: here of one.
    asked(model := Remembering(), walk(ADDING, (0,)), measure_every=100)
    none = replace(scores, values=torch.full((4, 1), NAN))
    credit = asked(model, walk(ADDING, (0, 1)), scores=none, measure_every=100)
    assert credit.by_objective[0, :, 0].tolist() == [1.0, 1.0]


def test_only_so_many_groups_are_looked_at():
    """x_1 of each of their samples, and x_0 once a group; x_2 and x_3 are the picture."""
    trajectories = walk([*PATHS, *PATHS[:2]], (0, 1), [0, 0, 1, 1, 2, 2])
    trajectories, judge = replace(trajectories, prompts=("zero", "one", "two")), Mean()
    scores = scored(trajectories, judge)
    for groups, looked_at in ((0, 3 * 2 + 3), (1, 2 + 1), (2, 2 * (2 + 1)), (3, 3 * 2 + 3), (9, 3 * 2 + 3)):
        judge.seen = 0
        asked(Remembering(), trajectories, scores=scores, groups=groups)
        assert judge.seen == looked_at


def test_a_new_step_reward_or_level_is_measured_at_once_and_the_others_go_on():
    model, trajectories = Remembering(), walk(ADDING, (0,))
    options = {"measure_every": 100, "decay": 0.5}
    asked(model, trajectories, **options)
    first = model.memo[LearnedShares]["mean"].figures
    assert first.shape == (6, 1)
    moved = replace(trajectories, trained=(1,))  # a window
    asked(model, moved, **options)
    both = model.memo[LearnedShares]["mean"].figures
    assert torch.equal(both[:, :1], first), "a step that is not trained keeps what was found"
    assert both[:2, 1].tolist() == [0.8, 0.4]
    judges = Mean(), Mean("other")
    asked(model, moved, *judges, **options)
    assert set(model.memo[LearnedShares]) == {"mean", "other"}
    continued = model.memo[LearnedShares]["mean"].figures
    torch.testing.assert_close(continued[2:, 1], 1.5 * both[2:, 1])
    asked(model, replace(moved, sigmas=(1.0, 0.7, 0.4, 0.0)), **options)
    again = model.memo[LearnedShares]["mean"].figures
    assert again[:2, 1].tolist() == [0.7, 0.4] and torch.equal(again[:, 0], first[:, 0])
    torch.testing.assert_close(again[5, 1], 0.5 * 2 * both[5, 1]), "begun again"
    assert model.memo[LearnedShares]["other"].figures[0].tolist() == [0.0, 0.8], "what is not asked stays as it is"


def test_a_deterministic_path_is_measured_too():
    """As of the sampler `ode`: all steps are trained, members start apart, and the last step decides nothing."""
    trajectories = walk(UNDOING, (0, 1, 2), shared_noise=False)
    trajectories = replace(trajectories, stds=(0.0,) * 3, log_probs=torch.zeros(4, 0))
    credit = asked(Remembering(), trajectories, w_min=0.5)
    expected, _ = expected_weights(trajectories, scored(trajectories), 0.5)
    assert credit.by_objective[0, :, 0].tolist() == pytest.approx(expected, rel=1e-5)
    assert credit.by_objective[0, 2, 0] == 0.5 and credit.weights.mean(1).tolist() == pytest.approx([1.0] * 4)


def test_refusals():
    trajectories, model = walk(PATHS, (0, 1)), Remembering()
    with pytest.raises(
        ValueError, match="model: it is not the one that sampled .*Fix: connect the model of SDE Sampler"
    ):
        learned(model, trajectories, scored(trajectories), **OPTIONS)
    fewer = replace(scored(trajectories), values=torch.zeros(3, 1))
    with pytest.raises(ValueError, match="scores: they are of 3 samples, the trajectories are 4. Fix: "):
        asked(model, trajectories, scores=fewer)
    with pytest.raises(ValueError, match=r"\(w_min\) must lie in \[0, 1\], not 1.5"):
        asked(model, trajectories, w_min=1.5)
    judge = Mean("people")
    judge.groups_only = True
    with pytest.raises(RewardError, match="the credit learned asks every reward .*'people'.*Fix: "):
        asked(model, trajectories, judge)
    assert model.memo[LearnedShares] == {}


# -- what becomes of it ------------------------------------------------------------------------------------------------


def test_every_objective_is_trained_where_it_is_decided():
    """Ã_j = Σ_k c_k·w_jk·A_k: a reward that step 1 decides pulls at step 1."""
    trajectories = walk(ADDING, (0, 1))
    scores = scored(trajectories, Mean(), Mean("fails", fails_at=1.0))
    credit = asked(Remembering(), trajectories, scores=scores)
    scores = replace(scores, values=torch.tensor([[1.0, 5.0], [2.0, 3.0], [0.0, 9.0], [4.0, 1.0]]))
    found = fuse(scores, credit, "moca")
    c, a = found.fused.coefficients, found.per_objective
    expected = (c[:, None] * credit.by_objective * a[:, None]).sum(2)
    torch.testing.assert_close(found.step_advantage, expected)
    torch.testing.assert_close((c * a).sum(1), found.fused.advantage)
    assert not torch.allclose(found.step_advantage, credit.weights * found.fused.advantage[:, None])
    assert found.metrics["credit/step/1"] == pytest.approx(credit.weights[0, 1].item())
    assert found.metrics["credit/objective/fails/1"] == pytest.approx(2.0)
    assert found.metrics["credit/variance/mean"] == pytest.approx(credit.metrics["credit/variance/mean"])


# -- over processes ----------------------------------------------------------------------------------------------------


def _shared():
    own = distributed.share(4).rows
    trajectories = walk([UNDOING[row] for row in own], (0, 1), [[0, 0, 1, 1][row] for row in own])
    scores = scored(trajectories, Mean(), Mean("fails", fails_at=1.0))
    found = []
    for groups in (0, 1):
        model = Remembering()
        credit = distributed.whole(asked(model, trajectories, scores=scores, groups=groups))
        found.append((credit.by_objective, credit.weights, model.memo[LearnedShares]["fails"].figures, credit.metrics))
    return found


def test_processes_measure_what_one_does():
    """Of three, one holds parts of two groups; of one group, one process measures nothing."""
    expected = _shared()
    for found in together(3, _shared):
        torch.testing.assert_close(found, expected)


# -- in a graph --------------------------------------------------------------------------------------------------------


def taught(graph, **inputs):
    """The graph with learned credit in place of TCD Weights."""
    values = {"measure_every": 2, "groups": 1, "decay": 0.8, "w_min": 0.25, **inputs}
    links = {"trajectories": ["3", 0], "scores": ["8", 0], "model": ["1", 0]}
    graph["9"] = {"class_type": "OTCA_StepCredit", "inputs": {"method": "learned", **links, **values}}
    return graph


def lines(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("seconds/", "samples_per_second"))} for row in rows]


def test_a_run_and_the_same_resumed_from_every_iteration(small_graph, tmp_path):
    """Measured at updates 0, 2 and 4: resumed before, between and after; the predictions are kept where they are needed."""
    path = tmp_path / "workflow.json"
    changes = {"OTCA_TrainingRun": {"checkpoint_every": 1, "iterations": 5, "evaluate_every": 100}}
    path.write_text(json.dumps(taught(small_graph(changes))))
    arguments = ["train", str(path), "--output"]
    assert main([*arguments, str(tmp_path / "whole")]) == 0
    expected = lines(tmp_path / "whole")
    assert {"credit/objective/sharpness/2", "credit/variance/sharpness"} <= expected[0].keys()
    values = [row["credit/objective/sharpness/2"] for row in expected]
    assert values[0] == values[1] != values[2] == values[3] != values[4]
    for stop in (1, 2, 3):
        folder = str(tmp_path / f"cut_{stop}")
        for total in (stop, 5):
            record.open_runs.clear()
            stopping.request.signal = None
            resume = ["--resume"] if total == 5 else []
            assert main([*arguments, folder, "--set", f"OTCA_TrainingRun.iterations={total}", *resume]) == 0
        assert lines(tmp_path / f"cut_{stop}") == expected


def test_a_checkpoint_holds_it_and_a_fresh_model_forgets_it(model, load_model, tmp_path):
    asked(remembering := Remembering(), walk(ADDING, (0, 1)), Mean(), Mean("other"))
    model.memo.keep(remembering.memo[LearnedShares])
    model.policy.version = 1
    assert looks_ahead(model)
    place = checkpoint.save(model, tmp_path, 3) / "state.json"
    other = load_model(seed=9)
    assert other.memo[LearnedShares] == {} and not looks_ahead(other)
    assert checkpoint.restore(other, tmp_path) == 3
    assert {name: one.again for name, one in other.memo[LearnedShares].items()} == {"mean": 1, "other": 1}
    for name, one in other.memo[LearnedShares].items():
        assert torch.equal(one.figures, model.memo[LearnedShares][name].figures)
    written = place.read_text()
    for value in ([1], {"mean": -1}, {"mean": "1"}, {"mean": 1.5}):  # one that says nonsense of it
        state = json.loads(written)
        state["memos"]["credit"]["values"] = value
        place.write_text(json.dumps(state))
        checkpoint.restore(model, tmp_path)
        with pytest.raises(ValueError, match="credit of the checkpoint cannot be read"):
            model.memo[LearnedShares]
    other.make_fresh()
    assert other.memo[LearnedShares] == {}
    checkpoint.save(other, tmp_path, 4)
    checkpoint.restore(model, tmp_path)
    assert model.memo[LearnedShares] == {}, "what is not in the checkpoint is forgotten"


def test_on_the_canvas(small_graph, comfyui):
    workflow = Workflow(taught(small_graph()), NODE_CLASS_MAPPINGS)
    assert workflow.validate() == []
    outputs = workflow.run(targets=["10"])
    credit = workflow.ui["9"]["otca_credit"][0]
    assert credit["objectives"] == ["clip_t", "colorfulness", "sharpness"]
    own, advantages = outputs["9"][0].by_objective, workflow.ui["10"]["otca_advantages"][0]
    np.testing.assert_allclose(credit["by_objective"], own.permute(2, 0, 1), rtol=1e-4)
    parts = np.array(advantages["by_objective"])
    np.testing.assert_allclose(parts.sum(0), advantages["step_advantage"], atol=1e-4)
    assert parts.shape == (3, 6, 3) and outputs["9"][1].shape[-1] == 3
