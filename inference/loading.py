"""`otca sample`: pictures from a run or a model, by the deterministic sampler, into a file or as a pair into a folder."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import Tensor

from ..host import devices, extras, search
from ..host.files import write_bytes, write_text
from ..host.own_folders import new_folder
from ..trainer import rollout
from ..trainer.families.base import FlowModel
from ..trainer.flow import load_flow_model
from ..trainer.pictures import grids, media
from ..trainer.policy import saved
from ..trainer.policy.files import read_metadata
from ..trainer.run.folder import ABOUT, AFTER, BEFORE, WORKFLOW
from ..trainer.types import MODEL_NODES, TRAJECTORY_NODES, SamplerSettings
from . import guidance
from .guidance import Guide

_DEFAULT_STEPS = 28


def sample_to_file(
    source: str,
    prompts: Sequence[str],
    *,
    seeds: Sequence[int],
    steps: int | None,
    size: str | None,
    frames: int | None,
    batch_size: int,
    output: Path | None,
    node_classes: Mapping[str, type],
    guides: Sequence[Guide] = (),
) -> Path:
    """Writes a grid of every prompt with every seed and returns its path; of videos the middle frames, and an .mp4 beside it.
    One of ANIMATIONS, by its ending, holds the videos, or the pictures before and after.

    `source`: a run's folder, whose adapter is then compared with the model it started from; or a model's folder or name.
    `size`: "WxH" in pixels; None takes the run's own, or the autoencoder's sample size.
    `frames`: of a video; None takes the run's own, or one.
    `batch_size`: pictures to one model call.
    `output`: None numbers samples-<n>.png in the run, or here.
    `guides`: put together, and compared with the model that they began with; a run's own adapter counts as one of them only.

    Raises:
        FileNotFoundError: neither a run nor a model, or a guide that is not there.
        ValueError: a size that cannot be read, or a guide of another model.
    """
    folder, kind = Path(source).expanduser(), output.suffix.lower() if output else ""
    if moves := kind in media.ANIMATIONS:
        extras.check(f"--output {output}", "media")
    model, settings = load(source, node_classes, size=size, steps=steps, frames=frames, batch_size=batch_size)
    pairs = [(prompt, seed) for prompt in prompts for seed in seeds]
    texts, numbers = [p for p, _ in pairs], [s for _, s in pairs]
    run, titles = is_run(source), ("before training", "after training")
    with contextlib.ExitStack() as stack:
        compose = None
        if guides:  # entered first, so that a guide that cannot be used is refused before sampling
            compose = stack.enter_context(guidance.composed(model, guides, settings.steps))
            titles = "without guides", f"guided: {', '.join(map(str, guides))}"
        with model.policy.reference():
            images = base = rollout.generate(model, texts, settings, numbers)
        if run or guides:
            images = rollout.generate(model, texts, settings, numbers, compose=compose)
    if run or guides:
        picture = grids.before_after(grids.stills(base), grids.stills(images), texts, len(texts), titles)
    else:
        picture = grids.sample_grid(grids.stills(base), texts)
    names = ((folder if run else Path(".")) / f"samples-{number}.png" for number in itertools.count(1))
    path = output or next(name for name in names if not name.exists())
    if not moves:
        grids.save(picture, path)
    if images.ndim == 5:
        grids.save_video(images, texts, path if moves else path.with_suffix(".mp4"))
    elif moves:  # both sheets of `before_after` are of one size
        sheets = np.stack(np.split(picture, 1 + bool(run or guides)))
        write_bytes(path, media.animation(sheets, 1.0, kind))
    return path


def is_run(source: str) -> bool:
    return (Path(source).expanduser() / WORKFLOW).is_file()


def load(
    source: str, node_classes: Mapping[str, type], *, size: str | None = None, **settings: float | None
) -> tuple[FlowModel, SamplerSettings]:
    """A run's model with what was trained in it, or a model; and how to sample from it, deterministically.

    `source`: a run's folder, or a model's folder or name.
    `size`: "WxH" in pixels; None takes the run's own, or the autoencoder's sample size.
    `settings`: of `SamplerSettings`; None takes the run's own, or the usual.

    Raises:
        FileNotFoundError: neither a run nor a model.
        ValueError: a size that cannot be read.
    """
    pixels = _size(size) if size else None
    if is_run(source):
        model, usual = load_run(Path(source).expanduser(), node_classes)
    else:
        path = search.model(source, "model_index.json")
        model = load_flow_model(path, device=devices.chosen_device("auto"))
        side = model.pipeline.vae.config.get("sample_size")
        if side is None and not size:
            raise ValueError(f"{path} does not say what size it is for. Fix: add --size, for example --size 832x480")
        usual = SamplerSettings("ode", 0.0, _DEFAULT_STEPS, side or 0, side or 0, shift=0.0, guidance=3.5)
        usual = model.unguided(usual) if model.checkpoint.is_distilled else usual
    if pixels:
        settings |= dict(zip(("width", "height"), pixels, strict=True))
    return model, replace(usual, **{name: value for name, value in settings.items() if value is not None})


def load_run(
    folder: Path, node_classes: Mapping[str, type], *, whole: bool = False
) -> tuple[FlowModel, SamplerSettings]:
    """A run's model with what was trained in it, and how the run samples, deterministically.

    `whole` loads the weights unquantized, as they have to be to merge something into them.

    Raises:
        FileNotFoundError: no run, or nothing saved in it yet.
    """
    from ..trainer.run.loop import only, trained_model
    from ..trainer.workflow.running import Workflow

    if not (folder / WORKFLOW).is_file():
        raise FileNotFoundError(f"{folder} holds no run (no {WORKFLOW}). Fix: give the folder of a run")
    workflow = Workflow.load(folder / WORKFLOW, node_classes)
    for node in workflow.find("ModelMemory") if whole else ():
        workflow.set(f"{node}.quantize", "none")
    for node in [node for kind in MODEL_NODES for node in workflow.find(kind)]:
        workflow.set(f"{node}.start_from", "")  # what it began with is part of what it saved
    model = trained_model(workflow)
    saved.load(model, folder)
    node = workflow.nodes[only(workflow, *TRAJECTORY_NODES)]
    trained = SamplerSettings.of_node(node.class_type, node.constants)
    names = ("steps", "width", "height", "shift", "guidance", "frames", "negative_prompt", "guidance_2")
    return model, SamplerSettings(kind="ode", eta=0.0, **{name: getattr(trained, name) for name in names})


def _size(text: str) -> tuple[int, int]:
    try:
        width, height = (int(part) for part in text.lower().split("x"))
        if min(width, height) < 1:
            raise ValueError
    except ValueError as error:
        raise ValueError(f"--size {text!r} is not WIDTHxHEIGHT. Fix: for example --size 512x512") from error
    return width, height


# -- one prompt and seed, without and with what was trained: `otca sample --pair` ---------------------------------------------


def pair_to_folder(
    run: Path,
    prompt: str,
    seed: int,
    folder: Path,
    node_classes: Mapping[str, type],
    say: Callable[[str], None] = print,
) -> None:
    """Writes before.png, after.png and about.json ({prompt, seed, iteration}) into a new folder, all of them or none.

    Both pictures begin with the same noise, and are sampled as the run's evaluations are. A video gives its middle frame.

    `run`: a run's folder.
    `say`: receives "done/all" model calls before each of them.

    Raises:
        FileNotFoundError: no run, or nothing saved in it yet.
        NotOurs: `folder` is there, and we did not make it.
    """
    model, settings = load_run(run, node_classes)
    iteration = read_metadata(saved.files(model, run)[0]).get("otca_iteration", "")  # as the adapter's file says
    trained = int(iteration) if iteration.isdecimal() else None
    calls, done = rollout.model_calls(settings.steps, 2, 1), 0

    def on_step() -> None:
        nonlocal done
        say(f"{done}/{calls}")
        done += 1

    def picture() -> Tensor:
        return grids.stills(rollout.generate(model, [prompt], settings, [seed], on_step))[0]

    with model.policy.reference():
        before = picture()
    after = picture()
    say(f"{calls}/{calls}")
    if not run.is_dir():  # it was deleted or renamed meanwhile: its folder must not come back
        raise FileNotFoundError(f"{run} is gone. Fix: ask for the pictures again where the run is now")
    with new_folder(folder) as aside:
        for name, image in ((BEFORE, before), (AFTER, after)):
            grids.save((image.clamp(0, 1) * 255).round().byte().cpu().numpy(), aside / name)
        write_text(aside / ABOUT, json.dumps({"prompt": prompt, "seed": seed, "iteration": trained}, indent=1))
