"""Stage 4: what is good. One node a reward, and the stack that scores a rollout by all of them."""

from collections.abc import Callable
from dataclasses import replace

from ..host import comfyui, devices, stopping
from . import live, payloads

MAX_REWARDS = 8


class RewardNode:
    """A reward node: its KIND is a row of `trainer.rewards.REWARDS`."""

    CATEGORY = "OTCA/rewards"
    RETURN_TYPES = ("OTCA_REWARD",)
    RETURN_NAMES = ("reward",)
    OUTPUT_TOOLTIPS = ("The scorer, for any free socket of Reward Stack.",)
    FUNCTION = "build"
    KIND: str
    HELD_OUT = False

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                **cls.own_inputs(),
                "coefficient": (
                    "FLOAT",
                    {
                        "default": 1.0,
                        "min": 0.01,
                        "max": 100.0,
                        "step": 0.05,
                        "tooltip": "Multiplies this objective's advantage before the fusion. To only log it, use held_out.",
                    },
                ),
            },
            "optional": {
                **cls.own_optional_inputs(),
                "held_out": (
                    "BOOLEAN",
                    {
                        "default": cls.HELD_OUT,
                        "tooltip": "Score and log it, but never train on it: the guard against reward hacking.",
                    },
                ),
                "name": ("STRING", {"default": "", "tooltip": "Name in metrics; empty: the reward's own."}),
                **cls.network_inputs(),
                "rescale": (
                    "FLOAT",
                    {
                        "default": 1.0,
                        "min": 1e-6,
                        "max": 1e6,
                        "step": 0.01,
                        "tooltip": "Multiplies the score: of weight in a weighted_sum, without effect on advantages.",
                    },
                ),
                "clip": (
                    "STRING",
                    {
                        "default": "",
                        "tooltip": "Bounds of the rescaled score, as in 0.1, 0.4: beyond them there is nothing to win. "
                        "Empty: none.",
                    },
                ),
            },
        }

    # Inputs that name a model's folder or file.
    MODEL_INPUTS: tuple[str, ...] = ()

    @classmethod
    def WANTS(cls, **given):
        from ..host.access.wants import reads

        return [want for name in cls.MODEL_INPUTS for want in reads(given.get(name, ""), "a reward model", name)]

    @classmethod
    def VALIDATE_INPUTS(cls, clip=""):
        from ..trainer.rewards import parse_bounds

        return complaint("clip", parse_bounds, clip) or True

    @classmethod
    def announced(cls, name="", held_out=None, **own):
        """(name in metrics, held out) of what each output will be, known before anything is built."""
        from ..trainer.rewards import reward_class

        return ((name or reward_class(cls.KIND).own_name(own), cls.HELD_OUT if held_out is None else held_out),)

    @classmethod
    def own_inputs(cls):
        return {}

    @classmethod
    def own_optional_inputs(cls):
        return {}

    @classmethod
    def network_inputs(cls):
        return {}

    @devices.outside_inference
    def build(self, coefficient, held_out=None, name="", rescale=1.0, clip="", **own):
        from ..trainer.rewards import parse_bounds, reward_class

        held_out = self.HELD_OUT if held_out is None else held_out
        names = {"name": name} if name else {}
        reward = reward_class(self.KIND)(coefficient=coefficient, held_out=held_out, **names, **own)
        reward.rescale, reward.bounds = rescale, parse_bounds(clip)
        return (reward,)


class NetworkReward(RewardNode):
    """A reward that asks a network: where that lives, and how many pictures it takes at once."""

    @classmethod
    def network_inputs(cls):
        return {
            "device": ("STRING", {"default": "auto", "tooltip": "auto, cpu, cuda, cuda:1 …"}),
            "dtype": (
                ["auto", "float32", "bfloat16", "float16"],
                {"default": "auto", "tooltip": "Of the network. auto: what its published scores were made with."},
            ),
            "batch_size": (
                "INT",
                {"default": 0, "min": 0, "max": 4096, "tooltip": "Pictures to one forward pass; 0: all at once."},
            ),
            "offload": (
                "BOOLEAN",
                {"default": False, "tooltip": "Between two uses the network waits in main memory."},
            ),
        }


def text_input(default: str, tooltip: str) -> tuple:
    return "STRING", {"default": default, "tooltip": tooltip}


def complaint(name: str, check: Callable, value: str | None, *more: object) -> str | None:
    """What is wrong with an input; None where nothing is, or where it is linked and known only when the graph runs."""
    if value is None:
        return None
    try:
        check(value, *more)
    except (OSError, ValueError) as error:
        return f"{name}: {error}"
    return None


