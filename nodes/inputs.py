"""One line an input of a node: each function here returns what ComfyUI's INPUT_TYPES wants, (type, options).

As in `number(SamplerSettings.eta, 0.001, 4, step=0.01, label="amount of noise").tip("How much noise …")`. What a user chooses
from is a tuple of the trainer's, and a default is that of a settings class. Every function takes, besides what its type needs:

    label: what the canvas calls it, if its own name is a term or a symbol; else it is its name with spaces
    hint: what an empty text box shows; a box of several lines has no label beside it, so its hint begins with the name
    advanced: the canvas keeps it behind a button; its value is saved, exported and used like any other

A wrong value is refused by what the input is `checked` by. At the end stands what a VALIDATE_INPUTS of a node's own says.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from operator import attrgetter
from types import MethodType
from typing import Any, NamedTuple

from ..host import extras
from ..host.access.permissions import Want
from ..host.access.wants import Naming
from ..host.errors import Expected
from ..trainer.types import DTYPES, REPLACED

Options = dict[str, Any]
Type = str | list[str] | Callable[[], list[str]]  # a choice has the list of its values, or what lists them

LARGEST_SEED = 2**63 - 1


class Check(NamedTuple):
    """The check of an input's value, see `Input.checked`."""

    function: Callable[..., object] | str
    more: tuple[object, ...]
    beside: tuple[str, ...]
    or_empty: bool

    def named_function(self) -> Callable[..., object]:
        """The function, imported if it was named."""
        if not isinstance(self.function, str):
            return self.function
        module, _, name = self.function.partition(":")
        return attrgetter(name)(import_module(f"..{module}", __package__))

    def __call__(self, *values: object) -> object:
        return self.named_function()(values[0], *self.more, *values[1:])


class Input(NamedTuple):
    """An input, as ComfyUI reads it once it is named."""

    type: Type
    options: Options
    names: Naming | None = None  # what its value names outside of the graph
    check: Check | None = None

    def tip(self, text: str) -> Input:
        """The same with its tooltip, which says the paper's term."""
        return self._replace(options={**self.options, "tooltip": text})

    def checked(
        self, check: Callable[..., object] | str, *more: object, beside: tuple[str, ...] = (), or_empty: bool = False
    ) -> Input:
        """The same with what raises an error for a wrong value: a function, or where one is, as trainer.prompts:lines.

        `more`: what else it takes, and after that the values of the inputs `beside`; a linked one is known only to the run.
        `or_empty`: an empty text is right.
        """
        return self._replace(check=Check(check, more, beside, or_empty))

    def advanced(self) -> Input:
        """The same behind the button, for a node where it matters less than on others."""
        return self._replace(options={**self.options, "advanced": True})

    def replacing(self, nodes: Mapping[str, Any]) -> Input:
        """The same, with the nodes of before in whose place its node comes, for the page (`web/lib/values.js`)."""
        return self._replace(options={**self.options, "otca_before": nodes})

    def named(self, name: str) -> tuple[list[str] | str, Options]:
        """The same with its label, or else its name, as the shown name; the tooltip tells a name that the label hides."""
        type_ = self.type() if callable(self.type) else self.type
        label: str = self.options.get("display_name", "")
        note = f" In files and messages: {name}." if label else ""
        shown = label or name.replace("_", " ")
        return type_, {**self.options, "display_name": shown, "tooltip": self.options["tooltip"] + note}


class _Validation:
    """VALIDATE_INPUTS of a node without its own: what its inputs are checked by, the first problem of them."""

    def __get__(self, _: object, cls: type[Node]) -> MethodType:
        return _validation(cls)


