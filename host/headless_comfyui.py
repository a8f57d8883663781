"""Imports ComfyUI from its folder without its server, so that `otca` runs graphs that hold ComfyUI's own nodes.

ComfyUI is not made to be imported, so the order here matters: its options before its other modules, since those read the
options while they are imported; and its `utils` before its `nodes`, which hide it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from . import environment
from .text import plain_name, shortened

PATH = "COMFYUI_PATH"  # environment variables: ComfyUI's folder,
ARGUMENTS = "COMFYUI_ARGUMENTS"  # its own options as they stand behind its main.py,
PACKS = "OTCA_CUSTOM_NODES"  # and the custom packs that are loaded, separated as in PATH
OLDEST = (0, 3, 64)
PACK = Path(__file__).resolve().parents[1]
PYTHONS = (".venv/bin/python", "venv/bin/python", ".venv/Scripts/python.exe", "venv/Scripts/python.exe")
PYTHONS += ("../python_embeded/python.exe",)  # as ComfyUI's portable version spells it


@dataclass(frozen=True)
class Loaded:
    """The loaded ComfyUI: its node classes and display names, by class name."""

    classes: Mapping[str, type]
    titles: Mapping[str, str]


def load(folder: str | Path, device: str | None = None, custom_nodes: Sequence[str] = ()) -> Loaded:
    """Imports ComfyUI, once in a process; packs that are named later are added.

    `device`: as --device has it. With "cpu", or without an accelerator, ComfyUI stays on the CPU; one with a number,
        or the number that a launcher has given to this process, becomes the one that ComfyUI uses.
    `custom_nodes`: names of folders or files in ComfyUI's custom_nodes. No other pack is loaded.

    Raises:
        ValueError: no ComfyUI there, too old, or not importable by this Python; or a pack that is not there or cannot be loaded.
    """
    folders_of(folder)
    if "nodes" not in sys.modules:
        _import(device)
    import nodes  # ComfyUI's, whose folder `folders_of` has put first

    for name in custom_nodes:
        _add_pack(nodes, name)
    return Loaded(nodes.NODE_CLASS_MAPPINGS, nodes.NODE_DISPLAY_NAME_MAPPINGS)


def hold_as_filed(kind: str) -> None:
    """Has ComfyUI hold diffusion models of this type, bf16 or fp16, so on a CPU too, and not in float32; "": as it would."""
    from comfy.cli_args import args as options

    if options.cpu and "-unet" not in environment.read(ARGUMENTS):
        vars(options).update(bf16_unet=kind == "bf16", fp16_unet=kind == "fp16")


def text_encoder(name: str) -> Any:
    """A text encoder as ComfyUI's CLIPLoader gives it, after `load`.

    Args:
        name: a file, or the name of one in ComfyUI's folders of text encoders.

    Raises:
        ValueError: no such file, or not one of a text encoder.
    """
    import comfy.sd
    import folder_paths

    path = Path(name).expanduser()
    file = str(path) if path.is_file() else folder_paths.get_full_path("text_encoders", name)
    if file is None:
        folders = ", ".join(folder_paths.get_folder_paths("text_encoders"))
        raise ValueError(
            f"{name!r} is neither a file nor in {folders}. Fix: put it there, or give the file with its folder"
        )
    return comfy.sd.load_clip([file])


def named_packs() -> list[str]:
    """The custom packs that the environment names."""
    return [name for name in environment.read(PACKS).split(os.pathsep) if name]


def folders_of(folder: str | Path) -> ModuleType:
    """ComfyUI's module of its folders, as it is started by COMFYUI_ARGUMENTS; nothing else of ComfyUI is imported. From then on
    `paths` looks there, too.

    Raises:
        ValueError: as `load`.
    """
    root = _checked(Path(folder).expanduser())
    before = sys.modules.get("folder_paths")
    if before is None:
        sys.path.insert(0, str(root))
        with _importing(root):
            from comfy.cli_args import args as options

            _set_folders(options)
    elif Path(str(before.__file__)).resolve().parent != root:
        raise ValueError(f"ComfyUI of {before.__file__} is loaded already. Fix: one command takes one ComfyUI")
    return sys.modules["folder_paths"]


def say_to_children(folder: str | Path, packs: Sequence[str]) -> None:
    """Processes that this one starts take the same ComfyUI and the same packs."""
    environment.write(PATH, str(Path(folder).expanduser().absolute()))
    environment.write(PACKS, os.pathsep.join(dict.fromkeys(packs)))


def folder_of_server() -> Path:
    """Where the ComfyUI that runs us has its own files, whatever folder its models and its output are in."""
    return Path(str(sys.modules["folder_paths"].__file__)).resolve().parent


def of_this_server(packs: Sequence[str]) -> dict[str, str]:
    """The environment in which `otca` finds the ComfyUI that runs us, with its options and these packs."""
    return {PATH: str(folder_of_server()), ARGUMENTS: shlex.join(sys.argv[1:]), PACKS: os.pathsep.join(packs)}


# --- the folder -------------------------------------------------------------------------------------------------------


def _checked(folder: Path) -> Path:
    shown = f"--comfyui {folder}"
    if not folder.is_dir():
        raise ValueError(f"{shown}: that folder is missing. Fix: give the folder of ComfyUI, which holds its main.py")
    if not ((folder / "nodes.py").is_file() and (folder / "comfy").is_dir()):
        inner = folder / "ComfyUI"
        fix = f"--comfyui {inner}" if (inner / "nodes.py").is_file() else "give the folder that holds ComfyUI's main.py"
        raise ValueError(f"{shown} holds no ComfyUI (no nodes.py beside a folder comfy). Fix: {fix}")
    if (version := _version(folder)) < OLDEST:
        number = ".".join(map(str, version)) or "of unknown version, older than 0.3"
        raise ValueError(
            f"{shown}: this ComfyUI is too old ({number}). Fix: update it to {'.'.join(map(str, OLDEST))} or newer"
        )
    return folder.resolve()


def _version(folder: Path) -> tuple[int, ...]:
    try:
        text = (folder / "comfyui_version.py").read_text(encoding="utf-8")
    except FileNotFoundError:  # which ComfyUI has had since 0.3
        return ()
    match = re.search(r'__version__\s*=\s*"(\d+)\.(\d+)\.(\d+)', text)
    return tuple(map(int, match.groups())) if match else ()


def _get_packages(root: Path) -> str:
    """The fix where this Python cannot import what ComfyUI needs."""
    own = next((path for path in (root / name for name in PYTHONS) if path.is_file()), None)
    if own and os.path.realpath(sys.prefix) not in map(os.path.realpath, own.parents[:2]):
        return f"run otca by the Python that starts ComfyUI: {os.path.normpath(own)} {PACK} train …"
    other = "" if own else ", or run otca by the Python that starts ComfyUI"
    return f"{sys.executable} -m pip install -r {root / 'requirements.txt'}{other}"


# --- importing it -----------------------------------------------------------------------------------------------------


def _import(device: str | None) -> None:
    choose_accelerator(device)
    with _importing(folder_of_server()):
        from comfy.cli_args import args as options

        options.cpu = options.cpu or device == "cpu" or not _has_accelerator()
        import nodes

        with _fewer_lines():
            extra = nodes.init_extra_nodes  # pyright: ignore[reportAttributeAccessIssue] of ComfyUI's `nodes`, not ours
            asyncio.run(extra(init_custom_nodes=False, init_api_nodes=False))


def _has_accelerator() -> bool:
    import torch

    return torch.accelerator.is_available()


def choose_accelerator(device: str | None) -> None:
    """Makes an accelerator the current one, which ComfyUI takes, before ComfyUI looks."""
    import torch

    kind, _, number = (device or "").partition(":")
    if not number and int(environment.read("WORLD_SIZE", "1")) > 1:
        number = environment.read("LOCAL_RANK")
    if kind != "cpu" and number.isdecimal() and _has_accelerator():
        torch.accelerator.set_device_index(int(number))


@contextlib.contextmanager
def _importing(root: Path) -> Iterator[None]:
    """While ComfyUI is imported, the command line is the one that its main.py would see, and not ours. Raises ValueError where
    its options are wrong, or a package cannot be imported."""
    before, arguments = sys.argv, environment.read(ARGUMENTS)
    sys.argv = ["main.py", *shlex.split(arguments)]
    try:
        from comfy.options import enable_args_parsing

        enable_args_parsing()
        yield
    except SystemExit as error:  # argparse has said on the terminal what it does not understand
        raise ValueError(f"{ARGUMENTS} = {arguments!r} is not what ComfyUI's main.py takes. Fix: correct it") from error
    except ImportError as error:
        needs = f"{sys.executable} cannot import {error.name or 'a package'}, which ComfyUI in {root} needs"
        raise ValueError(f"{needs}: {shortened(str(error), 300)}. Fix: {_get_packages(root)}") from error
    finally:
        sys.argv = before


def _set_folders(options: Any) -> None:
    """Sets ComfyUI's folders as its main.py does: extra_model_paths.yaml, its options, what other nodes have saved."""
    import folder_paths
    from utils import extra_config

    own = Path(str(folder_paths.__file__)).resolve().parent / "extra_model_paths.yaml"
    named = [name for names in options.extra_model_paths_config or () for name in names]
    for file in [str(own), *named] if own.is_file() else named:
        extra_config.load_extra_path_config(file)
    for kind in ("output", "input", "user"):
        if folder := getattr(options, f"{kind}_directory"):
            getattr(folder_paths, f"set_{kind}_directory")(os.path.abspath(folder))
    for kind in ("checkpoints", "clip", "vae", "diffusion_models", "loras"):
        folder_paths.add_model_folder_path(kind, os.path.join(folder_paths.get_output_directory(), kind))
    add_reward_folder(folder_paths)


