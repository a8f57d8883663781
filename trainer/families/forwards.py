"""How often the networks of a flow model are called."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from ...host import distributed

if TYPE_CHECKING:
    from torch import Tensor


class Forwards:
    """Counts samples x denoising steps that go through networks. Classifier-free guidance counts twice."""

    def __init__(self):
        self.forget()

    def forget(self) -> None:
        self._samples = [0, 0]  # all, and those with gradient

    def watch(self, network: torch.nn.Module, latents: str) -> None:
        """Counts calls of a network, whose noisy latents have that name."""

        def count(network: torch.nn.Module, args: tuple, inputs: Mapping[str, Tensor], output) -> None:
            self.count(len(inputs[latents]))

        network.register_forward_hook(count, with_kwargs=True)

    def count(self, samples: int, twice: bool = False) -> None:
        """Notes a forward pass of so many samples. `twice`: it has a negative half, which counts like the other."""
        samples *= 1 + twice
        self._samples[0] += samples
        self._samples[1] += samples * torch.is_grad_enabled()

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Within it nothing is counted: for an evaluation, which is no part of training."""
        before = list(self._samples)
        try:
            yield
        finally:
            self._samples = before

    def take(self) -> dict[str, float]:
        """The counts since the last call, of all processes together. Those `with_gradient` get a backward pass too."""
        samples = self._samples
        self.forget()
        every, with_gradient = distributed.each(torch.tensor(samples)).sum(0).tolist()
        return {"forwards/all": float(every), "forwards/with_gradient": float(with_gradient)}
