"""The kernels of ComfyUI's library while a gradient is computed: one that has none gives way to the same in plain torch.

`comfy_kitchen` has a kernel for each device, and the same as plain torch. A kernel without a gradient raises in the backward
pass, or is left out of it without a word. Which do, changes with each release: so each is tried when it is first called.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from ..families.options import FlowModelError

ALIKE = 0.02  # how far a kernel's gradient may be from the plain one, as a share: both round
Function = Callable[..., Any]


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
    """A function of tensors: the fused one, but where a gradient goes through it that it has not, or not right."""

    def __init__(self, fused: Function, plain: Function) -> None:
        self.fused, self.plain = fused, plain
        self._takes, self._plain_takes = (inspect.signature(form).parameters for form in (fused, plain))
        self._choice: dict[
            tuple[str, ...], Function | None
        ] = {}  # by device and inputs with a gradient; None: has none

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = dict(zip(self._takes, args, strict=False)) | kwargs
        trained = [name for name, value in arguments.items() if isinstance(value, Tensor) and value.requires_grad]
        if not trained or not torch.is_grad_enabled():
            return self.fused(**arguments)
        # Some networks hand over the scale of a norm straight from a shared cast buffer, and autograd would keep that
        arguments = {name: value.clone() if _is_vector(value) else value for name, value in arguments.items()}
        case = arguments[trained[0]].device.type, *trained
        if case not in self._choice:
            if torch._C._current_graph_task_id() != -1 or torch.compiler.is_compiling():  # no place to try it
                return self._in_plain(**arguments)
            # In a thread of its own, where nobody looks at what is kept for a backward pass
            with ThreadPoolExecutor(1) as pool:
                self._choice[case] = pool.submit(self._try, arguments, trained).result()
        if (choice := self._choice[case]) is None:
            raise FlowModelError(
                f"model: {self.fused.__name__} of comfy_kitchen has no gradient by {trained[0]}, in plain torch either, and this "
                "model calls it where one is needed. Fix: load a file in bfloat16 or fp8"
            )
        return choice(**arguments)

    def _in_plain(self, out: Tensor | None = None, **arguments: Any) -> Any:
        """The plain form, written into `out` where the caller has a place for it.

        Raises:
            FlowModelError: it is given what the plain form does not have.
        """
        defaults = {name: parameter.default for name, parameter in self._takes.items()}
        for name in arguments.keys() - self._plain_takes.keys():
            if isinstance(arguments[name], Tensor) or arguments[name] != defaults[name]:
                raise FlowModelError(
                    f"model: {self.fused.__name__} of comfy_kitchen has no gradient, and its plain form has no input {name!r}. "
                    "Fix: update comfy-kitchen, or load another model"
                )
        made = self.plain(**{name: arguments.get(name, defaults.get(name)) for name in self._plain_takes})
        return made if out is None else out.copy_(made)

    def _try(self, arguments: Mapping[str, Any], trained: Sequence[str]) -> Function | None:
        right, own = (_gradient(form, arguments, trained) for form in (self._in_plain, self.fused))
        if right is None or not right.any():  # as of what rounds to whole numbers
            return None if own is None else self.fused
        is_right = own is not None and (own - right).norm() <= ALIKE * right.norm()
        return self.fused if is_right else self._in_plain


_kernel = functools.cache(Kernel)


def _is_vector(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 1 and not value.requires_grad


def _gradient(function: Function, arguments: Mapping[str, Any], trained: Sequence[str]) -> Tensor | None:
    """The gradient, in a row, of an unequally weighted sum of what it returns, by what is trained; None: it has none."""
    leaves = [arguments[name].detach().clone().requires_grad_() for name in trained]
    copied = {**arguments, **dict(zip(trained, leaves, strict=True))}
    try:
        # Copies, since some write over what they are given
        returned = function(
            **{name: value.clone() if isinstance(value, Tensor) else value for name, value in copied.items()}
        )
        outputs = [
            value.float().flatten() for value in (returned if isinstance(returned, tuple | list) else [returned])
        ]
        weighted = [value * torch.linspace(1, 2, len(value), device=value.device) for value in outputs]
        gradients = torch.autograd.grad(torch.cat(weighted).sum(), leaves, materialize_grads=True)
        return torch.cat([gradient.float().flatten() for gradient in gradients])
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, NotImplementedError, TypeError, FlowModelError):
        return None
