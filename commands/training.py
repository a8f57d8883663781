"""`otca train`, and what is asked of a workflow before: `otca validate`, `otca memory`, `otca nodes`."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..host import environment, silence
from ..host.stopping import STOP
from . import options
from .options import OF_ALL_NODES, SET, WORKFLOW, arg, command, count, flag

if TYPE_CHECKING:
    from ..trainer.run.loop import Prepared


@command(
    "train",
    "train an exported workflow",
    *WORKFLOW,
    arg("--iterations", "length of the training, instead of the workflow's own", type=int, metavar="N"),
    arg("--output", "the run's folder (default: runs/<run_name>)", type=options.folder, metavar="DIR"),
    flag("--resume", "continue from the folder's last checkpoint"),
    flag(
        "--take-over",
        "begin in a folder that a process of another machine has claimed, because nothing trains there any more",
    ),
    *OF_ALL_NODES,
    count("--gpus", "processes, each on a GPU of its own; with --device cpu all on the CPU", 1),
    count("--reward-gpus", "rewards whose device is auto use the N GPUs after those that train"),
    arg("--max-restarts", "with --gpus: resume by itself after up to R failures", type=int, default=0, metavar="R"),
    flag("--detach", "give the shell back once it trains, and write what is printed into the run's train.log"),
)
def train(arguments: argparse.Namespace) -> int:
    """Trains an exported workflow. Ctrl-C or SIGTERM saves a checkpoint; --resume continues from it bit for bit."""
    from ..host import devices, distributed
    from ..host.processes import launch, machines
    from ..trainer.checks.prepare import hand_over, together
    from ..trainer.run import loop
    from ..trainer.workflow.problem import WorkflowError

    if arguments.reward_gpus and arguments.device:
        raise ValueError(f"--reward-gpus and --device {arguments.device} say two things. Fix: leave one of them out")
    options.allow(arguments)
    if arguments.detach:
        return _detached(arguments)
    launches = not environment.has("RANK") and arguments.gpus * machines() > 1  # other processes, which then train
    devices.choose(arguments.device)
    if launches:
        distributed.check_packages()
    if launches and arguments.device != "cpu":
        distributed.check_gpus(arguments.gpus, arguments.reward_gpus or 0)
    elif not launches:
        rewards = distributed.reward_gpu(arguments.reward_gpus) if arguments.reward_gpus else None
        devices.choose(arguments.device, rewards)
        distributed.begin(cpu=arguments.device == "cpu")
    options.quiet_libraries()
    if launches and machines() > 1:
        return launch(arguments.gpus, arguments.max_restarts, arguments.command_line)
    processes = arguments.gpus if launches else distributed.world()
    say = options.say if distributed.is_main() else lambda line: None
    try:
        with silence.broken(say, "preparing the workflow"):
            prepared = together(
                lambda: _prepared(arguments, processes), functools.partial(options.node_classes, arguments)
            )
    except WorkflowError as refused:
        options.print_problems(refused.problems)
        return options.EXIT_BAD_INPUT
    if not launches:
        code = loop.train(prepared, say=options.say)
        distributed.end(code)
        return code
    with contextlib.closing(prepared.held), hand_over(prepared):
        return launch(arguments.gpus, arguments.max_restarts, arguments.command_line)


def _detached(arguments: argparse.Namespace) -> int:
    """Starts the same command as a process that outlives this terminal; shows what it prints until it trains, or has ended."""
    import psutil

    from ..host import files, paths, processes
    from ..trainer.checks import preflight
    from ..trainer.run import status
    from ..trainer.run.folder import LOG
    from ..trainer.types import RUN_NODE

    workflow = options.load(arguments)
    if options.print_problems(preflight.problems(workflow, arguments.gpus)):
        return options.EXIT_BAD_INPUT
    [node] = workflow.find(RUN_NODE)
    with paths.writing_to(_folder(arguments)):
        folder = paths.run_folder(workflow.nodes[node].constants["run_name"])
    folder.mkdir(parents=True, exist_ok=True)
    same = [word for word in arguments.command_line if word != "--detach"]
    descriptor = files.open_plain(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with open(descriptor, "ab") as log, open(folder / LOG, encoding="utf-8", errors="replace") as printed:
        printed.seek(0, os.SEEK_END)
        process = processes.start(same, {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}, log)
        begun = psutil.Process(process.pid).create_time()  # by the clock of `process_started`, which time.time is not
        trains = False
        while process.poll() is None and not trains:
            time.sleep(0.2)
            stands = status.read(folder, lambda line: None)
            trains = bool(stands.who) and (stands.process_started or 0) >= begun
            print(printed.read(), end="", flush=True)
        print(printed.read(), end="")
    if trains:
        print(f"process {process.pid} trains; tail -f {folder / LOG} shows it, and touch {folder / STOP} stops it")
    return process.poll() or 0


def _folder(arguments: argparse.Namespace) -> Path | None:
    """The run's folder as it was typed; None: where its name says."""
    return arguments.output or (arguments.workflow if arguments.workflow.is_dir() else None)


