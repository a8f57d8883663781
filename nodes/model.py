"""Stage 1: the model that is trained."""

from ..trainer import host
from ..trainer.layout import CHECKPOINTS, owner, plain_name


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
                    host.list_models("model_index.json"),
                    {"tooltip": "A diffusers model folder from ComfyUI's model folders, $OTCA_MODELS or assets/."},
                ),
                "lora_rank": (
                    "INT",
                    {"default": 16, "min": 1, "max": 1024, "tooltip": "Rank of the adapter: how much it can change."},
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
                    "STRING",
                    {
                        "default": "",
                        "tooltip": "On the canvas: a run to go on with, from its last checkpoint. Headlessly: --resume.",
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
            },
        }

    @classmethod
    def VALIDATE_INPUTS(cls, model, path="", resume_run="", transformer_file="", download=False, files=""):
        from ..trainer.flow import FlowModelError, check_model_folder

        if resume_run and not host.in_comfyui():
            return "resume_run: goes on with a run of the canvas. Fix: leave it empty, and use otca train RUN --resume"
        if resume_run:
            try:
                folder = host.run_folder(plain_name(resume_run))
            except ValueError as error:
                return f"resume_run = {resume_run!r} {error}"
            if not (folder / CHECKPOINTS).is_dir():
                return f"resume_run: {folder} has no checkpoints. Fix: give the name of a run in {folder.parent}"
            if process := owner(folder):
                return f"resume_run: process {process} is training in {folder}. Fix: stop it first"
        known = host.list_models("model_index.json")
        if path is None or (model is None and not path):
            return True  # linked: what comes is known only when the graph runs
        if not path and model not in known:
            return f"model {model!r} is not in {known}. Fix: choose one of those, or give its folder as path"
        try:
            given = {"transformer": host.find_weights(transformer_file, "diffusion_models")} if transformer_file else {}
            if (download or host.terminal.download) and host.is_hub_id(path):
                return True  # it may not be here yet
            # What comes through a link is known only when the graph runs: ComfyUI hands None for it.
            check_model_folder(host.find_model(path or model, "model_index.json"), None if files is None else given)
        except FileNotFoundError as error:
            more = ", or switch download on" if host.is_hub_id(path) else ""
            return f"{'path' if path else 'model'}: {error}{more}"
        except FlowModelError as error:
            return f"{'path' if path else 'model'}: {error}"
        return True

    @host.outside_inference
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
    ):
        from ..trainer import checkpoint
        from ..trainer.flow import SINGLE_FILES, load_flow_model

        names = {**(files or {}), **({"transformer": transformer_file} if transformer_file else {})}
        found = {component: host.find_weights(name, SINGLE_FILES[component]) for component, name in names.items()}
        host.make_room()
        host.empty_cache()
        if (download or host.terminal.download) and host.is_hub_id(path):
            host.download_model(path, without=found)
        loaded = load_flow_model(
            host.find_model(path or model, "model_index.json"),
            lora_rank=lora_rank,
            lora_alpha=lora_alpha,
            lora_targets=lora_targets,
            seed=seed,
            dtype=dtype,
            device=host.chosen_device(device),
            max_sequence_length=max_sequence_length,
            files=found,
            training=training,
            **(memory or {}),
        )
        if resume_run:
            folder = host.run_folder(resume_run).resolve()
            loaded.resumed_from = folder, checkpoint.restore(loaded, folder / CHECKPOINTS)
        return (loaded,)


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
                    [cls.FOLDERS_OWN, *host.list_weights(kind)],
                    {"default": cls.FOLDERS_OWN, "tooltip": f"{cls.WHAT[component]} From ComfyUI's models/{kind}."},
                )
                for component, kind in SINGLE_FILES.items()
            }
        }

    @classmethod
    def VALIDATE_INPUTS(cls, transformer, transformer_2, text_encoder, text_encoder_2, text_encoder_3, vae):
        from ..trainer.flow import SINGLE_FILES

        given = (transformer, transformer_2, text_encoder, text_encoder_2, text_encoder_3, vae)
        for (component, kind), name in zip(SINGLE_FILES.items(), given, strict=True):
            try:
                if name not in (None, cls.FOLDERS_OWN):
                    host.find_weights(name, kind)
            except FileNotFoundError as error:
                return f"{component}: {error}"
        return True

    def choose(self, **names):
        return ({component: name for component, name in names.items() if name != self.FOLDERS_OWN},)
