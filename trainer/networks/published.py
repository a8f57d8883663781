"""Reading what the authors of reward models publish, with errors that name the file, its size and its source."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.modules.module import register_module_parameter_registration_hook

from ...host import search
from ..families.folder import read_object, tensors
from ..families.loading import in_dtype
from . import RewardError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    P = TypeVar("P", bound=PreTrainedModel)


M = TypeVar("M", bound=torch.nn.Module)
ALL = "all of its files"
_READING_ERRORS = (OSError, EOFError, RuntimeError, ValueError, LookupError, SafetensorError)


@dataclass(frozen=True)
class Published:
    """A checkpoint in one file or in a folder of several, as its authors publish it.

    Attributes:
        title: of the model.
        name: of the file; ALL where there are several.
        size: of what is to be had, for the message.
        source: the hub id or address that publishes it.
    """

    title: str
    name: str
    size: str
    source: str

    def find(self, name: str = "") -> Path:
        return search.reward_file(name or self.name, self.name, self.size, self.source)

    def find_folder(self, name: str, marker: str, *also: Path) -> Path:
        return search.model(name, marker, f"{self.source} ({self.size})", also)

    def read(self, path: Path) -> Mapping[str, Any]:
        """Reads the file, of which nothing but tensors is made; large files stay on disk until they are used.

        Raises:
            RewardError: it cannot be read, as where a download was cut off.
        """
        try:
            if path.suffix == ".safetensors":
                return load_file(path)
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        except Exception as error:  # of many kinds, after what a damaged or a foreign file is read as
            raise self.misfit(path, f"cannot be read ({_reason(error)})") from error
        if not isinstance(content, Mapping):
            raise self.misfit(path, f"holds a {type(content).__name__} and no named tensors")
        return content

    def read_all(self, folder: Path) -> dict[str, Tensor]:
        """All tensors of the folder's model*.safetensors.

        Raises:
            FileNotFoundError: it has no such file.
            RewardError: one of them cannot be read.
        """
        files = sorted(folder.glob("model*.safetensors"))
        if not files:
            raise FileNotFoundError(f"{folder} has no model*.safetensors. Fix: {self._advice()}")
        return {name: tensor for file in files for name, tensor in self.read(file).items()}

    def check_type(self, folder: Path, model_type: str) -> None:
        """Raises RewardError if the folder's config.json is that of another kind of model."""
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
        if kind != model_type:
            raise self.misfit(folder, f"holds a model of type {kind}, where {model_type} is needed")

    def check(self, path: Path, state: Mapping[str, Tensor], wanted: Collection[str]) -> None:
        """Raises RewardError if the file lacks one of those keys."""
        missing = sorted(set(wanted) - set(state))
        if missing:
            raise self.misfit(path, f"has no {missing[0]!r} ({len(missing)} of {len(wanted)} tensors are missing)")

    def misfit(self, path: Path, what: str) -> RewardError:
        size = f" ({path.stat().st_size:,} bytes)" if path.is_file() else ""
        return RewardError(f"{path}{size} is not {self.title}: it {what}. Fix: {self._advice()}")

    def _advice(self) -> str:
        return f"get {self.name} ({self.size}) from {self.source}"

    def filled(self, make: Callable[[], M], state: Mapping[str, Tensor], path: Path, dtype: torch.dtype) -> M:
        """The network that `make` builds, around the tensors of `state`: nothing is initialised in vain, and nothing copied but
        to change precision.

        Raises:
            RewardError: a tensor is missing, has another shape or belongs to another network.
        """
        with _without_numbers():
            network = make()
        wanted = network.state_dict()
        self.check(path, state, wanted.keys())
        wrong = [f"{name!r} does not belong to it" for name in state.keys() - wanted.keys()]
        wrong += [
            f"{name!r} has shape {tuple(state[name].shape)} where {tuple(tensor.shape)} is needed"
            for name, tensor in wanted.items()
            if state[name].shape != tensor.shape
        ]
        if wrong:
            raise self.misfit(path, f"does not fit its layout ({len(wrong)} tensors; {min(wrong)})")
        network.load_state_dict(state, assign=True)
        return network.train(False).requires_grad_(False).to(dtype)


