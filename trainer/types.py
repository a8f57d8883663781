"""The values that travel along the graph's edges.

B trajectories, T transitions, T' trained transitions, K objectives, P prompts (one group each), [C, h, w] latent; of a
video [C, F, h, w], wherever [C, h, w] is written.
All are frozen: a node returns a new value and never changes the one that it received. What lives and changes is typed as a
`Handle`: the model on the model edge, and three fields of `Trajectories`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from ..host.comfyui import PREFIX as PREFIX
from ..host.json_files import is_number, is_whole
from .memo import Memo

if TYPE_CHECKING:
    from torch import Tensor

    from ..host.distributed import Share
    from .memo import Saved

_T = TypeVar("_T")
Handle = Annotated[_T, "no value: it lives, changes in place, and is the same object wherever it is named"]
Metrics = Mapping[str, float]

# --- Options: what a user may choose from. Of each the first one is the default, unless a settings class says another. ---

DTYPES = ("float32", "bfloat16", "float16")  # "auto" beside these: chosen by the device
TRAININGS = ("lora", "full")
QUANTIZATIONS = ("none", "8bit", "4bit")
ATTENTIONS = ("auto", "native", "flash", "_flash_3", "sage", "xformers", "flex")  # diffusers' backends
ODE_SOLVERS = ("euler", "adams_bashforth")  # of the deterministic steps
LOG_PROB_NORMS = ("full", "squared_error")
KEEP_GRAPH = ("auto", "on", "off")
WINDOW_MODES = ("progressive", "progressive_decay", "random")  # how MixGRPO's window moves
FLOORS = ("affine", "waterfill", "clamp")  # of TCD's weights
NORMALIZATIONS = ("mean", "sum")  # of TCD's weights
PROXIES = {  # of a step's progress, and which inputs of TCD Weights each needs
    "latents": (),
    "prediction": ("model",),
    "image_features": ("model",),
    "measured_gain": ("model", "scores"),
}
CREDITS = {  # of Step Credit, and what each asks for: noise of the sampler, a ratio to scale, gradients or rewards to measure
    "uniform": (),
    "noise_aware": ("noise",),
    "pcpo": ("noise", "ratio"),
    "grpo_guard": ("noise", "ratio"),
    "inverse_variance": ("gradients",),
    "learned": ("rewards",),
}
# Which inputs of Step Credit they need.
MEASURED_WITH = {"inverse_variance": ("model",), "learned": ("model", "scores")}
STD_SCOPES = ("group", "batch")  # whose spread rewards are divided by
EXPLORATIONS = ("literal", "centered")  # how MOCA measures a sample's movement
RECENTERINGS = ("none", "group")
FUSION_WEIGHTS = ("in the sum", "in the solver")  # where the user's weights of the rewards enter MOCA
STEPWISE_GAIN = "stepwise_gain"  # advantages whose credit is the advantage itself
WEIGHTED_FUSIONS = ("weighted_advantages", "weighted_sum", "weighted_advantages_per_group", "summed_advantages")
GAIN_FUSIONS = WEIGHTED_FUSIONS[:3]  # of Stepwise Gain
# What a KL term is a mean of: see `Passes.divergence`, and `grpo.kl_factor` for the others, which are of GRPO Step alone.
FORMS_OF_KL = ("velocity", "norm")
KLS = ("velocity", "transition", "flow_grpo", "mean", "norm")
LOSS_NAMES = ("clipped", "log_hinge", "dppo")  # the rows of updates.losses.LOSSES, whose functions need torch
AWM_WEIGHTINGS = ("ghuber", "uniform", "t", "t**2", "huber")  # of its log-probability by level and error
MATCHING_LOSSES = ("nft", "awm", "dgpo", "dpo")  # the rows of matching.KINDS
VIDEO_FRAMES = 8  # of a video, that a reward for pictures looks at
FORMS = ("pairs", "pictures")  # in which My Pictures gives opinions: better and worse ones, or each picture alone
GRADIENT_MODES = ("one_call", "last_steps", "low_variance", "leap")  # the rows of gradient.MODES
CREDIT_ONLY = "credit"  # advantages say when and what, and their own update is not made
GRADIENT_PARTNERS = ("awm", "grpo", "nft", "dgpo", "dpo", CREDIT_ONLY)  # what Reward Gradient Step has from advantages
OLD_POLICIES = ("gradual", "late", "on_policy")  # how the policy that samples follows the trained one
THETA, OLD = "theta", "old"  # the two policies that may sample: what is trained, and what follows it
CHECKPOINTING = ("auto", "on", "off")  # of what ComfyUI loaded; …
MEMORY = ("auto", "low")  # and where weights are: of what ComfyUI loaded, and of blocks of a folder
JUDGE_ANSWERS = ("auto", "yes_no", "number", "grade")  # of a vision-language model
JUDGE_TEMPLATES = (  # what it is asked: the user's own questions, …
    *("my questions", "content", "text", "count and place", "aesthetics", "same person", "edit followed", "rest kept"),
    *("which is better", "UnifiedReward-2.0 alignment", "UnifiedReward-2.0 pair alignment", "UnifiedReward pair"),
    *("UnifiedReward-Edit pair", "UnifiedReward-Edit instruction", "UnifiedReward-Edit quality"),
)
HPS_PROVIDERS = ("transformers", "hpsv2")

# Node ids that the trainer knows.
RUN_NODE, STEP_NODE, MATCHING_NODE = "OTCA_TrainingRun", "OTCA_GRPOStep", "OTCA_MatchingStep"
GRADIENT_NODE = "OTCA_RewardGradientStep"
STEP_NODES = (STEP_NODE, MATCHING_NODE, GRADIENT_NODE)  # a training has one of them, and one Training Run
STACK_NODE, LOAD_NODE, SAMPLER_NODE = "OTCA_RewardStack", "OTCA_LoadFlowModel", "OTCA_SDESampler"
MAKE_NODE, SELECTING_NODE = "OTCA_MakeTrainable", "OTCA_BestOfN"
MODEL_NODES = (LOAD_NODE, MAKE_NODE)  # what is trained comes from a folder of diffusers, or from ComfyUI's own loaders
SAVE_NODE, DATASET_NODE = "OTCA_SaveLoRA", "OTCA_PromptDataset"
PICTURES_NODE = "OTCA_MyPictures"
TCD_NODE = "OTCA_TCDWeights"
GIVEN_NODES = (PICTURES_NODE,)  # of pictures that are there already: their latents take the place of samples
ASKING_NODES = (STACK_NODE, *GIVEN_NODES)  # what rewards are connected to in a training
MEMORY_SHARE = 0.5  # of the free memory: the most that what saves time may take, as calls' graphs and judges that visit
TRAJECTORY_NODES = (SAMPLER_NODE, *GIVEN_NODES)  # where trajectories come from: sampled, or made of given pictures
# node ids of before: (the id now, inputs that it sets, inputs that keep their names, in the order of before)
_OF_PAIRS = (
    "model folder pairs_per_iteration index shuffle seed width height levels shift guidance negative_prompt guidance_2"
)
REPLACED = {
    **{
        f"OTCA_{name}": ("OTCA_StepCredit", {"method": method}, ("trajectories", *inputs))
        for name, method, *inputs in (
            ("UniformWeights", "uniform", "timestep_fraction", "seed"),
            ("NoiseAwareWeights", "noise_aware"),
            ("PCPOWeights", "pcpo"),
            ("GRPOGuard", "grpo_guard"),
            ("InverseVarianceWeights", "inverse_variance", "model", "decay"),
            ("LearnedCredit", "learned", "scores", "model", "measure_every", "groups", "decay", "w_min"),
        )
    },
    "OTCA_PreferencePairs": (
        PICTURES_NODE,
        {"learn_from": FORMS[0], "tag": "", "held_out": 0.0},
        (*_OF_PAIRS.split(), "batch_size"),
    ),
}
_ENDS = ("1", "2", "3", "4", "vq", "mq", "ta", "visual", "temporal", "dynamic", "alignment", "factual")
GONE = {  # inputs that are no more: the value that each has now for everybody, and what to do where a training needs another
    "rescale": (1.0, "take it out, and multiply coefficient by it; bounds (clip) are those of the score as it is"),
    "ema_kl_coefficient": (0.0, "take it out; kl_coefficient pulls towards the untrained model"),
    "advantage_limit": (5.0, "take it out"),
    "weight_decay": (1e-4, "take it out"),
    "max_grad_norm": (1.0, "take it out; where gradients are long, lower learning_rate"),
    "train_last_step": (False, "take it out: the noise of the last step reached no picture"),
    "score_key": ("", "take it out; a server gives one list of scores, and each address is a Reward: HTTP of its own"),
    **{
        f"{name}_{end}": (value, f"take it out; {name} is for all outputs, and a second node has another")
        for name, value in (("coefficient", 1.0), ("held_out", False))
        for end in _ENDS
    },
    "retries": (3, ""),
    "check_every": (10, ""),
}


# --- The values ---

# In place of a score. A reward returns NaN, or None; every other value that is not finite is a failure too, since nobody
# divides by zero on purpose.
FAILED = math.nan  # the sample should have been scored: it is taken out of the update
LEFT_OUT = math.inf  # the reward does not apply to the sample, which the other rewards train on
OPINION = "preference"  # the objective of pairs and opinions: 1 for what was chosen, given and not measured


class Prompt(str):
    """A prompt that may say more than its text: `metadata`, all that its line of a .jsonl file has beside `prompt`.

    It is its text everywhere else: equal to it, and as a key the same. Rewards read the rest by `metadata_of`. `place` says
    where it was read, as `edits.jsonl, line 3`, for messages alone.
    """

    metadata: Mapping[str, Any]
    place: str

    def __new__(cls, text: str, metadata: Mapping[str, Any] | None = None, place: str = "") -> Prompt:
        prompt = super().__new__(cls, text)
        prompt.metadata, prompt.place = dict(metadata or {}), place
        return prompt


def metadata_of(prompt: str) -> Mapping[str, Any]:
    """The metadata of a prompt beside its text; nothing for plain text."""
    return prompt.metadata if isinstance(prompt, Prompt) else {}


def place_of(prompt: str) -> str:
    """Where a prompt was read, or its beginning if that is not known."""
    place = prompt.place if isinstance(prompt, Prompt) else ""
    return place or f"prompt {str(prompt)[:60]!r}"


@dataclass(frozen=True)
class Prompts:
    """The prompts of one iteration: `texts` [P] and each one's position in the endless, shuffled dataset."""

    texts: tuple[str, ...]
    positions: tuple[int, ...]


