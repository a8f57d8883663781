"""A judge in ComfyUI's own server: a folder of a hundred pictures, Stop in the middle, and Run again."""

from __future__ import annotations

import csv
import json
import math
import time

import numpy as np
import pytest
from PIL import Image

from comfyui_otca.tests.comfyui import judging
from comfyui_otca.tests.comfyui.conftest import NEWEST
from comfyui_otca.tests.comfyui.server import ComfyUI, link

PICTURES, BROKEN = 100, 41
JUDGE = {f"coefficient_{number}": 1.0 for number in range(1, 5)} | {
    "url": "",
    "model": "",
    "questions": "Is this {prompt}?",
    "judge": ["1", 0],
    "batch_size": 4,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    if NEWEST is None or NEWEST.version.startswith("0.3."):
        pytest.skip("no ComfyUI whose text encoders write answers")

    def install(folder):
        link(folder)
        (folder.parent / "tiny_judge").symlink_to(judging.__path__[0], target_is_directory=True)

    with ComfyUI(NEWEST, tmp_path_factory.mktemp("judging"), install) as server:
        yield server


@pytest.fixture
def pictures(server):
    folder = server.base / "input" / "many"
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(PICTURES):
        pixels = random.integers(0, 256, (64, 64, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03d}.png")
    broken = folder / f"{BROKEN:03d}.png"
    broken.write_bytes(broken.read_bytes()[:500])
    return folder


def asked(server) -> int:
    file = server.base / "output" / judging.ASKED
    return len(file.read_text().splitlines()) if file.exists() else 0


def scoring(save_as: str, **judge) -> dict:
    inputs = {"prompt": "a red circle", "keep": 1, "folder": "input/many", "limit": PICTURES, "save_as": save_as}
    return {
        "1": {"class_type": "TinyJudge", "inputs": {}},
        "2": {"class_type": "OTCA_RewardVLMJudge", "inputs": JUDGE | judge},
        "3": {"class_type": "OTCA_ScoreImages", "inputs": inputs | {"reward_1": ["2", 0]}},
    }


def saved(server, name: str) -> dict[str, float]:
    file = server.base / "output" / "otca_ranked" / name / "scores.csv"
    with file.open() as table:
        return {row["file"]: float(row["vlm_judge"]) for row in csv.DictReader(table)}


def test_stop_in_the_middle_of_a_hundred_pictures_and_run_again(server, pictures):
    """What was scored before Stop is not asked again, though ComfyUI ran the node anew; a broken picture is left out alone."""
    number = json.loads(server.post("/prompt", {"prompt": scoring("first")}))["prompt_id"]
    deadline = time.monotonic() + 120
    while asked(server) < 40 and time.monotonic() < deadline and not server.get(f"/history/{number}"):
        time.sleep(0.05)
    server.post("/interrupt", {})
    while not (history := server.get(f"/history/{number}")):
        assert time.monotonic() < deadline, server.log()[-2000:]
        time.sleep(0.1)
    messages = dict(map(tuple, history[number]["status"]["messages"]))
    assert "execution_error" not in messages, messages["execution_error"]["exception_message"]
    assert messages["execution_interrupted"]["node_id"] == "3"
    assert 40 <= asked(server) < PICTURES - 1
    assert "execution_success" in server.run(scoring("first"))
    again = asked(server) - (PICTURES - 1)
    assert 0 <= again <= 4, (
        "each picture but the broken one, once, and those again at which Stop came before their answer"
    )
    first = saved(server, "first")
    assert len(first) == PICTURES - 1 and f"{BROKEN:03d}.png" not in first
    assert all(map(math.isfinite, first.values())) and len({round(value, 6) for value in first.values()}) > 50
    assert "execution_success" in server.run(scoring("second", name="vlm_judge", batch_size=7))
    assert asked(server) == 2 * (PICTURES - 1) + again, "another node has another memory"
    assert saved(server, "second") == pytest.approx(first, abs=1e-5)
