"""Forward-process losses: the clean result, noised again, draws the velocity towards itself or away (method.md §9).

A new kind is one function `(Point) -> (weighted losses, statistics)` and one row in KINDS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from ...host import devices
from ..groups import per_group

SMALLEST_ERROR = 1e-5  # of NFT's adaptive weight
POWER, OFFSET = 0.25, 1e-10  # of AWM's log-probability ("ghuber")


def matching_loss(
    kind: str,
    velocity: Tensor,
    x0: Tensor,
    noise: Tensor,
    sigma: Tensor,
    advantage: Tensor,
    *,
    old: Tensor | None = None,
    reference: Tensor | None = None,
    groups: Tensor | None = None,
    beta: float = 1.0,
    advantage_limit: float = 5.0,
    weight: Tensor | None = None,
    spatial: Tensor | None = None,
    clip: float | None = None,
    keep_winner: float = 0.0,
    weighting: str = "ghuber",
) -> tuple[Tensor, dict[str, Tensor]]:
    """The mean over samples of weight × the kind's loss, at x_σ = (1-σ)·x0 + σ·noise; without KL terms.

    v* = noise - x0 is where the velocity should lead, ℓ = mean‖v - v*‖² over a sample's elements.

    `kind`: one of KINDS.
    `velocity`: [B, …], the policy's at x_σ, with gradient.
    `x0`, `noise`: [B, …], of its shape: the finished latents, and fresh noise.
    `sigma`: [B], noise levels in (0, 1].
    `advantage`: [B].
    `old`: [B, …], the old policy's velocity at x_σ; None: on-policy, the policy's own, detached.
    `reference`: [B, …], the untrained model's velocity at x_σ, for `dgpo` and `dpo`.
    `groups`: [B], for these: numbers of the samples that are compared. A group has one prompt, level and noise, and is whole;
        for `dpo` the samples that `pairs` names are enough. These and the numbers of samples may be in main memory while the
        velocity is on a device, which they then need not wait for.
    `beta`: `nft`: how far its two velocities reach beyond the old one; `dgpo`, `dpo`: how sharp a preference is.
    `advantage_limit`: A_max of `nft` and `awm`, to which advantages are clipped; `awm` divides by it.
    `weight`: [B], how many samples each one counts for; None: 1.
    `spatial`: [B, h, w] or [B, F, h, w], how much each place of the latent counts, of mean 1; None: all alike.
    `clip`: c of the brake of `awm` and `dgpo`; None: the kind's own.
    `weighting`: `awm`: one of AWM_WEIGHTINGS.
    `keep_winner`: `dpo`: μ of `loser_scale`, by which the loser's gradient is scaled; 0: it is not.

    Returns:
        The scalar loss, and detached scalars: `residual` (mean ℓ), `moved` (mean‖v - v_old‖²), and what the kind adds.

    Raises:
        ValueError: an unknown kind, what it needs and was not given, wrong shapes, or levels, advantages and weights that cannot
            be. A velocity that is not finite raises nothing: the loss is not finite either.
    """
    if kind not in KINDS:
        raise ValueError(f"kind: unknown matching loss {kind!r}. Fix: take one of {', '.join(KINDS)}")
    weight = torch.ones_like(advantage) if weight is None else weight
    latents = {"x0": x0, "noise": noise, "old": old, "reference": reference}
    samples = {"sigma": sigma, "advantage": advantage, "weight": weight, "groups": groups}
    numbers = {"beta": beta, "advantage_limit": advantage_limit, "clip": KINDS[kind].clip if clip is None else clip}
    _check(KINDS[kind], velocity, latents, samples, numbers, spatial)
    point = _point(velocity, latents, samples, numbers, spatial, keep_winner, weighting)
    losses, statistics = KINDS[kind].loss(point)
    statistics |= {"residual": point.squared(point.residual), "moved": point.squared(point.residual - point.old)}
    return _mean(losses), {name: _mean(values.detach()) for name, values in statistics.items()}


@dataclass(frozen=True)
class Point:
    """The residuals that a kind's loss is made of: v - v* [B, …] of three policies, two of them without gradient."""

    residual: Tensor
    old: Tensor
    reference: Tensor  # empty where none was given, as groups
    sigma: Tensor  # [B], as all that follows
    advantage: Tensor
    weight: Tensor
    groups: Tensor  # where it was given, as
    ranked: Tensor  # the advantages: what is compared in main memory need not wait for a device
    beta: float
    advantage_limit: float
    clip: float  # c of the brake; 0 of a kind without one
    spatial: Tensor | None  # [B, 1, …]
    keep_winner: float
    weighting: str

    @property
    def slope(self) -> Tensor:
        """[B, E], what ∂ℓ/∂v of each sample is proportional to, of E elements; without gradient."""
        own = self.residual.detach()
        return (own if self.spatial is None else own * self.spatial).flatten(1)

    def squared(self, apart: Tensor) -> Tensor:
        """Mean square over a sample's elements, places by their weight: [B, …] to [B]."""
        squares = apart.square() if self.spatial is None else apart.square() * self.spatial
        return squares.flatten(1).mean(1)


