"""From scores and credit to Ã against numpy in float64, stepwise gains and best-of-n by hand, and what the update makes of it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comfyui_otca.tests.trainer.test_fusion import algorithm_1
from comfyui_otca.trainer.advantages import METHODS, best_of_n, fuse, fuse_gains, of_pairs
from comfyui_otca.trainer.credit.steps import uniform
from comfyui_otca.trainer.grpo import UpdateSettings, update
from comfyui_otca.trainer.types import FUSION_WEIGHTS, LEFT_OUT, Scores, StepCredit

NAN = float("nan")
cases = settings(max_examples=80, deadline=None, derandomize=True, database=None)

# -- fuse --------------------------------------------------------------------------------------------------------------

TRAINED = (0, 1, 3)


def make_scores(values, groups, coefficients=None) -> Scores:
    values = torch.as_tensor(values, dtype=torch.float32)
    names = tuple(f"r{k}" for k in range(values.shape[1]))
    coefficients = tuple(coefficients or [1.0] * len(names))
    return Scores(values, names, coefficients, torch.as_tensor(groups), values[:, :0], (), ())


def make_credit(samples: int, seed: int) -> StepCredit:
    generator = torch.Generator().manual_seed(seed)
    delta = torch.randn(samples, 5, generator=generator)
    raw = torch.rand(samples, len(TRAINED), generator=generator)
    raw = raw / raw.sum(1, keepdim=True)
    similarity = torch.zeros(samples, 6)
    return StepCredit(0.5 + 0.5 * len(TRAINED) * raw, raw, delta, similarity, TRAINED)


def pick(scores: Scores, credit: StepCredit, rows: list[int]) -> tuple[Scores, StepCredit]:
    """The same without the other samples."""
    picked = make_scores(scores.values[rows], scores.groups[rows], scores.coefficients)
    parts = (credit.weights[rows], credit.raw[rows], credit.delta[rows], credit.similarity[rows])
    return picked, StepCredit(*parts, TRAINED)


def normalise(values: np.ndarray, groups: np.ndarray, scope: str = "group") -> np.ndarray:
    result = np.zeros_like(values)
    for group in np.unique(groups):
        own = values[groups == group]
        std = (own if scope == "group" else values).std(0, ddof=1)
        result[groups == group] = (own - own.mean(0)) / (std + 1e-8)
    return result


def expected_z(scores, credit, method, scope="group", exploration="literal", weights="in the sum"):
    """z of every sample by method.md §3 and §5, for scores that are all finite; also tanh(e)."""
    values, groups = scores.values.double().numpy(), scores.groups.numpy()
    coefficients = np.array(scores.coefficients)
    a = np.clip(normalise(values, groups, scope), -5, 5)
    seen = a * coefficients if weights == "in the solver" else a
    q = (credit.raw.double().numpy() * credit.delta.double().numpy()[:, list(TRAINED)]).sum(1)
    tanh_e = np.zeros(len(q))
    for group in np.unique(groups):
        own = q[groups == group]
        distance = np.abs(own if exploration == "literal" else own - own.mean())
        tanh_e[groups == group] = np.tanh(distance / (own.std(ddof=1) + 1e-6))
    total = seen.sum(1)
    strength = np.maximum(0, total) / (np.abs(total) + 1e-6) * tanh_e
    if method == "weighted_sum":
        return normalise((values * coefficients).sum(1, keepdims=True), groups, scope)[:, 0], tanh_e
    if method == "summed_advantages":
        return (a * coefficients).sum(1), tanh_e
    if method.startswith("weighted_advantages"):
        over = groups if method.endswith("per_group") else 0 * groups
        return normalise((a * coefficients).sum(1, keepdims=True), over)[:, 0], tanh_e
    strength = strength if method == "moca" else 0 * strength
    chosen = np.array([algorithm_1(list(row), value)[1] for row, value in zip(seen, strength, strict=True)])
    return (chosen * a * coefficients).sum(1), tanh_e


GROUPS = [0, 1, 0, 1, 0, 1, 0, 1, 2, 2, 2]


def example(seed: int, coefficients=(1.0, 0.5, 2.0)) -> tuple[Scores, StepCredit]:
    values = np.random.default_rng(seed).normal(size=(len(GROUPS), 3)) * [1.0, 10.0, 0.1] + [0.0, 20.0, 0.3]
    return make_scores(values, GROUPS, coefficients), make_credit(len(GROUPS), seed)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("scope", "exploration"), [("group", "literal"), ("batch", "literal"), ("group", "centered")])
@pytest.mark.parametrize("weights", FUSION_WEIGHTS)
@pytest.mark.parametrize("seed", [0, 2])
def test_fuse_every_method(method, scope, exploration, weights, seed):
    """With groups of very different spread, so that the scopes of the standard deviation differ."""
    scores, credit = example(seed)
    wide = scores.values * torch.where(scores.groups == 1, 8.0, 1.0)[:, None]
    scores = make_scores(wide, GROUPS, scores.coefficients)
    result = fuse(scores, credit, method, std_scope=scope, exploration=exploration, weights=weights)
    z, tanh_e = expected_z(scores, credit, method, scope, exploration, weights)
    assert np.abs(z).max() > 0.05 and result.valid.all() and result.scores is scores and result.credit is credit
    np.testing.assert_allclose(result.fused.advantage, z, atol=1e-4)
    np.testing.assert_allclose(result.step_advantage, credit.weights.numpy() * z[:, None], atol=3e-4)
    if method != "moca":
        return
    metrics, means = result.metrics, [z[np.array(GROUPS) == group].mean() for group in range(3)]
    assert metrics["z/zero_fraction"] == pytest.approx((np.abs(z) < 1e-12).mean())
    assert metrics["z/group_mean"] == pytest.approx(np.mean(means), abs=1e-4)
    assert metrics["moca/tanh_e"] == pytest.approx(tanh_e.mean(), abs=1e-4)
    assert metrics["groups/masked_samples"] == 0.0
    coefficients = torch.tensor([metrics[f"moca/coefficient/r{k}"] for k in range(3)])
    torch.testing.assert_close(coefficients, result.fused.coefficients.mean(0))


def test_fuse_recentered_groups_have_mean_zero():
    scores, credit = example(4)
    plain, result = fuse(scores, credit, "moca"), fuse(scores, credit, "moca", recentering="group")
    assert plain.metrics["z/group_mean"] > 0.01
    for group in range(3):
        member = scores.groups == group
        assert result.fused.advantage[member].mean().item() == pytest.approx(0.0, abs=1e-6)
        shift = plain.fused.advantage[member] - result.fused.advantage[member]
        torch.testing.assert_close(shift, shift[:1].expand_as(shift))
    torch.testing.assert_close(result.step_advantage, credit.weights * result.fused.advantage[:, None])


@pytest.mark.parametrize(("sign", "coefficient"), [(1.0, 1.0), (-1.0, 2.0), (1.0, -0.5), (1.0, 0.0)])
def test_advantages_are_clipped_at_five_before_the_coefficient(sign, coefficient):
    # One among 40 stands out: A = 39/√40 = 6.17 is clipped to 5; the others have -1/√40 = -0.158.
    values = torch.zeros(40, 1)
    values[17] = sign
    result = fuse(make_scores(values, [0] * 40, [coefficient]), make_credit(40, 6), "moca")
    assert result.per_objective[17].item() == pytest.approx(5 * sign * coefficient)
    assert result.per_objective[0].item() == pytest.approx(-sign * coefficient / math.sqrt(40), abs=1e-5)
    assert result.fused.advantage[17].item() == pytest.approx(5 * sign * coefficient)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("options", [{}, {"recentering": "group"}, {"std_scope": "batch"}, {"exploration": "centered"}])
def test_a_masked_sample_gets_nothing_and_sways_nobody(method, options):
    scores, credit = example(7)
    values = scores.values.clone()
    values[2, 1] = values[9, 0] = NAN
    rest = [b for b in range(len(GROUPS)) if b not in (2, 9)]
    masked = fuse(make_scores(values, GROUPS, scores.coefficients), credit, method, **options)
    without = fuse(*pick(scores, credit, rest), method, **options)
    assert masked.valid.tolist() == [b in rest for b in range(len(GROUPS))]
    assert (masked.step_advantage[[2, 9]] == 0).all()
    assert masked.fused.advantage.isfinite().all()
    torch.testing.assert_close(masked.per_objective[rest], without.per_objective, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(masked.fused.advantage[rest], without.fused.advantage, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(masked.step_advantage[rest], without.step_advantage, rtol=1e-4, atol=1e-5)
    assert masked.metrics["groups/masked_samples"] == 2.0


@pytest.mark.parametrize("method", list(METHODS))
def test_a_sample_whose_latents_overflowed_is_masked(method, caplog):
    """Its picture is black, and was scored as any other."""
    scores, credit = example(7)
    overflowed = {name: getattr(credit, name).clone() for name in ("weights", "raw", "delta", "similarity")}
    for table in overflowed.values():
        table[2] = NAN
    broken = replace(credit, **overflowed)
    rest = [b for b in range(len(GROUPS)) if b != 2]
    masked, without = fuse(scores, broken, method), fuse(*pick(scores, credit, rest), method)
    assert "latents of the samples 2 are not finite" in caplog.text
    assert masked.valid.tolist() == [b != 2 for b in range(len(GROUPS))] and (masked.step_advantage[2] == 0).all()
    torch.testing.assert_close(masked.step_advantage[rest], without.step_advantage, rtol=1e-4, atol=1e-5)
    assert masked.fused.coefficients.isfinite().all()
    assert masked.metrics == pytest.approx(without.metrics | {"groups/masked_samples": 1.0}, rel=1e-4, abs=1e-6)


# -- credit by objective -----------------------------------------------------------------------------------------------


def plain_parts(result, scores: Scores, method: str, scope: str, recentering: str) -> np.ndarray:
    """What each objective gives to z, [B, K], sample by sample, for scores that are all finite (method.md §5)."""
    values, groups = scores.values.double().numpy(), scores.groups.numpy()
    a, parts = result.per_objective.double().numpy(), np.zeros(values.shape)
    for b in range(len(values)):
        for k in range(len(scores.coefficients)):
            if method in ("moca", "min_norm", "summed_advantages"):
                parts[b, k] = result.fused.coefficients[b, k].item() * a[b, k]
                continue
            column = values * np.array(scores.coefficients) if method == "weighted_sum" else a
            scope = {"weighted_advantages": "batch", "weighted_advantages_per_group": "group"}.get(method, scope)
            total = column.sum(1)
            std = total[groups == groups[b]].std(ddof=1) if scope == "group" else total.std(ddof=1)
            parts[b, k] = (column[b, k] - column[groups == groups[b], k].mean()) / (std + 1e-8)
    if recentering == "group":
        for group in np.unique(groups):
            parts[groups == group] -= parts[groups == group].mean(0)
    return parts


def by_objective(credit: StepCredit, objectives: int, seed: int) -> StepCredit:
    """The same with weights [B, T', K] of mean 1 over the steps for each objective."""
    weights = torch.rand(len(credit.weights), len(TRAINED), objectives, generator=torch.Generator().manual_seed(seed))
    weights = weights / weights.mean(1, keepdim=True)
    names = tuple(f"r{k}" for k in range(objectives))
    return replace(credit, weights=weights.mean(2), by_objective=weights, objectives=names)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("scope", "recentering"), [("group", "none"), ("group", "group"), ("batch", "none")])
