"""Rewards that look at a picture with a network: CLIP and its descendants, and BLIP's."""

from ..host import paths, search
from .rewards import NetworkReward, complaint, text_input


class RewardClipT(NetworkReward):
    TITLE = "Reward: CLIP-T"
    DESCRIPTION = "Cosine of picture and prompt in CLIP's space: does the picture show what was asked for?"
    KIND = "clip_t"
    MODEL_INPUTS = ("model", "path")

    @classmethod
    def own_inputs(cls):
        models = paths.list_models("preprocessor_config.json")
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
            "path": text_input(
                "",
                "A CLIP model folder anywhere else, or a hub id in the local cache; used instead of `model` "
                "when not empty.",
            )
        }

    @classmethod
    def VALIDATE_INPUTS(cls, model, path="", clip=""):
        if path is None or (model is None and not path):
            return super().VALIDATE_INPUTS(clip)  # linked: what comes is known only when the graph runs
        return complaint(
            "path" if path else "model", search.model, path or model, "preprocessor_config.json"
        ) or super().VALIDATE_INPUTS(clip)

    def build(self, model, path="", **settings):
        return super().build(model=path or model, **settings)


class RewardAesthetic(NetworkReward):
    TITLE = "Reward: Aesthetic (LAION v2)"
    DESCRIPTION = "How much people would like the picture, whatever the prompt: a small head on CLIP ViT-L/14."
    KIND = "aesthetic"
    MODEL_INPUTS = ("path", "model")

    @classmethod
    def own_inputs(cls):
        return {
            "path": text_input(
                "sac+logos+ava1-l14-linearMSE.pth", "The head's file: a path, or its name in a model folder."
            ),
            "model": text_input(
                "openai/clip-vit-large-patch14",
                "The CLIP ViT-L/14 below it: a folder, the name of one, or a hub id in the local cache. Shared with other "
                "rewards on the same one.",
            ),
        }

    @classmethod
    def VALIDATE_INPUTS(cls, path="", model="", clip=""):
        from ..trainer.networks import clip as clip_network
        from ..trainer.rewards import aesthetic

        return (
            complaint("path", aesthetic.FILE.find, path)
            or complaint("model", clip_network.VIT_L.find_folder, model, clip_network.MARKER)
            or super().VALIDATE_INPUTS(clip)
        )


class RewardPickScore(NetworkReward):
    TITLE = "Reward: PickScore"
    DESCRIPTION = (
        "Which of two pictures of the prompt people would pick: CLIP ViT-H/14, trained on half a million choices."
    )
    KIND = "pickscore"
    MODEL_INPUTS = ("path", "processor")

    @classmethod
    def own_inputs(cls):
        return {
            "path": text_input(
                "yuvalkirstain/PickScore_v1",
                "The checkpoint: a folder, the name of one, or a hub id in the local cache.",
            ),
            "processor": text_input(
                "laion/CLIP-ViT-H-14-laion2B-s32B-b79K",
                "Likewise, where tokenizer and preprocessor_config.json are; used only if the checkpoint has none.",
            ),
        }

    @classmethod
    def VALIDATE_INPUTS(cls, path="", processor="", clip=""):
        from ..trainer.rewards.pickscore import FILES, find_processor

        wrong = complaint("path", FILES.find_folder, path, "config.json")
        if path is not None and not wrong:
            wrong = complaint("processor", find_processor, processor, FILES.find_folder(path, "config.json"))
        return wrong or super().VALIDATE_INPUTS(clip)


class RewardHPSv2(NetworkReward):
    TITLE = "Reward: HPSv2.1"
    DESCRIPTION = "Human Preference Score v2.1: whether people would prefer this picture of the prompt."
    KIND = "hpsv2"
    MODEL_INPUTS = ("path", "tokenizer")

    @classmethod
    def own_inputs(cls):
        return {
            "path": text_input("HPS_v2.1_compressed.pt", "The published file: a path, or its name in a model folder."),
            "tokenizer": text_input(
                "openai/clip-vit-large-patch14",
                "A folder with CLIP's tokenizer, the name of one, or a hub id in the local cache; any CLIP's will do.",
            ),
            "provider": (
                ["transformers", "hpsv2"],
                {
                    "default": "transformers",
                    "tooltip": "transformers needs no package. hpsv2: the authors' own, where you have one that works; the same "
                    "scores.",
                },
            ),
        }

    @classmethod
    def VALIDATE_INPUTS(cls, path="", tokenizer="", provider="transformers", clip=""):
        from ..trainer.rewards import hps

        if provider not in (None, *hps.PROVIDERS):
            return f"provider: {provider!r} is none of {', '.join(hps.PROVIDERS)}"
        wanted = tokenizer if provider == "transformers" else None
        return (
            complaint("path", hps.FILE.find, path)
            or complaint("tokenizer", hps.TOKENIZER.find_folder, wanted, "tokenizer_config.json")
            or super().VALIDATE_INPUTS(clip)
        )


class RewardImageReward(NetworkReward):
    TITLE = "Reward: ImageReward"
    DESCRIPTION = "How well the picture follows the prompt and pleases, by BLIP trained on experts' rankings."
    KIND = "image_reward"
    MODEL_INPUTS = ("path", "config", "tokenizer")

    @classmethod
    def own_inputs(cls):
        return {
            "path": text_input("ImageReward.pt", "The published file: a path, or its name in a model folder."),
            "config": text_input("med_config.json", "Published beside it: a path, or its name in a model folder."),
            "tokenizer": text_input(
                "google-bert/bert-base-uncased",
                "A folder with the tokenizer of bert-base-uncased, the name of one, or a hub id in the local cache.",
            ),
        }

    @classmethod
    def VALIDATE_INPUTS(cls, path="", config="", tokenizer="", clip=""):
        from ..trainer.rewards import image_reward

        return (
            complaint("path", image_reward.FILE.find, path)
            or complaint("config", image_reward.CONFIG.find, config)
            or complaint("tokenizer", image_reward.TOKENIZER.find_folder, tokenizer, "tokenizer_config.json")
            or super().VALIDATE_INPUTS(clip)
        )
