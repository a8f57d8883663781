"""The matching losses against a loop over samples in the papers' own terms, and against the gradient that they share."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from comfyui_otca.trainer.credit.sampled_steps import drawn, everywhere, inclusion
from comfyui_otca.trainer.types import AWM_WEIGHTINGS
from comfyui_otca.trainer.updates.matching_losses import KINDS, loser_scale, matching_loss, pairs

SHAPE = (6, 2, 3, 4)  # two groups of three


def normal(seed: int, *shape: int, dtype=torch.float64) -> Tensor:
    return torch.randn(shape or SHAPE, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.fixture
def case():
    """Arguments of `matching_loss` but for the kind; levels, and the noise of a group, as `dgpo` and `dpo` want them."""
    noise = normal(1, 2, *SHAPE[1:]).repeat_interleave(3, 0)
    x0 = normal(2)
    near = noise - x0 + 0.4 * normal(3)  # a velocity that predicts something
    return {
        "velocity": (near + 0.1 * normal(4)).requires_grad_(),
        "x0": x0,
        "noise": noise,
        "sigma": torch.tensor([0.9, 0.9, 0.9, 0.3, 0.3, 0.3], dtype=torch.float64),
        "advantage": torch.tensor([1.2, -0.9, 0.0, 6.5, -0.4, -7.0], dtype=torch.float64),
        "old": near,
        "reference": near + 0.1 * normal(5),
        "groups": torch.tensor([4, 4, 4, 1, 1, 1]),
        "beta": 0.7,
    }


def of_the_loop(
    kind, velocity, x0, noise, sigma, advantage, *, old=None, reference, groups, beta, weight=None, clip=None
):
    """The loss as its authors write it, one sample after the other."""
    old = velocity.detach() if old is None else old
    weight = torch.ones(len(x0), dtype=torch.float64) if weight is None else weight
    total, count, target = 0.0, len(x0), noise - x0
    for b in range(len(x0)):
        members = [i for i in range(len(x0)) if groups[i] == groups[b]]
        gained = {
            i: ((velocity[i] - target[i]) ** 2).mean() - ((reference[i] - target[i]) ** 2).mean() for i in members
        }
        s, a = sigma[b].item(), advantage[b].item()
        x = (1 - s) * x0[b] + s * noise[b]
        fit, fit_old = ((velocity[b] - target[b]) ** 2).mean(), ((old[b] - target[b]) ** 2).mean()
        if kind == "nft":
            r = min(max(a / 10 + 0.5, 0.0), 1.0)
            terms = []
            for sign in (1, -1):
                predicted = x - s * (old[b] + sign * beta * (velocity[b] - old[b]))
                w = max((predicted - x0[b]).abs().mean().item(), 1e-5)
                terms.append(((predicted - x0[b]) ** 2 / w).mean())
            own = 5 * (r / beta * terms[0] + (1 - r) / beta * terms[1])
        elif kind == "awm":
            a = min(max(a, -5.0), 5.0) / 5
            log_p = [-(s / 0.25) * ((value + 1e-10) ** 0.25 - (1e-10) ** 0.25) for value in (fit, fit_old)]
            ratio = torch.exp(log_p[0] - log_p[1])
            c = 1.0 if clip is None else clip
            bounded = min(max(ratio.item(), 1 - c), 1 + c) if not 1 - c <= ratio <= 1 + c else ratio
            own = -a * ratio if -a * ratio >= -a * bounded else torch.tensor(-a * bounded, dtype=torch.float64)
        elif kind == "dgpo":
            s_g = sum(advantage[i].item() * beta * gained[i].item() / len(members) for i in members)
            ratio, c = math.exp(fit_old.item() - fit.item()), 0.05 if clip is None else clip
            if (a > 0 and ratio > 1 + c) or (a < 0 and ratio < 1 - c):
                fit = fit.detach()
            own = 1 / (1 + math.exp(-s_g)) * a * fit
        else:
            best = max(members, key=lambda i: advantage[i].item())
            worst = min(members, key=lambda i: advantage[i].item())
            if b != best:
                continue
            inside = -(beta / 2) * (gained[best] - gained[worst])
            own, count = -torch.log(1 / (1 + torch.exp(-inside))), 2
        total = total + weight[b].item() * own
    return total / count


def gradient_of(loss, velocity):
    return torch.autograd.grad(loss, velocity)[0]


def sixth(value):
    """Six numbers, of which the last is this one."""
    return torch.tensor([1.0] * 5 + [value])


@pytest.mark.parametrize("off_policy", [True, False])
@pytest.mark.parametrize(("kind", "clip"), [*((kind, None) for kind in KINDS), ("awm", 0.004), ("dgpo", 0.004)])
def test_loss_and_gradient_of_a_loop_over_samples(case, kind, clip, off_policy):
    weight = torch.tensor([1.0, 2.0, 0.0, 0.5, 1.5, 0.5], dtype=torch.float64)
    if kind == "dpo":  # a pair shares a level, and so its weight
        weight = torch.tensor([2.0, 2.0, 2.0, 0.5, 0.5, 0.5], dtype=torch.float64)
    case |= {"weight": weight, "clip": clip} | ({} if off_policy else {"old": None})
    loss, _ = matching_loss(kind, **case)
    expected = of_the_loop(kind, **case)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    found, plain = (gradient_of(value, case["velocity"]) for value in (loss, expected))
    assert plain.abs().max() > 0
    torch.testing.assert_close(found, plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("weighting", AWM_WEIGHTINGS)
def test_awms_weightings_are_flow_factorys(case, weighting):
    options = {name: case[name] for name in ("velocity", "x0", "noise", "sigma", "advantage", "old")}
    log_probs = []
    for velocity in (case["velocity"], case["old"]):
        error, t = ((velocity - (case["noise"] - case["x0"])) ** 2).mean((1, 2, 3)), case["sigma"]
        forms = {"uniform": error, "t": error * t, "t**2": error * t**2, "huber": ((error + 1e-10) ** 0.5 - 1e-5) * t}
        forms["ghuber"] = ((error + 1e-10) ** 0.25 - 1e-10**0.25) * t / 0.25
        log_probs.append(-forms[weighting])
    ratio = (log_probs[0] - log_probs[1]).exp()
    expected = -(case["advantage"].clamp(-5, 5) / 5 * ratio).mean()  # all within the clip range of 1
    own, _ = matching_loss("awm", **options, weighting=weighting)
    assert own.item() == pytest.approx(expected.item(), rel=1e-9) and ratio.min() > 0 and (ratio - 1).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["awm", "dgpo"])
def test_brakes_act_and_are_counted(case, kind):
    """The loop above has them act on some of the samples and not on others."""
    target = case["noise"] - case["x0"]
    scale = torch.tensor([0.9, 1.1, 0.9, 0.9, 1.1, 0.9], dtype=torch.float64).view(-1, 1, 1, 1)
    velocity = (target + scale * (case["old"] - target)).requires_grad_()
    loss, statistics = matching_loss(kind, **{**case, "velocity": velocity, "clip": 1e-3})
    assert [statistics["clip_high"], statistics["clip_low"]] == pytest.approx([2 / 6, 2 / 6])
    moved = gradient_of(loss, velocity).abs().amax((1, 2, 3)) > 0
    # A zero advantage has no gradient; the last sample is worse than average and fitted better than before: not there yet.
    assert moved.tolist() == [False, False, False, False, False, True]


@pytest.mark.parametrize("spatial_shape", [(6, 3, 4), (6, 5, 3, 4)])
@pytest.mark.parametrize("kind", KINDS)
def test_places_weigh_the_squared_residual(case, kind, spatial_shape):
    """Where a place counts nothing there is no gradient, and places that count alike change nothing."""
    if len(spatial_shape) == 4:  # a video
        names = ("x0", "old", "reference", "noise")
        case |= {name: normal(seed, 6, 2, *spatial_shape[1:]) for seed, name in enumerate(names)}
        case["velocity"] = case["old"].clone().requires_grad_()
    even, statistics = matching_loss(kind, **case, spatial=torch.ones(spatial_shape))
    plain, without = matching_loss(kind, **case)
    assert torch.equal(even, plain) and statistics == without
    place = torch.zeros(spatial_shape, dtype=torch.float64)
    place[..., 1, 2] = spatial_shape[-1] * spatial_shape[-2]
    own = gradient_of(matching_loss(kind, **case, spatial=place)[0], case["velocity"])
    assert own[..., 1, 2].abs().max() > 0
    own[..., 1, 2] = 0
    assert own.abs().max() == 0


def test_a_place_multiplies_nfts_pull(case):
    """On-policy: the gradient at a place is the one without places, times the map: the weight w is of the whole sample."""
    place = normal(8, 6, 3, 4).exp()
    case["old"] = None
    plain = gradient_of(matching_loss("nft", **case)[0], case["velocity"])
    found = gradient_of(matching_loss("nft", **case, spatial=place)[0], case["velocity"])
    torch.testing.assert_close(found, plain * place[:, None], rtol=1e-9, atol=1e-12)


# --- what the kinds share: at θ = old each gradient is a weighting of ∇ℓ ------------------------------------------------


def fit_gradient(case) -> tuple[Tensor, Tensor, Tensor]:
    """ℓ [B] with ∇ℓ [B, …] of each sample, and mean|v - v*| [B], from one backward pass."""
    velocity = case["velocity"].detach().requires_grad_()
    apart = velocity - (case["noise"] - case["x0"])
    fit = apart.square().flatten(1).mean(1)
    return fit.detach(), gradient_of(fit.sum(), velocity), apart.detach().abs().flatten(1).mean(1)


@pytest.mark.parametrize("kind", ["nft", "awm", "dgpo"])
@pytest.mark.parametrize("given", [True, False])
def test_on_policy_identity(case, kind, given):
    """NFT: A·σ·∇ℓ / mean|v - v*|. AWM: A/5·σ·ℓ^(p-1)·∇ℓ. DGPO: sigmoid(s_g)·A·∇ℓ. Each over B; `old` given or not."""
    case["advantage"] = case["advantage"].clamp(-5, 5)
    fit, slope, error = fit_gradient(case)
    target = case["noise"] - case["x0"]
    lost = case["advantage"] * case["beta"] * (fit - (case["reference"] - target).square().flatten(1).mean(1))
    sharpness = torch.stack([lost[:3].mean(), lost[3:].mean()]).sigmoid().repeat_interleave(3)
    each = {"nft": case["sigma"] / error, "awm": case["sigma"] * fit ** (0.25 - 1) / 5, "dgpo": sharpness}[kind]
    expected = (each * case["advantage"] / 6).view(-1, 1, 1, 1) * slope
    case["old"] = case["velocity"].detach() if given else None
    found = gradient_of(matching_loss(kind, **case)[0], case["velocity"])
    assert expected.abs().max() > 1e-4
    assert ((found - expected).abs().max() / expected.abs().max()).item() <= 1e-6


@pytest.mark.parametrize("strength", [0.2, 3.0])
def test_ram_is_awm_with_a_pull_to_the_original(case, strength):
    """RAM (2605.10759) is ‖v - (v_ref + R·(v* - v))‖², the target without gradient. With R = α·A that is 5α·(awm + KL/(5α))."""
    v, reference, reward = case["velocity"], case["reference"], strength * case["advantage"].clamp(-5, 5)
    toward = (reference + reward.view(-1, 1, 1, 1) * (case["noise"] - case["x0"] - v)).detach()
    own, _ = matching_loss("awm", v, case["x0"], case["noise"], case["sigma"], case["advantage"], weighting="uniform")
    both = gradient_of(own + (v - reference).square().mean() / (5 * strength), v)
    torch.testing.assert_close(5 * strength * both, gradient_of((v - toward).square().mean(), v), rtol=1e-9, atol=1e-12)


def test_dpos_gradient_is_that_of_its_two_samples(case):
    """±(β/2)·sigmoid((β/2)·[…])·∇ℓ of the winner and the loser, over the number of pairs."""
    _, slope, _ = fit_gradient(case)
    target = case["noise"] - case["x0"]
    apart = {name: (case[name] - target).detach().square().flatten(1).mean(1) for name in ("velocity", "reference")}
    gained, expected = apart["velocity"] - apart["reference"], torch.zeros_like(slope)
    for best, worst in ((0, 1), (3, 5)):
        pull = 0.35 / (1 + math.exp(-0.35 * (gained[best] - gained[worst]).item())) / 2
        expected[best], expected[worst] = pull * slope[best], -pull * slope[worst]
    found = gradient_of(matching_loss("dpo", **case)[0], case["velocity"])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_nfts_beta_drops_out_on_policy(case):
    case["old"] = None
    found = [
        gradient_of(matching_loss("nft", **{**case, "beta": beta})[0], case["velocity"]) for beta in (0.1, 1.0, 3.0)
    ]
    for other in found[1:]:
        assert ((other - found[0]).abs().max() / found[0].abs().max()).item() <= 1e-6
    case["old"] = case["velocity"].detach() + 0.1  # and only there
    apart = [gradient_of(matching_loss("nft", **{**case, "beta": beta})[0], case["velocity"]) for beta in (0.1, 1.0)]
    assert (apart[1] - apart[0]).abs().max() > 0.01 * apart[0].abs().max()


def test_nft_has_a_gradient_without_an_advantage_once_the_policy_has_moved(case):
    case["advantage"] = torch.zeros(6, dtype=torch.float64)
    assert gradient_of(matching_loss("nft", **case)[0], case["velocity"]).abs().amax((1, 2, 3)).min() > 0
    for kind in ("awm", "dgpo"):
        assert gradient_of(matching_loss(kind, **case)[0], case["velocity"]).abs().max() == 0
    on_policy = gradient_of(matching_loss("nft", **{**case, "old": None})[0], case["velocity"])
    assert on_policy.abs().max() < 1e-12


@pytest.mark.parametrize("kind", ["nft", "awm"])
def test_an_almost_perfect_fit_has_a_loss_and_a_gradient(case, kind):
    """Where the residual is far below 1e-5, NFT's weight and AWM's offset keep both as they are in the loop."""
    exact = case["noise"] - case["x0"]
    case |= {"old": exact + 2e-7 * normal(9), "velocity": (exact + 1e-7 * normal(10)).requires_grad_()}
    loss, expected = matching_loss(kind, **case)[0], of_the_loop(kind, **case)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9)
    found, plain = (gradient_of(value, case["velocity"]) for value in (loss, expected))
    torch.testing.assert_close(found, plain, rtol=1e-6, atol=1e-12)
    case |= {"old": exact, "velocity": exact.clone().requires_grad_()}
    assert gradient_of(matching_loss(kind, **case)[0], case["velocity"]).abs().max() == 0


def test_descending_fits_what_was_good_and_unlearns_what_was_bad(case):
    before = fit_gradient(case)[0]
    for kind in KINDS:
        gradient = gradient_of(matching_loss(kind, **{**case, "old": None})[0], case["velocity"])
        after = fit_gradient({**case, "velocity": case["velocity"].detach() - 1e-3 * gradient})[0]
        assert after[0] < before[0] and after[3] < before[3], kind
        assert after[1] > before[1] and after[5] > before[5], kind


@pytest.mark.parametrize("kind", ["nft", "awm"])
def test_sampled_levels_are_unbiased(kind):
    """Every draw of 2 of 4 levels, by its share of the starts: its gradient is the full one on average, also where A = 0.

    Starts in [0, 1) fall into the intervals between the places where the drawn set changes, which are the running sums of π.
    """
    levels, count, advantage = (0.95, 0.7, 0.4, 0.15), 2, torch.tensor([1.5, 0.0, -0.8], dtype=torch.float64)
    credit = torch.tensor([[2.0, 1.0, 0.7, 0.3], [0.5, 1.5, 1.0, 1.0], [0.0, 3.0, 1.0, 0.0]], dtype=torch.float64)
    valid = torch.tensor([True, True, True])
    x0, noises = normal(1, 3, 2, 3, 3), [normal(10 + j, 3, 2, 3, 3) for j in range(4)]
    old = [noise - x0 + 0.4 * normal(20 + j, 3, 2, 3, 3) for j, noise in enumerate(noises)]
    probability = inclusion(everywhere(advantage.abs()[:, None] * credit, valid), count)
    assert probability.min() > 0
    pull = torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
    found = everywhere(pull, torch.tensor([True, True, False]))  # masked samples alone are left out
    assert found.tolist() == [[4.0, 1.0, 1.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
    torch.testing.assert_close(probability.sum(1), torch.full((3,), 2.0, dtype=torch.float64))

    def gradients(weights):
        """[levels, B, …]: of the loss summed over levels, w_j times the draw's weight each."""
        found = []
        for j, sigma in enumerate(levels):
            velocity = (old[j] + 0.05 * normal(30 + j, 3, 2, 3, 3)).requires_grad_()
            loss, _ = matching_loss(
                kind,
                velocity,
                x0,
                noises[j],
                torch.full((3,), sigma, dtype=torch.float64),
                advantage,
                old=old[j],
                weight=credit[:, j] * weights[:, j],
            )
            found.append(gradient_of(loss, velocity))
        return torch.stack(found)

    full = gradients(torch.ones(3, 4, dtype=torch.float64))
    assert (full[:, 1].abs().amax((1, 2, 3)) > 0).all() == (kind == "nft")
    edges = torch.cat([torch.tensor([0.0, 1.0]), (-probability.cumsum(1)).flatten() % 1]).unique().double()
    edges = edges[torch.cat([torch.tensor([True]), edges.diff() > 1e-12])]
    mean, seen = torch.zeros_like(full), 0
    for low, high in zip(edges, edges[1:], strict=False):
        weights = drawn(probability, ((low + high) / 2).expand(3, 1)).double()
        assert ((weights > 0).sum(1) == count).all()
        seen += 1
        mean += (high - low) * gradients(weights)
    assert seen > 3
    torch.testing.assert_close(mean, full, rtol=1e-6, atol=1e-9)


