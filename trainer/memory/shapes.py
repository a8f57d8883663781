"""Calls on the meta device, whose tensors have shapes and no numbers, as they would be on a GPU.

What asks for numbers gets the answer that takes the most memory: all of a mask counts. Only what a tokenizer makes has numbers,
in main memory, and keeps them: so it is known how long a text is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx.experimental import _config as tracing
from torch.overrides import TorchFunctionMode

META = torch.device("meta")
# What CUDA's autocast computes in the lower precision, and what in float32, as far as the networks use it.
ATTENTION = "scaled_dot_product_attention"
LOWERED = {
    ATTENTION,
    "linear",
    "matmul",
    "__matmul__",
    "bmm",
    "mm",
    "addmm",
    "baddbmm",
    "einsum",
    "conv1d",
    "conv2d",
    "conv3d",
}
IN_FLOAT32 = {
    "layer_norm",
    "group_norm",
    "rms_norm",
    "softmax",
    "pow",
    "__pow__",
    "rsqrt",
    "exp",
    "log",
    "sum",
    "cumsum",
}


@contextlib.contextmanager
def as_on_a_gpu(autocast: torch.dtype = torch.float32, reads: bool = False) -> Iterator[None]:
    """See the class below."""
    all_count = tracing.patch(meta_nonzero_assume_all_nonzero=True)  # pyright: ignore[reportAttributeAccessIssue] torch adds it
    with _AsOnAGpu(autocast, reads), all_count:
        yield


class _AsOnAGpu(TorchFunctionMode):
    """CUDA's autocast to that dtype, and attention that keeps no matrix of tokens by tokens."""

    def __init__(self, autocast: torch.dtype, reads: bool):
        """`autocast`: float32 for none. `reads`: what tokenizers make is being read."""
        super().__init__()
        self.autocast, self.reads = autocast, reads

    def __torch_function__(self, func, types, args: Any = (), kwargs: Any = None):
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if args and isinstance(args[0], torch.Tensor):
            if args[0].is_meta and name == "__bool__":
                return True
            if args[0].is_meta and name == "cpu":
                return args[0]
            if self.reads and name == "to" and not (args[0].is_meta or args[0].is_floating_point()):
                return _stays(*args, **kwargs)
        if self.autocast != torch.float32 and (name in LOWERED or name in IN_FLOAT32):
            to = torch.float32 if name in IN_FLOAT32 else self.autocast
            args, kwargs = _cast(args, to), _cast(kwargs, to)
        return _attention(*args, **kwargs) if name == ATTENTION else func(*args, **kwargs)


def _stays(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`tensor.to(…)` without its device."""
    values = (*args, *kwargs.values())
    return tensor.to(next((value for value in values if isinstance(value, torch.dtype)), tensor.dtype))


def _attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.empty_like(attn_mask, dtype=query.dtype)
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return fused(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() and value.dtype != torch.float64 else value
    if isinstance(value, dict):
        return {name: _cast(one, dtype) for name, one in value.items()}
    return type(value)(_cast(one, dtype) for one in value) if type(value) in (list, tuple) else value