@dataclass(frozen=True)
class SamplerSettings:
    """Everything that defines the SDE: what the update needs to take the same transition again."""

    kind: str = "dance_sde"  # a row of sde.KINDS
    eta: float = 0.3
    steps: int = 16
    width: int = 512
    height: int = 512
    shift: float = 0.0  # 0: the checkpoint's own
    guidance: float = 3.5
    shared_noise: bool = True
    window: tuple[int, int] | None = None  # (start, length) of the stochastic steps; None: all
    log_prob_norm: str = "full"  # one of LOG_PROB_NORMS
    batch_size: int = 0  # samples to one model call, 0: all; changes memory and speed only
    frames: int = 1  # of a video
    negative_prompt: str = ""  # what classifier-free guidance leads away from
    guidance_2: float = 0.0  # of a second expert, below its noise level; 0: the same
    merge_adapter: bool = False  # into the weights, while sampling; changes memory, speed and rounding only
    ode_solver: str = "euler"  # one of ODE_SOLVERS
    fraction_after_window: float = 1.0  # of the steps that follow the window, how many are taken
    stochastic_steps: int = 0  # of the window, drawn anew for each rollout; 0: all of them
    drawn: tuple[int, ...] | None = None  # which ones were drawn; None: none yet

    @classmethod
    def from_inputs(cls, inputs: Mapping[str, Any]) -> SamplerSettings:
        """The settings of the inputs of SDE Sampler; `window_start` and `window_length` are both 0 without a window."""
        start, length = inputs.get("window_start", 0), inputs.get("window_length", 0)
        settings = cls(**{name: inputs[name] for name in cls.__dataclass_fields__ if name in inputs})
        return replace(settings, window=(start, length or settings.steps) if start or length else None)

    @classmethod
    def of_pairs(cls, inputs: Mapping[str, Any]) -> SamplerSettings:
        """The settings of a node of GIVEN_NODES: its noise levels are those of a deterministic sampler of as many steps."""
        named = {name: inputs[name] for name in cls.__dataclass_fields__ if name in inputs}
        return replace(cls(**named), kind="ode", eta=0.0, steps=inputs["levels"], shared_noise=False)

    @classmethod
    def of_node(cls, class_type: str, inputs: Mapping[str, Any]) -> SamplerSettings:
        """The settings of the inputs of one of TRAJECTORY_NODES."""
        return cls.of_pairs(inputs) if class_type in GIVEN_NODES else cls.from_inputs(inputs)

    def of_reference(self, guidance: float) -> SamplerSettings:
        """The settings of the untrained model's calls for a KL term; 0: the same guidance as the policy's."""
        return replace(self, guidance=guidance, guidance_2=0.0) if guidance else self

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
class StepSettings:
    """The settings that all three updates have."""

    learning_rate: float
    kl_coefficient: float = 0.0
    weight_decay: float = 1e-4
    max_grad_norm: float = 1.0
    epochs: int = 1
    batch_size: int = 0  # to one pass; 0: all samples of a step, or as many pairs as samples. Memory and speed only
    ema_decay: float = 0.0  # 0: no average is kept
    parts: int = 1  # of the samples, with an optimizer step each in every epoch
    reference_guidance: float = 0.0  # of the untrained model in the KL term; 0: the policy's
    kl: str = "velocity"  # one of FORMS_OF_KL, of GRPO Step one of KLS


