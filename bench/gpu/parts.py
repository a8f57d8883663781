"""The parts of bench/gpu.sh: what each measures, and for how many seconds at most. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Place:
    """Where a part measures. `folder`: of the parts' files, since some need another's figure."""

    device: str
    tiny: bool
    folder: Path


class Skipped(Exception):
    """A part that cannot be had here, with the reason."""


@dataclass(frozen=True)
class Part:
    measure: partial[dict]  # of a Place
    seconds: int


def _of(module: str, function: str, **arguments: Any) -> partial[dict]:
    """A function of one of the modules here, which is imported when it is called."""
    return partial(_call, module, function, arguments)


def _call(module: str, function: str, arguments: dict, place: Place) -> dict:
    return getattr(import_module(f".{module}", __package__), function)(place, **arguments)


ATTENTIONS = ("native", "_native_flash", "_native_efficient", "_native_cudnn", "flash", "sage")
BATCHES = (1, 4, 8)

# In the order of worth: the last ones go first where time is short.
PARTS: dict[str, Part] = {
    "rate": Part(_of("machine", "rate"), 90),
    "gpu_tests": Part(_of("machine", "gpu_tests"), 300),
    "collectives": Part(_of("machine", "collectives"), 90),
    **{f"batch_{batch}": Part(_of("training", "iteration", batch=batch), 180) for batch in BATCHES},
    "kept_graph": Part(_of("training", "iteration", batch=1, keep_graph=True), 180),
    "sampled_steps": Part(_of("training", "iteration", batch=4, sampled_steps=1), 120),
    "checkpointing": Part(_of("training", "iteration", batch=4, load={"gradient_checkpointing": True}), 180),
    "profile": Part(_of("training", "profile", batch=4), 180),
    "compile": Part(_of("training", "iteration", batch=4, load={"compile": True}), 300),
    **{
        f"attention_{name}": Part(_of("training", "iteration", batch=4, load={"attention": name}), 120)
        for name in ATTENTIONS
    },
    "decode": Part(_of("pictures", "decode"), 90),
    "rewards": Part(_of("pictures", "rewards"), 120),
    "z_image": Part(_of("training", "iteration", batch=1, shape="z_image"), 180),
    "qwen_image": Part(_of("training", "iteration", batch=1, shape="qwen_image"), 180),
    "processes": Part(_of("machine", "processes"), 240),
    "anywhere_tests": Part(_of("machine", "anywhere_tests"), 600),
}
