"""Rewards that look at a picture: by a network, at its pixels, and for what the prompt says in so many words."""

from ...host import paths, search
from ...host.access.wants import TASTE, TOKENIZER, Naming
from ...trainer.types import HPS_PROVIDERS
from ..inputs import choice, complaint, found, number, socket, switch, text
from .base import JUDGE, REWARD, WEIGHTS, NetworkReward, RewardNode

MARKER = "preprocessor_config.json"
SOURCE = socket("IMAGE").tip(
    "The picture that was edited, one for all samples. Not connected: image in the prompt's line."
)


class _OneEncoder(NetworkReward):
    """A reward in the space of one encoder's folder."""

    REQUIRED = {
        "model": found(lambda: paths.list_models(MARKER), names=WEIGHTS).tip(
            "A CLIP model folder (transformers layout) from ComfyUI's folders, $OTCA_MODELS or assets/."
        )
    }
    OPTIONAL = {
        "path": text(hint="a folder, or owner/name", names=WEIGHTS).tip(
            "A CLIP model folder anywhere else, or a hub id in the local cache. Used instead of model when not empty."
        )
    }

    @classmethod
    def VALIDATE_INPUTS(cls, model=None, path="", clip=""):
        folder = None if path is None else path or model  # None: linked, known when the graph runs
        from ...trainer.networks import features

        wrong = complaint("path" if path else "model", features.find, folder)
        return wrong or super().VALIDATE_INPUTS(clip)

    def build(self, model, path="", **settings):
        return super().build(model=path or model, **settings)


class RewardClipT(_OneEncoder):
    TITLE = "Reward: CLIP-T"
    CATEGORY = "OTCA/rewards"
    DESCRIPTION = "Cosine of picture and prompt in CLIP's space: does the picture show what was asked for?"
    SEARCH_ALIASES = [*REWARD, "clip score", "text alignment", "prompt following"]
    KIND, CLASS = "clip_t", "clip.ClipT"

    MORE = {
        "direction": switch(advanced=True).tip(
            "For edits: whether the picture moved away from its source as target_text of the prompt's line does from "
            "source_text. Off: whether it shows the prompt."
        ),
        "source": SOURCE,
    }

    @classmethod
    def inputs(cls):
        required, optional = super().inputs()
        return required, optional | cls.MORE

    @classmethod
    def announced(cls, name="", direction=False, **inputs):
        return super().announced(name or ("clip_direction" if direction else ""), **inputs)

    @classmethod
    def sees_source(cls, direction=False, **_):
        return bool(direction)

    def build(self, model, path="", direction=False, source=None, **settings):
        more = {"kind": "clip_direction", "source": source} if direction else {}
        return super().build(model, path, **more, **settings)


class RewardAesthetic(NetworkReward):
    TITLE = "Reward: Aesthetic (LAION v2)"
    DESCRIPTION = "How much people would like the picture, whatever the prompt: a small head on CLIP ViT-L/14."
    SEARCH_ALIASES = [*REWARD, *JUDGE, "aesthetic", "laion", "beauty"]
    KIND, CLASS = "aesthetic", "clip.Aesthetic"

    REQUIRED = {
        "path": text("sac+logos+ava1-l14-linearMSE.pth", suggest="reward_weights", names=WEIGHTS)
        .tip("The head's file: a path, or its name in a model folder.")
        .checked("trainer.rewards.clip:AESTHETIC.find"),
        "model": text("openai/clip-vit-large-patch14", suggest="encoders", names=WEIGHTS)
        .tip(
            "The CLIP ViT-L/14 below it: a folder, the name of one, or a hub id in the local cache. Rewards on the same "
            "one share it."
        )
        .checked("trainer.networks.features:VIT_L.find_folder", MARKER),
    }