def test_every_objective_has_its_own_steps(method, scope, recentering):
    """Ã_j = Σ_k w_jk·c_k·A_k, by a loop over samples, steps and objectives."""
    scores, credit = example(5)
    credit = by_objective(credit, 3, seed=1)
    result = fuse(scores, credit, method, std_scope=scope, recentering=recentering)
    parts = plain_parts(result, scores, method, scope, recentering)
    np.testing.assert_allclose(parts.sum(1), result.fused.advantage, atol=1e-4)
    for b in range(len(GROUPS)):
        for j in range(len(TRAINED)):
            expected = sum(credit.by_objective[b, j, k].item() * parts[b, k] for k in range(3))
            assert result.step_advantage[b, j].item() == pytest.approx(expected, abs=3e-4), (b, j)
    together = credit.weights * result.fused.advantage[:, None]
    assert (result.step_advantage - together).abs().max() > 0.1, "one weight for all objectives would do"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("recentering", ["none", "group"])
def test_weights_of_one_change_nothing_to_the_bit(method, recentering):
    scores, credit = example(6)
    scores = replace(scores, values=scores.values.clone())
    scores.values[3, 1], scores.values[5, 0] = NAN, LEFT_OUT
    ones = replace(credit, weights=torch.ones_like(credit.weights))
    own = replace(ones, by_objective=torch.ones(len(GROUPS), len(TRAINED), 3), objectives=scores.names)
    one, other = (fuse(scores, given, method, recentering=recentering) for given in (ones, own))
    assert torch.equal(one.step_advantage, other.step_advantage) and one.step_advantage.any()
    assert not other.step_advantage[3].any(), "a sample that failed trains nothing"


