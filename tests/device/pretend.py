"""A pretend accelerator: tensors that say pretend:0 or pretend:1, compute on the CPU, and refuse what CUDA would refuse.

It stands for a GPU where there is none. What is in the wrong place fails as it would there, and what would make a GPU wait is
counted by the line that asked for it. It says nothing of speed, memory, streams, or the rounding of a GPU.

PyTorch's Python backends (torch 2.9 and later) give it a device of its own. `register` has to come before the first backward
pass of the process, since autograd starts its threads then, one for each device; and with these a process cannot be forked, as
some tests need it. So it has test processes of its own, `pytest --device pretend:0`. Without `active` the device is there, but no
accelerator is: whoever asks for the best device gets the CPU.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.utils import backend_registration

from comfyui_otca.host import devices

NAME, COUNT = "pretend", 2
MISSING = "torch 2.9 or later has the Python backends on which it stands"
SETUP = getattr(backend_registration, "_setup_privateuseone_for_python_backend", None)

ROOT = Path(__file__).resolve().parent.parent.parent
STAGED = 64 * 1024  # bytes that CUDA takes over from pageable memory at once; of more, the host waits for the device

aten = torch.ops.aten


@dataclasses.dataclass
class State:
    """What the pretend accelerator is like at the moment."""

    active: bool = False
    float64: bool = True  # whether it has numbers of that size
    casts: bool = True  # whether autocast casts, or does nothing
    seen: Waits | None = None


STATE = State()


class Waits:
    """What asked the device for something, as `<file>:<line> <what>`, how often.

    `waits` made the host wait until the device had done all that it was asked before; `queued` did not.
    """

    def __init__(self):
        self.waits: collections.Counter[str] = collections.Counter()
        self.queued: collections.Counter[str] = collections.Counter()

    def within(self, *files: str) -> collections.Counter[str]:
        """Those waits that files whose path begins so asked for."""
        return collections.Counter({line: count for line, count in self.waits.items() if line.startswith(files)})


def _note(what: str, waits: bool = True) -> None:
    if STATE.seen is not None:
        frame, innermost = sys._getframe(2), None
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith(str(ROOT)) and file not in (__file__, devices.__file__):
                innermost = f"{Path(file).relative_to(ROOT).as_posix()}:{frame.f_lineno}"
                break
            frame = frame.f_back
        (STATE.seen.waits if waits else STATE.seen.queued)[f"{innermost or 'backward'} {what}"] += 1


# -- tensors -----------------------------------------------------------------------------------------------------------


class Pretend(torch.Tensor):
    """A tensor of the pretend device; `held` is the CPU tensor of its numbers."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor, device: torch.device):
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=device,
        )
        made.held = held
        return made

    def __init__(self, held: torch.Tensor, device: torch.device):
        pass

    def untyped_storage(self):
        return self.held.untyped_storage()

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def tolist(self) -> list:
        return self.cpu().tolist()

    def __repr__(self, **_):
        return f"{self.held!r} on {self.device}"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


def _is_ours(value) -> bool:
    return isinstance(value, Pretend)


def _held(value):
    return value.held if _is_ours(value) else value


def _mapped(change: Callable, value):
    """What operators take and return, with each leaf changed."""
    if isinstance(value, dict):
        return {name: _mapped(change, one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_mapped(change, one) for one in value])
    return change(value)


def _tensors(value) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors(one)


# Where a plain `parameter.data = …` would only exchange the shell of a `Pretend`, or refuse another kind of tensor.
_DATA = torch._C.TensorBase.data


def _set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
    if not (_is_ours(tensor) or _is_ours(value)):
        _DATA.__set__(tensor, value)
    elif _is_ours(tensor) and _is_ours(value) and tensor.device == value.device:
        _DATA.__set__(tensor, value)
        tensor.held = value.held
    else:  # from one device to another
        grad, tensor.grad = tensor.grad, None
        other = Pretend(value.held, value.device) if _is_ours(value) else value.detach()
        if isinstance(tensor, torch.nn.Parameter):
            other = torch.nn.Parameter(other, tensor.requires_grad)
        torch.utils.swap_tensors(tensor, other)
        if grad is not None:
            tensor.grad = Pretend(_held(grad), tensor.device) if _is_ours(tensor) else _held(grad)