@dataclass(frozen=True)
class UpdateSettings(StepSettings):
    """How the policy is moved."""

    clip_range: float = 1e-4  # of the ratio; `log_hinge`: its margin; `dppo`: the KL τ from which entries are dropped
    sampled_steps: int = 0  # of each sample; 0: all trained steps
    unconditional_gradient: bool = True  # False: the negative half of classifier-free guidance has no gradient
    objective: str = "clipped"  # the loss: one of LOSS_NAMES
    clip_range_low: float = 0.0  # below a ratio of 1, where the advantage is negative; 0: clip_range


@dataclass(frozen=True)
class MatchingSettings(StepSettings):
    """How the policy is moved by clean samples alone, noised again."""

    loss: str = "nft"  # one of MATCHING_LOSSES
    beta: float = 0.0  # of the loss; 0: its own
    old_policy: str = "gradual"  # one of OLD_POLICIES
    sampled_steps: int = 4  # noise levels of each sample; 0: all that were visited
    kl_coefficient: float = 1e-4
    guidance: bool = True  # False: the velocity without classifier-free guidance is trained
    keep_winner: float = 0.0  # dpo: μ of Diffusion-SDPO's factor. 0: none, as in graphs saved before a new node had it
    lowest_level: float = 0.0  # of the noise levels that are trained; 0: the loss's own
    highest_level: float = 1.0
    weighting: str = "ghuber"  # awm: one of AWM_WEIGHTINGS