def nft(point: Point) -> tuple[Tensor, dict]:
    """DiffusionNFT (2509.16117), with v± = v_old ± β·(v - v_old) and x̂0± = x_σ - σ·v±:

    A_max/β · [r·mean((x̂0⁺ - x0)²/w⁺) + (1-r)·mean((x̂0⁻ - x0)²/w⁻)],  r = clip(A/(2·A_max) + ½, 0, 1)

    w± = max(mean|x̂0± - x0|, 1e-5) of each sample has no gradient, and places do not enter it.
    """
    share = (point.advantage / (2 * point.advantage_limit) + 0.5).clamp(0, 1)
    sigma = point.sigma.view(-1, *[1] * (point.residual.ndim - 1))
    # The sums are long and the weights small, hence float64, where the device has it.
    wide = torch.float32 if sigma.device.type == "mps" else torch.float64

    def distance(side: int) -> Tensor:
        error = sigma * (point.old + side * point.beta * (point.residual - point.old))  # x0 - x̂0±
        adaptive = error.detach().abs().flatten(1).mean(1, dtype=wide).clamp(min=SMALLEST_ERROR)
        return point.squared(error) / adaptive

    losses = point.advantage_limit / point.beta * (share * distance(1) + (1 - share) * distance(-1))
    return point.weight * losses, {"share": share}


def awm(point: Point) -> tuple[Tensor, dict]:
    """AWM (2509.25050): max(-A·ρ, -A·clip(ρ, 1-c, 1+c)), A clipped to ±A_max and divided by it, ρ = exp(logp - logp_old) with

    logp = -(σ/p)·((ℓ + 1e-10)^p - (1e-10)^p),  p = ¼, the same x0, noise and σ for both.

    That is `ghuber`. Other weightings of logp: `uniform` -ℓ, `t` -σ·ℓ, `t**2` -σ²·ℓ, `huber` -σ·((ℓ + 1e-10)^½ - 1e-5).
    """

    power, divisor = {"ghuber": (POWER, POWER), "huber": (0.5, 1.0)}.get(point.weighting, (1.0, 1.0))
    level = point.sigma ** {"uniform": 0, "t**2": 2}.get(point.weighting, 1)

    def log_prob(apart: Tensor) -> Tensor:
        return -level / divisor * ((point.squared(apart) + OFFSET) ** power - OFFSET**power)

    advantage = point.advantage.clamp(-point.advantage_limit, point.advantage_limit) / point.advantage_limit
    ratio = (log_prob(point.residual) - log_prob(point.old)).exp()
    losses = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - point.clip, 1 + point.clip))
    return point.weight * losses, _braked(point, ratio)[1]


