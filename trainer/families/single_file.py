"""Networks from single files; the model folder still gives their configuration.

Layers that a file stores in 8 bits or fewer stay so in main memory and on the device, see `stored`.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..policy.stored import StoredLinear, put_in
from . import weight_files
from .folder import library_class
from .options import SINGLE_FILES, FlowModelError

LOADING_ERRORS = (OSError, ValueError, RuntimeError, TypeError, LookupError, NotImplementedError)

# Networks that diffusers reads no single file of, and the same one by another name.
SAME = {"AutoencoderKLQwenImage": "AutoencoderKLWan"}
FIRST = "text_encoder"  # of SD3: CLIP-L, whose published file leaves its projection out, since it is the identity


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


def _network(network: Any, folder: Path, component: str, file: Path, dtype: torch.dtype) -> torch.nn.Module:
    from accelerate import init_empty_weights

    config = network.load_config(folder, subfolder=component, local_files_only=True)
    with init_empty_weights():
        module = network.from_config(config)
    expected = module.state_dict()
    parts = weight_files.read(file, lambda tensors: _in_diffusers_layout(network, config, tensors, set(expected)))
    _nothing_more(module, parts.keys() - expected.keys())
    # Wan keeps some layers in float32, as `from_pretrained` knows.
    exact = set(network._keep_in_fp32_modules or ())
    linear, buffers = _linear_weights(module), dict(module.named_buffers())
    numbers: dict[str, Tensor] = {}
    for name, part in parts.items():
        if name not in expected:
            continue
        if part.form is not None and name in linear and not exact & set(name.split(".")):
            layer = StoredLinear(part.tensor, part.form, dtype, part.factors)
            _check_shape(name, (layer.out_features, layer.in_features), expected[name])
            put_in(module, name.removesuffix(".weight"), layer)
            continue
        wanted = buffers[name].dtype if name in buffers else torch.float32 if exact & set(name.split(".")) else dtype
        values = part.numbers(wanted)
        if weight_files.is_gguf(file) and values.numel() == expected[name].numel():
            values = values.reshape(expected[name].shape)  # GGUF has at most four dimensions, and Wan has five
        _check_shape(name, values.shape, expected[name])
        numbers[name] = values
    module.load_state_dict(numbers, strict=False, assign=True)
    return module.eval()


def _in_diffusers_layout(network: Any, config: dict, tensors: dict[str, Tensor], expected: set[str]):
    """What `from_single_file` does of a file's tensors, which would also make float32 of whatever is 8 bits in it."""
    from diffusers.loaders import single_file_model

    if tensors.keys() == expected:
        return tensors
    kind: Any = single_file_model._get_single_file_loadable_mapping_class(network) or SAME.get(network.__name__)
    convert = single_file_model.SINGLE_FILE_LOADABLE_CLASSES[kind]["checkpoint_mapping_fn"]
    return convert(checkpoint=dict(tensors), config=config)


def _nothing_more(module: torch.nn.Module, unknown: set[str]) -> None:
    """Raises ValueError where the file has more of some part of the network: it is another model then, without an error."""
    parts = {name for name, _ in module.named_children()}
    if more := sorted(name for name in unknown if name.split(".")[0] in parts):
        raise ValueError(f"it has {len(more)} weights more, the first is {more[0]}")


def _linear_weights(module: torch.nn.Module) -> set[str]:
    return {f"{name}.weight" for name, part in module.named_modules() if type(part) is torch.nn.Linear}


def _check_shape(name: str, shape: tuple[int, ...], expected: Tensor) -> None:
    if tuple(shape) != tuple(expected.shape):
        raise ValueError(f"{name} is of shape {tuple(shape)} instead of {tuple(expected.shape)}")


def _encoder(network: Any, folder: Path, component: str, file: Path, dtype: torch.dtype) -> torch.nn.Module:
    from accelerate import init_empty_weights

    config = network.config_class.from_pretrained(folder / component, local_files_only=True)
    with init_empty_weights():
        bare = network(config)
    linear, expected = _linear_weights(bare), bare.state_dict().keys()
    parts = {_named_as(name, expected): part for name, part in weight_files.read(file).items()}
    kept = {name: part for name, part in parts.items() if part.form is not None and name in linear}
    # What is put in afterwards is a single zero, as often as it takes.
    tensors = {
        name: torch.zeros((), dtype=dtype).expand(part.tensor.shape) if name in kept else part.numbers(dtype)
        for name, part in parts.items()
    }
    if (
        network.__name__.endswith("WithProjection")
        and config.projection_dim == config.hidden_size
        and component == FIRST
    ):
        tensors.setdefault("text_projection.weight", torch.eye(config.hidden_size, dtype=dtype))
    options = {"config": config, "state_dict": tensors, "dtype": dtype, "output_loading_info": True}
    module, information = network.from_pretrained(None, **options)
    for kind in ("missing_keys", "mismatched_keys"):  # such files often hold more than is needed
        if keys := sorted(map(str, information.get(kind) or ())):
            raise ValueError(f"{len(keys)} {kind.replace('_', ' ')}, the first is {keys[0]}")
    for name, part in kept.items():
        wanted = module.get_parameter(name).dtype
        if part.form is not None and wanted == dtype:
            put_in(module, name.removesuffix(".weight"), StoredLinear(part.tensor, part.form, dtype, part.factors))
        else:  # of T5 some layers are in float32 where all others are in float16
            module.get_parameter(name).data = part.numbers(wanted)
    return module


def _named_as(name: str, expected: Collection[str]) -> str:
    """A weight's name in the network: files of language models have them as of the network with a head, or of an older one."""
    whole = name.removeprefix("model.")
    return next((known for known in (name, whole, f"language_model.{whole}") if known in expected), name)


def _unfit(folder: Path, component: str, file: Path, reason: object) -> FlowModelError:
    return FlowModelError(
        f"{file} holds other weights than {folder / component} describes ({reason}). Fix: choose the {component} of that "
        f"model from ComfyUI's models/{SINGLE_FILES[component]}, or the folder of the model that the file is of"
    )
