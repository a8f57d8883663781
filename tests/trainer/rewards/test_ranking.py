"""Pictures ranked by several rewards, in numbers worked out by hand."""

from __future__ import annotations

import logging
import math

import pytest
import torch

from comfyui_otca.trainer.rewards import ranking
from comfyui_otca.trainer.rewards.base import GroupReward, Reward, RewardError
from comfyui_otca.trainer.types import metadata_of

NAN = math.nan


class Says(Reward):
    """Gives each picture what it is told to, found by the picture's own brightness 0, 0.01, 0.02, …"""

    def __init__(self, name, answers, **use):
        super().__init__(name, **use)
        self.answers = answers

    def score(self, images, prompts):
        return [self.answers[round(100 * image[0, 0, 0].item())] for image in images]


def pictures(count):
    return (torch.arange(count) / 100).reshape(-1, 1, 1, 1).expand(count, 4, 6, 3).contiguous()


def rank(*rewards, prompts=None):
    count = len(rewards[0].answers)
    return ranking.rank(rewards, pictures(count), prompts or ["a fox"] * count)


def test_units_play_no_part_and_coefficients_do():
    """The same disagreement in other units: the larger coefficient decides, and at equal ones all are equal."""
    small, large = [0.1, 0.2, 0.3], [3000.0, 2000.0, 1000.0]
    assert rank(Says("a", small), Says("b", large)).totals.tolist() == pytest.approx([0, 0, 0], abs=1e-5)
    assert rank(Says("a", small, coefficient=2), Says("b", large)).order.tolist() == [2, 1, 0]
    ranked = rank(Says("a", small), Says("b", large, coefficient=3.0))
    assert ranked.order.tolist() == [0, 1, 2]
    assert ranked.totals.tolist() == pytest.approx([2, 0, -2], abs=1e-5)  # -1 + 3, 0, 1 - 3


def test_held_out_rewards_are_shown_and_do_not_rank():
    ranked = rank(Says("watch", [9.0, 1.0], held_out=True), Says("a", [1.0, 2.0]))
    assert ranked.order.tolist() == [1, 0]
    assert ranked.scores.held_out_names == ("watch",) and ranked.columns() == [1.0, 2.0, 9.0, 1.0]
    with pytest.raises(RewardError, match="K = 0 rewards rank the pictures.*Fix: .*held_out"):
        rank(Says("watch", [9.0, 1.0], held_out=True))


def test_what_failed_ranks_last_and_is_said(caplog):
    with caplog.at_level(logging.WARNING):
        ranked = rank(Says("a", [NAN, 1.0, 2.0]), Says("b", [9.0, 5.0, NAN]))
    assert ranked.order.tolist() == [1, 0, 2] and ranked.totals.isnan().tolist() == [True, False, True]
    assert "the pictures 1, 3 rank last, since they have no score by a, b" in caplog.text
    assert str(ranked.columns()) == "[nan, 1.0, 2.0, 9.0, 5.0, nan]"
    for name, answers in (("a", [NAN, NAN]), ("text", [None])):
        with pytest.raises(RewardError, match=f"no picture has its scores: {name} gave no score"):
            rank(Says(name, answers))


def test_what_does_not_apply_is_neither_for_nor_against():
    """The second has no quoted text, say: it stands where the average of that reward is."""
    ranked = rank(Says("a", [1.0, 2.0, 3.0]), Says("text", [4.0, None, 2.0], coefficient=10))
    assert ranked.totals.tolist() == pytest.approx([-1 + 10 * 2**-0.5, 0, 1 - 10 * 2**-0.5], abs=1e-4)
    assert ranked.order.tolist() == [0, 1, 2] and math.isnan(ranked.columns()[4])
    alone = rank(Says("text", [None, 2.0, 1.0]))
    assert alone.order.tolist() == [1, 2, 0], "it has no score at all"


