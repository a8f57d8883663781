"""What the training of a workflow needs on the GPU, from its graph and the headers of the files that it names: `otca memory`.

Nothing is loaded. Files are looked for in ComfyUI's folder, if it is given, and in $OTCA_MODELS; of a file that is not there the
published counts of trainer/memory/architectures.py are taken.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from ...host import paths
from ...host.access import permissions
from ..policy.files import opened
from ..types import LOAD_NODE, MAKE_NODE
from ..workflow import graph as api
from . import native as memory
from . import needs_pipeline
from .architectures import ARCHITECTURES, FLUX_VAE, Architecture, architecture_of
from .case import Case
from .estimate import GB
from .native import NativeCase
from .needs_iteration import iteration, the_only

# Stock loaders: the inputs that name files, and the folder of ComfyUI's models; below, what a folder was once called.
LOADERS = {
    "UNETLoader": (("unet_name",), "diffusion_models"),
    "CLIPLoader": (("clip_name",), "text_encoders"),
    "DualCLIPLoader": (("clip_name1", "clip_name2"), "text_encoders"),
    "TripleCLIPLoader": (("clip_name1", "clip_name2", "clip_name3"), "text_encoders"),
    "VAELoader": (("vae_name",), "vae"),
}
ONCE = {"diffusion_models": "unet", "text_encoders": "clip"}
BLOCK = re.compile(r"(.*?\.\d+)\.(.+)\.weight")


@dataclass(frozen=True)
class File:
    """A file that a loader names.

    Attributes:
        name: as the loader has it.
        path: where it is; None where it is not here.
    """

    name: str
    path: Path | None

    @property
    def bytes(self) -> int | None:
        return self.path.stat().st_size if self.path else None


def read(graph: Mapping[str, Mapping], comfyui: Path | None = None) -> tuple[Case, list[str]]:
    """The case of an API graph, and a line about each file: whether it was looked at.

    Raises:
        ValueError: the graph trains no model or several, or a model is not here and not known by its name.
    """
    if any(entry["class_type"] == LOAD_NODE for entry in graph.values()):
        return needs_pipeline.read(graph)
    make = the_only(graph, "Make Trainable or Load Flow Model", MAKE_NODE)
    inputs, lines = make["inputs"], []
    networks = [files for name in ("model", "low_noise_model") for files in _files(graph, inputs.get(name), comfyui)]
    if not networks:
        raise ValueError("Make Trainable model: no Load Diffusion Model was found behind it. Fix: connect a UNETLoader")
    encoders = _files(graph, inputs.get("clip"), comfyui)
    autoencoders = _files(graph, inputs.get("vae"), comfyui)
    for file, _ in [*networks, *encoders, *autoencoders]:
        seen = f"read, {file.bytes / GB:.2f} GB" if file.bytes else "not here, published figures"
        lines.append(f"{file.name}: {seen}")
    model = replace(_architecture(networks[0][0]), networks=len(networks))
    sizes = [file.bytes for file, _ in encoders]
    case = NativeCase(
        model=model,
        weights_bytes=sum(_weights(model, file, loader) for file, loader in networks),
        rank=inputs.get("lora_rank", memory.RANK),
        checkpointing=inputs.get("checkpointing", "auto") != "off",
        is_low_memory=inputs.get("memory") == "low",
        tiling=bool(inputs.get("vae_tiling")),
        encoder_bytes=model.encoder_bytes if None in sizes else sum(filter(None, sizes)),
        vae_file_bytes=next((file.bytes for file, _ in autoencoders if file.bytes), model.vae.bytes),
        iteration=iteration(graph, off=None if model.embeds_guidance else 1.0),
    )
    return case, lines


def _files(graph: Mapping[str, Mapping], link: Any, comfyui: Path | None) -> list[tuple[File, Mapping]]:
    """The files of the stock loader that a link comes from, each with the loader's inputs; patches between are passed."""
    seen = set()
    while api.is_link(link) and link[0] in graph and link[0] not in seen:
        seen.add(link[0])
        entry = graph[link[0]]
        if entry["class_type"] in LOADERS:
            names, kind = LOADERS[entry["class_type"]]
            folders = paths.weight_folders(kind)
            folders += [comfyui / "models" / str(name) for name in (kind, ONCE.get(kind, kind))] if comfyui else []
            return [(_file(str(entry["inputs"].get(name, "")), folders), entry["inputs"]) for name in names]
        links = api.links(entry)
        link = next((list(links[name]) for name in ("model", "clip", "vae") if name in links), None)
    return []


def _file(name: str, folders: list[Path]) -> File:
    candidates = permissions.candidates(name, folders, "weights")
    return File(name, next((path for path in candidates if path.is_file()), None))


def _weights(model: Architecture, file: File, loader: Mapping) -> int:
    if str(loader.get("weight_dtype", "")).startswith("fp8"):
        return model.params
    published = memory.WEIGHT_BYTES["fp8" if "fp8" in file.name.lower() else "bfloat16"] * model.params
    return file.bytes or published


def _architecture(file: File) -> Architecture:
    """By the file's header where it is here, with what only the published configuration says; else by its name."""
    known = architecture_of(file.name)
    if file.path is None:
        if known is None:
            titles = ", ".join(model.title for model in ARCHITECTURES.values())
            raise ValueError(
                f"{file.name} is not here, and its name is none of a published model ({titles}). Fix: say by --comfyui where "
                "ComfyUI is, or rename the file as ComfyUI's templates have it"
            )
        return known
    with opened(file.path, "np") as content:
        shapes = {key: content.get_slice(key).get_shape() for key in content.keys()}
    params = sum(map(prod, shapes.values()))
    if known is not None:
        return replace(known, params=params)
    matrices = {key: shape for key, shape in shapes.items() if len(shape) == 2 and BLOCK.match(key)}
    if not matrices:
        raise ValueError(f"{file.path} has no blocks with weights. Fix: choose a file of a diffusion model")
    blocks = {match.group(1) for key in matrices if (match := BLOCK.match(key))}
    return Architecture(
        title=file.name,
        files=(),
        params=params,
        width=Counter(shape[1] for shape in matrices.values()).most_common(1)[0][0],
        layers=len(blocks),
        lora=sum(sum(shape) for shape in matrices.values()),
        encoder_bytes=0,
        vae=FLUX_VAE,
    )
