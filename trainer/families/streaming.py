"""Frozen blocks of a model's networks that stay in main memory and visit the device one by one, the next while one computes.

A block's weights are one buffer in main memory, and one on the device while it is there. So at most two are there: that which
computes, and that which comes. In a backward pass the blocks are walked the other way round, and each is computed again (gradient
checkpointing) before its gradient: what autograd keeps of that holds the weights until the gradient is there. A walk brings each
block once: where it turns, its last block is there already. Nothing is computed otherwise, so the results are those of blocks
that stay, to the bit.

Text encoders and judges visit the device whole, or with all of their blocks one by one where they do not fit.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ...host import devices

ALIGNED = 64  # bytes: kernels read from such addresses


def fits(networks: Iterable[nn.Module], device: torch.device, share: float = 0.9, away: int = 0) -> bool:
    """Whether they may be on the device, but for so many bytes: with that share of what is free there now."""
    size = sum(p.nbytes for network in networks for p in network.parameters()) - away
    return size <= share * devices.free_memory(device)


def lists(network: nn.Module) -> list[tuple[str, nn.ModuleList]]:
    """The network's blocks, in the order in which most call them: its own, or those of the networks in it if these hold more."""
    children = list(network.named_children())
    own = [(name, child) for name, child in children if isinstance(child, nn.ModuleList)]
    others = [(name, child) for name, child in children if not isinstance(child, nn.ModuleList)]
    inner = [(f"{name}.{place}", blocks) for name, child in others for place, blocks in lists(child)]
    return max(own, inner, key=lambda some: sum(p.nbytes for _, blocks in some for p in blocks.parameters()))


def blocks_of(network: nn.Module) -> list[nn.Module]:
    """All of them, each once."""
    return list(dict.fromkeys(block for _, blocks in lists(network) for block in blocks))


