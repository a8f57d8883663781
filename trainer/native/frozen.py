"""Frozen layers that keep nothing of their weights for the backward pass, but fetch them again.

ComfyUI may hold a weight elsewhere, in another dtype or quantized, and hand each layer a copy that the next layer's copy
overwrites: its cast buffers are shared. What autograd kept of such a copy would be another layer's weight by the time of the
backward pass, without an error. So nothing is kept: which also spares the copies' memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..policy.adapters import Pair
from . import kernels


class FrozenLinear(torch.autograd.Function):
    """`apply(x, forward, backward)`: forward(x), whose gradient is backward(g), g·W, in the dtype of x."""

    @staticmethod
    def forward(ctx, x: Tensor, forward: Callable[[Tensor], Tensor], backward: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.multiply, ctx.dtype = backward, x.dtype
        return _no_view(forward(x.detach()))

    @staticmethod
    def backward(ctx, *gradients):
        [gradient] = gradients
        return ctx.multiply(gradient).to(ctx.dtype), None, None


def alone(tensor: Tensor) -> Tensor:
    """The same memory as a tensor that nothing is known of: neither a view nor one of `torch.inference_mode`."""
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())


def _no_view(output: Tensor) -> Tensor:
    """The result of a function: networks write over it, as where a residual is added, and autograd forbids that to its views."""
    return alone(output) if output._is_view() else output


def is_fetched(module: torch.nn.Module) -> bool:
    """Whether a layer is one of ComfyUI's, which may fetch its weights anew at every call."""
    return hasattr(module, "comfy_cast_weights") or hasattr(module, "cast_bias_weight")


def is_linear(module: torch.nn.Module) -> bool:
    """Whether a layer multiplies with a matrix [out, in], however that is stored."""
    return isinstance(module, torch.nn.Linear) or (
        is_fetched(module) and {"in_features", "out_features"} <= vars(module).keys()
    )


@dataclass
class Layer:
    """A frozen layer, and how it is called.

    Attributes:
        module: ComfyUI's layer.
        forward: what its `forward` was before it was wrapped.
        prepare: called before weights are fetched in the backward pass: by then another node may have used the network, and with
            it have put other weights in place.
        is_plain: whether `forward` is the layer's own: what another node has put in its place may do more than the layer.
        pair: the adapter that acts on it now.
    """

    module: torch.nn.Module
    forward: Callable[..., Tensor]
    prepare: Callable[[], object]
    is_plain: bool = True
    pair: Pair | None = None


def adapted(layer: Layer, x: Tensor, *args, **kwargs) -> Tensor:
    """A linear layer with its adapter."""
    result = linear(layer, x, *args, **kwargs)
    if layer.pair is None:
        return result
    return layer.pair.added_to(result if layer.is_plain else result.clone(), x)  # of a stranger, who may still use it


def linear(layer: Layer, x: Tensor, *args, **kwargs) -> Tensor:
    """`forward(x)` of a linear layer; its gradient is g·W, with W fetched when the backward pass asks."""
    is_compiled = torch.compiler.is_compiling() and is_resident(layer.module, x)
    if is_compiled or not (torch.is_grad_enabled() and x.requires_grad):
        return layer.forward(x, *args, **kwargs)
    if not layer.is_plain:
        return _Again.apply(x, layer, args, kwargs)  # pyright: ignore[reportReturnType]
    forward = partial(_called, layer, args, kwargs)
    return FrozenLinear.apply(x, forward, partial(_times_weight, layer))  # pyright: ignore[reportReturnType]


def _called(layer: Layer, args: tuple, kwargs: dict, x: Tensor) -> Tensor:
    return layer.forward(x, *args, **kwargs)


def other(layer: Layer, x: Tensor, *args, **kwargs) -> Tensor:
    """`forward(x)` of a norm or a convolution; where its weights are fetched, it is computed again for its gradient."""
    if not (torch.is_grad_enabled() and isinstance(x, Tensor) and x.requires_grad) or is_resident(layer.module, x):
        return layer.forward(x, *args, **kwargs)
    return _Again.apply(x, layer, args, kwargs)  # pyright: ignore[reportReturnType]


def is_resident(module: torch.nn.Module, x: Tensor) -> bool:
    """Whether a layer computes with its very parameters, which nothing overwrites."""
    if getattr(module, "weight_function", None) or getattr(module, "bias_function", None) or hasattr(module, "_v"):
        return False
    own = module._parameters.values()
    return all(p is None or (p.device == x.device and p.dtype == x.dtype and type(p.data) is Tensor) for p in own)


def _times_weight(layer: Layer, gradient: Tensor) -> Tensor:
    """g·W, with W fetched anew."""
    layer.prepare()
    module = layer.module
    with weight_of(module, gradient) as weight:
        result = gradient @ weight
    # Of files in scaled fp8, which ComfyUI 0.3.64 applies to the product.
    scale = getattr(module, "scale_weight", None)
    if scale is not None:
        result = result * scale.to(result)
    smoothing = getattr(module, "pre_quant_scale", None)  # of the input, as some quantizations bring it
    if smoothing is not None:
        result = result * smoothing.to(result)
    return result


class _Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer, args, kwargs):
        ctx.layer, ctx.rest = layer, (args, kwargs)
        ctx.save_for_backward(x)
        return _no_view(layer.forward(x.detach(), *args, **kwargs))

    @staticmethod
    def backward(ctx, *gradients):
        [saved], (args, kwargs) = ctx.saved_tensors, ctx.rest
        ctx.layer.prepare()
        x = saved.detach().requires_grad_()
        with torch.enable_grad(), training():
            return torch.autograd.grad(ctx.layer.forward(x, *args, **kwargs), x, gradients)[0], None, None, None


@contextmanager
def training() -> Iterator[None]:
    """Within it ComfyUI takes the kernels that have a gradient: also where something is computed again for one.

    Not all of its networks ask whether there is training, so that those without a gradient give way by themselves.
    """
    import comfy.model_management

    before = getattr(comfy.model_management, "in_training", False)
    comfy.model_management.in_training = True
    try:
        with kernels.with_gradients():
            yield
    finally:
        comfy.model_management.in_training = before


@contextmanager
def weight_of(module: torch.nn.Module, like: Tensor) -> Iterator[Tensor]:
    """A layer's weight [out, in] on the device and in the dtype of `like`, for as long as this lasts."""
    import comfy.ops

    if fetch := getattr(module, "cast_bias_weight", None):  # of layers that know how to unpack theirs, as those of GGUF
        yield fetch(like)[0]
        return
    if not is_fetched(module):
        yield module.get_parameter("weight").to(like)
        return
    if not hasattr(comfy.ops, "uncast_bias_weight"):  # before 0.3.65
        yield comfy.ops.cast_bias_weight(module, like)[0]
        return
    weight, bias, stream = comfy.ops.cast_bias_weight(module, like, offloadable=True)
    try:
        yield plain(weight, like.dtype)
    finally:
        comfy.ops.uncast_bias_weight(module, weight, bias, stream)


def plain(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A weight as numbers, where it is a quantized one."""
    return weight.dequantize().to(dtype) if type(weight).__name__ == "QuantizedTensor" else weight
