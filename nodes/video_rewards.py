"""Stage 4, for videos: networks that judge a whole video in several dimensions at once."""

from ..host import devices
from .rewards import NetworkReward, complaint, text_input


class _VideoReward(NetworkReward):
    """A socket, a coefficient and a held_out switch for each of DIMENSIONS; one forward pass scores them all."""

    DIMENSIONS: dict[str, str]  # and what each looks at
    LEAST_FRAMES = 1  # of a video that it can judge

    def __init_subclass__(cls):
        cls.RETURN_TYPES = ("OTCA_REWARD",) * len(cls.DIMENSIONS)
        cls.RETURN_NAMES = tuple(cls.DIMENSIONS)
        cls.OUTPUT_TOOLTIPS = tuple(f"The scorer of {what}." for what in cls.DIMENSIONS.values())

    @classmethod
    def INPUT_TYPES(cls):
        declared = super().INPUT_TYPES()
        required, optional = declared["required"], declared["optional"]
        coefficient, held_out = required.pop("coefficient"), optional.pop("held_out")
        optional["name"][1]["tooltip"] = (
            f"Start of the names in metrics, as in {cls.KIND}_{[*cls.DIMENSIONS][0]}; empty: that."
        )
        return {
            "required": required | {f"coefficient_{dimension}": coefficient for dimension in cls.DIMENSIONS},
            "optional": {f"held_out_{dimension}": held_out for dimension in cls.DIMENSIONS} | optional,
        }

    @classmethod
    def announced(cls, name="", **own):
        return tuple(
            (f"{name or cls.KIND}_{dimension}", own.get(f"held_out_{dimension}", cls.HELD_OUT))
            for dimension in cls.DIMENSIONS
        )

    @classmethod
    def network_inputs(cls):
        batch_size = {"default": 1, "min": 0, "max": 4096, "tooltip": "Videos to one forward pass; 0: all at once."}
        return super().network_inputs() | {"batch_size": ("INT", batch_size)}

    @devices.outside_inference
    def build(self, name="", rescale=1.0, clip="", **given):
        coefficients = [given.pop(f"coefficient_{dimension}") for dimension in self.DIMENSIONS]
        held_out = [given.pop(f"held_out_{dimension}", None) for dimension in self.DIMENSIONS]
        rewards = []
        for dimension, coefficient, out in zip(self.DIMENSIONS, coefficients, held_out, strict=True):
            own = f"{name or self.KIND}_{dimension}"
            rewards += super().build(coefficient, out, own, rescale, clip, dimension=dimension, **given)
        return tuple(rewards)


class RewardVideoAlign(_VideoReward):
    TITLE = "Reward: VideoAlign"
    DESCRIPTION = "Visual quality, motion quality and text alignment of a video, judged by VideoAlign's VideoReward."
    KIND = "video_align"
    MODEL_INPUTS = ("model", "base")
    DIMENSIONS = {"vq": "visual quality", "mq": "motion quality", "ta": "text alignment"}
    LEAST_FRAMES = 2

    @classmethod
    def own_inputs(cls):
        return {
            "model": text_input(
                "KlingTeam/VideoReward",
                "VideoReward's folder: a path, a name in ComfyUI's folders or $OTCA_MODELS, or a cached hub id.",
            ),
            "base": text_input(
                "Qwen/Qwen2-VL-2B-Instruct",
                "Likewise of the Qwen2-VL under it: tokenizer and settings, and weights where `model` has an "
                "adapter only.",
            ),
            "fps": (
                "FLOAT",
                {
                    "default": 16.0,
                    "min": 1.0,
                    "max": 240.0,
                    "step": 1.0,
                    "tooltip": "Frames per second of the sampled videos (Wan 2.1: 16). It looks at two of each second.",
                },
            ),
        }

    @classmethod
    def VALIDATE_INPUTS(cls, model, base, clip=""):
        from ..trainer.rewards import video_align

        wrong = complaint("model", video_align.find, model)
        if model is not None and wrong is None:
            wrong = complaint("base", lambda base: video_align.find_base(video_align.find(model), base), base)
        return wrong or super().VALIDATE_INPUTS(clip)


class RewardVideoScore(_VideoReward):
    TITLE = "Reward: VideoScore"
    DESCRIPTION = "Five dimensions of a video's quality, judged by VideoScore as people would rate them from 1 to 4."
    KIND = "video_score"
    MODEL_INPUTS = ("model",)
    DIMENSIONS = {
        "visual": "visual quality",
        "temporal": "temporal consistency",
        "dynamic": "the degree of change",
        "alignment": "text-to-video alignment",
        "factual": "consistency with common sense",
    }

    @classmethod
    def own_inputs(cls):
        return {
            "model": text_input(
                "TIGER-Lab/VideoScore-v1.1",
                "VideoScore's folder: a path, a name in ComfyUI's folders or $OTCA_MODELS, or a cached hub id.",
            ),
            "most_frames": (
                "INT",
                {
                    "default": 48,
                    "min": 1,
                    "max": 48,
                    "tooltip": "Frames that it looks at, evenly spread. v1.1 reads up to 48; 16 are three times faster.",
                },
            ),
        }

    @classmethod
    def VALIDATE_INPUTS(cls, model, clip=""):
        from ..trainer.rewards import video_score

        return complaint("model", video_score.find, model) or super().VALIDATE_INPUTS(clip)
