"""What surrounds the transformer: decoding latents, and judging pictures."""

from __future__ import annotations

import statistics
import time

import torch

from comfyui_otca.bench.rewards import throughput

from .machine import wait
from .parts import Place
from .shapes import made

ROUNDS = 3


def decode(place: Place) -> dict:
    """Pictures a second of the autoencoder in FLUX.1's shape."""
    model, *_ = made(place)
    found = {}
    for side, batch in ((32, 2),) if place.tiny else ((512, 1), (512, 4), (1024, 1), (1024, 4)):
        latents, seconds = torch.randn(batch, *model.latent_shape(side, side)), []
        for number in range(ROUNDS + 1):
            wait(model.device)
            began = time.perf_counter()
            model.decode(latents)
            wait(model.device)
            if number:
                seconds.append(time.perf_counter() - began)
        found[f"{side}, batch {batch}"] = batch / statistics.median(seconds)
    return {"pictures_per_second": found}


def rewards(place: Place) -> dict:
    """Pictures a second of a stack of rewards with networks of a modest size: bench/rewards.py."""
    count, side = (2, 32) if place.tiny else (64, 512)
    ways, about = throughput(count, 0, 1 if place.tiny else ROUNDS, place.device, side, place.tiny)
    return {"pictures_per_second": {way: count / median for way, (median, _) in ways.items()}, "about": about}
