"""Reading diffusers folders: device and dtype, and errors that name the file at fault."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open

from ...host import devices, distributed
from ..memory.blueprint import of_folder
from ..memory.estimate import Work, estimate
from ..memory.held import held_by
from ..policy.adapters import Adapter, PeftAdapters
from . import quantized
from .folder import library_class, read_index
from .options import FlowModelError
from .sizes import RULES

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline, ModelMixin

    from .options import LoadOptions
    from .pipeline import PipelineModel

logger = logging.getLogger(__name__)

LOADING_ERRORS = (OSError, ValueError, RuntimeError, TypeError, LookupError, NotImplementedError)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_device(name: str) -> torch.device:
    if name != "auto":
        try:
            return torch.empty(0, device=name).device
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            reason = str(error).splitlines()[0]
            raise FlowModelError(f"device {name!r} cannot be used here ({reason}). Fix: use auto or cpu") from error
    # With its number: a network that one asks for by `auto` and another by `cuda:0` is the same.
    return torch.empty(0, device=devices.default_device()).device


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    if name != "auto":
        return DTYPES[name]
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def load(
    family: type[PipelineModel], path: Path, options: LoadOptions, training: str, adapter: Adapter | None = None
) -> PipelineModel:
    """Builds the handle from a diffusers folder, in main memory; layers that are quantized are on the device already.

    `adapter`: what it is going to get, for whose memory there has to be room.

    Raises FlowModelError, before loading where possible.
    """
    check_shard(options)
    if options.quantize != "none":
        quantized.check(options.quantize)
    check_pipeline(family, path)
    device = resolve_device(options.device)
    dtype = resolve_dtype(options.dtype, device)
    check_memory(family, path, options, training, device, dtype, _adapter_size(family, path, options, adapter))
    pipeline = load_pipeline(family, path, options, device, dtype)
    rules = RULES[family.PIPELINE]
    tokenizer = getattr(pipeline, rules.tokenizer)
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # of a processor, which reads pictures too
    limit = min(rules.most_tokens, tokenizer.model_max_length) if tokenizer is not None else rules.most_tokens
    model = family(pipeline, path, options.max_sequence_length or limit)
    model.visitors = {name for name in family.COMPONENTS if options.offloads(name)}
    if options.vae_tiling:
        pipeline.vae.enable_tiling()
    for network in model.experts.values():
        speed_up(network, options)
    return model


def load_pipeline(
    family: type[PipelineModel], path: Path, options: LoadOptions, device: torch.device, dtype: torch.dtype
) -> DiffusionPipeline:
    """`from_pretrained` of the family's pipeline on a local folder, never touching the network.

    The networks are loaded one by one, since the libraries fill what a file lacks with random numbers and only say so in
    their loading report.

    Raises:
        FlowModelError: weights are missing, or their shapes do not fit the configuration.
    """
    import diffusers

    parts, own = _parts(path), _processors(path)
    with warnings.catch_warnings():
        # The newer name, `dtype`, would be ignored by the older diffusers that many ComfyUI installations have.
        warnings.filterwarnings("ignore", message=".*torch_dtype.*", category=FutureWarning)
        networks = {}
        for name in family.COMPONENTS:
            if name not in parts:
                continue
            networks[name] = _load_network(path / name, *parts[name], dtype)
            if options.quantize != "none" and name in family.EXPERTS:
                quantized.quantize(networks[name], options.quantize, device, dtype)
        # from_pretrained asks for all components: what a checkpoint leaves out, as SD3 may leave out T5, is None.
        left_out = {
            name: None for name, source in read_index(path).items() if name not in parts and isinstance(source, list)
        }
        try:
            pipeline = getattr(diffusers, family.PIPELINE)
            # Code in the folder is never run. Without this diffusers would ask in a terminal, for a tokenizer too.
            safe = {"local_files_only": True, "trust_remote_code": False}
            return pipeline.from_pretrained(path, torch_dtype=dtype, **safe, **networks, **own, **left_out)
        except LOADING_ERRORS as error:
            raise _unfit(path, error) from error


def check_pipeline(family: type[PipelineModel], path: Path) -> None:
    """Raises FlowModelError where the installed libraries lack what this pipeline is made of."""
    import diffusers

    if not hasattr(diffusers, family.PIPELINE):
        raise FlowModelError(
            f"{path} is a {family.PIPELINE}, which diffusers {diffusers.__version__} does not know. Fix: pip install -U "
            "diffusers"
        )
    if refused := [name for name in family.REFUSED if name in _parts(path)]:
        raise FlowModelError(
            f"{path} has a component {refused[0]}, and {family.PIPELINE} is supported without one. Fix: choose a model of Wan 2.2"
        )


def _processors(path: Path) -> dict[str, Any]:
    """Tokenizers that read pictures too. They are small, and may want a package that is not here."""
    found = {}
    for name, (library, kind) in _parts(path).items():
        if not kind.endswith("Processor"):
            continue
        try:
            processor: Any = library_class(path / name, library, kind)
            found[name] = processor.from_pretrained(path / name, local_files_only=True, trust_remote_code=False)
        except ImportError as error:
            raise FlowModelError(
                f"{path}: its {name} reads pictures too, and needs a package that is not here ({str(error).strip()[:200]}). Fix: "
                "pip install torchvision"
            ) from error
        except LOADING_ERRORS as error:
            raise _unfit(path / name, error) from error
    return found


def check_memory(
    family: type[PipelineModel],
    path: Path,
    options: LoadOptions,
    training: str,
    device: torch.device,
    dtype: torch.dtype,
    adapter: int,
) -> None:
    """Compares what is held, by the headers of the weight files, with what is free.

    What computing takes comes on top: it depends on the sampler's settings, and `otca memory` counts it. So too much is an error
    and a tight fit only a warning.

    Raises:
        FlowModelError: more than the device's free memory.
    """
    need = memory_needed(family, path, options, training, dtype, adapter=adapter)
    free = devices.free_memory(device)
    message = (
        f"{path.name} needs about {need / 1e9:.1f} GB on {device} before activations, {free / 1e9:.1f} GB are free"
    )
    if need > free:
        ways = []
        for words, changed, kind, processes in lighter(options, training):
            less = memory_needed(family, path, changed, kind, dtype, processes, adapter)
            ways += [f"{words} ({less / 1e9:.1f} GB)"] if less < need else []
        raise FlowModelError(f"{message}. Fix: {', or '.join([*ways, 'a larger device'])}")
    if need > 0.8 * free:
        logger.warning("%s: tight", message)


def lighter(options: LoadOptions, training: str) -> Iterator[tuple[str, LoadOptions, str, int]]:
    """What holds less, from cheap to costly: in words, and the options, the kind of training and the number of processes."""
    yield "offload_encoders", replace(options, offload_encoders=True), training, distributed.world()
    yield "offload_vae", replace(options, offload_vae=True), training, distributed.world()
    yield "train an adapter (training = lora)", options, "lora", distributed.world()
    for kind in ("8bit", "4bit") if training == "lora" else ():
        yield f"quantize = {kind}", replace(options, quantize=kind), training, distributed.world()
    several = "with training = full" if training == "full" else "with Model Memory's shard"
    shared = replace(options, shard=training == "lora", quantize="none")
    yield f"two processes (--gpus 2) {several}", shared, training, 2 * distributed.world()


def memory_needed(
    family: type[PipelineModel],
    path: Path,
    options: LoadOptions,
    training: str,
    dtype: torch.dtype,
    processes: int = 0,
    adapter: int = 0,
) -> int:
    """Bytes that `bytes_held` counts, by the headers of the weight files."""
    components = set(family.COMPONENTS) & set(_parts(path))
    counts = {name: sum(map(_elements, (path / name).glob("*.safetensors"))) for name in components}
    return bytes_held(counts, family.EXPERTS, options, training, dtype, processes, adapter)


def _adapter_size(family: type[PipelineModel], path: Path, options: LoadOptions, adapter: Adapter | None) -> int:
    """Numbers in an adapter, by the configurations of the networks that get it."""
    if adapter is None:
        return 0
    whole = of_folder(path)
    experts = replace(whole, parts={name: whole.parts[name] for name in family.EXPERTS if name in whole.parts})
    size = 0
    for network in experts.networks().values():
        adapters = PeftAdapters(network, family.LORA_TARGETS)
        adapters.add(adapter)
        size += sum(parameter.numel() for parameter in adapters.parameters().values())
    return size


def bytes_held(
    counts: Mapping[str, int],
    trained: Collection[str],
    options: LoadOptions,
    training: str,
    dtype: torch.dtype,
    processes: int = 0,
    adapter: int = 0,
) -> int:
    """Bytes for weights and, of what is trained, gradients and moments; of a model as a whole the reference, too.

    The same estimate as that of `otca memory`, without the work of the phases and the reserve.

    Args:
        counts: parameters of each component.
        trained: names of the components that are trained.
        processes: that share what can be shared; 0: those that there are.
        adapter: numbers in it.
    """
    processes = processes or distributed.world()
    itemsize = dtype.itemsize
    held = held_by(counts, trained, options, training, itemsize, adapter=adapter, processes=processes, reserve=0)
    return estimate(held, Work()).total


def check_shard(options: LoadOptions) -> None:
    """Raises FlowModelError where `shard` cannot be had here."""
    if options.shard and torch.__version__ < "2.7":
        raise FlowModelError(
            f"shard needs torch 2.7, here is {torch.__version__}. Fix: update torch, or switch shard off"
        )


def speed_up(network: ModelMixin, options: LoadOptions) -> None:
    """Gradient checkpointing, attention backend and compilation, by diffusers' own switches."""
    if options.gradient_checkpointing:
        network.enable_gradient_checkpointing()
    if options.attention != "auto":
        from diffusers.models.attention_dispatch import attention_backend

        try:
            # It sets the whole process's too, which would reach every model that leaves the choice to diffusers.
            with attention_backend(options.attention):
                network.set_attention_backend(options.attention)
        except (ValueError, RuntimeError, ImportError) as error:
            raise FlowModelError(
                f"attention {options.attention!r} cannot be had here ({error}). Fix: auto, or install what it needs"
            ) from error
        processors = (getattr(module, "processor", None) for module in network.modules())
        if not any(hasattr(processor, "_attention_backend") for processor in processors):
            kind = type(network).__name__
            raise FlowModelError(
                f"attention {options.attention!r}: {kind} computes attention in one way only. Fix: auto"
            )
    if options.compile:
        network.compile_repeated_blocks()


