"""Templates 04 and 05, which give something within minutes of installing, in every ComfyUI that is there: pictures of a
folder are ranked without a training, and votes become a LoRA. Nothing is downloaded."""

import csv
import json
import threading
import time

import pytest
from PIL import Image

from comfyui_otca.tools.canvases.templates import TEMPLATES


def graph(name):
    """As the template queues it."""
    return json.loads(TEMPLATES[name].api.read_text(encoding="utf-8"))


def test_a_folder_is_ranked_and_saved_best_first(comfyui, run_name):
    """Once the pack's own pictures, and once a user's in the output folder, of two sizes and one of them broken."""
    content = graph("rank_pictures")
    content["3"]["inputs"]["save_as"] = run_name
    assert "execution_success" in comfyui.run(content)
    ranked = comfyui.base / "output" / "otca_ranked"
    assert len(list((ranked / run_name).glob("*.png"))) == 64
    with open(ranked / run_name / "scores.csv", newline="", encoding="utf-8") as file:
        totals = [float(row["total"]) for row in csv.DictReader(file)]
    assert len(totals) == 64 and totals == sorted(totals, reverse=True) and abs(sum(totals)) < 0.01
    mine = comfyui.base / "output" / f"mine-{run_name}"
    mine.mkdir(parents=True)
    Image.new("RGB", (64, 48), (128, 128, 128)).save(mine / "grey.png")
    Image.new("RGB", (40, 80), (255, 0, 0)).save(mine / "red.webp", lossless=True)
    (mine / "broken.png").write_bytes(b"no picture")
    content["3"]["inputs"] |= {"folder": f"output/{mine.name}", "save_as": f"{run_name}-mine"}
    told = comfyui.run(content)
    assert "execution_success" in told, told
    assert sorted(path.name for path in (ranked / f"{run_name}-mine").iterdir()) == [
        "0001_red.png",
        "0002_grey.png",
        "scores.csv",
    ]


class Voter(threading.Thread):
    """Answers every question: the first picture is the best, the last one the worst."""

    def __init__(self, comfyui):
        super().__init__(daemon=True)
        self.comfyui, self.answered, self.done = comfyui, set(), threading.Event()

    def run(self):
        while not self.done.wait(0.2):
            for question in self.comfyui.get("/otca/votes")["questions"]:
                if question["id"] not in self.answered:
                    last = len(question["pictures"]) - 1
                    answer = {"kind": "order", "order": [[0], [*range(1, last)], [last]]}
                    self.comfyui.post(f"/otca/votes/{question['id']}", {"answer": answer})
                    self.answered.add(question["id"])


@pytest.fixture
def voter(comfyui):
    voter = Voter(comfyui)
    voter.start()
    yield voter
    voter.done.set()
    voter.join(30)


def test_votes_become_a_lora_and_pictures_before_and_after(comfyui, run_name, voter):
    content = graph("my_taste")
    content["4"]["inputs"]["votes"] = content["8"]["inputs"]["run_name"] = content["9"]["inputs"]["filename"] = run_name
    content["8"]["inputs"] |= {"evaluate_every": 1, "evaluation_seeds": 1}
    content["1"]["inputs"]["seed"] = time.monotonic_ns() % 10**6  # a model of its own
    told = comfyui.run(content)
    assert "execution_success" in told, told
    assert len(voter.answered) == 2, "a question a prompt"
    (row,) = comfyui.metrics(run_name)
    assert row["gradient_norm"] > 0 and 0 <= row["held_out/vote_foretold/mean"] <= 1
    assert (comfyui.base / "models" / "loras" / f"{run_name}.safetensors").is_file()
    grids = comfyui.get(f"/otca/runs/{run_name}/samples")["grids"]
    assert [grid["iteration"] for grid in grids] == [0, 1], "nothing but votes would judge them"
    assert [picture["prompt"] for picture in grids[0]["pictures"]] == ["a circle", "a square", "a triangle"]
