"""A model's folder, looked at before anything of it is loaded."""

from __future__ import annotations

import hashlib
import json
import pkgutil
import re
from pathlib import Path
from typing import Any

from ...host import extras
from ...host.search import SINGLE_FILE, is_single_file
from ..policy.files import NETWORKS as TRAINED
from ..policy.files import shapes
from .options import FlowModelError
from .sizes import NETWORKS, RULES, SCHEDULER

LIBRARIES = ("diffusers", "transformers")  # whose classes a model may be made of; nothing else is imported for one
_LAYERS = re.compile(r"num_.*(layers|blocks)|layers_per_block|.*depth|.*block_types|block_out_channels")
_WEIGHTS = re.compile(r"(?P<stem>diffusion_pytorch_model|model)(\.(?P<variant>\w+))?(-\d+-of-\d+)?\.safetensors")
_SAMPLED = 64  # bytes of a tensor by which `identity` tells it from another one; of the last, which may have fewer, what there is
_WEIGHTLESS = {"scheduler", "tokenizer", "tokenizer_2", "tokenizer_3", "processor", "feature_extractor"}


def check_model_folder(path: Path) -> str:
    """The family of a diffusers folder, after a look at its index and the header of every weight file; nothing is loaded.

    Raises:
        FlowModelError: as `load_flow_model`.
    """
    index = path / "model_index.json"
    if is_single_file(path):
        raise FlowModelError(f"{path} {SINGLE_FILE}")
    if not index.is_file() and (path / "modular_model_index.json").is_file():
        raise FlowModelError(
            f"{path} is a modular pipeline of diffusers, which says nothing of how its parts work together. Fix: train the model "
            "as ComfyUI loads it, by Make Trainable, or choose a folder with a model_index.json"
        )
    if not index.is_file():
        raise FlowModelError(
            f"{path} is not a diffusers model folder: it has no model_index.json. Fix: choose the folder that holds "
            "model_index.json, transformer/ and vae/"
        )
    components = read_index(path)
    family = components["_class_name"]
    if family not in RULES:
        raise FlowModelError(
            f"{path} is a {str(family)[:100]}; supported are {', '.join(RULES)}. Fix: choose one of those"
        )
    for component in (SCHEDULER, *NETWORKS, *RULES[family].parts):
        source = components.get(component)
        if not isinstance(source, list) or not source[0] and component not in RULES[family].parts:
            raise FlowModelError(f"{index} names no {component}, which a {family} has. Fix: copy the model again")
    for component, source in components.items():
        if not isinstance(source, list) or not source[0]:
            continue  # a plain setting, or an optional component that this model does without
        if not (path / component).is_dir():
            raise FlowModelError(f"{path} lacks the folder {component}. Fix: copy the whole model folder again")
        if component in _WEIGHTLESS:
            continue
        _check_layers(path / component / "config.json", len(tensors(path / component)))
    scheduler = path / SCHEDULER / "scheduler_config.json"
    if not read_object(scheduler):
        raise FlowModelError(f"{scheduler} says nothing. Fix: copy the whole model folder again")
    return family


def _check_layers(config: Path, tensors: int) -> None:
    """Raises FlowModelError for more layers than there are tensors: such a network is built for minutes before that shows."""
    sections = [read_object(config)]
    for section in sections:  # some configurations hold those of their parts
        sections += [value for value in section.values() if isinstance(value, dict)]
        for name, value in section.items():
            count = len(value) if isinstance(value, list) else value
            if _LAYERS.fullmatch(name) and isinstance(count, int) and count > tensors:
                message = f"{config} says {name} = {count}, and the weights beside it are {tensors} tensors"
                raise FlowModelError(f"{message}. Fix: copy the whole model folder again")


def read_index(path: Path) -> dict[str, Any]:
    """Reads model_index.json of a diffusers folder; its components, the lists, are classes of LIBRARIES and nothing else.

    Raises:
        FlowModelError: it cannot be read, or names foreign code.
    """
    index = path / "model_index.json"
    components = read_object(index)
    if not isinstance(family := components.get("_class_name"), str):
        raise _foreign(index, "_class_name", family)
    for component, source in components.items():
        if not isinstance(source, list):
            continue
        if source in ([None, None], []):
            components[component] = [None, None]  # as diffusers itself writes that there is none
            continue
        if all(type(part) in (int, float) for part in source):
            components[component] = tuple(source)  # a setting, such as the numbers of layers, and no class
            continue
        plain = len(source) == 2 and all(isinstance(part, str) for part in source)
        if not (plain and component.isidentifier() and source[0] in LIBRARIES and source[1].isidentifier()):
            raise _foreign(index, component, source)
    return components