@contextlib.contextmanager
def _without_numbers() -> Iterator[None]:
    """Within it the weights of a network that is built have shapes alone; its buffers have numbers."""

    def emptied(module: torch.nn.Module, name: str, weight: torch.nn.Parameter) -> torch.nn.Parameter:
        return torch.nn.Parameter(weight.to("meta"), weight.requires_grad)

    hook = register_module_parameter_registration_hook(emptied)  # pyright: ignore[reportArgumentType] what it returns counts
    try:
        yield
    finally:
        hook.remove()


def readable(folder: Path) -> Path:
    """The folder of a network, after a look at what configures it and at the headers of its weights. Raises FlowModelError."""
    for file in folder.glob("*config.json"):
        read_object(file)
    tensors(folder)
    return folder


def from_folder(kind: type[P], path: Path, dtype: torch.dtype) -> P:
    """A transformers model from its folder. What its weights lack is an error, where transformers would fill in random numbers.

    Raises:
        RewardError: the weights cannot be read, or are those of another model.
    """
    try:
        model, report = kind.from_pretrained(  # pyright: ignore[reportGeneralTypeIssues] with its report it is a pair
            path,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            trust_remote_code=False,  # what the folder brings is not run, and nobody is asked
            **in_dtype(dtype),
        )
    except _READING_ERRORS as error:
        reason = _reason(error)
    else:
        if not report["missing_keys"]:
            return model.train(False).requires_grad_(False)
        reason = f"{sorted(report['missing_keys'])[0]} is missing"
    raise RewardError(
        f"{path} cannot be loaded as a {kind.__name__} ({reason}). Fix: get the whole checkpoint again, with its config.json "
        "and .safetensors"
    )


def number_of(path: Path, name: str) -> float:
    """Returns a single number among the weights of a folder that was loaded, as it is filed: in 16 bits exp(4.6052) is 98.9."""
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, "pt") as weights:
            if name in weights.keys():  # noqa: SIM118 it is no mapping
                return float(weights.get_tensor(name))
    raise RewardError(f"{path} has no {name} in its .safetensors. Fix: get the whole checkpoint again")


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


def pillow_processor(name: str) -> type:
    """A class of transformers that prepares pictures by Pillow, and so scores alike on every machine."""
    import transformers

    # transformers before 5 has it under the plain name
    return transformers_class(f"{name}Pil" if hasattr(transformers, f"{name}Pil") else name)


def _torchvision_fault() -> str | None:
    if importlib.util.find_spec("torchvision") is None:
        return None
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError, OSError, AttributeError) as error:
        return _reason(error)
    return None


def _reason(error: Exception) -> str:
    if type(error).__name__ == "UnpicklingError":  # torch's own words say how to run what the file holds
        return "UnpicklingError: it holds other things than tensors"
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


WIDTHS = (1024, 128, 64, 16, 1)
LAYERS = (0, 2, 4, 6, 7)  # between some of them the published head has dropout, which rests when scoring


def scoring_head(
    file: Published, path: Path, state: Mapping[str, Tensor], prefix: str = "layers."
) -> torch.nn.Sequential:
    """The head that LAION's aesthetic predictor and ImageReward share: 768-1024-128-64-16-1, with nothing between the layers.

    It is so small that it stays in main memory, in float32.
    """
    keys = {f"{prefix}{layer}.{part}": (layer, part) for layer in LAYERS for part in ("weight", "bias")}
    file.check(path, state, keys)
    inputs = (768, *WIDTHS)
    weights = {f"{LAYERS.index(layer)}.{part}": state[key].float() for key, (layer, part) in keys.items()}

    def layers():
        return torch.nn.Sequential(*(torch.nn.Linear(*pair) for pair in zip(inputs, WIDTHS, strict=False)))

    return file.filled(layers, weights, path, torch.float32)
