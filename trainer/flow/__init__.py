"""Flow models: one file a family, found by the `_class_name` in a diffusers folder's model_index.json.

A new family is one file with a subclass of `FlowModel` and one row in FAMILIES.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..types import TRAININGS
from ..workflow.problem import Misfit

if TYPE_CHECKING:
    from .base import FlowModel

FAMILIES = {"FluxPipeline": "flux.Flux", "StableDiffusion3Pipeline": "sd3.StableDiffusion3", "WanPipeline": "wan.Wan"}
# The networks that may come from a single file, and in which of ComfyUI's model folders its users keep it.
SINGLE_FILES = {
    "transformer": "diffusion_models",
    "transformer_2": "diffusion_models",
    "text_encoder": "text_encoders",
    "text_encoder_2": "text_encoders",
    "text_encoder_3": "text_encoders",
    "vae": "vae",
}
LIBRARIES = ("diffusers", "transformers")  # whose classes a model may be made of; nothing else is imported for one
DIFFUSERS = (0, 38)  # earlier ones run Python files that lie in a model's folder
_WEIGHTLESS = {"scheduler", "tokenizer", "tokenizer_2", "tokenizer_3", "feature_extractor"}


class FlowModelError(ValueError):
    """A model folder that cannot be used, with the reason and what to do about it."""


@dataclass(frozen=True)
class LoadOptions:
    """How a checkpoint is held in memory and computed with; only `dtype` and `quantize` change its numbers."""

    dtype: str = "auto"
    device: str = "auto"
    max_sequence_length: int = 0
    files: Mapping[str, Path] = field(default_factory=dict)  # single .safetensors files in place of the folder's own
    quantize: str = "none"  # one of types.QUANTIZATIONS
    offload_encoders: bool = False
    vae_tiling: bool = False
    gradient_checkpointing: bool = False
    attention: str = "auto"
    compile: bool = False
    offload_vae: bool = False
    shard: bool = False

    def offloads(self, component: str) -> bool:
        """Whether that component of the pipeline is on the device only while it works."""
        return self.offload_encoders and component.startswith("text_encoder") or self.offload_vae and component == "vae"


def load_flow_model(
    path: str | Path,
    *,
    training: str = "lora",
    lora_rank: int = 16,
    lora_alpha: float = 16.0,
    lora_targets: str = "",
    seed: int = 0,
    **options,
) -> FlowModel:
    """Loads a diffusers pipeline folder and makes it trainable: by an adapter on its transformer, or as a whole.

    Args:
        path: a diffusers folder (one that holds model_index.json).
        training: "lora" or "full".
        lora_rank, lora_alpha: of the adapter; its scale is alpha / rank.
        lora_targets: comma-separated ends of module names; empty takes the family's own list.
        seed: of the adapter's initial weights.
        dtype: of the frozen weights: auto (bfloat16 on an accelerator, else float32), float32, bfloat16 or float16. What is
            trained is always float32.
        device: auto, or a torch device.
        max_sequence_length: tokens of the text encoder; 0 takes the tokenizer's own limit, at most the family's.
        files: single-file weights by component, as ComfyUI users have them, in place of the folder's own.
        quantize: "8bit" or "4bit" holds the frozen transformer in that by bitsandbytes; only with "lora".
        offload_encoders: the text encoders are on the device only while they embed new prompts.
        offload_vae: the autoencoder is on the device only while it decodes.
        vae_tiling: pictures are decoded in tiles: less memory, faint seams.
        gradient_checkpointing: activations are computed twice instead of stored.
        attention: a backend of diffusers ("native", "flash", "sage" …); "auto" leaves the choice to it.
        compile: the transformer's blocks go through torch.compile.
        shard: of several processes each holds a part of the frozen transformer; only with "lora", since "full" is always
            sharded. Each loads it whole into main memory first.

    Raises:
        FlowModelError: not a diffusers folder, an unknown family, files that are missing, truncated or of another model,
            too little memory, or an option that cannot be had here.
    """
    check_libraries()
    if training not in TRAININGS:
        raise ValueError(f"training must be one of {TRAININGS}, not {training!r}")
    files = options.get("files") or {}
    if misfit := conflict(training, options, files):
        raise ValueError(str(misfit))
    path = Path(path)
    family = check_model_folder(path, files)
    module, name = FAMILIES[family].split(".")
    cls: type[FlowModel] = getattr(importlib.import_module(f".{module}", __name__), name)
    from .loading import check_shard, resolve_device

    chosen = LoadOptions(**options)
    check_shard(chosen)
    model = cls.load(path, chosen, training)
    if training == "lora":
        model.add_adapter(rank=lora_rank, alpha=lora_alpha, targets=lora_targets, seed=seed)
        if chosen.shard:
            model.shard_frozen()  # before it settles: whole it may not fit the device
    model.settle(resolve_device(chosen.device))
    if training == "full":
        model.train_everything()
    return model


def conflict(training: str, options: Mapping, files: Mapping) -> Misfit | None:
    """Options of `load_flow_model` that do not go together, with the one to change."""
    quantize = options.get("quantize", "none")
    if quantize == "none":
        return None
    if training == "full":
        message = f"quantize = {quantize} freezes the weights that training = full changes"
        return Misfit("training", message, "quantize = none, or training = lora")
    if any(name.startswith("transformer") for name in files):
        message = "quantize does not go with a transformer from a single file"
        return Misfit("transformer_file", message, "quantize = none, or the folder's own transformer")
    if options.get("shard"):
        message = f"shard: weights in quantize = {quantize} cannot be spread over processes"
        return Misfit("memory", message, "quantize = none, or switch shard off")
    return None


def check_model_folder(path: Path, files: Mapping[str, Path] | None) -> str:
    """The family of a diffusers folder, after a look at its index and the header of every weight file; nothing is loaded.

    Args:
        files: single files by the component whose weights they hold; None where that is not known yet.

    Raises:
        FlowModelError: as `load_flow_model`.
    """
    index = path / "model_index.json"
    if not index.is_file():
        raise FlowModelError(
            f"{path} is not a diffusers model folder: it has no model_index.json. Fix: choose the folder that holds "
            "model_index.json, transformer/ and vae/"
        )
    components = read_index(path)
    family = components["_class_name"]
    if family not in FAMILIES:
        raise FlowModelError(
            f"{path} is a {str(family)[:100]}; supported are {', '.join(FAMILIES)}. Fix: choose one of those"
        )
    if unknown := sorted(set(files or ()) - {name for name, source in components.items() if isinstance(source, list)}):
        raise FlowModelError(
            f"{path}, a {family}, has no {unknown[0]}. Fix: choose no file for {unknown[0]} in Model Files"
        )
    for component, source in components.items():
        if not isinstance(source, list) or not source[0]:
            continue  # a plain setting, or an optional component that this model does without
        if not (path / component).is_dir():
            raise FlowModelError(f"{path} lacks the folder {component}. Fix: copy the whole model folder again")
        if component in _WEIGHTLESS:
            continue
        if files and component in files:
            _check_header(files[component])
            continue
        found = sorted((path / component).glob("*.safetensors"))
        if not found and files is not None:
            raise FlowModelError(
                f"{path / component} has no .safetensors weights. Fix: copy the whole folder again, or put its single file "
                f"into ComfyUI's models/{SINGLE_FILES[component]} and choose it in Model Files"
            )
        for file in found:
            _check_header(file)
    return family


def check_libraries() -> None:
    """Raises FlowModelError where the installed diffusers is one that runs what a model's folder brings."""
    installed = importlib.metadata.version("diffusers")
    if tuple(int(part) for part in re.findall(r"\d+", installed)[:2]) < DIFFUSERS:
        raise FlowModelError(
            f"diffusers {installed} runs Python files that lie in a model's folder, so none is loaded by it. Fix: pip install "
            f"-U 'diffusers>={'.'.join(map(str, DIFFUSERS))}' into this Python"
        )


