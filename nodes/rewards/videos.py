"""Rewards for videos: networks that judge a whole video in several dimensions at once."""

from ..inputs import integer, number, text
from .base import JUDGE, REWARD, WEIGHTS, NetworkReward, SeveralRewards


class _VideoReward(SeveralRewards):
    """A network that judges in DIMENSIONS; one forward pass scores them all."""

    DIMENSIONS: dict[str, str]  # and what each looks at
    NEEDS = ("rewards", "transformers")
    LEAST_FRAMES = 1  # of a video that it can judge
    NETWORK = {
        **NetworkReward.NETWORK,
        "batch_size": integer(1, 0, 4096, advanced=True).tip("Videos to one forward pass. 0: all at once."),
    }

    def __init_subclass__(cls):
        cls.ENDS = cls.RETURN_NAMES = tuple(cls.DIMENSIONS)
        cls.SHOWN_END = cls.ENDS[0]
        cls.RETURN_TYPES = ("OTCA_REWARD",) * len(cls.DIMENSIONS)
        cls.OUTPUT_TOOLTIPS = tuple(f"The scorer of {what}." for what in cls.DIMENSIONS.values())

    def own(self, inputs):
        return [{"dimension": dimension} for dimension in self.DIMENSIONS]


class RewardVideoAlign(_VideoReward):
    TITLE = "Reward: VideoAlign"
    DESCRIPTION = "Visual quality, motion quality and text alignment of a video, judged by VideoAlign's VideoReward."
    SEARCH_ALIASES = [*REWARD, *JUDGE, "score video", "video quality", "motion", "videoreward"]
    KIND, CLASS = "video_align", "video_align.VideoAlign"
    DIMENSIONS = {"vq": "visual quality", "mq": "motion quality", "ta": "text alignment"}
    LEAST_FRAMES = 2

    REQUIRED = {
        "model": text("KlingTeam/VideoReward", suggest="video_judges", names=WEIGHTS)
        .tip("VideoReward's folder: a path, a name in ComfyUI's folders or $OTCA_MODELS, or a cached hub id.")
        .checked("trainer.rewards.video_align:find"),
        "base": text("Qwen/Qwen2-VL-2B-Instruct", suggest="tokenizers", names=WEIGHTS)
        .tip(
            "Folder of the Qwen2-VL under it, named likewise: tokenizer and settings, and weights where model has an "
            "adapter only."
        )
        .checked("trainer.rewards.video_align:find_base", beside=("model",)),
        "fps": number(16, 1, 240, step=1, label="frames per second").tip(
            "Frames per second of the sampled videos (Wan 2.1: 16). The network looks at two of each second."
        ),
    }


class RewardVideoScore(_VideoReward):
    TITLE = "Reward: VideoScore"
    DESCRIPTION = "Five dimensions of a video's quality, judged by VideoScore as people would rate them from 1 to 4."
    SEARCH_ALIASES = [*REWARD, *JUDGE, "score video", "video quality"]
    KIND, CLASS = "video_score", "video.VideoScore"
    DIMENSIONS = {
        "visual": "visual quality",
        "temporal": "temporal consistency",
        "dynamic": "the degree of change",
        "alignment": "text-to-video alignment",
        "factual": "consistency with common sense",
    }

    REQUIRED = {
        "model": text("TIGER-Lab/VideoScore-v1.1", suggest="encoders", names=WEIGHTS)
        .tip("VideoScore's folder: a path, a name in ComfyUI's folders or $OTCA_MODELS, or a cached hub id.")
        .checked("trainer.rewards.video:find"),
        "most_frames": integer(48, 1, 48, advanced=True).tip(
            "Frames that it looks at, evenly spread. v1.1 reads up to 48; 16 are three times faster."
        ),
    }
