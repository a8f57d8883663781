"""Memory of each phase of an iteration on the GPU, and what would need less. Imports neither torch nor ComfyUI.

    needed = max over phases of (what stays + what the phase takes on top) + reserve

A `Case` is one training. It knows what its model holds and what one call of it takes: `rehearsal` counts that for a model of
diffusers, `native` for one that ComfyUI loaded. All else about memory is here, once for both. Nothing was measured on a GPU.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from ..types import EVALUATED, GRADIENT_NODE, HALO, MEMORY_SHARE, RUN_NODE, STEP_NODES, TRAJECTORY_NODES, side_of

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

C = TypeVar("C", bound="Case")

GB = 10**9  # as the sizes of files are given; a GPU's GB are larger (2^30), which leaves 7 % of room

# Bytes of a trained parameter; all of these are float32.
TRAINED_BYTES, GRADIENT_BYTES, MOMENTS_BYTES = 4, 4, 8
AVERAGE_BYTES = 4  # the update's ema_decay; and as much for the old policy of Matching Step
# What no count of tensors shows: CUDA's context, gaps between the allocator's blocks, workspaces of its libraries. ComfyUI keeps
# 0.8 GB and its own reserve free for the same (minimum_inference_memory in comfy/model_management.py).
RESERVE = 1 * GB
# Tensors as large as a latent that a step of the rollout, or of the loss, has beside the network's own.
LATENTS_OF_A_STEP = 8

# Tensors in float32 as large as the pictures, beside those of networks. A reward's gradient has its own and that of all, the
# pictures that it sees, their rounding, and two of the way back; the decoder's has the pictures and the sum.
PICTURES_OF_A_REWARD, PICTURES_OF_A_DECODER = 6, 2
TILE = 512  # pixels of a side; ComfyUI's own size of tiles (VAEDecodeTiled in nodes.py)
TIGHT = 0.8  # of what there is: more than that may not fit in fact
# The most calls of the network, each of one sample, that try it once for a model and shape before its first update.
TRIAL_CALLS = 6

LOADING = "loading"
ENCODING, SAMPLING, DECODING, SCORING, UPDATE = ("encoding prompts", "sampling", "decoding", "scoring", "the update")
JUDGING, UNDECODING = "the rewards' gradient", "the decoder's gradient"  # of Reward Gradient Step, within its update

# Files of the rewards that have a network (docs/rewards.md), by node.
REWARDS = {
    "OTCA_RewardClipT": 1_700_000_000,
    "OTCA_RewardVariety": 1_700_000_000,
    "OTCA_RewardAesthetic": 1_700_000_000,
    "OTCA_RewardPickScore": 3_900_000_000,
    "OTCA_RewardHPSv2": 3_900_000_000,
    "OTCA_RewardImageReward": 1_800_000_000,
    "OTCA_RewardObjects": 2_300_000_000,  # OWLv2 and the CLIP of its colors
    "OTCA_RewardVideoAlign": 5_030_000_000,
    "OTCA_RewardVideoScore": 17_000_000_000,
}

NARROW = {"OTCA_RewardVideoAlign", "OTCA_RewardVideoScore"}  # whose files are bfloat16; of the others float32

# Of a CLIP that judges, where its file is not here: Qwen3-VL 4B's 4,437,815,808 parameters in bfloat16.
CLIP_JUDGE = 8_875_631_616

# Of a judge's bytes, what is there while its blocks come one by one: two blocks, and what is no block. The most of those above,
# by their configurations: the detectors of Objects with its CLIP have 0.19 and 0.2, the others 0.08 to 0.16.
JUDGE_LEAST = 0.21

# What a pass with a gradient takes in those that have one, for a picture in float32: `judges` in bench/memory.md.
VIT_L, VIT_H, BLIP = 368_934_792, 434_891_272, 269_733_744
JUDGING_BYTES = {
    "OTCA_RewardClipT": VIT_L,
    "OTCA_RewardVariety": VIT_L,
    "OTCA_RewardAesthetic": VIT_L,
    "OTCA_RewardPickScore": VIT_H,
    "OTCA_RewardHPSv2": VIT_H,
    "OTCA_RewardImageReward": BLIP,
}

Size = tuple[int, int, int]  # width, height, frames


@dataclass(frozen=True)
class Machine:
    """The memory that there is.

    Attributes:
        device: torch's name of the one that computes; "" for none but the CPU.
        has, ram: bytes that a training can have of it, and of main memory, which are one without a GPU; 0: not known.
        widens: whether ComfyUI holds weights of 16 bits in float32, which it does on a CPU unless an option says otherwise.
    """

    device: str = "a GPU"
    has: float = 0
    ram: float = 0
    widens: bool = False


ANY_GPU = Machine()


@dataclass(frozen=True)
class Way:
    """A change that may need less memory.

    Attributes:
        words: for a human.
        iteration, case: the fields of both that differ.
        sets: values of inputs that make it: classes of nodes, input, value. None: no input does.
        kind: another change of the same kind takes its place.
    """

    words: str
    iteration: Mapping[str, Any] = field(default_factory=dict)
    case: Mapping[str, Any] = field(default_factory=dict)
    sets: tuple[tuple[tuple[str, ...], str, Any], ...] = ()
    kind: str = ""


def with_halo(size: Size, tile: int, scale: int) -> Size:
    """The side that is decoded for a tile of a picture of that size; 0: the whole picture."""
    width, height, frames = size
    side = scale * (side_of(tile, scale) + 2 * HALO) if tile else max(width, height)
    return min(width, side), min(height, side), frames


def most(cases: Sequence[C], *names: str) -> C:
    """The last of these cases, each of which needs more than the one before, whose parts leave room; else the first."""
    return cases[bisect_left(cases, True, lo=1, key=lambda case: not case.leaves_room_beside(*names)) - 1]


Choice = tuple[Way, Way, str]  # what saves time, what saves memory, and the part of phases that the former takes


@dataclass(frozen=True)
class Judge:
    """A reward that has a network.

    Attributes:
        bytes: of its weights on the GPU.
        offload: it leaves when it has answered.
        graph: bytes that a sample takes in a pass with a gradient; 0: it has none, or is only watched.
        batch: samples to a pass; 0: all.
        is_wide: it computes in float32, and would take half of all in bfloat16.
    """

    bytes: int
    offload: bool = False
    graph: int = 0
    batch: int = 0
    is_wide: bool = field(default=False, compare=False)

    @property
    def narrow(self) -> Judge:
        return replace(self, bytes=self.bytes // 2, graph=self.graph // 2, is_wide=False) if self.is_wide else self

    def judging(self, samples: int) -> int:
        return self.graph * min(samples, self.batch or samples)

    def there(self, room: float) -> int:
        """Bytes of its weights in that room, where it may take a share of it whole: else its blocks come one by one."""
        return round(self.bytes * (JUDGE_LEAST if self.offload and self.bytes > MEMORY_SHARE * room else 1))


@dataclass(frozen=True)
class Pull:
    """The calls of Reward Gradient Step.

    Attributes:
        holds_a_call: a call of the network waits for the gradient of the picture that it leads to.
        tile: see GradientSettings.
        adds: another update's gradient is added.
        calls: of each sample at points that the rollout visits, as far as they are known before it.
    """

    holds_a_call: bool
    tile: int = 0
    adds: bool = False
    calls: int = 0


@dataclass(frozen=True)
class Iteration:
    """Settings of sampler, update and rewards.

    Attributes:
        size: of a picture or video.
        samples: of all prompts together.
        alike: samples that share their noise, and so take the first trained step as one.
        prompts: that are read at once.
        references: pictures that a prompt works on, at most.
        evaluated: size, and whether guidance is classifier-free, of evaluations; None: as here.
        steps, trained_steps: of a trajectory.
        batch, sampling_batch: samples to a pass of the update and of the rollout; never more than there are.
        guided: guidance is classifier-free, so that a sample has two rows in a pass.
        both: the negative half has a gradient too.
        kept_calls: so many of a sample's trained calls keep their graphs. None: decided by the memory that there is.
        merge_adapter: the sampler's.
        copies: of what is trained: one for ema_decay, one for an old policy.
        pulled: a KL term asks the untrained model while the graph is there.
        pull: of the rewards' gradient, if the update follows that.
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
    kept_calls: int | None = 0
    merge_adapter: bool = False
    copies: int = 0
    pulled: bool = False
    rewards: tuple[Judge, ...] = ()
    pull: Pull | None = None
    references: int = 0
    evaluated: tuple[Size, bool] | None = None

    @property
    def trained_calls(self) -> int:
        """Calls of each sample whose graphs the rollout could keep."""
        return self.pull.calls if self.pull else self.trained_steps

    @property
    def keeps_all(self) -> bool:
        return bool(self.kept_calls) and self.kept_calls == self.trained_calls

    @property
    def staying(self) -> int:
        """Bytes of the judges that stay."""
        return sum(judge.bytes for judge in self.rewards if not judge.offload)

    def visiting(self, room: float) -> int:
        """Bytes of the largest of the judges that come and go, in that room."""
        return max((judge.there(room) for judge in self.rewards if judge.offload), default=0)

    @property
    def picture(self) -> int:
        """Bytes of one sample's picture or video in float32."""
        return 4 * 3 * math.prod(self.size)

    def ways(self, has_gpu: bool = True) -> Iterator[Way]:
        """Changes that help, from cheap to costly: only tiles change the result."""
        if self.evaluated:
            sets = tuple(((RUN_NODE,), f"evaluation_{name}", 0) for name in EVALUATED)
            yield Way("evaluations of the training's size and guidance", {"evaluated": None}, sets=sets)
        judges = tuple(REWARDS)
        if self.rewards and has_gpu:
            offloaded = {"rewards": tuple(replace(j, offload=True) for j in self.rewards)}
            yield Way("offload on every reward", offloaded, sets=((judges, "offload", True),))
        if self.pull:
            single = {"rewards": tuple(replace(j, batch=1) for j in self.rewards)}
            yield Way("batch_size 1 on every reward", single, sets=((judges, "batch_size", 1),))
        merged = (TRAJECTORY_NODES, "merge_adapter", False)
        yield Way("SDE Sampler merge_adapter off", {"merge_adapter": False}, sets=(merged,))
        yield Way("the update's batch_size 1", {"batch": 1}, sets=((STEP_NODES, "batch_size", 1),))
        yield Way("SDE Sampler batch_size 1", {"sampling_batch": 1}, sets=((TRAJECTORY_NODES, "batch_size", 1),))
        yield Way("SDE Sampler keep_graph off", {"kept_calls": 0}, sets=((TRAJECTORY_NODES, "keep_graph", "off"),))
        if self.pull:
            for tile in (TILE, TILE // 2):
                words = f"Reward Gradient Step tile {tile} (an estimate of the gradient)"
                pull = {"pull": replace(self.pull, tile=tile)}
                yield Way(words, pull, sets=(((GRADIENT_NODE,), "tile", tile),), kind="tile")

    def elsewhere(self) -> Iterator[Way]:
        """Rewards with less, or none, of the GPU."""
        if self.rewards:
            narrow = {"rewards": tuple(judge.narrow for judge in self.rewards)}
            sets = ((tuple(REWARDS), "dtype", "bfloat16"),)
            yield Way("dtype bfloat16 on every reward (scores change a little)", narrow, sets=sets, kind="rewards")
            sets = ((tuple(REWARDS), "device", "cpu"),)
            yield Way("device cpu on every reward (slow)", {"rewards": ()}, sets=sets, kind="rewards")

    def smaller(self, sizes: tuple[Size, ...]) -> Iterator[Way]:
        for size in sizes:
            if math.prod(size) < math.prod(self.size):
                names = ("width", "height", *(("frames",) if self.size[2] > 1 else ()))
                sets = tuple((TRAJECTORY_NODES, name, value) for name, value in zip(names, size, strict=False))
                yield Way("size " + in_words(size), {"size": size}, sets=sets, kind="size")


def in_words(size: Size) -> str:
    width, height, frames = size
    return f"{width} × {height}" + (f", {frames} frames" if frames > 1 else "")


@dataclass(frozen=True)
class Held:
    """Bytes of what outlasts a phase.

    Attributes:
        weights: of the networks that are trained, as they are held.
        trained: numbers that are trained; an adapter's, or those of all weights.
        whole: all weights are trained, so that they are not in `weights`; the untrained ones are.
        encoders, vae: of the text encoders and of the autoencoder.
        encoders_visit, vae_visit: they are there only while they work.
        steps_aside: phases in which the weights leave if they and what works do not both fit.
        streams: {phase: (part, bytes)}, parts that stay in main memory as far as that phase needs their room, but for so many
            bytes, and come when they are computed with.
        at_once: where the phase lacks any room, all of that part stays there but for those bytes, and not just what is lacking.
        loading: what is there of the networks that are trained before they are shared out, if that is more.
        reserve: see RESERVE.
    """

    weights: int = 0
    trained: int = 0
    whole: bool = False
    encoders: int = 0
    vae: int = 0
    encoders_visit: bool = False
    vae_visit: bool = False
    steps_aside: tuple[str, ...] = ()
    streams: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    at_once: bool = False
    loading: int = 0
    reserve: int = RESERVE


@dataclass(frozen=True)
class Graph:
    """Bytes of a call with a gradient.

    Attributes:
        kept: what autograd keeps for the backward pass.
        peak: the most that forward and backward take together.
        backward: the most that the backward pass takes beside what is kept.
    """

    kept: int
    peak: int
    backward: int


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
        names = dict.fromkeys(name for parts in self.phases.values() for name in parts)
        return {name: max(parts.get(name, 0) for parts in self.phases.values()) for name in names}

    @property
    def totals(self) -> dict[str, int]:
        return {phase: sum(parts.values()) for phase, parts in self.phases.items()}

    @property
    def phase(self) -> str:
        """The largest one."""
        return max(self.totals, key=self.totals.__getitem__)

    @property
    def total(self) -> int:
        return self.totals[self.phase]


class Case(ABC):
    """One training. Its subclasses are data classes; a change of their fields makes another case.

    Attributes:
        iteration: None: only what is held counts, as before anything is sampled.
        machine: by whose memory `decided` decides.
    """

    iteration: Iteration | None
    machine: Machine

    # -- what a model of one kind or the other knows: bytes, for so many samples in a call --------------------------------

    @property
    @abstractmethod
    def title(self) -> str: ...

    @abstractmethod
    def held(self) -> Held: ...

    @property
    @abstractmethod
    def travelling(self) -> str:
        """For a human: what is streamed, and how often; "" where nothing is."""

    @abstractmethod
    def latent(self) -> int:
        """One sample's latent in float32."""

    @abstractmethod
    def forward(self, samples: int) -> int:
        """Bytes of a call without a gradient."""

    @abstractmethod
    def graph(self, samples: int) -> Graph: ...

    @abstractmethod
    def decoding(self, samples: int) -> int:
        """Bytes that the autoencoder takes for the pictures of a call."""

    def decoding_at_once(self, samples: int) -> int:
        """The same where it is not left to the autoencoder how many it takes."""
        return self.decoding(samples)

    @abstractmethod
    def decoder(self, samples: int, tile: int) -> Graph:
        """Decoding all of them at once with a gradient, or the same tile of each; see `with_halo`."""

    @abstractmethod
    def ways(self) -> Iterator[Way]:
        """Changes that help, from cheap to costly."""

    def encoding(self) -> int:
        """Bytes that the text encoders take for the prompts of an iteration."""
        return 0

    def layer(self) -> int:
        """A layer's weights while it computes, if they are held in another form."""
        return 0

    def merged(self) -> int:
        """The adapted weights with the adapter in them, which `merge_adapter` of SDE Sampler makes."""
        return 0

    # -- the phases --------------------------------------------------------------------------------------------------------

    @cached_property
    def decided(self) -> Self:
        """The case that will run: all that `auto` leaves open, decided by the memory that there is, and by nothing else.

        What saves time may take half of what is left beside it, in each phase. The count, the light and the run all ask this,
        and decide nothing themselves.
        """
        case = self
        for way, other, part in self.open():
            quick = case._with(way)
            case = quick if quick.leaves_room_beside(part) else case._with(other)
        if case.iteration and case.iteration.kept_calls is None:
            ways = [case._with(Way("", {"kept_calls": n})) for n in range(case.iteration.trained_calls + 1)]
            case = most(ways, "kept graph")
        return case.filled()

    def leaves_room_beside(self, *names: str) -> bool:
        """Whether each of these parts takes, in each phase, no more than it may of what there is beside the others."""
        phases = [(parts, sum(parts.values())) for parts in self.estimate().phases.values()]
        shares = [(parts[name], total) for parts, total in phases for name in names if name in parts]
        return all(size <= MEMORY_SHARE * (self.machine.has - total + size) for size, total in shares)

    def filled(self) -> Self:
        """With all else decided: the room that is left, used."""
        return self

    def open(self) -> Iterator[Choice]:
        """The choices that `decided` has to make for this model."""
        yield from ()

    @cached_property
    def needs(self) -> Estimate:
        """With whatever can step aside aside."""
        return self.decided.estimate()

    def estimate(self, room: float = 0) -> Estimate:
        """The needs of the phases of one iteration.

        Args:
            room: bytes that the GPU has. What can step aside does so if there is not enough; at 0 always.
        """
        held, it = self.held(), self.iteration
        copies = it.copies if it else 0
        always = {
            "weights": held.weights,
            "adapter": held.trained * (TRAINED_BYTES + AVERAGE_BYTES * copies),
            "optimizer": held.trained * MOMENTS_BYTES,
            "text encoder": 0 if held.encoders_visit else held.encoders,
            "VAE": 0 if held.vae_visit else held.vae,
            "rewards": it.staying if it else 0,
            "reserve": held.reserve,
        }
        if held.whole:
            always["trained weights"] = always.pop("adapter")
        # The gradients are there from the first backward pass of an update to the next rollout; of two updates with their sum.
        # To ask a model that is trained as a whole as it was, its untrained weights are copied to float32.
        gradients = {"gradients": held.trained * GRADIENT_BYTES * (3 if it and it.pull and it.pull.adds else 1)}
        untrained = held.trained * TRAINED_BYTES if held.whole else 0
        work = self._work(it) if it else {}
        kept = {"kept graph": work.get("kept", 0)}

        def room_beside(parts: dict[str, int], phase: str) -> float:
            """Bytes for judges, when what leaves for them has left; the reserve is free then."""
            name, least = held.streams.get(phase, ("reserve", 0))
            return (self.machine.has or math.inf) - sum((parts | {name: least, "reserve": 0}).values())

        phases = {
            ENCODING: always | {"text encoder": held.encoders, "encoding": self.encoding() if it else 0},
            SAMPLING: always | kept | {name: work.get(name, 0) for name in ("merged weights", "sampling")},
            DECODING: always | kept | {"VAE": held.vae, "decoding": work.get("decoding", 0)},
            SCORING: always
            | kept
            | {"rewards": it.staying + it.visiting(room_beside(always | kept, SCORING)) if it else 0},
            UPDATE: always
            | kept
            | gradients
            | {"activations": max(work.get("update", 0), work.get("reference", 0) + untrained)},
        }
        if it and it.pull:
            on_top = always | kept | gradients | {"VAE": held.vae}
            room_of_judges = room_beside(on_top, JUDGING)
            phases |= {phase: on_top | parts for phase, parts in self._pulled(it, it.pull, room_of_judges).items()}
        if held.loading:
            whole = {"weights": held.loading, "VAE": always["VAE"], "text encoder": always["text encoder"]}
            phases = {LOADING: whole} | phases
        for phase in held.steps_aside:
            if sum(phases[phase].values()) > room:
                phases[phase] = phases[phase] | {"weights": 0}
        for phase, (name, least) in held.streams.items():
            parts = phases.get(phase, {})
            if (over := sum(parts.values()) - (self.machine.has or math.inf)) > 0:
                rest = parts[name] - math.ceil(over)
                phases[phase] = parts | {name: min(parts[name], least if held.at_once else max(least, rest))}
        if it and it.evaluated:
            size, guided = it.evaluated
            apart = replace(it, size=size, guided=guided, evaluated=None, kept_calls=0, pull=None)
            evaluated = replace(self, iteration=apart).estimate(room).phases  # pyright: ignore[reportArgumentType] a data class
            for phase in (SAMPLING, DECODING):
                phases[phase] = max(phases[phase], evaluated[phase], key=lambda parts: sum(parts.values()))
        return Estimate(
            {phase: {name: size for name, size in parts.items() if size} for phase, parts in phases.items()}
        )

    def _work(self, it: Iteration) -> dict[str, int]:
        """Bytes that the phases take on top of what is held."""
        sampling, update = (min(samples, it.samples) for samples in (it.sampling_batch, it.batch))
        latent, layer = self.latent(), self.layer()
        step = LATENTS_OF_A_STEP * latent
        # The points that were visited are stacked, and only then go to main memory.
        visited = (2 * (it.steps + 1) * latent + step) * sampling
        calls, kept = it.kept_calls or 0, 0
        graph = self.graph(update)
        alone, most = graph.kept, graph.peak
        if calls:
            graph, first = self.graph(sampling), self.graph(sampling if it.pull else -(-sampling // it.alike))
            kept = (graph.kept * (calls - 1) + first.kept) * -(-it.samples // sampling)
        if it.keeps_all:
            alone, most = 0, graph.backward
        forward = self.forward(update)
        if it.pulled:
            most = max(most, alone + forward)
        return {
            "sampling": self.forward(sampling) + visited + layer,
            "merged weights": self.merged() if it.merge_adapter and not calls else 0,
            "kept": kept,
            "decoding": self.decoding(sampling),
            "update": most + step * update + layer,
            "reference": forward + step * update + layer,
        }

    def _pulled(self, it: Iteration, pull: Pull, room: float) -> dict[str, dict[str, int]]:
        """The same for the gradient of the rewards in the pictures, and then of the pictures in the latents.

        `room`: for all of it.
        """
        samples = min(it.batch, it.samples)
        calls = {"activations": LATENTS_OF_A_STEP * self.latent() * samples + self.layer()}
        if pull.holds_a_call and not it.keeps_all:
            calls["activations"] += self.graph(samples).kept
        pictures, decoder = it.picture * samples, self.decoder(samples, pull.tile)
        # Of tiles none waits for the rewards; the whole pictures were decoded without a gradient before.
        waits, most = decoder.kept, decoder.peak
        if pull.tile:
            waits, most = 0, max(most, self.decoding_at_once(samples))
        room -= sum(calls.values()) + waits
        judges = [(judge.offload * judge.there(room), judge.judging(samples)) for judge in it.rewards if judge.graph]
        visits, judging = max(judges, key=sum, default=(0, 0))
        return {
            JUDGING: calls
            | {"rewards": it.staying + visits, "judging": judging + PICTURES_OF_A_REWARD * pictures, "decoding": waits},
            UNDECODING: calls | {"rewards": it.staying, "decoding": most + PICTURES_OF_A_DECODER * pictures},
        }

    # -- does it fit? ------------------------------------------------------------------------------------------------------

    def changes(self) -> dict[str, Self]:
        """{what to change: the case that it makes}, for changes that need less memory, from cheap to costly."""
        cases = {way.words: self._with(way) for way in self.ways()}
        return {words: case for words, case in cases.items() if case.needs.total < self.needs.total}

    def together(self, has: float, accepts: Callable[[Way], bool] = lambda way: True) -> tuple[list[Way], Self]:
        """Changes one after another, each the cheapest that then helps, until all of it fits or none is left.

        The last of one `kind` counts.

        `accepts`: of which to take.
        """
        case, steps = self, []
        while case.needs.total > has:
            ways = (way for way in case.ways() if accepts(way) and case._with(way).needs.total < case.needs.total)
            if (way := next(ways, None)) is None:
                break
            steps = [*(step for step in steps if not way.kind or step.kind != way.kind), way]
            case = case._with(way)
        return steps, case

    def fix(self, has: float, accepts: Callable[[Way], bool]) -> tuple[list[Way], Self]:
        """The first change that alone makes it fit; else several `together`. No changes: it cannot be made to fit."""
        for way in filter(accepts, self.ways()):
            if (changed := self._with(way)).needs.total <= has:
                return [way], changed
        changes, case = self.together(has, accepts)
        return (changes, case) if case.needs.total <= has else ([], self)

    def _with(self, way: Way) -> Self:
        changed = {"iteration": replace(self.iteration, **way.iteration)} if way.iteration and self.iteration else {}
        return replace(self, **changed, **way.case)  # pyright: ignore[reportArgumentType] a data class

    def sentence(self, has: float) -> str:
        """For a human: what it needs, what there is, and the changes that make it fit."""
        needs = (
            f"needs about {self.needs.total / GB:.1f} GB for {self.needs.phase} (an estimate), {has / GB:.1f} GB free"
        )
        if self.needs.total <= has:
            return "; ".join(filter(None, (f"{needs}: fits", self.travelling)))
        changes, changed = self.together(has)
        fits = "" if changed.needs.total <= has else ", which does not fit either; a larger GPU"
        fix = (
            f"{', '.join(way.words for way in changes)} ({changed.needs.total / GB:.1f} GB{fits})"
            if changes
            else "a larger GPU"
        )
        return f"{needs}: does not fit. Fix: {fix}"
