"""The node table: one thin class a node, one file a stage of the pipeline. The work itself is in trainer/.

Nothing here imports torch at import time: ComfyUI and `otca nodes` read this table in milliseconds.
"""

from . import (
    credit,
    data,
    external_rewards,
    fusion,
    guidance,
    image_rewards,
    model,
    rewards,
    sampling,
    training,
    video_rewards,
)

_NODES = [
    model.LoadFlowModel,
    model.ModelMemory,
    model.ModelFiles,
    data.PromptDataset,
    sampling.MixGRPOWindow,
    sampling.SDESampler,
    image_rewards.RewardClipT,
    image_rewards.RewardAesthetic,
    image_rewards.RewardPickScore,
    image_rewards.RewardHPSv2,
    image_rewards.RewardImageReward,
    rewards.RewardColorfulness,
    rewards.RewardSharpness,
    rewards.RewardJpegCompressibility,
    rewards.RewardJpegIncompressibility,
    rewards.RewardShapesAccuracy,
    video_rewards.RewardVideoAlign,
    video_rewards.RewardVideoScore,
    external_rewards.RewardHTTP,
    external_rewards.RewardPython,
    rewards.RewardStack,
    credit.TCDWeights,
    credit.UniformWeights,
    credit.NoiseAwareWeights,
    credit.PCPOWeights,
    credit.GRPOGuard,
    credit.CombineCredit,
    credit.SpatialCredit,
    fusion.MOCAFuse,
    fusion.WeightedFuse,
    fusion.MinNormFuse,
    fusion.StepwiseGain,
    fusion.BestOfN,
    training.GRPOStep,
    training.TrainingRun,
    training.SaveLoRA,
    guidance.ImplicitRewardGuidance,
]

NODE_CLASS_MAPPINGS = {f"OTCA_{node.__name__}": node for node in _NODES}
NODE_DISPLAY_NAME_MAPPINGS = {f"OTCA_{node.__name__}": node.TITLE for node in _NODES}
