"""What the settings page and the dialog of permissions show: where things go, what a workflow asks for, and the click that allows
it, which is remembered on this machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ..host import paths
from ..host.access import permissions, remembered
from ..host.access.remembered import FILE
from ..host.access.wants import wants_of
from ..host.files import Damaged
from ..trainer.workflow.foreign import headless
from ..trainer.workflow.running import Workflow, WorkflowError
from .requests import Field, Refused, json_object, text

LONGEST = 1000  # characters of a name
WANTED = text(LONGEST, "give what /otca/permissions/wants says")
WANTS = {"prompt": Field(json_object, required=True)}
ALLOW = {"kind": Field(WANTED, required=True), "what": Field(WANTED, required=True)}


def all_given() -> dict[str, Any]:
    """What the user has allowed so far."""
    return {"given": list(map(asdict, permissions.given()))}


def wants(prompt: dict, node_classes: Mapping[str, type]) -> dict[str, Any]:
    """What a graph asks for, and what a click would allow of it."""
    try:
        graph = Workflow(prompt, node_classes).graph
    except WorkflowError as error:
        raise Refused(400, str(error)) from error
    return {"wants": [_as_json(want) for want in wants_of(headless(graph), node_classes)]}


def allow(kind: str, what: str) -> dict[str, Any]:
    try:
        return {"kind": kind, "what": permissions.remember(kind, what)}
    except ValueError as error:
        raise Refused(400, f"{kind} {what!r}: {error}") from error
    except OSError as error:
        raise Refused(
            500, f"it cannot be remembered ({error}). Fix: set {FILE} to a file that can be written"
        ) from error


def take_back(kind: str, what: str) -> None:
    try:
        permissions.take_back(kind, what)
    except Damaged as error:
        raise Refused(409, str(error)) from error
    except ValueError as error:
        raise Refused(400, f"{kind} {what!r}: {error}") from error
    except OSError as error:
        raise Refused(500, f"it cannot be taken back ({error}). Fix: make {FILE}'s file writable") from error


def _as_json(want: permissions.Want) -> dict[str, Any]:
    may = None if want.linked else permissions.allowed(want)
    remember = permissions.remembers(want) if may is False else None
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
        "fix": permissions.fix(want) if may is False else "",
    }


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
        Folder("permissions", str(allowed or ""), FILE if os.environ.get(FILE) else ""),
    ]


def _option(*names: str) -> str:
    """The first of these options that ComfyUI was started with, as it is typed."""
    options = getattr(sys.modules.get("comfy.cli_args"), "args", None)
    given = next((name for name in names if getattr(options, name, None)), "")
    return f"--{given.replace('_', '-')}" if given else ""
