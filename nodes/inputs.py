"""One line an input of a node: each function here returns what ComfyUI's INPUT_TYPES wants, `(type, options)`.

`tip` is the tooltip. What a user chooses from is a tuple of the trainer's, and a default is that of a settings class, as in
`number(SamplerSettings.eta, 0.001, 4, step=0.01, tip="…")`. At the end stands what VALIDATE_INPUTS says of a wrong value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..trainer.types import DTYPES

Options = dict[str, Any]
Input = tuple["str | list[str]", Options]

LARGEST_SEED = 2**63 - 1


def _given(**options: object) -> Options:
    return {name: value for name, value in options.items() if value is not None}


def integer(
    default: int, low: int, high: int, *, tip: str, step: int | None = None, advances: bool | None = None
) -> Input:
    """A whole number. `advances`: whether the canvas changes it after each prompt (control_after_generate); None: it cannot."""
    options: Options = {"default": default, "min": low, "max": high}
    return "INT", options | _given(step=step, control_after_generate=advances) | {"tooltip": tip}


def number(default: float, low: float, high: float, *, step: float, tip: str, fine: bool = False) -> Input:
    """A decimal number; a `fine` one may be finer than `step`, to which the canvas rounds any other."""
    options: Options = {"default": float(default), "min": float(low), "max": float(high), "step": float(step)}
    return "FLOAT", options | ({"round": False} if fine else {}) | {"tooltip": tip}


def seed(*, tip: str, advances: bool = False) -> Input:
    """A seed. Only one that is another in every iteration advances: ComfyUI would change any other after each prompt too."""
    return integer(0, 0, LARGEST_SEED, tip=tip, advances=advances)


def counter(*, tip: str) -> Input:
    """A whole number that goes up by one with every iteration."""
    return integer(0, 0, 2**31, tip=tip, advances=True)


def text(default: str = "", *, tip: str, suggest: str | None = None) -> Input:
    """A text box. `suggest`: a kind of `page/suggestions.py`, which the page offers while one types; any other text will do."""
    return "STRING", {"default": default, **_given(suggest=suggest), "tooltip": tip}


def lines(default: str = "", *, tip: str) -> Input:
    """A text box of several lines."""
    return "STRING", {"default": default, "multiline": True, "tooltip": tip}


def choice(options: Iterable[str], default: str | None = None, *, tip: str) -> Input:
    """One of `options`; the first one is the default unless another is named."""
    listed = list(options)
    return listed, {"default": listed[0] if default is None else default, "tooltip": tip}


def found(options: list[str], *, tip: str) -> Input:
    """One of the files or folders that were found on this machine, which may be none; no default is the same on another."""
    return options, {"tooltip": tip}


def switch(default: bool = False, *, tip: str) -> Input:
    return "BOOLEAN", {"default": default, "tooltip": tip}


# What comes through a link, where a node says nothing of its own about it.
LINKS = {
    "OTCA_MODEL": "The model that is trained, from Load Flow Model or Make Trainable, or from the update.",
    "OTCA_PROMPTS": "The prompts of this iteration, from Prompt Dataset.",
    "OTCA_TRAJECTORIES": "The samples with all their steps, from SDE Sampler or Preference Pairs.",
    "OTCA_SCORES": "Scores of these samples, from Reward Stack.",
    "OTCA_CREDIT": "The weights of the steps, from a credit node such as TCD Weights.",
    "OTCA_ADVANTAGES": "How much better or worse than its group each sample is, from a fusion node such as MOCA Fuse.",
    "OTCA_REPORT": "The figures of this iteration, from GRPO Step or Matching Step.",
}


def socket(type_: str, *, tip: str = "") -> Input:
    """A link from a node that outputs `type_`."""
    return type_, {"tooltip": tip or LINKS[type_]}


def dtype(*, tip: str) -> Input:
    """The precision that a network computes with."""
    return choice(("auto", *DTYPES), tip=tip)


DEVICE = text("auto", tip="The device that it runs on: auto, cpu, cuda, cuda:1 …", suggest="devices")


def complaint(name: str, check: Callable[..., object], value: object, *more: object) -> str | None:
    """What is wrong with an input; None where nothing is, or where it is linked and known only when the graph runs."""
    if value is None:
        return None
    try:
        check(value, *more)
    except (OSError, ValueError) as error:
        return f"{name}: {error}"
    return None


def miswired(declared: Mapping[str, Mapping[str, Input]], given: Mapping[str, str]) -> str | None:
    """What is wrong with the types of the links that a node is `given`: ComfyUI leaves them to a VALIDATE_INPUTS that asks."""
    inputs = {**declared["required"], **declared["optional"]}
    for name, type_ in given.items():
        wanted = inputs[name][0]
        if isinstance(wanted, str) and type_ not in (wanted, "*"):
            return f"{name} receives {type_} where {wanted} is needed. Fix: connect a node that outputs {wanted}"
    return None
