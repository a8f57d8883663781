"""What an edit keeps and changes: against numbers by hand, and the pictures that lines name."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image

from comfyui_otca.trainer.networks import RewardError
from comfyui_otca.trainer.rewards.base import check_paths, score, score_with_gradient
from comfyui_otca.trainer.rewards.edits import Changed, Kept, differences, most
from comfyui_otca.trainer.rewards.sources import beside
from comfyui_otca.trainer.types import Prompt


def picture(*rows):
    """Grey pictures [1, H, W, 3] of these rows."""
    return torch.tensor(rows, dtype=torch.float32)[None, :, :, None].expand(-1, -1, -1, 3).clone()


SOURCE = picture([0.2, 0.2, 0.2, 0.2], [0.2, 0.2, 0.2, 0.2])
EDITED = picture([0.2, 0.2, 0.2, 1.0], [0.2, 0.2, 0.3, 0.6])  # differences 0.8, 0.4, 0.1, and five times 0


@pytest.mark.parametrize(
    ("share", "changed", "rest"), [(0.25, 0.6, 0.1 / 6), (0.375, 1.3 / 3, 0.0), (0.1, 0.8, 0.5 / 7)]
)
def test_the_pixels_that_differ_most_are_changed_and_the_others_kept(share, changed, rest):
    kept, moved = Kept(source=SOURCE, share=share), Changed(source=SOURCE, share=share, enough=0.5)
    found = score([kept, moved], EDITED, ["x"])[0].tolist()
    assert found == pytest.approx([1 - rest, 1 - math.exp(-changed / 0.5)], abs=1e-6)


def test_doing_nothing_keeps_all_and_changes_nothing():
    assert score([Kept(source=SOURCE), Changed(source=SOURCE)], SOURCE, ["x"])[0].tolist() == [1, 0]


@pytest.fixture
def named(tmp_path):
    """Files: a grey source, a red one, and a mask of the right half."""
    mask = np.zeros((4, 4, 3), np.uint8)
    mask[:, 2:] = 255
    colors = {
        "grey": np.full((4, 4, 3), 51, np.uint8),
        "red": np.full((4, 4, 3), (255, 51, 51), np.uint8),
        "right": mask,
    }
    for name, pixels in colors.items():
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    return {name: str(tmp_path / f"{name}.png") for name in colors}


def test_a_line_names_its_source_and_where_it_may_change(named):
    """The left half differs by 0.1 from the grey source, the right one by 0.4. From the red one: 0.7 and 0.4 in red."""
    images = torch.full((2, 4, 4, 3), 0.3)
    images[:, :, 2:] = 0.6
    prompts = [
        Prompt("a", {"image": named["grey"], "mask": named["right"]}),
        Prompt("b", {"images": [named["red"], named["grey"]], "mask": named["right"]}),
    ]
    found = score([Kept(), Changed(enough=1.0)], images, prompts)
    left, right = (0.7 + 0.1 + 0.1) / 3, 0.4
    assert found[0].tolist() == pytest.approx([0.9, 1 - math.exp(-0.4)], abs=1e-6)
    assert found[1].tolist() == pytest.approx([1 - left, 1 - math.exp(-right)], abs=1e-6)
    everywhere = Prompt("c", {"image": named["grey"], "mask": named["grey"]})  # a fifth of each pixel may change
    assert score([Kept()], images[:1], [everywhere]).item() == pytest.approx(0.75, abs=1e-6), "0.1 and 0.4, alike"


def test_what_is_missing_is_named(named, tmp_path):
    images = torch.full((1, 4, 4, 3), 0.3)
    with pytest.raises(RewardError, match="prompt 'make it red' has no image. Fix: name one in that line"):
        score([Kept()], images, ["make it red"])
    with pytest.raises(RewardError, match="edits.jsonl, line 3 has no image"):
        score([Kept()], images, [Prompt("x", {}, "edits.jsonl, line 3")])
    with pytest.raises(RewardError, match="image '.*none.png' of a prompt: .*was not found"):
        score([Changed()], images, [Prompt("x", {"image": str(tmp_path / "none.png")})])
    with pytest.raises(RewardError, match="prompt 'x' has 3 for its mask. Fix: the name of a picture"):
        score([Kept()], images, [Prompt("x", {"image": named["grey"], "mask": 3})])
    with pytest.raises(RewardError, match="2 pictures, and one stands for all samples"):
        score([Kept(source=SOURCE.repeat(2, 1, 1, 1))], SOURCE, ["x"])


def test_a_source_of_another_size_is_scaled_and_cropped():
    """Twice as wide as high: the middle of a picture whose ends are black."""
    source = torch.zeros(1, 8, 16, 3)
    source[:, :, 4:12] = 0.5
    assert score([Kept(source=source)], torch.full((1, 8, 8, 3), 0.5), ["x"]).item() == pytest.approx(1)
    assert score([Kept(source=source)], torch.full((1, 4, 4, 3), 0.5), ["x"]).item() == pytest.approx(1, abs=0.02)


def test_single_pixels_count_little_in_large_pictures():
    """64 pixels a side are blurred by a box of 3: one white pixel is a ninth in nine places."""
    source, noisy = torch.zeros(1, 64, 64, 3), torch.zeros(1, 64, 64, 3)
    noisy[0, 10, 10] = 1
    apart = differences(noisy, source)[0]
    assert apart[9:12, 9:12].tolist() == [[pytest.approx(1 / 9)] * 3] * 3 and apart.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("kind", [Kept, Changed])
def test_the_gradient_is_that_of_finite_differences(kind):
    random = torch.Generator().manual_seed(0)
    source, images = (torch.rand(1, 5, 6, 3, generator=random, dtype=torch.float64) for _ in range(2))
    judge = kind(source=source)
    images.requires_grad_()

    def value(x):
        apart = differences(x, source).flatten(1)
        return judge.of(apart, torch.stack([most(row, judge.share) for row in apart]))

    assert torch.autograd.gradcheck(value, images)
    single = images.detach().float().requires_grad_()
    score_with_gradient(judge, single, ["x"]).sum().backward()
    assert single.grad.abs().sum() > 0
    check_paths(judge, single, ["x"])


def test_a_step_along_the_gradient_moves_towards_the_source_or_away():
    images, source = torch.full((1, 8, 8, 3), 0.5), torch.full((1, 8, 8, 3), 0.2)
    for kind, sign in ((Kept, -1), (Changed, 1)):
        moved = images.clone().requires_grad_()
        score_with_gradient(kind(source=source), moved, ["x"]).sum().backward()
        assert set((sign * moved.grad).sign().flatten().tolist()) <= {0.0, 1.0}


def test_sources_stand_beside_their_groups_each_once(named):
    first, second = Prompt("a", {"image": named["grey"]}), Prompt("b", {"images": [named["red"]]})
    pictures, places = beside([first, second, first, "c"], [])
    assert places == [0, 1, 0, None]
    assert [picture[0, 0].tolist() for picture in pictures] == [pytest.approx([0.2] * 3), pytest.approx([1, 0.2, 0.2])]
    pictures, places = beside([first, "c"], [Kept(source=SOURCE), Changed()])
    assert places == [0, 1] and torch.equal(pictures[1], SOURCE[0])
    assert beside(["c"], [Changed()]) == ([], [None])
