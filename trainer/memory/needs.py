"""Memory that the training of a workflow needs on the GPU, from its graph and what is known of its model: `otca memory`.

Nothing is loaded. A model of diffusers is rehearsed by its folder's configurations, or by published ones. What ComfyUI loads is
read off the headers of its files, which lie where `host/paths` says. A file that is not there counts as published
(`native.ARCHITECTURES`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from ...host import paths, search
from ...host.access import permissions
from ..policy.files import opened
from ..prompts import PRESET, picture_names, read_prompts
from ..schedule import stochastic_count
from ..types import (
    CREDIT_ONLY,
    DATASET_NODE,
    GIVEN_NODES,
    GRADIENT_NODE,
    LOAD_NODE,
    MAKE_NODE,
    MATCHING_NODE,
    RUN_NODE,
    STEP_NODE,
    STEP_NODES,
    TRAJECTORY_NODES,
    VIDEO_FRAMES,
    GradientSettings,
    RunSettings,
    SamplerSettings,
)
from ..workflow import graph as api
from . import native
from .case import ANY_GPU, CLIP_JUDGE, GB, JUDGING_BYTES, NARROW, REWARDS, Case, Iteration, Judge, Machine, Pull
from .native import Architecture, NativeCase

# Loaders, ComfyUI's own and ComfyUI-GGUF's: the inputs that name files, and the folder of ComfyUI's models.
CLIPS = tuple(f"clip_name{number}" for number in range(1, 5))
LOADERS = {
    "UNETLoader": (("unet_name",), "diffusion_models"),
    "UnetLoaderGGUF": (("unet_name",), "diffusion_models"),
    "CheckpointLoaderSimple": (("ckpt_name",), "checkpoints"),
    "CLIPLoader": (("clip_name",), "text_encoders"),
    "CLIPLoaderGGUF": (("clip_name",), "text_encoders"),
    "DualCLIPLoader": (CLIPS[:2], "text_encoders"),
    "DualCLIPLoaderGGUF": (CLIPS[:2], "text_encoders"),
    "TripleCLIPLoader": (CLIPS[:3], "text_encoders"),
    "QuadrupleCLIPLoader": (CLIPS, "text_encoders"),
    "VAELoader": (("vae_name",), "vae"),
}
# Of a checkpoint, by its loader's outputs: how the names of the tensors of each part begin (comfy/sd.py).
PARTS = (
    ("model.diffusion_model.",),
    ("text_encoders.", "conditioner.", "cond_stage_model."),
    ("vae.", "first_stage_model."),
)
VARIETY_NODE, RELATIVE_NODE, JUDGE_NODE = "OTCA_RewardVariety", "OTCA_RewardRelativeWords", "OTCA_RewardVLMJudge"
SCALES = ("weight_scale", "scale_weight", "comfy_quant")  # names of tensors of layers that stay quantized
BLOCK = re.compile(r"(.*?\.\d+)\.(.+)\.weight")


def read(graph: Mapping[str, Mapping], machine: Machine = ANY_GPU) -> tuple[Case, list[str]]:
    """The case of an API graph on that machine, and a line about each file or folder: whether it was looked at.

    Raises:
        ValueError: the graph trains no model or several, or a model is not here and not known by its name.
    """
    if any(entry["class_type"] == LOAD_NODE for entry in graph.values()):
        return _pipeline(graph, machine)
    return _native(graph, machine)


# --- Load Flow Model ---------------------------------------------------------------------------------------------------


def _pipeline(graph: Mapping[str, Mapping], machine: Machine) -> tuple[Case, list[str]]:
    import torch

    from ..families.options import LoadOptions
    from ..families.sizes import RULES
    from ..policy.adapters import Adapter
    from .blueprint import of_folder, published
    from .rehearsal import PipelineCase

    node = the_only(graph, "Load Flow Model", LOAD_NODE)
    inputs = plain(node["inputs"])
    name = inputs.get("path") or inputs.get("model", "")
    try:
        pipeline, line = of_folder(search.model(name, "model_index.json")), f"{name}: its configurations were read"
    except FileNotFoundError as error:
        if name not in published():
            raise ValueError(f"{error}. Known without their folder: {', '.join(published())}") from error
        pipeline, line = published()[name], f"{name}: not here, published configurations"
    memory = node["inputs"].get("memory")
    options = plain(graph[memory[0]]["inputs"]) if api.is_link(memory) else {}
    options |= {key: inputs[key] for key in ("max_sequence_length", "dtype") if key in inputs}
    loaded = LoadOptions(**{key: value for key, value in options.items() if key in LoadOptions.__dataclass_fields__})
    dtypes = {"float32": torch.float32, "float16": torch.float16}
    lora = inputs.get("training", "lora") == "lora"
    adapter = Adapter(inputs.get("lora_rank", 16), inputs.get("lora_alpha", 16.0), inputs.get("lora_targets", ""))
    guidance = RULES[pipeline.pipeline].guidance
    case = PipelineCase(
        blueprint=pipeline,
        adapter=adapter if lora else None,
        options=loaded,
        dtype=dtypes.get(loaded.dtype, torch.bfloat16 if machine.device else torch.float32),
        iteration=iteration(graph, guidance and guidance.off),
        machine=machine,
    )
    return case, [line]


# --- Make Trainable ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class File:
    """A file that a loader names.

    Attributes:
        name: as the loader has it.
        path: where it is, or None if it is not here.
        begins: how the names of its tensors begin that count; none: all of the file.
    """

    name: str
    path: Path | None
    begins: tuple[str, ...] = ()

    @cached_property
    def bytes(self) -> int | None:
        """None where it is not here, or not any more."""
        if self.path is None or not self.begins:
            with suppress(FileNotFoundError):
                return self.path.stat().st_size if self.path else None
            return None
        return sum(size for size, _ in self.tensors().values())

    def held(self, machine: Machine) -> int | None:
        """Bytes of a network as ComfyUI holds it there: on a GPU in 16 bits at most, on a CPU in float32 where it widens that.
        Weights that have a scale stay as they are."""
        if self.path is None or self.path.suffix != ".safetensors":
            return self.bytes
        tensors = self.tensors()
        if any(name.endswith(SCALES) for name in tensors):
            return self.bytes
        if machine.widens and not machine.device:
            return sum(native.FLOAT32_BYTES * prod(shape) for _, shape in tensors.values())
        return sum(min(size, native.COMPUTE_BYTES * prod(shape)) for size, shape in tensors.values())

    def tensors(self) -> dict[str, tuple[int, list[int]]]:
        """{name: bytes, shape} of those that count, by the file's header. Raises ValueError as `opened`."""
        counts = {}
        assert self.path is not None, "asked only of a file that is here"
        with opened(self.path, "np") as content:
            for key in content.keys():
                if key.startswith(self.begins or ""):
                    tensor = content.get_slice(key)
                    bits = re.search(r"\d+", tensor.get_dtype())  # BF16, F8_E4M3; BOOL has a byte
                    counts[key] = prod(tensor.get_shape()) * (int(bits[0]) if bits else 8) // 8, tensor.get_shape()
        return counts