# -- operators ---------------------------------------------------------------------------------------------------------

COPY = aten.copy_.default
INDEXED = {
    aten.index.Tensor,
    aten._unsafe_index.Tensor,
    aten.index_put_.default,
    aten.index_put.default,
    aten._index_put_impl_.default,
}
# The host needs an answer of the device: a number, or how large a result is.
ANSWERED = {
    aten._local_scalar_dense.default,
    aten.item.default,
    aten.is_nonzero.default,
    aten.equal.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.unique_dim.default,
    aten._unique2.default,
    aten.unique_consecutive.default,
    aten.repeat_interleave.Tensor,
    aten.bincount.default,
    aten.linalg_inv_ex.default,
}
# Take a CPU number beside tensors of the device, though they are not pointwise.
WITH_NUMBERS = {aten.fill_.Tensor, aten.masked_fill_.Tensor, aten.masked_fill.Tensor} | INDEXED
# Only mark a tensor, and nobody below us heeds the mark: what they mean is computed at once.
MARKING = {aten._conj.default: aten._conj_physical.default, aten._neg_view.default: aten.neg.default}
# Would change the shape of a tensor in place, which a wrapper cannot follow.
RESHAPING = {aten.resize_.default, aten.set_.source_Tensor, aten.squeeze_.dim, aten.unsqueeze_.default, aten.t_.default}


def _run(func, args: tuple, kwargs: dict):
    """One operator with at least one argument of ours, or made for our device."""
    func = MARKING.get(func, func)
    tensors = list(_tensors((args, kwargs)))
    ours = [tensor for tensor in tensors if _is_ours(tensor)]
    if func is COPY:
        return _copied(*args, **kwargs)
    if func is aten._copy_from.default:
        return _copied(args[1], args[0], *args[2:], **kwargs)
    asked = kwargs.get("device")
    asked = None if asked is None else torch.device(asked)
    if func is aten._to_copy.default:
        return _moved(args[0], asked, kwargs)
    device = _one_device(func, tensors, ours) if ours else asked
    if func in INDEXED:
        _indexed(func, args)
    if func in ANSWERED:
        _note(func.overloadpacket.__name__)
    if (generator := kwargs.get("generator")) is not None and generator.device.type == "cpu":
        raise RuntimeError(f"Expected a 'pretend' device type for generator but found 'cpu' in {func}")
    if func in RESHAPING:
        raise NotImplementedError(f"{func} changes a shape in place, which the pretend device cannot do")
    where = asked if asked is not None else device
    assert where is not None
    inner = _mapped(_held, kwargs)
    if asked is not None:
        inner["device"] = torch.device("cpu")
    inner.pop("pin_memory", None)
    result = func(*_mapped(_held, args), **inner)
    if where.type == "cpu":
        return result
    known = {id(tensor.held): tensor for tensor in ours}
    return _mapped(lambda value: _wrapped(value, where, known), result)


def _wrapped(value, device: torch.device, known: dict):
    if not isinstance(value, torch.Tensor):
        return value
    if id(value) in known:  # an operator in place
        shell = known[id(value)]
        assert shell.shape == value.shape, "an operator has changed the shape of its result"
        return shell
    if value.dtype == torch.float64 and not STATE.float64:
        raise TypeError(f"{device} has no float64")
    return Pretend(value, _with_index(device))


def _with_index(device: torch.device) -> torch.device:
    return torch.device(NAME, device.index or 0)


def _one_device(func, tensors: list, ours: list) -> torch.device:
    devices = {tensor.device for tensor in ours}
    for tensor in tensors:
        if not _is_ours(tensor) and func not in INDEXED:
            if tensor.dim() or not (torch.Tag.pointwise in func.tags or func in WITH_NUMBERS or _is_foreach(func)):
                devices.add(tensor.device)
    if len(devices) > 1:
        found = " and ".join(sorted(map(str, devices)))
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {found} in {func}")
    return devices.pop()


