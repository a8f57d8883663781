"""Embeddings of prompts, which condition a flow model's network, and a cache of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ...host import devices

if TYPE_CHECKING:
    from torch import Tensor

NEGATIVE = "negative_"  # before the names of the negative prompt's embeddings
MOST_BYTES = 2 * 1024**3  # of main memory, for prompts that may come again


@dataclass(frozen=True)
class Condition:
    """Text embeddings by name, each [P, …]."""

    tensors: dict[str, Tensor]

    def rows(self, index: Tensor) -> Condition:
        return Condition({name: tensor[devices.upload(index, tensor.device)] for name, tensor in self.tensors.items()})


class Embeddings:
    """Embeddings of prompts, in main memory. Each distinct prompt is embedded once; the longest unused are forgotten first."""

    def __init__(self, embed: Callable[[Sequence[str]], Condition]):
        self._embed = embed
        self._rows: dict[str, dict[str, Tensor]] = {}  # the latest used ones last

    def of(self, texts: Sequence[str], device: torch.device) -> Condition:
        """Embeddings of P prompts, on that device."""
        distinct = list(dict.fromkeys(texts))
        if missing := [text for text in distinct if text not in self._rows]:
            tensors = {name: tensor.cpu() for name, tensor in self._embed(missing).tensors.items()}
            for row, text in enumerate(missing):  # each in memory of its own, which can be given back
                self._rows[text] = {name: tensor[row].clone() for name, tensor in tensors.items()}
        for text in distinct:
            self._rows[text] = self._rows.pop(text)
        names = self._rows[texts[0]]
        size = sum(tensor.nbytes for tensor in names.values())
        for text in list(self._rows)[: max(0, len(self._rows) - max(len(texts), MOST_BYTES // size))]:
            del self._rows[text]
        stacked = {name: torch.stack([self._rows[text][name] for text in texts]) for name in names}
        return Condition({name: devices.upload(tensor, device) for name, tensor in stacked.items()})