@dataclass(frozen=True)
class Files:
    """The files behind a Make Trainable, each with the inputs of its loader."""

    networks: list[tuple[File, Mapping]]
    encoders: list[tuple[File, Mapping]]
    autoencoders: list[tuple[File, Mapping]]

    @classmethod
    def of(cls, graph: Mapping[str, Mapping], inputs: Mapping[str, Any]) -> Files:
        """By the inputs of a Make Trainable."""
        sockets = (("model", "low_noise_model"), ("clip",), ("vae",))
        return cls(*([file for name in names for file in files_behind(graph, inputs.get(name))] for names in sockets))

    @property
    def all(self) -> list[File]:
        return [file for file, _ in (*self.networks, *self.encoders, *self.autoencoders)]


def _native(graph: Mapping[str, Mapping], machine: Machine) -> tuple[NativeCase, list[str]]:
    inputs = the_only(graph, "Make Trainable or Load Flow Model", MAKE_NODE)["inputs"]
    files = Files.of(graph, inputs)
    networks, encoders, autoencoders = files.networks, files.encoders, files.autoencoders
    if not networks:
        raise ValueError("Make Trainable model: no Load Diffusion Model was found behind it. Fix: connect a UNETLoader")
    judging = [file for link in _judging(graph) for file in files_behind(graph, link)]
    lines = [
        f"{file.name}: " + (f"read, {file.bytes / GB:.2f} GB" if file.bytes else "not here, published figures")
        for file in dict.fromkeys([*files.all, *(file for file, _ in judging)])
    ]
    model = replace(_architecture(networks[0][0]), networks=len(networks))
    sizes = [file.bytes for file, _ in encoders]
    case = NativeCase(
        model=model,
        weights_bytes=sum(_weights(model, file, loader, machine) for file, loader in networks),
        trained=model.networks * model.lora * inputs.get("lora_rank", native.RANK),
        checkpointing=(wish := {"on": True, "off": False}.get(inputs.get("checkpointing", "auto"))),
        kept_blocks=None if wish is None else 0,
        is_low_memory=inputs.get("memory") == "low",
        tiling=bool(inputs.get("vae_tiling")),
        encoder_bytes=model.encoder_bytes if None in sizes else sum(filter(None, sizes)),
        vae_bytes=next((file.bytes for file, _ in autoencoders if file.bytes), model.vae.bytes),
        iteration=iteration(graph, None if model.embeds_guidance else 1.0, bool(machine.device)),
        compute_bytes=native.COMPUTE_BYTES if machine.device else native.FLOAT32_BYTES,
        machine=machine,
    )
    return case, lines