@functools.cache
def _validation(cls: type[Node]) -> MethodType:
    declared = {**cls.inputs()[0], **cls.inputs()[1]}
    checks = {name: entry.check for name, entry in declared.items() if entry.check}
    names = dict.fromkeys(name for own, check in checks.items() for name in (own, *check.beside))
    if not (names or cls.NEEDS):
        raise AttributeError(f"{cls.__name__} checks no input")
    # ComfyUI leaves ranges and choices of those inputs to it that its signature names.
    signature = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None) for name in ("cls", *names)]
    )

    def validate(cls: type[Node], *places: Any, **named: Any) -> str | bool:
        values = {**dict(zip(names, places, strict=False)), **named}
        if lack := cls.lacks(**values):
            return "{}: {}".format(*lack)
        for name, check in checks.items():
            parts = [values.get(other) for other in (name, *check.beside)]
            is_known = None not in parts and not (check.or_empty and parts[0] == "")
            options, value = declared[name].options, parts[0]
            if is_known and not options.get("min", value) <= value <= options.get("max", value):
                return f"{name}: {value} is not from {options['min']} to {options['max']}. Fix: a number of that range"
            if problem := is_known and complaint(name, check, *parts):
                return problem
        return True

    validate.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    return MethodType(validate, cls)


class Node:
    """The declaration of a node's inputs, of which INPUT_TYPES makes the form that ComfyUI reads."""

    TITLE: str
    REQUIRED: Mapping[str, Input] = {}
    OPTIONAL: Mapping[str, Input] = {}
    HIDDEN: Mapping[str, str] = {}
    VALIDATE_INPUTS: Any = _Validation()
    NEEDS: tuple[str, ...] = ()  # what `needs` says whatever the inputs are
    MAY_NEED: tuple[str, ...] = ()  # the same, for what only the run shows: it says so when it meets it

    @classmethod
    def inputs(cls) -> tuple[Mapping[str, Input], Mapping[str, Input]]:
        """(required, optional)."""
        return cls.REQUIRED, cls.OPTIONAL

    @classmethod
    def WANTS(cls, **inputs: Any) -> list[Want]:
        """All that it names outside of the graph with these inputs: files, hosts, code, secrets. None: it is linked."""
        declared = {**cls.inputs()[0], **cls.inputs()[1]}
        named = [(name, declared[name].names) for name in inputs if name in declared]
        return [want for name, names in named if names for want in names.wants(inputs[name], name)]

    @classmethod
    def needs(cls, **inputs: Any) -> dict[str, tuple[str, ...]]:
        """{input: an extra of host/extras.py, and those packages of it that it needs with these inputs; of none: all}."""
        return {next(iter(cls.inputs()[0])): cls.NEEDS} if cls.NEEDS else {}

    @classmethod
    def lacks(cls, **inputs: Any) -> tuple[str, extras.Lack] | None:
        """(input, what is not here of what it needs), for its VALIDATE_INPUTS and for the page. An input None: it is linked."""
        lacks = ((name, extras.wrong(cls.TITLE, *needs)) for name, needs in cls.needs(**inputs).items())
        return next(((name, lack) for name, lack in lacks if lack), None)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, dict[str, Any]]:
        required, optional = ({name: entry.named(name) for name, entry in table.items()} for table in cls.inputs())
        sections = {"required": required, "optional": optional, "hidden": dict(cls.HIDDEN)}
        return {section: table for section, table in sections.items() if table or section == "required"}


def _input(
    type_: Type,
    options: Options,
    *,
    label: str | None = None,
    hint: str | None = None,
    advanced: bool = False,
    names: Naming | None = None,
) -> Input:
    shown = {"display_name": label, "placeholder": hint, "advanced": advanced or None}
    return Input(type_, {name: value for name, value in {**options, **shown}.items() if value is not None}, names)


def integer(
    default: int, low: int, high: int, *, step: int | None = None, advances: bool | None = None, **shown: Any
) -> Input:
    """A whole number. `advances`: whether the canvas changes it after each prompt (control_after_generate); None: it cannot."""
    limits = {"default": default, "min": low, "max": high, "step": step, "control_after_generate": advances}
    return _input("INT", limits, **shown)