class RewardColorfulness(RewardNode):
    TITLE = "Reward: Colorfulness"
    DESCRIPTION = "Hasler and Süsstrunk's measure of colourfulness."
    KIND = "colorfulness"


class RewardSharpness(RewardNode):
    TITLE = "Reward: Sharpness"
    DESCRIPTION = "Variance of the Laplacian of the luma."
    KIND = "sharpness"


class RewardJpegCompressibility(RewardNode):
    TITLE = "Reward: JPEG Compressibility"
    DESCRIPTION = "Minus the size of the picture as a JPEG: prefers plain pictures."
    KIND = "jpeg_compressibility"


class RewardJpegIncompressibility(RewardNode):
    TITLE = "Reward: JPEG Incompressibility"
    DESCRIPTION = "The size of the picture as a JPEG: prefers detail."
    KIND = "jpeg_incompressibility"


class RewardShapesAccuracy(RewardNode):
    TITLE = "Reward: Shapes Accuracy"
    DESCRIPTION = (
        "Reads colour and shape off the pixels of the shapes world and says whether they are as asked. An exact judge."
    )
    KIND = "accuracy"
    HELD_OUT = True


class RewardStack:
    TITLE = "Reward Stack"
    CATEGORY = "OTCA/rewards"
    DESCRIPTION = "Scores the sampled pictures by every connected reward."
    RETURN_TYPES = ("OTCA_SCORES", "IMAGE")
    RETURN_NAMES = ("scores", "table")
    OUTPUT_TOOLTIPS = ("Scores of every sample by every reward.", "The same as a picture.")
    FUNCTION = "score"
    OUTPUT_NODE = True  # its table is worth a run of its own, with nothing connected below

    @classmethod
    def INPUT_TYPES(cls):
        sockets = {
            f"reward_{number}": (
                "OTCA_REWARD",
                {"tooltip": "A reward; its coefficient and held_out are set on its node."},
            )
            for number in range(1, MAX_REWARDS + 1)
        }
        return {
            "required": {"trajectories": ("OTCA_TRAJECTORIES",)},
            "optional": {
                **sockets,
                "overlap": (
                    "BOOLEAN",
                    {
                        "default": False,
                        "tooltip": "Score while the next samples are made, batch_size of the SDE Sampler at a time. Takes the "
                        "memory of both at once.",
                    },
                ),
            },
            "hidden": {"node_id": "UNIQUE_ID"},
        }

    @classmethod
    def VALIDATE_INPUTS(cls, input_types):
        if not any(name.startswith("reward_") for name in input_types):
            return "K = 0 rewards are connected. Fix: connect at least one Reward node to reward_1"
        expected = {"trajectories": "OTCA_TRAJECTORIES", "overlap": "BOOLEAN"}
        for name, given in input_types.items():
            wanted = expected.get(name, "OTCA_REWARD")
            if given not in (wanted, "*"):
                return f"{name} receives {given} where {wanted} is needed. Fix: connect a node that outputs {wanted}"
        return True

    @devices.outside_inference
    def score(self, trajectories, node_id="", overlap=False, **sockets):
        from ..trainer.pictures import grids, heatmaps

        scores = self._scores(trajectories, [sockets[name] for name in sorted(sockets)], overlap)
        scores = replace(scores, prompts=trajectories.prompts)  # also those whose samples another process holds
        stills = grids.stills(trajectories.images)
        table = live.picture(lambda: heatmaps.reward_table(scores, stills))

        def payload():
            sheet = payloads.thumbnail_sheet(stills)
            name = f"otca_samples_{comfyui.running_workflow_id() or 'script'}_{node_id}.png"
            return payloads.scores(node_id, scores, comfyui.save_temporary(sheet, name))

        return live.shown(node_id, "scores", (scores, table), payload)

    def _scores(self, trajectories, rewards, overlap):
        from ..trainer.rewards.base import score_stack, trained_first

        rewards, handle = trained_first(rewards), trajectories.overlap
        scored = handle.take(trajectories.images, rewards) if overlap else None
        # In the same parts whether they are scored during sampling or after: a network's rounding may depend on how many it sees.
        size = trajectories.settings.batch_size if overlap else 0
        known = scored.parts() if scored else ()
        steps = stopping.progress(len(rewards) * -(-len(trajectories.images) // (size or len(trajectories.images))))
        scores = score_stack(rewards, trajectories.images, trajectories.texts, trajectories.groups, steps, size, known)
        (handle.expect if overlap else handle.release)(rewards)
        return replace(scores, waited=scored.waited) if scored else scores
