"""Rewards with files of their own: found, built by their EXAMPLE, and true to what their class says."""

from __future__ import annotations

import pytest
import torch

from comfyui_otca.study.scoring import parse_reward
from comfyui_otca.tests.documents import OF_ONE_FILE, ROOT
from comfyui_otca.trainer.rewards import reward_class
from comfyui_otca.trainer.rewards.base import as_column, check_paths, score_with_gradient

PROMPTS = ["a red circle", "a blue square", "", "two cats"]
PATTERN = ROOT / "nodes" / "rewards" / "brightness.py"


def pictures() -> torch.Tensor:
    return 0.1 + 0.8 * torch.rand(4, 16, 20, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("node", OF_ONE_FILE.values(), ids=OF_ONE_FILE)
def test_a_reward_of_one_file_scores_each_picture_by_itself(node):
    images, before = pictures(), pictures()
    (reward,) = node().build(coefficient=0.5, name="mine", **node.EXAMPLE)
    together = as_column(reward.score(images, PROMPTS))
    alone = [as_column(reward.score(images[k : k + 1], PROMPTS[k : k + 1])) for k in range(4)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-5, equal_nan=True)
    assert torch.equal(images, before), "the pictures are not its own to change"
    assert together.shape == (4,) and together.isfinite().any(), "EXAMPLE has to give a score"
    assert (reward.name, reward.coefficient, reward.held_out) == ("mine", 0.5, node.HELD_OUT)
    assert node.announced(**node.EXAMPLE)[0][0] == node().build(coefficient=1, **node.EXAMPLE)[0].name
    options = ",".join(f"{name}={value}" for name, value in node.EXAMPLE.items())
    assert type(parse_reward(f"{node.KIND}:{options}" if options else node.KIND)).__name__ == type(reward).__name__
    assert reward_class(node.KIND).__name__ == type(reward).__name__


@pytest.mark.parametrize("node", [n for n in OF_ONE_FILE.values() if n.has_gradient()], ids=lambda node: node.KIND)
def test_a_gradient_is_the_slope_of_the_score(node):
    (reward,) = node().build(coefficient=1.0, **node.EXAMPLE)
    images = pictures().requires_grad_()
    check_paths(reward, images, PROMPTS)
    score_with_gradient(reward, images, PROMPTS).sum().backward()
    assert images.grad is not None and images.grad.any()
    # A small step, since a minimum or a maximum has kinks
    step = 1e-3 * torch.nn.functional.normalize(images.grad.flatten(1)).view_as(images)
    with torch.no_grad():
        ahead, behind = (score_with_gradient(reward, images + sign * step, PROMPTS) for sign in (1, -1))
    slope = (images.grad * step).flatten(1).sum(1)
    torch.testing.assert_close((ahead - behind) / 2, slope, rtol=0.05, atol=1e-6)


def test_the_page_shows_the_pattern_as_it_is():
    shown = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert f"```python\n{PATTERN.read_text(encoding='utf-8')}```\n" in shown, "copy it below its marker"