ARTEFACTS = OFF, WARN, STOP = "off", "warn", "stop"


@dataclass(frozen=True)
class GradientSettings(StepSettings):
    """How the policy is moved along the gradient of the rewards, by one optimizer step."""

    mode: str = "leap"  # one of GRADIENT_MODES
    steps: int = 1  # of each sample: levels (one_call), last steps (last_steps; 0: all), noises (low_variance), leaps
    kl_coefficient: float = 1.0
    highest_level: float = 1.0  # the noisiest level that one_call and leap begin at
    nested: float = 0.3  # leap: what stays of the gradient through the second leap's own call
    tile: int = 0  # side in pixels of the parts that the decoder's backward pass takes; 0: whole pictures
    also: str = "awm"  # one of GRADIENT_PARTNERS, if advantages are connected
    ratio: float = 1.0  # norm of that other gradient, in norms of the rewards'


HALO = 8  # latent positions around a decoder's tile that are decoded with it


def side_of(tile: int, scale: int) -> int:
    """Latent positions of a side of a decoder's tile of so many pixels, `scale` a position; some decoders take them in pairs."""
    return max(2, tile // scale // 2 * 2)


EVALUATED = ("width", "height", "guidance", "frames")  # what makes pictures, and evaluations may have apart


@dataclass(frozen=True)
class RunSettings:
    """Intervals in iterations; evaluation prompts one per line, empty for those of the first iteration."""

    checkpoint_every: int = 25
    evaluate_every: int = 10  # 0: never
    evaluation_prompts: str = ""
    evaluation_seeds: int = 1
    evaluation_steps: int = 0  # 0: as many as the sampler trains with
    keep_checkpoints: int = 2
    best_metric: str = ""  # of evaluations; empty: none is kept as the best
    stop_after_decline: int = 0  # evaluations in a row; 0: never, as in graphs that were saved before a new node had 3
    wandb_project: str = ""  # empty: none
    artefacts: str = WARN  # what is done about them: one of ARTEFACTS
    evaluation_width: int = 0  # of these, too, 0 is the sampler's own
    evaluation_height: int = 0
    evaluation_guidance: float = 0.0
    evaluation_frames: int = 0

    @classmethod
    def from_inputs(cls, inputs: Mapping[str, Any]) -> RunSettings:
        """The settings of the inputs of Training Run."""
        return cls(**{name: inputs[name] for name in cls.__dataclass_fields__ if name in inputs})

    def evaluated(self, sampler: SamplerSettings) -> SamplerSettings:
        """The settings of an evaluation, by those of the sampler."""
        return replace(sampler, steps=self.evaluation_steps or sampler.steps, **self.own)

    @property
    def own(self) -> dict[str, Any]:
        """The values of EVALUATED that evaluations have apart from the sampler."""
        values = {name: getattr(self, f"evaluation_{name}") for name in EVALUATED}
        return {name: value for name, value in values.items() if value}


@dataclass(frozen=True)
class PulledCalls:
    """The calls of the next Reward Gradient Step at points that the rollout before it visits, by what draws them.

    `whole_groups`: all samples of a group have the same ones. `batch_size`: whose backward passes are made together.
    """

    mode: str
    steps: int
    highest_level: float
    whole_groups: bool
    batch_size: int


@dataclass(frozen=True)
class NextRollout(Memo):
    """The wish of an update for the next rollout: it travels against the graph's edges, as only `Overlap` does besides.

    The sampler decides by it which graphs to keep, and of which kind (`rollout.trained_calls`, `FlowModel.negative_half`), also
    in a run that is resumed.
    """

    NAME = "next_rollout"

    unconditional_gradient: bool = True  # whether the negative half of guidance has a gradient
    uses_graphs: bool = True  # whether a graph that the rollout keeps would be used
    pulled: PulledCalls | None = None  # which; None: those of the trained steps

    def saved(self) -> Saved:
        switches = [self.unconditional_gradient, self.uses_graphs]
        return {}, switches if self.pulled is None else [*switches, list(astuple(self.pulled))]

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor], values: list[Any]) -> NextRollout:
        both, uses, *rows = values
        pulled = [PulledCalls(*row) for row in rows]
        known = [
            calls.mode in GRADIENT_MODES
            and is_number(calls.highest_level)
            and all(map(is_whole, (calls.steps, calls.batch_size)))
            for calls in pulled
        ]
        if not all(known) or {type(flag) for flag in (both, uses, *(calls.whole_groups for calls in pulled))} != {bool}:
            raise ValueError("no switches, or no calls")
        return cls(both, uses, *pulled)


