"""What saved workflows and ComfyUI rely on in every node: inputs, outputs and flags, equal to those in contract.json.

A node that is new, or that gains an input, adds to that file: `python tests/nodes/test_contract.py` writes it. A changed or
missing line there breaks saved workflows.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest

from comfyui_otca.host import paths
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS

FILE = Path(__file__).with_name("contract.json")
FOR_READERS = {"tooltip", "display_name", "placeholder", "advanced", "suggest"}  # not part of the contract
FLAGS = ("OUTPUT_NODE", "INPUT_IS_LIST", "DEPRECATED", "EXPERIMENTAL", "PURE", "RUN_AT_END", "RESCALES_RATIO")
LISTS = ("list_models", "list_weights", "list_adapters", "list_runs")


def contract(node: type) -> dict:
    """One node's contract as JSON values; options that are found on disk are one line that names how they are found."""
    with pytest.MonkeyPatch.context() as patch:
        for name in LISTS:
            patch.setattr(paths, name, lambda *kind, name=name: [f"<on disk: {' '.join((name, *kind))}>"])
        inputs = node.INPUT_TYPES()
    return {
        **{f"{section} {name}": _input(spec) for section, table in inputs.items() for name, spec in table.items()},
        "outputs": dict(zip(node.RETURN_NAMES, node.RETURN_TYPES, strict=True)) if node.RETURN_TYPES else {},
        "lists_out": list(getattr(node, "OUTPUT_IS_LIST", ())),
        "function": node.FUNCTION,
        "category": node.CATEGORY,
        "flags": {flag: getattr(node, flag) for flag in FLAGS if hasattr(node, flag)},
        "methods": {
            # ComfyUI leaves the checks of inputs that VALIDATE_INPUTS names to it.
            name: sorted(inspect.getfullargspec(getattr(node, name)).args[1:])
            for name in ("IS_CHANGED", "VALIDATE_INPUTS", "WANTS")
            if hasattr(node, name)
        },
    }


def _input(spec: str | tuple) -> str | list:
    if isinstance(spec, str):  # a hidden one
        return spec
    type_, options = (*spec, {})[:2]
    assert isinstance(type_, str | list), "ComfyUI knows a choice by its list"
    return [type_, {name: options[name] for name in sorted(options) if name not in FOR_READERS}]


def as_text() -> str:
    """All contracts as JSON, an input a line. As text, since the order of inputs and whether a number is whole count too."""
    written = []
    for name, node in sorted(NODE_CLASS_MAPPINGS.items()):
        rows = [f'  "{key}": {json.dumps(value, ensure_ascii=False)}' for key, value in contract(node).items()]
        written.append(f' "{name}": {{\n' + ",\n".join(rows) + "\n }")
    return "{\n" + ",\n".join(written) + "\n}\n"


def test_nodes_keep_their_contract():
    assert as_text() == FILE.read_text(encoding="utf-8"), (
        "run python tests/nodes/test_contract.py to store a new node's"
    )


if __name__ == "__main__":
    FILE.write_text(as_text(), encoding="utf-8")
