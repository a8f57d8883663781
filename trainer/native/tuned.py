"""What was trained, as a MODEL for ComfyUI's own nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..families.options import FlowModelError
from ..policy import lora

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

    from .model import NativeModel


def tuned(model: NativeModel) -> dict[str, ModelPatcher]:
    """Of each network a clone of the MODEL that came in, with the adapter as it stands now, as LoraLoader would put it on.

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
    known = comfy.lora.model_lora_keys_unet(patcher.model, {})
    patches = comfy.lora.load_lora(state, known, log_missing=False)
    put_on = patcher.add_patches(patches, 1.0)
    if 2 * len(put_on) != len(state):
        raise FlowModelError(
            f"Tuned Model: ComfyUI takes {len(put_on)} of the {len(state) // 2} layers of this adapter. Fix: set "
            f"lora_targets on Make Trainable to layers that LoRA files of {type(patcher.model).__name__} can name"
        )
    return patcher