@pytest.mark.parametrize("method", METHODS)
def test_what_does_not_apply_gives_nothing_and_what_is_clipped_keeps_its_proportions(method):
    """One sample of 40 stands so far out that z is clipped to 5; the second reward applies to the others alone."""
    values = np.random.default_rng(0).normal(size=(40, 2)) * 0.01
    values[0] = [100.0, 0.0]
    scores = make_scores(values, [0] * 40, (20.0, 1.0))
    scores.values[0, 1] = LEFT_OUT
    credit = by_objective(make_credit(40, 2), 2, seed=3)
    result = fuse(scores, credit, method)
    z, parts = result.fused.advantage, result.fused.parts
    torch.testing.assert_close(parts.sum(1), z, atol=1e-5, rtol=1e-5)
    assert parts[0, 1].item() == pytest.approx(0, abs=0.02)
    if method.startswith("weighted"):
        assert z[0].item() == 5.0
        torch.testing.assert_close(result.step_advantage[0], 5 * credit.by_objective[0, :, 0], atol=0.05, rtol=0)


def test_objectives_that_agree_on_nothing_are_no_rounding_error():
    """A and -A: z is 0, and so is what each gives to it."""
    scores = make_scores([[0.3, -0.3], [0.1, -0.1], [0.7, -0.7]], [0, 0, 0])
    result = fuse(scores, by_objective(make_credit(3, 0), 2, seed=0), "weighted_advantages")
    assert not result.fused.advantage.any() and not result.step_advantage.any()


