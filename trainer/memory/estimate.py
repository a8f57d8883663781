"""Which parts are on the GPU together, and how large the largest phase of an iteration is. Imports neither torch nor ComfyUI.

    needed = max over phases of (what stays + what the phase takes on top) + reserve

The bytes come from elsewhere: of a model of diffusers from a `rehearsal`, of one that ComfyUI loaded from the counts in
native/architectures.py. Both are counts. Nothing of it was measured on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

GB = 10**9  # as the sizes of files are given; a GPU's GB are larger (2^30), which leaves 7 % of room

# Bytes of a trained parameter; all of these are float32.
TRAINED_BYTES, GRADIENT_BYTES, MOMENTS_BYTES = 4, 4, 8
AVERAGE_BYTES = 4  # the update's ema_decay; and as much for Matching Step's old policy
# What no count of tensors shows: CUDA's context, gaps between the allocator's blocks, workspaces of its libraries. ComfyUI keeps
# 0.8 GB and its own reserve free for the same (minimum_inference_memory in comfy/model_management.py).
RESERVE = 1 * GB

LOADING = "loading"
ENCODING, SAMPLING, DECODING, SCORING, UPDATE = (
    "encoding prompts",
    "sampling",
    "decoding",
    "scoring",
    "the update",
)


@dataclass(frozen=True)
class Held:
    """Bytes of what outlasts a phase.

    Attributes:
        weights: of the networks that are trained, as they are held.
        trained: numbers that are trained; an adapter's, or those of all weights.
        whole: all weights are trained, so that they are not in `weights`; the untrained ones are.
        copies: of what is trained: the moving average, the old policy.
        encoders, vae: of the text encoders and of the autoencoder.
        encoders_visit, vae_visit: they are there only while they work.
        steps_aside: phases in which the weights leave where there is no room beside what works.
        loading: what is there of the networks that are trained before they are shared out, where that is more.
        reserve: see RESERVE.
    """

    weights: int = 0
    trained: int = 0
    whole: bool = False
    copies: int = 0
    encoders: int = 0
    vae: int = 0
    encoders_visit: bool = False
    vae_visit: bool = False
    steps_aside: tuple[str, ...] = ()
    loading: int = 0
    reserve: int = RESERVE


@dataclass(frozen=True)
class Work:
    """Bytes that the phases take on top of what is held.

    Attributes:
        encoding: what the text encoders compute for the prompts of an iteration.
        sampling: a forward pass of the rollout, without a graph.
        merged: the adapted weights a second time, with the adapter in them.
        kept: all graphs that the rollout keeps for the update.
        decoding: pictures of latents, as many as are decoded at a time.
        rewards: the largest judge, or all of them where they stay on the GPU.
        update: a forward pass with its graph, and the backward pass through it.
        reference: a forward pass of the untrained model.
    """

    encoding: int = 0
    sampling: int = 0
    merged: int = 0
    kept: int = 0
    decoding: int = 0
    rewards: int = 0
    update: int = 0
    reference: int = 0


@dataclass(frozen=True)
class Estimate:
    """Bytes on the GPU.

    Attributes:
        phases: {phase: {part: bytes}}, in the order of an iteration; without parts that are not there.
    """

    phases: Mapping[str, Mapping[str, int]]

    @property
    def parts(self) -> dict[str, int]:
        """The most that each part takes, in whichever phase."""
        most: dict[str, int] = {}
        for parts in self.phases.values():
            for name, size in parts.items():
                most[name] = max(most.get(name, 0), size)
        return most

    @property
    def totals(self) -> dict[str, int]:
        return {phase: sum(parts.values()) for phase, parts in self.phases.items()}

    @property
    def phase(self) -> str:
        """The largest one."""
        totals = self.totals
        return max(totals, key=lambda name: totals[name])

    @property
    def total(self) -> int:
        return self.totals[self.phase]


def estimate(held: Held, work: Work, room: float = 0) -> Estimate:
    """What the phases of one iteration need.

    Args:
        room: bytes that the GPU has. What can step aside does so where there is not enough; at 0 always.
    """
    always = {
        "weights": held.weights,
        "adapter": held.trained * (TRAINED_BYTES + AVERAGE_BYTES * held.copies),
        "optimizer": held.trained * MOMENTS_BYTES,
        "text encoder": 0 if held.encoders_visit else held.encoders,
        "VAE": 0 if held.vae_visit else held.vae,
        "reserve": held.reserve,
    }
    if held.whole:
        always["trained weights"] = always.pop("adapter")
    # The gradients are there from the first backward pass of an update to the next rollout. Of a model that is trained as a
    # whole, the untrained weights are copied to float32 to be asked.
    gradients = {"gradients": held.trained * GRADIENT_BYTES}
    reference = work.reference + (held.trained * TRAINED_BYTES if held.whole else 0)
    kept = {"kept graph": work.kept}
    phases = {
        ENCODING: always | {"text encoder": held.encoders, "encoding": work.encoding},
        SAMPLING: always | kept | {"merged weights": work.merged, "sampling": work.sampling},
        DECODING: always | kept | {"VAE": held.vae, "decoding": work.decoding},
        SCORING: always | kept | {"rewards": work.rewards},
        UPDATE: always | kept | gradients | {"activations": max(work.update, reference)},
    }
    if held.loading:
        phases = {
            LOADING: {"weights": held.loading, "VAE": always["VAE"], "text encoder": always["text encoder"]}
        } | phases
    for phase in held.steps_aside:
        if sum(phases[phase].values()) > room:
            phases[phase] = phases[phase] | {"weights": 0}
    return Estimate({phase: {name: size for name, size in parts.items() if size} for phase, parts in phases.items()})
