"""A folder of pictures of any sizes: which are found, how they are judged, what is said of those left out, what is saved."""

from __future__ import annotations

import csv
import json
import os

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from comfyui_otca.host.access.permissions import NotAllowed
from comfyui_otca.nodes.rewards.stack import ScoreImages
from comfyui_otca.trainer.networks import RewardError
from comfyui_otca.trainer.rewards import folder as folders
from comfyui_otca.trainer.rewards.base import GroupReward, Reward


class Width(Reward):
    """The width of what it is shown, and how often it was asked."""

    def __init__(self, name="width", **use):
        super().__init__(name, **use)
        self.asked = []

    def score(self, images, prompts):
        self.asked.append((tuple(images.shape), list(prompts)))
        return torch.full((len(images),), float(images.shape[2]))


class Compared(GroupReward):
    def score_groups(self, samples, prompts, groups):
        self.seen = tuple(samples.shape)
        return samples.mean((1, 2, 3)).tolist()


def flat(path, size, grey, text=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    information = PngInfo()
    if text:
        information.add_text("prompt", text)
    Image.new("RGB", size, (grey,) * 3).save(path, **({"pnginfo": information} if text else {}))


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A user's folder: four pictures of three sizes, and what is not one."""
    folder = tmp_path / "mine"
    flat(folder / "a.png", (20, 10), 51, '{"1": {}}')
    flat(folder / "b.jpg", (30, 10), 102)
    flat(folder / "c.webp", (30, 10), 204)
    flat(folder / "deep" / "d.bmp", (40, 30), 255)
    for left_out in (".hidden.png", ".hidden/e.png", "otca_votes/f.png"):
        flat(folder / left_out, (9, 9), 0)
    (folder / "notes.txt").write_text("no picture")
    monkeypatch.setenv("OTCA_INPUT", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


NAMES = ("a.png", "b.jpg", "c.webp", "deep/d.bmp")


def test_pictures_are_found_by_name_and_counted_beyond_the_limit(mine):
    assert folders.find("mine", 9).names == NAMES and folders.find("mine", 4).left == 0
    few = folders.find(str(mine), 3)
    assert few.names == NAMES[:3] and few.left == 1
    assert folders.find("deep", 9).names == ("d.bmp",) == folders.find("mine/deep", 9).names
    before = folders.state("mine", 9)
    os.utime(mine / "b.jpg", (5, 5))
    assert folders.state("mine", 9) != before and folders.state("mine", 1) == before[:1]


def test_each_is_judged_in_its_own_size_and_compared_in_the_first_ones(mine):
    width, compared = Width(), Compared("compared", held_out=True)
    steps = []
    made = folders.rank(folders.find("mine", 9), [compared, width], "a fox", False, lambda: steps.append(1))
    assert [shape for shape, _ in width.asked] == [(1, 10, 20, 3), (2, 10, 30, 3), (1, 30, 40, 3)]
    assert made.images.shape == compared.seen == (4, 10, 20, 3) and len(steps) == 4
    assert made.ranked.scores.values[:, 0].tolist() == [20, 30, 30, 40]
    assert made.ranked.scores.held_out[:, 0].tolist() == pytest.approx([0.2, 0.4, 0.8, 1.0], abs=0.01)
    assert made.ranked.places == [4, 2, 3, 1] and made.names == NAMES and made.said == []


def test_a_wide_picture_goes_on_smaller_and_is_judged_as_it_is(mine):
    flat(mine / "a.png", (2048, 4), 9)
    width = Width()
    made = folders.rank(folders.find("mine", 1), [width], "", False)
    assert made.images.shape == (1, 2, 1024, 3) and width.asked[0][0] == (1, 4, 2048, 3)
    assert made.said == ["3 more pictures, by name, are beyond the limit of 1."]


def test_broken_pictures_are_named_and_none_of_the_others_is_lost(mine, caplog):
    (mine / "b.jpg").write_bytes(b"GIF89a")
    (mine / "c.webp").write_bytes((mine / "c.webp").read_bytes()[:20])
    width = Width()
    made = folders.rank(folders.find("mine", 9), [width], "one\ntwo\nthree\nfour", True)
    assert made.names == ("a.png", "deep/d.bmp") and made.ranked.places == [2, 1]
    assert [prompts for _, prompts in width.asked] == [["one"], ["four"]], "each line stays with its picture"
    first, second = made.said
    assert first.startswith("Left out, since it is not one of PNG") and first.endswith(": b.jpg")
    assert second.endswith(": c.webp") and f"{mine / 'b.jpg'} is left out" in caplog.text
    for name in NAMES:
        (mine / name).write_bytes(b"")
    with pytest.raises(folders.FolderError, match="no picture of the 4 in .*'a.png' is not one of PNG.*Fix: name a"):
        folders.rank(folders.find("mine", 9), [width], "", False)


def test_what_is_refused(mine, tmp_path):
    for name, wrong in (("nowhere", "'nowhere' was not found"), ("general.txt", "was not found")):
        with pytest.raises(folders.FolderError, match=f"{wrong}.*Fix: name a folder of ComfyUI's input or output"):
            folders.find(name, 9)
    (mine / "empty").mkdir()
    with pytest.raises(folders.FolderError, match=r"empty holds no picture \(\.png.*Fix: name another"):
        folders.find("empty", 9)
    with pytest.raises(RewardError, match="all of them are held out"):
        folders.rank(folders.find("mine", 9), [Width(held_out=True)], "", False)


def test_no_folder_and_no_picture_outside_is_read(mine, tmp_path, monkeypatch):
    monkeypatch.delenv("OTCA_ALLOW_FOLDERS")
    monkeypatch.chdir(mine)  # the folder where a command is typed may be read
    flat(tmp_path / "secret" / "s.png", (8, 8), 7)
    (mine / "link").symlink_to(tmp_path / "secret")
    (mine / "z.png").symlink_to(tmp_path / "secret" / "s.png")
    for name in (str(tmp_path / "secret"), "../secret", "/etc", str(tmp_path), "link", "//server/share", "~"):
        with pytest.raises(NotAllowed):
            folders.find(name, 9)
    found = folders.find("mine", 9)
    assert found.names == (*NAMES, "z.png")
    made = folders.rank(found, [Width()], "", False)
    assert made.names == NAMES and "z.png" in made.said[0] and "link out of its folder" in made.said[0]


def test_saved_best_first_with_their_scores(mine, tmp_path):
    """By the node, headlessly."""
    width, compared = Width(), Compared("compared", held_out=True)
    for folders_now in (["best"], ["best", "best-2"]):
        out = ScoreImages().score(folder="mine", save_as="best", keep=2, reward_1=width, reward_2=compared)
        assert out[0].shape == (2, 10, 20, 3) and out[4] == [4, 2, 3, 1]
        assert sorted(os.listdir(tmp_path / "runs" / "ranked")) == folders_now
    saved = tmp_path / "runs" / "ranked" / "best-2"
    names = ["0001_d.png", "0002_b.png", "0003_c.png", "0004_a.png"]
    assert sorted(os.listdir(saved)) == [*names, "scores.csv"]
    with open(saved / "scores.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == [NAMES[i] for i in (3, 1, 2, 0)]
    assert [row["saved_as"] for row in rows] == names and [float(row["width"]) for row in rows] == [40, 30, 30, 20]
    # 20, 30, 30, 40: the mean is 30, the unbiased variance 200/3.
    assert [float(row["total"]) for row in rows] == pytest.approx([1.5**0.5, 0, 0, -(1.5**0.5)], abs=1e-4)
    with Image.open(saved / names[3]) as worst:
        assert worst.size == (20, 10) and np.asarray(worst).max() == 51
        assert worst.text["prompt"] == '{"1": {}}', "its own workflow still opens"
        told = json.loads(worst.text["otca_scores"])
    assert (told["place"], told["of"]) == (4, 4)
    assert told["scores"] == {"width": 20, "compared": pytest.approx(0.2, abs=1e-4)}


def test_a_batch_is_saved_too_and_a_folder_needs_a_plain_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images = torch.stack([torch.full((6, 8, 3), value) for value in (0.2, 0.6)])
    ScoreImages().score(images, save_as="mine", reward_1=Compared("compared"))
    saved = tmp_path / "runs" / "ranked" / "mine"
    assert sorted(os.listdir(saved)) == ["0001_image_2.png", "0002_image_1.png", "scores.csv"]
    with Image.open(saved / "0001_image_2.png") as best:
        assert best.size == (8, 6) and best.getpixel((0, 0)) == (153,) * 3
    with pytest.raises(ValueError, match="save_as = '../up' must be a plain name.*Fix"):
        ScoreImages().score(images, save_as="../up", reward_1=Compared("compared"))


def test_pictures_come_from_a_batch_or_from_a_folder(mine, comfyui):
    linked = {"reward_1": "OTCA_REWARD"}
    assert "there are no pictures. Fix" in ScoreImages.VALIDATE_INPUTS(linked)
    both = ScoreImages.VALIDATE_INPUTS({**linked, "images": "IMAGE"}, folder="mine")
    assert both == "folder: 'mine' is named, and images is connected. Fix: empty folder, or disconnect images"
    assert ScoreImages.VALIDATE_INPUTS(linked, folder="mine") is True
    assert ScoreImages.VALIDATE_INPUTS({**linked, "folder": "STRING"}) is True, "known only when the graph runs"
    assert ScoreImages.VALIDATE_INPUTS(linked, folder="nowhere").startswith("folder: folder 'nowhere' was not found")
    shown = ScoreImages().score(node_id="7", folder="mine", limit=2, save_as="best", reward_1=Width())["ui"]
    (table,) = shown["otca_scores"]
    assert table["files"] == ["a.png", "b.jpg"] and table["places"] == [2, 1]
    assert table["said"] == [
        "2 more pictures, by name, are beyond the limit of 2.",
        "Saved, best first: 2 pictures and scores.csv in otca_ranked/best.",
    ]
