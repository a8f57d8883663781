"""Single files of weights, as ComfyUI users have them: what their headers say, and their tensors as they are stored."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from ..policy.files import NETWORKS, is_gguf
from ..policy.stored import Float8, Format, Gguf
from ..workflow.problem import Misfit
from .options import FlowModelError, LoadOptions

# ComfyUI's 8-bit files hold such a factor beside each weight, by one of these names.
_FACTORS = (".scale_weight", ".weight_scale")
_BESIDE = (*_FACTORS, ".scale_input", ".input_scale", ".comfy_quant")
# What safetensors calls the dtypes of weights that are read; those of 8 bits stay as they are.
_FLOAT8 = {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
_NUMBERS = {"F64", "F32", "F16", "BF16", *_FLOAT8}


@dataclass(frozen=True)
class Part:
    """A tensor of a file. `form`: how its bytes are read, None where they are numbers; `factors`: [out, 1], of its rows."""

    tensor: Tensor
    form: Format | None = None
    factors: Tensor | None = None

    def numbers(self, dtype: torch.dtype) -> Tensor:
        return self.tensor.to(dtype) if self.form is None else self.form.unpack(self.tensor, self.factors, dtype)


def check(component: str, file: Path) -> None:
    """Raises FlowModelError where the file's header names a format that is not read; no weight of it is loaded."""
    if is_gguf(file):
        _check_gguf(component, file)
        return
    with safe_open(file, framework="pt") as content:
        keys = sorted(content.keys())
        packed = [key for key in keys if key.endswith(".weight") and content.get_slice(key).get_dtype() not in _NUMBERS]
        formats = sorted({_format(content.get_tensor(key)) for key in keys if key.endswith(".comfy_quant")})
    other = [name for name in formats if not name.startswith("float8")]
    if packed or other:
        what = f"layers in {other[0]}" if other else f"{packed[0]} in whole numbers"
        raise FlowModelError(
            f"{component}: {file} stores {what}, which is not read. Fix: choose the file of that model in bfloat16, in fp8 or "
            "as GGUF, or load it with ComfyUI's own nodes and connect Make Trainable"
        )


def _check_gguf(component: str, file: Path) -> None:
    from diffusers.utils import is_gguf_available

    if not component.startswith("transformer"):
        raise FlowModelError(
            f"{component}: {file} is a GGUF file, which is read for a transformer only. Fix: choose a .safetensors file, in fp8 "
            "where memory is short"
        )
    if not is_gguf_available():
        raise FlowModelError(
            f"{component}: {file} is a GGUF file, which needs the package gguf. Fix: pip install gguf, or choose a .safetensors "
            "file"
        )


def _format(tensor: Tensor) -> str:
    """What a layer's `comfy_quant`, JSON in bytes, calls its format."""
    try:
        return str(json.loads(bytes(tensor.tolist()))["format"])
    except (ValueError, LookupError, TypeError):
        return "an unknown format"


def is_stored(file: Path) -> bool:
    """Whether layers of a file stay as it stores them, by its header."""
    if is_gguf(file):
        return True
    with safe_open(file, framework="pt") as content:
        return any(_stays(key, content.get_slice(key)) for key in content.keys())


def conflict(training: str, options: LoadOptions, files: Mapping[str, Path]) -> Misfit | None:
    """What cannot be done with weights that stay as a file stores them; `files` by component."""
    if options.quantize != "none":
        return None
    kept = [file for component, file in files.items() if component in NETWORKS and is_stored(file)]
    if kept and training == "full":
        message = f"{kept[0].name} stores weights in 8 bits or fewer, which training = full cannot change"
        return Misfit("training", message, "training = lora, or choose that model's file in bfloat16")
    if kept and options.shard:
        message = f"shard: the weights that {kept[0].name} stores in 8 bits or fewer cannot be spread over processes"
        return Misfit("memory", message, "switch shard off, or choose that model's file in bfloat16")
    return None


def bytes_held(file: Path, dtype: torch.dtype) -> int:
    """What the file's network takes in memory, by its header: layers as they are stored, all else in `dtype`."""
    if is_gguf(file):
        return file.stat().st_size
    with safe_open(file, framework="pt") as content:
        slices = {key: content.get_slice(key) for key in content.keys()}
        sizes = {key: 1 if _stays(key, part) else dtype.itemsize for key, part in slices.items()}
        return sum(math.prod(part.get_shape()) * sizes[key] for key, part in slices.items())


def _stays(key: str, part: Any) -> bool:
    return key.endswith(".weight") and part.get_dtype() in _FLOAT8 and len(part.get_shape()) == 2


def read(file: Path, convert: Callable[[dict[str, Tensor]], Mapping[str, Tensor]] = dict) -> dict[str, Part]:
    """The file's tensors. Those of safetensors stay mapped from it.

    Args:
        convert: renames tensors, cuts and joins them by rows. It is called again with the factors, [out, 1] each, so that these
            follow their weights.
    """
    return _read_gguf(file, convert) if is_gguf(file) else _read_safetensors(file, convert)


def _read_gguf(file: Path, convert: Callable[[dict[str, Tensor]], Mapping[str, Tensor]]) -> dict[str, Part]:
    from diffusers.models.model_loading_utils import load_gguf_checkpoint
    from diffusers.quantizers.gguf.utils import GGUFParameter

    tensors: Mapping[str, Any] = convert(load_gguf_checkpoint(str(file)))
    parts = {}
    for name, tensor in tensors.items():
        packed: Any = tensor  # the library sets `quant_type` where type checkers do not see it
        is_packed = isinstance(tensor, GGUFParameter)
        parts[name] = Part(packed.as_tensor(), Gguf(packed.quant_type)) if is_packed else Part(tensor)
    return parts


def _read_safetensors(file: Path, convert: Callable[[dict[str, Tensor]], Mapping[str, Tensor]]) -> dict[str, Part]:
    kind, tensors, factors = None, {}, {}
    with safe_open(file, framework="pt") as content:
        keys = set(content.keys())
        for key in sorted(keys):
            if key.endswith(_BESIDE) or key == "scaled_fp8":
                continue
            tensor, stem = content.get_tensor(key), key.removesuffix(".weight")
            factor = next((content.get_tensor(stem + end).float() for end in _FACTORS if stem + end in keys), None)
            if _stays(key, content.get_slice(key)) and kind in (None, tensor.dtype):
                kind = tensor.dtype  # the first one's; the few files that mix two have the other widened
                tensors[key] = tensor.view(torch.int8)
                factor = torch.ones(()) if factor is None else factor
                factors[key] = factor.reshape(-1, 1).expand(len(tensor), 1)
            else:
                tensors[key] = tensor if factor is None else tensor.float() * factor
                factors[key] = torch.tensor(torch.nan).expand(tensor.shape)  # of what is no such layer
    if kind is None:
        return {name: Part(tensor) for name, tensor in convert(tensors).items()}
    form = Float8(kind)
    tensors, factors = convert(tensors), convert(factors)
    return {name: _part(name, tensor, factors[name], form) for name, tensor in tensors.items()}


def _part(name: str, tensor: Tensor, factors: Tensor, form: Format) -> Part:
    if factors.isnan().all():
        return Part(tensor)
    if factors.isnan().any():
        raise ValueError(f"{name} is stored in 8 bits in part only")
    return Part(tensor, form, None if (factors == 1).all() else factors.contiguous())