def add_reward_folder(folder_paths: Any) -> None:
    """Reward models have a folder of their own among ComfyUI's."""
    folder_paths.add_model_folder_path("otca_rewards", str(Path(folder_paths.models_dir) / "otca_rewards"))


@contextlib.contextmanager
def _fewer_lines() -> Iterator[None]:
    """ComfyUI logs, with its trace, each of its own files that cannot be imported here, as those that need its server. What
    a graph needs and does not find is said by name, when the graph is checked."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


# --- custom packs -----------------------------------------------------------------------------------------------------


class _Lines(logging.Handler):
    """The lines that are logged while a pack is loaded: ComfyUI says why it cannot be, and goes on."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _add_pack(nodes: Any, name: str) -> None:
    path = _pack(name)
    if path.resolve() == PACK or str(path) in _added:
        return
    log = _Lines()
    logging.getLogger().addHandler(log)
    try:
        before = set(nodes.NODE_CLASS_MAPPINGS)
        good = asyncio.run(nodes.load_custom_node(str(path), before, module_parent="custom_nodes"))
    finally:
        logging.getLogger().removeHandler(log)
    if not good:
        reason = log.lines[-1].strip() if log.lines else "it says nothing about why"
        server = "; it asks for ComfyUI's server, which is not here" if "PromptServer" in " ".join(log.lines) else ""
        raise ValueError(
            f"--custom-nodes {name} cannot be loaded: {reason}{server}. Fix: leave out the nodes of that pack"
        )
    _added.add(str(path))


_added: set[str] = set()


def _pack(name: str) -> Path:
    try:
        plain_name(name)
    except ValueError as error:
        raise ValueError(f"--custom-nodes {name!r} {error}. Fix: give the name of a folder in custom_nodes") from error
    import folder_paths

    folders = [Path(folder) for folder in folder_paths.get_folder_paths("custom_nodes")]
    for path in (folder / file for folder in folders for file in (name, f"{name}.py")):
        if path.is_file() or (path / "__init__.py").is_file():
            return path
    raise ValueError(
        f"--custom-nodes {name}: that pack is missing in {', '.join(map(str, folders))}. Fix: give the name of a folder there"
    )
