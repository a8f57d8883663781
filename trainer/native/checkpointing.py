"""Exact gradients of networks that write over what they are given, as where a residual is added in place.

Checkpointing: `torch.utils.checkpoint` computes a block again from its inputs, which have changed by then: the gradient is wrong,
and nothing says so. Here a block works on copies, both times, unless it is known to write over nothing.

Without it: autograd keeps references to what it will need, and raises if it was written over since. Here whatever is about to be
written over is copied first. `torch.autograd.graph.allow_mutation_on_saved_tensors` does the same, but only for a backward pass
that happens before its context is left: ours comes after the rollout, the rewards and the credit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .frozen import training

OPTIONS = "transformer_options"  # ComfyUI's dictionary for its nodes; a network writes the number of the block into it

# Classes in comfy/ldm/modules/diffusionmodules/model.py (FLUX's, and so Z-Image's) and in comfy/ldm/wan/vae.py. They write over
# nothing that they are given: at the last level a copy would be a tenth of the peak.
DECODER_BLOCKS = {"ResnetBlock", "AttnBlock", "Upsample", "ResidualBlock", "AttentionBlock", "Resample"}


def checkpointed(
    run: Callable, parameters: Sequence[torch.nn.Parameter], args: tuple, kwargs: dict, writes: bool = True
) -> Any:
    """`run(*args, **kwargs)` of a block, of which the inputs alone are kept.

    `parameters`: what is trained within the block. `writes`: it may write over its inputs, so it is given copies.
    """
    if not torch.is_grad_enabled():
        return run(*args, **kwargs)
    kwargs = dict(kwargs)
    options = kwargs.pop(OPTIONS, None)
    inputs, spec = _flattened((args, kwargs))
    block = _Block(run, inputs, spec, options, writes)
    tensors = [leaf for leaf in inputs if isinstance(leaf, Tensor)]
    return block.outputs(_Checkpoint.apply(block, len(parameters), *parameters, *tensors))


@contextmanager
def blocks_again(decoder: torch.nn.Module) -> Iterator[None]:
    """Within it an autoencoder's blocks are `checkpointed`: those that are known, and that no other node has wrapped."""
    blocks = [block for block in decoder.modules() if type(block).__name__ in DECODER_BLOCKS]
    blocks = [block for block in blocks if "forward" not in vars(block)]
    for block in blocks:
        block.forward = partial(_again, block.forward)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def _again(forward: Callable, *args, **kwargs) -> Any:
    # Of a video they write what later frames need into lists, and would write it twice; of a picture Wan's count in one.
    lists = (value for value in (*args, *kwargs.values()) if isinstance(value, list))
    if any([type(entry) for entry in value] != [int] for value in lists):
        return forward(*args, **kwargs)
    return checkpointed(forward, (), args, kwargs, writes=False)


class _Block:
    """One call of a block: its inputs without their tensors, which autograd keeps and lets go of, and its outputs' places."""

    def __init__(self, run: Callable, inputs: Sequence, spec: pytree.TreeSpec, options: dict | None, writes: bool):
        self._run, self._spec, self._options, self._writes = run, spec, options, writes
        self._snapshot = None if options is None else dict(options)
        self._is_tensor = [isinstance(leaf, Tensor) for leaf in inputs]
        self._others = [None if tensor else leaf for leaf, tensor in zip(inputs, self._is_tensor, strict=True)]

    def __call__(self, tensors: Sequence[Tensor], again: bool) -> list[Tensor]:
        """The tensors of what the block returns."""
        queue = (tensor.clone() for tensor in tensors) if self._writes else iter(tensors)
        places = zip(self._is_tensor, self._others, strict=True)
        leaves = [next(queue) if is_tensor else other for is_tensor, other in places]
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        if self._options is not None:
            # The second time as it was the first time: later blocks have written other numbers into it.
            kwargs[OPTIONS] = dict(self._snapshot or {}) if again else self._options
        leaves, self._result_spec = _flattened(self._run(*args, **kwargs))
        self._result = [None if isinstance(leaf, Tensor) else (leaf,) for leaf in leaves]
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def outputs(self, tensors: Sequence[Tensor]) -> Any:
        """The block's result, with these tensors in the places of its own."""
        queue = iter(tensors)
        leaves = [next(queue) if leaf is None else leaf[0] for leaf in self._result]
        return pytree.tree_unflatten(leaves, self._result_spec)