def test_weights_of_other_objectives_are_refused():
    scores, credit = example(0)
    other = replace(by_objective(credit, 3, seed=0), objectives=("r0", "r1", "taste"))
    with pytest.raises(
        ValueError, match="credit: .* r0, r1, taste, the scores of r0, r1, r2. Fix: connect both to the same"
    ):
        fuse(scores, other, "moca")


def test_best_of_n_keeps_what_each_objective_says_of_the_steps():
    scores, credit = example(7)
    whole = fuse(scores, by_objective(credit, 3, seed=2), "min_norm")
    best = best_of_n(whole, 1, 1)
    kept = best.valid.nonzero()[:, 0]
    assert len(kept) == 6 and torch.equal(best.step_advantage[kept], whole.step_advantage[kept])
    assert not best.step_advantage[~best.valid].any()


# -- what a reward does not apply to


@pytest.mark.parametrize("method", METHODS)
def test_a_reward_that_applies_to_no_sample_changes_nothing(method):
    scores, credit = example(7)
    values = torch.cat([scores.values, torch.full((len(scores.values), 1), LEFT_OUT)], 1)
    result = fuse(make_scores(values, GROUPS, [*scores.coefficients, 1.0]), credit, method)
    expected = fuse(scores, credit, method)
    torch.testing.assert_close(result.step_advantage, expected.step_advantage, rtol=0, atol=0)
    torch.testing.assert_close(result.fused.coefficients[:, :-1], expected.fused.coefficients, rtol=0, atol=0)
    assert (result.fused.coefficients[:, -1] == 0).all() and (result.per_objective[:, -1] == 0).all()
    assert result.metrics.items() >= expected.metrics.items()


