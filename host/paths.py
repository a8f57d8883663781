"""Where runs, models and small input files are: in ComfyUI's folders, in those that the environment names, in the pack's own.

What is read is looked for in the folders of the ComfyUI that runs us or that the user names, by --comfyui or $COMFYUI_PATH, with
those that its own options and its extra_model_paths.yaml add; what is written goes there only where its server runs us.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import reprlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from . import comfyui, environment
from .places import place
from .text import plain_name

ASSETS = Path(__file__).resolve().parent.parent / "assets"
BUNDLES = "otca_bundles"  # in ComfyUI's output folder
OPINIONS = "OTCA_OPINIONS"  # an environment variable: the folder of opinions. The page sets it, as RUNS
RUNS = "OTCA_RUNS"  # an environment variable: the folder of runs. The page sets it for the trainer that it starts
# Of ComfyUI's kinds of model folders, those in which people keep whole models in a folder each.
MODEL_KINDS = ("diffusers", "diffusion_models", "clip_vision", "text_encoders", "otca_rewards")
# Those in which a graph names single files.
WEIGHT_KINDS = ("diffusion_models", "text_encoders", "vae", "loras", "checkpoints")
ONCE = {"diffusion_models": "unet", "text_encoders": "clip"}  # what a kind was called once


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


@place("runs", "what trainings made: adapters, checkpoints, pictures, curves, logs", "what was trained")
def runs_of(folder_paths: ModuleType | None) -> Path:
    """In ComfyUI's output folder, else in $OTCA_RUNS or ./runs."""
    return _in_output(folder_paths, "otca") or Path(environment.read(RUNS) or "runs")


@place("votes", "what people voted, and the pictures that they voted on", "the votes")
def _votes_of(folder_paths: ModuleType | None) -> Path | None:
    named = environment.read("OTCA_VOTES")
    return _in_output(folder_paths, "otca_votes") or (Path(named) if named else None)


@place("opinions", "what you think of your pictures, and what was computed of them once", "the opinions")
def _opinions_of(folder_paths: ModuleType | None) -> Path | None:
    # In a folder of user/ that ComfyUI's routes do not serve, and that nobody empties as they do output/.
    if folder_paths:
        return Path(folder_paths.get_user_directory()) / "__otca"
    named = environment.read(OPINIONS)
    return Path(named) if named else None


_rankings_of = place("rankings", "pictures that Score Images saved, best first, with their scores", "the rankings")(
    lambda folder_paths: _in_output(folder_paths, "otca_ranked")
)
_gallery_of = place("gallery", "what the gallery has read of your pictures, and small copies of them")(
    lambda folder_paths: _in_output(folder_paths, "otca_gallery")
)
place("bundles", "bundles that the page made, to train elsewhere")(
    lambda folder_paths: _in_output(folder_paths, BUNDLES)
)


@place(
    "adapters", "what Save LoRA wrote on the canvas, and in otca/ copies of runs' adapters", "the adapters", ours=False
)
def _loras_of(folder_paths: ModuleType | None) -> Path | None:
    return Path(folder_paths.get_folder_paths("loras")[0]) if folder_paths else None


place("reward models", "models that rewards read, where you put them", "what you put there", written=False)(
    lambda folder_paths: Path(folder_paths.models_dir) / "otca_rewards" if folder_paths else None
)
place("previews", "pictures of the canvas; ComfyUI empties it", ours=False)(
    lambda folder_paths: Path(folder_paths.get_temp_directory()) if folder_paths else None
)
place("models", "models that workflows name", "all of your models", ours=False, written=False)(
    lambda folder_paths: Path(folder_paths.models_dir) if folder_paths else None
)
place("input", "prompt files and pictures that workflows name", "your files", ours=False, written=False)(
    lambda folder_paths: Path(folder_paths.get_input_directory()) if folder_paths else None
)


@place("compiled", "torch's cache of networks that it compiled", ours=False)
def _compiled_of(_: object = None) -> Path:
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    return Path(environment.read("TORCHINDUCTOR_CACHE_DIR") or default_cache_dir())


@place("onnxruntime", "an id of this machine, which that package makes when diffusers finds it installed", ours=False)
def _onnxruntime_of(_: object = None) -> Path | None:
    if os.name == "nt":  # where it keeps it in the registry
        return None
    return Path(environment.read("XDG_CACHE_HOME") or Path.home() / ".cache") / "Microsoft" / "DeveloperTools"


def _in_output(folder_paths: ModuleType | None, name: str) -> Path | None:
    return Path(folder_paths.get_output_directory()) / name if folder_paths else None


def _of_server() -> ModuleType | None:
    """ComfyUI's module, where its server runs us."""
    if not comfyui.in_comfyui():
        return None
    import folder_paths

    return folder_paths


def runs_folder() -> Path:
    """Where runs are that --output gives no folder: in ComfyUI's output folder, else in $OTCA_RUNS or ./runs."""
    return runs_of(_of_server())


def votes_folder() -> Path:
    """Where folders of votes are: in ComfyUI's output folder, else in $OTCA_VOTES or here."""
    return _votes_of(_of_server()) or Path(".")