def read_object(file: Path) -> dict[str, Any]:
    """Reads a configuration file of a model folder. Raises FlowModelError if it is not a JSON object."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}")
    except (OSError, ValueError, RecursionError) as error:
        raise FlowModelError(f"{file} cannot be read ({error}). Fix: copy the whole model folder again") from error
    return content


def library_class(folder: Path, library: str, name: str) -> type:
    """A network's class, of a component that `read_index` has let pass. Raises FlowModelError if it is not one of theirs."""
    if library in LIBRARIES and not extras.installed(library):
        raise FlowModelError(f"{folder.parent} needs {library}, which is not installed. Fix: {extras.command(library)}")
    kind = getattr(pkgutil.resolve_name(library), name, None) if library in LIBRARIES else None
    if kind is None and library in LIBRARIES:
        raise FlowModelError(
            f"{folder.parent / 'model_index.json'} wants {folder.name[:100]} to be {[library, name[:100]]}, which {library} "
            f"{extras.installed(library)} does not have. Fix: {extras.command('-U', library)}, or use another model"
        )
    if not isinstance(kind, type) or not hasattr(kind, "from_pretrained"):
        raise _foreign(folder.parent / "model_index.json", folder.name, [library, name])
    return kind


def _foreign(index: Path, component: str, source: object) -> FlowModelError:
    return FlowModelError(
        f"{index} wants {str(component)[:100]} to be {str(source)[:200]}, and only classes of {' and '.join(LIBRARIES)} are "
        "loaded. Fix: use a model in diffusers' own layout, from whom you trust"
    )


def weights(folder: Path) -> tuple[list[Path], str]:
    """The files of a network's weights that are loaded, and their variant: "" where there are plain ones, else one that is there.

    Raises:
        FlowModelError: there is no such file, or not every one that the index names.
    """
    named = {file.name: match for file in folder.glob("*.safetensors") if (match := _WEIGHTS.fullmatch(file.name))}
    if not named:
        raise FlowModelError(f"{folder} has no .safetensors weights. Fix: copy the whole folder again")
    variant = min(match["variant"] or "" for match in named.values())
    kept = {name: match for name, match in named.items() if (match["variant"] or "") == variant}
    stem, end = next(iter(kept.values()))["stem"], f".{variant}" if variant else ""
    index = folder / f"{stem}.safetensors.index{end}.json"
    parts = read_object(index).get("weight_map") if index.is_file() else None
    wanted = set(map(str, parts.values())) if isinstance(parts, dict) else {f"{stem}{end}.safetensors"}
    if missing := sorted(wanted - kept.keys()):
        by = f", which {index.name} names" if index.is_file() else f" and no {index.name}"
        raise FlowModelError(f"{folder} has no {missing[0]}{by}. Fix: copy that file again, or the whole folder")
    return [folder / name for name in sorted(wanted)], variant


def tensors(folder: Path) -> dict[str, tuple[int, ...]]:
    """{name: shape} of a network's weights, by their files' headers. Raises FlowModelError as `weights`, and for damaged ones."""
    try:
        return {name: shape for file in weights(folder)[0] for name, shape in shapes(file).items()}
    except ValueError as error:
        raise FlowModelError(str(error)) from error


def identity(path: Path) -> str:
    """Tells the networks that are trained by their content: what the headers say of each tensor, and bytes from its middle."""
    digest = hashlib.sha256()
    for network in filter(Path.is_dir, (path / name for name in TRAINED)):
        parts: dict[str, bytes] = {}
        for file in weights(network)[0]:
            with file.open("rb") as content:
                length = int.from_bytes(content.read(8), "little")
                for name, entry in json.loads(content.read(length)).items():
                    if name != "__metadata__":
                        content.seek(8 + length + sum(entry["data_offsets"]) // 2)
                        described = json.dumps([network.name, name, entry["dtype"], entry["shape"]]).encode()
                        parts[name] = described + content.read(_SAMPLED)
        digest.update(b"".join(parts[name] for name in sorted(parts)))
    return f"files-{digest.hexdigest()[:16]}"
