"""Which layers of a network get the adapter, found by their shapes and names: no table of families.

The page offers names before anything is loaded: those in the headers of a model's files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from ...host.paths import ASSETS
from ..families.configured import modules
from ..policy.files import NETWORKS, opened
from .frozen import is_linear

# Where a network stands in a file that holds more, and in ComfyUI's own LoRAs.
_PREFIXES = ("model.diffusion_model.", "diffusion_model.")
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


# -- by the headers of files ---------------------------------------------------------------------------------------------------


def of_folder(folder: Path) -> list[str]:
    """Layers with a matrix of a diffusers folder's networks."""
    return sorted({layer for network in NETWORKS for layer in modules(folder / network)[0]})


def of_file(path: Path) -> list[str]:
    """Linear layers of the network in a single file, by the names that the file has."""
    with opened(path, "np") as content:
        keys = [key for key in content.keys() if key.endswith(".weight")]
        prefix = next((start for start in _PREFIXES if any(key.startswith(start) for key in keys)), "")
        own = [key for key in keys if key.startswith(prefix)]
        linear = [key for key in own if len(content.get_slice(key).get_shape()) == 2]
    return sorted(key.removeprefix(prefix).removesuffix(".weight") for key in linear)


def of_embedded(name: str) -> list[str]:
    """Linear layers of an embedded model, as ComfyUI calls them."""
    from . import embedded

    weights = embedded.comfy_weights(ASSETS / name)
    return sorted(
        key.removesuffix(".weight") for key, value in weights.items() if key.endswith(".weight") and value.ndim == 2
    )


def ends(names: Iterable[str]) -> list[str]:
    """What stands behind a block's number: `attn.to_q` of `blocks.0.attn.to_q`, once for all blocks. Layers that turn the noise
    level into scales and shifts are left out."""
    inside: dict[str, None] = {}
    for name in names:
        parts = name.split(".")
        number = next((at for at, part in enumerate(parts) if part.isdecimal()), None)
        layer = ".".join(parts[number + 1 :]) if number is not None else ""
        if layer and not modulates(layer):
            inside[layer] = None
    return sorted(inside)
