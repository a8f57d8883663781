"""What a process of `otca` is given that the page starts: the environment, and a life of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..host import headless_comfyui, paths
from ..host.access.permissions import FROM_PAGE
from ..trainer.workflow import foreign
from .runs import Run

WINDOWS_FLAGS = ("CREATE_NEW_PROCESS_GROUP", "CREATE_NO_WINDOW")


def on_its_own() -> dict[str, Any]:
    """Options of `subprocess.Popen`."""
    return {
        # Ctrl-C in ComfyUI's terminal, and its end, must not reach the process
        "start_new_session": True,
        # and on Windows neither must the end of that terminal's window
        "creationflags": sum(getattr(subprocess, flag, 0) for flag in WINDOWS_FLAGS),
    }


def environment(run: Run, runs: Path, inputs: Path, node_classes: Mapping[str, type]) -> dict[str, str]:
    """What a process finds in ComfyUI's folders, it must find outside ComfyUI too; and what the graph of the run needs."""
    kinds = {paths.weights_variable(kind): paths.weight_folders(kind) for kind in paths.WEIGHT_KINDS}
    folders = {"OTCA_MODELS": [folder for folder in paths.model_folders() if folder != paths.ASSETS], **kinds}
    return {
        **os.environ,
        **{variable: os.pathsep.join(map(str, listed)) for variable, listed in folders.items()},
        "OTCA_INPUT": str(inputs),
        paths.RUNS: str(runs),
        FROM_PAGE: "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "utf-8",
        **_comfyui(run, node_classes),
    }


def _comfyui(run: Run, node_classes: Mapping[str, type]) -> dict[str, str]:
    """Where the graph holds ComfyUI's nodes: this ComfyUI, with the options that it was started with, and the packs."""
    needs = foreign.needs(run.workflow()["prompt"], node_classes)
    return headless_comfyui.of_this_server(needs.packs) if needs else {}