def _is_foreach(func) -> bool:
    return func.overloadpacket.__name__.startswith("_foreach")


def _indexed(func, args: tuple) -> None:
    if not _is_ours(args[0]):
        raise RuntimeError(
            "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
            if any(map(_is_ours, args[1]))
            else f"Expected all tensors to be on the same device, but found {NAME} and cpu in {func}"
        )
    for index in args[1]:
        if index is None:
            continue
        if not _is_ours(index):
            _note("index to the device")
        elif index.dtype in (torch.bool, torch.uint8):
            _note("index by a mask")
    for value in args[2:3]:
        if isinstance(value, torch.Tensor) and not _is_ours(value) and value.dim():
            raise RuntimeError(f"Expected all tensors to be on the same device, but found {NAME} and cpu in {func}")


def _copied(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False):
    if _is_ours(source) and not _is_ours(target):
        _to_host(non_blocking)
    elif _is_ours(target) and not _is_ours(source):
        _to_device(source, non_blocking)
    _held(target).copy_(_held(source))
    return target


def _moved(source: torch.Tensor, target: torch.device | None, kwargs: dict):
    target = source.device if target is None else target
    inner = {**kwargs, "device": torch.device("cpu")}
    non_blocking = inner.pop("non_blocking", False)
    inner.pop("pin_memory", None)
    if _is_ours(source) and target.type == "cpu":
        _to_host(non_blocking)
    elif not _is_ours(source) and target.type == NAME:
        _to_device(source, non_blocking)
    made = aten._to_copy.default(_held(source), **inner)
    return made if target.type == "cpu" else _wrapped(made, target, {})


def _to_host(non_blocking: bool) -> None:
    if non_blocking:
        raise AssertionError("a copy to the host that does not wait: the host would read before the numbers are there")
    _note("to the host")


def _to_device(source: torch.Tensor, non_blocking: bool) -> None:
    if not source.numel():
        return
    waits = not non_blocking or (source.nbytes > STAGED and not getattr(source, "is_pinned_for_pretend", False))
    _note("to the device", waits)


# -- the device --------------------------------------------------------------------------------------------------------


class _Module(backend_registration._DummyBackendModule):
    """`torch.pretend`."""

    def device_count(self) -> int:
        return COUNT if STATE.active else 0

    def is_available(self) -> bool:
        return STATE.active

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device=None) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    def set_rng_state(self, *state) -> None:
        pass

    def synchronize(self, device=None) -> None:
        _note("synchronize")


# Without a tensor of ours among their arguments, or, as the copy of `torch.tensor(…, device=…)`, where torch skips subclasses.
FACTORIES = (
    *("copy_", "_copy_from", "_to_copy"),
    *("empty.memory_format", "empty_strided", "zeros", "ones", "full", "scalar_tensor", "eye", "eye.m"),
    *("arange", "arange.start", "arange.start_step", "linspace", "randperm", "randperm.generator"),
    *("rand", "rand.generator", "randn", "randn.generator", "randint", "randint.low"),
    *("randint.generator", "randint.low_generator", "normal.float_float", "tril_indices", "triu_indices"),
)
# As CUDA's autocast has it: what is computed in the lower precision, what in float32, and what in the widest of its inputs.
LOWERED = (
    *("mm", "bmm", "addmm", "baddbmm", "matmul", "linear", "conv1d", "conv2d", "conv3d"),
    *("conv_transpose2d.input", "scaled_dot_product_attention"),
)
FLOAT32 = tuple("layer_norm group_norm rms_norm softmax.int log_softmax.int exp log rsqrt pow.Tensor_Scalar".split())
WIDEST = ("cat", "stack")

# What a GPU has a kernel for, and other devices make of several operators, with a tensor for each.
FUSED = ("silu_backward",)

_libraries: list[torch.library.Library] = []


