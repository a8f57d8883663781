"""Reads folders of diffusers: device and dtype, networks, and errors that name the file at fault."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...host import devices, extras
from ...host.text import shorten_logs, shortened
from .folder import LIBRARIES, library_class, read_index, read_object, weights
from .options import FlowModelError
from .sizes import RULES
from .streaming import compute_again

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline, ModelMixin

    from .options import LoadOptions
    from .pipeline import PipelineModel

# Of a kind of block, at most: gradient or not, one sample or several, adapter on, off or merged, the first block or a later one.
GRAPHS = 2 * 2 * 3 * 2
LOADING_ERRORS = (OSError, ValueError, RuntimeError, TypeError, LookupError, NotImplementedError)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_device(name: str) -> torch.device:
    if name != "auto":
        try:
            return torch.empty(0, device=name).device
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            reason = str(error).splitlines()[0].partition(". ")[0]  # torch may add the names of all that it knows
            raise FlowModelError(f"device {name!r} cannot be used here ({reason}). Fix: use auto or cpu") from error
    # With its number: a network that one asks for by `auto` and another by `cuda:0` is the same.
    return torch.empty(0, device=devices.default_device()).device


def check_options(options: LoadOptions) -> None:
    """Raises FlowModelError for what the installed libraries cannot do with any checkpoint; nothing is loaded."""
    if options.shard and torch.__version__ < "2.7":
        raise FlowModelError(
            f"shard needs torch 2.7, here is {torch.__version__}. Fix: update torch, or switch shard off"
        )
    if options.quantize != "none" and (lack := extras.wrong(f"quantize = {options.quantize}", "quantize")):
        raise FlowModelError(f"{lack}. Or set quantize = none on Model Memory")
    if options.attention != "auto":
        with _attention(options.attention):
            pass


def check(family: type[PipelineModel], path: Path, options: LoadOptions) -> None:
    """Raises FlowModelError for what the installed libraries cannot do, or the checkpoint cannot; nothing is loaded."""
    import diffusers

    check_options(options)
    if extras.older("transformers", "5") and any(
        "backend" in read_object(file) for file in path.glob("tokenizer*/tokenizer_config.json")
    ):
        raise FlowModelError(
            f"{path} was saved by transformers 5, and {extras.installed('transformers')}, which is here, does not read its "
            f"tokenizers. Fix: {extras.command('-U', 'transformers')}, unless other packs need it as it is; or load the model by "
            "ComfyUI's own nodes, and train it by Make Trainable"
        )
    if not hasattr(diffusers, family.PIPELINE):
        raise FlowModelError(
            f"{path} is a {family.PIPELINE}, which diffusers {diffusers.__version__} does not know. Fix: "
            + extras.command("-U", "diffusers", "transformers")
        )
    if refused := [name for name in family.REFUSED if name in components(path)]:
        raise FlowModelError(
            f"{path} has a component {refused[0]}, and {family.PIPELINE} is supported without one. Fix: choose a model of Wan 2.2"
        )


def load(
    family: type[PipelineModel], path: Path, options: LoadOptions, device: torch.device, dtype: torch.dtype
) -> PipelineModel:
    """Builds the handle from a diffusers folder, in main memory; layers that are quantized are on the device already.

    Raises FlowModelError if weights are missing, or if their shapes do not fit the configuration.
    """
    pipeline = load_pipeline(family, path, options, device, dtype)
    rules = RULES[family.PIPELINE]
    tokenizer = getattr(pipeline, rules.tokenizer)
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # of a processor, which reads pictures too
    limit = min(rules.most_tokens, tokenizer.model_max_length) if tokenizer is not None else rules.most_tokens
    model = family(pipeline, path, options.max_sequence_length or limit)
    # On the device only while they work.
    offloaded = {"text_encoder": options.offload_encoders, "vae": options.offload_vae}
    model.visitors = {
        name for name in family.COMPONENTS if any(on and name.startswith(kind) for kind, on in offloaded.items())
    }
    if options.vae_tiling:
        pipeline.vae.enable_tiling()
    for network in model.experts.values():
        speed_up(network, options)
    if options.gradient_checkpointing:
        compute_again(pipeline.vae)
    return model


def components(path: Path) -> dict[str, tuple[str, str]]:
    """(library, class) of the components that the checkpoint has."""
    index = read_index(path).items()
    return {name: (source[0], source[1]) for name, source in index if isinstance(source, list) and source[0]}


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

    shorten_logs(*LIBRARIES)
    parts, own = components(path), _processors(path)
    with warnings.catch_warnings():
        # The newer name, `dtype`, would be ignored by the older diffusers that many ComfyUI installations have.
        warnings.filterwarnings("ignore", message=".*torch_dtype.*", category=FutureWarning)
        networks = {}
        for name in family.COMPONENTS:
            if name not in parts:
                continue
            networks[name] = load_network(path / name, *parts[name], dtype)
            if options.quantize != "none" and name in family.EXPERTS:
                quantize(networks[name], options.quantize, device, dtype)
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


def _processors(path: Path) -> dict[str, Any]:
    """Tokenizers that read pictures too. They are small, and may want a package that is not here."""
    processors = {}
    for name, (library, kind) in components(path).items():
        if not kind.endswith("Processor"):
            continue
        try:
            processor: Any = library_class(path / name, library, kind)
            processors[name] = processor.from_pretrained(path / name, local_files_only=True, trust_remote_code=False)
        except ImportError as error:
            raise FlowModelError(
                f"{path}: its {name} reads pictures too, and needs a package that is not here ({str(error).strip()[:200]}). Fix: "
                + extras.command("torchvision")
            ) from error
        except LOADING_ERRORS as error:
            raise _unfit(path / name, error) from error
    return processors


def speed_up(network: ModelMixin, options: LoadOptions) -> None:
    """Gradient checkpointing, attention backend and compilation, by diffusers' own switches."""
    if options.gradient_checkpointing:
        network.enable_gradient_checkpointing()
    if options.attention != "auto":
        with _attention(options.attention):  # it sets the process's too, which would reach every other model
            network.set_attention_backend(options.attention)
        processors = (getattr(module, "processor", None) for module in network.modules())
        if not any(hasattr(processor, "_attention_backend") for processor in processors):
            kind = type(network).__name__
            raise FlowModelError(
                f"attention {options.attention!r}: {kind} computes attention in one way only. Fix: auto"
            )
    if options.compile:
        if not network._repeated_blocks:
            raise FlowModelError(f"compile: diffusers names no blocks of {type(network).__name__}. Fix: switch it off")
        allow_graphs()
        network.compile_repeated_blocks()


