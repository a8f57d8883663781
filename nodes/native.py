"""Stage 1 for what ComfyUI has loaded: MODEL, CLIP and VAE in, and a tuned MODEL out; and the embedded model as such."""

from ..host import comfyui, devices
from ..trainer.types import CHECKPOINTING, MEMORY
from .inputs import Node, choice, number, socket, switch, text
from .model import ADAPTER, MODELS, RESUME_RUN, START_FROM, begin, wrong_adapter, wrong_resume, wrong_start
from .training import RL, TRAIN


class MakeTrainable(Node):
    TITLE = "Make Trainable"
    CATEGORY = "OTCA/model"
    DESCRIPTION = (
        "Puts a LoRA adapter on a model that ComfyUI's own nodes have loaded, so that the nodes after it can train it. Any "
        "flow-matching model of pictures or videos, also a quantized one. The MODEL itself stays as it is for other nodes."
    )
    SEARCH_ALIASES = [*TRAIN, *RL, *MODELS, "add lora", "adapter", "peft"]
    ESSENTIALS_CATEGORY = "Training"
    RETURN_TYPES = ("OTCA_MODEL",)
    RETURN_NAMES = ("model",)
    OUTPUT_TOOLTIPS = ("The model with its adapter, optimizer and average; the update changes it in place.",)
    FUNCTION = "make"
    NEEDS_COMFYUI = True

    REQUIRED = {
        "model": socket("MODEL").tip("From a loader node, with its patches such as ModelSampling."),
        "clip": socket("CLIP").tip("The text encoders that belong to the model."),
        "vae": socket("VAE").tip("The autoencoder that belongs to the model."),
        **ADAPTER,
    }
    OPTIONAL = {
        "low_noise_model": socket("MODEL").tip(
            "The second model of a family with two, as Wan 2.2 14B: it works below the noise level of the switch."
        ),
        "conditioning": socket("CONDITIONING").tip(
            "What it carries besides its text goes along with every prompt: reference latents of an edit model, the "
            "first frame of an image-to-video model, FluxGuidance."
        ),
        "lora_targets": text(
            suggest="layers", label="layers with adapter", hint="attention and feed-forward", advanced=True
        ).tip(
            "Layers that get the adapter: comma-separated ends of their names. Empty: attention and feed-forward "
            "of all blocks. A name that fits nothing is refused with the list of those that there are."
        ),
        "resume_run": RESUME_RUN,
        "start_from": START_FROM,
        "checkpointing": choice(CHECKPOINTING, advanced=True).tip(
            "Computes activations twice instead of storing them: much less memory, a third slower. auto: on "
            "where they would take more than half of the memory that the weights leave."
        ),
        "memory": choice(MEMORY).tip(
            "auto: ComfyUI decides how much of the weights is on the device. low: they visit it layer by layer, slowly."
        ),
        "vae_tiling": switch(label="decode in tiles", advanced=True).tip(
            "Decodes large pictures in tiles: less memory, faint seams."
        ),
        "boundary": number(0.875, 0, 1, step=0.005, label="noise level of the switch", advanced=True).tip(
            "Noise level below which the low noise model works: 0.875 for Wan 2.2's text to video, 0.9 for its image "
            "to video."
        ),
        "check_gradients": switch(True, advanced=True).tip(
            "Before the first update compares derivatives with finite differences, and trains nothing if one "
            "is wrong. Costs three model calls of one sample, once."
        ),
        "compile": switch(advanced=True).tip(
            "torch.compile of the transformer's blocks: a slow first call, faster ones after it."
        ),
    }

    @classmethod
    def VALIDATE_INPUTS(cls, resume_run="", start_from="", lora_rank=None, lora_targets=None):
        return (
            wrong_adapter(lora_rank, lora_targets)
            or (start_from and wrong_start(start_from, resume_run, "lora", lora_rank))
            or (resume_run and wrong_resume(resume_run))
            or True
        )

    @devices.outside_inference
    def make(
        self,
        model,
        clip,
        vae,
        lora_rank,
        lora_alpha,
        seed,
        low_noise_model=None,
        lora_targets="",
        resume_run="",
        start_from="",
        **options,
    ):
        from ..trainer.native.loading import make_trainable
        from ..trainer.policy.adapters import Adapter

        adapter = Adapter(lora_rank, lora_alpha, lora_targets, seed)
        made = make_trainable(model, clip, vae, adapter, low_noise=low_noise_model, **options)
        begin(made, resume_run, start_from)
        return (made,)