def _parts(path: Path) -> dict[str, tuple[str, str]]:
    """(library, class) of the components that the checkpoint has."""
    index = read_index(path).items()
    return {name: (source[0], source[1]) for name, source in index if isinstance(source, list) and source[0]}


def _elements(file: Path) -> int:
    """Numbers in a safetensors file, by its header."""
    with safe_open(file, framework="pt") as content:
        return sum(math.prod(content.get_slice(key).get_shape()) for key in content.keys())


def _load_network(folder: Path, library: str, name: str, dtype: torch.dtype) -> torch.nn.Module:
    network = library_class(folder, library, name)
    options = {"local_files_only": True, "use_safetensors": True, "output_loading_info": True}
    if library == "transformers":
        options["trust_remote_code"] = False  # else it would ask in a terminal whether to run the folder's own
    try:
        name_of_dtype = "dtype" if library == "transformers" else "torch_dtype"
        module, information = network.from_pretrained(folder, **{name_of_dtype: dtype}, **options)
    except LOADING_ERRORS as error:
        raise _unfit(folder, error) from error
    for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        # Old CLIP files carry their position numbers, which are no weights.
        if keys := sorted(key for key in map(str, information.get(kind) or ()) if not key.endswith("position_ids")):
            raise _unfit(folder, f"{len(keys)} {kind.replace('_', ' ')}, the first is {keys[0]}")
    return module


def _unfit(folder: Path, reason: object) -> FlowModelError:
    return FlowModelError(f"{folder} holds other weights than its config.json describes: {reason}. Fix: copy it again")
