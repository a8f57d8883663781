"""Step credit against small cases worked out by hand and an independent numpy version of Eq. 6-8."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from comfyui_otca.trainer.credit.steps import combined, grpo_guard, noise_aware, pcpo, tcd, uniform, with_spatial
from comfyui_otca.trainer.sde import sensitivities

FINAL = torch.tensor([[1.0, 0.0]])
# Cosines with (1, 0): 0, 0.8, 0.6, 0.8, 1, hence ΔS = 0.8, -0.2, 0.2, 0.2 and ŵ = 2/3, 0, 1/6, 1/6.
BENT = torch.tensor([[[0.0, 1.0], [4.0, 3.0], [3.0, 4.0], [0.8, 0.6], [2.0, 0.0]]])

cases = settings(max_examples=60, deadline=None, derandomize=True, database=None)
# Cosines on a grid, so that a gain is either exactly none or far above float32's rounding.
paths = st.lists(st.integers(-32, 32), min_size=3, max_size=12)
floors = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.8, 0.95, 1.0])


def on_path(cosines: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Latents [1, T+1, 2] whose cosines with the final (1, 0) are the given ones."""
    return torch.tensor([[[c, math.sqrt(1 - c * c)] for c in cosines]]), FINAL


def brute_force(latents: torch.Tensor, final: torch.Tensor, trained: list[int]) -> tuple[np.ndarray, ...]:
    """S, ΔS and ŵ in float64, one number at a time."""
    similarity = np.zeros(latents.shape[:2])
    for b in range(latents.shape[0]):
        target = final[b].double().numpy().ravel()
        for j in range(latents.shape[1]):
            point = latents[b, j].double().numpy().ravel()
            similarity[b, j] = sum(point * target) / math.sqrt(sum(point**2) * sum(target**2))
    delta = similarity[:, 1:] - similarity[:, :-1]
    gain = np.maximum(0, delta[:, trained]) + 1e-8
    return similarity, delta, gain / gain.sum(1, keepdims=True)


def assert_values(tensor: torch.Tensor, expected: list[float], tolerance: float = 1e-5):
    assert tensor[0].tolist() == pytest.approx(expected, abs=tolerance)


def test_similarity_and_gain_by_hand():
    credit = tcd(BENT, FINAL, trained=range(4))
    assert_values(credit.similarity, [0.0, 0.8, 0.6, 0.8, 1.0])
    assert_values(credit.delta, [0.8, -0.2, 0.2, 0.2])
    assert_values(credit.raw, [2 / 3, 0.0, 1 / 6, 1 / 6])
    assert credit.trained == (0, 1, 2, 3)
    # Steps 0 and 3 gain 0.8 and 0.2: ŵ = 0.8, 0.2 and w = 0.5 + 0.5·2·ŵ. ΔS and S stay whole.
    credit = tcd(BENT, FINAL, trained=[0, 3])
    assert_values(credit.raw, [0.8, 0.2])
    assert_values(credit.weights, [1.3, 0.7])
    assert credit.trained == (0, 3) and credit.delta.shape == (1, 4) and credit.similarity.shape == (1, 5)
    alone = tcd(BENT, FINAL, trained=[1])  # it gains nothing, though others do
    assert (alone.raw.item(), alone.weights.item()) == (pytest.approx(1), pytest.approx(1))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1.833333, 0.5, 0.833333, 0.833333]),  # affine is the default, and starts at one half: 0.5 + 0.5·4·ŵ
        ({"w_min": 0.25, "floor": "affine"}, [2.25, 0.25, 0.75, 0.75]),  # 0.25 + 0.75·4·ŵ
        # 4·ŵ = 8/3, 0, 2/3, 2/3, and clamp only lifts
        ({"w_min": 0.5, "floor": "clamp"}, [2.666667, 0.5, 0.666667, 0.666667]),
        ({"w_min": 0.7, "floor": "clamp"}, [2.666667, 0.7, 0.7, 0.7]),
        # One entry lifted to 0.5 leaves 3.5 for entries that sum to 4: times 0.875.
        ({"w_min": 0.5, "floor": "waterfill"}, [2.333333, 0.5, 0.583333, 0.583333]),
        # With one lifted to 0.6 the scale is 3.4/4 and 2/3·0.85 = 0.567 < 0.6: three are lifted, the last takes 4 - 1.8.
        ({"w_min": 0.6, "floor": "waterfill"}, [2.2, 0.6, 0.6, 0.6]),
        ({"w_min": 0.5, "normalize": "sum"}, [2 / 3, 0.0, 1 / 6, 1 / 6]),  # the literal equation, without a floor
    ],
)
def test_floors_by_hand(settings, expected):
    assert_values(tcd(BENT, FINAL, range(4), **settings).weights, expected)