class TunedModel(Node):
    TITLE = "Tuned Model"
    CATEGORY = "OTCA/model"
    DESCRIPTION = (
        "What has been trained, as a MODEL for ComfyUI's own nodes: a KSampler after it shows what the training changed, "
        "beside one with the untouched MODEL."
    )
    SEARCH_ALIASES = ["trained model", "apply lora", "before and after", "ksampler", "preview training"]
    RETURN_TYPES = ("MODEL", "CLIP", "VAE", "MODEL")
    RETURN_NAMES = ("model", "clip", "vae", "low_noise_model")
    OUTPUT_TOOLTIPS = (
        "The model with the adapter as it stands now; later updates do not change it.",
        "The text encoders as they came in.",
        "The autoencoder as it came in.",
        "The second model of a family with two; else nothing.",
    )
    FUNCTION = "tuned"
    NEEDS_COMFYUI = True

    REQUIRED = {
        "model": socket("OTCA_MODEL").tip(
            "The model as GRPO Step or Matching Step gives it, so that the update is in it. It comes from Make "
            "Trainable."
        )
    }

    @classmethod
    def IS_CHANGED(cls, **_):
        return float("nan")  # a model on this edge changes in place

    @devices.outside_inference
    def tuned(self, model):
        from ..trainer.native.loading import tuned
        from ..trainer.native.model import HIGH, LOW, NativeModel

        if not isinstance(model, NativeModel):
            raise ValueError(
                "model: it comes from Load Flow Model, whose weights ComfyUI's own nodes cannot take. Fix: save it with Save "
                "LoRA and load the file with LoraLoader, or train the model of a loader node by Make Trainable"
            )
        models = tuned(model)
        return models[HIGH], model.clip, model.vae, models.get(LOW)


EMBEDDED = ("shapes-flux", "scenes-flux", "edit-flux")


class EmbeddedModel(Node):
    TITLE = "Embedded Model"
    CATEGORY = "OTCA/more"
    DESCRIPTION = (
        "A tiny FLUX that comes with the pack, as MODEL, CLIP and VAE: to try stock nodes and training on a CPU."
    )
    SEARCH_ALIASES = ["tiny flux", "flux", "demo", "cpu", "load model", "shapes", "scenes", "kontext", "edit"]
    RETURN_TYPES = ("MODEL", "CLIP", "VAE")
    RETURN_NAMES = ("model", "clip", "vae")
    OUTPUT_TOOLTIPS = (
        "ComfyUI's own Flux at a tiny size: for KSampler, and for Make Trainable.",
        "Its two text encoders: for CLIP Text Encode.",
        "Its autoencoder, of 4 x 4 pixels to a latent position: for VAE Decode and VAE Encode.",
    )
    FUNCTION = "load"
    NEEDS_COMFYUI = True

    REQUIRED = {
        "model": choice(EMBEDDED).tip(
            "Which of the models that come with the pack. edit-flux edits the picture that a prompt names."
        )
    }

    @classmethod
    def VALIDATE_INPUTS(cls, model=None):
        return (model is not None and _wrong(model)) or True  # linked, it is known only when the graph runs

    @devices.outside_inference
    def load(self, model):
        if wrong := _wrong(model):
            raise ValueError(wrong)
        from ..trainer.native import embedded

        return embedded.load(model)


def _wrong(model):
    """The reason why it cannot be loaded; None if it can."""
    if model not in EMBEDDED:
        return f"model {model!r} is not an embedded model. Fix: choose {' or '.join(EMBEDDED)}"
    if not comfyui.comfy_loaded():
        return (
            f"model {model!r} is made of ComfyUI's own classes, and ComfyUI is not here. Fix: name its folder by --comfyui PATH "
            "or $COMFYUI_PATH, or use Load Flow Model, which does without"
        )
    return None
