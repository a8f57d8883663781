"""Embeddings of prompts, which condition a flow model's network, and a cache of them.

Embeddings of prompts may be of different length: those of a batch are padded to its longest one, and those in the cache are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ...host import devices
from ...host.recent import Recent

NEGATIVE = "negative_"  # before the names of the negative prompt's embeddings
MOST_BYTES = 2 * 1024**3  # of main memory, for prompts that may come again


@dataclass(frozen=True)
class Condition:
    """Text embeddings by name, each [P, …].

    Attributes:
        lengths: of those whose rows are of different length, how much of each row counts, [P] on the CPU; the rest is padding.
        sizes: of each prompt, the (rows, columns) of tokens of each picture that it works on; none where no prompt has one.
    """

    tensors: dict[str, Tensor]
    lengths: dict[str, Tensor] = field(default_factory=dict)
    sizes: tuple[tuple[tuple[int, int], ...], ...] = ()

    @classmethod
    def of_rows(cls, name: str, rows: Sequence[Tensor]) -> Condition:
        """The condition of embeddings [L, …] of different length."""
        tensors = {name: pad_sequence(list(rows), batch_first=True)}
        return cls(tensors, {name: torch.tensor([len(row) for row in rows])})

    @classmethod
    def masked(cls, name: str, tensor: Tensor, mask: Tensor | None) -> Condition:
        """The condition of embeddings [P, L, …]; a mask [P, L] leaves out the padding at the end. None: without padding."""
        lengths = torch.full((len(tensor),), tensor.shape[1]) if mask is None else mask.sum(1).cpu()
        return cls({name: tensor}, {name: lengths})

    def rows(self, index: Tensor) -> Condition:
        """The prompts of these numbers, without padding that all of them share."""
        lengths = {name: length[index] for name, length in self.lengths.items()}
        tensors = {name: tensor[devices.upload(index, tensor.device)] for name, tensor in self.tensors.items()}
        sizes = tuple(self.sizes[row] for row in index.tolist()) if self.sizes else ()
        cut = {name: tensors[name][:, : int(length.max())] for name, length in lengths.items()}
        return Condition(tensors | cut, lengths, sizes)

    def beside(self, negative: Condition) -> Condition:
        """This one and the negative prompt's."""
        return Condition(
            self.tensors | {NEGATIVE + name: tensor for name, tensor in negative.tensors.items()},
            self.lengths | {NEGATIVE + name: length for name, length in negative.lengths.items()},
            self.sizes,
        )

    def negative(self) -> Condition | None:
        """The negative prompt's alone, or None."""
        tensors, lengths = (
            {name.removeprefix(NEGATIVE): value for name, value in of.items() if name.startswith(NEGATIVE)}
            for of in (self.tensors, self.lengths)
        )
        return Condition(tensors, lengths, self.sizes) if tensors else None

    def mask(self, name: str) -> Tensor | None:
        """[P, L], false where a row of that name is padding; None if no row has padding."""
        lengths, tensor = self.lengths[name], self.tensors[name]
        if bool((lengths == tensor.shape[1]).all()):
            return None
        return devices.upload(torch.arange(tensor.shape[1]) < lengths[:, None], tensor.device)

    def ragged(self, name: str) -> list[Tensor]:
        """The rows of that name without padding."""
        return [row[:length] for row, length in zip(self.tensors[name], self.lengths[name].tolist(), strict=True)]


class Embeddings:
    """Embeddings of prompts, in main memory. Each distinct prompt is embedded once; the longest unused are forgotten first."""

    def __init__(self, embed: Callable[[Sequence[str]], Condition]):
        self._embed = embed
        self._rows: Recent[str, dict[str, Tensor]] = Recent(
            MOST_BYTES, lambda row: sum(tensor.nbytes for tensor in row.values())
        )
        self._ragged: list[str] = []  # names of those whose rows are of different length

    def of(self, texts: Sequence[str], device: torch.device) -> Condition:
        """Embeddings of P prompts, on that device."""
        distinct = list(dict.fromkeys(texts))
        if missing := [text for text in distinct if text not in self._rows]:
            embedded = self._embed(missing)
            tensors = {name: tensor.cpu() for name, tensor in embedded.tensors.items()}
            self._ragged = list(embedded.lengths)
            for row, text in enumerate(missing):  # each in memory of its own, which can be given back
                ends = {name: int(lengths[row]) for name, lengths in embedded.lengths.items()}
                self._rows[text] = {name: tensor[row][: ends.get(name)].clone() for name, tensor in tensors.items()}
        for text in distinct:
            self._rows.use(text, least=len(distinct))
        rows = {name: [self._rows[text][name] for text in texts] for name in self._rows[texts[0]]}
        stacked = {
            name: pad_sequence(of, batch_first=True) if name in self._ragged else torch.stack(of)
            for name, of in rows.items()
        }
        tensors = {name: devices.upload(tensor, device) for name, tensor in stacked.items()}
        return Condition(tensors, {name: torch.tensor(list(map(len, rows[name]))) for name in self._ragged})