def test_by_hand_where_one_of_two_rewards_does_not_apply_to_a_sample():
    """Sample 2 has only the first reward, whose advantages are -1, 0, 1; the second's are ∓1/√2 of the two others."""
    credit = make_credit(3, 0)
    scores = make_scores([[0.0, 5.0], [1.0, 3.0], [2.0, LEFT_OUT]], [0, 0, 0])
    half = 0.5**0.5
    for method, z in {
        "min_norm": [0.0, 0.0, 1.0],  # of -1 and 1/√2; of 0 and -1/√2; of 1 alone
        # Sums 5, 4 and 2 + 4, where 4 is the mean of the two that the second reward has scored.
        "weighted_sum": [0.0, -1.0, 1.0],
        "weighted_advantages": normalise(np.array([[half - 1], [-half], [1.0]]), np.zeros(3))[:, 0].tolist(),
    }.items():
        result = fuse(scores, credit, method)
        assert result.fused.advantage.tolist() == pytest.approx(z, abs=1e-6), method
        assert result.per_objective[2].tolist() == [pytest.approx(1.0), 0.0]
        assert result.fused.coefficients[2, 1] == 0 and result.valid.all()
        assert result.metrics["groups/masked_samples"] == 0 and result.metrics["groups/zero_std"] == 0


@pytest.mark.parametrize("method", METHODS)
def test_a_failure_beside_what_does_not_apply_takes_the_sample_out_and_so_do_no_scores(method):
    scores, credit = example(7)
    values = scores.values.clone()
    values[0] = torch.tensor([1.0, LEFT_OUT, NAN])
    values[1] = LEFT_OUT
    result = fuse(make_scores(values, GROUPS, scores.coefficients), credit, method)
    assert result.valid.tolist() == [False, False, *[True] * (len(GROUPS) - 2)]
    assert (result.step_advantage[:2] == 0).all() and result.step_advantage.isfinite().all()


@pytest.mark.parametrize("fusion", ["weighted_advantages", "weighted_sum"])
def test_gains_of_a_reward_that_does_not_apply_to_a_sample(fusion):
    """Ignored there, whatever they are; where it applies they count as if that sample were not in the group."""
    generator = torch.Generator().manual_seed(5)
    gains, similarity = torch.randn(4, 3, 2, generator=generator), torch.zeros(4, 6)
    values = torch.randn(4, 2, generator=generator)
    values[3, 1], gains[3, :, 1] = LEFT_OUT, NAN
    result = fuse_gains(gains, similarity, make_scores(values, [0] * 4), TRAINED, fusion)
    assert result.valid.all() and result.step_advantage.isfinite().all() and result.per_objective[3, 1] == 0
    others = gains[:3, :, 1].double()
    expected = (others - others.mean()) / (others.std(correction=0) + 1e-8)
    torch.testing.assert_close(result.per_objective[:3, 1], expected.mean(1).float())
    gains[3, 1, 0] = NAN
    result = fuse_gains(gains, similarity, make_scores(values, [0] * 4), TRAINED, fusion)
    assert result.valid.tolist() == [True, True, True, False]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rows", [{8: NAN, 10: NAN}, dict.fromkeys((8, 9, 10), torch.tensor([0.1, 0.7, 1 / 3]))])
def test_a_group_with_one_valid_sample_or_of_equal_rewards_gives_no_gradient_and_is_counted(method, rows):
    scores, credit = example(8)
    values = scores.values.clone()
    for row, value in rows.items():
        values[row] = value
    result = fuse(make_scores(values, GROUPS, scores.coefficients), credit, method)
    assert not result.step_advantage[8:].any() and result.step_advantage[:8].any()
    assert result.metrics["groups/zero_std"] == 1.0
    assert fuse(scores, credit, method).metrics["groups/zero_std"] == 0.0


