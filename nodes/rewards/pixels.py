"""Rewards that measure a picture's pixels, without a network."""

from .base import RewardNode


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
