"""What comparing runs asks: figures by name, and where in a grid of samples each picture lies."""

from __future__ import annotations

import json

import pytest
import torch
from PIL import Image

from comfyui_otca.trainer.pictures import grids


def columns(site, after=0, *names):
    asked = "&".join(f"name={name}" for name in names)
    return site.get(f"/otca/runs/first/columns?after={after}&{asked}").json


# --- figures ----------------------------------------------------------------------------------------------------------


def test_figures_by_name(site, made):
    made(rows=3)
    answer = columns(site, 1, "seconds/iteration", "held_out/accuracy/mean", "unknown")
    assert answer["iterations"] == [2, 3]
    assert answer["columns"] == {"seconds/iteration": [2 / 7, 3 / 7], "held_out/accuracy/mean": [None, None]}
    assert "reward/clip_t/mean" in answer["names"] and "iteration" not in answer["names"]
    assert answer["evaluations"] == []
    assert site.get("/otca/runs/first/columns?" + "&".join(["name=loss"] * 101)).status == 400


def test_figures_that_come_later_or_not_always_stay_beside_their_iterations(site, made):
    lines = [made.row(1), made.row(2, loss=0.5), '{"iteration": 3, "clip/hi\n', made.row(4, loss=0.25), made.row(5)]
    path = made(files={"metrics.jsonl": "".join(lines).encode()}) / "metrics.jsonl"
    assert columns(site, 0, "loss")["iterations"] == [1, 2, 4, 5]
    assert columns(site, 0, "loss")["columns"] == {"loss": [None, 0.5, 0.25, None]}
    with open(path, "a", encoding="utf-8") as file:
        file.write(made.row(6, loss=0.125))
    assert columns(site, 4, "loss")["columns"] == {"loss": [None, 0.125]}


def test_figures_of_another_run_that_got_the_name(site, made):
    first, second = made(rows=4), made("second", rows=2)
    assert columns(site)["iterations"] == [1, 2, 3, 4]
    first.rename(site.folder / "old")
    second.rename(first)
    assert columns(site)["iterations"] == [1, 2]


def test_figures_of_runs_that_were_looked_at_long_ago_are_read_again(site, made, monkeypatch):
    from comfyui_otca.page import runs

    monkeypatch.setattr(runs, "MOST_OPENED", 2)
    made(rows=2), made("second", rows=3), made("third", rows=4)
    for _ in range(2):
        for name, rows in (("first", 2), ("second", 3), ("third", 4), ("third", 4)):
            answer = site.get(f"/otca/runs/{name}/columns?name=reward/clip_t/mean").json
            assert (answer["iterations"], answer["rewrites"]) == (list(range(1, rows + 1)), 0)
            assert answer["columns"] == {"reward/clip_t/mean": [0.5] * rows}
    readers = [site.runs.run(name).reader for name in ("first", "second", "third")]
    assert [bool(reader._iterations) for reader in readers] == [False, True, True]


# --- pictures ---------------------------------------------------------------------------------------------------------

PROMPTS = ["a red circle", "a blue square whose name takes more than one line " * 3, "x"]


@pytest.mark.parametrize("size, seeds", [((40, 24), 2), ((64, 64), 1), ((300, 200), 3), ((16, 16), 11)])
def test_a_picture_is_found_again_in_its_grid(site, made, size, seeds):
    """Each picture of the grid has a grey of its own; what is cut out by the box has that grey alone."""
    width, height = size
    captions = PROMPTS * seeds
    images = torch.stack([torch.full((height, width, 3), k / 40) for k in range(len(captions))])
    folder = made(status={})
    grids.save(grids.sample_grid(images[:32], captions[:32]), folder / "samples" / "000050.png")
    row = {
        "iteration": 50,
        "prompts": PROMPTS,
        "rewards": {"clip_t": {"held_out": False, "values": [0.5] * len(captions)}},
    }
    row["rewards"]["clip_t"] |= {"mean": 0.5, "std": 0.1, "standard_error": 0.1}
    (folder / "evaluation.jsonl").write_text(json.dumps(row) + "\n")
    (grid,) = site.get("/otca/runs/first/samples").json["grids"]
    assert (grid["iteration"], grid["file"]) == (50, "000050.png")
    assert [(p["prompt"], p["seed"]) for p in grid["pictures"]] == [
        (prompt, seed) for seed in range(seeds) for prompt in PROMPTS
    ][:32]
    with Image.open(folder / "samples" / "000050.png") as sheet:
        for k, picture in enumerate(grid["pictures"]):
            left, top, wide, high = picture["box"]
            cut = sheet.crop((left, top, left + wide, top + high))
            assert cut.getextrema() == ((round(k / 40 * 255),) * 2,) * 3


def test_a_grid_that_nothing_has_scored_is_found_by_its_count(site, made):
    """As where a person's votes are the only reward."""
    row = {"iteration": 50, "prompts": PROMPTS[:1], "count": 2, "rewards": {}}
    folder = made(status={}, files={"evaluation.jsonl": json.dumps(row).encode() + b"\n"})
    grids.save(grids.sample_grid(torch.zeros(2, 8, 8, 3), PROMPTS[:1] * 2), folder / "samples" / "000050.png")
    (grid,) = site.get("/otca/runs/first/samples").json["grids"]
    assert [(picture["prompt"], picture["seed"]) for picture in grid["pictures"]] == [(PROMPTS[0], 0), (PROMPTS[0], 1)]


def test_a_grid_that_is_not_understood_is_left_out(site, made):
    row = {"iteration": 50, "prompts": PROMPTS, "rewards": {}}
    folder = made(status={}, files={"evaluation.jsonl": json.dumps(row).encode() + b"\n"})
    start = b"\x89PNG\r\n\x1a\n"
    for content in (b"", start + b" a picture", start + b"\0\0\0\rIHDR" + b"\0\0\1\0" * 2):
        (folder / "samples" / "000050.png").write_bytes(content)
        assert site.get("/otca/runs/first/samples").json == {"grids": []}, content