def test_zero_fraction_counts_the_samples_where_objectives_disagree_and_lose():
    # A = ±1/√2 in each objective. Objectives that contradict each other have ΣA = 0, hence λ = 0 and z = 0;
    # in the second group they agree, and z = λ/2-clipped: A itself for the loser, min(A) for the winner.
    scores = make_scores([[1.0, 2.0], [2.0, 1.0], [1.0, 1.0], [2.0, 2.0]], [0, 0, 1, 1])
    result = fuse(scores, make_credit(4, 13), "moca")
    half = 1 / math.sqrt(2)
    assert result.fused.advantage.tolist() == pytest.approx([0.0, 0.0, -half, half], abs=1e-6)
    assert result.metrics["z/zero_fraction"] == 0.5
    assert result.metrics["z/group_mean"] == pytest.approx(0.0, abs=1e-6)


def test_where_rewards_cancel_little_is_trained():
    """GDPO: two rewards agree in even groups and nearly cancel in odd ones; normalised per group, noise has full strength."""
    random, groups = np.random.default_rng(0), np.arange(16 * 48) // 48
    first, noise = random.normal(size=(2, len(groups)))
    values = np.stack([first, np.where(groups % 2, -1, 1) * first + 0.13 * noise], 1)
    scores, credit, odd = make_scores(values, groups), make_credit(len(groups), 0), groups % 2 == 1
    for method, stds in {"weighted_advantages": (1.41, 0.09), "weighted_advantages_per_group": (0.99, 0.99)}.items():
        z = fuse(scores, credit, method).fused.advantage.numpy()
        assert (z[~odd].std(), z[odd].std()) == pytest.approx(stds, abs=0.01), method
    gains = scores.values[:, None].expand(-1, 3, -1)
    z = fuse_gains(gains, torch.zeros(768, 6), scores, TRAINED).fused.advantage.numpy()
    assert (z[~odd].std(), z[odd].std()) == pytest.approx((1.41, 0.09), abs=0.01)


# -- stepwise gains ----------------------------------------------------------------------------------------------------


# Objective r0: 0, 2 and 4, 2 (mean 2, variance 2); r1: 10, 10 and 30, 30 (mean 20, variance 100).
TWO = make_scores([[1.0, 2.0], [3.0, 4.0]], [0, 0], (1.0, 0.5))
GAINS = torch.tensor([[[0.0, 10.0], [2.0, 10.0]], [[4.0, 30.0], [2.0, 30.0]]])
SIMILAR = torch.tensor([[0.0, 0.5, 0.75, 1.0]] * 2)


def test_weighted_advantages_of_gains_by_hand():
    found = fuse_gains(GAINS, SIMILAR, TWO, (0, 2))
    a = np.array([[-2.0, 0.0], [2.0, 0.0]]) / 2**0.5
    b = 0.5 * np.array([[-1.0, -1.0], [1.0, 1.0]])
    total = a + b  # mean 0
    expected = total / np.sqrt((total**2).mean())
    np.testing.assert_allclose(found.step_advantage, expected, rtol=1e-6)
    np.testing.assert_allclose(found.per_objective, np.stack([a.mean(1), b.mean(1)], 1), rtol=1e-6)
    np.testing.assert_allclose(found.fused.advantage, expected.mean(1), rtol=1e-6)
    np.testing.assert_allclose(found.credit.weights, 2 * abs(expected) / abs(expected).sum(1, keepdims=True), rtol=1e-6)
    torch.testing.assert_close(found.credit.delta[0], torch.tensor([0.5, 0.25, 0.25]))
    assert found.credit.trained == (0, 2) and found.fused.coefficients.tolist() == [[1.0, 1.0]] * 2
    assert found.metrics["gain/r1/2"] == 20.0 and found.metrics["groups/zero_std"] == 0