def allow_graphs() -> None:
    """Has torch.compile keep as many graphs of a kind of block as there are uses: what comes after its limit runs uncompiled."""
    import torch._functorch.config as functorch

    torch._dynamo.config.recompile_limit = max(GRAPHS, torch._dynamo.config.recompile_limit)
    functorch.donated_buffer = False  # with it a backward pass can be taken once only


@contextlib.contextmanager
def _attention(name: str) -> Iterator[None]:
    """The process's way to compute attention is another meanwhile. Raises FlowModelError where its package is not here."""
    from diffusers.models.attention_dispatch import attention_backend

    try:
        with attention_backend(name):
            yield
    except (ValueError, RuntimeError, ImportError) as error:
        reason = str(error).rstrip(". ")
        raise FlowModelError(
            f"attention {name!r} cannot be had here ({reason}). Fix: auto, or install what it needs"
        ) from error


def load_network(folder: Path, library: str, name: str, dtype: torch.dtype) -> torch.nn.Module:
    network = library_class(folder, library, name)
    options: dict[str, Any] = {"local_files_only": True, "use_safetensors": True, "output_loading_info": True}
    options["variant"] = weights(folder)[1] or None
    if library == "transformers":
        options["trust_remote_code"] = False  # else it would ask in a terminal whether to run the folder's own
    try:
        options |= in_dtype(dtype) if library == "transformers" else {"torch_dtype": dtype}
        module, information = network.from_pretrained(folder, **options)
    except LOADING_ERRORS as error:
        raise _unfit(folder, error) from error
    for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        # Old CLIP files carry their position numbers, which are no weights.
        if keys := sorted(key for key in map(str, information.get(kind) or ()) if not key.endswith("position_ids")):
            raise _unfit(folder, f"{len(keys)} {kind.replace('_', ' ')}, the first is {keys[0]}")
    return module


def in_dtype(dtype: torch.dtype) -> dict[str, Any]:
    """The argument of transformers' `from_pretrained`, by the name that it has in the version that is here."""
    return {"torch_dtype" if extras.older("transformers", "4.56") else "dtype": dtype}


def _unfit(folder: Path, reason: object) -> FlowModelError:
    text = shortened(str(reason).partition("\n")[0], 300)  # a library may add pages of advice
    return FlowModelError(f"{folder} holds other weights than its config.json describes: {text}. Fix: copy it again")


# -- networks in 8 or 4 bits by bitsandbytes, layer by layer ------------------------------------------------------------------


def quantize(network: Any, kind: str, device: torch.device, dtype: torch.dtype) -> None:
    """Has bitsandbytes hold the network's linear layers, on the device: there is one of them in more bits at a time.

    Layers that the network keeps in float32 stay so.

    Raises:
        FlowModelError: bitsandbytes does nothing on this device.
    """
    exact = set(network._keep_in_fp32_modules or ())
    for name, layer in list(network.named_modules()):
        if type(layer) is not torch.nn.Linear or exact & set(name.split(".")):
            continue
        made = layer_of(kind, layer.bias is not None, layer.weight.data, dtype)
        if layer.bias is not None:
            made.bias = layer.bias
        parent, _, child = name.rpartition(".")
        setattr(network.get_submodule(parent), child, made)
        made.to(device)
        if made.weight.is_floating_point():
            raise FlowModelError(
                f"quantize = {kind}: bitsandbytes does nothing on {device}. Fix: {extras.command('-U', 'bitsandbytes')}, or "
                "quantize = none on Model Memory"
            )
    setattr(network, f"is_loaded_in_{kind}", True)  # by which peft knows how to put an adapter on


def layer_of(kind: str, bias: bool, weight: torch.Tensor, dtype: torch.dtype) -> torch.nn.Linear:
    from bitsandbytes import nn

    library: Any = nn  # which says too little of its arguments
    rows, columns = weight.shape
    if kind == "4bit":
        more: dict[str, Any] = {"quant_type": "nf4", "compress_statistics": False}
        layer = library.Linear4bit(columns, rows, bias, dtype, device="meta", **more)
        layer.weight = library.Params4bit(weight, requires_grad=False, module=layer, **more)
        # On some CPUs it would pack its weight for a kernel that has no gradient, as soon as one samples.
        vars(layer).update(support_avx512bf16_for_cpu=False)
    else:
        layer = library.Linear8bitLt(columns, rows, bias, has_fp16_weights=False, device="meta")
        layer.weight = library.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
    return layer