class RewardPickScore(NetworkReward):
    TITLE = "Reward: PickScore"
    CATEGORY = "OTCA/rewards"
    DESCRIPTION = (
        "Which of two pictures of the prompt people would pick: CLIP ViT-H/14, trained on half a million choices."
    )
    SEARCH_ALIASES = [*REWARD, *JUDGE, "pickscore", "pick-a-pic"]
    KIND, CLASS = "pickscore", "clip.PickScore"

    REQUIRED = {
        "path": text("yuvalkirstain/PickScore_v1", suggest="networks", names=WEIGHTS)
        .tip("The checkpoint: a folder, the name of one, or a hub id in the local cache.")
        .checked("trainer.rewards.clip:PICKSCORE.find_folder", "config.json"),
        "processor": text("laion/CLIP-ViT-H-14-laion2B-s32B-b79K", suggest="encoders", names=WEIGHTS)
        .tip(
            "The CLIP that lends its tokenizer and preprocessor_config.json, where the checkpoint has none: a folder, "
            "the name of one, or a hub id in the local cache."
        )
        .checked("trainer.rewards.clip:find_processor", beside=("path",)),
    }


class RewardHPSv2(NetworkReward):
    TITLE = "Reward: HPSv2.1"
    CATEGORY = "OTCA/rewards"
    DESCRIPTION = "Human Preference Score v2.1: whether people would prefer this picture of the prompt."
    SEARCH_ALIASES = [*REWARD, *JUDGE, "hps", "hpsv2", "hpsv2.1"]
    KIND, CLASS = "hpsv2", "hps.HPSv2"
    MAY_NEED = ("rewards", "ftfy")  # for a prompt with other than plain letters

    REQUIRED = {
        "path": found(paths.list_rewards, "HPS_v2.1_compressed.pt", names=WEIGHTS).tip(
            "The published file, by its name in models/otca_rewards. An exported workflow may name a path."
        ),
        "tokenizer": text("openai/clip-vit-large-patch14", suggest="tokenizers", names=Naming(TOKENIZER)).tip(
            "A folder with CLIP's tokenizer, the name of one, or a hub id in the local cache. Any CLIP's tokenizer will "
            "do."
        ),
        "provider": choice(HPS_PROVIDERS, advanced=True).tip(
            "Whose code computes the scores, which are the same. transformers: no package is needed. hpsv2: the "
            "authors' package, where you have one that works."
        ),
    }

    @classmethod
    def VALIDATE_INPUTS(cls, path=None, tokenizer=None, provider=None, clip=""):
        from ...trainer.rewards import hps

        if provider not in (None, *HPS_PROVIDERS):
            return f"provider: {provider!r} is unknown. Fix: choose {' or '.join(HPS_PROVIDERS)}"
        wanted = tokenizer if provider == "transformers" else None
        return (
            complaint("path", hps.FILE.find, path)
            or complaint("tokenizer", hps.find_tokenizer, wanted)
            or super().VALIDATE_INPUTS(clip)
        )


class RewardImageReward(NetworkReward):
    TITLE = "Reward: ImageReward"
    DESCRIPTION = "How well the picture follows the prompt and pleases, by BLIP trained on experts' rankings."
    SEARCH_ALIASES = [*REWARD, *JUDGE, "imagereward", "blip"]
    KIND, CLASS = "image_reward", "image_reward.ImageReward"

    REQUIRED = {
        "path": text("ImageReward.pt", suggest="reward_weights", names=WEIGHTS)
        .tip("The published file: a path, or its name in a model folder.")
        .checked("trainer.rewards.image_reward:FILE.find"),
        "config": text("med_config.json", suggest="reward_configs", names=WEIGHTS)
        .tip("The file published beside it: a path, or its name in a model folder.")
        .checked("trainer.rewards.image_reward:CONFIG.find"),
        "tokenizer": text("google-bert/bert-base-uncased", suggest="tokenizers", names=WEIGHTS)
        .tip("A folder with the tokenizer of bert-base-uncased, the name of one, or a hub id in the local cache.")
        .checked("trainer.rewards.image_reward:TOKENIZER.find_folder", "tokenizer_config.json"),
    }


