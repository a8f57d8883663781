"""Rewards that measure a picture's pixels, without a network."""

from ..inputs import switch
from .base import RewardNode


class RewardColorfulness(RewardNode):
    TITLE = "Reward: Colourfulness"
    DESCRIPTION = "How colourful the picture is, by Hasler and Süsstrunk's measure."
    KIND = "colorfulness"


class RewardSharpness(RewardNode):
    TITLE = "Reward: Sharpness"
    DESCRIPTION = "How sharp the picture is: the variance of the Laplacian of its brightness."
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


class RewardScenes(RewardNode):
    TITLE = "Reward: Scenes"
    DESCRIPTION = (
        "Finds the objects of the scenes world in the pixels: are colours, shapes, count and relation as asked?"
    )
    KIND = "scenes"

    @classmethod
    def own_optional_inputs(cls):
        return {
            "strict": switch(
                tip="1 where exactly what was asked for is there, else 0. Off: how nearly it is there, from 0 to 1."
            )
        }
