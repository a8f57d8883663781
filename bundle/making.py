"""Writes a bundle: a folder or a zip. `contents` chose what is in it; the scripts are those of assets/bundle/."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import tempfile
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from ..host import files, paths
from ..host.files import Damaged
from ..host.text import plain_name, printable, quoted, shortened
from ..trainer.memory import needs
from ..trainer.memory.case import GB
from ..trainer.run.folder import METRICS, WORKFLOW, read_lines, read_own
from ..trainer.types import RUN_NODE
from ..trainer.workflow.graph import planned_iterations
from ..trainer.workflow.lineage import changes
from . import manifest, packages
from .contents import Contents
from .found import MODELS
from .manifest import Entry, Manifest, Progress

SCRIPTS = paths.ASSETS / "bundle"
RENAMED = {"dockerignore": ".dockerignore"}  # which a package of Python would leave out
README, SETTINGS = "README.md", "settings.sh"
RUNS = ("run.sh",)  # what may be executed
ZIP = ".zip"
MOST_OF_ONE_PATH = 300  # characters
ZIP_DATE = time.mktime((2020, 1, 1, 0, 0, 0, 0, 0, -1))  # of every file: two bundles of one workflow are equal


def check_target(target: Path) -> None:
    """Raises ValueError if something is in the way."""
    fix = "Fix: choose another --output"
    if target.suffix.lower() == ZIP:
        if files.present(target):
            raise ValueError(f"--output {target} is there already. {fix}")
    elif target.is_symlink() or (files.present(target) and not target.is_dir()):
        raise ValueError(f"--output {target} is not a folder. {fix}, or end its name with {ZIP}")
    elif target.is_dir() and any(target.iterdir()):
        raise ValueError(f"--output {target} is not empty. {fix}")


def bytes_to_hash(contents: Contents) -> int:
    """Bytes of the models, for a progress bar."""
    return sum(file.stat().st_size for model in contents.models for _, file in model.files())


def make(
    contents: Contents,
    target: Path,
    *,
    with_hashes: bool = True,
    with_pictures: bool = False,
    progress: Progress = lambda count: None,
    run: Path | None = None,
) -> Manifest:
    """Writes the bundle, whole or not at all.

    `target`: a folder that is empty or not there yet, or a .zip that is not there yet.
    `with_hashes`: also of the models; without them, a check there compares sizes only.
    `with_pictures`: whether the person agreed that their own pictures are copied.
    `progress`: called with the bytes of models that were read.
    `run`: a folder in which this workflow was trained.

    Raises:
        ValueError: something is in the way, a package is missing, or the user did not agree that these pictures are copied.
        OSError: it cannot be written.
    """
    if contents.pictures and not with_pictures:
        listed = "".join(f"\n  {shortened(printable(path), MOST_OF_ONE_PATH)}" for path in contents.pictures)
        raise ValueError(
            f"this bundle would contain {len(contents.pictures)} of your own pictures, their prompts, and what you said of them:"
            f"{listed}\nFix: look at the list, and add --with-pictures (on the page: agree) if the one who trains may see them"
        )
    check_target(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".otca-bundle-", dir=target.parent))
    try:
        folder = aside / contents.run_name
        folder.mkdir()
        described = _describe(contents, run)
        described.models = _models(contents, with_hashes, progress)
        _fill(folder, contents, described)
        (folder / manifest.NAME).write_text(described.text(), encoding="utf-8")
        if target.suffix.lower() == ZIP:
            packed = aside / "packed"
            _pack(folder, packed)
            check_target(target)
            files.put_in_place(packed, target)
        else:
            if target.is_dir():
                target.rmdir()  # which removes no folder that is not empty
            os.replace(folder, target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return described


def _describe(contents: Contents, run: Path | None) -> Manifest:
    lines, versions = packages.needed(contents.graph)
    contents.copied["requirements.txt"] = packages.requirements_text(lines).encode()
    contents.copied["constraints.txt"] = packages.pinned(versions).encode()
    needed, estimate = memory(contents.graph)
    return Manifest(
        run_name=contents.run_name,
        otca=packages.version(),
        python=platform.python_version(),
        torch=packages.torch_version(),
        packages=versions,
        memory_bytes=needed,
        estimate=[" ".join(line.split())[:400] for line in (estimate, _pace(contents.graph, run))],
    )


def memory(graph: Mapping[str, Mapping]) -> tuple[int | None, str]:
    """The bytes of one GPU, if they are known, and a line about them: what `otca memory` says."""
    try:
        needed = needs.read(graph)[0].needs
    except (OSError, ValueError) as error:  # also if the package is missing that knows the model
        return None, f"memory: unknown ({error})"
    words = f"memory: about {needed.total / GB:.1f} GB on each GPU, in {needed.phase} (an estimate by arithmetic)"
    return int(needed.total), words


def _pace(graph: Mapping[str, Mapping], folder: Path | None) -> str:
    """A line about the time, by what the same workflow took here: in this run's folder, or in the run of the graph's name."""
    folder = folder or _run_of(graph)
    try:
        trained = read_own(folder, WORKFLOW) if folder else None
        rows = read_lines(folder / METRICS) if folder and trained and not changes(trained, graph) else []
    except Damaged as error:
        return f"time: unknown ({error})"
    # The first iteration of a process also waits for what is loaded then.
    seconds = [row["seconds/iteration"] for row in rows[1:] if row.get("seconds/iteration")]
    speeds = [row["samples_per_second"] for row in rows[1:] if row.get("samples_per_second")]
    iterations = planned_iterations(graph)
    if not seconds or not speeds or not iterations:
        return "time: unknown (this workflow has not been trained where the bundle was made)"
    return (
        f"time: about {median(seconds) * iterations / 3600:.2g} hours, {median(speeds) * 3600:.3g} samples an hour (an estimate: "
        f"as {len(seconds)} iterations took where the bundle was made; another machine is faster or slower)"
    )


def _run_of(graph: Mapping[str, Mapping]) -> Path | None:
    names = [entry["inputs"].get("run_name") for entry in graph.values() if entry["class_type"] == RUN_NODE]
    try:
        return paths.runs_folder() / plain_name(names[0])
    except (IndexError, ValueError):
        return None


def _models(contents: Contents, with_hashes: bool, progress: Progress) -> list[Entry]:
    entries: dict[Entry, None] = {}
    for model in contents.models:
        listed = model.files()
        for name, file in listed:
            digest = files.sha256(file, progress=progress) if with_hashes else None
            entry = Entry(path=name, bytes=file.stat().st_size, sha256=digest, where=model.where)
            entries[entry] = None
        if not listed:
            entries[Entry(path=model.name, bytes=None, where=model.where)] = None
    return list(entries)


# --- the folder -------------------------------------------------------------------------------------------------------


def _fill(folder: Path, contents: Contents, described: Manifest) -> None:
    sources = dict(contents.copied)
    sources |= {RENAMED.get(script.name, script.name): script for script in SCRIPTS.iterdir()}
    sources |= {f"{packages.FOLDER}/{name}": file for name, file in packages.pack_files()}
    sources[WORKFLOW] = (json.dumps(contents.graph, indent=2, ensure_ascii=False) + "\n").encode()
    sources[SETTINGS] = settings_text(contents).encode()
    sources[README] = _readme(contents, described).encode()
    for name in ("inputs", "loras", "models", "rewards"):  # so that they need not be made
        (folder / name).mkdir()
    if outside := [name for name in sources if not manifest.is_below(name)]:
        raise ValueError(f"{outside[0]!r} would lie outside of the bundle. Fix: rename that file")
    for name, source in sorted(sources.items()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(source, bytes):
            path.write_bytes(source)
        else:
            shutil.copyfile(source, path)
        path.chmod(0o755 if name in RUNS else 0o644)
        described.files.append(Entry(path=name, bytes=path.stat().st_size, sha256=files.sha256(path)))


def settings_text(contents: Contents) -> str:
    """The settings for run.sh, the one script with the user's names in it, each quoted so that a shell takes it for no more."""
    needs = contents.comfyui
    lists = {"CUSTOM_NODES": needs.packs if needs else (), "ALLOW_HOSTS": contents.hosts}
    lines = [f"RUN_NAME={shlex.quote(contents.run_name)}", f"NEEDS_COMFYUI={'1' if needs else ''}"]
    lines += [f"{name}=({shlex.join(values)})" for name, values in lists.items()]
    return "# Made by otca bundle, read by run.sh.\n" + "\n".join(lines) + "\n"