@pytest.mark.parametrize("floor", ["affine", "waterfill", "clamp"])
def test_uniform_where_nothing_is_gained(floor):
    latents, final = on_path([0.9, 0.7, 0.7, 0.2, -0.5])
    credit = tcd(latents, final, range(4), w_min=0.3, floor=floor)
    assert_values(credit.raw, [0.25] * 4)
    assert_values(credit.weights, [1.0] * 4)
    latents, final = on_path([0.5, 0.25, 1.0, 0.75])  # where other steps gain
    assert_values(tcd(latents, final, trained=[0, 2], w_min=0.3, floor=floor).raw, [0.5, 0.5])


def test_cosines_run_over_all_latent_dimensions_and_in_float32():
    generator = torch.Generator().manual_seed(0)
    latents, final = torch.randn(3, 6, 2, 3, 4, generator=generator), torch.randn(3, 2, 3, 4, generator=generator)
    similarity, delta, raw = brute_force(latents, final, list(range(5)))
    credit = tcd(latents, final, range(5))
    np.testing.assert_allclose(credit.similarity, similarity, atol=1e-6)
    np.testing.assert_allclose(credit.delta, delta, atol=1e-6)
    np.testing.assert_allclose(credit.raw, raw, atol=1e-5)
    np.testing.assert_allclose(credit.weights, 0.5 + 0.5 * 5 * raw, atol=1e-4)
    for b in range(3):  # each sample is judged by its own final latent
        alone = tcd(latents[b : b + 1], final[b : b + 1], [0, 2, 3])
        torch.testing.assert_close(tcd(latents, final, [0, 2, 3]).weights[b : b + 1], alone.weights)
    low = latents.bfloat16(), final.bfloat16()
    credit = tcd(*low, range(3))
    assert credit.similarity.dtype == torch.float32
    np.testing.assert_allclose(credit.similarity, brute_force(*low, [0, 1, 2])[0], atol=1e-6)


@cases
@given(path=paths, w_min=floors)
def test_floors_keep_the_mean_the_order_and_the_ratios(path, w_min):
    latents, final = on_path([c / 32 for c in path])
    steps = range(len(path) - 1)
    affine = tcd(latents, final, steps, w_min=w_min, floor="affine").weights
    assert affine.mean().item() == pytest.approx(1.0, abs=1e-6)
    assert affine.min() >= torch.tensor(w_min)
    credit = tcd(latents, final, steps, w_min=w_min, floor="waterfill")
    raw, weights = credit.raw[0], credit.weights[0]
    assert weights.mean().item() == pytest.approx(1.0, abs=1e-5)
    assert weights.min().item() >= w_min - 1e-6
    assert (weights[raw.argsort()].diff() >= -1e-6).all()
    above = weights > w_min + 1e-4
    if above.any() and w_min > 0:
        ratios = weights[above] / raw[above]
        torch.testing.assert_close(ratios, ratios[:1].expand_as(ratios), rtol=1e-4, atol=0)
    plain = len(steps) * brute_force(latents, final, list(steps))[2]
    clamp = tcd(latents, final, steps, w_min=w_min, floor="clamp").weights
    np.testing.assert_allclose(clamp, np.maximum(plain, w_min), atol=2e-4)
    for floor in ("affine", "waterfill", "clamp"):  # floor 0 is the equation times the number of steps, 1 plain GRPO
        np.testing.assert_allclose(tcd(latents, final, steps, w_min=0.0, floor=floor).weights, plain, atol=2e-4)
        if floor != "clamp":
            whole = tcd(latents, final, steps, w_min=1.0, floor=floor).weights
            torch.testing.assert_close(whole, torch.ones_like(whole), rtol=0, atol=1e-5)