def register() -> None:
    """Makes the device known to torch, once for this process."""
    if SETUP is None or _libraries:
        return
    SETUP(NAME, backend_module=_Module(), hook=_Hooks())
    operators, fallbacks = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    _libraries.extend((operators, fallbacks))
    for name in (*FACTORIES, *FUSED):
        operators.impl(name, _factory(_operator(name)), "PrivateUse1")
    fallbacks.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for names, dtype in ((LOWERED, _lowered), (FLOAT32, _float32), (WIDEST, _widest)):
        for name in names:
            operators.impl(name, _casting(_operator(name), dtype), "AutocastPrivateUse1")
    operators.impl("is_pinned", _is_pinned, "CPU")
    operators.impl("_pin_memory", _pinned, "CPU")


if SETUP is not None:

    class _Hooks(torch._C._acc.PrivateUse1Hooks):
        def is_available(self) -> bool:
            return STATE.active

        def has_primary_context(self, device) -> bool:
            return True

        def is_built(self) -> bool:
            return True


def is_registered() -> bool:
    return bool(_libraries)


def _operator(name: str):
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def _factory(func) -> Callable:
    return lambda *args, **kwargs: _run(func, args, kwargs)


def _casting(func, dtype_of: Callable) -> Callable:
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def cast(*args, **kwargs):
        tensors = [tensor for tensor in _tensors((args, kwargs)) if tensor.is_floating_point()]
        dtype = dtype_of(tensors)

        def one(value):
            eligible = _is_ours(value) and value.is_floating_point() and value.dtype != torch.float64
            return value.to(dtype) if eligible and STATE.casts else value

        with torch._C._ExcludeDispatchKeyGuard(key):
            return func(*_mapped(one, args), **_mapped(one, kwargs))

    return cast


def _lowered(tensors: list) -> torch.dtype:
    return torch.get_autocast_dtype(NAME)


def _float32(tensors: list) -> torch.dtype:
    return torch.float32


def _widest(tensors: list) -> torch.dtype | None:
    dtypes = {tensor.dtype for tensor in tensors}
    return torch.float32 if torch.float32 in dtypes else next(iter(dtypes), None)


def _is_pinned(tensor: torch.Tensor, device=None) -> bool:
    return getattr(tensor, "is_pinned_for_pretend", False)


def _pinned(tensor: torch.Tensor, device=None) -> torch.Tensor:
    if not STATE.active:
        raise RuntimeError("Need to provide pin_memory allocator to use pin memory.")
    copy = tensor.clone()
    copy.is_pinned_for_pretend = True
    return copy


@contextlib.contextmanager
def active(*, float64: bool = True, casts: bool = True) -> Iterator[None]:
    """Within it the pretend device is this machine's accelerator.

    Args:
        float64: whether it has such numbers. CUDA has, Apple's GPUs have not.
        casts: whether autocast casts; else the dtypes are those of the tensors.
    """
    importlib.import_module("torch._dynamo")  # which looks at the function that is replaced here

    before = dataclasses.replace(STATE)
    STATE.active, STATE.float64, STATE.casts = True, float64, casts
    with contextlib.nullcontext() if before.active else _moving():
        try:
            yield
        finally:
            vars(STATE).update(vars(before))


@contextlib.contextmanager
def _moving() -> Iterator[None]:
    """Within it parameters move between the devices as they do on a machine with a GPU: as the same objects."""
    compatible = torch._has_compatible_shallow_copy_type
    torch.Tensor.data = property(_DATA.__get__, _set_data)
    torch._has_compatible_shallow_copy_type = lambda tensor, other: (
        _is_ours(tensor) or _is_ours(other) or compatible(tensor, other)
    )
    devices.QUEUES.add(NAME)
    try:
        yield
    finally:
        devices.QUEUES.discard(NAME)
        torch._has_compatible_shallow_copy_type = compatible
        del torch.Tensor.data


@contextlib.contextmanager
def watched() -> Iterator[Waits]:
    """Counts, within it, what is asked of the device."""
    before, STATE.seen = STATE.seen, Waits()
    try:
        yield STATE.seen
    finally:
        STATE.seen = before