def number(default: float, low: float, high: float, *, step: float, fine: bool = False, **shown: Any) -> Input:
    """A decimal number; a `fine` one may be finer than `step`, to which the canvas rounds any other."""
    limits = {"default": float(default), "min": float(low), "max": float(high), "step": float(step)}
    return _input("FLOAT", {**limits, "round": False if fine else None}, **shown)


def seed(*, advances: bool = False, **shown: Any) -> Input:
    """A seed. Only one that is another in every iteration advances: ComfyUI would change any other after each prompt too."""
    return integer(0, 0, LARGEST_SEED, advances=advances, **shown)


def replaced(node: str) -> dict[str, Any]:
    """The nodes of before in whose place a node comes, for `Input.replacing`."""
    return {old: {"values": values, "inputs": names} for old, (new, values, names) in REPLACED.items() if new == node}


def counter(**shown: Any) -> Input:
    """A whole number that goes up by one with every iteration."""
    return integer(0, 0, 2**31, advances=True, **shown)


def text(default: str = "", *, suggest: str | None = None, **shown: Any) -> Input:
    """A text box. `suggest`: a kind of `page/suggestions.py`, which the page offers while one types; any other text will do."""
    return _input("STRING", {"default": default, "suggest": suggest}, **shown)


def lines(default: str = "", **shown: Any) -> Input:
    """A text box of several lines."""
    return _input("STRING", {"default": default, "multiline": True}, **shown)


def choice(options: Iterable[str], default: str | None = None, **shown: Any) -> Input:
    """One of `options`; the first one is the default unless another is named."""
    listed = list(options)
    return _input(listed, {"default": listed[0] if default is None else default}, **shown)


def found(options: Callable[[], list[str]], default: str | None = None, **shown: Any) -> Input:
    """One of what `options` finds on this machine whenever it is asked, possibly nothing."""
    return _input(options, {"default": default}, **shown)


def switch(default: bool = False, **shown: Any) -> Input:
    return _input("BOOLEAN", {"default": default}, **shown)


# What comes through a link, if a node has no tooltip of its own for it.
LINKS = {
    "OTCA_MODEL": "The model that is trained, from Load Flow Model or Make Trainable, or from the update.",
    "OTCA_PROMPTS": "The prompts of this iteration, from Prompt Dataset.",
    "OTCA_TRAJECTORIES": "The samples with all their steps, from SDE Sampler or My Pictures.",
    "OTCA_SCORES": "Scores of these samples, from Reward Stack.",
    "OTCA_CREDIT": "The weights of the steps, from a credit node such as TCD Weights.",
    "OTCA_ADVANTAGES": "How much better or worse than its group each sample is, from a node such as MOCA Fuse.",
    "OTCA_REPORT": "The figures of this iteration, from GRPO Step or Matching Step.",
}


def socket(type_: str) -> Input:
    """A link from a node that outputs `type_`."""
    return Input(type_, {"tooltip": LINKS.get(type_, "")})


def dtype(**shown: Any) -> Input:
    """The precision that a network computes with."""
    return choice(("auto", *DTYPES), label="precision", **shown)


DEVICE = text("auto", suggest="devices", advanced=True).tip("The device that it runs on: auto, cpu, cuda, cuda:1 …")


def complaint(name: str, check: Callable[..., object], value: object, *more: object) -> str | None:
    """The problem of an input; None if it has none, or if it is linked and its value known only when the graph runs."""
    if value is None:
        return None
    try:
        check(value, *more)
    except (Expected, OSError, ValueError) as error:
        return f"{name}: {error}"
    return None


def miswired(declared: Mapping[str, Mapping[str, Input]], given: Mapping[str, str]) -> str | None:
    """The problem of the types of the links that a node is `given`: ComfyUI leaves them to a VALIDATE_INPUTS that asks."""
    inputs = {**declared["required"], **declared["optional"]}
    for name, type_ in given.items():
        wanted = inputs[name][0]
        if isinstance(wanted, str) and type_ not in (wanted, "*"):
            return f"{name} receives {type_} where {wanted} is needed. Fix: connect a node that outputs {wanted}"
    return None