# --- pairs --------------------------------------------------------------------------------------------------------------


def test_pairs_are_best_and_worst_of_each_group(case):
    advantage = torch.tensor([0.1, 0.5, -0.2, 2.0, 2.0, 2.0, -1.0, 1.0, 7.0])
    groups = torch.tensor([3, 3, 3, 1, 1, 1, 0, 0, 2])
    assert pairs(advantage, groups).tolist() == [[7, 6], [1, 2]]  # group 1's samples are alike, group 2 has but one
    assert pairs(torch.zeros(3), torch.zeros(3, dtype=torch.int64)).shape == (0, 2)
    rows = torch.tensor([0, 1, 3, 5])  # the pairs' samples alone have the same loss
    few = {name: value[rows] if isinstance(value, Tensor) else value for name, value in case.items()}
    assert matching_loss("dpo", **few)[0].item() == pytest.approx(matching_loss("dpo", **case)[0].item(), rel=1e-12)
    case["advantage"] = torch.ones(6, dtype=torch.float64)  # no group has a preference
    loss, statistics = matching_loss("dpo", **case)
    assert loss.item() == 0 and statistics["accuracy"] == 0
    assert gradient_of(loss, case["velocity"]).abs().max() == 0


# --- statistics, types, errors ------------------------------------------------------------------------------------------