def _prepared(arguments: argparse.Namespace, processes: int) -> Prepared:
    from ..trainer.checks.prepare import prepare
    from ..trainer.types import RUN_NODE

    workflow = options.load(arguments)
    if arguments.iterations is not None:
        workflow.set(f"{RUN_NODE}.iterations", arguments.iterations)
    options.set_seeds(workflow, arguments.seed)
    prepared = prepare(
        workflow,
        _folder(arguments),
        resume=arguments.resume,
        take_over=arguments.take_over,
        processes=processes,
        say=options.say,
    )
    options.print_problems(prepared.problems)
    return prepared


@command("validate", "check a workflow", *WORKFLOW, count("--gpus", "check it for otca train --gpus N", 1))
def validate(arguments: argparse.Namespace) -> int:
    """Checks a workflow without running it and prints every problem, and what it would read, post, download or run that is not
    its own; exit code 2 if there is an error.
    """
    from ..trainer.checks import preflight

    workflow = options.load(arguments)
    failed = options.print_problems(preflight.problems(workflow, arguments.gpus))
    options.say_wants(workflow, sys.stderr if failed else sys.stdout)
    if failed:
        return options.EXIT_BAD_INPUT
    print(f"{arguments.workflow}: ready to train")
    return 0


@command(
    "memory",
    "estimate what a training needs on the GPU",
    arg("workflow", "exported by ComfyUI, with Make Trainable or Load Flow Model in it", type=Path),
    SET,
    arg(
        "--comfyui",
        "ComfyUI's folder, whose model files are looked at (default: $COMFYUI_PATH)",
        type=options.folder,
        metavar="PATH",
    ),
    count("--gpu-gb", "compare with a GPU of N GB (default: the one here)"),
)
def memory(arguments: argparse.Namespace) -> int:
    """Estimates what the training of a workflow needs on the GPU, phase by phase, and says what to change if that is too much.
    It is counted from configurations and the headers of files: nothing is loaded, and nothing was measured on a GPU.
    """
    from ..nodes import NODE_CLASS_MAPPINGS
    from ..trainer.memory import fitting, needs
    from ..trainer.memory.case import GB, in_words
    from ..trainer.workflow.reading import api_graph, read_workflow
    from ..trainer.workflow.running import Workflow

    options.know_folders(arguments)
    workflow = Workflow(api_graph(read_workflow(arguments.workflow)), NODE_CLASS_MAPPINGS)
    options.change(workflow, arguments.set)
    machine = fitting.here()
    if arguments.gpu_gb:
        machine = replace(machine, device="a GPU", has=arguments.gpu_gb * GB)
    case, files = needs.read(workflow.graph, machine)
    has, estimate = machine.has, case.decided.estimate(machine.has)
    size = f", {in_words(case.iteration.size)}" if case.iteration else ""
    print(f"{case.title}{size}: counted from configurations, not measured on a GPU")
    for line in files:
        print(f"  {line}")
    for phase, parts in estimate.phases.items():
        of = ", ".join(f"{name} {size / GB:.1f}" for name, size in parts.items() if size > 0.05 * GB)
        print(f"{phase:22}{estimate.totals[phase] / GB:7.1f} GB: {of}")
    print(f"{'needs':22}{estimate.total / GB:7.1f} GB, in {estimate.phase}")
    print(f"{'has':22}{has / GB:7.1f} GB{'' if machine.device else ' of main memory; --gpu-gb N compares with a GPU'}")
    for words, changed in case.changes().items() if estimate.total > has else ():
        print(f"  with {words}: {changed.needs.total / GB:.1f} GB{', which fits' * (changed.needs.total <= has)}")
    print(case.sentence(has))
    return 0


@command("nodes", "list the nodes, with inputs and outputs")
def nodes(_: argparse.Namespace) -> int:
    """Lists what the graph can be built of."""
    from ..nodes import NODE_CLASS_MAPPINGS

    for name, node in NODE_CLASS_MAPPINGS.items():
        print(f"{name}  ({node.TITLE}, {node.CATEGORY})\n    {node.DESCRIPTION}")
        for kind in ("required", "optional"):
            for socket, (type_, *details) in node.INPUT_TYPES().get(kind, {}).items():
                shown = type_ if isinstance(type_, str) else " | ".join(map(str, type_))
                default = details[0].get("default", "") if details else ""
                preset = f" = {default}" if default != "" else ""
                print(f"    <- {socket}: {shown}{preset}{' (optional)' if kind == 'optional' else ''}")
        for type_, socket in zip(node.RETURN_TYPES, getattr(node, "RETURN_NAMES", node.RETURN_TYPES), strict=True):
            print(f"    -> {socket}: {type_}")
        print()
    return 0
