"""Suggestions where a node takes a text: runs, files, models, devices of this machine, and what follows from the graph.

Any other text stays as good. A list names only what a workflow may name without the user's word: plain names in ComfyUI's own
folders, in those of the environment, and in the pack. How an input says which kind it wants: `suggest` in `nodes/inputs.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..host import paths
from ..host.access.folders import OURS
from ..host.access.permissions import PICTURE_SUFFIXES, PROMPT_SUFFIXES
from ..host.text import quoted
from ..trainer.run import offered
from ..trainer.workflow.running import Workflow
from . import machine
from .requests import Field, Refused, json_object, text
from .runs import Runs, is_id

PIPELINE, PAIRS, OPINIONS = "model_index.json", "pairs.jsonl", "opinions.jsonl"
INPUT_DEPTH = 3  # levels of folders below ComfyUI's input folder in which prompt files are offered
MOST_LOOKED_AT = 20_000  # names in one folder and all below it
MOST_LISTED = 500
Wanted = Callable[[os.DirEntry], bool]
SEVERAL = ("layers",)  # kinds of which an input takes several, with commas between them


def _prompt_files() -> list[str]:
    names = names_in(paths.input_folders(), file_of(*PROMPT_SUFFIXES), INPUT_DEPTH)
    lists = [name for name in names if not name.endswith((PAIRS, OPINIONS))]  # which are no lists of prompts
    pictures = set(names_in(paths.input_folders(), file_of(*PICTURE_SUFFIXES), INPUT_DEPTH))
    of_pictures = {os.path.splitext(name)[0] for name in pictures}
    pairs = {name for name in lists if os.path.splitext(name)[0] in of_pictures}  # a picture's text
    below = {name.rpartition("/")[0] for name in pairs if "/" in name}
    return [*sorted(below), *(name for name in lists if name not in pairs or "/" not in name)]


def _picture_folders() -> list[str]:
    """ComfyUI's input and output folder and those below them, and the pack's own; not what the pack has put into them."""
    comfyui = [folder for folder in paths.picture_folders() if paths.ASSETS not in folder.parents]
    named = [folder.name for folder in comfyui if folder.is_dir()]
    below = [f"{folder.name}/{name}" for folder in comfyui for name in names_in([folder], is_folder, 2)]
    pack = names_in([paths.ASSETS / "prompts"], is_folder, 0)
    return [*named, *(name for name in below if f"/{OURS}" not in name), *pack]


def _networks() -> list[str]:
    """Folders of one network, without the parts of a pipeline."""
    pipelines = set(paths.list_models(PIPELINE))
    return [name for name in paths.list_models("config.json") if name.rpartition("/")[0] not in pipelines]


# What this machine has, whatever the graph is.
MACHINES: dict[str, Callable[[], list[str]]] = {
    "devices": lambda: ["auto", "cpu", *machine.accelerators()],
    "encoders": lambda: paths.list_models("preprocessor_config.json"),
    "networks": _networks,
    "pair_folders": lambda: names_in(paths.input_folders(), folder_with(PAIRS), INPUT_DEPTH),
    "picture_folders": _picture_folders,
    "prompt_files": _prompt_files,
    "reward_configs": lambda: names_in(paths.reward_folders(), file_of(".json"), 0),
    "reward_weights": paths.list_rewards,
    "tokenizers": lambda: paths.list_models("tokenizer_config.json"),
    "video_judges": lambda: paths.list_models("model_config.json"),
    "votes": lambda: [name for name in names_in([paths.votes_folder()], is_folder, 0) if is_id(name)],
}
# What follows from the graph, of which a node asks.
GRAPHS: dict[str, Callable[[Workflow, str], list[str]]] = {"layers": offered.layers, "metrics": offered.metrics}


NAMED = text(1000, "give what the input's `suggest` says, and the node's id", least=0)
ASKED = {
    "kind": Field(NAMED, required=True),
    "node": Field(NAMED, required=True),
    "prompt": Field(json_object, required=True),
}


def of_machine(runs: Runs, kind: str) -> dict[str, Any]:
    """Suggestions by what the machine has."""

    def latest() -> list[str]:
        return [run.id for run in sorted(runs.all(), key=lambda run: paths.changed(run.folder), reverse=True)]

    return _answer(kind, _known({**MACHINES, "runs": latest}, kind)())


def of_graph(node_classes: Mapping[str, type], kind: str, node: str, prompt: dict) -> dict[str, Any]:
    """Suggestions by the graph, which is posted, since it is too large for an address."""
    follows = _known(GRAPHS, kind)
    workflow = Workflow(prompt, node_classes)
    if node not in workflow.nodes:
        raise Refused(404, f"node {quoted(node)} is missing in the graph. Fix: give the id of one of ours")
    return _answer(kind, follows(workflow, node))


def _known(table: Mapping[str, Callable], kind: str) -> Callable:
    if kind not in table:
        raise Refused(404, f"kind = {quoted(kind)} is not one of {', '.join(sorted(table))}. Fix: ?kind={min(table)}")
    return table[kind]


def _answer(kind: str, values: list[str]) -> dict[str, Any]:
    return {"values": values[:MOST_LISTED], "several": kind in SEVERAL, "more": len(values) > MOST_LISTED}


# --- names of files and folders ---------------------------------------------------------------------------------------
# Bounded in what is looked at and in what is listed, since a folder may hold a hundred thousand pictures. Links are left out:
# what they lead to may lie elsewhere, and a name that is offered has to be one that is accepted.


def names_in(folders: Iterable[Path], wanted: Wanted, depth: int) -> list[str]:
    """Names relative to their folder, as a graph has them, of what is wanted in `folders` and `depth` levels below them; sorted
    folder by folder, and no name twice."""
    names = dict.fromkeys(name for folder in folders for name in sorted(_below(folder, wanted, depth)))
    return list(names)[:MOST_LISTED]


def file_of(*suffixes: str) -> Wanted:
    """A file with one of these endings."""
    return lambda entry: entry.is_file(follow_symlinks=False) and entry.name.lower().endswith(suffixes)


def is_folder(entry: os.DirEntry) -> bool:
    return entry.is_dir(follow_symlinks=False)


def folder_with(marker: str) -> Wanted:
    """A folder that holds a file of that name."""
    return lambda entry: is_folder(entry) and os.path.isfile(os.path.join(entry.path, marker))


def _below(folder: Path, wanted: Wanted, depth: int) -> Iterator[str]:
    left, waiting = MOST_LOOKED_AT, [(str(folder), 0)]
    while waiting:
        path, level = waiting.pop(0)
        for entry in _entries(path):
            left -= 1
            if left < 0:
                return
            if entry.name.startswith("."):
                continue
            if wanted(entry):
                yield Path(os.path.relpath(entry.path, folder)).as_posix()
            if level < depth and is_folder(entry):
                waiting.append((entry.path, level + 1))


def _entries(path: str) -> Iterator[os.DirEntry]:
    """None of a folder that is not there, or that may not be read: others may be."""
    try:
        with os.scandir(path) as entries:
            yield from entries
    except OSError:
        return