def test_statistics_by_hand():
    """One element a sample: v - v* is 1 and 3, old's 2 and 2: ℓ 1 and 9, and both have moved by 1."""
    zeros, column = torch.zeros(2, 1, dtype=torch.float64), torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    velocity = column.clone().requires_grad_()
    common = dict(velocity=velocity, x0=zeros, noise=zeros, old=torch.full_like(zeros, 2.0), reference=zeros + 1.0)
    common |= dict(sigma=torch.tensor([0.5, 0.5]), advantage=torch.tensor([1.0, -1.0]), groups=torch.tensor([0, 0]))
    for kind in KINDS:
        _, statistics = matching_loss(kind, **common)
        assert (statistics["residual"], statistics["moved"]) == (5.0, 1.0)
        assert not any(value.requires_grad or value.ndim for value in statistics.values())
    assert matching_loss("nft", **common)[1]["share"] == 0.5  # (0.6 + 0.4)/2
    # Both have gone the advantage's way: ρ = exp(4 - 1) and exp(4 - 9).
    braked = matching_loss("dgpo", **common)[1]
    assert braked["ratio"] == pytest.approx((math.exp(3) + math.exp(-5)) / 2)
    assert braked["clip_high"] == braked["clip_low"] == 0.5
    # s_g = (1·(1 - 1) - 1·(9 - 1))/2
    assert braked["sharpness"] == pytest.approx(1 / (1 + math.exp(4)))
    preferred = matching_loss("dpo", **common)[1]
    assert preferred["accuracy"] == 1.0 and preferred["margin"] == 8.0  # (9 - 1) - (1 - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_lower_precision_is_computed_in_float32(case, kind):
    exact = {name: own.detach().bfloat16() for name, own in case.items() if isinstance(own, Tensor) and own.ndim == 4}
    wide = {name: value.float() for name, value in exact.items()}
    exact, wide = ({**case, **own, "velocity": own["velocity"].requires_grad_()} for own in (exact, wide))
    low, high = (matching_loss(kind, **given)[0] for given in (exact, wide))
    assert low.dtype == high.dtype != torch.bfloat16 and torch.equal(low, high)
    found, expected = gradient_of(low, exact["velocity"]), gradient_of(high, wide["velocity"])
    torch.testing.assert_close(found, expected.bfloat16())


