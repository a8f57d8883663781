"""The node table: one thin class a node, one file a stage of the pipeline. The work itself is in trainer/.

Nothing here imports torch at import time: ComfyUI and `otca nodes` read this table in milliseconds.
"""

from ..host.access import permissions
from . import credit, data, fusion, guidance, model, native, run, sampling, training
from .rewards import external, images, stack, videos

_NODES = [
    *(model.LoadFlowModel, model.ModelMemory),
    *(native.MakeTrainable, native.TunedModel),
    native.EmbeddedModel,
    data.PromptDataset,
    *(sampling.MixGRPOWindow, sampling.SDESampler),
    data.MyPictures,
    *(images.RewardClipT, images.RewardAesthetic, images.RewardPickScore, images.RewardHPSv2, images.RewardImageReward),
    images.RewardMyTaste,
    *(images.RewardVariety, images.RewardRelativeWords, images.RewardKept, images.RewardChanged),
    *(images.RewardBrightness, images.RewardColorfulness, images.RewardSharpness),
    *(images.RewardJpegCompressibility, images.RewardJpegIncompressibility),
    *(images.RewardShapesAccuracy, images.RewardScenes),
    *(videos.RewardVideoAlign, videos.RewardVideoScore),
    *(images.RewardText, images.RewardObjects),
    *(external.RewardHTTP, external.RewardVLMJudge, external.RewardPython),
    external.RewardVote,
    *(stack.RewardStack, stack.ScoreImages),
    *(credit.TCDWeights, credit.StepCredit, credit.CombineCredit, credit.SpatialCredit),
    *(fusion.MOCAFuse, fusion.WeightedFuse, fusion.MinNormFuse, fusion.StepwiseGain, fusion.BestOfN),
    *(training.GRPOStep, training.MatchingStep, training.RewardGradientStep, run.TrainingRun, run.SaveLoRA),
    guidance.ImplicitRewardGuidance,
]


NODE_CLASS_MAPPINGS = {f"OTCA_{node.__name__}": node for node in _NODES}
NODE_DISPLAY_NAME_MAPPINGS = {f"OTCA_{node.__name__}": node.TITLE for node in _NODES}
# Nodes that ComfyUI does not list before the user allows them, and what to say of them.
WITHHELD = {
    "OTCA_RewardPython": "Reward: Python is not listed here, since it runs a file's code with all your rights. Fix: read the "
    "file that the workflow names; if you trust it, start ComfyUI with "
    f"{permissions.PYTHON} set to its folder; or take the node out"
}


def listed() -> dict[str, type]:
    """The nodes that ComfyUI is given. Headlessly all of them are known: there the file itself is asked about."""
    allowed = permissions.python_allowed()
    return {name: node for name, node in NODE_CLASS_MAPPINGS.items() if allowed or name not in WITHHELD}
