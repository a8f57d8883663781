"""Where runs, models and small input files are: in ComfyUI's folders, in those that the environment names, in the pack's own.

What is read is looked for in ComfyUI's folders wherever its packages are loaded; what is written goes there only where its
server runs us.
"""

from __future__ import annotations

import contextlib
import os
import reprlib
from collections.abc import Iterator
from pathlib import Path

from . import comfyui
from .text import plain_name

ASSETS = Path(__file__).resolve().parent.parent / "assets"
RUNS = "OTCA_RUNS"  # an environment variable: the folder of runs. The page sets it for the trainer that it starts
# Of ComfyUI's kinds of model folders, those in which people keep whole models in a folder each.
MODEL_KINDS = ("diffusers", "diffusion_models", "clip_vision", "text_encoders", "otca_rewards")
WEIGHT_KINDS = ("diffusion_models", "text_encoders", "vae", "loras")  # those in which a graph names single files


_output: Path | None = None


@contextlib.contextmanager
def writing_to(folder: Path | None) -> Iterator[None]:
    """Within it a run of any name lives in that folder; None: where its name says."""
    global _output
    before, _output = _output, folder
    try:
        yield
    finally:
        _output = before


def output() -> Path | None:
    """The folder of the run that this process was told to write, if it was told one."""
    return _output


def run_folder(name: str) -> Path:
    """Where a run of that name lives: as `writing_to` says, in ComfyUI's output folder, or in ./runs.

    Raises:
        ValueError: the name, which may have come through a link, is not a plain one.
    """
    if (chosen := output()) is not None:
        return chosen
    try:
        return runs_folder() / plain_name(name)
    except ValueError as error:
        raise ValueError(f"run_name = {reprlib.repr(name)} {error}") from error


def runs_folder() -> Path:
    """Where runs are that --output gives no folder: in ComfyUI's output folder, else in $OTCA_RUNS or ./runs."""
    if comfyui.in_comfyui():
        import folder_paths

        return Path(folder_paths.get_output_directory()) / "otca"
    return Path(os.environ.get(RUNS) or "runs")


def votes_folder() -> Path:
    """Where folders of votes are: in ComfyUI's output folder, else in $OTCA_VOTES or here."""
    if comfyui.in_comfyui():
        import folder_paths

        return Path(folder_paths.get_output_directory()) / "otca_votes"
    return Path(os.environ.get("OTCA_VOTES") or ".")


def list_runs() -> list[str]:
    """Names of the runs with a checkpoint, the latest first; none outside ComfyUI, where no menu asks."""
    if not comfyui.in_comfyui():
        return []
    runs = [path.parent for path in runs_folder().glob("*/checkpoints")]
    return [folder.name for folder in sorted(runs, key=_changed, reverse=True)]


def _changed(folder: Path) -> float:
    """When, in seconds since 1970; 0 if it was just removed."""
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def list_adapters() -> list[str]:
    """LoRA files by their names in ComfyUI's folders, and runs that have saved an adapter."""
    runs = (
        sorted(path.parent.name for path in runs_folder().glob("*/lora*.safetensors")) if comfyui.in_comfyui() else []
    )
    return [*list_weights("loras"), *dict.fromkeys(runs)]


def lora_folder() -> Path:
    """Where Save LoRA writes: inside the run headlessly, in ComfyUI's first loras folder there."""
    if comfyui.in_comfyui():
        import folder_paths

        return Path(folder_paths.get_folder_paths("loras")[0])
    return output() or Path("runs")


def list_weights(kind: str) -> list[str]:
    """Names that `search.weights` knows: .safetensors files at any depth.

    ComfyUI asks for them at every validation, in its event loop, so its lists are used: they are kept until a folder changes.
    """
    listed = [
        file.relative_to(folder).as_posix()
        for folder in _named_folders(kind)
        for file in sorted(folder.glob("**/*.safetensors"))
    ]
    if comfyui.comfy_loaded():
        import folder_paths

        names = map(Path, folder_paths.get_filename_list(kind))
        listed += [name.as_posix() for name in names if name.suffix.lower() == ".safetensors"]
    return list(dict.fromkeys(listed))


def weight_folders(kind: str) -> list[Path]:
    """The folders of `weights_variable`, those called `kind` in a folder of $OTCA_MODELS, and ComfyUI's of that kind."""
    return [*_named_folders(kind), *_comfyui_folders(kind)]


def _comfyui_folders(*kinds: str) -> list[Path]:
    """ComfyUI's model folders of these kinds, as far as it knows them; none if its packages are not loaded."""
    if not comfyui.comfy_loaded():
        return []
    import folder_paths

    known = [kind for kind in kinds if kind in folder_paths.folder_names_and_paths]
    return [Path(folder) for kind in known for folder in folder_paths.get_folder_paths(kind)]


def _named_folders(kind: str) -> list[Path]:
    """Those of `weight_folders` that the environment names."""
    return [*folders_of(weights_variable(kind)), *(Path(folder) / kind for folder in folders_of("OTCA_MODELS"))]


def weights_variable(kind: str) -> str:
    """The environment variable that names the folders of one kind. The page sets it for the trainer that it starts.

    The kinds are kept apart, since two of them may hold files of the same name.
    """
    return f"OTCA_MODELS_{kind.upper()}"


def input_folders() -> list[Path]:
    """Folders of small input files: ComfyUI's input folder, $OTCA_INPUT, and the pack's own prompts."""
    folders = [*folders_of("OTCA_INPUT"), ASSETS / "prompts"]
    if comfyui.comfy_loaded():
        import folder_paths

        folders.insert(0, Path(folder_paths.get_input_directory()))
    return folders


def list_models(marker: str) -> list[str]:
    """Names of the folders that hold a file called `marker`, up to two levels deep in `model_folders`; embedded ones last."""
    listed = [
        path.parent.relative_to(folder).as_posix()
        for folder in model_folders()
        for pattern in (f"*/{marker}", f"*/*/{marker}")  # name/ or, as hubs have it, owner/name/
        for path in sorted(folder.glob(pattern))
    ]
    return list(dict.fromkeys(listed))


def reward_folders() -> list[Path]:
    """Where single files of reward models are kept: $OTCA_MODELS, and ComfyUI's models/otca_rewards."""
    return [*folders_of("OTCA_MODELS"), *_comfyui_folders("otca_rewards")]


def model_folders() -> list[Path]:
    """ComfyUI's model folders that can hold whole models, $OTCA_MODELS, and the embedded assets."""
    return [*folders_of("OTCA_MODELS"), *_comfyui_folders(*MODEL_KINDS), ASSETS]


def folders_of(variable: str) -> list[Path]:
    """The folders that an environment variable lists."""
    return [Path(part) for part in os.environ.get(variable, "").split(os.pathsep) if part]