def _readme(contents: Contents, described: Manifest) -> str:
    text = (SCRIPTS / README).read_text(encoding="utf-8")
    needs = contents.comfyui
    more = ["--comfyui", "ComfyUI"] if needs else []
    more += [part for pack in (needs.packs if needs else ()) for part in ("--custom-nodes", pack)]
    more += [part for host in contents.hosts for part in ("--allow-host", host)]
    values = {
        "@RUN@": printable(contents.run_name),
        "@VERSION@": packages.version(),
        "@MODELS@": _models_text(described.models),
        "@COMFYUI@": _comfyui_text(contents),
        "@ESTIMATE@": "\n".join(f"- {line}" for line in described.estimate),
        "@ACCELERATE@": f" {shlex.join(more)}" if more else "",
        "@NOTES@": "\n".join(f"- {note}" for note in _notes(contents)),
    }
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def _models_text(models: list[Entry]) -> str:
    if not models:
        return "This workflow needs no models but those that come with the pack."
    rows = ["| file | where | size |", "|---|---|---|"]
    for entry in models:
        where = "`$OTCA_MODELS`" if entry.where == MODELS else f"`ComfyUI/models/{entry.where}`"
        size = "unknown" if entry.bytes is None else f"{entry.bytes:,} bytes"
        rows.append(f"| `{quoted(entry.path, 300)[1:-1]}` | {where} | {size} |")
    return "\n".join(rows)


