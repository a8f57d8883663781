"""Which layers of a network get the adapter, found by their shapes and names: no table of families."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from .frozen import is_linear

# An adapter on these layers changes every token alike.
_MODULATION = re.compile(
    r"(^|[._])(ada\w*|mod|modulation|\w+_mod|\w*norm\w*|t_\w+|time\w*|\w*emb\w*|gate\w*|router)([._]|$)", re.IGNORECASE
)


def blocks(network: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The repeated blocks of a network, by their names: the elements of its lists that hold linear layers."""
    found = {}
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.ModuleList) and not any(name.startswith(f"{block}.") for block in found):
            for number, block in enumerate(module):
                if not isinstance(block, torch.nn.ModuleList) and linears(block):
                    found[f"{name}.{number}"] = block
    return found


def linears(network: torch.nn.Module) -> list[str]:
    """Names of all linear layers."""
    return [name for name, layer in network.named_modules() if is_linear(layer)]


def usual(network: torch.nn.Module) -> list[str]:
    """Names of the layers that an adapter usually trains: those of attention and feed-forward in all blocks."""
    return [f"{name}.{layer}" for name, block in blocks(network).items() for layer in _usual_in(block)]


def _usual_in(block: torch.nn.Module) -> list[str]:
    return [name for name in linears(block) if name and not modulates(name)]


def modulates(name: str) -> bool:
    """Whether a layer of that name turns the noise level or the guidance into scales and shifts."""
    return _MODULATION.search(name) is not None


def chosen(network: torch.nn.Module, ends: Sequence[str]) -> list[str]:
    """Names of the linear layers that end like one of `ends`.

    Raises:
        ValueError: an end that fits no layer; names some that there are.
    """
    names = linears(network)
    for end in ends:
        if not any(_ends_with(name, end) for name in names):
            inside = {layer for block in blocks(network).values() for layer in _usual_in(block)}
            known = ", ".join(sorted(inside or names))
            raise ValueError(f"lora_targets {end!r} fits no linear layer. Fix: leave it empty, or use some of {known}")
    return [name for name in names if any(_ends_with(name, end) for end in ends)]


def _ends_with(name: str, end: str) -> bool:
    return name == end or name.endswith(f".{end}")