class RewardMyTaste(NetworkReward):
    TITLE = "Reward: My Taste"
    CATEGORY = "OTCA/rewards"
    DESCRIPTION = (
        "What you would like, whatever the prompt: a small head that otca taste fit learned from your choices."
    )
    SEARCH_ALIASES = [*REWARD, *JUDGE, "personal taste", "my style", "like"]
    KIND, CLASS = "my_taste", "taste.MyTaste"

    REQUIRED = {
        "path": text("taste.safetensors", suggest="reward_weights", names=Naming(TASTE))
        .tip("The file that otca taste fit wrote: a path, or its name in a model folder.")
        .checked("trainer.rewards.taste:find")
    }

    OPTIONAL = {
        "encoder": text(suggest="encoders", hint="the one in the file", names=WEIGHTS)
        .tip(
            "The image encoder that it was fitted on, where its folder has another name here: a folder, the name of one, "
            "or a hub id in the local cache. Empty: by the name in the file."
        )
        .checked(search.model, MARKER, or_empty=True)
    }

    @classmethod
    def IS_CHANGED(cls, path="", **_):
        from ...trainer.rewards import taste

        return float("nan") if path is None else taste.find(path).stat().st_mtime_ns


class RewardVariety(_OneEncoder):
    TITLE = "Reward: Variety"
    CATEGORY = "OTCA/research"
    DESCRIPTION = (
        "How far the picture is from the others of its prompt, against a model that draws one picture from all seeds."
    )
    SEARCH_ALIASES = [*REWARD, "diversity", "variety", "mode collapse", "group distance"]
    KIND, CLASS = "variety", "variety.Variety"
    COMPARES = True


class RewardRelativeWords(RewardNode):
    TITLE = "Reward: Relative Words"
    CATEGORY = "OTCA/research"
    DESCRIPTION = (
        "Asks another reward twice, with a good word before the prompt and with a bad one. The score is the difference."
    )
    SEARCH_ALIASES = [*REWARD, "srpo", "relative reward", "control words", "semantic relative preference"]
    KIND, CLASS = "relative_words", "relative.RelativeWords"

    REQUIRED = {
        "reward": socket("OTCA_REWARD").tip(
            "A reward that reads the prompt, such as CLIP-T or HPSv2.1. Its coefficient, held out, factor and bounds "
            "play no part here."
        ),
        "good": text("photo")
        .tip('The word or phrase that you want more of: the other reward is asked with "photo. " before the prompt.')
        .checked("trainer.rewards.relative:check_words", beside=("bad",)),
        "bad": text("plastic render").tip(
            "The word or phrase that you want less of. An empty one: the prompt by itself."
        ),
    }


class _RewardOfEdits(RewardNode):
    """A reward that compares a picture with its source."""

    OPTIONAL = {
        "source": SOURCE,
        "share": number(0.3, 0.01, 0.99, step=0.01, label="share that may change").tip(
            "Share of the pixels that may change: those that differ most. Not used where a prompt's line names a mask, a "
            "picture that is white where it may change."
        ),
    }

    @classmethod
    def sees_source(cls, **_):
        return True


class RewardKept(_RewardOfEdits):
    TITLE = "Reward: Kept"
    DESCRIPTION = "For edits: how like its source the picture is where nothing was to change, by its pixels."
    SEARCH_ALIASES = [*REWARD, "edit", "preserve", "consistency", "unchanged", "background", "source"]
    KIND, CLASS = "kept", "edits.Kept"


class RewardChanged(_RewardOfEdits):
    TITLE = "Reward: Changed"
    DESCRIPTION = "For edits: how far the picture is from doing nothing, by its pixels. Its source itself scores 0."
    SEARCH_ALIASES = [*REWARD, "edit", "do nothing", "copy", "difference", "source"]
    KIND, CLASS = "changed", "edits.Changed"

    OPTIONAL = {
        **_RewardOfEdits.OPTIONAL,
        "enough": number(0.1, 0.001, 1, step=0.01, label="difference that is enough").tip(
            "The mean difference of pixels, of 1, that scores 0.63. More adds less and less."
        ),
    }


class RewardColorfulness(RewardNode):
    TITLE = "Reward: Colorfulness"
    DESCRIPTION = "How colourful the picture is, by Hasler and Süsstrunk's measure."
    SEARCH_ALIASES = [*REWARD, "colour", "color", "saturation", "vivid"]
    KIND, CLASS = "colorfulness", "pixels.Colorfulness"


class RewardSharpness(RewardNode):
    TITLE = "Reward: Sharpness"
    DESCRIPTION = "How sharp the picture is: the variance of the Laplacian of its brightness."
    SEARCH_ALIASES = [*REWARD, "sharp", "blur", "focus", "laplacian"]
    KIND, CLASS = "sharpness", "pixels.Sharpness"


