"""Finds the models that a graph names, and the names by which a bundle expects them. Nothing is loaded."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..host import paths, search
from ..host.access import permissions
from ..host.access.addresses import is_hub_id

MODELS = "OTCA_MODELS"  # where a bundle expects what is not in one of ComfyUI's own folders
# Of a pipeline, what is read: not the copies in one file that some keep beside its folders.
PIPELINE, OF_PIPELINE = "model_index.json", ("*.json", "*.txt", "*.model", "*/*.safetensors")
MOST_FILES = 2000  # of one model: more is no model's folder, but one above many


@dataclass(frozen=True)
class Model:
    """A model that a bundle expects: not copied, but named.

    Attributes:
        name: by which the graph in the bundle names it.
        where: OTCA_MODELS, or the folder below ComfyUI's `models`.
        path: the file or folder here; None where it is not here.
    """

    name: str
    where: str
    path: Path | None

    def files(self) -> list[tuple[str, Path]]:
        """(name below `where`, file here) of all that belongs to it, sorted.

        Raises:
            ValueError: a folder that holds far more than one model.
        """
        if self.path is None:
            return []
        if self.path.is_file():
            return [(self.name, self.path)]
        listed = []
        for name, file in _below(self.path):
            listed.append((f"{self.name}/{name}", file))
            if len(listed) > MOST_FILES:
                raise ValueError(
                    f"{self.path} holds more than {MOST_FILES} files, and is to be one model. Fix: name the model's own folder"
                )
        return sorted(listed)


def _below(folder: Path) -> Iterator[tuple[str, Path]]:
    patterns = OF_PIPELINE if (folder / PIPELINE).is_file() else ("*",)
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            file = Path(parent, name)
            relative = file.relative_to(folder).as_posix()
            wanted = any(fnmatch.fnmatchcase(relative, pattern) for pattern in patterns)
            if wanted and not name.startswith(".") and file.is_file():
                yield relative, file


def model(name: str, why: str) -> Path | None:
    """The file or folder of a model that a node of ours names; None where it is not found.

    Raises:
        NotAllowed: a path that workflows may not read.
    """
    folders = [*paths.model_folders(), *paths.reward_folders()]
    folders += [folder for kind in paths.WEIGHT_KINDS for folder in paths.weight_folders(kind)]
    candidates = permissions.candidates(name, list(dict.fromkeys(folders)), why)
    if permissions.is_plain(name):
        pattern = f"*/{glob.escape(Path(name).name)}"  # as `search.reward_file` looks for a file
        candidates += [
            path for folder in paths.model_folders() for path in sorted(folder.glob(pattern)) if path.is_file()
        ]
    if is_hub_id(name) and (cached := search.in_hub_cache(name)):
        candidates.append(cached)
    if permissions.is_plain(name) and Path(name).suffix:
        candidates += _in_hub_cache(Path(name).name)
    return next((path for path in candidates if path.exists()), None)


def _in_hub_cache(name: str) -> list[Path]:
    """A file of that name, as rewards have them from the hub; none where several repositories have different ones."""
    from huggingface_hub import constants

    paths = Path(constants.HF_HUB_CACHE).glob(f"models--*/snapshots/*/{glob.escape(name)}")
    alike = {path.resolve(): path for path in paths if path.is_file()}
    return list(alike.values()) if len(alike) == 1 else []


def of_comfyui(kind: str, name: str) -> Path | None:
    """The file that one of ComfyUI's loaders names, in its folders of that kind."""
    return next((path for folder in paths.weight_folders(kind) if (path := folder / name).is_file()), None)