def test_defaults_are_the_published_ones(case):
    assert {name: (kind.beta, kind.clip) for name, kind in KINDS.items()} == {
        "nft": (1.0, 0.0),
        "awm": (1.0, 1.0),
        "dgpo": (10.0, 0.05),
        "dpo": (100.0, 0.0),
    }
    assert [name for name, kind in KINDS.items() if kind.groups] == ["dgpo", "dpo"]
    assert [name for name, kind in KINDS.items() if kind.reference] == ["dgpo", "dpo"]
    assert [name for name, kind in KINDS.items() if not kind.old] == ["dpo"]
    plain = matching_loss("dpo", **case)[0]
    assert torch.equal(plain, matching_loss("dpo", **{**case, "old": None})[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "crd"}, "kind: unknown matching loss 'crd'. Fix: take one of nft, awm, dgpo, dpo"),
        *(
            ({"kind": kind, name: None}, f"{name}: {kind} needs it")
            for kind in ("dgpo", "dpo")
            for name in ("reference", "groups")
        ),
        ({"x0": torch.zeros(6, 2, 3)}, r"x0: its shape is \[6, 2, 3\].*Fix: give it as \[6, 2, 3, 4\]"),
        ({"noise": torch.zeros(1, 2, 3, 4)}, r"noise: its shape is \[1, 2, 3, 4\]"),
        ({"old": torch.zeros(6, 24)}, r"old: its shape is \[6, 24\]"),
        ({"reference": torch.zeros(5, 2, 3, 4)}, r"reference: its shape is \[5"),
        ({"sigma": torch.tensor(0.5)}, r"sigma: its shape is \[\].*Fix: give it as \[6\]"),
        ({"advantage": torch.zeros(6, 1)}, r"advantage: its shape is \[6, 1\]"),
        ({"weight": torch.ones(2)}, r"weight: its shape is \[2\]"),
        ({"groups": torch.zeros(2)}, r"groups: its shape is \[2\]"),
        ({"spatial": torch.ones(6, 2, 3, 4)}, r"spatial: its shape is .* Fix: give it as \[6, 3, 4\]"),
        ({"advantage": sixth(math.nan)}, r"advantage: \[.*nan.* is not finite. Fix: leave"),
        ({"weight": sixth(math.inf)}, r"weight: .*inf.* is not finite"),
        ({"sigma": sixth(math.nan)}, r"sigma: .*nan.* is not finite"),
        ({"sigma": sixth(0.0)}, r"sigma: .* is not within \(0, 1\]"),
        ({"sigma": torch.full((6,), 1.5)}, r"sigma: .* is not within \(0, 1\]"),
        ({"beta": 0.0}, "beta: it must be a number above 0, not 0.0"),
        ({"advantage_limit": math.nan}, "advantage_limit: it must be a number above 0, not nan"),
        ({"clip": -0.1}, "clip: it must be a number above 0, not -0.1"),
        ({"clip": 0.1}, "clip: nft has another brake, the two velocities.* Fix: leave it out"),
        ({"kind": "dpo", "sigma": torch.tensor([0.5, 0.6, 0.5, 1, 1, 1])}, r"sigma: a group has the levels \[0.5, 0.6"),
    ],
)
def test_errors_name_what_is_wrong(case, changes, message):
    with pytest.raises(ValueError, match=message):
        matching_loss(**{"kind": "nft", **case, **changes})


