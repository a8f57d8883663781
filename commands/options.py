"""What several commands take, and how it is read."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TextIO

EXIT_BAD_INPUT = 2


def workflow_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "workflow", type=Path, help="exported by ComfyUI (API format .json, or a .png it saved), or a run"
    )
    set_argument(parser)
    permission_arguments(parser)


def set_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NODE.INPUT=VALUE",
        help="change an input; NODE is an id, a title or a class. May be given more than once",
    )


def sampling_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=positive, help="denoising steps (default: the run's own, or 28)")
    parser.add_argument("--size", metavar="WxH", help="pixels (default: the run's own, or the model's)")
    parser.add_argument("--frames", type=positive, metavar="N", help="of a video (default: the run's own, or 1)")
    parser.add_argument("--batch-size", type=positive, default=8, metavar="N", help="pictures at once (default 8)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 …")


def reward_argument(parser: argparse.ArgumentParser) -> None:
    rewards = parser.add_mutually_exclusive_group(required=True)
    kind = "KIND[:OPTION=VALUE,…]"
    rewards.add_argument(
        "--reward",
        action="append",
        metavar=kind,
        help="such as clip_t:model=/models/clip-vit-large-patch14. May be given more than once",
    )
    rewards.add_argument("--rewards", nargs="+", dest="reward", metavar=kind, help="the same, all at once")


def permission_arguments(parser: argparse.ArgumentParser) -> None:
    """What only the user may allow a workflow, or a run's; `allow` heeds them."""
    allow = parser.add_argument_group("what workflows may touch (docs/security.md)")
    allow.add_argument(
        "--allow-folder",
        action="append",
        default=[],
        type=existing_folder,
        metavar="FOLDER",
        help="let workflows name models and prompt files in that folder. May be given more than once",
    )
    allow.add_argument(
        "--allow-host",
        action="append",
        default=[],
        type=host_name,
        metavar="HOST[:PORT]",
        help="let workflows send pictures, prompts or figures to that host. May be given more than once",
    )
    allow.add_argument(
        "--allow-python",
        action="append",
        default=[],
        type=existing_folder,
        metavar="FOLDER",
        help="let Python rewards run the files in that folder, with all your rights. May be given more than once",
    )
    allow.add_argument("--download", action="store_true", help="hub ids that Load Flow Model names may be fetched")


def folder(text: str) -> Path:
    if not text.strip():
        raise argparse.ArgumentTypeError("the folder has no name")
    return Path(text)


def existing_folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no folder")
    return Path(os.path.abspath(text))  # a link as it is typed, since that is how a workflow names it


def host_name(text: str) -> str:
    from ..host.access.addresses import HOST

    if not HOST.fullmatch(text.lower()):
        raise argparse.ArgumentTypeError(f"{text!r} is no host, as in score.example.org or score.example.org:8443")
    return text.lower()


def positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def load(given: argparse.Namespace):
    from ..nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
    from ..trainer.run.layout import WORKFLOW, read_own
    from ..trainer.workflow.running import Workflow

    allow(given)
    path, known = given.workflow, (NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS)
    # A run's own is read as its other files are, which tells of a damaged one what helps a run.
    own = read_own(path, WORKFLOW) if path.is_dir() else None
    if own is None:
        workflow = Workflow.load(path / WORKFLOW if path.is_dir() else path, *known)
    else:
        workflow = Workflow(own, *known)
    for change in given.set:
        name, equals, value = change.partition("=")
        if not equals:
            raise ValueError(f"--set {change!r} has no '='. Fix: --set NODE.INPUT=VALUE")
        _user_names(workflow, workflow.set(name, value))
    return workflow


def _user_names(workflow, address: tuple[str, str]) -> None:
    """What the user typed into an input is his word, so what that input asks for is allowed."""
    from ..host.access import permissions
    from ..host.access.wants import wants_of

    node, name = address
    wants = wants_of({node: workflow.graph[node]}, workflow.node_classes)
    permissions.user_wants(want for want in wants if want.input == name)


def set_seeds(workflow, seed: int | None) -> None:
    if seed is not None:
        for node, content in workflow.graph.items():
            if "seed" in content["inputs"] and content["class_type"] in workflow.node_classes:
                workflow.set(f"{node}.seed", seed)


def allow(given: argparse.Namespace) -> None:
    """Heeds `permission_arguments`."""
    from ..host.access import permissions
    from ..host.terminal import terminal

    permissions.user_allows(given.allow_folder, given.allow_host, given.allow_python, given.download)
    terminal.download = given.download


def user_names(*places: str | Path | None) -> None:
    """Files and folders that the user typed are his word."""
    from ..host.access import permissions

    for place in places:
        if place is not None:
            permissions.user_named(place)


def allow_rewards(texts: list[str]) -> None:
    """Models and servers that the user names by --reward are his word."""
    from ..host.access import permissions
    from ..host.access.wants import posts

    for text in texts:
        for part in text.partition(":")[2].split(","):
            value = part.partition("=")[2]
            permissions.user_wants(posts(value, "pictures and prompts", "url"))
            permissions.user_named(value)


def say_wants(workflow, file: TextIO) -> None:
    """Prints what a workflow would touch outside of itself, and whether it may."""
    from ..host.access import permissions
    from ..host.access.wants import wants_of

    lines = {}
    for want in wants_of(workflow.graph, workflow.node_classes):
        if want.linked:
            may = "judged when it runs"
        else:
            may = "allowed" if permissions.allowed(want) else f"not allowed: {permissions.fix(want)}"
        lines[f"this workflow wants: {permissions.in_words(want)} ({may})"] = None
    for line in lines:
        print(line, file=file)
