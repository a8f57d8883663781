"""Finds the models and files that a graph names: in ComfyUI's folders, in those of the environment, or by a path that the user
has allowed. Only `download` downloads.
"""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

from . import environment, paths
from .access import permissions
from .access.addresses import is_hub_id
from .places import place

SINGLE_FILE = (
    "is a single file, and Load Flow Model loads folders of diffusers. Fix: load the file by ComfyUI's own nodes and connect "
    "Make Trainable (headless: otca train --comfyui FOLDER), or give the model's folder in diffusers' layout"
)


OFFLINE, BY_US = "HF_HUB_OFFLINE", "yes"  # a user who sets it writes 1 or true, and means downloads too


def stay_offline() -> None:
    """Keeps this process, and those that it starts, from asking the hub, whatever a package does while it is imported. Only
    `download` asks. It comes before the first import of huggingface_hub; where the user has set the variable, that stands.
    """
    environment.write_default(OFFLINE, BY_US)


def is_single_file(path: Path) -> bool:
    """Whether it is named like the weights of a model in one file, as ComfyUI users have them."""
    return path.suffix.lower() in (".safetensors", ".sft", ".gguf", ".ckpt", ".pt", ".pth")


def model(name: str, marker: str, published: str = "", also: Sequence[Path] = ()) -> Path:
    """The folder of a model: a path, else a folder of that name in one of `paths.model_folders`, else a hub id that is in the
    local hub cache. Nothing is downloaded.

    `marker`: a file that it has.
    `published`: the hub id that publishes it and, in brackets, its size: for the message.
    `also`: folders that will do where it is in no other place.

    Raises:
        NotAllowed: a path that workflows may not read.
        FileNotFoundError: says where it looked.
    """
    folders = paths.model_folders()
    candidates = permissions.candidates(name, folders, "a model")
    if is_hub_id(name) and (cached := in_hub_cache(name)):
        candidates.append(cached)
    for path in (*candidates, *also):
        if (path / marker).is_file() or (path / f"modular_{marker}").is_file():  # which its reader then refuses by name
            return path
    if is_single_file(Path(name)) and marker == "model_index.json":
        raise FileNotFoundError(f"model {name!r} {SINGLE_FILE}")
    listed, models = ", ".join(map(str, folders)), ", ".join(paths.list_models(marker)) or "nothing"
    if published:
        raise FileNotFoundError(
            f"model {name!r} was not found. Fix: get https://huggingface.co/{published}, and put it as the folder {name} into "
            f"{_reward_folder()}, or give the path of its folder. Searched for its {marker}: {listed}"
        )
    raise FileNotFoundError(
        f"model {name!r} was not found (no {marker} there), neither as a path nor in {listed}, which hold {models}. "
        f"Fix: give the path of its folder, choose {models}, or add a folder to search by $OTCA_MODELS"
    )


def _reward_folder() -> str:
    """Where a reward's files belong, for a message."""
    folders = paths.reward_folders()
    return str(folders[-1]) if folders else "a folder that you name by $OTCA_MODELS"


@place("hub", "models from the hub, kept by its library; downloads go there, where you allowed them", ours=False)
def _hub_cache(_: object = None) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def in_hub_cache(name: str) -> Path | None:
    """The folder of a hub id in the local hub cache; None where it is not there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError):
        return None


def may_download(name: str, switch: bool) -> bool:
    """Whether to fetch a name from the hub: the workflow's switch or the user asks for it, and it is allowed.

    Raises:
        NotAllowed: the workflow wishes it, the user has not allowed it, and it is not here either.
    """
    if not (switch or permissions.downloads_wanted()) or not is_hub_id(name):
        return False
    want = permissions.Want(permissions.DOWNLOAD, name, "a model")
    if not permissions.allowed(want) and in_hub_cache(name):
        return False
    permissions.check(want)
    return True


def download(name: str) -> Path:
    """Fetches a diffusers pipeline from the hub into the local hub cache, with the hub's own progress bars. Only on request.

    Raises:
        NotAllowed: the user has not allowed it.
    """
    from huggingface_hub import constants, snapshot_download

    permissions.check(permissions.Want(permissions.DOWNLOAD, name, "a model"))
    # Not the one-file copies that some keep beside the folders.
    wanted = ["*.json", "*.txt", "*.model", "*/*.safetensors"]
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before and environment.read(OFFLINE) != BY_US
    try:
        return Path(snapshot_download(name, allow_patterns=wanted))
    finally:
        constants.HF_HUB_OFFLINE = before


def weights(name: str, kind: str) -> Path:
    """A single .safetensors file: a path, else a name in ComfyUI's folders of that kind or in $OTCA_MODELS.

    `kind`: of ComfyUI's model folders, as diffusion_models, text_encoders or vae.

    Raises:
        NotAllowed: a path that workflows may not read.
        FileNotFoundError: says where it looked.
    """
    folders = [*paths.weight_folders(kind), *paths.folders_of("OTCA_MODELS")]
    if path := next(filter(Path.is_file, permissions.candidates(name, folders, "weights")), None):
        return path
    looked = ", ".join(map(str, folders)) or "no folder (set $OTCA_MODELS)"
    raise FileNotFoundError(
        f"weights {name!r} were not found, neither as a path nor in {looked}. Fix: put the file into ComfyUI's models/{kind} or "
        "a folder named by $OTCA_MODELS, or choose another"
    )


def reward_file(name: str, published: str, size: str, source: str) -> Path:
    """One file of a reward model, by its path or by its published name: in `paths.model_folders`, in a folder of one of them,
    or, where its source is a hub id, in the local hub cache. Nothing is downloaded.

    Args:
        name: a path, or the published file name.
        published: the published file name, and
        size: how large that is, for the message.
        source: the hub id that publishes it, or another address.

    Raises:
        NotAllowed: a path that workflows may not read.
        FileNotFoundError: says what is missing, how large it is, where it comes from and where to put it.
    """
    folders = paths.model_folders()
    candidates = permissions.candidates(name, folders, "a reward model")
    candidates += [path for folder in folders for path in sorted(folder.glob(f"*/{glob.escape(Path(name).name)}"))]
    if is_hub_id(source):
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(source, Path(name).name)
        candidates += [Path(cached)] if isinstance(cached, str) else []
    if path := next(filter(Path.is_file, candidates), None):
        return path
    address = f"https://huggingface.co/{source}/resolve/main/{published}" if is_hub_id(source) else source
    raise FileNotFoundError(
        f"{name} was not found. Fix: get {published} ({size}) from {address} and put it into {_reward_folder()}. "
        f"Searched: {', '.join(map(str, folders))}"
    )