def opinions_folder() -> Path:
    """Where the opinions about pictures are: in ComfyUI's user folder, else in $OTCA_OPINIONS or here."""
    return _opinions_of(_of_server()) or Path(".")


def opinions_cache(name: str) -> Path:
    """Where what was computed of the pictures is kept, to be deleted at any time: beside the opinions, and never here itself."""
    return (_opinions_of(_of_server()) or gallery_folder()) / name


def gallery_folder() -> Path:
    """Where the gallery keeps what it has read; it is shown in ComfyUI's page alone."""
    return _gallery_of(_of_server()) or Path("otca_gallery")


def ranking_folder(name: str) -> Path:
    """A new folder for ranked pictures, not made yet: of that name, or with a number behind it. In ComfyUI's output folder, else
    in the run's or ./runs.

    Raises:
        ValueError: the name is not a plain one.
    """
    folder = _rankings_of(_of_server()) or (output() or Path("runs")) / "ranked"
    try:
        plain_name(name)
    except ValueError as error:
        raise ValueError(f"save_as = {reprlib.repr(name)} {error}") from error
    numbered = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(path for candidate in numbered if not os.path.lexists(path := folder / candidate))


def list_runs() -> list[str]:
    """Names of the runs with a checkpoint, the latest first; none outside ComfyUI, where no menu asks."""
    if not comfyui.in_comfyui():
        return []
    runs = [path.parent for path in runs_folder().glob("*/checkpoints")]
    return [folder.name for folder in sorted(runs, key=changed, reverse=True)]


def changed(folder: Path) -> float:
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
    return _loras_of(_of_server()) or output() or Path("runs")


def list_weights(kind: str) -> list[str]:
    """Names that `search.weights` knows: .safetensors files at any depth.

    ComfyUI asks for them at every validation, in its event loop, so its lists are used: they are kept until a folder changes.
    """
    listed = [
        file.relative_to(folder).as_posix()
        for folder in _named_folders(kind)
        for file in sorted(folder.glob("**/*.safetensors"))
    ]
    if (folders := comfyui.folder_paths()) is not None:
        names = map(Path, folders.get_filename_list(kind))
        listed += [name.as_posix() for name in names if name.suffix.lower() == ".safetensors"]
    return list(dict.fromkeys(listed))


def weight_folders(kind: str) -> list[Path]:
    """The folders of `weights_variable`, those called `kind` in a folder of $OTCA_MODELS, and ComfyUI's of that kind."""
    return [*_named_folders(kind), *_comfyui_folders(kind)]


def _comfyui_folders(*kinds: str) -> list[Path]:
    """ComfyUI's model folders of these kinds, as far as it knows them; none without a ComfyUI."""
    if (folders := comfyui.folder_paths()) is None:
        return []
    names = [kind for kind in kinds if kind in folders.folder_names_and_paths]
    return [Path(folder) for kind in names for folder in folders.get_folder_paths(kind)]


def _named_folders(kind: str) -> list[Path]:
    """The folders of `weight_folders` that the environment names."""
    names = [name for name in (kind, ONCE.get(kind)) if name]
    return [*folders_of(weights_variable(kind)), *(root / name for root in folders_of("OTCA_MODELS") for name in names)]


def weights_variable(kind: str) -> str:
    """The environment variable that names the folders of one kind. The page sets it for the trainer that it starts.

    The kinds are kept apart, since two of them may hold files of the same name.
    """
    return f"OTCA_MODELS_{kind.upper()}"


def input_folders() -> list[Path]:
    """Folders of small input files: ComfyUI's input folder, $OTCA_INPUT, and the pack's own prompts."""
    folders = [*folders_of("OTCA_INPUT"), ASSETS / "prompts"]
    if (its := comfyui.folder_paths()) is not None:
        folders.insert(0, Path(its.get_input_directory()))
    return folders


def picture_folders() -> list[Path]:
    """Folders of pictures: those of small input files, and ComfyUI's output folder."""
    folders = input_folders()
    if (its := comfyui.folder_paths()) is not None:
        folders.insert(1, Path(its.get_output_directory()))
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


def list_rewards() -> list[str]:
    """Names of the files in these folders and one level below, as `search.weights` takes them. Links are left out."""
    suffixes = (".pt", ".pth", ".safetensors")
    names = {
        file.relative_to(folder).as_posix(): None
        for folder in reward_folders()
        for file in sorted([*folder.glob("*"), *folder.glob("*/*")])
        if file.suffix.lower() in suffixes and file.is_file() and not file.is_symlink()
    }
    return list(names)


def clip_tokenizers() -> list[Path]:
    """The folder of CLIP ViT-L/14's tokenizer that ComfyUI brings; none without a ComfyUI."""
    if comfyui.folder_paths() is None:
        return []
    import comfy

    return [Path(folder) / "sd1_tokenizer" for folder in comfy.__path__]


def model_folders() -> list[Path]:
    """ComfyUI's model folders that can hold whole models, $OTCA_MODELS, and the embedded assets."""
    return [*folders_of("OTCA_MODELS"), *_comfyui_folders(*MODEL_KINDS), ASSETS]


def folders_of(variable: str) -> list[Path]:
    """The folders that an environment variable lists."""
    return [Path(part) for part in environment.read(variable).split(os.pathsep) if part]
