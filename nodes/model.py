"""Stage 1: the model that is trained."""

import contextlib
from pathlib import Path

from .. import canvas
from ..host import claim, comfyui, devices, extras, files, paths, search
from ..host.access.wants import ADAPTER as ADAPTER_FILE
from ..host.access.wants import MODEL, RUN_BEFORE, Naming, downloads
from ..host.text import plain_name, quoted
from ..trainer.flow import LoadOptions
from ..trainer.run.folder import CHECKPOINTS
from ..trainer.types import ATTENTIONS, MEMORY, QUANTIZATIONS, TRAININGS
from .inputs import DEVICE, Node, choice, dtype, found, integer, number, seed, socket, switch, text
from .training import RL, TRAIN

# Families by which people look for a loader.
MODELS = ("flux", "sd3", "wan", "z-image", "qwen-image")
MARKER = "model_index.json"
USUAL = {"dtype": "auto", "lora_targets": "", "max_sequence_length": 0, "training": "lora"}  # of a new Load Flow Model
INSTEAD = "Or have ComfyUI's own classes read this embedded model: add --comfyui PATH"
EDITS = "edit-flux"  # embedded; listed last, since the first one is what a new node begins with, and this one needs pictures
MOST_RANK = 1024

ADAPTER = {
    "lora_rank": integer(16, 1, MOST_RANK, label="adapter rank").tip("Rank of the adapter: how much it can change."),
    "lora_alpha": number(16, 0.01, 4096, step=0.5, label="adapter alpha").tip(
        "Alpha of the adapter, which is scaled by alpha / rank."
    ),
    "seed": seed(advanced=True).tip("Seed of the adapter's initial weights."),
}
RESUME_RUN = found(lambda: ["", *paths.list_runs()], "", names=Naming(RUN_BEFORE, asks="never")).tip(
    "On the canvas: start from this run's last checkpoint. Give Training Run the same name to resume it, another to branch "
    "off. Empty: a fresh adapter. Headlessly: --resume."
)
START_FROM = found(
    lambda: ["", *paths.list_adapters()], "", label="start from adapter", names=Naming(ADAPTER_FILE)
).tip("A LoRA file, or a run's adapter, to begin a new run with, of at most this rank. Empty: a fresh adapter.")


class LoadFlowModel(Node):
    TITLE = "Load Flow Model"
    CATEGORY = "OTCA/model"
    DESCRIPTION = (
        "Loads a flow-matching model (FLUX, SD3, Z-Image, Qwen-Image, Krea 2, Wan) and makes it trainable, by a LoRA "
        "adapter or as a whole."
    )
    SEARCH_ALIASES = [*TRAIN, *RL, *MODELS, "load model", "diffusers", "flow matching"]
    ESSENTIALS_CATEGORY = "Training"
    RETURN_TYPES = ("OTCA_MODEL",)
    RETURN_NAMES = ("model",)
    OUTPUT_TOOLTIPS = ("The model with its adapter, optimizer and average; the update changes it in place.",)
    FUNCTION = "load"
    NEEDS = ("diffusers",)

    REQUIRED = {
        "model": found(lambda: sorted(paths.list_models(MARKER), key=EDITS.__eq__), names=Naming(MODEL)).tip(
            "A diffusers model folder from ComfyUI's model folders, $OTCA_MODELS or assets/."
        ),
        **ADAPTER,
        "dtype": dtype(advanced=True).tip(
            "Precision of the frozen weights. auto: bfloat16 on an accelerator, else float32. The adapter is always "
            "float32."
        ),
    }
    OPTIONAL = {
        "path": text(label="another model folder", hint="a folder, or owner/name", names=Naming(MODEL)).tip(
            "A model folder anywhere else. Used instead of model when not empty."
        ),
        "lora_targets": text(
            suggest="layers", label="layers with adapter", hint="attention and feed-forward", advanced=True
        ).tip(
            "Layers that get the adapter: comma-separated ends of module names. Empty: the family's attention and "
            "feed-forward layers."
        ),
        "device": DEVICE,
        "max_sequence_length": integer(
            LoadOptions.max_sequence_length, 0, 4096, label="prompt tokens", advanced=True
        ).tip("Tokens of the text encoder. 0: the tokenizer's own limit, at most 512."),
        "resume_run": RESUME_RUN,
        "training": choice(TRAININGS, label="what is trained").tip(
            "lora: a small adapter. full: all weights, in float32: 22 to 24 bytes a parameter."
        ),
        "download": switch(advanced=True).tip(
            "A hub id (owner/name) as another model folder may be downloaded. Off: only the local cache is searched."
        ),
        "memory": socket("OTCA_MEMORY").tip("From Model Memory: ways to hold a large model in little memory."),
        "start_from": START_FROM.advanced(),
    }

    @classmethod
    def VALIDATE_INPUTS(
        cls,
        model=None,
        path="",
        resume_run="",
        download=False,
        start_from="",
        training="lora",
        lora_rank=None,
        lora_targets=None,
    ):
        if training not in (None, *TRAININGS):
            return f"training: {training!r} is unknown. Fix: choose {' or '.join(TRAININGS)}"
        source = None if path is None else path or model  # linked, it is known later
        lack = cls.lacks(model or "", path, training, lora_targets or "")
        return (
            wrong_adapter(lora_rank, lora_targets)
            or (resume_run and not start_from and wrong_resume(resume_run))
            or _wrong_model(model, path, download)
            or (start_from and wrong_start(start_from, resume_run, training, lora_rank, lora_targets, source))
            or (lack and "{}: {}".format(*lack))
            or True
        )

    @classmethod
    def lacks(cls, model="", path="", training="lora", lora_targets="", **_):  # the rest is said when it loads
        lacks = super().lacks()
        if lacks is None or None in (model, path) or not (path or model):  # known only when the graph runs
            return None
        lack = lacks[1]
        with contextlib.suppress(OSError, ValueError):  # it is not here, which `_wrong_model` says
            by_comfyui = not _takes_diffusers({"training": training, "lora_targets": lora_targets})
            if by_comfyui and _is_embedded(search.model(path or model, MARKER)):
                if comfyui.comfy_loaded():
                    return None
                lack = lack._replace(change=f"{lack.change}. {INSTEAD}")
        return "path" if path else "model", lack

    @classmethod
    def WANTS(cls, model="", path="", download=False, **inputs):
        own = {"path": path} if path != "" else {"model": model}
        return [*super().WANTS(**own, **inputs), *downloads(path, download, "path")]

    @devices.outside_inference
    def load(self, model, path="", device="auto", download=False, resume_run="", memory=None, start_from="", **options):
        from ..trainer.flow import load_flow_model

        devices.make_room()
        devices.empty_cache()
        if search.may_download(path, download):
            search.download(path)
        folder, device = search.model(path or model, MARKER), devices.chosen_device(device)
        loaded = _by_comfyui(folder, device=device, memory=memory, **options)
        loaded = loaded or load_flow_model(folder, device=device, **options, **(memory or {}))
        begin(loaded, resume_run, start_from)
        return (loaded,)


