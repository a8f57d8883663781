"""Trained files, in and out: a run's adapter, or all weights of a fully fine-tuned model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...host import distributed
from . import lora
from .files import ADAPTER, WEIGHTS, header, read_tensors, write_tensors

if TYPE_CHECKING:
    from ..families.base import FlowModel


def save(model: FlowModel, folder: Path, metadata: Mapping[str, object]) -> None:
    """Writes the adapter as `lora.safetensors`, or each trained network as a diffusers folder of its name."""
    if model.policy.is_adapted:
        if distributed.is_main():
            lora.save(model, folder / ADAPTER, metadata)
        return
    for name, network in model.experts.items():
        target = folder / name
        trained = dict(zip(model.policy.trainable_named().values(), model.policy.original_dtypes(), strict=True))
        dtypes = {key: trained[parameter] for key, parameter in network.named_parameters() if parameter in trained}
        state = model.policy.whole(network.state_dict())
        tensors = {key: tensor.to(dtypes.get(key, tensor.dtype)) for key, tensor in state.items()}
        if not distributed.is_main():
            continue
        target.mkdir(parents=True, exist_ok=True)
        network.save_config(target)
        write_tensors(target / WEIGHTS, tensors, {"format": "pt", **header(metadata)})


def load(model: FlowModel, folder: Path) -> None:
    """Puts what `save` wrote into a model; of its weights in several processes all have to call it.

    Raises:
        FileNotFoundError: the run has not saved anything yet.
        ValueError: files of another model.
    """
    if missing := [file.name for file in files(model, folder) if not file.is_file()]:
        raise FileNotFoundError(f"{folder} has no {missing[0]} yet. Fix: train until the first checkpoint")
    if model.policy.is_adapted:
        lora.load(model, folder / ADAPTER)
        return
    for name, network in model.experts.items():
        try:
            tensors = read_tensors(folder / name / WEIGHTS)
            if model.policy.trains_shards:
                named = network.state_dict()
                tensors = {key: distributed.like(tensor, named[key]) for key, tensor in tensors.items()}
            network.load_state_dict(tensors)
        except RuntimeError as error:
            raise ValueError(f"{folder / name} holds another model's weights ({error})") from error


def files(model: FlowModel, folder: Path) -> list[Path]:
    """The files in a run's folder that hold what was trained."""
    if model.policy.is_adapted:
        return list(lora.files(model, folder / ADAPTER).values())
    return [folder / name / WEIGHTS for name in model.experts]
