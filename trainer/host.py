"""What the surroundings offer: ComfyUI when it is there, else a terminal.

Folders, room in memory, stopping, and the inference-mode trap are met here once, so that the rest of the trainer knows
nothing of ComfyUI.
"""

from __future__ import annotations

import contextlib
import functools
import os
import reprlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from .layout import STOP, asks_to_stop, plain_name

ASSETS = Path(__file__).resolve().parent.parent / "assets"
RUNS = "OTCA_RUNS"  # a variable of the environment: the folder of runs, as a trainer hears of ComfyUI's
# Of ComfyUI's kinds of model folders, those in which people keep whole models in a folder each.
MODEL_KINDS = ("diffusers", "diffusion_models", "clip_vision", "text_encoders", "otca_rewards")


class Stopped(KeyboardInterrupt):
    """The user asked to stop. No Exception, so that nothing that handles errors swallows it."""


class _Terminal:
    """What a headless process was told on its command line, and the stop flag."""

    stop_signal: int | None = None
    output: Path | None = None
    device: str | None = None
    reward_device: str | None = None  # where rewards have a GPU of their own
    download: bool = False  # hub ids may be fetched
    stop_waits: bool = False
    agree: Callable[[], None] | None = None  # of processes that can only stop together, in place of check_stop


terminal = _Terminal()


class _Helper(threading.local):
    """Of a thread that works for the one which runs the graph: `abandoned` is set when nobody waits for it any more."""

    abandoned: threading.Event | None = None


helper = _Helper()


def quiet_libraries() -> None:
    """Leaves the terminal to our own progress: no bars from loading small files, no notes about unused weights."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()


def in_comfyui() -> bool:
    return "comfy.model_management" in sys.modules


def check_stop() -> None:
    """Raises if the user asked to stop; called at every micro-step."""
    if helper.abandoned is not None:
        # The thread that waits for this one looks for the rest: ComfyUI tells of an interrupt only once.
        if helper.abandoned.is_set():
            raise Stopped("the thread that began this one")
        return
    if in_comfyui():
        import comfy.model_management

        comfy.model_management.throw_exception_if_processing_interrupted()
    if terminal.stop_waits:
        return
    if terminal.stop_signal is not None:
        raise Stopped(f"signal {terminal.stop_signal}")
    if terminal.output is not None and asks_to_stop(terminal.output):
        raise Stopped(f"the file {terminal.output / STOP}")


def interrupts() -> tuple[type[BaseException], ...]:
    """What `check_stop` raises: an Exception in old ComfyUI, which whoever catches those must let pass."""
    if in_comfyui():
        import comfy.model_management

        return (Stopped, comfy.model_management.InterruptProcessingException)
    return (Stopped,)


@contextlib.contextmanager
def stop_signals() -> Iterator[None]:
    """The first Ctrl-C or SIGTERM asks to stop at the next micro-step; the second one has its usual effect."""

    def ask(number: int, frame: object) -> None:
        terminal.stop_signal = number
        signal.signal(number, previous[number])

    terminal.stop_signal = None
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in previous:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def finishing() -> Iterator[None]:
    """Within, a headless stop waits: for what a resumed run would not make up for."""
    terminal.stop_waits = True
    try:
        yield
    finally:
        terminal.stop_waits = False


def progress(total: int) -> Callable[[], None]:
    """A callback for each micro-step of a node: moves ComfyUI's bar and checks whether to stop."""
    check = terminal.agree or check_stop
    bar = None
    if in_comfyui():
        import comfy.utils

        bar = comfy.utils.ProgressBar(total)

    def step() -> None:
        check()
        if bar is not None:
            bar.update(1)

    return step


@contextlib.contextmanager
def training_mode() -> Iterator[None]:
    """Outside `torch.inference_mode`, under which ComfyUI runs nodes and no parameter made could ever be trained."""
    import torch

    with torch.inference_mode(False), torch.enable_grad():
        yield


def outside_inference(function: Callable) -> Callable:
    """Decorates a node's function so that it runs in `training_mode`."""

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        with training_mode():
            return function(*args, **kwargs)

    return wrapped


def make_room() -> None:
    """Asks ComfyUI's own models to leave the accelerator before ours allocate."""
    if in_comfyui():
        import comfy.model_management

        if comfy.model_management.current_loaded_models:
            comfy.model_management.unload_all_models()
            comfy.model_management.soft_empty_cache()


