"""The gradient of a frozen linear layer that keeps nothing of its weight for the backward pass, but fetches it again.

Autograd would keep the matrix that a layer's input is multiplied with. Where that is a copy of what is stored, made for this one
call, all these copies together would be the model once more, in more bits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class FrozenLinear(torch.autograd.Function):
    """`apply(x, forward, backward)`: forward(x), whose gradient is backward(g), g·W, in the dtype of x."""

    @staticmethod
    def forward(ctx, x: Tensor, forward: Callable[[Tensor], Tensor], backward: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.multiply, ctx.dtype = backward, x.dtype
        return forward(x.detach())

    @staticmethod
    def backward(ctx, *gradients):
        [gradient] = gradients
        return ctx.multiply(gradient).to(ctx.dtype), None, None
