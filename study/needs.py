"""What the training of a workflow needs on the GPU, from its graph and the headers of the files that it names: `otca memory`.

Nothing is loaded. Files are looked for in ComfyUI's folder, if it is given, and in $OTCA_MODELS; of a file that is not there the
published counts of trainer/flow/native/architectures.py are taken.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from ..host import paths
from ..host.access import permissions
from ..trainer.flow.files import opened
from ..trainer.flow.native import memory
from ..trainer.flow.native.architectures import ARCHITECTURES, FLUX_VAE, Architecture, architecture_of
from ..trainer.flow.native.memory import GB, Estimate
from ..trainer.types import (
    DATASET_NODE,
    MAKE_NODE,
    MATCHING_NODE,
    PAIRS_NODE,
    STEP_NODES,
    TRAJECTORY_NODES,
    SamplerSettings,
)
from ..trainer.workflow import graph as api

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


@dataclass(frozen=True)
class Case:
    """A workflow's training as `memory.estimate` asks for it. Fields are as there, or as of the nodes' inputs."""

    model: Architecture
    weights_bytes: int
    rank: int
    size: tuple[int, int, int]
    rows: int
    batch: int
    sampling_batch: int
    kept_steps: int
    checkpointing: bool
    is_low_memory: bool
    tiling: bool
    average: bool
    old_policy: bool
    encoder_bytes: int
    vae_file_bytes: int
    rewards: tuple[tuple[int, bool], ...]  # bytes, and whether it leaves the GPU when it has scored

    @property
    def needs(self) -> Estimate:
        resident = self.weights_bytes // self.model.layers if self.is_low_memory else self.weights_bytes
        staying = sum(size for size, offload in self.rewards if not offload)
        vae = replace(self.model.vae, bytes=self.vae_file_bytes)
        return memory.estimate(
            weights_bytes=resident,
            params=self.model.networks * self.model.lora * self.rank,
            tokens=self.model.tokens(*self.size),
            width=self.model.width,
            layers=self.model.layers,
            batch=self.batch * self.rows,
            checkpointing=self.checkpointing,
            kept_steps=self.kept_steps * self.rows,
            sampling_batch=self.sampling_batch * self.rows,
            saved=self.model.saved,
            average=self.average,
            old_policy=self.old_policy,
            text_encoder_bytes=self.encoder_bytes,
            vae_bytes=vae.needs(*self.size, self.tiling),
            reward_bytes=staying + max((size for size, offload in self.rewards if offload), default=0),
        )

    def changes(self) -> dict[str, Case]:
        """{what to change: the case that it makes}, for changes that need less memory, roughly from cheap to costly."""
        fp8 = self.model.networks * self.model.params
        cases = {
            "offload on every reward": replace(self, rewards=tuple((size, True) for size, _ in self.rewards)),
            "device cpu on every reward (slow)": replace(self, rewards=()),
            "the update's batch_size 1": replace(self, batch=1),
            "SDE Sampler batch_size 1": replace(self, sampling_batch=1),
            "SDE Sampler keep_graph off": replace(self, kept_steps=0),
            "Make Trainable checkpointing on": replace(self, checkpointing=True),
            "Make Trainable vae_tiling on": replace(self, tiling=True),
            "fp8 weights": replace(self, weights_bytes=min(self.weights_bytes, fp8)),
        }
        for size in self.model.sizes:
            if prod(size) < prod(self.size):
                cases["size " + in_words(size)] = replace(self, size=size)
        cases["Make Trainable memory low (slow)"] = replace(self, is_low_memory=True)
        return {words: case for words, case in cases.items() if case.needs.total < self.needs.total}


def in_words(size: tuple[int, int, int]) -> str:
    width, height, frames = size
    return f"{width} × {height}" + (f", {frames} frames" if frames > 1 else "")


def read(graph: Mapping[str, Mapping], comfyui: Path | None = None) -> tuple[Case, list[str]]:
    """The case of an API graph, and a line about each file: whether it was looked at.

    Raises:
        ValueError: the graph trains nothing that ComfyUI loaded, or a model is not here and not known by its name.
    """
    make = _the_only(graph, "Make Trainable", MAKE_NODE)
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
    return _case(graph, inputs, model, networks, encoders, autoencoders), lines


def _case(graph, make, model, networks, encoders, autoencoders) -> Case:
    source = _the_only(graph, "SDE Sampler or Preference Pairs", *TRAJECTORY_NODES)
    sampler = source["inputs"]
    update = _the_only(graph, "GRPO Step or Matching Step", *STEP_NODES)
    step = update["inputs"]
    settings = SamplerSettings()

    def of(name: str) -> Any:
        value = sampler.get(name, getattr(settings, name))
        return getattr(settings, name) if api.is_link(value) else value

    prompts = [entry["inputs"] for entry in graph.values() if entry["class_type"] == DATASET_NODE]
    samples = sampler.get("group_size", 12) * (prompts[0].get("prompts_per_iteration", 1) if prompts else 1)
    if source["class_type"] == PAIRS_NODE:
        samples = 2 * sampler.get("pairs_per_iteration", 4)
    guided = of("guidance") != 1 and not model.embeds_guidance
    judges = [entry for entry in graph.values() if entry["class_type"] in memory.REWARDS]
    sizes = [file.bytes for file, _ in encoders]
    return Case(
        model=model,
        weights_bytes=sum(_weights(model, file, loader) for file, loader in networks),
        rank=make.get("lora_rank", memory.RANK),
        size=(of("width"), of("height"), of("frames")),
        rows=2 if guided else 1,
        batch=step.get("batch_size") or samples,
        sampling_batch=of("batch_size") or samples,
        kept_steps=samples * (of("steps") - 1) if sampler.get("keep_graph") == "on" else 0,
        checkpointing=make.get("checkpointing", "auto") != "off",
        is_low_memory=make.get("memory") == "low",
        tiling=bool(make.get("vae_tiling")),
        average=bool(step.get("ema_decay")),
        old_policy=update["class_type"] == MATCHING_NODE and step.get("old_policy") != "on_policy",
        encoder_bytes=model.encoder_bytes if None in sizes else sum(filter(None, sizes)),
        vae_file_bytes=next((file.bytes for file, _ in autoencoders if file.bytes), model.vae.bytes),
        rewards=tuple((memory.REWARDS[entry["class_type"]], bool(entry["inputs"].get("offload"))) for entry in judges),
    )


def _the_only(graph: Mapping[str, Mapping], title: str, *kinds: str) -> Mapping:
    found = [entry for entry in graph.values() if entry["class_type"] in kinds]
    if len(found) != 1:
        raise ValueError(
            f"{title}: the workflow has {len(found)} of it, and memory is estimated for one. Fix: give a workflow with one, such "
            "as workflows/api/z_image.json; for Load Flow Model, `otca validate` says what fits"
        )
    return found[0]


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
