"""ComfyUI, where its server runs us: what its queue executes, what its pages are sent, its temporary files."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from . import environment

LONGEST_ID = 100  # characters of a canvas's id; the page makes 36
PREFIX = "OTCA_"  # the ids of our nodes begin so


def in_comfyui() -> bool:
    """Whether ComfyUI's server runs us: there are pages, a queue, its Stop button and its output folder."""
    server = sys.modules.get("server")  # ComfyUI's module of that name, which some of its nodes import without a server
    return getattr(getattr(server, "PromptServer", None), "instance", None) is not None


def comfy_loaded() -> bool:
    """Whether ComfyUI's packages are in this process, by its server or by `--comfyui`: its memory and devices."""
    return "comfy.model_management" in sys.modules


def folder_paths() -> ModuleType | None:
    """ComfyUI's module of its folders: of its server, or of the ComfyUI that the user names (`headless_comfyui.folders_of`)."""
    return sys.modules.get("folder_paths")


def folder() -> Path | None:
    """ComfyUI's own folder: the one that runs us, the one that is named, or the one that we are a custom node of."""
    if (folders := folder_paths()) is not None:
        return Path(folders.base_path)
    if named := environment.read("COMFYUI_PATH"):
        return Path(named).expanduser()
    nodes = Path(__file__).absolute().parents[2]  # not resolved: the pack may be linked into it
    return nodes.parent if nodes.name == "custom_nodes" else None


def our_prompt_running() -> bool:
    """Whether ComfyUI is executing a prompt that has one of our nodes at this moment."""
    return any(has_our_nodes(prompt) for _, _, prompt, *_ in _running())


def has_our_nodes(prompt: Mapping) -> bool:
    return any(isinstance(node, dict) and is_ours(node) for node in prompt.values())


def is_ours(entry: Mapping) -> bool:
    """Whose a node in API form is, ours or one of ComfyUI's and its packs': by its id, and never by the names of its inputs."""
    return str(entry.get("class_type")).startswith(PREFIX)


def running_id() -> str | None:
    """The id of the prompt that ComfyUI is executing."""
    return next((prompt_id for _, prompt_id, *_ in _running()), None) if in_comfyui() else None


def running_workflow_id() -> str | None:
    """The id of the canvas whose prompt ComfyUI is executing; None where the prompt came without one."""
    for _, _, _, extra, *_ in _running():
        return _workflow_id(extra)
    return None


def running_prompt() -> Mapping:
    """The graph that ComfyUI is executing, in API form; empty where it executes none."""
    for _, _, prompt, *_ in _running():
        return prompt
    return {}


def executes(node: str | None) -> bool:
    """Whether that output node is run by the prompt that ComfyUI is executing; headlessly all are."""
    if not in_comfyui():
        return True
    running = _running()
    return not running or any(node in item[4] for item in running)


def running_nodes(class_type: str) -> list[tuple[str | None, str]]:
    """(id of the canvas, id of the node) of every node of that class in the prompt that ComfyUI is executing."""
    return [
        (_workflow_id(extra), node_id)
        for _, _, prompt, extra, *_ in _running()
        for node_id, node in prompt.items()
        if isinstance(node, dict) and node.get("class_type") == class_type
    ]


def _workflow_id(extra: Mapping) -> str | None:
    id_ = (canvas_of(extra.get("extra_pnginfo")) or {}).get("id")
    return id_ if isinstance(id_, str) and len(id_) <= LONGEST_ID else None


def canvas_of(information: object) -> dict | None:
    """The canvas in what ComfyUI hands to nodes as EXTRA_PNGINFO, of which a script may have sent anything."""
    canvas = information.get("workflow") if isinstance(information, Mapping) else None
    return canvas if isinstance(canvas, dict) else None


def port() -> int | None:
    """Where ComfyUI's server listens; None where none runs us."""
    return getattr(_server(), "port", None) if in_comfyui() else None


def tell(event: str, data: dict) -> None:
    """Tells every open page of an event."""
    _server().send_sync(event, data)


def unload_soon() -> None:
    """Has ComfyUI's own models leave the accelerator between two prompts: until then one may compute with them."""
    _server().prompt_queue.set_flag("unload_models", True)


def _running() -> list[tuple]:
    """The entries that ComfyUI's queue executes: number, id, graph, extra data, output nodes …"""
    return list(_server().prompt_queue.currently_running.values())


def _server():
    from server import PromptServer  # ComfyUI's module of that name

    return PromptServer.instance


def save_temporary(picture, name: str) -> dict:
    """Saves a PIL picture into ComfyUI's temporary folder; returns what its /view route takes."""
    import folder_paths

    name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name)
    folder = Path(folder_paths.get_temp_directory())
    folder.mkdir(parents=True, exist_ok=True)
    picture.save(folder / name, compress_level=1)
    return {"filename": name, "subfolder": "", "type": "temp"}