def filed(graph: Mapping[str, Mapping]) -> str:
    """The type of 16 bits that all numbers of a graph's networks have in their files: bf16, fp16, or "" for anything else."""
    kinds: set[str] = set()
    for entry in graph.values():
        for file, _ in Files.of(graph, entry["inputs"]).networks if entry["class_type"] == MAKE_NODE else ():
            with (
                opened(file.path, "np")
                if file.path and file.path.suffix == ".safetensors"
                else nullcontext() as content
            ):
                kinds |= {content.get_slice(key).get_dtype() for key in content.keys()} if content else {""}
    return {"BF16": "bf16", "F16": "fp16"}.get(kinds.pop(), "") if len(kinds) == 1 else ""


def _judging(graph: Mapping[str, Mapping]) -> list[Any]:
    """The links of CLIPs that judge, each once."""
    links = [entry["inputs"].get("judge") for entry in graph.values() if entry["class_type"] == JUDGE_NODE]
    return [list(link) for link in dict.fromkeys(tuple(link) for link in links if api.is_link(link))]


def files_behind(graph: Mapping[str, Mapping], link: Any) -> list[tuple[File, Mapping]]:
    """The files of the stock loader that a link comes from, each with the loader's inputs; patches between are passed."""
    visited = set()
    while api.is_link(link) and link[0] in graph and link[0] not in visited:
        visited.add(link[0])
        entry = graph[link[0]]
        if entry["class_type"] in LOADERS:
            names, kind = LOADERS[entry["class_type"]]
            folders = paths.weight_folders(kind)
            begins = PARTS[min(int(link[1]), 2)] if kind == "checkpoints" else ()
            named = [str(entry["inputs"].get(name, "")) for name in names]
            places = {name: permissions.candidates(name, folders, "weights") for name in named}
            files = {name: next((path for path in places[name] if path.is_file()), None) for name in named}
            return [(File(name, files[name], begins), entry["inputs"]) for name in named]
        links = api.links(entry)
        link = next((list(links[name]) for name in ("model", "clip", "vae") if name in links), None)
    return []


def _weights(model: Architecture, file: File, loader: Mapping, machine: Machine) -> int:
    if str(loader.get("weight_dtype", "")).startswith("fp8"):
        return model.params
    published = native.WEIGHT_BYTES["fp8" if "fp8" in file.name.lower() else "bfloat16"] * model.params
    return file.held(machine) or published