def out(blocks: int, count: int) -> list[int]:
    """The numbers of `count` of so many blocks that are out: spread, so that each comes while those before it compute."""
    return [number for number in range(blocks) if (number + 1) * count // blocks > number * count // blocks]


def weights_of(block: nn.Module) -> list[tuple[nn.Module, str, nn.Parameter]]:
    """Its own weights, without those of adapters: the module that has it, its name there, and the weight."""
    return [
        (part, name, weight)
        for place, part in block.named_modules()
        if ".lora_" not in f".{place}"
        for name, weight in part.named_parameters(recurse=False)
    ]


def size_of(weights: Iterable[Tensor]) -> int:
    """Bytes of a buffer that holds them."""
    return sum(-(-weight.nbytes // ALIGNED) * ALIGNED for weight in weights)


def sizes(networks: Iterable[nn.Module]) -> list[int]:
    """Bytes of each of their blocks, without its adapter."""
    return [size_of(p for *_, p in weights_of(block)) for network in networks for block in blocks_of(network)]


def away(blocks: Iterable[int]) -> int:
    """Bytes of the blocks that are out: all but one that computes, and one that comes."""
    return sum(sorted(blocks)[:-2])


def compute_again(network: Any, on: bool = True) -> None:
    """Has a network's blocks be computed again in a backward pass, or keep what they computed; not all autoencoders can."""
    if network._supports_gradient_checkpointing:
        (network.enable_gradient_checkpointing if on else network.disable_gradient_checkpointing)()


class _Visitor:
    """A block that is out."""

    def __init__(self, block: nn.Module, device: torch.device):
        self.block, places = block, weights_of(block)
        self._places = [(part, name, weight.dtype, weight.shape, weight.nbytes) for part, name, weight in places]
        self.size = size_of(weight for *_, weight in places)
        self._host = devices.buffer_for(device, self.size)
        self._at_home = self.views(self._host)
        for (*_, weight), view in zip(places, self._at_home, strict=True):
            view.copy_(weight)
        self.leave()

    def views(self, buffer: Tensor) -> list[nn.Parameter]:
        views, start = [], 0
        for _, _, dtype, shape, size in self._places:
            views.append(nn.Parameter(buffer[start : start + size].view(dtype).view(shape), requires_grad=False))
            start += -(-size // ALIGNED) * ALIGNED
        return views

    def put(self, weights: Iterable[nn.Parameter | None]) -> None:
        # Other objects, and not other memory of the same: what autograd has kept stays as it was.
        for (part, name, *_), weight in zip(self._places, weights, strict=False):
            part._parameters[name] = weight

    def arrive(self, device: torch.device) -> tuple[Tensor, Callable[[], None]]:
        """Its weights on the device, as soon as what is called has been."""
        buffer = torch.empty_like(self._host, device=device)
        return buffer, devices.fetch(buffer, self._host)

    def leave(self) -> None:
        self.put(self._at_home)


class Stream:
    """So many blocks of these networks are out."""

    def __init__(
        self, networks: Iterable[nn.Module], count: int | None, device: torch.device, where: Callable[[], torch.device]
    ):
        """`count`: None for all, each of which is then computed again in a backward pass; of fewer the network sees to that.

        `device`: on which they will compute; `where`: the one on which the networks are now.
        """
        self._where, self._again = where, count is None
        self.there: dict[_Visitor, tuple[Tensor, Callable[[], None]]] = {}
        self._last: tuple[_Visitor, bool] | None = None
        self._after: dict[tuple[_Visitor, bool], _Visitor] = {}  # what follows a block, forwards and in a backward pass
        self._network: dict[_Visitor, nn.Module] = {}
        owned = [(network, block) for network in networks for block in blocks_of(network)]
        chosen = owned if count is None else [owned[number] for number in out(len(owned), count)]
        for network in dict.fromkeys(owner for owner, _ in chosen):
            visitors = [_Visitor(block, device) for owner, block in chosen if owner is network]
            self._network |= dict.fromkeys(visitors, network)
            for before, visitor in zip([*visitors[-1:], *visitors], visitors, strict=False):
                self._after |= {(before, False): visitor, (visitor, True): before}
        self.away = away(visitor.size for visitor in self._network)
        for visitor in self._network:
            block: Any = visitor.block
            block.forward = self._visiting(visitor, block.forward)
            block._apply = functools.partial(self._applied, visitor, block._apply)

    def _visiting(self, visitor: _Visitor, forward: Callable) -> Callable:
        @functools.wraps(forward)
        def visiting(*args, **kwargs):
            try:
                self._enter(visitor)
                return forward(*args, **kwargs)
            finally:  # a computation that is made again ends by an exception as soon as it has all that is asked
                visitor.leave()

        again = functools.partial(checkpoint, visiting, use_reentrant=False, preserve_rng_state=False)
        return functools.wraps(forward)(again) if self._again else visiting

    def _enter(self, visitor: _Visitor) -> None:
        device, backward = self._where(), torch._C._current_graph_task_id() != -1
        if device.type == "cpu":
            return
        if self._last and self._last[0] is not visitor and self._network[self._last[0]] == self._network[visitor]:
            self._after[self._last] = visitor  # as it was seen: some are called in another order, or have no gradient
        self._last = visitor, backward
        following = self._after[self._last]
        self._let_go(keep=(visitor, following))
        self._bring(visitor, device)
        buffer, wait = self.there[visitor]
        wait()
        visitor.put(visitor.views(buffer))
        self._bring(following, device)

    def _bring(self, visitor: _Visitor, device: torch.device) -> None:
        if visitor not in self.there:
            self.there[visitor] = visitor.arrive(device)

    def _let_go(self, keep: Sequence[_Visitor] = ()) -> None:
        for visitor in [visitor for visitor in self.there if visitor not in keep]:
            _, wait = self.there.pop(visitor)
            wait()  # else its memory could be taken while it still comes

    def _applied(self, visitor: _Visitor, apply: Callable, *args, **kwargs) -> nn.Module:
        """`apply` of a block while its weights are away: what moves a network moves the rest alone."""
        self._let_go()
        visitor.put(itertools.repeat(None))
        try:
            return apply(*args, **kwargs)
        finally:
            visitor.leave()

    def end(self) -> None:
        """None is out any more; their weights are in main memory until the network is moved."""
        self._let_go()
        devices.wait_for_copies()  # from buffers that nobody may hold any more
        for visitor in self._network:
            del visitor.block.forward, visitor.block._apply
