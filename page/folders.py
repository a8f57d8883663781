"""Where things go and what decides that, for the settings page."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ..host import paths
from ..host.access import remembered


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
        Folder("permissions", str(allowed or ""), remembered.FILE if remembered.is_named() else ""),
    ]


def _option(*names: str) -> str:
    """The first of these options that ComfyUI was started with, as it is typed."""
    options = getattr(sys.modules.get("comfy.cli_args"), "args", None)
    given = next((name for name in names if getattr(options, name, None)), "")
    return f"--{given.replace('_', '-')}" if given else ""
