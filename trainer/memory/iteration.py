"""What of an iteration decides its memory, whichever way its model was loaded. Imports neither torch nor ComfyUI."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

# Files of the rewards that have a network (docs/rewards.md), by node.
REWARDS = {
    "OTCA_RewardClipT": 1_700_000_000,
    "OTCA_RewardAesthetic": 1_700_000_000,
    "OTCA_RewardPickScore": 3_900_000_000,
    "OTCA_RewardHPSv2": 3_900_000_000,
    "OTCA_RewardImageReward": 1_800_000_000,
    "OTCA_RewardObjects": 2_300_000_000,  # OWLv2 and the CLIP of its colors
    "OTCA_RewardVideoAlign": 5_030_000_000,
    "OTCA_RewardVideoScore": 17_000_000_000,
}

Size = tuple[int, int, int]  # width, height, frames


@dataclass(frozen=True)
class Iteration:
    """Settings of sampler, update and rewards.

    Attributes:
        size: of a picture or video.
        samples: of all prompts together.
        alike: samples that share their noise, and so take the first trained step as one.
        prompts: that are read at once.
        steps, trained_steps: of a trajectory.
        batch, sampling_batch: samples to a pass of the update and of the rollout; never more than there are.
        guided: guidance is classifier-free, so that a sample has two rows in a pass.
        both: the negative half has a gradient too.
        keep_graph, merge_adapter: the sampler's.
        copies: of what is trained: one for ema_decay, one for an old policy.
        pulled: a KL term asks the untrained model while the graph is there.
        rewards: bytes of each judge on the GPU, and whether it leaves when it has scored.
    """

    size: Size
    samples: int = 1
    alike: int = 1
    prompts: int = 1
    steps: int = 1
    trained_steps: int = 1
    batch: int = 1
    sampling_batch: int = 1
    guided: bool = False
    both: bool = True
    keep_graph: bool = False
    merge_adapter: bool = False
    copies: int = 0
    pulled: bool = False
    rewards: tuple[tuple[int, bool], ...] = ()

    @property
    def reward_bytes(self) -> int:
        """Of the judges that stay, and of the largest of those that come and go."""
        staying = sum(size for size, offload in self.rewards if not offload)
        return staying + max((size for size, offload in self.rewards if offload), default=0)

    def cheap_changes(self) -> Iterator[tuple[str, dict]]:
        """What to change without another result, from cheap to costly: in words, and the fields that become different."""
        if self.rewards:
            yield "offload on every reward", {"rewards": tuple((size, True) for size, _ in self.rewards)}
        yield "SDE Sampler merge_adapter off", {"merge_adapter": False}
        yield "the update's batch_size 1", {"batch": 1}
        yield "SDE Sampler batch_size 1", {"sampling_batch": 1}
        yield "SDE Sampler keep_graph off", {"keep_graph": False}

    def smaller(self, sizes: tuple[Size, ...]) -> Iterator[tuple[str, dict]]:
        for size in sizes:
            if prod(size) < prod(self.size):
                yield "size " + in_words(size), {"size": size}

    def changed(self, fields: dict) -> Iteration:
        return replace(self, **fields)


def in_words(size: Size) -> str:
    width, height, frames = size
    return f"{width} × {height}" + (f", {frames} frames" if frames > 1 else "")