def test_weighted_sum_of_gains_by_hand():
    # a + b/2: 5, 7 and 19, 17: mean 12, variance (49 + 25 + 49 + 25)/4 = 37.
    found = fuse_gains(GAINS, SIMILAR, TWO, (0, 2), fusion="weighted_sum")
    np.testing.assert_allclose(found.step_advantage, np.array([[-7.0, -5.0], [7.0, 5.0]]) / 37**0.5, rtol=1e-6)
    assert found.fused.coefficients.tolist() == [[1.0, 0.5]] * 2
    with pytest.raises(ValueError, match="fusion must be one of .* not 'moca'"):
        fuse_gains(GAINS, SIMILAR, TWO, (0, 2), fusion="moca")


def test_a_sample_with_a_gap_takes_no_part_whether_on_the_way_or_at_the_end():
    gains = torch.tensor([[0.0, 1.0], [2.0, 5.0], [NAN, 7.0], [3.0, 3.0]])[:, :, None]
    scores = make_scores([[1.0], [2.0], [3.0], [NAN]], [0] * 4)
    found = fuse_gains(gains, SIMILAR[:1].expand(4, -1), scores, (0, 1))
    assert found.valid.tolist() == [True, True, False, False] and found.metrics["groups/masked_samples"] == 2
    np.testing.assert_allclose(found.step_advantage[:2], np.array([[-2.0, -1.0], [0.0, 3.0]]) / 3.5**0.5, atol=1e-6)
    assert torch.equal(found.step_advantage[2:], torch.zeros(2, 2))


def test_a_group_without_spread_is_counted_and_silent():
    found = fuse_gains(torch.ones(2, 2, 2), SIMILAR, TWO, (0, 1))
    assert torch.equal(found.step_advantage, torch.zeros(2, 2)) and found.metrics["groups/zero_std"] == 1
    assert torch.equal(found.credit.weights, torch.ones(2, 2)), "credit of mean one, though of nothing"


# -- best of n ---------------------------------------------------------------------------------------------------------


def judged(rewards, groups):
    """Advantages of one reward under uniform credit over three steps."""
    path = torch.randn((len(rewards), 4, 2), generator=torch.Generator().manual_seed(0))
    scores = make_scores(torch.tensor(rewards)[:, None], groups)
    return fuse(scores, uniform(path, path[:, -1], range(3)), "weighted_advantages")


def kept(advantages):
    return advantages.valid.nonzero()[:, 0].tolist()


def test_by_hand():
    advantages = judged([3.0, 1.0, 4.0, 1.5, 9.0, 2.0], [0] * 6)
    chosen = best_of_n(advantages, 2, 1)
    assert kept(chosen) == [1, 2, 4] and chosen.metrics["groups/kept_samples"] == 3
    assert torch.equal(chosen.step_advantage[[1, 2, 4]], advantages.step_advantage[[1, 2, 4]])
    assert not chosen.step_advantage[[0, 3, 5]].any()
    assert torch.equal(chosen.fused.advantage, advantages.fused.advantage), "whole groups still give the statistics"
    assert kept(advantages) == list(range(6)), "what came in is as it was"


PROMPTS = [0, 1] * 4  # rewards of the second are all higher, and taken together it would get all places
FAILED = [5.0, NAN, 1.0, 2.0, 3.0, NAN, 7.0, 6.0], [0] * 5 + [1] * 3  # which have no place; small groups stay whole


@pytest.mark.parametrize(
    ("rewards", "groups", "best", "worst", "expected"),
    [
        ([3.0, 1.0, 4.0, 1.5, 9.0, 2.0], [0] * 6, 1, 0, [4]),
        ([1.0, 10.1, 2.0, 10.4, 3.0, 10.2, 4.0, 10.3], PROMPTS, 1, 1, [0, 1, 3, 6]),
        (*FAILED, 1, 1, [0, 2, 6, 7]),
        (*FAILED, 3, 4, [0, 2, 3, 4, 6, 7]),
        (*FAILED, 9, 9, [0, 2, 3, 4, 6, 7]),
        ([NAN, NAN], [0, 0], 1, 1, []),
        ([1.0] * 5, [0] * 5, 1, 1, [0, 4]),  # of equals the first is the better
        ([2.0, 2.0, 1.0, 1.0, 0.0], [0] * 5, 1, 2, [0, 3, 4]),
    ],
)
def test_who_is_kept(rewards, groups, best, worst, expected):
    assert kept(best_of_n(judged(rewards, groups), best, worst)) == expected


