"""What several commands take, and how it is read."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

EXIT_BAD_INPUT = 2


def workflow_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "workflow", type=Path, help="exported by ComfyUI (API format .json, or a .png it saved), or a run"
    )
    set_argument(parser)
    python_argument(parser)


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


def python_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow-python",
        action="append",
        default=[],
        type=existing_folder,
        metavar="FOLDER",
        help="let Python rewards run the files in that folder, with all your rights. May be given more than once",
    )


def folder(text: str) -> Path:
    if not text.strip():
        raise argparse.ArgumentTypeError("the folder has no name")
    return Path(text)


def existing_folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no folder")
    return Path(text).resolve()


def positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def load(given: argparse.Namespace):
    from ..nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
    from ..trainer.files import read_own
    from ..trainer.layout import WORKFLOW
    from ..trainer.workflow import Workflow

    allow_python(given)
    path = given.workflow
    if path.is_dir():
        read_own(path, WORKFLOW)  # tells of a damaged one what helps a run
        path = path / WORKFLOW
    workflow = Workflow.load(path, NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS)
    for change in given.set:
        name, equals, value = change.partition("=")
        if not equals:
            raise ValueError(f"--set {change!r} has no '='. Fix: --set NODE.INPUT=VALUE")
        workflow.set(name, value)
    return workflow


def set_seeds(workflow, seed: int | None) -> None:
    if seed is not None:
        for node, content in workflow.graph.items():
            if "seed" in content["inputs"] and content["class_type"] in workflow.node_classes:
                workflow.set(f"{node}.seed", seed)


def allow_python(given: argparse.Namespace) -> None:
    """By the environment, so that child processes are allowed the same."""
    from ..trainer.host import ALLOW_PYTHON

    if given.allow_python:
        allowed = [os.environ.get(ALLOW_PYTHON), *map(str, given.allow_python)]
        os.environ[ALLOW_PYTHON] = os.pathsep.join(filter(None, allowed))
