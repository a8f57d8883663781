"""Adapters in and out, in the key layout that ComfyUI's LoraLoader and diffusers read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from ...host.text import plain_name
from ..workflow.graph import plain
from .adapters import TRAINED, Adapter
from .files import header, opened, read_tensors, write_tensors

if TYPE_CHECKING:
    from ..families.base import FlowModel


def files(model: FlowModel, path: Path) -> dict[str, Path]:
    """The adapter's file of each trained network: `path`, or beside it `<stem>_high_noise`, `<stem>_low_noise`."""
    experts = list(model.experts)
    if len(experts) == 1:
        return {experts[0]: path}
    return {expert: path.with_name(f"{path.stem}_{model.EXPERTS[expert]}{path.suffix}") for expert in experts}


def adapter_state(model: FlowModel, expert: str, name: str = TRAINED) -> dict[str, Tensor]:
    """lora_A and lora_B by the names of `model.lora_key`; the file carries no alpha, so B holds the scale alpha/rank."""
    adapters = model.adapters[expert]
    scale = adapters.scale(name)
    return {
        model.lora_key(key): (value * scale if "lora_B" in key else value).detach().cpu().contiguous().clone()
        for key, value in adapters.state(name).items()
    }


def save(model: FlowModel, path: Path, metadata: Mapping[str, object]) -> list[Path]:
    """Writes the adapter as safetensors, with `metadata` (workflow, settings) in its header; never leaves half a file.

    Returns the files, one for each network that is trained.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    paths = files(model, path)
    for expert, file in paths.items():
        write_tensors(file, adapter_state(model, expert), {"format": "pt", **header(metadata)})
    return list(paths.values())


def save_named(model: FlowModel, folder: Path, filename: str, metadata: Mapping[str, object]) -> list[Path]:
    """`save` under a plain file name. Raises ValueError for a name that would leave the folder."""
    if not model.policy.is_adapted:
        raise ValueError(
            "this model is trained as a whole, so it has no adapter to save. Fix: training = lora on Load Flow Model, or "
            "otca export RUN for the whole model"
        )
    try:
        plain_name(filename)
    except ValueError as error:
        raise ValueError(f"filename {filename!r} {error}") from error
    with model.policy.averaged():
        return save(model, folder / f"{filename}.safetensors", metadata)


def load(model: FlowModel, path: Path) -> None:
    """Puts a saved adapter into the model: the file of that name, or those of its two networks.

    Raises:
        ValueError: a file is not an adapter of this model: names the first module that does not fit.
    """
    for expert, file in files(model, path).items():
        _load_one(model, expert, file)


def put_on(model: FlowModel, path: Path) -> None:
    """As `load`, but the model's adapter is replaced by one of the file's rank and targets.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a file is not an adapter of this model.
    """
    model.policy.replace_adapter(_read_adapter(model, path))
    load(model, path)


def add(model: FlowModel, path: Path, name: str) -> None:
    """As `put_on`, but beside the adapter that the model has. The new one gets that name, and is active from now on."""
    model.policy.add_adapter(_read_adapter(model, path), name)
    for expert, file in files(model, path).items():
        _load_one(model, expert, file, name)


def _read_adapter(model: FlowModel, path: Path) -> Adapter:
    """The rank and targets of an adapter in a file, whose tensors hold its scale."""
    targets, ranks = set(), set()
    for expert, file in files(model, path).items():
        if not file.is_file():
            raise FileNotFoundError(
                f"{file}: no such adapter. Fix: give a run's folder or a LoRA's .safetensors file, where there are two without "
                "_high_noise and _low_noise"
            )
        tensors = read_tensors(file)
        for name in model.adapters[expert].modules():
            if (key := model.lora_key(f"{name}.lora_A.weight")) in tensors:
                targets.add(name)
                ranks.add(len(tensors[key]))
    if len(ranks) != 1:
        fault = f"has ranks {', '.join(map(str, sorted(ranks)))}" if ranks else "fits no module of it"
        raise ValueError(
            f"{path} is not an adapter of this model, as far as can be read here: it {fault}. Fix: give one of one rank "
            f"for {type(model).__name__}, in diffusers' or ComfyUI's layout"
        )
    [rank] = ranks
    return Adapter(rank, alpha=rank, targets=",".join(sorted(targets)))


def _load_one(model: FlowModel, expert: str, path: Path, name: str = TRAINED) -> None:
    adapters = model.adapters[expert]
    scale = adapters.scale(name)
    tensors, wanted = read_tensors(path), adapter_state(model, expert, name)
    for key in sorted(set(wanted) | set(tensors)):
        shapes = [tuple(state[key].shape) if key in state else "nothing" for state in (tensors, wanted)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"{path} is not an adapter of this model: {key} is {shapes[0]} in the file and {shapes[1]} here. Fix: use the "
                "base model, rank and targets that it was trained with"
            )
    saved = {key: tensors[model.lora_key(key)] for key in adapters.state(name)}
    state = {key: value / scale if "lora_B" in key else value for key, value in saved.items()}
    adapters.load(state, name)


def workflow_metadata(prompt: Mapping, canvas: Mapping | None) -> dict[str, object]:
    """The graph that made an adapter, under the keys by which ComfyUI finds it when the file is dropped on the canvas."""
    return {"prompt": plain(prompt), **({"workflow": canvas} if canvas else {})}


def ranks(path: Path) -> set[int]:
    """Ranks of the adapter's modules, by the file's header. Raises ValueError as `opened`."""
    with opened(path, "np") as content:
        return {content.get_slice(key).get_shape()[0] for key in content.keys() if key.endswith("lora_A.weight")}
