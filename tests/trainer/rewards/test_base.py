"""The scoring of one batch by a stack of rewards: order, masks, and errors that name the culprit."""

from __future__ import annotations

import logging
import math

import pytest
import torch

from comfyui_otca.host import distributed
from comfyui_otca.nodes.rewards.images import RewardSharpness
from comfyui_otca.tests.processes import together
from comfyui_otca.trainer.networks.network import OncePerBatch
from comfyui_otca.trainer.rewards.base import (
    GroupReward,
    Reward,
    RewardError,
    parse_bounds,
    refuse_groups_only,
    score,
    score_stack,
)
from comfyui_otca.trainer.types import LEFT_OUT, Prompt

IMAGES, PROMPTS = torch.zeros(3, 4, 4, 3), ["one", "two", "three"]
GROUPS = torch.tensor([0, 0, 1])


class Fixed(Reward):
    """Says what it was told to say, and remembers what it was asked."""

    def __init__(self, answer, name="fixed", coefficient=1.0, held_out=False):
        super().__init__(name, coefficient, held_out)
        self.answer, self.asked = answer, []

    def score(self, images, prompts):
        self.asked.append((images, list(prompts)))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def stack(*rewards, **options):
    return score_stack(rewards, IMAGES, PROMPTS, GROUPS, **options)


def test_scores_stand_in_the_order_of_the_stack():
    first, second = Fixed([1, 2, 3], "first", 0.5), Fixed(torch.tensor([-1.0, 0.0, 1.5]).double(), "second", 2.0)
    scores = stack(first, second)
    assert scores.values.tolist() == [[1.0, -1.0], [2.0, 0.0], [3.0, 1.5]] and scores.values.dtype == torch.float32
    assert (scores.names, scores.coefficients, scores.rewards) == (("first", "second"), (0.5, 2.0), (first, second))
    assert torch.equal(scores.groups, GROUPS) and set(scores.seconds) == {"first", "second"}
    assert scores.held_out.shape == (3, 0) and scores.held_out_names == ()
    [(images, prompts)] = first.asked
    assert images.shape == IMAGES.shape and prompts == [PROMPTS[group] for group in GROUPS]


class Ranks(GroupReward):
    """The place of each picture in its group, by brightness; says nothing of a group of one."""

    def __init__(self, name="ranks", **use):
        super().__init__(name, **use)
        self.asked = []

    def score_groups(self, samples, prompts, groups):
        self.asked.append((len(samples), list(prompts), list(groups)))
        light = samples.flatten(1).mean(1).tolist()
        alike = [[other for other, group in zip(light, groups, strict=True) if group == own] for own in groups]
        return [
            None if len(others) == 1 else float(sorted(others).index(own))
            for own, others in zip(light, alike, strict=True)
        ]


def ramp(samples):
    return torch.arange(samples).reshape(-1, 1, 1, 1).expand(-1, 4, 4, 3) / samples


def test_a_reward_that_compares_groups_is_asked_once_and_after_the_others():
    ranks, order = Ranks(), []
    other = Fixed(torch.tensor([7.0]), "other")
    names = iter(("other", "other", "other", "ranks"))
    scores = score_stack(
        [ranks, other], ramp(3), PROMPTS, GROUPS, on_step=lambda: order.append(next(names)), batch_size=1
    )
    assert ranks.asked == [(3, ["one", "one", "two"], [0, 0, 1])]
    assert order == ["other", "other", "other", "ranks"] and len(other.asked) == 3
    assert scores.names == ("ranks", "other")
    assert scores.values.tolist() == [[0.0, 7.0], [1.0, 7.0], [math.inf, 7.0]]


def _ranks_of_a_share():
    own, ranks = distributed.rows(5), Ranks()
    scores = score_stack([ranks], ramp(5)[own.start : own.stop], ["a", "b"], torch.tensor([0, 0, 0, 1, 1])[own])
    return scores.values[:, 0].tolist(), ranks.asked


