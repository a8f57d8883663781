"""The embedded model as ComfyUI's own objects, so that everything can be tried with stock nodes and without a download."""

from ..host import comfyui, devices
from .inputs import choice

MODELS = ("shapes-flux", "scenes-flux")


class EmbeddedModel:
    TITLE = "Embedded Model"
    CATEGORY = "OTCA/model"
    DESCRIPTION = (
        "A tiny FLUX that comes with the pack, as MODEL, CLIP and VAE: to try stock nodes and training on a CPU."
    )
    SEARCH_ALIASES = ["tiny flux", "flux", "demo", "cpu", "load model", "shapes", "scenes"]
    RETURN_TYPES = ("MODEL", "CLIP", "VAE")
    RETURN_NAMES = ("model", "clip", "vae")
    OUTPUT_TOOLTIPS = (
        "ComfyUI's own Flux at a tiny size: for KSampler, and for Make Trainable.",
        "Its two text encoders: for CLIP Text Encode.",
        "Its autoencoder, of 4 x 4 pixels to a latent position: for VAE Decode and VAE Encode.",
    )
    FUNCTION = "load"
    NEEDS_COMFYUI = True

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": choice(MODELS).tip("Which of the models that come with the pack.")}}

    @classmethod
    def VALIDATE_INPUTS(cls, model):
        return (model is not None and _wrong(model)) or True  # linked, it is known only when the graph runs

    @devices.outside_inference
    def load(self, model):
        if wrong := _wrong(model):
            raise ValueError(wrong)
        from ..trainer.native import embedded

        return embedded.load(model)


def _wrong(model):
    """What keeps it from being loaded; None where nothing does."""
    if model not in MODELS:
        return f"model {model!r} is no embedded model. Fix: choose {' or '.join(MODELS)}"
    if not comfyui.comfy_loaded():
        return (
            f"model {model!r} is made of ComfyUI's own classes, and ComfyUI is not here. Fix: name its folder by --comfyui PATH "
            "or $COMFYUI_PATH, or use Load Flow Model, which does without"
        )
    return None