def dgpo(point: Point) -> tuple[Tensor, dict]:
    """DGPO (2510.08425): sigmoid(s_g)·A·ℓ, the sigmoid without gradient, with s_g = Σ_{i in g} A_i·β·(ℓ_i - ℓ_ref,i)/G.

    Brake: where A > 0 and ρ = exp(ℓ_old - ℓ) > 1+c, or A < 0 and ρ < 1-c, the loss has no gradient.
    """
    own, reference = point.squared(point.residual), point.squared(point.reference)
    preference = point.advantage * point.beta * (own.detach() - reference)
    sharpness = torch.zeros_like(own)
    for member in per_group(point.groups):
        rows = devices.upload(member.nonzero()[:, 0], own.device)
        sharpness[rows] = preference[rows].mean().sigmoid()
    reached, statistics = _braked(point, (point.squared(point.old) - own.detach()).exp())
    losses = sharpness * point.advantage * torch.where(reached, own.detach(), own)
    return point.weight * losses, statistics | {"sharpness": sharpness}


def dpo(point: Point) -> tuple[Tensor, dict]:
    """Flow-DPO (2501.13918), of each pair: -log sigmoid(-(β/2)·[(ℓ_w - ℓ_ref,w) - (ℓ_l - ℓ_ref,l)]).

    The mean is over the pairs; a pair counts for the mean weight of its two samples. With `keep_winner` the gradient of ℓ_l is
    that times `loser_scale`; the value of the loss stays.
    """
    chosen = devices.upload(pairs(point.ranked, point.groups), point.residual.device)
    gained = point.squared(point.residual) - point.squared(point.reference)
    better, worse = gained[chosen[:, 0]], gained[chosen[:, 1]]
    statistics = {}
    if point.keep_winner:
        scale = loser_scale(point.slope[chosen[:, 0]], point.slope[chosen[:, 1]], point.keep_winner)
        worse = torch.lerp(worse.detach(), worse, scale)
        statistics["loser_scale"] = scale
    behind = better - worse  # how much worse the winner is fitted than the loser
    losses = point.weight[chosen].mean(1) * softplus(point.beta / 2 * behind)
    return losses, statistics | {"accuracy": (behind < 0).to(behind), "margin": -behind}


def loser_scale(winner: Tensor, loser: Tensor, kept: float) -> Tensor:
    """Diffusion-SDPO (2511.03317): λ [P] in [0, 1], how much of the loser's gradient leaves the winner what it gains.

    A step of gradient descent on ℓ_w - λ·ℓ_l lowers ℓ_w, to first order, by η·(‖g_w‖² - λ·⟨g_w, g_l⟩). At least the share μ
    of the η·‖g_w‖² that the winner's own term gives is to stay:

        λ = min(1, (1 - μ)·‖g_w‖² / ⟨g_w, g_l⟩)  where ⟨g_w, g_l⟩ > 0,  else 1

    The gradients are those by the velocities, in place of those by the weights: the same where both velocities answer to the
    weights alike. The authors have one λ for all pairs of a batch; here each pair has its own, which is as safe for each of them.

    `winner`, `loser`: [P, E], the slopes of ℓ_w and ℓ_l by the velocities, up to one common factor.
    `kept`: μ in [0, 1]; the authors' scripts have 0.6 and 0.9.
    """
    most, shared = (1 - kept) * winner.square().sum(1), (winner * loser).sum(1)
    return torch.where(shared > most, most / shared, 1.0)


@dataclass(frozen=True)
class Kind:
    """A kind of matching loss, and what it needs."""

    loss: Callable[[Point], tuple[Tensor, dict]]
    brake: str  # what keeps it from running away where A < 0
    beta: float = 1.0  # as its authors have it
    clip: float = 0.0  # c of the brake, if that has one
    reference: bool = False  # needs the untrained model's velocity
    groups: bool = False  # compares a group's samples, which share noise and levels
    old: bool = True  # an old policy changes it


KINDS = {
    "nft": Kind(nft, "the two velocities around the old policy's, of which the worse one is pushed away"),
    "awm": Kind(awm, "the clip range of its ratio", clip=1.0),
    "dgpo": Kind(dgpo, "the clip range of its ratio", beta=10.0, clip=5e-2, reference=True, groups=True),
    "dpo": Kind(dpo, "the sigmoid, flat once a pair is told apart", beta=100.0, reference=True, groups=True, old=False),
}


