"""Several processes that train one model: who they are, which samples are whose, and where they meet.

accelerate holds the process group that torchrun or `accelerate launch` prepared. Every process runs the same graph on its share
of the samples. Scores and credit are put together before the advantages are computed, gradients before the optimizer's step.
Each such meeting begins with a message from every process, so that a failure or a request to stop ends them all, and leaves
none waiting. For a single process nothing here does anything.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn, TypeVar, overload

import torch
from torch import Tensor

from . import environment, extras, silence, stopping
from .errors import Expected

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from diffusers import ModelMixin

    D = TypeVar("D", bound=DataclassInstance)

# How long to wait for a process that is still at work, say at a slow reward. One that died is noticed at once.
PATIENCE = timedelta(hours=2)
# And for one that has yet to join: after a failure it may have met processes that were about to end, and never comes.
JOINING = timedelta(seconds=int(environment.read("OTCA_JOINING_SECONDS", "300")))
ANSWERING = 5.0  # seconds until a process that does not answer counts as lost
_WORD_BYTES = 2048
_BUCKET = 64 * 1024**2  # numbers of the gradient that are summed at once

_sharded = False  # whether the processes hold one model together: none can compute without the others
_hosts: list[str] = []  # the machine of each process
_LAUNCHER = os.getppid() if environment.has("TORCHELASTIC_RUN_ID") else None


class PeerFailed(Expected, RuntimeError, status=503):
    """Another process of this training failed; says which, and why."""


@functools.cache
def world() -> int:
    """How many processes train together."""
    return int(environment.read("WORLD_SIZE", "1"))


def rank() -> int:
    """This process's number, from 0."""
    return int(environment.read("RANK", "0")) if world() > 1 else 0


def is_main() -> bool:
    """Whether this is the process that writes files and prints."""
    return rank() == 0


def begin(cpu: bool) -> None:
    """Joins the others; each process on an accelerator of its own, or all on the CPU.

    Raises:
        ValueError: no accelerator, and not on the CPU either, so that each would train by itself.
    """
    if world() > 1:
        check_packages()
        from accelerate import PartialState
        from torch.distributed.distributed_c10d import _set_pg_timeout

        first = environment.read("LOCAL_RANK", "0") == "0"  # on each machine one says what it waits for
        say = functools.partial(print, file=sys.stderr, flush=True) if first else lambda line: None
        limit = threading.Timer(
            JOINING.seconds + 1, _give_up, ["they did not come"]
        )  # gloo has its time-out for each of its steps
        limit.start()
        try:
            with silence.broken(say, f"{this_process()} waits for the others to join"):
                joined = PartialState(cpu=cpu, timeout=JOINING).num_processes
                if joined == world():
                    _hosts[:] = _texts(_all(_text(socket.gethostname())))
        except (RuntimeError, PeerFailed) as error:  # torch's DistError is one
            _give_up(_reason(error))
        finally:
            limit.cancel()
        if joined != world():
            raise ValueError(
                f"{world()} processes were started, and {socket.gethostname()} has no accelerator for them. Fix: --device cpu "
                "trains with all of them on the CPU"
            )
        _set_pg_timeout(PATIENCE)  # all are there: torch has no public name for it