@cases
@given(path=paths, data=st.data())
def test_raw_weights_of_any_trained_subset_sum_to_one(path, data):
    latents, final = on_path([c / 32 for c in path])
    steps = len(path) - 1
    trained = data.draw(st.lists(st.integers(0, steps - 1), min_size=1, unique=True).map(sorted))
    credit = tcd(latents, final, trained, normalize="sum")
    assert credit.raw.sum().item() == pytest.approx(1.0, abs=1e-6)
    assert credit.weights.sum().item() == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_allclose(credit.raw, brute_force(latents, final, trained)[2], atol=1e-4)


@cases
@given(seed=st.integers(0, 10_000), exponents=st.lists(st.integers(-8, 8), min_size=6, max_size=6))
def test_the_length_of_a_latent_does_not_matter(seed, exponents):
    generator = torch.Generator().manual_seed(seed)
    latents, final = torch.randn(1, 5, 8, generator=generator), torch.randn(1, 8, generator=generator)
    reference = tcd(latents, final, range(4))
    assume((reference.delta > 1e-3).any())
    scales = torch.tensor([2.0**e for e in exponents])
    scaled = tcd(latents * scales[:5, None], final * scales[5], range(4))
    torch.testing.assert_close(scaled.similarity, reference.similarity, rtol=0, atol=1e-6)
    torch.testing.assert_close(scaled.weights, reference.weights, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"floor": "linear"}, "floor"),
        ({"normalize": "max"}, "normalize"),
        *(({"w_min": w_min}, "w_min") for w_min in (-0.1, 1.1)),
        *(({"trained": trained}, "trained") for trained in ([], [0, 4], [-1])),
    ],
)
def test_tcd_refuses(changed, message):
    with pytest.raises(ValueError, match=message):
        tcd(BENT, FINAL, **{"trained": [0, 1]} | changed)


def test_uniform_is_one_everywhere_and_still_reports_similarities():
    credit = uniform(BENT.expand(3, -1, -1), FINAL.expand(3, -1), trained=[0, 2, 3])
    assert credit.weights.tolist() == [[1.0] * 3] * 3
    assert_values(credit.raw, [1 / 3] * 3)
    assert_values(credit.delta, [0.8, -0.2, 0.2, 0.2])
    assert credit.trained == (0, 2, 3)


@pytest.mark.parametrize(
    ("steps", "fraction", "kept"),
    [(10, 0.6, 6), (10, 0.5, 5), (10, 0.1, 1), (10, 0.9, 9), (10, 1.0, 10)]
    + [(4, 0.6, 3), (7, 0.6, 5), (5, 0.5, 3), (5, 0.01, 1)],  # "a random subset of ceil(fraction·T') steps"
)
def test_uniform_with_a_fraction_keeps_exactly_that_many_steps(steps, fraction, kept):
    def choice(seed):
        generator = torch.Generator().manual_seed(seed)
        return uniform(torch.ones(50, steps + 1, 2), torch.ones(50, 2), range(steps), fraction, generator)

    credit = choice(0)
    # The kept ones share the weight of all, so that the mean stays 1.
    torch.testing.assert_close(credit.weights.unique()[-1], torch.tensor(steps / kept))
    assert ((credit.weights > 0).sum(1) == kept).all()
    torch.testing.assert_close(credit.raw.sum(1), torch.ones(50))
    # Chosen per sample and by the generator, and no step is left out or preferred by construction.
    assert (credit.weights.sum(0) > 0).all()
    assert fraction == 1.0 or len(credit.weights.unique(dim=0)) > 1
    assert torch.equal(choice(0).weights, credit.weights)
    assert torch.equal(choice(1).weights, credit.weights) == (fraction == 1.0)


def test_uniform_refuses():
    for fraction in (0.0, -0.5, 1.5):
        with pytest.raises(ValueError, match="fraction"):
            uniform(BENT, FINAL, [0, 1], fraction)
    with pytest.raises(ValueError, match="trained"):
        uniform(BENT, FINAL, [4])


