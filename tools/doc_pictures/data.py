"""What a training starts from: the order of prompts, and preference pairs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from ...host.access.permissions import user_named
from ...trainer.pairs.reading import read_folder
from ...trainer.pairs.trajectories import take
from ...trainer.pictures import grids, media
from ...trainer.pictures.figures import new_figure, rendered
from ...trainer.prompts import choose
from .sources import CAPTIONS, GROUP_SIZE, SETTINGS, shapes_flux, trajectories, workplace


def prompt_order() -> np.ndarray:
    """Which prompt each slot of an iteration takes: seven prompts, three an iteration, shuffled."""
    prompts, count, iterations = list("ABCDEFG"), 3, 7
    figure = new_figure(5.6, 2.0)
    axis = figure.subplots()
    taken = [choose(prompts, count, index, 0) for index in range(iterations)]
    passes = np.array([[position // len(prompts) for position in own.positions] for own in taken]).T
    axis.imshow(passes, cmap="Pastel1", vmin=0, vmax=8, aspect="auto")
    for index, own in enumerate(taken):
        for slot, text in enumerate(own.texts):
            axis.text(index, slot, text, ha="center", va="center", fontsize=11)
    axis.set_xticks(range(iterations))
    axis.set_yticks(range(count), [f"group {slot}" for slot in range(count)], fontsize=9)
    axis.set_xlabel("index (one an iteration)", fontsize=9)
    axis.set_title("Prompts A to G, 3 an iteration, shuffled; a colour is one pass", fontsize=10)
    return rendered(figure)


def preference_pairs() -> np.ndarray:
    """A pair as an update sees it: a picture of the prompt and one of another, with one noise, at some of the trained levels."""
    folder, own = workplace() / "pairs", trajectories(4)
    folder.mkdir()
    for name, row in (("chosen", 0), ("rejected", GROUP_SIZE)):
        grids.save(media.eight_bits(own.images[row]).numpy(), folder / f"{name}.png")
    line = {"prompt": CAPTIONS[0], "chosen": "chosen.png", "rejected": "rejected.png"}
    (folder / "pairs.jsonl").write_text(json.dumps(line), encoding="utf-8")
    user_named(folder)
    settings = replace(SETTINGS, kind="ode", shared_noise=False)
    pair, _ = take(read_folder(str(folder)), shapes_flux(), settings, count=1, index=0, shuffle=False, seed=0)
    points = (8, 6, 4, 3, 2, 1)
    images = shapes_flux().decode(pair.latents[:, points].flatten(0, 1))
    captions = [f"{name}, noise {pair.sigmas[point]:.2f}" for name in ("chosen", "rejected") for point in points]
    return grids.sample_grid(images, captions, columns=len(points))