def read_index(path: Path) -> dict[str, Any]:
    """What model_index.json in a diffusers folder says; its components are classes of LIBRARIES and nothing else.

    Raises:
        FlowModelError: it cannot be read, or names foreign code.
    """
    index = path / "model_index.json"
    try:
        components = json.loads(index.read_text(encoding="utf-8"))
        family = components["_class_name"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise FlowModelError(
            f"{index} cannot be read as a diffusers index ({error}). Fix: copy the model again"
        ) from error
    if not isinstance(family, str):
        raise _foreign(index, "_class_name", family)
    for component, source in components.items():
        if not isinstance(source, list) or source in ([None, None], []):
            continue
        plain = len(source) == 2 and all(isinstance(part, str) for part in source)
        if not (plain and component.isidentifier() and source[0] in LIBRARIES and source[1].isidentifier()):
            raise _foreign(index, component, source)
    return components


def library_class(folder: Path, library: str, name: str) -> type:
    """A network's class, of a component that `read_index` has let pass. Raises FlowModelError where it is none."""
    found = getattr(importlib.import_module(library), name, None) if library in LIBRARIES else None
    if not isinstance(found, type) or not hasattr(found, "from_pretrained"):
        raise _foreign(folder.parent / "model_index.json", folder.name, [library, name])
    return found


def _foreign(index: Path, component: str, source: object) -> FlowModelError:
    return FlowModelError(
        f"{index} wants {str(component)[:100]} to be {str(source)[:200]}, and only classes of {' and '.join(LIBRARIES)} are "
        "loaded. Fix: use a model in diffusers' own layout, from whom you trust"
    )


def _check_header(file: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as content:
            content.keys()
    except (SafetensorError, OSError) as error:
        raise FlowModelError(
            f"{file} is truncated or no safetensors file ({error}). Fix: copy or download that file again"
        ) from error
