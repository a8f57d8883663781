"""Rewards that check what the prompt says in so many words: its text, and its objects."""

from ..inputs import complaint, number, switch, text
from .base import REWARD, NetworkReward, RewardNode


class RewardText(RewardNode):
    TITLE = "Reward: Text"
    DESCRIPTION = (
        'Reads the text in the picture, and compares it with what the prompt puts in quotes: a sign says "Open".'
    )
    SEARCH_ALIASES = [*REWARD, "ocr", "text rendering", "typography", "spelling", "read text"]
    KIND = "text"

    @classmethod
    def VALIDATE_INPUTS(cls, clip=""):
        from ...trainer.networks import ocr

        try:
            ocr.find_models()
        except FileNotFoundError as error:
            return str(error)
        return super().VALIDATE_INPUTS(clip)


class RewardObjects(NetworkReward):
    TITLE = "Reward: Objects"
    DESCRIPTION = (
        "Finds the objects that the prompt's line in its .jsonl file asks for: how many, of which colour, and where."
    )
    SEARCH_ALIASES = [*REWARD, "geneval", "object detection", "counting", "composition", "owl", "grounding dino"]
    KIND = "objects"
    MODEL_INPUTS = ("path", "clip_model")

    @classmethod
    def own_inputs(cls):
        return {
            "path": text("google/owlv2-base-patch16-ensemble", suggest="encoders").tip(
                "The detector, OWLv2 or Grounding DINO: a folder, the name of one, or a hub id in the local cache."
            ),
            "clip_model": text("openai/clip-vit-large-patch14", suggest="encoders").tip(
                "The CLIP that tells colours: a folder, the name of one, or a hub id in the local cache. Empty: no prompt "
                "may ask for a colour."
            ),
        }

    @classmethod
    def own_optional_inputs(cls):
        return {
            "strict": switch().tip(
                "1 where all is as asked for, else 0, as GenEval counts. Off: the share of what was asked for."
            ),
            "threshold": number(0, 0, 1, step=0.01).tip(
                "How sure the detector has to be. 0: 0.2 with OWLv2, 0.35 with Grounding DINO."
            ),
            "overlap": number(0.5, 0, 1, step=0.05, label="box overlap", advanced=True).tip(
                "Of two boxes of one name that share more than this, the surer one counts."
            ),
        }

    @classmethod
    def VALIDATE_INPUTS(cls, path="", clip_model="", clip=""):
        from ...trainer.networks import clip as clip_network
        from ...trainer.networks import detector

        return (
            complaint("path", detector.OWLV2.find_folder, path, detector.MARKER)
            or complaint("clip_model", clip_network.VIT_L.find_folder, clip_model or None, clip_network.MARKER)
            or super().VALIDATE_INPUTS(clip)
        )
