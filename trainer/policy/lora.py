"""Adapters in and out, in the key layout that ComfyUI's LoraLoader and diffusers read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...host import distributed
from ...host.text import plain_name
from ..workflow.graph import plain
from . import layouts
from .adapters import TRAINED, Adapter
from .files import files_of, header, opened, write_tensors

if TYPE_CHECKING:
    from ..families.base import FlowModel

logger = logging.getLogger(__name__)

BASE = "otca_base"  # in a file's header: the identity of the model that it was trained on


def files(model: FlowModel, path: Path) -> dict[str, Path]:
    """The adapter's file of each trained network: `path`, or beside it `<stem>_high_noise`, `<stem>_low_noise`."""
    return files_of(list(model.experts), path)


def adapter_state(model: FlowModel, expert: str, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """lora_A and lora_B by the names of `model.lora_key`. B holds the scale alpha/rank: no loader has to know an alpha."""
    return {
        model.lora_key(f"{layer}.lora_{side}.weight"): (half.detach() * scale).to("cpu", dtype)
        for layer, pair in model.adapters[expert].pairs().items()
        for side, half, scale in (("A", pair.a, 1.0), ("B", pair.b, pair.scale))
    }


def save(model: FlowModel, path: Path, metadata: Mapping[str, object], dtype: torch.dtype | None = None) -> list[Path]:
    """Writes the adapter as safetensors, with `metadata` (workflow, settings) in its header; never leaves half a file.

    `dtype`: of the tensors; None: what the network computes in.

    Returns the files, one for each network that is trained.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    paths = files(model, path)
    for expert, file in paths.items():
        about = {**described(model, file), **header(metadata)}
        write_tensors(file, adapter_state(model, expert, dtype or model.dtype), about)
    return list(paths.values())


def described(model: FlowModel, file: Path) -> dict[str, str]:
    """The header's part about the model, by the field's names: those of stability.ai's ModelSpec, and kohya's."""
    assert model.policy.adapter is not None, "it is saved"
    architecture, version = model.layers(next(iter(model.experts))).family
    rank = str(model.policy.adapter.rank)
    return {
        "format": "pt",
        BASE: model.identity,
        "modelspec.sai_model_spec": "1.0.1",
        "modelspec.architecture": f"{architecture}/lora",
        "modelspec.implementation": "diffusers" if model.lora_key("").startswith("transformer") else "comfyui",
        "modelspec.title": file.stem,
        "ss_base_model_version": version,
        "ss_network_module": "networks.lora",
        "ss_network_dim": rank,
        "ss_network_alpha": rank,  # B holds what it was
    }


def save_named(
    model: FlowModel, folder: Path, filename: str, metadata: Mapping[str, object], dtype: torch.dtype | None = None
) -> list[Path]:
    """`save` under a plain file name. Raises ValueError for a name that would leave the folder, OSError on a full disk."""
    if not model.policy.is_adapted:
        raise ValueError(
            "this model is trained as a whole, so it has no adapter to save. Fix: training = lora on Load Flow Model, or "
            "otca export RUN for the whole model"
        )
    try:
        plain_name(filename)
    except ValueError as error:
        raise ValueError(f"filename {filename!r} {error}") from error
    try:
        with model.policy.averaged():
            return save(model, folder / f"{filename}.safetensors", metadata, dtype)
    except OSError as error:
        kept = "a file of that name is as it was before"
        raise OSError(
            f"filename {filename!r} was not written, and {kept} ({error}). Fix: free the disk of {folder}"
        ) from error


def load(model: FlowModel, path: Path) -> None:
    """Puts an adapter's file into the model's own adapter: the file of that name, or those of its two networks.

    Where the file has a smaller rank or fewer layers, the rest of the adapter is as it was made, with B = 0.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a file is not an adapter of this model, or has more than the model's adapter.
    """
    adapter, held = model.policy.adapter, _parts(model, path)
    assert adapter is not None, "asked only where there is one"
    for expert, (file, layers) in held.items():
        trained = model.adapters[expert].pairs()
        layouts.check_fits(file, layers, adapter.rank, trained)
        if len(layers) < len(trained) and distributed.is_main():
            logger.warning("%s has %d of %d layers: the others begin at 0", file, len(layers), len(trained))
    _fill(model, held, TRAINED)


def put_on(model: FlowModel, path: Path, name: str = TRAINED) -> None:
    """Loads a file, where the model's adapter is replaced by one of the file's rank and layers.

    Under another name it stands beside the model's own, and is active from now on.
    """
    held = _parts(model, path)
    ranks = {layer: sum(part.rank for part in parts) for _, of in held.values() for layer, parts in of.items()}
    adapter = Adapter(max(ranks.values()), max(ranks.values()), ",".join(sorted(ranks)))  # B will hold the scale
    if name == TRAINED:
        model.policy.replace_adapter(adapter)
    else:
        model.policy.add_adapter(adapter, name)
    _fill(model, held, name)


def _parts(model: FlowModel, path: Path) -> dict[str, tuple[Path, dict[str, list[layouts.Part]]]]:
    """For each network its file, and what that has for each layer. Raises as `layouts.parts`."""
    return {expert: (file, layouts.parts(file, model.layers(expert))) for expert, file in files(model, path).items()}


@torch.no_grad()
def _fill(model: FlowModel, held: Mapping[str, tuple[Path, dict[str, list[layouts.Part]]]], name: str) -> None:
    """Has the adapter of that name change the weights as the files do."""
    for expert, (file, layers) in held.items():
        with opened(file) as content:
            for layer, pair in model.adapters[expert].pairs(name).items():
                first = 0
                pair.b.zero_()
                for part in layers.get(layer, ()):
                    columns, rows = slice(first, first + part.rank), part.rows
                    b = content.get_tensor(part.b)[rows.start : rows.start + rows.count]
                    pair.a[columns] = content.get_tensor(part.a).to(pair.a)
                    pair.b[rows.first : rows.first + rows.count, columns] = b.to(pair.b) * (part.scale / pair.scale)
                    first += part.rank
                if not all(half.isfinite().all() for half in (pair.a, pair.b)):
                    raise ValueError(f"{file} has numbers at {layer} that are not finite. Fix: give another file")


def workflow_metadata(prompt: Mapping, canvas: Mapping | None) -> dict[str, object]:
    """The graph that made an adapter, under the keys by which ComfyUI finds it when the file is dropped on the canvas."""
    return {"prompt": plain(prompt), **({"workflow": canvas} if canvas else {})}
