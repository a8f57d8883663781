"""The node table: one thin class a node, one file a stage of the pipeline. The work itself is in trainer/.

Nothing here imports torch at import time: ComfyUI and `otca nodes` read this table in milliseconds.
"""

from . import credit, data, external_rewards, fusion, model, rewards, sampling, training

_NODES = [
    model.LoadFlowModel,
    model.ModelMemory,
    data.PromptDataset,
    sampling.SDESampler,
    rewards.RewardClipT,
    rewards.RewardColorfulness,
    rewards.RewardSharpness,
    rewards.RewardJpegCompressibility,
    rewards.RewardJpegIncompressibility,
    rewards.RewardShapesAccuracy,
    external_rewards.RewardHTTP,
    external_rewards.RewardPython,
    rewards.RewardStack,
    credit.TCDWeights,
    credit.UniformWeights,
    fusion.MOCAFuse,
    fusion.WeightedFuse,
    training.GRPOStep,
    training.TrainingRun,
    training.SaveLoRA,
]

NODE_CLASS_MAPPINGS = {f"OTCA_{node.__name__}": node for node in _NODES}
NODE_DISPLAY_NAME_MAPPINGS = {f"OTCA_{node.__name__}": node.TITLE for node in _NODES}