def test_one_reward_ranks_by_itself_and_equal_pictures_stay_in_their_order():
    ranked = rank(Says("a", [1.0, 4.0, 3.0]))
    assert ranked.order.tolist() == [1, 2, 0] and ranked.places == [3, 1, 2]
    # mean 8/3, unbiased std √(7/3)
    wanted = [(r - 8 / 3) / (7 / 3) ** 0.5 for r in (1, 4, 3)]
    assert ranked.totals.tolist() == pytest.approx(wanted, abs=1e-5)
    assert ranked.columns() == [1.0, 4.0, 3.0]
    assert rank(Says("a", [1.0, 2.0, 2.0, 2.0])).order.tolist() == [1, 2, 3, 0]
    alone = rank(Says("a", [7.0]))
    assert (alone.totals.tolist(), alone.places, alone.columns()) == ([0.0], [1], [7.0])


def test_groups_are_prompts_and_all_pictures_are_compared():
    ranked = rank(Says("a", [1.0, 2.0, 3.0]), prompts=["one", "two", "one"])
    assert ranked.scores.groups.tolist() == [0, 1, 0] and ranked.scores.prompts == ("one", "two")
    assert ranked.standings[:, 0].tolist() == pytest.approx([-1, 0, 1], abs=1e-5)
    assert ranked.as_one_group().groups.tolist() == [0, 0, 0]

    class Compares(GroupReward):
        def score_groups(self, samples, prompts, groups):
            self.asked = (len(samples), list(prompts), list(groups))
            return [3.0, 1.0, 2.0]

    judge = Compares("judge")
    ranked = ranking.rank([judge], pictures(3), ["one", "two", "one"])
    assert judge.asked == (3, ["one", "two", "one"], [0, 1, 0]) and ranked.places == [1, 3, 2]


def test_prompts_and_their_metadata():
    assert ranking.prompts_of(" a fox\nin snow \n", 2, False) == ["a fox\nin snow"] * 2
    assert ranking.prompts_of("a fox\n\n a cat\n", 2, True) == ["a fox", "a cat"]
    with pytest.raises(
        ValueError, match="prompt has 2 lines for 3 pictures.*Fix: a line for each, or .*prompt_per_image"
    ):
        ranking.prompts_of("a\nb", 3, True)
    for wrong in ('{"prompt": 7}', '{"prompt": "a fox"', '{"prompt": "a fox", "worth": NaN}'):
        with pytest.raises(ValueError, match='is not an object like {"prompt": "…"}.*Fix: '):
            ranking.prompts_of(wrong, 1, False)
    asked = []

    class Asks(Says):
        def score(self, images, prompts):
            asked.extend(metadata_of(prompt).get("text") for prompt in prompts)
            return super().score(images, prompts)

    lines = ["a fox", *(f'{{"prompt": "a sign", "text": "{text}"}}' for text in ("OPEN", "SHUT", "OPEN"))]
    prompts = ranking.prompts_of("\n".join(lines), 4, True)
    assert prompts == ["a fox"] + ["a sign"] * 3
    ranked = rank(Asks("a", [1.0, 2.0, 3.0, 4.0]), prompts=prompts)
    assert asked == [None, "OPEN", "SHUT", "OPEN"], "equal texts keep their own metadata"
    assert ranked.scores.groups.tolist() == [0, 1, 2, 1]


def test_frames_and_transparency():
    images = pictures(6)
    assert ranking.samples_of(images, None) is images
    assert ranking.samples_of(images, 0).shape == (1, 6, 4, 6, 3)
    videos = ranking.samples_of(images, 2)
    assert videos.shape == (3, 2, 4, 6, 3) and torch.equal(videos[1, 0], images[2])
    with pytest.raises(ValueError, match="frames = 4: the 6 images do not make a whole number of videos. Fix: "):
        ranking.samples_of(images, 4)
    seen = ranking.as_pictures(torch.tensor([0.5, -1.0, 2.0, 0.1], dtype=torch.float64).expand(1, 2, 2, 4))
    assert seen.dtype == torch.float32 and seen[0, 0, 0].tolist() == [0.5, 0.0, 1.0]
