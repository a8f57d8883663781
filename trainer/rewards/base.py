"""The contract of a reward, and the scoring of one batch by several."""

from __future__ import annotations

import inspect
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ...host import distributed, stopping
from ...host.devices import Resident
from ..groups import distances
from ..networks import RewardError
from ..networks.network import Network, shared
from ..types import FAILED, LEFT_OUT, VIDEO_FRAMES, Scores, metadata_of, place_of

logger = logging.getLogger(__name__)


class Reward(Resident, ABC):
    """Scores pictures. Higher is better.

    Attributes:
        name: as it appears in metrics, unique within a stack.
        coefficient: the weight of its advantage in the fusion.
        held_out: scored and logged, never trained on.
        bounds: (lowest, highest) of the score, or None.
        groups_only: it may only be asked about pictures that are trained on, because an answer is expensive.
        reads_prompt: a word more in the prompt can change its score.
        asks_comfyui: it computes with models that ComfyUI manages, and so never while others are sampled with.
        meaning: what its score is, where a table says so beside its name: an answer of a judge, as its templates name them.
        file_fps: frames a second of the video files that are being scored; 0 where the samples come from no file.
        tolerance: by how much `differentiable` may differ from `score`; of scores beyond ±1, as a share of them.
    """

    bounds: tuple[float, float] | None = None
    groups_only: bool = False
    reads_prompt: bool = True
    asks_comfyui: bool = False
    meaning: str = ""
    file_fps: float = 0.0
    tolerance: float = 1e-3

    def __init__(self, name: str, coefficient: float = 1.0, held_out: bool = False):
        self.name = name
        self.coefficient = coefficient
        self.held_out = held_out

    @classmethod
    def own_name(cls, settings: Mapping) -> str:
        """Its name in metrics if its node, with these settings, sets none."""
        return inspect.signature(cls.__init__).parameters["name"].default

    @classmethod
    def applies_to(cls, prompt: str) -> bool:
        """Whether it scores pictures of this prompt. Raises RewardError where its line says wrongly what to look for."""
        return True

    @classmethod
    def chooses(cls) -> bool:
        """Whether it may apply to some prompts and not to others."""
        return cls.applies_to.__func__ is not Reward.applies_to.__func__  # pyright: ignore[reportFunctionMemberAccess]

    @abstractmethod
    def score(self, images: Tensor, prompts: Sequence[str]) -> Tensor | Sequence[float | None]:
        """[B] numbers for pictures [B, H, W, 3] in [0, 1] and their B prompts: NaN for what cannot be scored though it should be,
        None (in a list) for what the reward does not apply to."""

    def differentiable(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        """`score` as a function that has a gradient in the pictures: [B] float32, equal to `score`'s but for rounding.

        A reward that defines it has a gradient, see `has_gradient`. Where pictures are rounded to 8 bits, the gradient goes
        through as if they were not.
        """
        raise RewardError(f"reward {self.name!r} has no gradient")

    @classmethod
    def has_gradient(cls) -> bool:
        return cls.differentiable is not Reward.differentiable

    def score_videos(self, videos: Tensor, prompts: Sequence[str]) -> Tensor | Sequence[float | None]:
        """[B] float32 for videos [B, F, H, W, 3]: the mean over VIDEO_FRAMES frames, evenly spread, both ends included."""
        frames = stills(videos)
        texts = [prompt for prompt in prompts for _ in range(len(frames) // len(videos))]
        means = as_column(self.score(frames, texts)).reshape(len(videos), -1).mean(1)
        return [None if mean == LEFT_OUT else mean for mean in means.tolist()]

    def of_files(self, fps: float) -> None:
        """Called before files of so many frames a second are scored; 0: of pictures."""
        self.file_fps = fps

    def for_other_pictures(self) -> Reward | None:
        """The reward that scores an evaluation's pictures in its place; None for one that is `groups_only`."""
        return None if self.groups_only else self

    def watched(self) -> Mapping[str, float]:
        """Figures of its own that are logged beside its scores, and shown as what is watched."""
        return {}

    def rest(self) -> None:
        """Called when all rewards have scored a batch: one with `offload` leaves the device until the next."""


class GroupReward(Reward):
    """A reward that compares the pictures of a prompt with each other, as a human does.

    It sees a rollout's pictures all at once, in the first of several processes; the others get its scores.
    """

    groups_only = True

    @classmethod
    def has_gradient(cls) -> bool:
        return cls.differentiable_groups is not GroupReward.differentiable_groups

    def differentiable_groups(self, samples: Tensor, prompts: Sequence[str], groups: Sequence[int]) -> Tensor:
        """`score_groups` as a function that has a gradient in the samples, which are whole groups: [B] float32; 0 for what has no
        score. A sample moves the scores of its whole group."""
        raise RewardError(f"reward {self.name!r} has no gradient")

    @abstractmethod
    def score_groups(self, samples: Tensor, prompts: Sequence[str], groups: Sequence[int]) -> Sequence[float | None]:
        """B scores of pictures [B, H, W, 3] or videos [B, F, H, W, 3], as `score` gives them.

        `prompts`: of each of the B samples.
        `groups`: the number of each sample's group.
        """

    def score(self, images: Tensor, prompts: Sequence[str]) -> Tensor | Sequence[float | None]:
        raise RewardError("it compares the pictures of a training's groups, and cannot judge others by themselves")


class NetworkReward(Reward):
    """A reward that asks a `Network`, which it shares with others.

    Args:
        kind, path, arguments: what `shared` needs to load it.
        device: auto, or a torch device.
        dtype: auto, or one of DTYPES.
        batch_size: pictures to one forward pass; 0: all at once.
        offload: between two uses the network waits in main memory.
        use: `coefficient` and `held_out`.
    """

    def __init__(
        self,
        name: str,
        kind: type[Network],
        path: Path,
        arguments: Mapping[str, Hashable] | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        batch_size: int = 0,
        offload: bool = False,
        **use,
    ):
        super().__init__(name, **use)
        self.network = shared(kind, path, device, dtype, **(arguments or {}))
        self.batch_size, self.offload = batch_size, offload
        NetworkReward.rest(self)  # as between two uses
        if self.network.dtype.itemsize < 4:  # the last digit of half precision tells nearly equal pixels apart
            self.tolerance = 2e-2

    def come_back(self) -> None:
        self.network.come_back()

    def rest(self) -> None:
        if self.offload:
            self.network.rest()

    def in_batches(self, function: Callable[..., Tensor], *columns) -> Tensor:
        """`function` of `batch_size` rows of every column at a time (tensors or lists of one length), put together."""
        size = self.batch_size or len(columns[0])
        parts = range(0, len(columns[0]), size)
        return torch.cat([function(*(column[start : start + size] for column in columns)) for start in parts])


_stills_of = WeakTensorKeyDictionary()


def stills(videos: Tensor) -> Tensor:
    """Frames that judges of pictures see, [B·n, H, W, 3]: the same tensor for every reward of a stack, so that they can share
    what they compute of it."""
    if videos not in _stills_of:
        _stills_of[videos] = videos[:, seen_frames(videos.shape[1])].flatten(0, 1)
    return _stills_of[videos]


def seen_frames(total: int) -> Tensor:
    """The numbers of the frames that judges of pictures see of a video."""
    return torch.linspace(0, total - 1, min(VIDEO_FRAMES, total)).round().long()


def parse_bounds(text: str) -> tuple[float, float] | None:
    """`"0.1, 0.4"` to (0.1, 0.4); empty to None. Raises ValueError for anything else."""
    if not text.strip():
        return None
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        low, high = math.nan, math.nan
    if not low < high:
        raise ValueError(
            f"{text!r} is not a pair of bounds. Fix: two numbers, the lower first, as in 0.1, 0.4, or leave it empty"
        )
    return low, high


def score(
    rewards: Sequence[Reward], images: Tensor, prompts: Sequence[str], groups: Sequence[int] | None = None
) -> Tensor:
    """All rewards' scores [B, len(rewards)], of pictures or videos; NaN for a score that is missing, for whatever reason.

    `groups`: the number of each sample's group, which a GroupReward needs.

    Raises:
        RewardError: a reward threw, or returned another number of scores.
    """
    try:
        columns = [_column(reward, images, prompts, groups=groups) for reward in in_turns(rewards)]
    finally:
        for reward in rewards:
            reward.rest()
    values = torch.stack(columns, 1) if columns else torch.empty(len(images), 0)
    return torch.where(values.isfinite(), values, torch.nan)


def score_with_gradient(
    reward: Reward, images: Tensor, prompts: Sequence[str], groups: Sequence[int] | None = None
) -> Tensor:
    """One reward's scores [B] of pictures [B, H, W, 3] or videos [B, F, H, W, 3], bounded, with their gradient.

    `groups`: the number of each sample's group, for a GroupReward, which is to see whole groups.

    Raises:
        RewardError: it has none, or compares groups and was told none.
    """
    reward.come_back()
    if isinstance(reward, GroupReward):
        if groups is None:
            raise RewardError(f"reward {reward.name!r} compares the pictures of a group, and was told no groups")
        scores = reward.differentiable_groups(images, prompts, groups)
    else:
        frames = images[:, seen_frames(images.shape[1])].flatten(0, 1) if images.ndim == 5 else images
        texts = [prompt for prompt in prompts for _ in range(len(frames) // len(images))]
        scores = reward.differentiable(frames, texts).unflatten(0, (len(images), -1)).mean(1)
    return scores if reward.bounds is None else scores.clamp(*reward.bounds)


def check_paths(reward: Reward, images: Tensor, prompts: Sequence[str], groups: Sequence[int] | None = None) -> None:
    """Compares `score_with_gradient` with `score` on these samples; those without a score are left out.

    Raises:
        RewardError: they differ by more than the reward's `tolerance` allows, or one of them failed.
    """
    try:
        scored = _column(reward, images.detach().cpu(), prompts, groups=groups)
        with torch.no_grad():
            followed = score_with_gradient(reward, images, prompts, groups).cpu()
    finally:
        reward.rest()
    allowed = reward.tolerance * scored.abs().clamp(min=1)
    wrong = ~((followed - scored).abs() <= allowed) & scored.isfinite()
    for sample in wrong.nonzero()[:1, 0].tolist():
        raise RewardError(
            f"reward {reward.name!r} gives sample {sample} the score {scored[sample]:.6g}, and {followed[sample]:.6g} where it "
            f"has a gradient: they may differ by {allowed[sample]:.2g}. Fix: switch on held_out on its node, so that it is "
            "watched and its gradient is not followed; of a network in half precision, try float32"
        )


def judges_of(prompt: str) -> list[str] | None:
    """The names of the rewards that a prompt's line asks for, as {"prompt": …, "judged_by": ["text"]}; None: all of the stack.

    Raises:
        RewardError: it has no names there.
    """
    named = metadata_of(prompt).get("judged_by")
    named = named.replace(",", " ").split() if isinstance(named, str) else named
    if not (named is None or isinstance(named, list) and all(isinstance(name, str) for name in named)):
        fix = 'names of rewards, as "judged_by": ["text"]'
        raise RewardError(f"{place_of(prompt)}: judged_by = {named!r} is not a list of names. Fix: {fix}")
    return named


def _column(
    reward: Reward, images: Tensor, prompts: Sequence[str], first: int = 0, groups: Sequence[int] | None = None
) -> Tensor:
    """[B] float32 on the CPU, by one reward.

    `first`: the number of the first sample, for the log.
    `groups`: the number of each sample's group, for a GroupReward.
    """
    named = [judges_of(prompt) for prompt in prompts]
    if rows := [row for row, names in enumerate(named) if names is not None and reward.name not in names]:
        column, rest = torch.full((len(prompts),), LEFT_OUT), sorted({*range(len(prompts))} - {*rows})
        if rest:
            whole = None if groups is None else [groups[row] for row in rest]
            column[rest] = _column(reward, images[rest], [prompts[row] for row in rest], first, whole)
        return column
    try:
        reward.come_back()
        with torch.no_grad():
            if isinstance(reward, GroupReward) and groups is not None:
                column = as_column(reward.score_groups(images, prompts, groups))
            else:
                scored = reward.score_videos if images.ndim == 5 else reward.score
                column = as_column(scored(images, prompts))
    except stopping.interrupts():
        raise
    except Exception as error:
        message = error if isinstance(error, RewardError) else f"{type(error).__name__}: {error}"
        raise RewardError(f"reward {reward.name!r} failed: {message}") from error
    if column.shape != (len(images),):
        raise RewardError(
            f"reward {reward.name!r} gave scores of shape {tuple(column.shape)} for {len(images)} pictures"
        )
    left_out = column == LEFT_OUT
    if reward.bounds is not None:
        column = torch.where(column.isfinite(), column.clamp(*reward.bounds), column)
    column = torch.where(column.isfinite(), column, torch.where(left_out, LEFT_OUT, FAILED))
    for sample in column.isnan().nonzero()[:, 0].tolist() if not reward.held_out else ():
        logger.warning("reward %r gave nan for sample %d: that sample is left out", reward.name, first + sample)
    return column


def in_turns(rewards: Sequence[Reward]) -> Iterator[Reward]:
    """Each of them, which rests before the next one's turn, unless a later one asks the same network. At the end all rest."""
    for number, reward in enumerate(rewards, 1):
        yield reward
        later = [getattr(other, "network", None) for other in rewards[number:]]
        if later and getattr(reward, "network", reward) not in later:
            reward.rest()


def as_column(scores: Tensor | Sequence[float | None]) -> Tensor:
    """A reward's answer as float32 on the CPU, with FAILED and LEFT_OUT for what is not a score."""
    answers = scores if isinstance(scores, list | tuple) else []
    numbers = [FAILED if answer is None else answer for answer in answers] if answers else scores
    column = torch.as_tensor(numbers).float().cpu()
    column = torch.where(column.isfinite(), column, FAILED)
    left_out = [answer is None for answer in answers]
    return column.masked_fill(torch.tensor(left_out), LEFT_OUT) if any(left_out) else column


def nothing_to_learn(scores: Scores) -> tuple[str, str] | None:
    """Returns why no sample of a batch can be learned from, and the fix; None if one can."""
    if scores.usable.any():
        return None
    failed = [name for name, column in zip(scores.names, scores.values.T, strict=True) if column.isnan().any()]
    names = " and ".join(map(repr, failed or scores.names))
    if failed:
        fix = "mend it, or let it say None for what it does not apply to"
        return f"reward {names} gave no score for any sample", fix
    return f"reward {names} applies to no sample", "give prompts that it applies to, or another reward"


def refuse_groups_only(rewards: Sequence[Reward], what: str) -> None:
    """Raises RewardError naming the rewards that may only be asked about trained pictures; `what` would ask about others."""
    if names := [repr(reward.name) for reward in rewards if reward.groups_only or isinstance(reward, GroupReward)]:
        raise RewardError(
            f"{what} asks every reward about other pictures than those that are trained on, and {' and '.join(names)} may not be "
            "asked about them. Fix: disconnect it, or choose a credit that asks no reward"
        )


@dataclass(frozen=True)
class Columns:
    """Some samples' scores [b] by the name of the reward, FAILED or LEFT_OUT for what is missing, and each reward's seconds.

    `points`: [b·n, D], where the pictures, or n frames of each video, stand in the space of the first encoder; None if it was
    not asked about all of them.
    """

    values: Mapping[str, Tensor]
    seconds: Mapping[str, float]
    points: Tensor | None = None


def score_part(
    rewards: Sequence[Reward],
    images: Tensor,
    prompts: Sequence[str],
    first: int = 0,
    on_step: Callable[[], None] = lambda: None,
    is_whole: bool = False,
) -> Columns:
    """Scores some samples of a rollout, of which `first` is the first one's number; `is_whole`: all of them."""
    values, seconds = {}, {}
    for reward in in_turns(rewards) if is_whole else rewards:
        on_step()
        started = time.perf_counter()
        values[reward.name] = _column(reward, images, prompts, first)
        seconds[reward.name] = time.perf_counter() - started
    encoders = [r.network for r in rewards if isinstance(r, NetworkReward) and hasattr(r.network, "pictures")]
    pictures = stills(images) if encoders and images.ndim == 5 else images
    return Columns(values, seconds, encoders[0].known(pictures, "pictures") if encoders else None)


def _score_groups(
    rewards: Sequence[Reward], images: Tensor, prompts: Sequence[str], groups: Tensor, on_step: Callable[[], None]
) -> Columns:
    """Asks the rewards about the whole batch, in the first process alone; returns this process's share of their scores.

    `prompts`: the P groups' texts.
    """
    values, seconds = {}, {}
    if rewards:
        everything, numbers = distributed.whole(images), distributed.whole(groups)
        rows = distributed.rows(len(everything))
        texts = [prompts[int(number)] for number in numbers]
    for reward in rewards:
        on_step()
        started = time.perf_counter()
        column = torch.zeros(len(everything))
        if distributed.is_main():
            column = _column(reward, everything, texts, groups=numbers.tolist())
        values[reward.name] = distributed.each(column)[0][rows.start : rows.stop]
        seconds[reward.name] = time.perf_counter() - started
    return Columns(values, seconds)


def trained_first(rewards: Sequence[Reward]) -> list[Reward]:
    """The order in which a stack scores."""
    return sorted(rewards, key=lambda reward: reward.held_out)


def one_by_one(rewards: Sequence[Reward]) -> list[Reward]:
    """The rewards that judge each picture by itself, so that a part of a batch can be scored early."""
    return [reward for reward in rewards if not isinstance(reward, GroupReward)]


def score_stack(
    rewards: Sequence[Reward],
    images: Tensor,
    prompts: Sequence[str],
    groups: Tensor,
    on_step: Callable[[], None] = lambda: None,
    batch_size: int = 0,
    scored: Sequence[Columns] = (),
) -> Scores:
    """Scores one rollout. Trained rewards first, held-out ones apart; those that compare groups come last.

    `images`: this process's share of the samples.
    `prompts`: the P groups' texts.
    `groups`: the group of each of these samples.
    `on_step`: called before each reward's turn; may raise to stop.
    `batch_size`: samples that all rewards score before the next ones have their turn; 0: all.
    `scored`: scores of all those parts, where the rewards that score `one_by_one` gave them during sampling.
    """
    rewards = trained_first(rewards)
    trained = [reward for reward in rewards if not reward.held_out]
    held_out = rewards[len(trained) :]
    if not trained:
        raise RewardError("no reward is connected that is trained on. Fix: connect one whose held_out switch is off")
    names = [reward.name for reward in rewards]
    if len(set(names)) < len(names):
        raise RewardError(f"two rewards of the stack share a name: {names}. Fix: set different names on their nodes")
    size, single = batch_size or len(images), one_by_one(rewards)
    texts = [prompts[int(group)] for group in groups]
    try:
        parts = scored or [
            score_part(
                single, images[first : first + size], texts[first : first + size], first, on_step, size >= len(images)
            )
            for first in range(0, len(images), size)
        ]
        compared = _score_groups([r for r in rewards if r not in single], images, prompts, groups, on_step)
    finally:
        for reward in rewards:
            reward.rest()
    columns = {reward.name: torch.cat([part.values[reward.name] for part in parts]) for reward in single}
    columns |= compared.values
    seconds = {reward.name: sum(part.seconds[reward.name] for part in parts) for reward in single}
    seconds.update(compared.seconds)
    points = [part.points.cpu() for part in parts if part.points is not None]
    # Never None, which another process may not have.
    distance = torch.full((len(images),), torch.nan)
    if points and len(points) == len(parts):
        alone = (groups[:, None] == groups).sum(1) == 1
        distance = distances(torch.cat(points), groups).masked_fill(alone, torch.nan)

    def stack(chosen):
        return torch.stack([columns[r.name] for r in chosen], 1) if chosen else torch.empty(len(images), 0)

    return Scores(
        values=stack(trained),
        names=tuple(reward.name for reward in trained),
        coefficients=tuple(reward.coefficient for reward in trained),
        groups=groups,
        held_out=stack(held_out),
        held_out_names=tuple(reward.name for reward in held_out),
        rewards=tuple(rewards),
        prompts=tuple(prompts),
        seconds={name: seconds[name] for name in names},
        distance=distance,
    )