class RewardJpegCompressibility(RewardNode):
    TITLE = "Reward: JPEG Compressibility"
    DESCRIPTION = "Minus the size of the picture as a JPEG: prefers plain pictures."
    SEARCH_ALIASES = [*REWARD, "jpeg", "file size", "ddpo", "simple"]
    KIND, CLASS = "jpeg_compressibility", "pixels.JpegCompressibility"


class RewardJpegIncompressibility(RewardNode):
    TITLE = "Reward: JPEG Incompressibility"
    DESCRIPTION = "The size of the picture as a JPEG: prefers detail."
    SEARCH_ALIASES = [*REWARD, "jpeg", "file size", "ddpo", "detail"]
    KIND, CLASS = "jpeg_incompressibility", "pixels.JpegIncompressibility"


class RewardShapesAccuracy(RewardNode):
    TITLE = "Reward: Shapes Accuracy"
    CATEGORY = "OTCA/research"
    DESCRIPTION = (
        "Reads colour and shape off the pixels of the shapes world and says whether they are as asked, or whether an edit of the "
        "picture that the prompt names was made. An exact judge."
    )
    SEARCH_ALIASES = [*REWARD, "shapes", "accuracy", "exact judge", "held out", "edit"]
    KIND, CLASS = "accuracy", "shapes.ShapesAccuracy"
    HELD_OUT = True


class RewardScenes(RewardNode):
    TITLE = "Reward: Scenes"
    CATEGORY = "OTCA/research"
    DESCRIPTION = (
        "Finds the objects of the scenes world in the pixels: are colours, shapes, count and relation as asked?"
    )
    SEARCH_ALIASES = [*REWARD, "scenes", "counting", "relations", "exact judge"]
    KIND, CLASS = "scenes", "scenes.Scenes"

    OPTIONAL = {
        "strict": switch().tip(
            "1 where exactly what was asked for is there, else 0. Off: how nearly it is there, from 0 to 1."
        )
    }


class RewardText(RewardNode):
    TITLE = "Reward: Text"
    DESCRIPTION = (
        'Reads the text in the picture, and compares it with what the prompt puts in quotes: a sign says "Open".'
    )
    SEARCH_ALIASES = [*REWARD, "ocr", "text rendering", "typography", "spelling", "read text"]
    KIND, CLASS = "text", "text.Text"
    NEEDS = ("ocr",)

    @classmethod
    def VALIDATE_INPUTS(cls, clip=""):
        from ...trainer.rewards.text import find_models

        if not cls.lacks():
            try:
                find_models()
            except FileNotFoundError as error:
                return str(error)
        return super().VALIDATE_INPUTS(clip)


class RewardObjects(NetworkReward):
    TITLE = "Reward: Objects"
    DESCRIPTION = (
        "Finds the objects that the prompt's line in its .jsonl file asks for: how many, of which colour, and where."
    )
    SEARCH_ALIASES = [*REWARD, "geneval", "object detection", "counting", "composition", "owl", "grounding dino"]
    KIND, CLASS = "objects", "objects.Objects"

    REQUIRED = {
        "path": text("google/owlv2-base-patch16-ensemble", suggest="encoders", names=WEIGHTS)
        .tip("The detector, OWLv2 or Grounding DINO: a folder, the name of one, or a hub id in the local cache.")
        .checked("trainer.networks.detector:OWLV2.find_folder", MARKER),
        "clip_model": text("openai/clip-vit-large-patch14", suggest="encoders", names=WEIGHTS)
        .tip(
            "The CLIP that tells colours: a folder, the name of one, or a hub id in the local cache. Empty: no prompt "
            "may ask for a colour."
        )
        .checked("trainer.networks.features:VIT_L.find_folder", MARKER, or_empty=True),
    }

    OPTIONAL = {
        "strict": switch().tip(
            "1 where all is as asked for, else 0, as GenEval counts. Off: the share of what was asked for."
        ),
        "threshold": number(0, 0, 1, step=0.01).tip(
            "How sure the detector has to be. 0: 0.2 with OWLv2, 0.35 with Grounding DINO."
        ),
        "overlap": number(0.5, 0, 1, step=0.05, label="box overlap", advanced=True).tip(
            "If two boxes of one name share more than this, the surer one counts."
        ),
    }