@dataclass(frozen=True, eq=False)
class KeptCall:
    """One call with its autograd graph.

    Attributes:
        number: which of its samples' trained calls it is.
        rows: [n] those of this process's samples that it is of.
        x: [n, C, (F,) h, w], where it begins.
        velocity: [n, C, (F,) h, w].
    """

    number: int
    rows: Tensor
    x: Tensor
    velocity: Tensor


class KeptGraph(list[KeptCall]):
    """Calls of a rollout that the next update trains: a handle, since one backward pass uses each of them up.

    `wish`: by which they were chosen.
    """

    def __init__(self, calls: Iterable[KeptCall], wish: NextRollout):
        super().__init__(calls)
        self.wish = wish
        self.asked_for = True  # False: kept since there was room, so that nobody minds if they are not used

    def take(self) -> list[KeptCall]:
        """The calls, for the first that asks; nothing is left here, so that their memory is free after use."""
        calls = list(self)
        self.clear()
        return calls


@dataclass(frozen=True)
class Trajectories:
    """B sampled trajectories.

    Attributes:
        latents: [B, T+1, C, h, w] float32, the points visited; `latents[:, 0]` is noise.
        final: [B, C, h, w] float32, the x̂0 that was decoded for the reward: where the deterministic last step led.
        images: [B, H, W, 3] float32 in [0, 1] (ComfyUI's IMAGE), or videos [B, F, H, W, 3].
        sigmas: T+1 noise levels, from 1 to 0.
        trained: T' numbers of the transitions that are trained: the stochastic ones, or of the sampler `ode` all of them.
        stds: T standard deviations of the transitions.
        log_probs: [B, T'] float32, of the sampled points under the policy that sampled them; [B, 0] of the sampler `ode`.
        groups: [B] int64, the number of each sample's prompt, 0 … P-1.
        share: which rows of the whole batch these B samples are; several processes may share its P prompts.
        prompts: P texts.
        positions: each prompt's position in the dataset, which its noise depends on.
        policy_version: the number of updates that the policy had received when it sampled.
        sampled_with: which of the two policies sampled, THETA or OLD.
        seed: of all noise.
        kept: the graphs of the trained steps, if they were kept for the update.
        predictions: [B, T, C, h, w] float32, x̂0 at every visited point, if they were kept for the preview.
        model: the FlowModel that sampled, or None.
        overlap: the Overlap where Reward Stack finds the scores that were made during sampling, and says whom to ask next time.
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
    sampled_with: str = THETA
    kept: Handle[KeptGraph] | None = None
    predictions: Tensor | None = None
    model: Handle[Any] = None
    seconds: float = 0.0
    positions: tuple[int, ...] = ()
    overlap: Handle[Any] = None

    @property
    def texts(self) -> list[str]:
        """The prompt of each of the B samples."""
        # torch does not say of what tolist() is a list
        return [self.prompts[group] for group in self.groups.tolist()]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    def made_by(self, model: Handle[object]) -> bool:
        return self.model is None or self.model is model


@dataclass(frozen=True)
class Scores:
    """The scores by the rewards: `values` [B, K] float32, FAILED or LEFT_OUT in place of a missing score.

    `held_out` [B, H] are the scores of rewards that are logged and never trained on. `rewards` are the Rewards themselves,
    trained ones first, so that an evaluation can score other pictures by the same measure; `prompts` are the P groups' texts.
    `seconds` is what each reward took; `waited` is how long the iteration stood still for all of them, None for the sum.
    `distance` [B] is how far each sample is from the others of its prompt, NaN for one that is alone or if none saw that.
    """

    values: Tensor
    names: tuple[str, ...]
    coefficients: tuple[float, ...]
    groups: Tensor
    held_out: Tensor
    held_out_names: tuple[str, ...]
    rewards: Sequence[Any]
    prompts: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    waited: float | None = None
    plain: StepCredit | None = (
        None  # every step alike, for a fusion node without a credit; of pictures without steps None
    )
    distance: Tensor | None = None

    @property
    def usable(self) -> Tensor:
        """[B] bool: the samples that some trained reward has scored, and at which none failed."""
        return self.values.isfinite().any(1) & ~self.values.isnan().any(1)


@dataclass(frozen=True)
class StepCredit:
    """When: how much of a trajectory's advantage each trained transition receives.

    Attributes:
        weights: [B, T'], mean 1 over the trained steps unless the method says otherwise; of a credit by objective, the mean over
            the objectives.
        raw: [B, T'], the same before floor and scale; sums to 1.
        delta: [B, T], ΔS_j = S_{j+1} - S_j.
        similarity: [B, T+1], S_j = cos(x_j, x̂0).
        trained: the T' transition numbers.
        node: the id of the graph's node that made this credit; the canvas shows the credit there.
        spatial: [B, h, w] or [B, F, h, w], where in the latent the credit goes, of mean 1; None: everywhere alike.
        ratio_scale: T' factors of the densities' log-ratio log ρ_j, whatever the sampler's log_prob_norm; empty: 1.
        regulated: whether the log-ratio's bias is removed (GRPO-Guard).
        by_objective: [B, T', K], weights of mean 1 over the trained steps for each objective; None: the same for all of them.
        objectives: their K names.
        metrics: what the method found, for the log.
        measures: the update is to measure each step's gradient, and to average it with this decay (inverse variance).
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
    spatial: Tensor | None = None
    ratio_scale: tuple[float, ...] = ()
    regulated: bool = False
    by_objective: Tensor | None = None
    objectives: tuple[str, ...] = ()
    metrics: Metrics = field(default_factory=dict[str, float])
    measures: float | None = None


@dataclass(frozen=True)
class Fused:
    """The *what* of credit: one advantage z for each sample [B] and, to look at, the objectives' coefficients [B, K].

    `parts` [B, K] add up to z: what of it is each objective's. None where the credit itself is the advantage.
    """

    advantage: Tensor
    coefficients: Tensor
    parts: Tensor | None = None


@dataclass(frozen=True)
class Advantages:
    """The effective advantage Ã [B, T'] of every trained step, and all that it was made of."""

    step_advantage: Tensor
    per_objective: Tensor  # [B, K], clipped and scaled
    fused: Fused
    valid: Tensor  # [B] bool
    scores: Scores
    credit: StepCredit
    metrics: Metrics
    method: str = ""
    seconds: float = 0.0
    most_of_a_group: int | None = None  # samples that a selection kept of each group at most; None: none was made
    exploration: Tensor | None = None  # λ [B] of MOCA, 0 of other fusions; None: what fuses no gradients
    compared: tuple[float, ...] = ()  # what each objective is scaled by before a solver compares them; empty: 1

    @property
    def by_step(self) -> bool:
        """Whether Ã_j says more than w_j·z: the steps of one sample may disagree."""
        return self.credit.by_objective is not None or self.method == STEPWISE_GAIN


@dataclass(frozen=True)
class Report:
    """One finished iteration, to look at and to log."""

    metrics: Metrics
    advantages: Advantages
    trajectories: Trajectories
