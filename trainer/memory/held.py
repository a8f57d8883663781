"""What a model of diffusers holds on a GPU, by the numbers in its weights and the options that it is loaded with."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..families.options import LoadOptions
from .estimate import ENCODING, RESERVE, Held

# Bits of a weight in bitsandbytes' formats; in 4 bits every 64 weights have a factor in float32 (QLoRA, 2305.14314).
BITS = {"8bit": 8.0, "4bit": 4.5}


def held_by(
    counts: Mapping[str, int],
    trained: Collection[str],
    options: LoadOptions,
    training: str,
    itemsize: int,
    *,
    linear: Mapping[str, int] | None = None,
    adapter: int = 0,
    copies: int = 0,
    processes: int = 1,
    reserve: int = RESERVE,
) -> Held:
    """What a model of diffusers has on one GPU.

    Args:
        counts: numbers in the weights of each component.
        trained: names of the components that are trained.
        itemsize: bytes of a number, as it is loaded.
        linear: numbers in Linear layers, which alone are quantized; None: all of them.
        adapter: numbers in the adapter.
        processes: that share what can be shared.
    """
    experts = {name: count for name, count in counts.items() if name in trained}
    encoders = {name: count for name, count in counts.items() if name.startswith("text_encoder")}
    others = sum(count for name, count in counts.items() if name not in experts and name not in encoders)
    whole, all_weights = training == "full", sum(experts.values())
    parts = processes if whole or options.shard else 1
    if options.quantize == "none":
        weights = all_weights * itemsize
    else:
        quantized = all_weights if linear is None else sum(linear.values())
        weights = round(quantized * BITS[options.quantize] / 8) + (all_weights - quantized) * itemsize
    return Held(
        weights=weights // parts,
        trained=all_weights // parts if whole else adapter,
        whole=whole,
        copies=copies,
        encoders=sum(encoders.values()) * itemsize,
        vae=others * itemsize,
        encoders_visit=options.offload_encoders,
        vae_visit=options.offload_vae,
        steps_aside=(ENCODING,) if options.offload_encoders else (),
        loading=4 * all_weights if whole and processes > 1 else 0,
        reserve=reserve,
    )
