"""Linear layers that hold their weights as a file stores them, in 8 bits or fewer, and unpack them for each call.

Neither the forward nor the backward pass keeps an unpacked weight: there is never more than one of them. The numbers are those of
the layer whose weight was unpacked for good, so that velocity and gradient are the same to the bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from .frozen import FrozenLinear


class Format(ABC):
    """How a weight [out, in] is stored as bytes [out, n]."""

    @abstractmethod
    def unpack(self, stored: Tensor, factors: Tensor | None, dtype: torch.dtype) -> Tensor:
        """The weight [out, in]. `factors`: [out, 1] float32, of formats that have one for each row."""


class Float8(Format):
    """Numbers of 8 bits, times a factor."""

    def __init__(self, kind: torch.dtype):
        self.kind = kind

    def unpack(self, stored: Tensor, factors: Tensor | None, dtype: torch.dtype) -> Tensor:
        numbers = stored.view(self.kind)
        return numbers.to(dtype) if factors is None else (numbers.float() * factors).to(dtype)


class Gguf(Format):
    """Blocks of GGUF, which diffusers knows how to read; computed in float32, as GGUF defines them, and rounded once."""

    def __init__(self, kind: Any):
        self.kind = kind

    def unpack(self, stored: Tensor, factors: Tensor | None, dtype: torch.dtype) -> Tensor:
        from diffusers.quantizers.gguf.utils import GGML_QUANT_SIZES, dequantize_functions

        _, size = GGML_QUANT_SIZES[self.kind]
        blocks = stored.view(torch.uint8).reshape(-1, size)
        numbers = dequantize_functions[self.kind](blocks, *GGML_QUANT_SIZES[self.kind], dtype=torch.float32)
        return numbers.reshape(len(stored), -1).to(dtype)


class StoredLinear(torch.nn.Linear):
    """A frozen linear layer whose `weight` are the stored bytes, or while an adapter is merged into it, the sum.

    The bytes are of int8, which is no number to those who cast, move or train networks; T5 casts what it hands to a layer to the
    dtype of its weight, except to that.
    """

    def __init__(self, stored: Tensor, form: Format, dtype: torch.dtype, factors: Tensor | None = None):
        """`stored`: [out, n]; `dtype`: to unpack to."""
        width = form.unpack(stored[:1], None if factors is None else factors[:1], dtype).shape[1]
        super().__init__(width, len(stored), bias=False, device="meta")
        self.weight = torch.nn.Parameter(stored.view(torch.int8), requires_grad=False)
        self.form, self.dtype = form, dtype
        self.factors: Tensor | None
        self.register_buffer("factors", factors, persistent=False)

    def unpacked(self) -> Tensor:
        """The weight [out, in]."""
        if self.weight.is_floating_point():
            return self.weight
        return self.form.unpack(self.weight, self.factors, self.dtype)

    def forward(self, input: Tensor) -> Tensor:
        if torch.is_grad_enabled() and input.requires_grad:
            return FrozenLinear.apply(input, self._product, self._times_weight)  # pyright: ignore[reportReturnType]
        return self._product(input)

    def _product(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.unpacked(), self.bias)

    def _times_weight(self, gradient: Tensor) -> Tensor:
        return gradient @ self.unpacked().to(gradient.dtype)


def put_in(network: torch.nn.Module, name: str, layer: torch.nn.Module) -> None:
    """A layer in the place of the one of that name; a linear one takes its bias over."""
    place = network.get_submodule(name)
    if place.bias is not None:
        layer.bias = place.bias
    parent, _, child = name.rpartition(".")
    setattr(network.get_submodule(parent), child, layer)


def widen(network: torch.nn.Module) -> None:
    """Makes ordinary layers of those that hold what a file stores."""
    for name, layer in list(network.named_modules()):
        if isinstance(layer, StoredLinear):
            wide = torch.nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
            wide.weight = torch.nn.Parameter(layer.unpacked(), requires_grad=False)
            put_in(network, name, wide)