def _is_embedded(folder):
    """Whether that is an embedded model, which ComfyUI's own networks can read in place of diffusers'."""
    return folder.resolve().parent == paths.ASSETS.resolve()


def _takes_diffusers(inputs):
    """Whether an input asks of an embedded model what only diffusers gives."""
    return any(inputs.get(name) not in (None, usual) for name, usual in USUAL.items())


def _by_comfyui(folder, lora_rank, lora_alpha, seed, device, memory, **options):
    """An embedded model as Make Trainable gives it, where packages that read its folder are missing or too old.

    None where they are here, and where something is asked for that only they give.
    """
    from ..trainer.families.loading import resolve_device

    elsewhere = memory or _takes_diffusers(options) or resolve_device(device) != resolve_device("auto")
    readable = not extras.older("transformers", "5") and not extras.wrong("", *LoadFlowModel.NEEDS)
    if elsewhere or readable or not comfyui.comfy_loaded() or not _is_embedded(folder):
        return None
    from ..trainer.native import embedded, loading
    from ..trainer.policy.adapters import Adapter

    adapter = Adapter(lora_rank, lora_alpha, "", seed)
    return loading.make_trainable(*embedded.load(folder.name), adapter, is_guided_inside=True)


def begin(model, resume_run, start_from):
    """Has the model's training begin where its node says."""
    from ..canvas.ownership import Start, start
    from ..trainer.policy.files import find

    run = files.real(paths.run_folder(plain_name(resume_run))) if resume_run else None
    start(model, Start(run, find(start_from) if start_from else None))


def wrong_adapter(rank, targets):
    """The problem of an adapter: its rank, whose range ComfyUI leaves to a node that asks for the value, or its layers."""
    if rank is not None and not (isinstance(rank, int) and 1 <= rank <= MOST_RANK):
        return f"lora_rank = {quoted(rank)} is out of range. Fix: give one from 1 to {MOST_RANK}"
    if isinstance(targets, str) and targets.strip() and not targets.strip(" ,"):
        return f"lora_targets = {quoted(targets)} names no layer. Fix: leave it empty, or give ends of names, such as to_q, to_v"
    return None


