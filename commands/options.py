"""Parts of commands: how arguments are declared, the workflow that they load, what the user allows, how a stop ends them."""

from __future__ import annotations

import argparse
import functools
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from ..host import environment, extras
from ..trainer.workflow.problem import Problem
from ..trainer.workflow.running import Workflow

EXIT_BAD_INPUT = 2
CONTINUES = "the same command continues from there: {}"  # what a stopped command says of its folder

Argument = Callable[[argparse._ActionsContainer], object]  # adds itself to a parser, or to a group of one


COMMANDS: list[Callable] = []  # each adds a command to the subparsers of `otca`


def command(name: str, text: str, *arguments: Argument):
    """Makes a function a command of `otca`, described by its docstring. It imports what is heavy only once it is called.

    `name` may be two words, as in `taste fit`.
    """

    def declared(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
        def add(commands) -> None:
            *above, last = name.split()
            for word in above:
                commands = commands.add_parser(word, help=text).add_subparsers(required=True, metavar="ACTION")
            parser = commands.add_parser(last, help=text, description=run.__doc__)
            parser.set_defaults(command=run)
            _add_all(parser, arguments)

        COMMANDS.append(add)
        return run

    return declared


# --- arguments --------------------------------------------------------------------------------------------------------


def arg(name: str, text: str | None = None, **how) -> Argument:
    """An argument as argparse has it; its help names the default."""
    if how.get("default") not in (None, "", []):
        text = f"{text} (default {how['default']})"
    return lambda parser: parser.add_argument(name, help=text, **how)


def flag(name: str, text: str) -> Argument:
    return arg(name, text, action="store_true")


def count(name: str, text: str, default: int | None = None) -> Argument:
    """A whole number from 1."""
    return arg(name, text, type=positive, default=default, metavar="N")


def many(name: str, metavar: str, text: str, **how) -> Argument:
    """An option that may be given more than once: a list."""
    return arg(name, f"{text}. May be given more than once", action="append", default=[], metavar=metavar, **how)


def group(title: str, *arguments: Argument) -> Argument:
    return lambda parser: _add_all(parser.add_argument_group(title), arguments)


def one_of(*arguments: Argument, required: bool = False) -> Argument:
    return lambda parser: _add_all(parser.add_mutually_exclusive_group(required=required), arguments)


def _add_all(parser: argparse._ActionsContainer, arguments: Sequence[Argument]) -> None:
    for argument in arguments:
        argument(parser)


def folder(text: str) -> Path:
    if not text.strip():
        raise argparse.ArgumentTypeError("the folder has no name")
    return Path(text)


def existing_folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a folder")
    return Path(os.path.abspath(text))  # a link as it is typed, since that is how a workflow names it


def host_name(text: str) -> str:
    from ..host.access.addresses import HOST

    if not HOST.fullmatch(text.lower()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a host, as in score.example.org or score.example.org:8443")
    return text.lower()


def positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


SET = arg(
    "--set",
    "change an input; NODE is an id, a title or a class. NODE=CLASS puts another node in its place. May be given more than once",
    action="extend",
    nargs="+",
    default=[],
    metavar="NODE.INPUT=VALUE",
)
ADD = many(
    "--add",
    "CLASS",
    "add a node, called NAME by NAME=CLASS, and connect it to every open socket of the type that it gives",
)
# For graphs that hold ComfyUI's own nodes; `load` and `node_classes` apply them.
COMFYUI = group(
    "ComfyUI's own nodes (docs/training.md)",
    arg("--comfyui", "ComfyUI's folder, for a workflow that holds its nodes (default: $COMFYUI_PATH)", metavar="PATH"),
    many("--custom-nodes", "NAME", "load that pack of ComfyUI's custom_nodes too, which runs its code"),
)
# What only the user may allow a workflow to do; `allow` applies them.
PERMISSIONS = group(
    "what workflows may touch (docs/security.md)",
    many("--allow-folder", "FOLDER", "let workflows name models and prompt files in that folder", type=existing_folder),
    many("--allow-host", "HOST[:PORT]", "let workflows send pictures, prompts or figures to that host", type=host_name),
    many(
        "--allow-python",
        "FOLDER",
        "let Python rewards run the files in that folder, with all your rights",
        type=existing_folder,
    ),
    flag("--download", "hub ids that Load Flow Model names may be fetched"),
)
WORKFLOW = (
    arg("workflow", "exported by ComfyUI (API format .json, or a .png it saved), or a run", type=Path),
    *(SET, ADD, COMFYUI, PERMISSIONS),
)
DEVICE = arg("--device", "cpu, cuda, cuda:1 …")
FIRST_SEED = arg("--seed", "the first seed", type=int, default=0)
OF_ALL_NODES = (
    arg("--seed", "sets the seed of every node of ours", type=int),
    arg("--device", "cpu, cuda, cuda:1 … instead of what the nodes name"),
)
SOURCE = arg("source", "a run's folder, or a model's folder or name", metavar="RUN|MODEL")
SAMPLING = (
    arg("--steps", "denoising steps (default: the run's own, or 28)", type=positive),
    arg("--size", "pixels (default: the run's own, or the model's)", metavar="WxH"),
    arg("--frames", "of a video (default: the run's own, or 1)", type=positive, metavar="N"),
    count("--batch-size", "pictures at once", 8),
    DEVICE,
)
_KIND = "KIND[:OPTION=VALUE,…]"
REWARDS = one_of(
    arg(
        "--reward",
        "such as clip_t:model=/models/clip-vit-large-patch14. May be given more than once",
        action="append",
        metavar=_KIND,
    ),
    arg("--rewards", "the same, all at once", nargs="+", dest="reward", metavar=_KIND),
    required=True,
)


# --- what they stand for ----------------------------------------------------------------------------------------------


def load(arguments: argparse.Namespace) -> Workflow:
    """The workflow of WORKFLOW, with the inputs that --set changes."""
    from ..trainer.run.folder import CANVAS, WORKFLOW, read_own
    from ..trainer.workflow.foreign import addresses
    from ..trainer.workflow.reading import read_canvas, read_workflow
    from ..trainer.workflow.running import Workflow

    allow(arguments)
    path = arguments.workflow
    # The workflow of a run is read as its other files are: if it is damaged, the message then says what helps a run.
    graph = read_own(path, WORKFLOW) if path.is_dir() else None
    if graph is None:
        graph = read_workflow(path / WORKFLOW if path.is_dir() else path)
    # A damaged canvas.json only lacks addresses for messages.
    canvas = read_own(path, CANVAS, lambda line: None) if path.is_dir() else read_canvas(path)
    workflow = Workflow(graph, functools.partial(node_classes, arguments), addresses=addresses(canvas))
    for node in getattr(arguments, "add", ()):
        name, _, class_type = node.partition("=")
        workflow.add(name, class_type or name)
    change(workflow, arguments.set)
    return workflow


def change(workflow: Workflow, changes: Sequence[str]) -> None:
    """Applies those of SET."""
    from ..host.access import permissions
    from ..host.access.wants import wants_of

    for option in changes:
        name, equals, value = option.partition("=")
        if not equals:
            raise ValueError(f"--set {option!r} has no '='. Fix: --set NODE.INPUT=VALUE")
        if "." in name:
            node, name = workflow.set(name, value)
            # The user typed the value, and so allows what the input asks for.
            wants = wants_of({node: workflow.entries[node]}, workflow.node_classes)
            permissions.user_wants(want for want in wants if want.input == name)
        else:
            workflow.exchange(name, value)


def node_classes(
    arguments: argparse.Namespace, graph: Mapping[str, Mapping]
) -> tuple[Mapping[str, type], Mapping[str, str]]:
    """Node classes and their display names for a graph in API form: ours, and with COMFYUI also its own.

    ComfyUI is imported, which takes seconds, only if the graph needs it or --comfyui was typed.
    """
    from ..nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
    from ..trainer.workflow.foreign import needs_comfyui

    folder: str = arguments.comfyui or environment.read("COMFYUI_PATH")
    if not arguments.comfyui and not (folder and (extras.lean() or needs_comfyui(graph, NODE_CLASS_MAPPINGS))):
        return NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
    from ..host import headless_comfyui
    from ..host.foreign_nodes import NodeClasses
    from ..trainer.memory import needs

    packs = [*headless_comfyui.named_packs(), *arguments.custom_nodes]
    headless_comfyui.say_to_children(folder, packs)
    launches = getattr(arguments, "gpus", 1) > 1 and not environment.has("RANK")  # this process trains nothing itself
    loaded = headless_comfyui.load(folder, "cpu" if launches else getattr(arguments, "device", None), packs)
    headless_comfyui.hold_as_filed(needs.filed(graph))
    return NodeClasses(NODE_CLASS_MAPPINGS, loaded.classes), {**loaded.titles, **NODE_DISPLAY_NAME_MAPPINGS}


def classes_of_run(arguments: argparse.Namespace, source: str | Path) -> Mapping[str, type]:
    """Node classes for the graph of a run; ours for anything else, such as a model's folder."""
    from ..nodes import NODE_CLASS_MAPPINGS
    from ..trainer.run.folder import WORKFLOW, read_own

    folder = Path(source).expanduser()
    graph = read_own(folder, WORKFLOW) if (folder / WORKFLOW).is_file() else None
    return node_classes(arguments, graph)[0] if graph is not None else NODE_CLASS_MAPPINGS


def set_seeds(workflow, seed: int | None) -> None:
    if seed is not None:
        for id_, node in workflow.ours.items():  # as they are now: `set` puts other nodes in their place
            if "seed" in node.inputs:
                workflow.set(f"{id_}.seed", seed)


def text_encoder(arguments: argparse.Namespace) -> Callable[[str], Any]:
    """The loader of a judge that --reward names: ComfyUI, if COMFYUI says where it is."""
    from ..study.scoring import no_comfyui

    def load(name: str) -> Any:
        from ..host import headless_comfyui

        headless_comfyui.load(str(folder), arguments.device, [*headless_comfyui.named_packs(), *arguments.custom_nodes])
        return headless_comfyui.text_encoder(name)

    folder = comfyui_folder(arguments)
    return load if folder else no_comfyui


def comfyui_folder(arguments: argparse.Namespace) -> Path | None:
    named = getattr(arguments, "comfyui", None) or environment.read("COMFYUI_PATH")
    return Path(named).expanduser() if named else None


def know_folders(arguments: argparse.Namespace) -> None:
    """Lets all that looks for models look into those of the ComfyUI that the user names, of which no more is imported."""
    folder = comfyui_folder(arguments)
    if folder and (getattr(arguments, "comfyui", None) or folder.is_dir()):  # who needs one that is gone says so
        from ..host import headless_comfyui

        headless_comfyui.folders_of(folder)


def say(line: str) -> None:
    print(line, flush=True)


def begin(arguments: argparse.Namespace, *named: str | Path | None) -> None:
    """Prepares a command's own work: permissions, the files that the user typed, the device, a quiet terminal."""
    from ..host.devices import choose

    allow(arguments)
    user_names(*named)
    choose(arguments.device)
    quiet_libraries()


def allow(arguments: argparse.Namespace) -> None:
    """Applies PERMISSIONS, and what COMFYUI says of folders."""
    from ..host.access import permissions

    know_folders(arguments)
    permissions.user_allows(arguments.allow_folder, arguments.allow_host, arguments.allow_python, arguments.download)


def user_names(*paths: str | Path | None) -> None:
    """Allows files and folders, since the user typed them."""
    from ..host.access import permissions

    for path in paths:
        if path is not None:
            permissions.user_named(path)


def allow_rewards(texts: list[str]) -> None:
    """Allows models and servers that --reward names, since the user typed them."""
    from ..host.access import permissions
    from ..host.access.wants import SENDING

    for text in texts:
        for part in text.partition(":")[2].split(","):
            value = part.partition("=")[2]
            permissions.user_wants(want for want in SENDING.wants(value, "url") if not want.plain)
            permissions.user_named(value)


def say_wants(workflow, file: TextIO) -> None:
    """Prints what a workflow would touch outside of itself, and whether it may."""
    from ..host.access import permissions
    from ..host.access.wants import wants_of
    from ..trainer.workflow.foreign import headless

    lines = {}
    for want in wants_of(headless(workflow.entries), workflow.node_classes):
        if want.linked:
            may = "judged when it runs"
        else:
            may = "allowed" if permissions.allowed(want) else f"not allowed: {permissions.fix(want)}"
        lines[f"this workflow wants: {permissions.in_words(want)} ({may})"] = None
    for line in lines:
        print(line, file=file)


def print_problems(problems: Sequence[Problem]) -> bool:
    """Prints what is wrong with a workflow; returns whether there is an error."""
    from ..trainer.workflow.problem import bounded

    for problem in bounded(problems):
        print(f"{problem.severity}: {problem}", file=sys.stderr)
    return any(problem.severity == "error" for problem in problems)


def quiet_libraries() -> None:
    """Leaves the terminal to our own progress: no bars while small files are loaded, no notes about unused weights."""
    environment.write_default("TRANSFORMERS_VERBOSITY", "error")
    environment.write_default("DIFFUSERS_VERBOSITY", "error")
    # It misses a kernel for CPUs, in which nothing is quantized.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    if extras.installed("diffusers"):
        from diffusers.utils import logging as diffusers_logging

        diffusers_logging.disable_progress_bar()


def stoppable(work: Callable[[], int], left: str) -> int:
    """Does the work; if a signal ends it, says what is left and returns the exit code of that signal."""
    from ..host import stopping

    with stopping.stop_signals():
        try:
            return work()
        except stopping.Stopped as stopped:
            assert stopping.request.signal is not None  # only `otca train` also stops by a file
            print(f"otca: stopped by {stopped}; {left}", file=sys.stderr)
            return 128 + stopping.request.signal
