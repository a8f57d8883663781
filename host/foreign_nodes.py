"""ComfyUI's own node classes, V1 and V3, and those of other packs, in the form in which our executor runs nodes.

A view of a class has what our own nodes have: INPUT_TYPES, RETURN_TYPES, FUNCTION … Nothing is imported from ComfyUI before a
node runs; the classes come from what has loaded it: its server, or `headless_comfyui`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from . import comfyui
from .access import permissions
from .access.permissions import READ, Want
from .access.wants import UPLOADED
from .text import shortened

# The input of a loader, and the folder of ComfyUI's `models` that its files lie in. A class's own row wins.
FOLDERS = {
    "unet_name": "diffusion_models",
    **dict.fromkeys(("clip_name", "clip_name1", "clip_name2", "clip_name3", "clip_name4"), "text_encoders"),
    "text_encoder": "text_encoders",
    "vae_name": "vae",
    "ckpt_name": "checkpoints",
    "lora_name": "loras",
    "control_net_name": "controlnet",
    "style_model_name": "style_models",
    "gligen_name": "gligen",
    "hypernetwork_name": "hypernetworks",
    "audio_encoder_name": "audio_encoders",
    "CLIPVisionLoader.clip_name": "clip_vision",
    "UpscaleModelLoader.model_name": "upscale_models",
    "LatentUpscaleModelLoader.model_name": "latent_upscale_models",
    "ModelPatchLoader.name": "model_patches",
}
CORE = ("nodes", "comfy_extras", "comfy_api_nodes")  # modules of ComfyUI itself; the rest is `custom_nodes.<pack>`
PURE = "comfy_extras.nodes_primitive"  # whose nodes hand on what was typed into them
MATCHED = "COMFY_MATCHTYPE_V3"  # V3: the type of whatever is connected
UPLOAD = {f"{kind}_upload" for kind in ("image", "video", "audio", "file")}  # options of a choice
WHY = "a file for one of ComfyUI's nodes"


class NodeClasses(Mapping[str, type]):
    """Node classes by name: ours, and beside them views of those that ComfyUI has loaded, also of what it loads later."""

    def __init__(self, ours: Mapping[str, type], theirs: Mapping[str, type]):
        self.ours, self.theirs = ours, theirs

    def __getitem__(self, name: str) -> type:
        return self.ours[name] if name in self.ours else _view(name, self.theirs[name])

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.ours, *self.theirs]))

    def __len__(self) -> int:
        return len(self.ours.keys() | self.theirs.keys())


@functools.cache
def _view(name: str, cls: type) -> type:
    """A class that stands for a foreign one; the same one at every call."""
    module = getattr(cls, "RELATIVE_PYTHON_MODULE", None) or "nodes"
    kind = _V3Node if hasattr(cls, "PREPARE_CLASS_CLONE") else ForeignNode
    members: dict[str, Any] = {
        "node": cls,
        "NAME": name,
        "CATEGORY": getattr(cls, "CATEGORY", ""),
        "RETURN_TYPES": tuple("*" if type_ == MATCHED else type_ for type_ in cls.RETURN_TYPES),
        "REFUSED": _refused(cls),
        "PURE": module == PURE,
        "PACK": None if module.partition(".")[0] in CORE else module.rpartition(".")[2],
    }
    names = getattr(cls, "RETURN_NAMES", None)
    members["RETURN_NAMES"] = tuple(names) if names else members["RETURN_TYPES"]
    members |= {key: hook for key, old in kind.HOOKS.items() if (hook := _own(cls, old)) is not None}
    if kind is _V3Node and "IS_CHANGED" in members:  # which V3 asks without the hidden inputs
        is_changed = members["IS_CHANGED"]
        members["IS_CHANGED"] = lambda **inputs: is_changed(
            **{name: inputs[name] for name in inputs.keys() - _hidden(cls).keys()}
        )
    return type(cls.__name__, (kind,), members)


def _own(cls: type, name: str) -> Any:
    """A method of a class; None where it has none, or only the one that every V3 class inherits and that raises."""
    method = getattr(cls, name, None)
    where = next((base for base in cls.__mro__ if name in vars(base)), None)
    return None if where is None or where.__module__.startswith("comfy_api.") else method


def _refused(cls: type) -> str | None:
    """Why a node of that class cannot run in our executor; None where it can."""
    if getattr(cls, "OUTPUT_NODE", False):
        return "saves or shows something, which ComfyUI's own nodes do on the canvas only"
    if any(getattr(cls, "OUTPUT_IS_LIST", None) or ()):
        return "gives a list, for whose items ComfyUI would run each following node again"
    return None


class ForeignNode:
    """A view of a V1 class.

    Attributes:
        node: the class itself; `NAME` is the one that graphs call it by.
        REFUSED: why it cannot run here.
        PACK: the custom pack that it comes from; None: ComfyUI itself.
        OUTPUT_NODE: never, so that a training runs only what our own nodes need, and no KSampler or preview beside it.
    """

    FOREIGN = True
    OUTPUT_NODE = False
    FUNCTION = "run"
    HOOKS = {"VALIDATE_INPUTS": "VALIDATE_INPUTS", "IS_CHANGED": "IS_CHANGED"}  # name here: name there
    node: type
    NAME: str

    def __init__(self) -> None:
        self.instance = self.node()

    @classmethod
    def INPUT_TYPES(cls) -> Mapping[str, Mapping]:
        return cls.node.INPUT_TYPES()

    @classmethod
    def INPUT_TYPES_OF(cls, inputs: Mapping[str, Any]) -> Mapping[str, Mapping]:
        """The inputs of a node that is given these."""
        return cls.INPUT_TYPES()

    @classmethod
    def folder(cls, name: str) -> Path | None:
        """Where the files lie that an input names; None where it names none, or where that is not known."""
        folders, kind = comfyui.folder_paths(), FOLDERS.get(f"{cls.NAME}.{name}", FOLDERS.get(name))
        try:
            paths = folders.get_folder_paths(kind) if kind and folders is not None else ()
        except KeyError:  # this ComfyUI has no such folder
            return None
        return next((Path(path) for path in paths if Path(path).name == kind), None)

    @classmethod
    def WANTS(cls, **values: Any) -> list[Want]:
        """Chosen files that lie elsewhere, since ComfyUI leaves the choices to nodes that take uploads, and what was uploaded."""
        declared = {name: row for section in cls.INPUT_TYPES_OF(values).values() for name, row in section.items()}
        leading = [
            Want(READ, value, WHY, name) for name, value in values.items() if _leads_out(declared.get(name), value)
        ]
        uploads = [name for name, row in declared.items() if len(row) > 1 and UPLOAD.intersection(row[1])]
        return leading + [
            Want(READ, values[name], UPLOADED, name, plain=True)
            for name in uploads
            if isinstance(values.get(name), str)
        ]

    def run(self, **inputs: Any) -> Any:
        """Returns the node's outputs, computed as ComfyUI does it.

        Raises:
            NotAllowed: an input names a file that the user has not allowed.
            ValueError: it returned what only ComfyUI's executor can run, or cannot take a file.
        """
        import torch

        for want in (want for want in self.WANTS(**inputs) if not want.plain):
            permissions.check(want)
        if getattr(self.node, "INPUT_IS_LIST", False):
            inputs = {name: [value] for name, value in inputs.items()}
        try:
            with torch.inference_mode():
                return self._returned(self._call(inputs))
        except RuntimeError as error:
            files = [value for name, value in inputs.items() if self.folder(name) is not None]
            if not files:
                raise
            text = f"{' and '.join(map(str, files))} cannot be loaded: {shortened(' '.join(str(error).split()), 300)}"
            raise ValueError(f"{text}. Fix: choose a file of this kind of model, or download it again") from error

    def _call(self, inputs: dict[str, Any]) -> Any:
        return _awaited(getattr(self.instance, self.node.FUNCTION), inputs)

    def _returned(self, returned: Any) -> Any:
        parts = returned if isinstance(returned, dict) else {"result": returned}
        result = parts.get("result")
        values = result if isinstance(result, tuple | list) else (result,)
        blocked = any(type(value).__name__ == "ExecutionBlocker" for value in values)
        if parts.get("expand") is not None or blocked:
            what = "blocks what follows" if blocked else "expands into other nodes"
            raise ValueError(f"{self.NAME} {what}, which ComfyUI alone can run. Fix: let the graph do without it")
        return returned


class _V3Node(ForeignNode):
    """A view of a V3 class, which is never instantiated: each execution has a clone that knows the hidden inputs."""

    HOOKS = {"VALIDATE_INPUTS": "validate_inputs", "IS_CHANGED": "fingerprint_inputs"}

    def __init__(self) -> None:
        pass

    @classmethod
    def INPUT_TYPES(cls) -> Mapping[str, Mapping]:
        return cls.INPUT_TYPES_OF({})

    @classmethod
    def INPUT_TYPES_OF(cls, inputs: Mapping[str, Any]) -> Mapping[str, Mapping]:
        """Inputs of a node, which may follow from its values: dynamic choices, inputs that grow."""
        types, _ = cls._finalized(inputs)
        plain = {
            section: {name: ("*", *row[1:]) if row[0] == MATCHED else tuple(row) for name, row in table.items()}
            for section, table in types.items()
            if section != "hidden"
        }
        return {**plain, "hidden": _hidden(cls.node)}

    @classmethod
    def _finalized(cls, inputs: Mapping[str, Any]) -> tuple[Mapping[str, Mapping], dict]:
        """The inputs for what is given, and what nests them again; ComfyUI 0.3.64 has no dynamic inputs yet."""
        finalize = getattr(_v3(), "get_finalized_class_inputs", None)
        if finalize is None:
            return cls.node.INPUT_TYPES(), {}
        types, _, nesting = finalize(cls.node.INPUT_TYPES(), dict(inputs))
        return types, nesting

    def _call(self, inputs: dict[str, Any]) -> Any:
        v3, kinds = _v3(), _hidden(self.node)
        hidden = {v3.Hidden(kinds[name]): inputs.pop(name) for name in kinds if name in inputs}
        _, nesting = self._finalized(inputs)
        dynamic = hasattr(v3, "build_nested_inputs")
        clone = self.node.PREPARE_CLASS_CLONE({**nesting, "hidden_inputs": hidden} if dynamic else hidden)
        return _awaited(
            getattr(clone, self.node.FUNCTION), v3.build_nested_inputs(inputs, nesting) if dynamic else inputs
        )

    def _returned(self, returned: Any) -> Any:
        if returned.block_execution is not None:
            raise ValueError(f"{self.NAME} blocks what follows: {returned.block_execution}. Fix: give it other inputs")
        super()._returned({"result": returned.result, "expand": returned.expand})
        return tuple(returned.result or ())


def _hidden(cls: type) -> dict[str, str]:
    """The hidden inputs of a V3 class: {name: kind}."""
    hidden = cls.INPUT_TYPES().get("hidden") or {}
    return {name: kind if isinstance(kind, str) else kind[0] for name, kind in hidden.items()}


def _v3() -> Any:
    from comfy_api.latest import _io

    return _io


def _awaited(function: Any, inputs: Mapping[str, Any]) -> Any:
    return asyncio.run(function(**inputs)) if inspect.iscoroutinefunction(function) else function(**inputs)


def _leads_out(row: Any, value: Any) -> bool:
    """Whether a value of a choice is neither one of the choices nor a plain name, which lies in ComfyUI's own folders."""
    if row is None or not isinstance(value, str) or permissions.is_plain(value):
        return False
    options = row[1] if len(row) > 1 else {}
    choices = row[0] if isinstance(row[0], list | tuple) else options.get("options", ()) if row[0] == "COMBO" else None
    return choices is not None and value not in choices
