"""Loading a flow model from a folder of diffusers: checked, weighed against the device's memory, and made trainable."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..host import extras
from .families import family_class
from .families.folder import check_model_folder
from .families.options import FlowModelError as FlowModelError
from .families.options import LoadOptions, conflict
from .types import TRAININGS

if TYPE_CHECKING:
    from .families.pipeline import PipelineModel

FOLDERS = "Load Flow Model, for a model's folder in diffusers' layout,"  # the feature, for messages


def load_flow_model(
    path: str | Path,
    *,
    training: str = "lora",
    lora_rank: int = 16,
    lora_alpha: float = 16.0,
    lora_targets: str = "",
    seed: int = 0,
    **options,
) -> PipelineModel:
    """Loads a diffusers pipeline folder and makes it trainable: by an adapter on its transformer, or as a whole.

    `path`: a diffusers folder (one that holds model_index.json).
    `training`: "lora" or "full".
    `lora_rank`, `lora_alpha`: of the adapter; its scale is alpha / rank.
    `lora_targets`: comma-separated ends of module names; empty takes the family's own list.
    `seed`: of the adapter's initial weights.
    `dtype`: of the frozen weights: auto (bfloat16 on an accelerator, else float32), float32, bfloat16 or float16. What is
        trained is always float32.
    `device`: auto, or a torch device.
    `max_sequence_length`: tokens of the text encoder; 0 takes the tokenizer's own limit, at most the family's.
    `quantize`: "8bit" or "4bit" holds the frozen transformer in that by bitsandbytes; only with "lora".
    `offload_encoders`: the text encoders are on the device only while they embed new prompts.
    `offload_vae`: the autoencoder is on the device only while it decodes.
    `vae_tiling`: pictures are decoded in tiles: less memory, faint seams.
    `gradient_checkpointing`: activations are computed twice instead of stored.
    `attention`: a backend of diffusers ("native", "flash", "sage" …); "auto" leaves the choice to it.
    `compile`: the transformer's blocks go through torch.compile.
    `memory`: "low" keeps all blocks of the frozen transformer in main memory, from where they visit the device; "auto" as many
        as do not fit it.
    `shard`: of several processes each holds a part of the frozen transformer; only with "lora", since "full" is always
        sharded. Each loads it whole into main memory first.

    Raises:
        FlowModelError: not a diffusers folder, an unknown family, files that are missing, truncated or of another model,
            too little memory, or an option that cannot be had here.
        MissingPackage: the packages that read such folders are not here, or too old.
    """
    extras.check(FOLDERS, "diffusers")
    if training not in TRAININGS:
        raise ValueError(f"training must be one of {TRAININGS}, not {training!r}")
    if misfit := conflict(training, options):
        raise ValueError(str(misfit))
    path = Path(path)
    family = family_class(check_model_folder(path))
    from .families import loading
    from .memory import fitting
    from .policy.adapters import Adapter

    chosen = LoadOptions(**options)
    adapter = Adapter(lora_rank, lora_alpha, lora_targets, seed) if training == "lora" else None
    loading.check(family, path, chosen)
    device = loading.resolve_device(chosen.device)
    own = "float32" if device.type == "cpu" else "bfloat16"
    dtype = loading.DTYPES[own if chosen.dtype == "auto" else chosen.dtype]
    streaming = fitting.check_folder(path, chosen, adapter, device, dtype)
    model = loading.load(family, path, chosen, device, dtype)
    if streaming is not None:
        model.streaming = streaming.decided
        model.stream(None, device)
    if adapter is not None:
        model.policy.add_adapter(adapter)
        if chosen.shard:
            model.policy.shard_frozen()  # before it settles: whole it may not fit the device
    model.settle(device)
    if training == "full":
        model.policy.train_everything()
    return model