def wrong_start(start_from, resume_run, training, rank, targets=None, source=None):
    """The reason why a model cannot begin with that adapter; None if it can. `source`: the model, if it is a folder."""
    from ..trainer.families.configured import check_start
    from ..trainer.policy import files, layouts

    if resume_run:
        return f"start_from: resume_run = {resume_run!r} already says where to begin. Fix: leave one of the two empty"
    if training == "full":
        return "start_from: all weights are trained, and this names an adapter. Fix: training = lora, or leave it empty"
    try:
        adapter, rank = files.find(start_from), MOST_RANK if rank is None else rank  # linked, it is known later
        folder = None
        with contextlib.suppress(FileNotFoundError):  # it may be downloaded
            folder = search.model(source, MARKER) if source else None
        if folder is not None:
            return check_start(folder, adapter, rank, targets)
        return layouts.check([(file, None, None) for file in files.weights_of(adapter)], rank)
    except (OSError, ValueError) as error:
        return f"start_from: {error}"


def wrong_resume(run):
    """The reason why a run of the canvas cannot be resumed; None if it can."""
    if not canvas.here():
        return "resume_run: resumes a run of the canvas. Fix: leave it empty, and use otca train RUN --resume"
    try:
        folder = paths.run_folder(plain_name(run))
    except ValueError as error:
        return f"resume_run = {run!r} {error}"
    if not (folder / CHECKPOINTS).is_dir():
        return f"resume_run: {folder} has no checkpoints. Fix: give the name of a run in {folder.parent}"
    try:
        claim.check(folder)
    except claim.Claimed as error:
        return f"resume_run: {error}"
    return None


def _wrong_model(model, path, download):
    """The problem of a model's folder; None if it has none, or where it may be downloaded."""
    from ..host.access.addresses import is_hub_id
    from ..trainer.flow import check_model_folder

    source = path or model
    if path is None or source is None:
        return None  # linked: what comes is known only when the graph runs
    names = paths.list_models(MARKER)
    if not path and model not in names:
        listed = ", ".join(names)
        return f"model {model!r} was not found here. Fix: choose {listed}, or give its folder as path"
    name = "path" if path else "model"
    try:
        if search.may_download(path, download):
            return None  # it may not be here yet
        folder = search.model(source, MARKER)
        check_model_folder(folder)
    except FileNotFoundError as error:
        to_download = is_hub_id(path) and not search.is_single_file(Path(path))
        return f"{name}: {error}" + (", or switch download on" if to_download else "")
    except (ValueError, PermissionError) as error:
        return f"{name}: {error}"
    return None


class ModelMemory(Node):
    TITLE = "Model Memory"
    CATEGORY = "OTCA/more"
    DESCRIPTION = "How a large model is held in little memory and computed fast; for Load Flow Model's memory socket."
    SEARCH_ALIASES = ["low vram", "offload", "quantize", "4-bit", "8-bit", "gradient checkpointing", "compile", "shard"]
    RETURN_TYPES = ("OTCA_MEMORY",)
    RETURN_NAMES = ("memory",)
    OUTPUT_TOOLTIPS = ("Options for Load Flow Model.",)
    FUNCTION = "choose"
    PURE = True

    REQUIRED = {
        "quantize": choice(QUANTIZATIONS, label="bits of the weights").tip(
            "Bits in which bitsandbytes holds the frozen transformer's weights."
        ),
        "offload_encoders": switch().tip("Text encoders are on the device only while they embed new prompts."),
        "vae_tiling": switch(label="decode in tiles").tip("Decodes large pictures in tiles: less memory, faint seams."),
        "gradient_checkpointing": switch().tip(
            "Computes activations twice instead of storing them: much less memory, a third slower."
        ),
        "attention": choice(ATTENTIONS, advanced=True).tip(
            "Attention backend of diffusers. auto: the one that diffusers chooses."
        ),
        "compile": switch(advanced=True).tip(
            "torch.compile of the transformer's blocks: a slow first call, faster ones after it."
        ),
    }
    OPTIONAL = {
        "offload_vae": switch(label="offload autoencoder").tip(
            "The autoencoder is on the device only while it decodes."
        ),
        "shard": switch(label="split over GPUs").tip(
            "Each of several GPUs (--gpus) holds a part of the frozen transformer: for models that do not fit "
            "into one. Loading takes main memory for each process. On one GPU it does nothing."
        ),
        "memory": choice(MEMORY, advanced=True).tip(
            "Blocks of the frozen transformer that stay in main memory and visit the device one by one. auto: as many "
            "as do not fit. low: all of them. Same results, more time."
        ),
    }

    @classmethod
    def needs(cls, quantize="none", **_):
        return {"quantize": ("quantize",)} if quantize not in (None, "none") else {}

    @classmethod
    def VALIDATE_INPUTS(cls, quantize=None):
        if quantize not in (None, *QUANTIZATIONS):
            return f"quantize: {quoted(quantize)} is unknown. Fix: choose one of {', '.join(QUANTIZATIONS)}"
        lack = cls.lacks(quantize=quantize)
        return "{}: {}. Or choose none".format(*lack) if lack else True

    def choose(self, **options):
        return (options,)
