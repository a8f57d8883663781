"""Names of a network's layers by the headers of its files, so that they can be offered before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...host.paths import ASSETS
from ..policy.files import NETWORKS, opened
from .configured import modules

PREFIXES = (
    "model.diffusion_model.",
    "diffusion_model.",
)  # of the network in a file that holds more, and in ComfyUI's own LoRAs


def of_folder(folder: Path) -> list[str]:
    """Layers with a matrix of a diffusers folder's networks."""
    return sorted({layer for network in NETWORKS for layer in modules(folder / network)[0]})


def of_file(path: Path) -> list[str]:
    """Linear layers of the network in a single file, by the names that the file has."""
    with opened(path, "np") as content:
        keys = [key for key in content.keys() if key.endswith(".weight")]
        prefix = next((start for start in PREFIXES if any(key.startswith(start) for key in keys)), "")
        own = [key for key in keys if key.startswith(prefix)]
        linear = [key for key in own if len(content.get_slice(key).get_shape()) == 2]
    return sorted(key.removeprefix(prefix).removesuffix(".weight") for key in linear)


def of_embedded(name: str) -> list[str]:
    """Linear layers of an embedded model, as ComfyUI calls them."""
    from ..native import embedded

    weights = embedded.comfy_weights(ASSETS / name)
    return sorted(
        key.removesuffix(".weight") for key, value in weights.items() if key.endswith(".weight") and value.ndim == 2
    )


def ends(names: Iterable[str]) -> list[str]:
    """What stands behind a block's number: `attn.to_q` of `blocks.0.attn.to_q`, once for all blocks. Layers that turn the noise
    level into scales and shifts are left out."""
    from ..native.targets import modulates

    inside: dict[str, None] = {}
    for name in names:
        parts = name.split(".")
        number = next((at for at, part in enumerate(parts) if part.isdecimal()), None)
        layer = ".".join(parts[number + 1 :]) if number is not None else ""
        if layer and not modulates(layer):
            inside[layer] = None
    return sorted(inside)