# --- credit by the sampler's noise -------------------------------------------------------------------------------------


def test_noise_aware_by_hand():
    # Of the trained stds 1, 2 and 3 the mean is 2.
    credit = noise_aware(BENT, FINAL, [0, 2, 3], stds=[1.0, 9.0, 2.0, 3.0])
    assert_values(credit.weights, [0.5, 1.0, 1.5])
    assert_values(credit.raw, [1 / 6, 2 / 6, 3 / 6])
    assert_values(credit.delta, [0.8, -0.2, 0.2, 0.2])
    assert credit.ratio_scale == () and not credit.regulated and credit.spatial is None


def flow_schedule():
    """σ of the method's check value: shift 3, ten steps."""
    u = [1 - j / 10 for j in range(11)]
    return [3 * v / (1 + 2 * v) for v in u]


def test_pcpo_against_the_published_constant():
    sigmas = flow_schedule()
    own = sensitivities("flow_sde", sigmas, 0.7)
    latents = torch.randn((2, 11, 4), generator=torch.Generator().manual_seed(0))
    credit = pcpo(latents, latents[:, -1], range(10), own, sigmas)
    steps = [a - b for a, b in zip(sigmas, sigmas[1:], strict=False)]
    zeta = [scale * c / step for scale, c, step in zip(credit.ratio_scale, own, steps, strict=True)]
    assert zeta == pytest.approx([4.3152134639895925] * 10, rel=1e-12)
    assert (credit.weights == 1).all()


def test_pcpo_pulls_by_the_length_of_the_step():
    sigmas = flow_schedule()
    own = sensitivities("dance_sde", sigmas, 0.3)
    latents = torch.randn((1, 11, 4), generator=torch.Generator().manual_seed(0))
    credit = pcpo(latents, latents[:, -1], [1, 4, 8], own, sigmas)
    pull = [scale * own[j] for scale, j in zip(credit.ratio_scale, [1, 4, 8], strict=True)]
    lengths = [sigmas[j] - sigmas[j + 1] for j in (1, 4, 8)]
    assert [p / pull[0] for p in pull] == pytest.approx([d / lengths[0] for d in lengths])
    # ζ is that of the steps that could be trained: all but the last, wherever a window stands.
    assert pull[0] / lengths[0] == pytest.approx(sum(own[:9]) / (1 - sigmas[9]))
    elsewhere = pcpo(latents, latents[:, -1], [2, 3, 4], own, sigmas)
    assert elsewhere.ratio_scale[2] == credit.ratio_scale[1], "step 4, in either window"


def test_grpo_guard_by_hand():
    # Steps of length 0.1, 0.4 and 0.4: 1/Δ = 10, 2.5, 2.5, of mean 5.
    credit = grpo_guard(BENT, FINAL, [0, 1, 3], stds=[0.1, 0.2, 0.3, 0.4], sigmas=[1.0, 0.9, 0.5, 0.4, 0.0])
    assert_values(credit.weights, [2.0, 0.5, 0.5])
    assert credit.ratio_scale == (0.1, 0.2, 0.4) and credit.regulated


def test_combined_by_hand():
    first = tcd(BENT, FINAL, range(4), w_min=0.0)  # 8/3, 0, 2/3, 2/3
    second = noise_aware(BENT, FINAL, range(4), stds=[1.0, 1.0, 4.0, 2.0])  # ∝ 1, 1, 4, 2
    both = combined(first, second)
    # 8/3, 0, 8/3, 4/3 of mean 5/3
    assert_values(both.weights, [1.6, 0.0, 1.6, 0.8])
    assert torch.equal(both.raw, first.raw) and torch.equal(both.delta, first.delta)
    assert both.method == "tcd · noise_aware" and both.spatial is None and both.ratio_scale == ()