def empty_cache() -> None:
    """Gives unused accelerator memory back, so that others can take it."""
    import gc

    gc.collect()  # a model that nobody holds any more may still hold itself
    if in_comfyui():
        import comfy.model_management

        comfy.model_management.soft_empty_cache()


def default_device():
    """The accelerator if there is one, as ComfyUI was told to see it (--cpu, --cuda-device)."""
    import torch

    if in_comfyui():
        import comfy.model_management

        return comfy.model_management.get_torch_device()
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")


def our_prompt_running() -> bool:
    """Whether ComfyUI is executing a prompt that has one of our nodes at this moment."""
    return any(has_our_nodes(prompt) for _, _, prompt, *_ in list(_server().prompt_queue.currently_running.values()))


def has_our_nodes(prompt: Mapping) -> bool:
    return any(isinstance(node, dict) and str(node.get("class_type")).startswith("OTCA_") for node in prompt.values())


def running_workflow_id() -> str | None:
    """The id of the canvas whose prompt ComfyUI is executing; None where the prompt came without one."""
    for _, _, _, extra, *_ in list(_server().prompt_queue.currently_running.values()):
        return _workflow_id(extra)
    return None


def running_prompt() -> Mapping:
    """The graph that ComfyUI is executing, in API form; empty where it executes none."""
    for _, _, prompt, *_ in list(_server().prompt_queue.currently_running.values()):
        return prompt
    return {}


def executes(node: str | None) -> bool:
    """Whether that output node is run by the prompt that ComfyUI is executing; headlessly all are."""
    if not in_comfyui():
        return True
    running = list(_server().prompt_queue.currently_running.values())
    return not running or any(node in item[4] for item in running)


def running_nodes(class_type: str) -> list[tuple[str | None, str]]:
    """(id of the canvas, id of the node) of every node of that class in the prompt that ComfyUI is executing."""
    return [
        (_workflow_id(extra), node_id)
        for _, _, prompt, extra, *_ in list(_server().prompt_queue.currently_running.values())
        for node_id, node in prompt.items()
        if isinstance(node, dict) and node.get("class_type") == class_type
    ]


def _workflow_id(extra: Mapping) -> str | None:
    return ((extra.get("extra_pnginfo") or {}).get("workflow") or {}).get("id")


def tell(event: str, data: dict) -> None:
    """Sends an event to every open page."""
    _server().send_sync(event, data)


def _server():
    from server import PromptServer  # ComfyUI's module of that name

    return PromptServer.instance


def free_memory(device) -> int:
    """Bytes that can still be taken on a torch device."""
    if device.type == "cuda":
        import torch

        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + reusable
    import psutil

    return psutil.virtual_memory().available


def run_folder(name: str) -> Path:
    """Where a run of that name lives: the command line's --output, ComfyUI's output folder, or ./runs.

    Raises:
        ValueError: the name, which may have come through a link, is no plain one.
    """
    if terminal.output is not None:
        return terminal.output
    try:
        return runs_folder() / plain_name(name)
    except ValueError as error:
        raise ValueError(f"run_name = {reprlib.repr(name)} {error}") from error


def runs_folder() -> Path:
    """Where runs are that were not given a folder of their own: in ComfyUI's output folder, else in $OTCA_RUNS or ./runs."""
    if in_comfyui():
        import folder_paths

        return Path(folder_paths.get_output_directory()) / "otca"
    return Path(os.environ.get(RUNS) or "runs")


def list_runs() -> list[str]:
    """On the canvas: names of the runs with a checkpoint, the last one first."""
    if not in_comfyui():
        return []
    found = [place.parent for place in runs_folder().glob("*/checkpoints")]
    return [folder.name for folder in sorted(found, key=_changed, reverse=True)]


def _changed(folder: Path) -> float:
    """When, in seconds since 1970; 0 where somebody has just removed it."""
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def list_adapters() -> list[str]:
    """LoRA files by their names in ComfyUI's folders, and runs that have saved an adapter."""
    runs = sorted(place.parent.name for place in runs_folder().glob("*/lora*.safetensors")) if in_comfyui() else []
    return [*list_weights("loras"), *dict.fromkeys(runs)]


