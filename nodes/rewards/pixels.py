"""Rewards that measure a picture's pixels, without a network."""

from ..inputs import switch
from .base import REWARD, RewardNode


class RewardColorfulness(RewardNode):
    TITLE = "Reward: Colourfulness"
    DESCRIPTION = "How colourful the picture is, by Hasler and Süsstrunk's measure."
    SEARCH_ALIASES = [*REWARD, "colour", "color", "saturation", "vivid"]
    KIND = "colorfulness"


class RewardSharpness(RewardNode):
    TITLE = "Reward: Sharpness"
    DESCRIPTION = "How sharp the picture is: the variance of the Laplacian of its brightness."
    SEARCH_ALIASES = [*REWARD, "sharp", "blur", "focus", "laplacian"]
    KIND = "sharpness"


class RewardJpegCompressibility(RewardNode):
    TITLE = "Reward: JPEG Compressibility"
    DESCRIPTION = "Minus the size of the picture as a JPEG: prefers plain pictures."
    SEARCH_ALIASES = [*REWARD, "jpeg", "file size", "ddpo", "simple"]
    KIND = "jpeg_compressibility"


class RewardJpegIncompressibility(RewardNode):
    TITLE = "Reward: JPEG Incompressibility"
    DESCRIPTION = "The size of the picture as a JPEG: prefers detail."
    SEARCH_ALIASES = [*REWARD, "jpeg", "file size", "ddpo", "detail"]
    KIND = "jpeg_incompressibility"


class RewardShapesAccuracy(RewardNode):
    TITLE = "Reward: Shapes Accuracy"
    DESCRIPTION = (
        "Reads colour and shape off the pixels of the shapes world and says whether they are as asked. An exact judge."
    )
    SEARCH_ALIASES = [*REWARD, "shapes", "accuracy", "exact judge", "held out"]
    KIND = "accuracy"
    HELD_OUT = True


class RewardScenes(RewardNode):
    TITLE = "Reward: Scenes"
    DESCRIPTION = (
        "Finds the objects of the scenes world in the pixels: are colours, shapes, count and relation as asked?"
    )
    SEARCH_ALIASES = [*REWARD, "scenes", "counting", "relations", "exact judge"]
    KIND = "scenes"

    @classmethod
    def own_optional_inputs(cls):
        return {
            "strict": switch().tip(
                "1 where exactly what was asked for is there, else 0. Off: how nearly it is there, from 0 to 1."
            )
        }