def test_combined_with_weights_by_objective():
    path, final = BENT.expand(2, *BENT.shape[1:]), FINAL.expand(2, *FINAL.shape[1:])
    base = uniform(path, final, [0, 1])
    own = torch.tensor([[[2.0, 0.5], [0.0, 1.5]]]).expand(2, 2, 2)
    learned = replace(base, by_objective=own, weights=own.mean(2), objectives=("a", "b"), metrics={"found": 1.0})
    by_sample = replace(base, weights=torch.tensor([[1.0, 1.0], [1.5, 0.5]]), metrics={"more": 2.0})
    for both in (combined(learned, by_sample), combined(by_sample, learned)):
        # Of the second sample: a has 3 and 0, of mean 1.5; b 0.75 and 0.75, of mean 0.75.
        torch.testing.assert_close(both.by_objective[0], own[0])
        torch.testing.assert_close(both.by_objective[1], torch.tensor([[2.0, 1.0], [0.0, 1.0]]))
        torch.testing.assert_close(both.weights, torch.tensor([[1.25, 0.75], [1.5, 0.5]]))
        assert both.objectives == ("a", "b") and both.metrics == {"found": 1.0, "more": 2.0}
    twice = combined(learned, learned)
    torch.testing.assert_close(twice.by_objective[0], torch.tensor([[2.0, 0.2], [0.0, 1.8]]))
    nothing = combined(learned, replace(base, weights=torch.tensor([[0.0, 2.0]] * 2)))
    torch.testing.assert_close(nothing.by_objective[0], torch.tensor([[0.0, 0.0], [0.0, 2.0]]))
    with pytest.raises(ValueError, match="credit_1 is of the objectives a, b, credit_2 of c, d. Fix: connect both"):
        combined(learned, replace(learned, objectives=("c", "d")))
    assert torch.equal(with_spatial(learned, torch.ones(2, 3, 3)).by_objective, own)


def test_combined_keeps_places_scales_and_the_guard():
    plain = uniform(BENT, FINAL, range(4))
    place = torch.tensor([[[2.0, 0.0], [1.0, 1.0]]])
    there = replace(plain, spatial=place, ratio_scale=(1.0, 2.0, 3.0, 4.0))
    guard = replace(plain, ratio_scale=(2.0, 2.0, 0.5, 1.0), regulated=True)
    both = combined(replace(there, ratio_scale=()), guard)
    assert torch.equal(both.spatial, place) and both.ratio_scale == (2.0, 2.0, 0.5, 1.0) and both.regulated
    twice = combined(there, replace(plain, spatial=place))
    # 4, 0, 1, 1 of mean 1.5
    torch.testing.assert_close(twice.spatial, torch.tensor([[[4.0, 0.0], [1.0, 1.0]]]) / 1.5)
    assert twice.ratio_scale == (1.0, 2.0, 3.0, 4.0) and not twice.regulated


def test_what_does_not_combine():
    plain = uniform(BENT, FINAL, range(4))
    first, second = (replace(plain, method=name, ratio_scale=(1.0, 2.0, 3.0, 4.0)) for name in ("pcpo", "grpo_guard"))
    with pytest.raises(ValueError, match=r"credit_1 \(pcpo\) and credit_2 \(grpo_guard\) both rescale.*Fix: keep one"):
        combined(first, second)
    with pytest.raises(ValueError, match="credit: it is of 1 samples, the trajectories are 2. Fix: connect both"):
        with_spatial(plain, torch.ones(2, 3, 3))
    with pytest.raises(ValueError, match=r"steps \(0, 1\) .* steps \(0, 2\) do not go together. Fix: connect both"):
        combined(uniform(BENT, FINAL, [0, 1]), uniform(BENT, FINAL, [0, 2]))


def test_a_second_place_is_multiplied_with_the_first():
    credit = uniform(torch.ones(1, 3, 1), torch.ones(1, 1), (0, 1))
    first, second = torch.tensor([[[0.5, 1.5]]]), torch.tensor([[[1.5, 0.5]]])
    both = with_spatial(with_spatial(credit, first), torch.tensor([[[1.8, 0.2]]]))
    # 0.5·1.8 and 1.5·0.2 are 0.9 and 0.3, of mean 0.6.
    torch.testing.assert_close(both.spatial, torch.tensor([[[1.5, 0.5]]]))
    torch.testing.assert_close(with_spatial(with_spatial(credit, first), second).spatial, torch.ones(1, 1, 2))
