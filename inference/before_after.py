"""`otca sample --pair`: one prompt and seed by a run's model without and with what was trained, as two pictures in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..host.files import write_text
from ..host.own_folders import new_folder
from ..trainer import rollout
from ..trainer.pictures import grids
from ..trainer.policy import saved
from ..trainer.policy.files import read_metadata
from ..trainer.run.folder import ABOUT, AFTER, BEFORE
from .loading import load_run

if TYPE_CHECKING:
    from torch import Tensor

    from ..trainer.families.base import FlowModel


def pair_to_folder(
    run: Path,
    prompt: str,
    seed: int,
    folder: Path,
    node_classes: Mapping[str, type],
    say: Callable[[str], None] = print,
) -> None:
    """Writes before.png, after.png and about.json ({prompt, seed, iteration}) into a new folder, all of them or none.

    Both pictures begin with the same noise, and are sampled as the run's evaluations are. Of a video it is the middle frame.

    Args:
        run: a run's folder.
        say: receives "done/all" model calls before each of them.

    Raises:
        FileNotFoundError: no run, or nothing saved in it yet.
        NotOurs: `folder` is there, and is none of ours.
    """
    model, settings = load_run(run, node_classes)
    trained = _trained_until(model, run)
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


def _trained_until(model: FlowModel, run: Path) -> int | None:
    """The iteration after which the run's adapter was saved, as its file says."""
    iteration = read_metadata(saved.files(model, run)[0]).get("otca_iteration", "")
    return int(iteration) if iteration.isdecimal() else None