@given(
    st.lists(st.tuples(st.integers(-4, 4), st.integers(0, 2), st.booleans()), min_size=2, max_size=20),
    st.integers(1, 5),
    st.integers(0, 5),
)
@cases
def test_counts_and_order(samples, best, worst):
    rewards = [NAN if failed else float(reward) for reward, _, failed in samples]
    groups = [group for _, group, _ in samples]
    before = judged(rewards, groups)
    after = best_of_n(before, best, worst)
    z = before.fused.advantage
    for group in set(groups):
        valid = [row for row in kept(before) if groups[row] == group]
        own = [row for row in kept(after) if groups[row] == group]
        assert len(own) == min(len(valid), best + worst)
        left_out = [row for row in valid if row not in own]
        # Nobody who is left out is better than `best` others, nor worse than `worst` others.
        for row in left_out:
            assert sum(z[row] <= z[other] for other in own) >= best
            assert sum(z[row] >= z[other] for other in own) >= worst


@pytest.mark.parametrize("kl", [0.0, 0.05])
def test_the_loss_is_the_mean_over_those_that_are_kept(model, perturb, sample, kl):
    perturb(model)
    taken = sample(model, group_size=4)
    rewards = torch.randn(8, generator=torch.Generator().manual_seed(1)).tolist()
    advantages = best_of_n(judged(rewards, taken.groups.tolist()), 1, 1)
    still = UpdateSettings(learning_rate=0.0, max_grad_norm=1e9, kl_coefficient=kl)
    calls = []
    hook = model.transformer.register_forward_pre_hook(
        lambda _, __, inputs: calls.append(len(inputs["hidden_states"])), with_kwargs=True
    )
    found = update(model, taken, advantages, still)
    hook.remove()
    gradient = [parameter.grad.clone() for parameter in model.policy.trainable_parameters()]
    # The same four samples as two groups of two, by themselves.
    rows = advantages.valid.nonzero()[:, 0]
    parts = {name: getattr(taken, name)[rows] for name in ("latents", "final", "images", "log_probs", "groups")}
    few = replace(taken, share=replace(taken.share, rows=range(4), total=4), **parts)
    scores = replace(advantages.scores, groups=advantages.scores.groups[rows])
    alone = replace(
        advantages, step_advantage=advantages.step_advantage[rows], valid=advantages.valid[rows], scores=scores
    )
    expected = update(model, few, alone, still)
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-6) and found["gradient_norm"] > 0
    for own, parameter in zip(gradient, model.policy.trainable_parameters(), strict=True):
        torch.testing.assert_close(own, parameter.grad, rtol=1e-5, atol=1e-7)
    # Each step computes the four (with KL once more for the reference), but the first, which a group shares.
    assert max(calls) == 4


def test_a_pair_has_one_and_minus_one_whatever_the_credit():
    scores = make_scores([[1.0], [0.0], [0.0], [1.0], [1.0], [0.0]], [0, 0, 1, 1, 2, 2])
    weights = torch.tensor([[1.5, 0.5]]).repeat(6, 1)
    similarity = torch.ones(6, 3)
    similarity[4, 1] = torch.nan  # latents that are not finite
    credit = StepCredit(weights, weights / 2, similarity.diff(dim=1), similarity, (0, 1))
    found = of_pairs(scores, credit)
    assert found.fused.advantage.tolist() == [1, -1, -1, 1, 0, -1]
    assert found.valid.tolist() == [True, True, True, True, False, True]
    assert found.step_advantage.tolist() == [[1.5, 0.5], [-1.5, -0.5], [-1.5, -0.5], [1.5, 0.5], [0, 0], [-1.5, -0.5]]
    assert found.metrics["groups/masked_samples"] == 1 and found.metrics["credit/step/0"] == pytest.approx(1.5)