def _architecture(file: File) -> Architecture:
    """By the file's header if it is here, with what only the published configuration says; else by its name."""
    kind = native.architecture_of(file.name)
    if kind is not None and (file.path is None or file.path.suffix != ".safetensors"):
        return kind
    if file.path is None:
        titles = ", ".join(model.title for model in native.ARCHITECTURES.values())
        raise ValueError(
            f"{file.name} is not here, and its name is not that of a published model ({titles}). Fix: say by --comfyui where "
            "ComfyUI is, or rename the file as ComfyUI's templates have it"
        )
    shapes = {key: shape for key, (_, shape) in file.tensors().items()}
    params = sum(map(prod, shapes.values()))
    matrices = {key: shape for key, shape in shapes.items() if len(shape) == 2 and BLOCK.match(key)}
    blocks = {match.group(1) for key in matrices if (match := BLOCK.match(key))}
    if kind is not None:  # a file with fewer blocks has as many fewer layers with an adapter
        layers = min(kind.layers, len(blocks) or kind.layers)
        return replace(kind, params=params, layers=layers, lora=kind.lora * layers // kind.layers)
    if not matrices:
        raise ValueError(f"{file.path} has no blocks with weights. Fix: choose a file of a diffusion model")
    return Architecture(
        title=file.name,
        params=params,
        width=Counter(shape[1] for shape in matrices.values()).most_common(1)[0][0],
        layers=len(blocks),
        lora=sum(sum(shape) for shape in matrices.values()),
        encoder_bytes=0,
        vae=native.FLUX_VAE,
    )


# --- sampler, update and rewards ---------------------------------------------------------------------------------------


def iteration(graph: Mapping[str, Mapping], off: float | None, has_gpu: bool = True) -> Iteration:
    """The settings of an API graph that decide its memory.

    `off`: classifier-free guidance above it takes a second row; None: guidance is a number that the network takes.
    `has_gpu`: without one all judges compute in main memory, and stay there.

    Raises:
        ValueError: a node that it takes is missing, or there are several.
    """
    source = the_only(graph, "SDE Sampler or My Pictures", *TRAJECTORY_NODES)
    update = the_only(graph, "GRPO Step or Matching Step", *STEP_NODES)
    sampler, step = plain(source["inputs"]), plain(update["inputs"])
    pairs = source["class_type"] in GIVEN_NODES
    settings = SamplerSettings.of_node(source["class_type"], {"levels": 1, **sampler} if pairs else sampler)
    prompts = [plain(entry["inputs"]) for entry in graph.values() if entry["class_type"] == DATASET_NODE]
    count = prompts[0].get("prompts_per_iteration", 1) if prompts else 1
    group = 2 if pairs else sampler.get("group_size", 12)
    samples = 2 * sampler.get("pairs_per_iteration", 4) if pairs else group * count
    matching, pulls = (update["class_type"] == kind for kind in (MATCHING_NODE, GRADIENT_NODE))
    relative = [entry for entry in graph.values() if entry["class_type"] == RELATIVE_NODE]
    asking = {link[0]: entry for entry in relative if (link := api.links(entry).get("reward"))}
    judges = [
        _judge(entry, settings.frames, asking.get(number))
        for number, entry in graph.items()
        if entry["class_type"] in REWARDS and not (has_gpu and entry["inputs"].get("device") == "cpu")
    ]
    # ComfyUI loads these when they are asked, and moves them out of the way when the update needs the room.
    for link in _judging(graph):
        sizes = [file.bytes for file, _ in files_behind(graph, link)]
        judges.append(Judge(CLIP_JUDGE if None in sizes or not sizes else sum(filter(None, sizes)), offload=True))
    followed = [entry["class_type"] for entry in graph.values() if not entry["inputs"].get("held_out")]
    compares = pulls and VARIETY_NODE in followed  # whole groups in a pass
    own = [
        RunSettings.from_inputs(plain(entry["inputs"])) for entry in graph.values() if entry["class_type"] == RUN_NODE
    ]
    shown = own[0].evaluated(settings) if own and own[0].evaluate_every else settings
    size, evaluated = ((how.width, how.height, how.frames) for how in (settings, shown))
    guided, apart = (off is not None and max(how.guidance, how.guidance_2) > off for how in (settings, shown))
    # Of `ode` every step is trained: the picture is noised again.
    trained = max(1, settings.transitions if settings.kind == "ode" else stochastic_count(settings))
    return Iteration(
        size=size,
        samples=samples,
        alike=group if settings.shared_noise else 1,
        prompts=samples // 2 if pairs else count,
        references=max(map(_references, prompts), default=0),
        steps=settings.transitions,
        trained_steps=trained,
        batch=max(step.get("batch_size") or samples, group if compares else 1),
        sampling_batch=settings.batch_size or samples,
        guided=guided,
        evaluated=(evaluated, apart) if (evaluated, apart) != (size, guided) else None,
        both=step.get("unconditional_gradient", True),
        kept_calls=_kept(sampler, update, trained, samples),
        merge_adapter=settings.merge_adapter,
        copies=bool(step.get("ema_decay")) + (matching and step.get("old_policy") != "on_policy"),
        pulled=bool(step.get("kl_coefficient", pulls and GradientSettings.kl_coefficient)) or matching,
        rewards=tuple(judges if has_gpu else (replace(judge, offload=False) for judge in judges)),
        pull=_pull(update["inputs"], settings.transitions) if pulls else None,
    )


def updates_more_at_once(update: Mapping, sampled: int, samples: int) -> bool:
    """Whether this node of an API graph computes more of the samples in a call than a rollout of `sampled`; 0: all.

    Then its own few calls are quicker than the backward passes of the rollout's many (bench/RESULTS.md).
    """
    updated = plain(update["inputs"]).get("batch_size", 0)
    return min(sampled or samples, samples) < min(updated or samples, samples)


def _kept(sampler: Mapping[str, Any], update: Mapping, trained: int, samples: int) -> int | None:
    """The number of trained calls whose graphs are kept; None: as many as there is memory for.

    "on" keeps them also for an update that computes all again.
    """
    kind, step, wanted = update["class_type"], plain(update["inputs"]), sampler.get("keep_graph")
    if kind not in (STEP_NODE, GRADIENT_NODE):
        return 0
    if wanted == "on" and kind == STEP_NODE:
        return trained
    again = step.get("epochs", 1) * step.get("parts", 1) > 1 or step.get("sampled_steps")
    more = updates_more_at_once(update, sampler.get("batch_size", 0), samples)
    return 0 if again or more or wanted == "off" else None


def _references(inputs: Mapping[str, Any]) -> int:
    """How many pictures a prompt of a Prompt Dataset works on, at most; 0 for prompts that the node itself refuses."""
    try:
        return max(
            len(picture_names(prompt))
            for prompt in read_prompts(inputs.get("prompts", ""), inputs.get("file", ""), PRESET)
        )
    except (ValueError, permissions.NotAllowed):
        return 0


def _judge(node: Mapping, frames: int, asking: Mapping | None) -> Judge:
    """`asking`: the Relative Words that asks it twice, and then decides whether it is followed."""
    inputs, looked_at = plain(node["inputs"]), min(frames, VIDEO_FRAMES)
    held_out = (asking or node)["inputs"].get("held_out")
    graph = 0 if held_out else (2 if asking else 1) * looked_at * JUDGING_BYTES.get(node["class_type"], 0)
    batch = 0 if asking or node["class_type"] == VARIETY_NODE else inputs.get("batch_size", 0)
    judge = Judge(REWARDS[node["class_type"]], bool(inputs.get("offload")), graph, batch and max(1, batch // looked_at))
    judge = replace(judge, is_wide=node["class_type"] not in NARROW)
    if inputs.get("dtype") == "float32" and not judge.is_wide:
        return replace(judge, bytes=2 * judge.bytes)
    return judge.narrow if inputs.get("dtype") in ("bfloat16", "float16") else judge


def _pull(inputs: Mapping[str, Any], transitions: int) -> Pull:
    mode, tile, also, steps = (
        plain(inputs).get(name, getattr(GradientSettings, name)) for name in ("mode", "tile", "also", "steps")
    )
    connected = api.is_link(inputs.get("advantages"))
    drawn_later = mode == "low_variance" or connected and also == CREDIT_ONLY  # by a credit
    calls = 2 * steps if mode == "leap" else min(steps or transitions, transitions)
    adds = connected and also != CREDIT_ONLY
    return Pull(mode in ("one_call", "low_variance"), tile, adds, 0 if drawn_later else calls)


def plain(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that are not links; for the others their nodes' defaults have to do."""
    return {name: value for name, value in inputs.items() if not api.is_link(value)}


def the_only(graph: Mapping[str, Mapping], title: str, *kinds: str) -> Mapping:
    """The one node of these kinds. Raises ValueError if there is not exactly one."""
    entries = [entry for entry in graph.values() if entry["class_type"] in kinds]
    if len(entries) != 1:
        raise ValueError(
            f"{title}: the workflow has {len(entries)} of it, and memory is estimated for one. Fix: give a workflow with one, "
            "such as workflows/api/z_image.json or workflows/api/otca_flux.json"
        )
    return entries[0]