def _give_up(why: str) -> NoReturn:
    print(
        f"otca process {rank()}: {this_process()} could not join the others within {JOINING.seconds} s ({why}). Fix: start all "
        "machines anew, each with its own NODE_RANK and all with one MAIN_ADDRESS and MAIN_PORT, which they must reach",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


def machines() -> int:
    """How many machines train together, where each has as many processes as this one."""
    return max(1, world() // int(environment.read("LOCAL_WORLD_SIZE", str(world()))))


def this_process() -> str:
    """The name of this process for a human."""
    return f"process {rank()} of {world()} on {socket.gethostname()}"


def _title(number: int) -> str:
    return f"process {number} of {world()} on {_hosts[number]}"


def check_packages() -> None:
    """Raises MissingPackage where several processes cannot join, since accelerate is not here."""
    extras.check("Training by several processes", *extras.SEVERAL)


def end(code: int) -> None:
    """Leaves the others, so that they need not find out by a broken connection, and ends this process with that exit code.

    At once, after what was to be done at its end: Python is not taken apart. A training that was done was once said to have
    failed, since a process ended by SIGABRT ("terminate called without an active exception"). The likely cause, which could not
    be made again, is a thread of torch that asks for the interpreter while that ends. For a single process this does nothing.
    """
    if world() == 1:
        return
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    atexit._run_exitfuncs()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _device() -> torch.device:
    from accelerate import PartialState

    device = PartialState().device  # all instances share the state of the one that `begin` made
    assert device is not None, "`begin` has chosen it"
    return device


def reward_gpu(count: int) -> str:
    """The GPU of this process's rewards, where the `count` after those that train on this machine are for rewards alone."""
    processes, number = int(environment.read("LOCAL_WORLD_SIZE", "1")), int(environment.read("LOCAL_RANK", "0"))
    check_gpus(processes, count)
    return f"cuda:{processes + number % count}"


def check_gpus(processes: int, rewards: int) -> None:
    """Raises ValueError where a machine has fewer GPUs than processes to train and GPUs for rewards."""
    there = torch.cuda.device_count()
    if not rewards and there < processes:
        raise ValueError(
            f"--gpus {processes}: {socket.gethostname()} has {there} GPUs. Fix: fewer, or --device cpu, which trains with all "
            "processes on the CPU"
        )
    if there < processes + rewards:
        raise ValueError(
            f"--reward-gpus {rewards} and a GPU for each process that trains, {processes} here, are {processes + rewards} GPUs "
            f"on each machine, and {socket.gethostname()} has {there}. Fix: fewer of either"
        )


@dataclass(frozen=True)
class Share:
    """Which rows of the whole batch a process holds: all of them, where it trains alone."""

    rows: range
    total: int


def share(total: int) -> Share:
    """This process's consecutive rows of `total`. Whole groups, where their number is a multiple of the processes'.

    Raises:
        ValueError: fewer rows than processes.
    """
    if total < world():
        raise ValueError(f"{world()} processes for {total} samples. Fix: more prompts or samples, or fewer processes")
    return Share(rows(total), total)


def rows(total: int) -> range:
    """This process's consecutive rows of `total`; none where there are too few."""
    return range(rank() * total // world(), (rank() + 1) * total // world())


# -- meetings ----------------------------------------------------------------------------------------------------------


def meet(stopped: stopping.Stopped | None = None) -> None:
    """Waits for the other processes, and learns whether one has failed or was asked to stop.

    Args:
        stopped: that this process was asked to stop, for the others to hear.

    Raises:
        Stopped: a process was asked to stop.
        PeerFailed: another process failed, or is gone; or one has lost its launcher, which would start it again.
    """
    if world() == 1:
        return
    alone = _LAUNCHER not in (None, os.getppid())
    words = _texts(_all(_text("failed: its launcher was killed") if alone else _word(stopped)))
    for number, word in enumerate(words):
        if word.startswith("failed"):
            raise _heard(PeerFailed(f"{_title(number)} {word}. --resume continues from the last checkpoint"))
    for word in words:
        if word.startswith("stopped by "):
            raise _heard(stopping.Stopped(word.removeprefix("stopped by ")))


def _stop_together() -> None:
    """`stopping.check_stop` of processes that hold one model together."""
    try:
        stopping.check_stop()
    except stopping.Stopped as stopped:
        meet(stopped)
    else:
        meet()


def announce(problem: BaseException, while_scoring: tuple[type[BaseException], ...] = ()) -> PeerFailed | None:
    """Lets the others hear at their next meeting what ended this process, unless it heard that from them.

    Processes that hold one sharded model may be in the middle of a forward pass. They wait for its tensors then, and would take
    a message for one. So they are sent only what ends a process between two forward passes: a stop, or an error of
    `while_scoring`. They learn of any other error when this process ends and its connection breaks.

    `while_scoring`: errors that are raised only while pictures are scored.

    Returns:
        What is wrong if no other process is left to hear it.
    """
    errors = (problem, problem.__cause__)
    if world() == 1 or any(getattr(error, "heard", False) for error in errors):
        return None
    if not _sharded or any(isinstance(error, (stopping.Stopped, *while_scoring)) for error in errors):
        try:
            _all(_word(problem))
        except PeerFailed as lost:
            return lost
    return None


def _heard(problem):
    problem.heard = True
    return problem


def _word(problem: BaseException | None) -> Tensor:
    if problem is None:
        return _text("")
    if isinstance(problem, stopping.Stopped):
        return _text(f"stopped by {problem}")
    return _text(f"failed: {type(problem).__name__}: {problem}")


def _text(text: str) -> Tensor:
    content = text.encode()[:_WORD_BYTES]
    return torch.tensor(list(content.ljust(_WORD_BYTES, b"\0")), dtype=torch.uint8)


def _texts(tensors: Tensor) -> list[str]:
    return [bytes(text[text != 0].tolist()).decode(errors="replace") for text in tensors]


def _all(tensor: Tensor) -> Tensor:
    """[N, …] of every process's [ … ], on the CPU."""
    from accelerate.utils import gather

    try:
        return gather(tensor[None].to(_device())).cpu()  # pyright: ignore[reportAttributeAccessIssue] accelerate gives a tensor
    except RuntimeError as error:
        if not _hosts:  # not all have joined
            raise
        reason = _reason(error)
        error.__traceback__ = None  # which holds the group
        lost = f"{this_process()} lost {_lost()} ({reason}), whose own last lines say why"
        raise _heard(PeerFailed(f"{lost}. --resume continues from the last checkpoint")) from error


def _lost() -> str:
    """The names of those that do not answer after a connection broke. Who notices it leaves the group, so that the next one does,
    and says at the store, which the first process or its launcher has, that it is there itself."""
    from torch.distributed.distributed_c10d import _get_default_store

    store, end = _get_default_store(), time.monotonic() + ANSWERING
    torch.distributed.destroy_process_group()
    missing = list(range(world()))
    try:
        store.set(f"otca/{rank()}", "there")
        while len(missing) > 1 and time.monotonic() < end:
            time.sleep(0.1)
            missing = [number for number in missing if not store.check([f"otca/{number}"])]
        if rank() == 0:
            time.sleep(1)  # the others ask too
    except RuntimeError:
        missing = [0]
    return " or ".join(map(_title, missing)) or "a connection to the others"


def _reason(error: BaseException) -> str:
    """The library's message, without its place in its source, and what it adds to be funny."""
    reason = re.sub(r"^\[[^\]]*\.cc:\d+\]\s*", "", str(error).splitlines()[0])
    return re.split(r"\. (?=This |See |It is)", reason)[0].rstrip(". ")


def each(tensor: Tensor) -> Tensor:
    """Every process's tensor, one below the other: [N, …] on the CPU."""
    if world() == 1:
        return tensor[None].cpu()
    meet()
    return _all(tensor)


def told(text: str = "") -> str:
    """Returns the first process's value in every process; all of them have to call this, and the others say nothing.

    Raises:
        PeerFailed: it failed before it could say anything.
    """
    if world() == 1:
        return text
    content = torch.tensor(list(text.encode()), dtype=torch.uint8)
    length = int(each(torch.tensor(len(content)))[0])
    return bytes(_all(torch.cat([content, content.new_zeros(length - len(content))]))[0].tolist()).decode()


@overload
def whole(value: D) -> D: ...
@overload
def whole(value: Tensor) -> Tensor: ...
def whole(value):
    """The whole batch, in order, on the CPU, of what every process holds its share of: the same in each of them.

    Args:
        value: rows, or a dataclass whose tensors are rows.
    """
    if world() == 1:
        return value
    if isinstance(value, torch.Tensor):
        return _joined({"": value})[""]
    parts = {field.name: getattr(value, field.name) for field in fields(value)}
    return replace(value, **_joined({name: part for name, part in parts.items() if isinstance(part, torch.Tensor)}))


def _joined(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The rows of every process's tensors of one length, in order, after one meeting for all of them."""
    length = len(next(iter(tensors.values())))
    counts = each(torch.tensor(length)).tolist()
    joined = {}
    for name, tensor in tensors.items():
        parts = _all(torch.cat([tensor, tensor.new_zeros((max(counts) - length, *tensor.shape[1:]))]))
        joined[name] = torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
    return joined


def sum_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Adds up the gradients of all processes. A parameter without a gradient in any of them stays without.

    One sum an optimizer step, as DistributedDataParallel without synchronisation of the earlier backward passes would send it.
    Its hooks want a forward pass before each backward one, which graphs kept from the rollout and skipped samples do not have.
    """
    if world() == 1:
        return
    from accelerate.utils import reduce

    parameters = list(parameters)
    present = each(torch.tensor([parameter.grad is not None for parameter in parameters]).byte()).any(0)
    chosen = [parameter for parameter, there in zip(parameters, present.tolist(), strict=True) if there]
    for bucket in _buckets(chosen):
        flat = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in bucket])
        flat = reduce(flat, "sum")
        parts = flat.split([p.numel() for p in bucket])  # pyright: ignore[reportAttributeAccessIssue] a tensor, as above
        for parameter, part in zip(bucket, parts, strict=True):
            parameter.grad = part.view_as(parameter)


def _buckets(parameters: Sequence[torch.nn.Parameter]) -> list[list[torch.nn.Parameter]]:
    buckets, size = [], _BUCKET
    for parameter in parameters:
        if size >= _BUCKET:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += parameter.numel()
    return buckets


# -- models that no process holds whole ----------------------------------------------------------------------------------


def shard(network: ModelMixin, dtype: torch.dtype) -> None:
    """Spreads a network's parameters over all processes by FSDP2, its transformer blocks as units.

    Each process holds a part of every parameter, its gradient and its moments; a block is put together for as long as it
    computes. From now on all processes must call the network equally often. A backward pass leaves the mean over all processes.

    `dtype`: to compute in. Blocks are sent in it, unless the network keeps some layers in float32.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy

    halved = dtype != torch.float32 and not network._keep_in_fp32_modules
    # Inputs stay as they are, as in one process: rotary embeddings, for one, are float32 for good reason.
    sent = MixedPrecisionPolicy(dtype if halved else None, reduce_dtype=torch.float32, cast_forward_inputs=False)
    _shard(network, {"mp_policy": sent})


def shard_frozen(network: ModelMixin) -> None:
    """Shards the weights that are not trained, sent in the dtype that it is held in.

    What is trained stays whole in every process, where it is, and so does its gradient. Blocks are moved to the process's device
    one by one, so that no device need hold the whole network. Takes torch 2.7.
    """
    trained = {parameter for parameter in network.parameters() if parameter.requires_grad}
    _shard(network, {}, ignored_params=trained)


def _shard(network: ModelMixin, of_blocks: dict, **options) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    global _sharded
    _sharded = True
    stopping.stop_only_together(_stop_together)
    options["mesh"] = init_device_mesh(_device().type, (world(),))
    for block in network.modules():
        if type(block).__name__ in (network._no_split_modules or ()):
            fully_shard(block, **options, **of_blocks)
    # By itself FSDP2 would leave the network's own parameters whole after sampling.
    fully_shard(network, **options, reshard_after_forward=True)


def together(tensor: Tensor) -> Tensor:
    """A tensor of a sharded network, whole, where it is; all processes have to ask for it. Any other one as it is."""
    put = getattr(tensor, "full_tensor", None)
    return tensor if put is None else put()


def full(tensor: Tensor) -> Tensor:
    """The same on the CPU."""
    return together(tensor.detach()).cpu()


def like(tensor: Tensor, example: Tensor) -> Tensor:
    """A whole tensor, spread over the processes as `example` is."""
    tensor = tensor.to(example.device)
    if not hasattr(example, "full_tensor") or not tensor.ndim:  # a step count is no part of a parameter
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(example, DTensor), "only such a tensor has a `full_tensor`"
    return distribute_tensor(tensor, example.device_mesh, example.placements)
