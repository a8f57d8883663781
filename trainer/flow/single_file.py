"""Networks from single files, as ComfyUI users have them; the model folder still gives configuration and tokenizers."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open

from .folder import library_class
from .options import SINGLE_FILES, FlowModelError

LOADING_ERRORS = (OSError, ValueError, RuntimeError, TypeError, LookupError, NotImplementedError)
# ComfyUI's 8-bit files hold such a factor beside each weight, by one of these names.
_SCALES = (".scale_weight", ".weight_scale")


def load(folder: Path, component: str, library: str, name: str, file: Path, dtype: torch.dtype) -> torch.nn.Module:
    """One network of the pipeline in `folder` with the weights of `file`, in diffusers' layout or their makers'.

    Raises:
        FlowModelError: the file holds other weights than the folder's configuration describes.
    """
    network = library_class(folder / component, library, name)
    read = _encoder if library == "transformers" else _network
    try:
        module = read(network, folder, component, file, dtype)
    except LOADING_ERRORS as error:
        raise _unfit(folder, component, file, error) from error
    if lacking := [name for name, parameter in module.named_parameters() if parameter.is_meta]:
        raise _unfit(folder, component, file, f"it lacks {len(lacking)} weights, the first is {lacking[0]}")
    return module


def _network(network: type, folder: Path, component: str, file: Path, dtype: torch.dtype) -> torch.nn.Module:
    options = {"config": str(folder), "subfolder": component, "local_files_only": True}
    # Plain weights are better opened by diffusers, which maps the file instead of reading it.
    module = network.from_single_file(_weights(file, dtype) if _has_scales(file) else str(file), **options)
    # Given a dtype, it would cast all at once, and Wan keeps some layers in float32, as `from_pretrained` knows.
    exact = set(network._keep_in_fp32_modules or ())
    for name, parameter in module.named_parameters():
        if not parameter.is_meta:
            parameter.data = parameter.data.to(torch.float32 if exact & set(name.split(".")) else dtype)
    return module


def _encoder(network: type, folder: Path, component: str, file: Path, dtype: torch.dtype) -> torch.nn.Module:
    config = network.config_class.from_pretrained(folder / component, local_files_only=True)
    options = {"config": config, "state_dict": _weights(file, dtype), "dtype": dtype, "output_loading_info": True}
    module, information = network.from_pretrained(None, **options)
    for kind in ("missing_keys", "mismatched_keys"):  # such files often hold more than is needed
        if keys := sorted(map(str, information.get(kind) or ())):
            raise ValueError(f"{len(keys)} {kind.replace('_', ' ')}, the first is {keys[0]}")
    return module


def _has_scales(file: Path) -> bool:
    with safe_open(file, framework="pt") as content:
        return any(key.endswith(_SCALES) for key in content.keys())


def _weights(file: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The file's tensors; those with a factor multiplied by it, in `dtype`."""
    with safe_open(file, framework="pt") as content:
        keys = set(content.keys())
        tensors = {}
        for key in keys:
            if key.endswith((*_SCALES, ".scale_input", ".input_scale")) or key == "scaled_fp8":
                continue
            tensor = content.get_tensor(key)
            stem = key.removesuffix(".weight")
            factor = next((content.get_tensor(stem + end) for end in _SCALES if stem + end in keys), None)
            tensors[key] = tensor if factor is None else (tensor.float() * factor.float()).to(dtype)
    return tensors


def _unfit(folder: Path, component: str, file: Path, reason: object) -> FlowModelError:
    return FlowModelError(
        f"{file} holds other weights than {folder / component} describes ({reason}). Fix: choose the {component} of that "
        f"model from ComfyUI's models/{SINGLE_FILES[component]}, or the folder of the model that the file is of"
    )