def test_a_velocity_that_is_not_finite_ends_in_the_loss(case):
    """There it drops the update and is counted, as in GRPO; it is not a wrong input."""
    case["velocity"] = (case["velocity"].detach() * math.nan).requires_grad_()
    assert all(not matching_loss(kind, **case)[0].isfinite() for kind in KINDS)


# --- the factor that keeps the winner ---------------------------------------------------------------------------------


def test_the_losers_share_by_hand():
    """g_w = (1, 2): ‖g_w‖² = 5. Against (3, 4), ⟨⟩ = 11: 5/11, and 2.5/11 if half is kept. (1, 1): 3 < 5, all of it, but 2.5/3 if
    half is kept. (-1, 0): it helps the winner."""
    winner = torch.tensor([[1.0, 2.0]] * 4)
    loser = torch.tensor([[3.0, 4.0], [1.0, 1.0], [-1.0, 0.0], [0.0, 0.0]])
    assert loser_scale(winner, loser, 0.0).tolist() == pytest.approx([5 / 11, 1.0, 1.0, 1.0])
    assert loser_scale(winner, loser, 0.5).tolist() == pytest.approx([2.5 / 11, 2.5 / 3, 1.0, 1.0])
    assert loser_scale(torch.zeros(1, 2), torch.ones(1, 2), 0.5).tolist() == [1.0]  # they share nothing


