"""Stage 1: the model that is trained."""

from ..host import claim, comfyui, devices, paths, search
from ..host.names import plain_name
from ..trainer.run.layout import CHECKPOINTS

MOST_RANK = 1024


class LoadFlowModel:
    TITLE = "Load Flow Model"
    CATEGORY = "OTCA/model"
    DESCRIPTION = (
        "Loads a flow-matching model (FLUX, SD3, Wan) and makes it trainable, by a LoRA adapter or as a whole."
    )
    RETURN_TYPES = ("OTCA_MODEL",)
    RETURN_NAMES = ("model",)
    OUTPUT_TOOLTIPS = ("The model with its adapter, optimizer and average; the update changes it in place.",)
    FUNCTION = "load"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": (
                    paths.list_models("model_index.json"),
                    {"tooltip": "A diffusers model folder from ComfyUI's model folders, $OTCA_MODELS or assets/."},
                ),
                "lora_rank": (
                    "INT",
                    {
                        "default": 16,
                        "min": 1,
                        "max": MOST_RANK,
                        "tooltip": "Rank of the adapter: how much it can change.",
                    },
                ),
                "lora_alpha": (
                    "FLOAT",
                    {
                        "default": 16.0,
                        "min": 0.01,
                        "max": 4096.0,
                        "step": 0.5,
                        "tooltip": "The adapter is scaled by alpha / rank.",
                    },
                ),
                "seed": (
                    "INT",
                    {
                        "default": 0,
                        "min": 0,
                        "max": 2**63 - 1,
                        "control_after_generate": False,  # else the canvas would change it, and load anew, each time
                        "tooltip": "Seed of the adapter's initial weights.",
                    },
                ),
                "dtype": (
                    ["auto", "float32", "bfloat16", "float16"],
                    {
                        "default": "auto",
                        "tooltip": "Of the frozen weights. auto: bfloat16 on an accelerator, else float32. "
                        "The adapter is always float32.",
                    },
                ),
            },
            "optional": {
                "path": (
                    "STRING",
                    {"default": "", "tooltip": "A model folder anywhere else; used instead of `model` when not empty."},
                ),
                "lora_targets": (
                    "STRING",
                    {
                        "default": "",
                        "tooltip": "Comma-separated ends of module names; empty: the family's attention and "
                        "feed-forward layers.",
                    },
                ),
                "device": ("STRING", {"default": "auto", "tooltip": "auto, cpu, cuda, cuda:1 …"}),
                "max_sequence_length": (
                    "INT",
                    {
                        "default": 0,
                        "min": 0,
                        "max": 4096,
                        "tooltip": "Tokens of the text encoder; 0: the tokenizer's own limit, at most 512.",
                    },
                ),
                "resume_run": (
                    ["", *paths.list_runs()],
                    {
                        "default": "",
                        "tooltip": "On the canvas: a run whose last checkpoint to begin with. Give Training Run the same name to "
                        "go on with it, another to branch off. Empty: a fresh adapter. Headlessly: --resume.",
                    },
                ),
                "training": (
                    ["lora", "full"],
                    {
                        "default": "lora",
                        "tooltip": "lora: a small adapter. full: all weights, in float32: 22 to 24 bytes a parameter.",
                    },
                ),
                "transformer_file": (
                    "STRING",
                    {
                        "default": "",
                        "tooltip": "A .safetensors file from diffusion_models, or a path, in place of the folder's transformer.",
                    },
                ),
                "download": (
                    "BOOLEAN",
                    {
                        "default": False,
                        "tooltip": "A hub id as path (owner/name) may be downloaded; else only the local cache is searched.",
                    },
                ),
                "memory": (
                    "OTCA_MEMORY",
                    {"tooltip": "From Model Memory: ways to hold a large model in little memory."},
                ),
                "files": (
                    "OTCA_FILES",
                    {"tooltip": "From Model Files: single files in place of the folder's own weights."},
                ),
                "start_from": (
                    ["", *paths.list_adapters()],
                    {
                        "default": "",
                        "tooltip": "A LoRA file, or a run's adapter, to begin a new run with, of the same rank. Empty: a fresh "
                        "adapter.",
                    },
                ),
            },
        }

    @classmethod
    def VALIDATE_INPUTS(
        cls,
        model,
        path="",
        resume_run="",
        transformer_file="",
        download=False,
        files="",
        start_from="",
        training="lora",
        lora_rank=None,
    ):
        from ..host.access.addresses import is_hub_id
        from ..host.access.permissions import NotAllowed
        from ..trainer.flow import TRAININGS, FlowModelError, check_model_folder

        if training not in (None, *TRAININGS):
            return f"training: {training!r} is none of {', '.join(TRAININGS)}"
        if lora_rank is not None and not 1 <= lora_rank <= MOST_RANK:
            return f"lora_rank = {lora_rank} is out of range. Fix: give one from 1 to {MOST_RANK}"
        if start_from and (wrong := _wrong_start(start_from, resume_run, training, lora_rank)):
            return f"start_from: {wrong}"

        if resume_run and not comfyui.in_comfyui():
            return "resume_run: goes on with a run of the canvas. Fix: leave it empty, and use otca train RUN --resume"
        if resume_run:
            try:
                folder = paths.run_folder(plain_name(resume_run))
            except ValueError as error:
                return f"resume_run = {resume_run!r} {error}"
            if not (folder / CHECKPOINTS).is_dir():
                return f"resume_run: {folder} has no checkpoints. Fix: give the name of a run in {folder.parent}"
            try:
                claim.check(folder)
            except claim.Claimed as error:
                return f"resume_run: {error}"
        known = paths.list_models("model_index.json")
        if path is None or (model is None and not path):
            return True  # linked: what comes is known only when the graph runs
        if not path and model not in known:
            return f"model {model!r} is not in {known}. Fix: choose one of those, or give its folder as path"
        try:
            given = {"transformer": search.weights(transformer_file, "diffusion_models")} if transformer_file else {}
            if search.may_download(path, download):
                return True  # it may not be here yet
            # What comes through a link is known only when the graph runs: ComfyUI hands None for it.
            check_model_folder(search.model(path or model, "model_index.json"), None if files is None else given)
        except FileNotFoundError as error:
            more = ", or switch download on" if is_hub_id(path) else ""
            return f"{'path' if path else 'model'}: {error}{more}"
        except (FlowModelError, NotAllowed) as error:
            return f"{'path' if path else 'model'}: {error}"
        return True

    @classmethod
    def WANTS(cls, model="", path="", transformer_file="", download=False, start_from="", **_):
        from ..host.access.wants import downloads, reads

        files = [
            *reads(transformer_file, "its transformer", "transformer_file"),
            *reads(start_from, "an adapter", "start_from"),
        ]
        named = reads(path, "the model", "path") if path != "" else reads(model, "the model", "model")
        return [*named, *files, *downloads(path, download, "path")]

    @devices.outside_inference
    def load(
        self,
        model,
        lora_rank,
        lora_alpha,
        seed,
        dtype,
        path="",
        lora_targets="",
        device="auto",
        max_sequence_length=0,
        transformer_file="",
        download=False,
        resume_run="",
        training="lora",
        memory=None,
        files=None,
        start_from="",
    ):
        from ..trainer.flow import SINGLE_FILES, load_flow_model
        from ..trainer.inference import guidance
        from ..trainer.run.ownership import Start, start

        names = {**(files or {}), **({"transformer": transformer_file} if transformer_file else {})}
        found = {component: search.weights(name, SINGLE_FILES[component]) for component, name in names.items()}
        devices.make_room()
        devices.empty_cache()
        if search.may_download(path, download):
            search.download(path, without=found)
        loaded = load_flow_model(
            search.model(path or model, "model_index.json"),
            lora_rank=lora_rank,
            lora_alpha=lora_alpha,
            lora_targets=lora_targets,
            seed=seed,
            dtype=dtype,
            device=devices.chosen_device(device),
            max_sequence_length=max_sequence_length,
            files=found,
            training=training,
            **(memory or {}),
        )
        run = paths.run_folder(plain_name(resume_run)).resolve() if resume_run else None
        start(loaded, Start(run, guidance.find(start_from) if start_from else None))
        return (loaded,)


