"""How nodes are shown on the canvas, in one place: which inputs at first sight, under which words, and what finds a node.

Nothing here changes what a node takes or does. An input that is not shown first is `advanced`: the canvas keeps it behind a
button, and its value is saved, exported and used like any other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from . import labels, words

WIDGET_TYPES = ("INT", "FLOAT", "STRING", "BOOLEAN")

# {class: the widgets that are shown first}. All of a class that is not here.
SHOWN_FIRST = {
    "LoadFlowModel": ("model", "lora_rank", "lora_alpha", "path", "training", "resume_run"),
    "ModelMemory": (
        *("quantize", "offload_encoders", "vae_tiling", "gradient_checkpointing", "offload_vae"),
        "shard",
    ),
    "MakeTrainable": ("lora_rank", "lora_alpha", "resume_run", "start_from", "memory"),
    "PromptDataset": ("prompts", "prompts_per_iteration", "index", "file"),
    "MixGRPOWindow": ("iteration", "steps", "length", "mode", "every", "stride"),
    "SDESampler": ("group_size", "steps", "width", "height", "guidance", "seed"),
    "PreferencePairs": ("folder", "pairs_per_iteration", "index", "width", "height", "guidance"),
    "RewardClipT": ("model", "path", "coefficient", "held_out"),
    "RewardAesthetic": ("path", "model", "coefficient", "held_out"),
    "RewardPickScore": ("path", "processor", "coefficient", "held_out"),
    "RewardHPSv2": ("path", "tokenizer", "coefficient", "held_out"),
    "RewardImageReward": ("path", "config", "tokenizer", "coefficient", "held_out"),
    "RewardMyTaste": ("path", "encoder", "coefficient", "held_out"),
    **dict.fromkeys(
        (
            *("RewardColorfulness", "RewardSharpness", "RewardJpegCompressibility", "RewardJpegIncompressibility"),
            *("RewardShapesAccuracy", "RewardText"),
        ),
        ("coefficient", "held_out"),
    ),
    "RewardScenes": ("coefficient", "strict", "held_out"),
    "RewardVideoAlign": ("model", "base", "fps", "coefficient_vq", "coefficient_mq", "coefficient_ta"),
    "RewardVideoScore": (
        "model",
        *(f"coefficient_{dimension}" for dimension in ("visual", "temporal", "dynamic", "alignment", "factual")),
    ),
    "RewardObjects": ("path", "clip_model", "coefficient", "strict", "threshold", "held_out"),
    "RewardHTTP": ("url", "coefficient", "score_key", "token_variable", "held_out"),
    "RewardVLMJudge": ("url", "model", "questions", "coefficient_1", "coefficient_2", "answer"),
    "RewardPython": ("file", "function", "coefficient", "held_out"),
    "RewardVote": ("votes", "coefficient", "url", "learn", "encoder", "held_out"),
    "TCDWeights": ("w_min", "floor", "proxy", "features"),
    "SpatialCredit": ("model", "components", "smoothing", "floor"),
    "GRPOStep": ("learning_rate", "clip_range", "kl_coefficient", "epochs", "sampled_steps", "objective"),
    "MatchingStep": ("loss", "learning_rate", "old_policy", "sampled_steps", "kl_coefficient"),
    "TrainingRun": ("run_name", "iterations", "checkpoint_every", "evaluate_every"),
    "ImplicitRewardGuidance": ("guides", "prompts", "steps", "width", "height", "seed"),
}


def presented(node: type) -> type:
    """The class itself, which says from now on what finds it, and in INPUT_TYPES how each input is shown."""
    declared: Callable[[], dict[str, dict]] = node.INPUT_TYPES  # pyright: ignore[reportAttributeAccessIssue]
    first = SHOWN_FIRST.get(node.__name__)

    @functools.wraps(declared)
    def input_types(_cls) -> dict[str, dict]:
        return {
            section: table
            if section == "hidden"
            else {name: (spec[0], _shown(node.__name__, name, spec[0], spec[1], first)) for name, spec in table.items()}
            for section, table in declared().items()
        }

    said: dict[str, Any] = {"INPUT_TYPES": classmethod(input_types)}
    said["SEARCH_ALIASES"] = list(words.SEARCH_ALIASES.get(node.__name__, ()))
    if node.__name__ in words.ESSENTIALS:
        said["ESSENTIALS_CATEGORY"] = words.ESSENTIALS_CATEGORY
    for name, value in said.items():
        setattr(node, name, value)
    return node


def is_widget(type_: Any) -> bool:
    """Whether an input of that type is set on the node itself, and not only by a link."""
    return isinstance(type_, list) or type_ in WIDGET_TYPES


def _shown(node: str, name: str, type_: Any, options: dict, first: tuple[str, ...] | None) -> dict:
    """The options of an input, with what says how it is shown."""
    linked = not is_widget(type_)
    shown = {**options, "display_name": labels.plain(node, name, linked)}
    if not labels.names_itself(node, name, linked):
        shown["tooltip"] = f"{options['tooltip']} In files and messages: {name}."
    if type_ == "STRING" and (text := labels.placeholder(node, name)):
        shown["placeholder"] = text
    if first is not None and not linked and name not in first:
        shown["advanced"] = True
    return shown
