"""The faults that are silent, made on a CPU, and the remedies taken out one at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.utils.checkpoint

from comfyui_otca.tests.comfyui.native.made import Made, attribute
from comfyui_otca.trainer.native import expert, frozen


@contextmanager
def shared_buffer(made: Made) -> Iterator[None]:
    """As ComfyUI computes with little memory on a GPU: weights come in two buffers by turns, and overwrite each other.

    They are written behind torch's back, as by a transfer from a file or on another stream.
    """
    import comfy.ops

    fetch = comfy.ops.cast_bias_weight
    layers = [
        layer
        for each in made.model.wrapped.values()
        for layer in each.network.modules()
        if hasattr(layer, "comfy_cast_weights")
    ]
    most = max(sum(8 * weight.numel() + 64 for weight in layer.parameters(recurse=False)) for layer in layers)
    buffers = itertools.cycle([np.empty(most, dtype=np.uint8) for _ in range(2)])

    def fetched(module, *args, **kwargs):
        weight, bias, *rest = found if isinstance(found := fetch(module, *args, **kwargs), tuple) else (found, None)
        begin, moved, memory = 0, [], next(buffers)
        buffer = torch.from_numpy(memory)
        for tensor in (weight, bias):
            if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
                moved.append(tensor)
                continue
            plain = tensor.detach().contiguous()
            size = plain.numel() * plain.element_size()
            memory[begin : begin + size] = plain.view(-1).view(torch.uint8).numpy()
            moved.append(buffer[begin : begin + size].view(plain.dtype).view(plain.shape))
            begin += -(-size // 64) * 64
        return (*moved, *rest)

    before = [layer.comfy_cast_weights for layer in layers]
    with (
        attribute(comfy.ops, "cast_bias_weight", fetched),
        attribute(frozen, "is_resident", lambda module, x: False),  # there they are in main memory
    ):
        for layer in layers:
            layer.comfy_cast_weights = True
        try:
            yield
        finally:
            for layer, value in zip(layers, before, strict=True):
                layer.comfy_cast_weights = value


@contextmanager
def without_frozen_layers() -> Iterator[None]:
    """Autograd keeps the weights that it was given."""
    with (
        attribute(frozen, "linear", lambda layer, x, *args, **kwargs: layer.forward(x, *args, **kwargs)),
        attribute(frozen, "other", lambda layer, x, *args, **kwargs: layer.forward(x, *args, **kwargs)),
    ):
        yield


@contextmanager
def torchs_checkpointing() -> Iterator[None]:
    """torch's own, in place of ours, with the same kernels in both passes."""

    def checkpointed(run, parameters, args, kwargs):
        if not torch.is_grad_enabled():
            return run(*args, **kwargs)

        def block(*args, **kwargs):
            with frozen.training():
                return run(*args, **kwargs)

        return torch.utils.checkpoint.checkpoint(block, *args, use_reentrant=False, determinism_check="none", **kwargs)

    with attribute(expert, "checkpointed", checkpointed):
        yield
