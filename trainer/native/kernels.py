"""The kernels of ComfyUI's library while a gradient is computed: one that has none gives way to the same in plain torch.

`comfy_kitchen` has a kernel for each device, and the same as plain torch. A kernel without a gradient raises in the backward
pass, or is left out of it without a word. Which do, changes with each release: so each is tried when it is first called.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from ..families.options import FlowModelError

ALIKE = 0.02  # how far a kernel's gradient may be from the plain one, as a share: both round
Function = Callable[..., Any]
Arguments = Mapping[str, Any]


@contextmanager
def with_gradients() -> Iterator[None]:
    """Within it each function of comfy_kitchen that has a plain form is a `Kernel`; nothing happens before ComfyUI 0.3.65."""
    try:
        import comfy_kitchen
        from comfy_kitchen.backends import eager
    except ImportError:
        yield
        return
    fused = {
        name: function
        for name, function in vars(comfy_kitchen).items()
        if isinstance(function, FunctionType) and isinstance(getattr(eager, name, None), FunctionType)
    }
    for name, function in fused.items():
        setattr(comfy_kitchen, name, _kernel(function, getattr(eager, name)))
    try:
        yield
    finally:
        for name, function in fused.items():
            setattr(comfy_kitchen, name, function)


class Kernel:
    """A function of tensors: the fused one where its gradient is right, else the plain one."""

    def __init__(self, fused: Function, plain: Function) -> None:
        self.fused, self.plain = fused, plain
        self._takes, self._plain_takes = (inspect.signature(form).parameters for form in (fused, plain))
        self._choice: dict[str, Function | None] = {}  # by the type of device; None: neither has a gradient

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(self._takes, args, strict=False)) | kwargs
        # Some networks hand over the scale of a norm straight from a shared cast buffer, and autograd would keep that
        given = {name: value.clone() if _is_vector(value) else value for name, value in given.items()}
        device = next((value.device.type for value in given.values() if isinstance(value, Tensor)), "cpu")
        if device not in self._choice:
            if torch._C._current_graph_task_id() != -1 or torch.compiler.is_compiling():  # no place to try it
                return self._in_plain(**given)
            # In a thread of its own, where nobody looks at what is kept for a backward pass
            with ThreadPoolExecutor(1) as pool:
                self._choice[device] = pool.submit(self._try, given).result()
        choice = self._choice[device]
        if (
            choice is None
            and torch.is_grad_enabled()
            and any(_moves(value) and value.requires_grad for value in given.values())
        ):
            raise FlowModelError(
                f"model: {self.fused.__name__} of comfy_kitchen has no gradient, in plain torch either, and this model calls it "
                "where one is needed. Fix: load a file in bfloat16 or fp8"
            )
        return (choice or self.fused)(**given)

    def _in_plain(self, out: Tensor | None = None, **given: Any) -> Any:
        """The plain form, written into `out` where the caller has a place for it.

        Raises:
            FlowModelError: it is given what the plain form does not have.
        """
        defaults = {name: parameter.default for name, parameter in self._takes.items()}
        for name in given.keys() - self._plain_takes.keys():
            if isinstance(given[name], Tensor) or given[name] != defaults[name]:
                raise FlowModelError(
                    f"model: {self.fused.__name__} of comfy_kitchen has no gradient, and its plain form has no input {name!r}. "
                    "Fix: update comfy-kitchen, or load another model"
                )
        made = self.plain(**{name: given.get(name, defaults.get(name)) for name in self._plain_takes})
        return made if out is None else out.copy_(made)

    def _try(self, given: Arguments) -> Function | None:
        right = _gradient(self._in_plain, given)
        own = _gradient(self.fused, given)
        if right is None:
            return None if own is None else self.fused
        apart = None if own is None else (own - right).norm() <= ALIKE * right.norm()
        return self.fused if apart else self._in_plain


_kernel = functools.cache(Kernel)


def _moves(value: Any) -> bool:
    """Whether a gradient may go through it: numbers of 16 bits and more."""
    return isinstance(value, Tensor) and value.is_floating_point() and value.element_size() > 1


def _is_vector(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 1 and not value.requires_grad


def _gradient(function: Function, given: Arguments) -> Tensor | None:
    """Of a sum with unequal weights over what it returns, by all tensors that it is given, in a row; None where it has none."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in given.items() if _moves(value)}
    # A copy, since some write over what they are given
    copies = {
        name: value.clone() if isinstance(value, Tensor) else value for name, value in {**given, **leaves}.items()
    }
    try:
        returned = function(**copies)
        outputs = [value for value in (returned if isinstance(returned, tuple | list) else [returned]) if _moves(value)]
        weighted = [
            value.float().flatten() * torch.linspace(1, 2, value.numel(), device=value.device) for value in outputs
        ]
        gradients = torch.autograd.grad(torch.cat(weighted).sum(), list(leaves.values()), materialize_grads=True)
        return torch.cat([gradient.float().flatten() for gradient in gradients])
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, NotImplementedError, TypeError, FlowModelError):
        return None