def _comfyui_text(contents: Contents) -> str:
    if contents.comfyui is None:
        return ""
    packs = "".join(f"\n- the pack {quoted(pack)} in its custom_nodes" for pack in contents.comfyui.packs)
    return (
        "\nThis workflow has nodes of ComfyUI's. Put its folder into this one as `ComfyUI`, or name it by `COMFYUI_PATH`. "
        "The Python that trains needs the packages of its `requirements.txt` too. No server is started."
        + (f" It also needs:\n{packs}" if packs else "")
        + "\n"
    )


def _notes(contents: Contents) -> list[str]:
    notes = list(contents.notes)
    if contents.hosts:
        notes.append(f"The workflow sends pictures, prompts or figures to {', '.join(contents.hosts)}, as you allowed.")
    if contents.variables:
        named = ", ".join(f"`{printable(name)}`" for name in contents.variables)
        notes.append(f"Secrets are not in this bundle. Set these variables where it trains: {named}.")
    notes.append("Environment variables, permissions by clicks, the canvas and earlier runs are not in this bundle.")
    return [" ".join(note.split()) for note in notes]


# --- the zip ----------------------------------------------------------------------------------------------------------


def _pack(folder: Path, target: Path) -> None:
    """All in a folder of the run's name, so that it unpacks into one."""
    with zipfile.ZipFile(target, "x", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            os.utime(path, (ZIP_DATE, ZIP_DATE))
            stored = zipfile.ZIP_STORED if path.suffix in (".safetensors", ".png", ".jpg") else None
            archive.write(path, Path(folder.name, path.relative_to(folder)), stored)


def report(contents: Contents, described: Manifest) -> dict[str, Any]:
    """The report that the page shows of a bundle that was made."""
    return {
        "models": [{"path": entry.path, "where": entry.where, "bytes": entry.bytes} for entry in described.models],
        "model_bytes": sum(entry.bytes or 0 for entry in described.models),
        "notes": _notes(contents),
        "estimate": described.estimate,
    }
