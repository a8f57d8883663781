"""From MODEL, CLIP and VAE to a model that can be trained, and from what was trained to a MODEL for ComfyUI's own nodes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from ...host import devices
from ..families.options import FlowModelError
from ..policy import lora
from ..policy.adapters import Adapter
from . import conditions, trial
from .compiling import Compiler
from .model import HIGH, NativeModel, NativeOptions
from .sources import Asked

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher
    from comfy.sd import CLIP, VAE

logger = logging.getLogger(__name__)


def make_trainable(
    model: ModelPatcher,
    clip: CLIP,
    vae: VAE,
    adapter: Adapter,
    *,
    low_noise: ModelPatcher | None = None,
    conditioning: list | None = None,
    checkpointing: str = "auto",
    memory: str = "auto",
    boundary: float = NativeOptions.boundary,
    vae_tiling: bool = False,
    check_gradients: bool = True,
    is_guided_inside: bool = False,
    compile: bool = False,
) -> NativeModel:
    """A MODEL that ComfyUI loaded, with a LoRA adapter on it that begins as nothing.

    `low_noise`: of a family with two networks the one for noise levels below `boundary`.
    `conditioning`: what it carries besides embeddings goes along with every prompt: reference latents, a first frame.
    `checkpointing`: "on", "off", or "auto": on where activations would take more than half of what the weights leave.
    `memory`: "auto" leaves it to ComfyUI how much of the weights is on the device; "low" has them visit it layer by layer.
    `is_guided_inside`: see NativeOptions.
    `compile`: whether torch compiles blocks; see `compiling`.

    Raises:
        FlowModelError: not a flow-matching model of pictures or videos, or a CLIP or VAE of another model.
        ValueError: targets that fit no layer.
    """
    for name, patcher in ((HIGH, model), ("low_noise_model", low_noise)):
        if patcher is not None and patcher.patches:
            message = "%s: its weights carry %d patches already, as of a LoRA. They are part of what is trained upon"
            logger.warning(message, name, len(patcher.patches))
    on = {"on": True, "off": False}.get(checkpointing)
    extra = _extra(clip, conditioning) if conditioning else {}
    options = NativeOptions(boundary, on, memory == "low", vae_tiling, check_gradients, extra, is_guided_inside)
    made = NativeModel(model, clip, vae, low_noise, options)
    made.policy.add_adapter(adapter)
    made.settle(made.device)
    made.is_untried = bool(extra)  # what rides along is of one size, which is known only when it is sampled
    if not extra:
        # At the smallest size: a CLIP of another model shows only in how the network takes its embeddings
        try:
            made.try_out(*made.smallest())
        except (torch.OutOfMemoryError, FlowModelError):
            raise  # which are no fault of the CLIP
        except trial.MISFITS as error:
            kind = type(made.models[HIGH].model).__name__
            raise FlowModelError(
                f"clip: {kind} cannot take what this CLIP makes of a prompt ({trial.first_line(error)}). Fix: load the text "
                "encoders that belong to the model, with their type in the loader"
            ) from error
        devices.empty_cache()
    for expert in made.wrapped.values() if compile else ():  # not before, since the trial's size is no other call's
        expert.compiler = Compiler(expert)
    return made


def _extra(clip: CLIP, conditioning: list) -> dict[str, Any]:
    extra = conditions.extra_keys(conditioning, conditions.Encodings(clip).of([Asked("")])[0])
    narrow = sorted(extra.keys() & (conditions.PARTIAL | conditions.BROUGHT))
    if narrow or len(conditioning) > 1:
        raise FlowModelError(
            f"conditioning: it has {', '.join(narrow) or f'{len(conditioning)} prompts in one'}, and training takes one prompt "
            "for the whole picture and the whole sampling, without further networks. Fix: connect it before the node that sets "
            "this; a KSampler after Tuned Model may have it"
        )
    if not extra:
        raise FlowModelError(
            "conditioning: it has nothing besides embeddings, and each prompt has its own: what nodes did to these, as a style "
            "model or ConditioningConcat, would be left out. Fix: disconnect it; a KSampler after Tuned Model may have it"
        )
    message = "conditioning: %s goes along with every prompt; its embeddings do not, since each prompt has its own"
    logger.info(message, ", ".join(sorted(extra)))
    return extra


def tuned(model: NativeModel) -> dict[str, ModelPatcher]:
    """A clone of the MODEL that came in for each network, with the adapter as it stands now, as LoraLoader would put it on.

    What is trained afterwards does not change it. Where an average of the weights is kept, it is the average, as in saved files.

    Raises:
        FlowModelError: ComfyUI knows some of the adapter's layers under other names.
    """
    with model.policy.averaged():
        return {name: _patched(model, name) for name in model.models}


def _patched(model: NativeModel, name: str) -> ModelPatcher:
    import comfy.lora

    patcher = model.models[name].clone()
    state = lora.adapter_state(model, name)
    keys = comfy.lora.model_lora_keys_unet(patcher.model, {})
    patches = comfy.lora.load_lora(state, keys, log_missing=False)
    put_on = patcher.add_patches(patches, 1.0)
    if 2 * len(put_on) != len(state):
        raise FlowModelError(
            f"Tuned Model: ComfyUI takes {len(put_on)} of the {len(state) // 2} layers of this adapter. Fix: set "
            f"lora_targets on Make Trainable to layers that LoRA files of {type(patcher.model).__name__} can name"
        )
    return patcher
