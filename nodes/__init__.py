"""The node table: one thin class a node, one file a stage of the pipeline. The work itself is in trainer/.

Nothing here imports torch at import time: ComfyUI and `otca nodes` read this table in milliseconds.
"""

import functools
from collections.abc import Callable

from . import credit, data, fusion, guidance, model, native, run, sampling, training
from .rewards import external, images, stack, videos

_NODES = [
    *(model.LoadFlowModel, model.ModelMemory),
    *(native.MakeTrainable, native.TunedModel),
    native.EmbeddedModel,
    data.PromptDataset,
    *(sampling.MixGRPOWindow, sampling.SDESampler),
    data.PreferencePairs,
    *(images.RewardClipT, images.RewardAesthetic, images.RewardPickScore, images.RewardHPSv2, images.RewardImageReward),
    images.RewardMyTaste,
    *(images.RewardColorfulness, images.RewardSharpness),
    *(images.RewardJpegCompressibility, images.RewardJpegIncompressibility),
    *(images.RewardShapesAccuracy, images.RewardScenes),
    *(videos.RewardVideoAlign, videos.RewardVideoScore),
    *(images.RewardText, images.RewardObjects),
    *(external.RewardHTTP, external.RewardVLMJudge, external.RewardPython),
    external.RewardVote,
    *(stack.RewardStack, stack.ScoreImages),
    *(credit.TCDWeights, credit.UniformWeights, credit.NoiseAwareWeights, credit.PCPOWeights, credit.GRPOGuard),
    *(credit.LearnedCredit, credit.CombineCredit, credit.SpatialCredit),
    *(fusion.MOCAFuse, fusion.WeightedFuse, fusion.MinNormFuse, fusion.StepwiseGain, fusion.BestOfN),
    *(training.GRPOStep, training.MatchingStep, run.TrainingRun, run.SaveLoRA),
    guidance.ImplicitRewardGuidance,
]


def _called(node: type) -> type:
    """The class itself, whose INPUT_TYPES tells from now on what each input is called."""
    declared: Callable[[], dict[str, dict]] = node.INPUT_TYPES  # pyright: ignore[reportAttributeAccessIssue]

    @functools.wraps(declared)
    def input_types(_cls) -> dict[str, dict]:
        return {
            section: table if section == "hidden" else {name: given.named(name) for name, given in table.items()}
            for section, table in declared().items()
        }

    node.INPUT_TYPES = classmethod(input_types)  # pyright: ignore[reportAttributeAccessIssue]
    return node


NODE_CLASS_MAPPINGS = {f"OTCA_{node.__name__}": _called(node) for node in _NODES}
NODE_DISPLAY_NAME_MAPPINGS = {f"OTCA_{node.__name__}": node.TITLE for node in _NODES}
