"""Adapters in and out, in the key layout that ComfyUI's LoraLoader and diffusers read."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ...host.files import beside, flush, put_in_place
from ...host.names import plain_name
from .base import OWN

if TYPE_CHECKING:
    from torch import Tensor

    from .base import FlowModel


def files(model: FlowModel, path: Path) -> dict[str, Path]:
    """Where each of the model's networks has its adapter: `path`, or beside it `<stem>_high_noise`, `<stem>_low_noise`."""
    experts = list(model.experts)
    if len(experts) == 1:
        return {experts[0]: path}
    return {expert: path.with_name(f"{path.stem}_{model.EXPERTS[expert]}{path.suffix}") for expert in experts}


def adapter_state(model: FlowModel, expert: str = "transformer", name: str = OWN) -> dict[str, Tensor]:
    """lora_A and lora_B by the names of `model.lora_key`; the file carries no alpha, so B holds the scale alpha/rank."""
    scale = _scale(model, expert, name)
    return {
        model.lora_key(key): (value * scale if "lora_B" in key else value).detach().cpu().contiguous().clone()
        for key, value in _peft_state(model, expert, name).items()
    }


def save(model: FlowModel, path: Path, metadata: Mapping[str, object]) -> list[Path]:
    """Writes the adapter as safetensors, with `metadata` (workflow, settings) in its header; never leaves half a file.

    Returns the files, one for each network that is trained.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    places = files(model, path)
    for expert, place in places.items():
        write_tensors(place, adapter_state(model, expert), {"format": "pt", **header(metadata)})
    return list(places.values())


def header(metadata: Mapping[str, object]) -> dict[str, str]:
    """Metadata as a safetensors file takes it: what is no text becomes JSON."""
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}


def save_named(model: FlowModel, folder: Path, filename: str, metadata: Mapping[str, object]) -> list[Path]:
    """`save` under a plain file name. Raises ValueError for a name that would leave the folder."""
    if not model.is_adapted:
        raise ValueError(
            "this model is trained as a whole, so there is no adapter to save. Fix: training = lora on Load Flow Model, or "
            "otca export RUN for the whole model"
        )
    try:
        plain_name(filename)
    except ValueError as error:
        raise ValueError(f"filename {filename!r} {error}") from error
    with model.averaged():
        return save(model, folder / f"{filename}.safetensors", metadata)


def load(model: FlowModel, path: Path) -> None:
    """Puts a saved adapter into the model: the file of that name, or those of its two networks.

    Raises:
        ValueError: a file is no adapter of this model: names the first module that does not fit.
    """
    for expert, place in files(model, path).items():
        _load_one(model, expert, place)


def put_on(model: FlowModel, path: Path) -> None:
    """As `load`, in place of the adapter that the model has: the new one is of the file's rank and targets.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a file is no adapter of this model.
    """
    rank, targets = _rank_and_targets(model, path)
    for network in model.experts.values():
        network.unload_lora()
    model.add_adapter(rank, alpha=rank, targets=targets, seed=0)
    load(model, path)


def add(model: FlowModel, path: Path, name: str) -> None:
    """As `put_on`, beside the adapter that the model has: under that name, and active from now on."""
    rank, targets = _rank_and_targets(model, path)
    with warnings.catch_warnings():  # peft warns of several adapters, which is what is wanted here
        warnings.filterwarnings("ignore", "Already found a `peft_config`")
        model.add_adapter(rank, alpha=rank, targets=targets, seed=0, name=name)
    for expert, place in files(model, path).items():
        _load_one(model, expert, place, name)


def _rank_and_targets(model: FlowModel, path: Path) -> tuple[int, str]:
    targets, ranks = set(), set()
    for expert, place in files(model, path).items():
        if not place.is_file():
            raise FileNotFoundError(
                f"{place}: no such adapter. Fix: give a run's folder or a LoRA's .safetensors file, where there are two without "
                "_high_noise and _low_noise"
            )
        tensors = read_tensors(place)
        for name, _ in model.experts[expert].named_modules():
            if (key := model.lora_key(f"{name}.lora_A.weight")) in tensors:
                targets.add(name)
                ranks.add(len(tensors[key]))
    if len(ranks) != 1:
        told = f"has ranks {', '.join(map(str, sorted(ranks)))}" if ranks else "fits no module of it"
        raise ValueError(
            f"{path} is no adapter of this model, as far as can be read here: it {told}. Fix: give one of one rank "
            f"for {type(model).__name__}, in diffusers' or ComfyUI's layout"
        )
    [rank] = ranks
    return rank, ",".join(sorted(targets))


def _load_one(model: FlowModel, expert: str, path: Path, name: str = OWN) -> None:
    from peft.utils import set_peft_model_state_dict

    scale = _scale(model, expert, name)
    tensors, wanted = read_tensors(path), adapter_state(model, expert, name)
    for key in sorted(set(wanted) | set(tensors)):
        shapes = [tuple(state[key].shape) if key in state else "nothing" for state in (tensors, wanted)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"{path} is no adapter of this model: {key} is {shapes[0]} in the file and {shapes[1]} here. Fix: use the "
                "base model, rank and targets that it was trained with"
            )
    saved = {key: tensors[model.lora_key(key)] for key in _peft_state(model, expert, name)}
    state = {key: value / scale if "lora_B" in key else value for key, value in saved.items()}
    set_peft_model_state_dict(model.experts[expert], state, adapter_name=name)


def _scale(model: FlowModel, expert: str, name: str) -> float:
    config = model.experts[expert].peft_config[name]
    return config.lora_alpha / config.r


def _peft_state(model: FlowModel, expert: str, name: str) -> dict[str, Tensor]:
    from peft.utils import get_peft_model_state_dict

    return get_peft_model_state_dict(model.experts[expert], adapter_name=name)


def workflow_metadata(prompt: Mapping, canvas: Mapping | None) -> dict[str, object]:
    """The graph that made an adapter, under the keys by which ComfyUI finds it when the file is dropped on the canvas."""
    return {"prompt": prompt, **({"workflow": canvas} if canvas else {})}


def ranks(path: Path) -> set[int]:
    """Of the adapter's modules, by the file's header. Raises ValueError, naming it, where it is truncated or none."""
    try:
        with safe_open(path, framework="np") as content:
            return {content.get_slice(key).get_shape()[0] for key in content.keys() if key.endswith("lora_A.weight")}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is truncated or no safetensors file ({error}). Fix: copy it again") from error


def belongs_to(path: Path, identity: Mapping[str, str]) -> bool:
    """Whether a file's header has all of these entries. A file that is no adapter belongs to nobody who asks."""
    try:
        found = read_metadata(path)
    except (SafetensorError, OSError):
        return False
    return all(found.get(name) == value for name, value in identity.items())


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file. Raises ValueError, naming it, where it is truncated or none."""
    try:
        with safe_open(path, framework="pt") as content:
            return {key: content.get_tensor(key).clone() for key in content.keys()}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is truncated or no safetensors file ({error})") from error


def read_metadata(path: Path) -> dict[str, str]:
    with safe_open(path, framework="pt") as content:
        return content.metadata() or {}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Writes aside, flushes to disk, then renames: a reader finds the old file or the new one, never part of one.

    Raises:
        OSError: names the file.
    """
    aside = beside(path)
    try:
        save_file({key: value.contiguous() for key, value in tensors.items()}, aside, metadata=dict(metadata or {}))
        flush(aside)
        put_in_place(aside, path)
    except SafetensorError as error:
        raise OSError(f"{path}: {error}") from error
    finally:
        aside.unlink(missing_ok=True)
    flush(path.parent)