def pairs(advantage: Tensor, groups: Tensor) -> Tensor:
    """The best and the worst sample of each group, [P, 2]; a group whose samples are alike has no pair.

    Args:
        advantage: [B].
        groups: [B] group numbers.
    """
    chosen = []
    for member in per_group(groups):
        rows = member.nonzero()[:, 0]
        best, worst = rows[advantage[rows].argmax()], rows[advantage[rows].argmin()]
        if advantage[best] > advantage[worst]:
            chosen.append(torch.stack((best, worst)))
    return torch.stack(chosen) if chosen else groups.new_zeros((0, 2), dtype=torch.int64)


@torch.no_grad()
def _braked(point: Point, ratio: Tensor) -> tuple[Tensor, dict]:
    """Where a sample has gone far enough in its advantage's way, [B] bool, and what is logged of the ratio."""
    high = (ratio > 1 + point.clip) & (point.advantage > 0)
    low = (ratio < 1 - point.clip) & (point.advantage < 0)
    return high | low, {"ratio": ratio, "clip_high": high.to(ratio), "clip_low": low.to(ratio)}


def _mean(values: Tensor) -> Tensor:
    """0 of none: a batch may have no pair."""
    return values.sum() / max(1, len(values))


def _point(
    velocity: Tensor,
    latents: dict,
    samples: dict,
    numbers: dict[str, float],
    spatial: Tensor | None,
    keep_winner: float,
    weighting: str,
) -> Point:
    def wide(values: Tensor) -> Tensor:
        return values.to(torch.promote_types(values.dtype, torch.float32))

    def apart(own: Tensor) -> Tensor:
        return wide(own) - (wide(latents["noise"]) - wide(latents["x0"]))

    def there(values: Tensor) -> Tensor:
        return devices.upload(values.to(residual.dtype), residual.device)

    residual, old, reference, groups = apart(velocity), latents["old"], latents["reference"], samples["groups"]
    return Point(
        residual,
        residual.detach() if old is None else apart(old).detach(),
        residual.new_empty(0) if reference is None else apart(reference).detach(),
        there(samples["sigma"]),
        there(samples["advantage"]),
        there(samples["weight"]),
        residual.new_empty(0) if groups is None else groups,
        samples["advantage"].to(residual.dtype),
        numbers["beta"],
        numbers["advantage_limit"],
        numbers["clip"],
        None if spatial is None else there(spatial).unsqueeze(1),
        keep_winner,
        weighting,
    )


def _check(
    kind: Kind, velocity: Tensor, latents: dict, samples: dict, numbers: dict[str, float], spatial: Tensor | None
) -> None:
    shape, sigma, groups = list(velocity.shape), samples["sigma"], samples["groups"]
    for name, needed in (("reference", kind.reference), ("groups", kind.groups)):
        if needed and (latents | samples)[name] is None:
            raise ValueError(f"{name}: {kind.loss.__name__} needs it and has none. Fix: give it, or take nft or awm")
    expected = dict.fromkeys(latents, shape) | dict.fromkeys(samples, shape[:1]) | {"spatial": shape[:1] + shape[2:]}
    for name, value in (latents | samples | {"spatial": spatial}).items():
        if value is not None and list(value.shape) != expected[name]:
            raise ValueError(
                f"{name}: its shape is {list(value.shape)}, and the velocity's {shape}. Fix: give it as {expected[name]}"
            )
    for name, values in samples.items():
        if values is not None and not values.isfinite().all():
            raise ValueError(f"{name}: {values.tolist()} is not finite. Fix: leave these samples out")
    if not ((sigma > 0) & (sigma <= 1)).all():
        raise ValueError(f"sigma: {sigma.tolist()} is not within (0, 1]. Fix: leave out the clean point, σ = 0")
    for name, value in numbers.items():
        if not (value >= 0 if name == "clip" else value > 0):
            raise ValueError(f"{name}: it must be a number above 0, not {value}. Fix: raise it")
    if numbers["clip"] and not kind.clip:
        raise ValueError(f"clip: {kind.loss.__name__} has another brake, {kind.brake}. Fix: leave it out")
    if kind.groups:
        for member in per_group(groups):
            if sigma[member].min() < sigma[member].max():
                raise ValueError(
                    f"sigma: a group has the levels {sigma[member].tolist()}, and {kind.loss.__name__} compares its samples at "
                    "one. Fix: give each level group numbers of its own"
                )
