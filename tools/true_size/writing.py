"""Files of random weights, tensor by tensor: in memory there is never more than one."""

from __future__ import annotations

import json
import math
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Module

from .networks import FP8, SCALED, Weights, of_blocks

LARGEST = 448.0  # of float8_e4m3fn
NAMES = {
    torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.uint8: "U8", FP8: "F8_E4M3",
}  # fmt: skip
NUMBERED = re.compile(r"(?:^|\.)(?:layers|block|blocks)\.(\d+)\.")


@dataclass(frozen=True)
class Entry:
    """A tensor of a file; `value` is None where all of it is zero, which takes no place on a disk."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    value: Callable[[], Tensor] | None

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def write(path: Path, entries: list[Entry]) -> None:
    """A safetensors file of these entries."""
    header, end = {}, 0
    for entry in entries:
        header[entry.name] = {
            "dtype": NAMES[entry.dtype],
            "shape": entry.shape,
            "data_offsets": [end, end + entry.size],
        }
        end += entry.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for entry in entries:
            if entry.value is None:
                file.seek(entry.size, 1)
            else:
                file.write(entry.value().to(entry.dtype).flatten().view(torch.uint8).numpy().tobytes())
        file.truncate(8 + len(text) + end)
    part.replace(path)


def entries(network: Module, weights: Weights, seed: int = 0, layers: int | None = None) -> Iterator[Entry]:
    """The entries of a file of this network, by ComfyUI's names.

    `layers`: of a text encoder, that many are random and the others zero, so that they change nothing.
    """
    scaled = set(of_blocks(network)) if weights.form else set()
    for name, tensor in network.state_dict().items():
        number = NUMBERED.search(name)
        is_zero = layers is not None and number is not None and int(number[1]) >= layers
        layer, dtype = name.removesuffix(".weight"), weights.dtype if tensor.is_floating_point() else tensor.dtype
        shape, own = tuple(tensor.shape), _Random(name, tuple(tensor.shape), seed, tensor.dtype)
        if layer in scaled and name.endswith(".weight"):
            yield Entry(name, FP8, shape, None if is_zero else own.in_fp8)
            yield Entry(f"{layer}.scale_weight", torch.float32, (), own.scale)
        else:
            yield Entry(name, dtype, shape, None if is_zero else own.values)
    if weights.form == SCALED:
        yield Entry(SCALED, FP8, (0,), lambda: torch.zeros(0))


@dataclass(frozen=True)
class _Random:
    """Seeded by the name: a tensor does not change when another one is left out. What goes in with size 1 comes out so."""

    name: str
    shape: tuple[int, ...]
    seed: int
    dtype: torch.dtype

    def values(self) -> Tensor:
        if self.name.endswith("running_var"):
            return torch.ones(self.shape)
        if not self.dtype.is_floating_point or self.name.endswith("running_mean"):
            return torch.zeros(self.shape, dtype=self.dtype)
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {self.name}".encode()))
        numbers = torch.randn(self.shape, generator=generator)
        if len(self.shape) > 1:
            return numbers.div_(math.sqrt(math.prod(self.shape[1:])))
        return numbers.mul_(0.1) if self.name.endswith("bias") else numbers.mul_(0.1).add_(1)

    def scale(self) -> Tensor:
        return self.values().abs().amax() / LARGEST

    def in_fp8(self) -> Tensor:
        values = self.values()
        return values.div_(values.abs().amax() / LARGEST)