def _wrong_start(start_from, resume_run, training, rank):
    """What keeps a model from beginning with that adapter; empty where nothing does."""
    from ..trainer.flow import lora
    from ..trainer.inference import guidance

    if resume_run:
        return f"resume_run = {resume_run!r} already says where to begin. Fix: leave one of the two empty"
    if training == "full":
        return "all weights are trained, and what is named here is an adapter. Fix: training = lora, or leave it empty"
    try:
        adapter = guidance.find(start_from)
        found = {rank for file in guidance.files_of(adapter) for rank in lora.ranks(file)}
    except (OSError, ValueError) as error:
        return str(error)
    if len(found) != 1:
        return f"{adapter} is no LoRA of one rank. Fix: choose a file that training wrote"
    if rank is not None and found != {rank}:
        return f"{adapter} is of rank {min(found)}, and lora_rank is {rank}. Fix: lora_rank = {min(found)}"
    return ""


class ModelMemory:
    TITLE = "Model Memory"
    CATEGORY = "OTCA/model"
    DESCRIPTION = "How a large model is held in little memory and computed fast; for Load Flow Model's memory socket."
    RETURN_TYPES = ("OTCA_MEMORY",)
    RETURN_NAMES = ("memory",)
    OUTPUT_TOOLTIPS = ("Options for Load Flow Model.",)
    FUNCTION = "choose"
    PURE = True

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "quantize": (
                    ["none", "8bit", "4bit"],
                    {"default": "none", "tooltip": "Holds the frozen transformer in so few bits, by bitsandbytes."},
                ),
                "offload_encoders": (
                    "BOOLEAN",
                    {"default": False, "tooltip": "Text encoders are on the device only while they embed new prompts."},
                ),
                "vae_tiling": (
                    "BOOLEAN",
                    {"default": False, "tooltip": "Decodes large pictures in tiles: less memory, faint seams."},
                ),
                "gradient_checkpointing": (
                    "BOOLEAN",
                    {
                        "default": False,
                        "tooltip": "Computes activations twice instead of storing them: much less memory, a third slower.",
                    },
                ),
                "attention": (
                    ["auto", "native", "flash", "_flash_3", "sage", "xformers", "flex"],
                    {"default": "auto", "tooltip": "diffusers' attention backend; auto: its own choice."},
                ),
                "compile": (
                    "BOOLEAN",
                    {
                        "default": False,
                        "tooltip": "torch.compile of the transformer's blocks: slow first call, then faster.",
                    },
                ),
            },
            "optional": {
                "offload_vae": (
                    "BOOLEAN",
                    {"default": False, "tooltip": "The autoencoder is on the device only while it decodes."},
                ),
                "shard": (
                    "BOOLEAN",
                    {
                        "default": False,
                        "tooltip": "Each of several GPUs (--gpus) holds a part of the frozen transformer: for models that fit "
                        "none of them. Loading takes main memory for each process. On one GPU it does nothing.",
                    },
                ),
            },
        }

    def choose(self, **options):
        return (options,)