class _Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block: _Block, count: int, *tensors):  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.block, ctx.count = block, count
        ctx.save_for_backward(*tensors)
        outputs = block([tensor.detach() for tensor in tensors[count:]], again=False)
        # A network may write over what a block returns, which autograd allows for no view that a function returned.
        whole = [tensor.clone() if tensor._is_view() else tensor for tensor in outputs]
        ctx.mark_non_differentiable(*(tensor for tensor in whole if not tensor.is_floating_point()))
        return tuple(whole)

    @staticmethod
    def backward(ctx, *gradients):
        parameters, tensors = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        wanted = ctx.needs_input_grad[2 + ctx.count :]
        leaves = [tensor.detach().requires_grad_(want) for tensor, want in zip(tensors, wanted, strict=True)]
        with torch.enable_grad(), training(), Mutable():
            outputs = ctx.block(leaves, again=True)
        pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad and g is not None]
        sources = [*parameters, *(leaf for leaf in leaves if leaf.requires_grad)]
        pulls = iter(
            torch.autograd.grad([o for o, _ in pairs], sources, [g for _, g in pairs], allow_unused=True)
            if pairs and sources
            else [None] * len(sources)
        )
        of_parameters = [next(pulls) for _ in parameters]
        return None, None, *of_parameters, *(next(pulls) if want else None for want in wanted)


def _flattened(values: Any) -> tuple[list, pytree.TreeSpec]:
    """Flattens as torch's pytree; how to take objects apart that carry tensors, such as a block's modulation, it learns first."""
    leaves, spec = pytree.tree_flatten(values)
    strangers = {type(leaf) for leaf in leaves if _carries_tensors(leaf)}
    if not strangers:
        return leaves, spec
    for stranger in strangers:
        pytree.register_pytree_node(
            stranger,
            lambda value: (list(vars(value).values()), tuple(vars(value))),
            lambda parts, names, cls=stranger: _whole(cls, names, parts),
        )
    return _flattened(values)


def _carries_tensors(leaf: Any) -> bool:
    if isinstance(leaf, Tensor | torch.nn.Module | type) or not hasattr(leaf, "__dict__"):
        return False
    return any(isinstance(value, Tensor) for value in vars(leaf).values())


def _whole(cls: Any, names: Sequence[str], parts: Any) -> Any:
    value = cls.__new__(cls)
    vars(value).update(zip(names, parts, strict=True))
    return value


# -- without it: what autograd keeps ------------------------------------------------------------------------------------------


class _Kept:
    """A tensor that the backward pass will need: autograd's own until it is written over, then a copy."""

    __slots__ = ("__weakref__", "is_copy", "tensor")

    def __init__(self, tensor: Tensor):
        self.tensor, self.is_copy = tensor, False


class Mutable:
    """A context around a forward pass: what it keeps for the backward pass outlives its in-place operations.

    `copies` counts how often something had to be copied. A network for which that is 0 can do without this context, which
    looks at every operation.
    """

    def __init__(self) -> None:
        self.copies = 0
        self._kept: dict[int, WeakSet[_Kept]] = defaultdict(WeakSet)
        self._stack = ExitStack()

    def __enter__(self) -> Mutable:
        self._stack.enter_context(saved_tensors_hooks(self._pack, lambda kept: kept.tensor))
        self._stack.enter_context(_BeforeWriting(self._rescue))
        return self

    def __exit__(self, *error) -> None:
        self._stack.close()
        self._kept.clear()

    def _pack(self, tensor: Tensor) -> _Kept:
        kept = _Kept(tensor)
        self._kept[_storage(tensor)].add(kept)
        return kept

    def _rescue(self, tensor: Tensor) -> None:
        for kept in self._kept.pop(_storage(tensor), ()):
            if not kept.is_copy:
                kept.tensor, kept.is_copy = kept.tensor.clone(), True
                self.copies += 1


class _BeforeWriting(TorchDispatchMode):
    def __init__(self, rescue: Callable[[Tensor], None]):
        super().__init__()
        self._rescue = rescue

    # Else torch compiles nothing under it. Within a program nothing is written over that autograd keeps, see `compiling`.
    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for number, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = kwargs.get(argument.name, args[number] if number < len(args) else None)
                for tensor in value if isinstance(value, list | tuple) else [value]:
                    if isinstance(tensor, Tensor):
                        self._rescue(tensor)
        with torch._C.DisableTorchFunctionSubclass():  # else what leaves a class of weights comes back
            return func(*args, **kwargs)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if type(tensor) in (Tensor, torch.nn.Parameter) else id(tensor)
