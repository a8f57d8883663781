"""Brightness, and the pattern of a reward that is one file: a node, the class that scores, and an example that tests run."""

from .base import REWARD, RewardNode


class RewardBrightness(RewardNode):
    TITLE = "Reward: Brightness"
    DESCRIPTION = "How bright the picture is: the mean of all its red, green and blue."
    SEARCH_ALIASES = [*REWARD, "bright", "dark", "exposure", "luminance"]
    KIND = "brightness"
    EXAMPLE = {}  # values of its own inputs, with which it scores any picture

    @staticmethod
    def scorer():
        from ...trainer.rewards.pixels import SmoothReward  # here, since nodes are listed without torch

        class Brightness(SmoothReward):
            """Mean of all channels, in [0, 1]."""

            def __init__(self, name="brightness", **use):
                super().__init__(name, **use)

            def score(self, images, prompts):
                return images.float().mean((1, 2, 3))  # [B, H, W, 3] in [0, 1] -> [B]

        return Brightness