def test_of_several_processes_the_first_asks_for_the_whole_batch():
    (first, asked), (second, others) = together(2, _ranks_of_a_share)
    assert asked == [(5, ["a", "a", "a", "b", "b"], [0, 0, 0, 1, 1])] and others == []
    assert first + second == [0.0, 1.0, 2.0, 0.0, 1.0]


def test_what_compares_groups_judges_no_other_pictures():
    ranks, plain = Ranks(), Fixed(torch.zeros(3), "plain")
    assert ranks.for_other_pictures() is None and plain.for_other_pictures() is plain
    with pytest.raises(RewardError, match="'ranks' failed: it compares the pictures"):
        score([ranks], IMAGES, PROMPTS)
    refuse_groups_only([plain], "Nothing")
    with pytest.raises(RewardError, match="Stepwise Gain asks every reward.*'ranks' may not.*Fix: "):
        refuse_groups_only([plain, ranks], "Stepwise Gain")


def test_a_prompts_line_says_which_rewards_judge_it():
    """The others are not asked, and what they do not judge they leave out."""
    prompts = [Prompt("a sign", {"judged_by": ["first"]}), "plain", Prompt("a cat", {"judged_by": "second, ranks"})]
    first, second, ranks = Fixed([1.0, 2.0], "first"), Fixed([7.0, 8.0], "second"), Ranks()
    scores = score_stack([first, second, ranks], IMAGES, prompts, torch.tensor([0, 1, 2]))
    gone = LEFT_OUT
    assert scores.values[:, :2].tolist() == [[1.0, gone], [2.0, 7.0], [gone, 8.0]] and scores.values[0, 2] == gone
    assert [asked for _, asked in first.asked] == [["a sign", "plain"]] and len(first.asked[0][0]) == 2
    assert ranks.asked[0][1:] == (["plain", "a cat"], [1, 2])
    for wrong in (3, [1]):
        with pytest.raises(RewardError, match="judged_by = .* is not a list of names. Fix: "):
            score_stack([first], IMAGES[:1], [Prompt("a", {"judged_by": wrong})], torch.tensor([0]))


def test_held_out_rewards_are_kept_apart(caplog):
    watched = Fixed(torch.tensor([9.0, math.nan, math.inf]), "watched", held_out=True)
    trained = Fixed(torch.tensor([-1e30, 2.0, 1e30]), "trained")
    scores = stack(watched, trained)
    assert scores.values[:, 0].tolist() == trained.answer.tolist()
    assert (scores.names, scores.coefficients) == (("trained",), (1.0,))
    assert scores.held_out[:, 0].isfinite().tolist() == [True, False, False] and scores.held_out[0, 0] == 9
    assert scores.held_out_names == ("watched",) and scores.rewards == (trained, watched)
    assert not caplog.records


@pytest.mark.parametrize("held_out", [False, True])
def test_a_reward_that_throws_is_named_with_its_reason(held_out):
    cause = ValueError("no such picture")
    with pytest.raises(RewardError, match="'aesthetic'.*ValueError.*no such picture") as caught:
        stack(Fixed(torch.zeros(3), "fine"), Fixed(cause, "aesthetic", held_out=held_out))
    assert caught.value.__cause__ is cause


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit()])
def test_an_interrupt_passes_through(interrupt):
    with pytest.raises(type(interrupt)):
        stack(Fixed(interrupt))


@pytest.mark.parametrize("answer", [torch.zeros(2), torch.zeros(4), torch.zeros(3, 1), torch.tensor(1.0)])
def test_a_wrong_number_of_scores_is_named(answer):
    with pytest.raises(RewardError, match="'short'.*3 pictures"):
        stack(Fixed(answer, "short"))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_masks_its_sample_and_is_told(bad, caplog):
    """Bounds make no score of it."""
    moody = bounded([bad, 4.0, bad], 0.0, 5.0, name="moody")
    scores = stack(moody, Fixed(torch.tensor([4.0, 5.0, 6.0]), "steady"))
    assert scores.values[1].tolist() == [4.0, 5.0] and scores.values[:, 1].tolist() == [4.0, 5.0, 6.0]
    assert scores.values[[0, 2], 0].isnan().all()
    first, last = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "'moody'" in first and "sample 0" in first and "sample 2" in last


