"""The values that travel along the graph's edges.

B trajectories, T transitions, T' trained transitions, K objectives, P prompts (one group each), [C, h, w] latent; of a
video [C, F, h, w], wherever [C, h, w] is written.
All are frozen: a node returns a new value, it never edits what it was given. The one exception travels as a handle,
`trainer.flow.FlowModel`, which the update changes in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from ..host.distributed import Share
    from .flow.base import FlowModel
    from .rewards import Reward
    from .rewards.overlap import Ahead

Metrics = Mapping[str, float]

WINDOW_MODES = ("progressive", "progressive_decay", "random")  # how MixGRPO's window moves


@dataclass(frozen=True)
class Prompts:
    """The prompts of one iteration: `texts` [P] and each one's position in the endless, shuffled dataset."""

    texts: tuple[str, ...]
    positions: tuple[int, ...]


@dataclass(frozen=True)
class SamplerSettings:
    """Everything that defines the SDE: what the update needs to take the same transition again."""

    kind: str
    eta: float
    steps: int
    width: int
    height: int
    shift: float  # 0: the checkpoint's own
    guidance: float
    shared_noise: bool = True
    train_last_step: bool = False
    window: tuple[int, int] | None = None  # (start, length) of the stochastic steps; None: all
    log_prob_norm: str = "full"
    batch_size: int = 0  # samples to one model call, 0: all; changes memory and speed only
    frames: int = 1  # of a video
    negative_prompt: str = ""  # what classifier-free guidance leads away from
    guidance_2: float = 0.0  # of a second expert, below its noise level; 0: the same
    merge_adapter: bool = False  # into the weights, while sampling; changes memory, speed and rounding only
    ode_solver: str = "euler"  # of the deterministic steps
    fraction_after_window: float = 1.0  # of the steps that follow the window, how many are taken

    @property
    def window_end(self) -> int:
        """The number of steps up to the window's end."""
        start, length = self.window or (0, self.steps)
        return min(start + length, self.steps)

    @property
    def transitions(self) -> int:
        """T: `steps`, or fewer where only a fraction of those after the window is taken."""
        after = self.steps - self.window_end
        return self.window_end + math.ceil(self.fraction_after_window * after - 1e-9)  # 0.1 * 30 is a little above 3


@dataclass(frozen=True)
class Trajectories:
    """B sampled trajectories.

    Attributes:
        latents: [B, T+1, C, h, w] float32, the points visited; `latents[:, 0]` is noise.
        final: [B, C, h, w] float32, the x̂0 that was decoded for the reward: where the deterministic last step led.
        images: [B, H, W, 3] float32 in [0, 1] (ComfyUI's IMAGE), or videos [B, F, H, W, 3].
        sigmas: T+1 noise levels, from 1 to 0.
        trained: T' numbers of the transitions that are stochastic and trained.
        stds: T standard deviations of the transitions.
        log_probs: [B, T'] float32, of the sampled points under the policy that sampled them.
        groups: [B] int64, the number of each sample's prompt, 0 … P-1.
        share: where these B samples stand in the whole batch, whose P prompts several processes may share.
        prompts: P texts.
        positions: each one's position in the dataset, which its noise depends on.
        policy_version: the number of updates the policy had seen when it sampled.
        seed: of all their noise.
        kept: where the graph was kept, the velocity [B, C, h, w] of each trained step, attached to it. Good for one backward
            pass.
        unconditional_gradient: whether those graphs reach through the negative half of guidance.
        predictions: [B, T, C, h, w] float32, x̂0 at every visited point, where somebody wants to look at them; else None.
        decode: latents [N, C, h, w] to pictures [N, H, W, 3], a method of the model that sampled.
        ahead: where the Reward Stack finds what was scored while these were sampled, and asks for the next ones.
    """

    latents: Tensor
    final: Tensor
    images: Tensor
    sigmas: tuple[float, ...]
    trained: tuple[int, ...]
    stds: tuple[float, ...]
    log_probs: Tensor
    groups: Tensor
    share: Share
    prompts: tuple[str, ...]
    settings: SamplerSettings
    policy_version: int
    seed: int
    kept: list[Tensor] | None = None
    unconditional_gradient: bool = True
    predictions: Tensor | None = None
    decode: Callable[[Tensor], Tensor] | None = None
    seconds: float = 0.0
    positions: tuple[int, ...] = ()
    ahead: Ahead | None = None

    @property
    def texts(self) -> list[str]:
        """The prompt of each of the B samples."""
        return [self.prompts[group] for group in self.groups.tolist()]

    def made_by(self, model: FlowModel) -> bool:
        return self.decode is None or self.decode.__self__ is model


@dataclass(frozen=True)
class Scores:
    """What the reward models said: `values` [B, K] float32, not finite where there is no score (`rewards.base.FAILED` and
    `LEFT_OUT`).

    `held_out` [B, H] are rewards that are logged and never trained on. `rewards` are the scorers themselves, trained ones
    first, so that an evaluation can score other pictures by the same measure; `prompts` are the P groups' texts. `seconds` is
    what each reward took, `waited` how long the iteration stood still for all of them; None: for the sum.
    """

    values: Tensor
    names: tuple[str, ...]
    coefficients: tuple[float, ...]
    groups: Tensor
    held_out: Tensor
    held_out_names: tuple[str, ...]
    rewards: Sequence[Reward]
    prompts: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    waited: float | None = None


@dataclass(frozen=True)
class StepCredit:
    """When: how much of a trajectory's advantage each trained transition receives.

    Attributes:
        weights: [B, T'], mean 1 over the trained steps unless the method says otherwise.
        raw: [B, T'], the same before floor and scale; sums to 1.
        delta: [B, T], ΔS_j = S_{j+1} - S_j.
        similarity: [B, T+1], S_j = cos(x_j, x̂0).
        trained: the T' transition numbers.
        node: the id of the graph's node that gave this credit, which shows it on the canvas.
        place: [B, h, w] or [B, F, h, w], where in the latent the credit goes, of mean 1; None: everywhere alike.
        ratio_scale: T' factors of the densities' log-ratio log ρ_j, whatever the sampler's log_prob_norm; empty: 1.
        regulated: whether the log-ratio's bias is taken out (GRPO-Guard).
    """

    weights: Tensor
    raw: Tensor
    delta: Tensor
    similarity: Tensor
    trained: tuple[int, ...]
    method: str = "tcd"
    sigmas: tuple[float, ...] = ()
    seconds: float = 0.0
    node: str = ""
    place: Tensor | None = None
    ratio_scale: tuple[float, ...] = ()
    regulated: bool = False


@dataclass(frozen=True)
class Fused:
    """What: one advantage a sample [B] and, for the eye, the objectives' coefficients [B, K]."""

    advantage: Tensor
    coefficients: Tensor


@dataclass(frozen=True)
class Advantages:
    """The effective advantage Ã [B, T'] of every trained step, with all it was made of."""

    step_advantage: Tensor
    per_objective: Tensor  # [B, K], clipped and scaled
    fused: Fused
    valid: Tensor  # [B] bool
    scores: Scores
    credit: StepCredit
    metrics: Metrics
    method: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Report:
    """One finished iteration, for the eye and the log."""

    metrics: Metrics
    advantages: Advantages
    trajectories: Trajectories
