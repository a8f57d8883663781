"""Stage 4: what is good. One node a reward, and the stack that scores a rollout by all of them."""

from ..trainer import host
from . import live, payloads

MAX_REWARDS = 8


class _Reward:
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
            },
        }

    @classmethod
    def own_inputs(cls):
        return {}

    @classmethod
    def own_optional_inputs(cls):
        return {}

    @host.outside_inference
    def build(self, coefficient, held_out=None, name="", **own):
        from ..trainer.rewards import reward_class

        held_out = self.HELD_OUT if held_out is None else held_out
        names = {"name": name} if name else {}
        return (reward_class(self.KIND)(coefficient=coefficient, held_out=held_out, **names, **own),)


class RewardClipT(_Reward):
    TITLE = "Reward: CLIP-T"
    DESCRIPTION = "Cosine of picture and prompt in CLIP's space: does the picture show what was asked for?"
    KIND = "clip_t"

    @classmethod
    def own_inputs(cls):
        models = host.list_models("preprocessor_config.json")
        return {
            "model": (
                models,
                {
                    "tooltip": "A CLIP model folder (transformers layout) from ComfyUI's folders, $OTCA_MODELS or assets/."
                },
            )
        }

    @classmethod
    def own_optional_inputs(cls):
        return {
            "path": (
                "STRING",
                {
                    "default": "",
                    "tooltip": "A CLIP model folder anywhere else; used instead of `model` when not empty.",
                },
            )
        }

    @classmethod
    def VALIDATE_INPUTS(cls, model, path=""):
        if path is None or (model is None and not path):
            return True  # linked: what comes is known only when the graph runs
        try:
            host.find_model(path or model, "preprocessor_config.json")
        except FileNotFoundError as error:
            return f"{'path' if path else 'model'}: {error}"
        return True

    def build(self, model, coefficient, held_out=None, name="", path=""):
        return super().build(coefficient, held_out, name, model=path or model)


class RewardColorfulness(_Reward):
    TITLE = "Reward: Colorfulness"
    DESCRIPTION = "Hasler and Süsstrunk's measure of colourfulness."
    KIND = "colorfulness"


class RewardSharpness(_Reward):
    TITLE = "Reward: Sharpness"
    DESCRIPTION = "Variance of the Laplacian of the luma."
    KIND = "sharpness"


class RewardJpegCompressibility(_Reward):
    TITLE = "Reward: JPEG Compressibility"
    DESCRIPTION = "Minus the size of the picture as a JPEG: prefers plain pictures."
    KIND = "jpeg_compressibility"


class RewardJpegIncompressibility(_Reward):
    TITLE = "Reward: JPEG Incompressibility"
    DESCRIPTION = "The size of the picture as a JPEG: prefers detail."
    KIND = "jpeg_incompressibility"


class RewardShapesAccuracy(_Reward):
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
            "optional": sockets,
            "hidden": {"node_id": "UNIQUE_ID"},
        }

    @classmethod
    def VALIDATE_INPUTS(cls, input_types):
        if not any(name.startswith("reward_") for name in input_types):
            return "K = 0 rewards are connected. Fix: connect at least one Reward node to reward_1"
        expected = {"trajectories": "OTCA_TRAJECTORIES"}
        for name, given in input_types.items():
            wanted = expected.get(name, "OTCA_REWARD")
            if given not in (wanted, "*"):
                return f"{name} receives {given} where {wanted} is needed. Fix: connect a node that outputs {wanted}"
        return True

    @host.outside_inference
    def score(self, trajectories, node_id="", **sockets):
        from ..trainer import plots
        from ..trainer.rewards.base import score_stack

        rewards = [sockets[name] for name in sorted(sockets)]
        scores = score_stack(
            rewards, trajectories.images, trajectories.texts, trajectories.groups, host.progress(len(rewards))
        )
        stills = plots.stills(trajectories.images)
        table = host.picture(lambda: plots.reward_table(scores, stills))

        def payload():
            sheet = payloads.thumbnail_sheet(stills)
            name = f"otca_samples_{host.running_workflow_id() or 'script'}_{node_id}.png"
            return payloads.scores(node_id, scores, host.save_temporary(sheet, name))

        return live.shown(node_id, "scores", (scores, table), payload)