class ModelFiles:
    TITLE = "Model Files"
    CATEGORY = "OTCA/model"
    DESCRIPTION = "Single files as ComfyUI users have them, in place of a model folder's weights."
    RETURN_TYPES = ("OTCA_FILES",)
    RETURN_NAMES = ("files",)
    OUTPUT_TOOLTIPS = ("The chosen files, for Load Flow Model.",)
    FUNCTION = "choose"
    PURE = True

    FOLDERS_OWN = "the folder's own"
    WHAT = {
        "transformer": "The flow model; of Wan 2.2 the high-noise expert.",
        "transformer_2": "Wan 2.2's low-noise expert.",
        "text_encoder": "CLIP-L of FLUX and SD3; UMT5 of Wan.",
        "text_encoder_2": "T5 of FLUX; CLIP-G of SD3.",
        "text_encoder_3": "T5 of SD3.",
        "vae": "The autoencoder.",
    }

    @classmethod
    def INPUT_TYPES(cls):
        from ..trainer.flow import SINGLE_FILES

        return {
            "required": {
                component: (
                    [cls.FOLDERS_OWN, *paths.list_weights(kind)],
                    {"default": cls.FOLDERS_OWN, "tooltip": f"{cls.WHAT[component]} From ComfyUI's models/{kind}."},
                )
                for component, kind in SINGLE_FILES.items()
            }
        }

    @classmethod
    def VALIDATE_INPUTS(cls, transformer, transformer_2, text_encoder, text_encoder_2, text_encoder_3, vae):
        from ..host.access.permissions import NotAllowed
        from ..trainer.flow import SINGLE_FILES

        given = (transformer, transformer_2, text_encoder, text_encoder_2, text_encoder_3, vae)
        for (component, kind), name in zip(SINGLE_FILES.items(), given, strict=True):
            try:
                if name not in (None, cls.FOLDERS_OWN):
                    search.weights(name, kind)
            except (FileNotFoundError, NotAllowed) as error:
                return f"{component}: {error}"
        return True

    @classmethod
    def WANTS(cls, **names):
        from ..host.access.wants import reads

        return [
            want for component in cls.WHAT for want in reads(names.get(component, ""), f"its {component}", component)
        ]

    def choose(self, **names):
        return ({component: name for component, name in names.items() if name != self.FOLDERS_OWN},)
