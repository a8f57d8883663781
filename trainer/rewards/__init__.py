"""Reward models: one file a family, and this table of them.

A new reward is one subclass of `Reward` in a file here and one row in REWARDS, plus its node.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..networks import RewardError
from .base import Reward, parse_bounds

REWARDS = {
    "clip_t": "clip.ClipT",
    "clip_direction": "clip.ClipDirection",
    "aesthetic": "clip.Aesthetic",
    "pickscore": "clip.PickScore",
    "hpsv2": "hps.HPSv2",
    "image_reward": "image_reward.ImageReward",
    "my_taste": "taste.MyTaste",
    "jpeg_compressibility": "pixels.JpegCompressibility",
    "jpeg_incompressibility": "pixels.JpegIncompressibility",
    "brightness": "pixels.Brightness",
    "colorfulness": "pixels.Colorfulness",
    "sharpness": "pixels.Sharpness",
    "kept": "edits.Kept",
    "changed": "edits.Changed",
    "relative_words": "relative.RelativeWords",
    "variety": "variety.Variety",
    "video_align": "video_align.VideoAlign",
    "video_score": "video.VideoScore",
    "text": "text.Text",
    "objects": "objects.Objects",
    "http": "http.HTTPReward",
    "vlm_judge": "judge.VLMJudge",
    "python": "python.PythonReward",
    "vote": ".opinions.reward.VoteReward",  # of the room next to this one
    "accuracy": "shapes.ShapesAccuracy",
    "scenes": "scenes.Scenes",
}

# Those that need what only a graph gives: a CLIP.
OF_GRAPHS = {"clip_judge": "clip_judge.ClipJudge", "pair_judge": "clip_judge.PairJudge"}


def reward_class(kind: str) -> type[Any]:
    """The class of a row in REWARDS or OF_GRAPHS: a `Reward` with settings of its own.

    Its module, and what that needs, is imported now.
    """
    # Not by pkgutil: in ComfyUI the pack's name is a path.
    module, _, name = (REWARDS | OF_GRAPHS)[kind].rpartition(".")
    return getattr(import_module(f".{module}", __name__), name)


__all__ = ["REWARDS", "Reward", "RewardError", "parse_bounds", "reward_class"]