def test_it_scales_the_losers_gradient_alone_and_a_place_counts_by_its_weight():
    """One pair of two places; x0 and noise 0, so that v is the residual. ℓ = mean s·v²; slopes s·v: winner (2, 0), loser (6, 0).

    ⟨⟩ = 12, ‖g_w‖² = 4: λ = ½·4/12 = 1/6 if half is kept. ℓ_w = 1, ℓ_l = 9, β/2·(ℓ_w - ℓ_l) = -4: dL/dℓ_w = ½·σ(-4), and
    dL/dv = dL/dℓ·s·v.
    """
    velocity = torch.tensor([[[[1.0, 5.0]]], [[[3.0, 7.0]]]], requires_grad=True)
    zero = torch.zeros_like(velocity)
    spatial = torch.tensor([[[2.0, 0.0]], [[2.0, 0.0]]])
    ends, group = torch.tensor([1.0, -1.0]), torch.tensor([0, 0])
    losses, found = {}, {}
    for keep in (0.0, 0.5):
        loss, told = matching_loss(
            *("dpo", velocity, zero, zero, torch.full((2,), 0.5), ends),
            reference=zero,
            groups=group,
            beta=1.0,
            spatial=spatial,
            keep_winner=keep,
        )
        losses[keep], found[keep] = loss.item(), gradient_of(loss, velocity).flatten().tolist()
    pull = 0.5 / (1 + math.exp(4))
    assert losses[0.5] == pytest.approx(losses[0.0]) == pytest.approx(math.log1p(math.exp(-4)))
    assert found[0.0] == pytest.approx([pull * 2, 0, -pull * 6, 0], rel=1e-5)
    assert found[0.5] == pytest.approx([pull * 2, 0, -pull * 1, 0], rel=1e-5)
    assert told["loser_scale"].item() == pytest.approx(1 / 6)