def lora_folder() -> Path:
    """Where Save LoRA writes: inside the run headlessly, in ComfyUI's first loras folder there."""
    if in_comfyui():
        import folder_paths

        return Path(folder_paths.get_folder_paths("loras")[0])
    return terminal.output or Path("runs")


def chosen_device(name: str) -> str:
    """The device that a node names, unless the command line's --device says otherwise."""
    return terminal.device or name


def chosen_reward_device(name: str) -> str:
    """`chosen_device` of a reward: with --reward-gpus its `auto` is one of those."""
    return terminal.reward_device if terminal.reward_device and name == "auto" else chosen_device(name)


def picture(draw: Callable):
    """What a node shows on the canvas, as ComfyUI's IMAGE; headlessly nobody looks there, so nothing is drawn."""
    if not in_comfyui():
        return None
    from . import plots

    return plots.as_image(draw())


def save_temporary(picture, name: str) -> dict:
    """Saves a PIL picture into ComfyUI's temporary folder; returns what its /view route takes."""
    import folder_paths

    name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name)
    folder = Path(folder_paths.get_temp_directory())
    folder.mkdir(parents=True, exist_ok=True)
    picture.save(folder / name, compress_level=1)
    return {"filename": name, "subfolder": "", "type": "temp"}


def list_weights(kind: str) -> list[str]:
    """Names that `search.weights` knows: .safetensors files at any depth.

    ComfyUI asks for them at every validation, in its one loop, and keeps its own lists until a folder changes.
    """
    found = [
        file.relative_to(folder).as_posix()
        for folder in _named_folders(kind)
        for file in sorted(folder.glob("**/*.safetensors"))
    ]
    if in_comfyui():
        import folder_paths

        names = (Path(name) for name in folder_paths.get_filename_list(kind))
        found += [name.as_posix() for name in names if name.suffix.lower() == ".safetensors"]
    return list(dict.fromkeys(found))


def weight_folders(kind: str) -> list[Path]:
    """Those of `weights_variable`, those of that name in a folder of $OTCA_MODELS, and ComfyUI's of that kind."""
    folders = _named_folders(kind)
    if in_comfyui():
        import folder_paths

        folders += [Path(folder) for folder in folder_paths.get_folder_paths(kind)]
    return folders


def _named_folders(kind: str) -> list[Path]:
    """Of `weight_folders`, those that the environment names."""
    return [*folders_of(weights_variable(kind)), *(Path(folder) / kind for folder in folders_of("OTCA_MODELS"))]


def weights_variable(kind: str) -> str:
    """The variable of the environment that names folders of that kind alone, as a trainer hears of ComfyUI's: apart from those
    of other kinds, which may hold files of the same name."""
    return f"OTCA_MODELS_{kind.upper()}"


def input_folders() -> list[Path]:
    """Of small input files: ComfyUI's input folder, $OTCA_INPUT, and the pack's own prompts."""
    folders = [*folders_of("OTCA_INPUT"), ASSETS / "prompts"]
    if in_comfyui():
        import folder_paths

        folders.insert(0, Path(folder_paths.get_input_directory()))
    return folders


def list_models(marker: str) -> list[str]:
    """Names of the folders that hold a file called `marker`, up to two levels deep in `model_folders`; embedded ones last."""
    found = [
        place.parent.relative_to(folder).as_posix()
        for folder in model_folders()
        for pattern in (f"*/{marker}", f"*/*/{marker}")  # name/ or, as hubs have it, owner/name/
        for place in sorted(folder.glob(pattern))
    ]
    return list(dict.fromkeys(found))


def model_folders() -> list[Path]:
    """ComfyUI's model folders that can hold whole models, $OTCA_MODELS, and the embedded assets."""
    folders = folders_of("OTCA_MODELS")
    if in_comfyui():
        import folder_paths

        folders += [
            Path(folder)
            for kind in MODEL_KINDS
            if kind in folder_paths.folder_names_and_paths
            for folder in folder_paths.get_folder_paths(kind)
        ]
    return [*folders, ASSETS]


def folders_of(variable: str) -> list[Path]:
    """Those that a variable of the environment lists."""
    return [Path(part) for part in os.environ.get(variable, "").split(os.pathsep) if part]
