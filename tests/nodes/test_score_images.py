"""Score Images: pictures of any workflow in, the best ones out, without a model or a training."""

from __future__ import annotations

import math

import pytest
import torch
from PIL import Image

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.nodes.rewards.stack import ScoreImages
from comfyui_otca.trainer.networks import RewardError

GREY, PALE, RED = (128, 128, 128), (190, 150, 150), (250, 20, 20)
# Hasler and Süsstrunk's measure, of one colour without spread: 0.3 · √((r − g)² + ((r + g)/2 − b)²)
COLORFUL = {
    color: 0.3 * math.hypot(color[0] - color[1], (color[0] + color[1]) / 2 - color[2]) for color in (GREY, PALE, RED)
}


def batch(*colors):
    return (torch.tensor(colors) / 255).reshape(-1, 1, 1, 3).expand(-1, 16, 24, 3).contiguous()


def reward(kind, **settings):
    return NODE_CLASS_MAPPINGS[f"OTCA_Reward{kind}"]().build(coefficient=1.0, **settings)[0]


def scored(images, prompt="", keep=1, **inputs):
    returned = ScoreImages().score(images, prompt, keep, reward_1=reward("Colorfulness"), **inputs)
    outputs = returned["result"] if isinstance(returned, dict) else returned
    return dict(zip(ScoreImages.RETURN_NAMES, outputs, strict=True))


def test_the_most_colourful_picture_is_the_best():
    images = batch(PALE, GREY, RED, GREY)
    out = scored(images, keep=2)
    assert torch.equal(out["best"], images[[2, 0]]) and torch.equal(out["ranked"], images[[2, 0, 1, 3]])
    assert out["places"] == [2, 3, 1, 4]
    assert out["scores"] == pytest.approx([COLORFUL[color] for color in (PALE, GREY, RED, GREY)], abs=1e-3)
    assert out["totals"].index(max(out["totals"])) == 2 and sum(out["totals"]) == pytest.approx(0, abs=1e-5)
    assert out["table"] is None, "headlessly nobody looks there"


def test_more_to_keep_than_there_are():
    assert scored(batch(PALE), keep=9)["best"].shape == (1, 16, 24, 3)


def test_videos():
    """Two videos of two frames; a video has the mean of its frames."""
    images = batch(GREY, PALE, PALE, RED)
    out = scored(images, video=True, frames=2)
    assert torch.equal(out["best"], images[2:]) and torch.equal(out["ranked"], images[[2, 3, 0, 1]])
    assert out["scores"] == pytest.approx(
        [(COLORFUL[GREY] + COLORFUL[PALE]) / 2, (COLORFUL[PALE] + COLORFUL[RED]) / 2], abs=1e-3
    )
    whole = scored(images, video=True)
    assert whole["places"] == [1] and torch.equal(whole["best"], images)
    assert len(scored(images, frames=2)["places"]) == 4, "frames without video are pictures"
    with pytest.raises(ValueError, match="frames = 3: the 4 images"):
        scored(images, video=True, frames=3)


def test_each_picture_is_judged_by_its_own_line():
    """The small CLIP, and the same picture twice: only the prompts differ."""
    clip = NODE_CLASS_MAPPINGS["OTCA_RewardClipT"]().build("shapes-clip", coefficient=1.0, device="cpu")[0]
    images = batch(RED, RED)
    told = "a blue square on a black background\na red circle on an orange background"
    returned = ScoreImages().score(images, told, 1, prompt_per_image=True, reward_3=clip)
    wanted = clip.score(images, told.splitlines()).tolist()
    assert returned[2] == pytest.approx(wanted) and returned[4] == ([2, 1] if wanted[1] > wanted[0] else [1, 2])
    with pytest.raises(ValueError, match="prompt has 1 lines for 2 pictures"):
        ScoreImages().score(images, "a fox", 1, prompt_per_image=True, reward_3=clip)


def test_what_the_page_is_shown(comfyui, tmp_path):
    """As ComfyUI runs it: in inference mode, with tensors made there."""
    watch = reward("Sharpness", held_out=True)
    with torch.inference_mode():
        images = batch(PALE, GREY, RED)
        returned = ScoreImages().score(images, "a fox", 1, node_id="7", reward_1=watch, reward_2=reward("Colorfulness"))
    (shown,) = returned["ui"]["otca_scores"]
    assert (shown["names"], shown["held_out_names"]) == (["colorfulness"], ["sharpness"])
    assert (shown["places"], shown["groups"], shown["prompts"]) == ([2, 3, 1], [0, 0, 0], ["a fox"])
    mean = sum(COLORFUL.values()) / 3
    std = (sum((value - mean) ** 2 for value in COLORFUL.values()) / 2) ** 0.5
    wanted = [(COLORFUL[color] - mean) / std for color in (PALE, GREY, RED)]
    assert [row[0] for row in shown["advantages"]] == pytest.approx(wanted, abs=1e-3)
    with Image.open(tmp_path / "temporary" / shown["thumbnails"]["filename"]) as sheet:
        assert sheet.getpixel((2 * 64 + 32, 32)) == RED


@pytest.mark.painted
def test_its_table_is_a_picture(comfyui):
    one = scored(batch(RED))["table"]
    assert one.ndim == 4 and one.shape[-1] == 3 and one.std() > 0.05


def test_without_a_reward_it_is_refused_before_it_runs():
    assert "no reward is connected" in ScoreImages.VALIDATE_INPUTS({"images": "IMAGE"})
    assert ScoreImages.VALIDATE_INPUTS({"images": "IMAGE", "reward_2": "OTCA_REWARD"}) is True
    wrong = ScoreImages.VALIDATE_INPUTS({"images": "OTCA_TRAJECTORIES", "reward_1": "OTCA_REWARD"})
    assert wrong == "images receives OTCA_TRAJECTORIES where IMAGE is needed. Fix: connect a node that outputs IMAGE"


def test_rewards_that_are_all_held_out_rank_nothing():
    with pytest.raises(RewardError, match="all of them are held out"):
        ScoreImages().score(batch(RED), "", 1, reward_1=reward("Colorfulness", held_out=True))
