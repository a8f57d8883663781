"""Data of the settings page and the dialog of permissions: where things go, what a workflow asks for, and the click that allows
it, which is remembered on this machine.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ..host import environment, headless_comfyui, paths, processes
from ..host.access import permissions, remembered
from ..host.access.opening import WINDOWS
from ..host.access.remembered import FILE
from ..host.access.wants import wants_of
from ..host.stopping import STOP
from ..nodes import WITHHELD
from ..trainer.workflow.foreign import headless
from ..trainer.workflow.running import Workflow
from .requests import Field, disk, json_object, refusing, text

LONGEST = 1000  # characters of a name
FOLDER_OPTIONS = ("--base-directory", "--extra-model-paths-config", "--input-directory")  # of ComfyUI's
WANTED = text(LONGEST, "give what /otca/permissions/wants says")
WANTS = {"prompt": Field(json_object, required=True)}
ALLOW = {"kind": Field(WANTED, required=True), "what": Field(WANTED, required=True)}


def wants(prompt: dict, node_classes: Mapping[str, type]) -> dict[str, Any]:
    """The wants of a graph, and what a click would allow of them."""
    graph = Workflow(prompt, node_classes).graph
    return {"wants": [_as_json(want) for want in wants_of(headless(graph), node_classes)]}


def allow(kind: str, what: str) -> dict[str, Any]:
    with _cannot_be("remembered"), refusing(f"{kind} {what!r}: "):
        return {"kind": kind, "what": permissions.remember(kind, what)}


def take_back(kind: str, what: str) -> None:
    with _cannot_be("taken back"), refusing(f"{kind} {what!r}: "):
        permissions.take_back(kind, what)


def _cannot_be(done: str) -> AbstractContextManager:
    return disk(f"it cannot be {done}", f"set {FILE} to a file that can be written", 507)


def _as_json(want: permissions.Want) -> dict[str, Any]:
    may = None if want.linked else permissions.allowed(want)
    remember = permissions.remembers(want) if may is False else None
    fix = ""
    if may is False:  # ComfyUI may not even list the node that asks for it
        unlisted = want.kind == permissions.RUN and not permissions.python_allowed()
        fix = WITHHELD["OTCA_RewardPython"] if unlisted else permissions.fix(want)
    return {
        "kind": want.kind,
        "what": want.what[:LONGEST],
        "why": want.why,
        "node": want.node,
        "input": want.input,
        "allowed": may,  # null: known only when the graph runs
        "rememberable": remember is not None,
        "remember": remember,  # what to post as `what` to allow it
        "text": permissions.in_words(want),
        "fix": fix,
    }


@dataclass(frozen=True)
class Word:
    """Whether the page may start and stop processes, and what the user types instead, or to allow it.

    Attributes:
        given: whether it may: so it was when ComfyUI started.
        user_folder: ComfyUI's.
        comfyui: the folder of its own files.
    """

    given: bool
    user_folder: Path
    comfyui: Path

    def line(self, *arguments: str | Path) -> str:
        """A line for a terminal of this machine that runs `otca`."""
        return " ".join(map(_quoted, [sys.executable, processes.FOLDER, *arguments]))

    def told(self) -> dict[str, Any]:
        """For the page: whether it is given; and how to give it: a line to type once, or a variable to start ComfyUI with."""
        command = self.line("allow", "trainings", "--user-folder", self.user_folder)
        return {"given": self.given, "command": command, "variable": f"{permissions.TRAININGS}=1"}

    def making(self, command: str, workflow: str | Path, output: Path, packs: Iterable[str] = ()) -> str:
        """The line that trains or proves a graph as the page would, into a folder that it shows."""
        others = [part for pack in packs for part in ("--custom-nodes", pack)]
        return _same_folders(self.line(command, workflow, "--output", output, "--comfyui", self.comfyui, *others))

    def instead(self, run: Path) -> dict[str, str]:
        """The commands that do the same as a run's buttons."""
        resume = _same_folders(self.line("train", run, "--resume", "--comfyui", self.comfyui))
        return {"resume": resume, "stop": f"echo stop > {_quoted(run / STOP)}"}


def _same_folders(line: str) -> str:
    """The line with what ComfyUI was started with, if that says where its models are; not for Windows, whose shells differ."""
    typed = sys.argv[1:]
    if WINDOWS or not any(option.startswith(FOLDER_OPTIONS) for option in typed):
        return line
    return f"{headless_comfyui.ARGUMENTS}={shlex.quote(shlex.join(typed))} {line}"


def _quoted(part: str | Path) -> str:
    if not WINDOWS:
        return shlex.quote(str(part))
    if re.search(r'[$`%!"]', str(part)):  # which one of Windows' shells reads within quotes too
        return '"PUT-THE-NAME-HERE"'
    return str(part) if re.fullmatch(r"[\w.\\/:+-]+", str(part)) else f'"{part}"'


@dataclass(frozen=True)
class Folder:
    """`what` lies there: runs, adapters, votes or permissions. `by`: the option or variable that says so, "" for ComfyUI's
    own place."""

    what: str
    path: str
    by: str


def of_comfyui(folder_paths: ModuleType) -> list[Folder]:
    """All that we write into ComfyUI's folders, and the file of what was allowed by clicks."""
    output = _option("output_directory", "base_directory")
    loras = folder_paths.get_folder_paths("loras")[0]
    base = getattr(folder_paths, "models_dir", "")
    by = _option("base_directory") if base and Path(loras).is_relative_to(base) else "extra_model_paths.yaml"
    allowed = remembered.file()
    return [
        Folder("runs", str(paths.runs_folder()), output),
        Folder("adapters", str(loras), by),
        Folder("votes", str(paths.votes_folder()), output),
        Folder("permissions", str(allowed or ""), FILE if environment.read(FILE) else ""),
    ]


def _option(*names: str) -> str:
    """The first of these options that ComfyUI was started with, as it is typed."""
    options = getattr(sys.modules.get("comfy.cli_args"), "args", None)
    option = next((name for name in names if getattr(options, name, None)), "")
    return f"--{option.replace('_', '-')}" if option else ""
