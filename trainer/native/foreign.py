"""Patches of other nodes on a MODEL: functions around the network's calls, and the weights that those hold."""

from __future__ import annotations

import functools
import gc
import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import frozen

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

# Wrappers around a whole sampling, of which training takes single steps.
AROUND_SAMPLING = ("outer_sample", "sampler_sample")
_PLAIN = (type(None), bool, int, float, complex, str, bytes, Tensor, torch.dtype, torch.device, torch.Size)


@dataclass(frozen=True)
class Function:
    """A function that another node has put on a MODEL, and where: "wrappers", "injections", "model_options" …"""

    place: str
    value: Any
    kind: str = ""  # of a wrapper: what it is around

    @property
    def inner(self) -> Any:
        """The node's own function or class, where it was handed to one of ComfyUI's functions or tied to an object."""
        value = self.value
        while isinstance(value, types.MethodType | functools.partial) or _is_comfys(value):
            if isinstance(value, functools.partial):
                value = value.func
            elif isinstance(value, types.MethodType):
                value = value.__func__ if isinstance(value.__self__, type) else type(value.__self__)
            else:
                value = next(item for item in _enclosed(value) if callable(item))
        return value if hasattr(value, "__qualname__") else type(value)

    @property
    def file(self) -> str:
        return getattr(sys.modules.get(self.inner.__module__), "__file__", None) or ""

    @property
    def node(self) -> str:
        """The title of the node that has put it there, or of those that may have; else the function's own name."""
        inner, nodes = self.inner, sys.modules.get("nodes")
        name, place = inner.__qualname__.split(".")[0], inner.__module__
        classes: dict[str, type] = getattr(nodes, "NODE_CLASS_MAPPINGS", {})
        # A function that puts a wrapper on a MODEL uses the wrapper's name.
        own = vars(sys.modules.get(place) or types)
        calls = {key: call for key, call in own.items() if isinstance(call, types.FunctionType)}
        names = {name, *(key for key, call in calls.items() if name in call.__code__.co_names)}
        users = {id_: cls for id_, cls in classes.items() if name == cls.__name__ or names & _names(cls)}
        away = {id_: (cls.__module__ != place, cls.__name__ != name, cls.__module__) for id_, cls in users.items()}
        near = sorted(id_ for id_, distance in away.items() if distance == min(away.values()))
        titles = getattr(nodes, "NODE_DISPLAY_NAME_MAPPINGS", {})
        return " or ".join(titles.get(id_) or id_ for id_ in near) or f"{place.rsplit('/', 1)[-1]}.{inner.__qualname__}"


def _enclosed(function: types.FunctionType) -> list[Any]:
    """The values that it takes from the function around it."""
    return [*inspect.getclosurevars(function).nonlocals.values(), *(function.__defaults__ or ())]


def _is_comfys(value: Any) -> bool:
    """Whether it is ComfyUI's function around that of a node."""
    is_core = isinstance(value, types.FunctionType) and value.__module__.startswith("comfy.")
    return is_core and any(map(callable, _enclosed(value)))


def _names(cls: type) -> set[str]:
    """All names that the code of a node's own function uses, or that of a node which it is a kind of."""
    own = {"execute", str(getattr(cls, "FUNCTION", ""))}
    functions = [vars(part)[name] for part in cls.__mro__ for name in own & vars(part).keys()]
    codes, names = [getattr(getattr(function, "__func__", function), "__code__", None) for function in functions], set()
    for code in filter(None, codes):
        names.update(code.co_names)
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return names


def functions(patcher: ModelPatcher, own: str) -> list[Function]:
    """All but plain data. `own`: the key of our own injection."""
    options, patched = patcher.model_options, {k: v for k, v in patcher.object_patches.items() if k != "model_sampling"}
    inside = options.get("transformer_options", {}).get("wrappers", {})
    wrappers = [*getattr(patcher, "wrappers", {}).items(), *inside.items()]
    injected = {key: entry for key, entry in getattr(patcher, "injections", {}).items() if key != own}
    places = {"model_options": options, "callbacks": getattr(patcher, "callbacks", {}), "object_patches": patched}
    listed = [Function(place, value) for place, held in places.items() for value in _leaves(held)]
    listed += [Function("wrappers", value, kind) for kind, held in wrappers for value in _leaves(held)]
    return listed + [Function("injections", value) for value in _leaves(injected)]


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(part)
    elif not isinstance(value, _PLAIN):
        yield value


def titles(some: list[Function]) -> str:
    return " and ".join(dict.fromkeys(function.node for function in some))


def blamed(error: BaseException, some: list[Function]) -> str | None:
    """The node in whose file an error was raised, or passed; None where it was in no node's."""
    files, trace, node = {function.file: function for function in some if function.file}, error.__traceback__, None
    while trace is not None:
        function = files.get(trace.tb_frame.f_code.co_filename)
        node, trace = function.node if function else node, trace.tb_next
    return node


# -- the weights that they hold -----------------------------------------------------------------------------------------------


def unlock(values: list[Any], skip: torch.nn.Module) -> list[torch.nn.Module]:
    """`rewrap` for whatever these objects refer to, but the model `skip` that they are on; returns the networks among it."""
    networks: list[torch.nn.Module] = []
    visited, queue = {id(module) for module in skip.modules()}, list(values)
    while queue:
        value = queue.pop()
        if id(value) in visited or isinstance(value, type | types.ModuleType | str):
            continue
        visited.add(id(value))
        if isinstance(value, Tensor):
            make_ordinary(value)
        elif isinstance(value, torch.nn.Module):
            networks.append(value)
            rewrap(value)
        elif isinstance(value, types.FunctionType):  # without its module, which refers to everything
            queue += _enclosed(value)
        else:
            queue += gc.get_referents(value)
    return networks


def rewrap(module: torch.nn.Module) -> None:
    """Makes weights that were loaded inside `torch.inference_mode` ordinary tensors of the same memory: no copy.

    Autograd keeps nothing of an inference tensor. Quantized weights stay as they are: our layers never have autograd keep them.
    No weight gets a gradient, which ComfyUI leaves open for those that are outside of its layers.
    """
    module.requires_grad_(False)
    # Also tensors that are neither parameter nor buffer, such as the means of Qwen-Image's and Wan's latents.
    for holder in (*module.modules(), *filter(None, [getattr(module, "latent_format", None)])):
        held = vars(holder)
        for part in (held, held.get("_parameters", {}), held.get("_buffers", {})):
            for value in part.values():
                if isinstance(value, Tensor):
                    make_ordinary(value)


def make_ordinary(tensor: Tensor) -> None:
    """Takes the mark of `torch.inference_mode` off, for all who refer to it; what is noted on it stays."""
    if not tensor.is_inference() or type(tensor.data) is not Tensor:
        return
    made, noted = frozen.alone(tensor.data), dict(vars(tensor))
    torch.utils.swap_tensors(tensor, torch.nn.Parameter(made, False) if type(tensor) is torch.nn.Parameter else made)
    vars(tensor).update(noted)


def ordinary(tensor: Tensor) -> Tensor:
    """The same memory without the mark of `torch.inference_mode`."""
    return frozen.alone(tensor) if tensor.is_inference() else tensor