@pytest.mark.parametrize("seed", range(5))
def test_the_winner_is_never_fitted_worse_where_plain_dpo_fits_it_worse(seed):
    """A toy policy: one shift for all, so that both velocities answer to it alike. The loser's residual points the same way and
    is larger, so plain dpo fits both worse and worse; with the factor the winner's ℓ never rises in 100 steps of 1e-2."""
    own = normal(seed, 1, 1, 2, 2)
    target = torch.cat([own, 3 * own + 0.1 * normal(seed + 100, 1, 1, 2, 2)])  # residuals at a shift of 0
    ends, group, zero = torch.tensor([1.0, -1.0]).double(), torch.tensor([0, 0]), torch.zeros_like(target)
    fits = {}
    for keep in (0.0, 0.5):
        shift = torch.zeros(1, 2, 2, dtype=torch.float64, requires_grad=True)
        fits[keep] = []
        for _ in range(100):
            velocity = target + shift
            loss, _ = matching_loss(
                *("dpo", velocity, zero, zero, torch.full((2,), 0.5, dtype=torch.float64), ends),
                reference=target,
                groups=group,
                beta=1.0,
                keep_winner=keep,
            )
            (slope,) = torch.autograd.grad(loss, shift)
            shift = (shift - 1e-2 * slope).detach().requires_grad_()
            fits[keep].append((target[0] + shift).square().mean().item())
    assert fits[0.0][-1] > fits[0.0][0]
    assert all(after <= before + 1e-12 for before, after in zip(fits[0.5], fits[0.5][1:], strict=False))
