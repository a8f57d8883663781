"""Reading what the authors of reward models publish, with errors that name the file, its size and its source."""

from __future__ import annotations

import importlib.util
import pickle
import zipfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from .. import host
from .base import RewardError

if TYPE_CHECKING:
    from torch import Tensor

_READING_ERRORS = (OSError, EOFError, RuntimeError, ValueError, LookupError, pickle.UnpicklingError, SafetensorError)


@dataclass(frozen=True)
class Published:
    """A checkpoint in one file, as its authors publish it.

    Attributes:
        title: of the model.
        name, size: of the file.
        source: the hub id or address that publishes it.
    """

    title: str
    name: str
    size: str
    source: str

    def find(self, name: str = "") -> Path:
        return host.find_reward_file(name or self.name, self.size, self.source)

    def read(self, place: Path) -> dict[str, Any]:
        """What the file holds, without unpickling anything but tensors; large files stay on disk until they are used.

        Raises:
            RewardError: it cannot be read, as where a download was cut off.
        """
        try:
            if place.suffix == ".safetensors":
                return load_file(place)
            content = torch.load(place, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(place))
        except _READING_ERRORS as error:
            raise self.misfit(place, f"cannot be read ({_reason(error)})") from error
        if not isinstance(content, Mapping):
            raise self.misfit(place, f"holds a {type(content).__name__} and no named tensors")
        return content

    def check(self, place: Path, state: Mapping[str, Tensor], wanted: Collection[str]) -> None:
        """Raises RewardError where the file lacks one of those keys."""
        missing = sorted(set(wanted) - set(state))
        if missing:
            raise self.misfit(place, f"has no {missing[0]!r} ({len(missing)} of {len(wanted)} tensors are missing)")

    def misfit(self, place: Path, what: str) -> RewardError:
        return RewardError(
            f"{place} ({place.stat().st_size:,} bytes) is not {self.title}: it {what}. "
            f"Fix: get {self.name} ({self.size}) from {self.source}"
        )

    def filled(
        self, kind: Callable[..., torch.nn.Module], config, state: dict[str, Tensor], place: Path, dtype: torch.dtype
    ) -> torch.nn.Module:
        """A transformers model of that configuration around the tensors of `state`, which are copied only to change precision.

        Raises:
            RewardError: a tensor is missing, or has another shape than the configuration says.
        """
        from accelerate import init_empty_weights

        with init_empty_weights(include_buffers=False):
            model = kind(config)
        self.check(place, state, model.state_dict().keys())
        try:
            model.load_state_dict(state, assign=True)
        except RuntimeError as error:
            raise self.misfit(place, f"does not fit its layout ({str(error).splitlines()[1].strip()})") from error
        return model.eval().requires_grad_(False).to(dtype)


def from_folder(kind: type[torch.nn.Module], place: Path, dtype: torch.dtype) -> torch.nn.Module:
    """A transformers model from its folder. What its weights lack is an error, where transformers would fill in random numbers.

    Raises:
        RewardError: the weights cannot be read, or are those of another model.
    """
    try:
        model, report = kind.from_pretrained(
            place, dtype=dtype, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
    except _READING_ERRORS as error:
        reason = _reason(error)
    else:
        if not report["missing_keys"]:
            return model.eval().requires_grad_(False)
        reason = f"{sorted(report['missing_keys'])[0]} is missing"
    raise RewardError(
        f"{place} cannot be loaded as a {kind.__name__} ({reason}). Fix: get the whole checkpoint anew, with its config.json "
        "and .safetensors"
    )


def transformers_class(name: str) -> type:
    """A class of transformers; where a broken torchvision keeps it from being imported, the error says so."""
    import transformers

    try:
        return getattr(transformers, name)
    except (ImportError, RuntimeError) as error:
        fault = _torchvision_fault()
        if fault is None:
            raise
        raise RewardError(
            f"transformers cannot import {name}, because the installed torchvision does not fit torch {torch.__version__} "
            f"({fault}). Fix: install the torchvision that belongs to this torch, or uninstall torchvision: nothing here needs it"
        ) from error


def _torchvision_fault() -> str | None:
    if importlib.util.find_spec("torchvision") is None:
        return None
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError, OSError, AttributeError) as error:
        return _reason(error)
    return None


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
