"""Reward models: one file a family.

A reward's node says where its class is (`nodes/rewards/base.py`), and so the nodes fill the table of them. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from ..networks import RewardError

OF_GRAPHS = {"clip_judge": "clip_judge.ClipJudge", "pair_judge": "clip_judge.PairJudge"}  # those need a graph's CLIP


def reward_class(kind: str) -> type[Any]:
    """The class of a row in REWARDS or OF_GRAPHS: a `Reward` with settings of its own.

    Its module, and what that needs, is imported now.
    """
    return located(OF_GRAPHS[kind]) if kind in OF_GRAPHS else REWARDS[kind]()


def located(address: str) -> type[Any]:
    """The class at `module.Class` of this room, as in `clip.ClipT`."""
    # Not by pkgutil: in ComfyUI the pack's name is a path.
    module, _, name = address.rpartition(".")
    return getattr(import_module(f".{module}", __name__), name)


# By its kind, what imports a reward's class: of one without a node of its own, and of what nodes/ adds
REWARDS: dict[str, Callable[[], type[Any]]] = {"clip_direction": lambda: located("clip.ClipDirection")}

__all__ = ["OF_GRAPHS", "REWARDS", "RewardError", "located", "reward_class"]
