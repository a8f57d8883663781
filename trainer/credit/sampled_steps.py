"""Which trained steps an update computes when it may not afford all of them: drawn by credit, without bias."""

from __future__ import annotations

import torch
from torch import Tensor

from ..rollout import stream

_ROUNDING = 1e-9  # of a probability that is 1 but for the last digits of a sum


def inclusion(pull: Tensor, count: int) -> Tensor:
    """π_j = min(1, c·pull_j) with Σ_j π_j = count; where no more than `count` steps pull at all, 1 for each of them.

    Args:
        pull: [B, T'] ≥ 0, how much each step of each sample matters.
        count: steps to draw of each sample.

    Returns:
        [B, T'] float64.
    """
    pull = pull.double()
    certain = torch.zeros_like(pull, dtype=torch.bool)
    while True:
        rest = pull.masked_fill(certain, 0.0)
        left = count - certain.sum(1, keepdim=True)
        share = left * rest / rest.sum(1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
        more = share >= 1 - _ROUNDING
        if not more.any():
            return share.masked_fill(certain, 1.0)
        certain |= more


def drawn(probability: Tensor, start: Tensor) -> Tensor:
    """How many steps each step stands for: 1/π_j where it is drawn, else 0; [B, T'] float32.

    Systematic sampling without replacement (Madow 1949): a step is drawn where the running sum of π passes `start` [B, 1] plus a
    whole number. For a uniform start in [0, 1) each step is drawn with probability π_j, so that the weight's expectation is 1;
    every draw takes Σ_j π_j steps, spread along the trajectory.
    """
    certain = probability == 1
    passed = torch.cat([start, start + probability.masked_fill(certain, 0.0).cumsum(1)], 1).floor().diff(dim=1)
    # Not a number stays one: an advantage like that has to end in a dropped update, not in a step that is left out.
    return (passed.masked_fill(certain, 1.0) / probability.clamp(min=torch.finfo(torch.float64).tiny)).float()


def everywhere(pull: Tensor, valid: Tensor) -> Tensor:
    """The pull [B, T'] plus its mean over a sample's steps, for losses with a gradient at each step, whatever its credit.

    A sample without any pull gets 1 at each step, one that is not `valid` [B] gets 0. Such are a KL term, and DiffusionNFT, which
    leads back to the old policy where the advantage is 0.
    """
    mean = pull.mean(1, keepdim=True)
    return (pull + torch.where(mean == 0, 1.0, mean)) * valid[:, None]


def draw(pull: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Weights [B, T'] of `count` steps of each sample drawn by their pull [B, T']; expectation 1 wherever there is any."""
    return drawn(inclusion(pull, count), torch.rand((len(pull), 1), generator=generator, dtype=torch.float64))


def generator(seed: int, version: int) -> torch.Generator:
    """The stream of one update: of the rollout's seed and the policy's version, so that a resumed run draws the same steps."""
    return stream(seed, version, branch=(1,))
