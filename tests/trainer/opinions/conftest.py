from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from comfyui_otca.tests.trainer.rewards.conftest import tiny  # noqa: F401
from comfyui_otca.trainer.opinions.identity import pixels_id
from comfyui_otca.trainer.opinions.store import Store


@pytest.fixture
def gallery(tmp_path, monkeypatch):
    """gallery(n, prompts, pixels by number): ids of n pictures, the prompts in turn, which the user's own store knows."""
    monkeypatch.setenv("OTCA_OPINIONS", str(tmp_path))
    random = np.random.default_rng(0)

    def make(count, prompts=("a cat",), drawn=lambda number: random.integers(0, 256, (24, 40, 3), np.uint8)):
        rows = []
        for number in range(count):
            pixels, path = drawn(number), tmp_path / f"{number}.png"
            save(path, pixels)
            size = {"width": pixels.shape[1], "height": pixels.shape[0]}
            rows.append({"id": pixels_id(pixels), "prompt": prompts[number % len(prompts)], "path": str(path), **size})
        make.store.give([], rows)
        return [row["id"] for row in rows]

    make.store, make.folder = Store(tmp_path / "opinions.sqlite"), tmp_path
    return make


def give_pairs(store, pairs):
    """The first of each pair is better."""
    store.give([{"kind": "pair", "picture": better, "other": worse, "value": True} for better, worse in pairs])


@pytest.fixture
def folder_of(tmp_path):
    """folder_of(pairs, size=(width, height)): a folder of pairs; a pair is a prompt, or a whole line. Pictures differ by seed."""

    def make(pairs=("a red circle", "a blue square", "a green square"), size=(40, 40), name="pairs"):
        folder = tmp_path / name
        (folder / "more").mkdir(parents=True, exist_ok=True)
        lines, random = [], np.random.default_rng(0)
        for number, pair in enumerate(pairs):
            names = {"chosen": f"{number}a.png", "rejected": f"more/{number}b.png"}
            for file in names.values():
                save(folder / file, random.integers(0, 256, (size[1], size[0], 3), np.uint8))
            line = pair if isinstance(pair, dict) else {"prompt": pair}
            lines.append(json.dumps({**names, **line}))
        (folder / "pairs.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return folder

    return make


def save(path, pixels) -> None:
    Image.fromarray(pixels).save(path)


@pytest.fixture
def graph_of():
    """graph_of(folder, {class: {input: value}}, reward=True): two pairs an iteration on the embedded model, Matching Step."""

    def make(folder, changes=None, reward=True):
        pairs = {
            "model": ["1", 0],
            "folder": str(folder),
            "pairs_per_iteration": 2,
            "index": 0,
            "shuffle": True,
            "learn_from": "pairs",
            "held_out": 0.0,
            "seed": 0,
            "width": 40,
            "height": 40,
            "levels": 4,
            "shift": 0.0,
            "guidance": 3.5,
        }
        pairs |= {"reward_1": ["3", 0]} if reward else {}
        step = {
            "model": ["1", 0],
            "trajectories": ["2", 0],
            "advantages": ["2", 1],
            "loss": "dpo",
            "learning_rate": 1e-3,
            "beta": 0.0,
            "old_policy": "on_policy",
            "sampled_steps": 2,
            "kl_coefficient": 0.0,
        }
        run = {
            "model": ["4", 0],
            "report": ["4", 1],
            "run_name": "pairs",
            "iterations": 3,
            "checkpoint_every": 1,
            "evaluate_every": 3,
            "evaluation_prompts": "a red circle on a blue background",
            "evaluation_seeds": 2,
        }
        nodes = {
            "1": (
                "LoadFlowModel",
                {"model": "shapes-flux", "lora_rank": 4, "lora_alpha": 4.0, "seed": 0, "dtype": "auto"},
            ),
            "2": ("MyPictures", pairs),
            "3": ("RewardColorfulness", {"coefficient": 1.0, "held_out": True}),
            "4": ("MatchingStep", step),
            "5": ("TrainingRun", run),
        }
        content = {id_: {"class_type": f"OTCA_{name}", "inputs": inputs} for id_, (name, inputs) in nodes.items()}
        for entry in content.values():
            entry["inputs"].update((changes or {}).get(entry["class_type"].removeprefix("OTCA_"), {}))
        return content

    return make