def test_stacks_that_cannot_be():
    reward, twin = (Fixed(torch.zeros(3), "twin", held_out=held_out) for held_out in (True, False))
    for rewards, told in (
        ((), "no reward is connected that is trained on"),
        ((reward,), "no reward is connected that is trained on"),
        ((twin, twin), "name.*'twin'"),
        ((twin, reward), "name"),
    ):
        with pytest.raises(RewardError, match=told):
            stack(*rewards)
    assert not reward.asked


def test_progress_is_told_once_a_reward_and_may_stop_the_scoring():
    rewards = Fixed(torch.zeros(3), "a"), Fixed(torch.zeros(3), "b", held_out=True)
    steps = []
    stack(*rewards, on_step=lambda: steps.append(1))
    assert steps == [1, 1]
    with pytest.raises(ZeroDivisionError):
        stack(*rewards, on_step=lambda: 1 / 0)


# --- bounds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "bounds"),
    [("", None), ("  ", None), ("0.1, 0.4", (0.1, 0.4)), ("-2,1e3", (-2.0, 1000.0)), (" 0 , inf ", (0.0, math.inf))]
    + [(wrong, "wrong") for wrong in ("0.4", "0.4, 0.1", "1, 1", "1, 2, 3", "low, high", "nan, 1", "0, nan", ",")],
)
def test_bounds(text, bounds):
    if bounds == "wrong":
        with pytest.raises(ValueError, match=f"'{text}' is not a pair of bounds. Fix: "):
            parse_bounds(text)
    else:
        assert parse_bounds(text) == bounds


def bounded(answer, *bounds, **options):
    reward = Fixed(torch.tensor(answer), **options)
    reward.bounds = bounds
    return reward


def test_scores_are_bounded():
    rewards = (
        bounded([1.0, 2.0, 3.0], 1.5, 2.5, name="trained"),
        bounded([10.0, 20.0, 30.0], 15.0, 25.0, name="watched", held_out=True),
    )
    scores = stack(*rewards)
    assert scores.values.tolist() == [[1.5], [2.0], [2.5]] and scores.held_out.tolist() == [[15.0], [20.0], [25.0]]
    # An evaluation measures by the same rule; of videos the mean over frames is what is bounded.
    assert score(rewards, IMAGES, PROMPTS).tolist() == [[1.5, 15.0], [2.0, 20.0], [2.5, 25.0]]
    frames = torch.linspace(0, 1, 5).expand(3, 5).reshape(3, 5, 1, 1, 1).expand(3, 5, 4, 4, 3)
    brightness = bounded(0.0, 0.0, 0.4)
    brightness.score = lambda images, prompts: images.mean((1, 2, 3))  # 0, 0.25 … 1, of mean 0.5
    assert score([brightness], frames, PROMPTS)[:, 0].tolist() == pytest.approx([0.4, 0.4, 0.4])


def test_a_node_sets_them():
    (reward,) = RewardSharpness().build(1.0, clip="0, 1.5")
    assert reward.bounds == (0.0, 1.5)
    (plain,) = RewardSharpness().build(1.0)
    noise = torch.rand(3, 8, 8, 3, generator=torch.Generator().manual_seed(0))
    raw, own = score([plain, reward], noise, PROMPTS).T
    assert raw.min() > 150 and own.tolist() == [1.5] * 3
    assert RewardSharpness.VALIDATE_INPUTS("0, 1.5") is True and RewardSharpness.VALIDATE_INPUTS(None) is True
    assert RewardSharpness.VALIDATE_INPUTS("1.5, 0").startswith("clip: '1.5, 0' is not a pair of bounds")


# --- what rewards share ---------------------------------------------------------------------------------------------


def test_the_same_question_about_the_same_batch_is_answered_once():
    asked, shared = [], OncePerBatch()

    def compute(what):
        return shared.once(batch, what, lambda: asked.append(what) or len(asked))

    batch = torch.zeros(2)
    assert [compute("a"), compute("b"), compute("a")] == [1, 2, 1]
    batch = torch.zeros(2)
    assert compute("a") == 3, "an equal batch is another one"
