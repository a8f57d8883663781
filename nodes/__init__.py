"""The node table: one thin class a node, one file a stage of the pipeline. The work itself is in trainer/.

Nothing here imports torch at import time: ComfyUI and `otca nodes` read this table in milliseconds.
"""

from importlib import import_module
from pkgutil import iter_modules

from ..host.access import permissions
from ..trainer.rewards import REWARDS
from . import credit, data, fusion, guidance, model, native, rewards, run, sampling, training
from .rewards import stack
from .rewards.base import RewardNode

# Every reward of every file in rewards/: a new one is found there.
_REWARDS = [
    node
    for file in iter_modules(rewards.__path__, f"{rewards.__name__}.")
    for node in vars(import_module(file.name)).values()
    if isinstance(node, type)
    and issubclass(node, RewardNode)
    and node.__module__ == file.name
    and "TITLE" in vars(node)
]
_NODES = [
    *(model.LoadFlowModel, model.ModelMemory),
    *(native.MakeTrainable, native.TunedModel),
    native.EmbeddedModel,
    data.PromptDataset,
    *(sampling.MixGRPOWindow, sampling.SDESampler),
    data.MyPictures,
    *_REWARDS,
    *(stack.RewardStack, stack.ScoreImages),
    *(credit.TCDWeights, credit.StepCredit, credit.CombineCredit, credit.SpatialCredit),
    *(fusion.MOCAFuse, fusion.WeightedFuse, fusion.MinNormFuse, fusion.StepwiseGain, fusion.BestOfN),
    *(training.GRPOStep, training.MatchingStep, training.RewardGradientStep, run.TrainingRun, run.SaveLoRA),
    guidance.ImplicitRewardGuidance,
]


REWARDS.update({node.KIND: node.scorer for node in _REWARDS})
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
