"""Reads an exported workflow: a file of bounded size, and in it a graph of bounded depth. Its author may mean harm."""

from __future__ import annotations

import copy
import io
import json
import os
import reprlib
import stat
from pathlib import Path
from typing import Any

from ..types import REPLACED
from .graph import title
from .problem import Problem, WorkflowError, general, refusal

EXPORT_HELP = "export it in ComfyUI with File > Export (API), or enable Dev mode options, then Save (API Format)"
MEGABYTE = 1024**2
MOST_BYTES = {".json": 16 * MEGABYTE, ".png": 256 * MEGABYTE}  # the largest example here has 8 kB
MOST_NODES = 5000
MOST_DEPTH = 32  # of lists and objects within each other; a node's inputs are on level 2, a link on level 3


def read_workflow(path: Path) -> Any:
    """The JSON of an exported .json, or of a .png that ComfyUI saved. Raises WorkflowError, also for a missing file."""
    is_picture = path.suffix.lower() == ".png"
    try:
        content = _content(path, MOST_BYTES[".png" if is_picture else ".json"])
        return json.loads(_png_text(path, content, "prompt") if is_picture else content.decode("utf-8-sig"))
    except WorkflowError:
        raise
    except RecursionError as error:
        raise refusal(f"{path}: nested too deep for a workflow (more than {MOST_DEPTH} levels)", EXPORT_HELP) from error
    except (OSError, SyntaxError, ValueError) as error:  # Pillow raises SyntaxError on a broken PNG
        reason = "no such file" if isinstance(error, FileNotFoundError) else f"not readable as a workflow ({error})"
        raise refusal(f"{path}: {reason}", EXPORT_HELP) from error


def _content(path: Path, most: int) -> bytes:
    # without waiting, since a pipe would make us wait for ever, and asked after it is open, since names can change
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise refusal(f"{path} is not a plain file", "give the file that ComfyUI exported")
        content = file.read(most + 1)
    if len(content) > most:
        raise _too_large(f"{path} is larger than {most // MEGABYTE} MB, which no workflow is")
    return content


def _too_large(message: str) -> WorkflowError:
    return refusal(message, f"{EXPORT_HELP}; take large texts out of the graph, into files")


def read_canvas(path: Path) -> Any:
    """The JSON of the canvas that a .png carries beside its graph; None without one. Only hints are read from it."""
    if path.suffix.lower() != ".png":
        return None
    try:
        return json.loads(_png_text(path, _content(path, MOST_BYTES[".png"]), "workflow"))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def _png_text(path: Path, content: bytes, chunk: str) -> str:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            if chunk not in image.info:
                message = f"{path}: this PNG carries no workflow (no text chunk `{chunk}`)"
                raise refusal(message, f"use a PNG as ComfyUI saved it, or {EXPORT_HELP}")
            text = image.info[chunk]
    except Image.DecompressionBombError as error:
        message = f"{path} claims to have more pixels than are ever opened ({error})"
        raise refusal(message, f"use a PNG as ComfyUI saved it, or {EXPORT_HELP}") from error
    if len(text) > MOST_BYTES[".json"]:
        raise _too_large(f"{path} carries a workflow of more than {MOST_BYTES['.json'] // MEGABYTE} MB")
    return text


def api_graph(graph: Any) -> dict[str, dict]:
    """A copy of `graph` in API form. Raises WorkflowError that names every entry which is not a node, or cannot be one."""
    if isinstance(graph, dict) and isinstance(graph.get("prompt"), dict) and "class_type" not in graph["prompt"]:
        graph = graph["prompt"]  # the body of a request to ComfyUI's queue
    if isinstance(graph, dict) and isinstance(graph.get("nodes"), list) and isinstance(graph.get("links"), list):
        raise refusal("this is a workflow in ComfyUI's UI format, not in API format", EXPORT_HELP)
    if not isinstance(graph, dict) or not graph:
        raise refusal("not a graph in API format, or an empty one", EXPORT_HELP)
    if len(graph) > MOST_NODES:
        raise refusal(
            f"the graph has {len(graph)} nodes, and at most {MOST_NODES} are read", "leave out what is not needed"
        )
    problems = []
    for node_id, entry in graph.items():
        node = entry if isinstance(entry, dict) else {}
        if not isinstance(node.get("class_type"), str) or not isinstance(node.get("inputs"), dict):
            message = f"entry {node_id!r} is not a node: {reprlib.repr(entry)} lacks class_type or inputs"
            install = (
                "install the pack of that node where it is exported, whose page leaves out the class of what it lacks"
            )
            lacks_class = "class_type" not in node and isinstance(node.get("inputs"), dict)
            problems.append(general(message, install if lacks_class else EXPORT_HELP))
        else:
            problems += _unfit_parts(node_id, entry)
    if problems:
        raise WorkflowError(problems)
    # a prompt inside a PNG also carries the results of IS_CHANGED, which hold for that day only and may be NaN
    return {
        node_id: renewed({key: copy.deepcopy(value) for key, value in entry.items() if key != "is_changed"})
        for node_id, entry in graph.items()
    }


def renewed(entry: Any) -> Any:
    """A node of a graph by the id that it has now, with the inputs that make it what it was; anything else as it is."""
    if (
        not isinstance(entry, dict)
        or entry.get("class_type") not in REPLACED
        or not isinstance(entry.get("inputs"), dict)
    ):
        return entry
    class_type, values, _ = REPLACED[entry["class_type"]]
    return {**entry, "class_type": class_type, "inputs": {**entry["inputs"], **values}}


def _unfit_parts(node_id: str, entry: dict) -> list[Problem]:
    """Values that cannot be copied, shown or saved: nested too deep, or text that is not Unicode."""
    parts = [(None, node_id, 1), *((key, value, 2) for key, value in entry.items() if key != "inputs")]
    parts += [(name, (name, value), 2) for name, value in entry["inputs"].items()]
    fix = f"give another value, or {EXPORT_HELP}"
    return [
        Problem(str(node_id), title(entry), name, None, message, fix)
        for name, value, level in parts
        if (message := _unfit(value, level))
    ]


def _unfit(value: Any, level: int) -> str | None:
    pending = [(value, level)]
    while pending:  # a loop, since what it looks for is what recursion could not bear
        value, level = pending.pop()
        if isinstance(value, str) and not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            return "holds text that is not Unicode (half of a pair of surrogates)"
        if isinstance(value, dict | list | tuple):
            if level > MOST_DEPTH:
                return f"is nested too deep (more than {MOST_DEPTH} levels)"
            pending += [(item, level + 1) for item in value]
            pending += [(item, level + 1) for item in (value.values() if isinstance(value, dict) else ())]
    return None
