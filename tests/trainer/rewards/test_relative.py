"""Relative Words: the difference of one reward's two scores, and which rewards it takes."""

from __future__ import annotations

import math

import pytest
import torch

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.study.scoring import parse_reward
from comfyui_otca.trainer.networks.features import Clip
from comfyui_otca.trainer.rewards import REWARDS, RewardError, reward_class
from comfyui_otca.trainer.rewards.base import Reward, check_paths, score, score_with_gradient
from comfyui_otca.trainer.rewards.clip import ClipT
from comfyui_otca.trainer.rewards.pixels import Sharpness
from comfyui_otca.trainer.rewards.relative import RelativeWords
from comfyui_otca.trainer.rewards.variety import Variety
from comfyui_otca.trainer.types import Prompt, metadata_of


class Told(Reward):
    """Gives what it was told to for the good and the bad word, and remembers the prompts."""

    def __init__(self, good, bad, **use):
        super().__init__("told", **use)
        self.answers, self.asked = {"sharp": good, "dull": bad}, []

    def score(self, images, prompts):
        self.asked.append(list(prompts))
        return self.answers[prompts[0].split(".")[0]]


def relative(other, **settings):
    return RelativeWords(reward=other, **{"good": "sharp", "bad": "dull", **settings})


def test_the_words_go_before_the_prompt_and_metadata_stay():
    told = Told([3.0, 5.0], [1.0, 7.0])
    prompts = ["a cat", Prompt("a dog", {"count": 2})]
    assert relative(told).score(torch.zeros(2, 4, 4, 3), prompts) == [2.0, -2.0]
    assert told.asked == [["sharp. a cat", "sharp. a dog"], ["dull. a cat", "dull. a dog"]]
    assert [metadata_of(prompt) for prompt in told.asked[1]] == [{}, {"count": 2}]


def test_the_other_ones_settings_play_no_part_and_its_own_do():
    told = Told([3.0, 5.0], [1.0, 7.0], coefficient=7.0, held_out=True)
    told.bounds = (0.0, 0.1)
    judge = relative(told, coefficient=0.5)
    judge.bounds = (-1.0, 9.0)
    assert score([judge], torch.zeros(2, 4, 4, 3), ["", ""]).tolist() == [[2.0], [-1.0]]
    assert (judge.name, judge.coefficient, judge.held_out) == ("relative_words", 0.5, False)


def test_scores_that_are_missing():
    judge = relative(Told([1.0, None, math.nan, 2.0], [None, None, 1.0, 1.0]))
    first, second, third, last = judge.score(torch.zeros(4, 4, 4, 3), [""] * 4)
    assert first is None and second is None and math.isnan(third) and last == 1.0


def test_with_clip_t_it_is_the_difference_of_two_cosines(tiny, images, prompts, monkeypatch):
    forwards, features = [], Clip.pictures
    monkeypatch.setattr(Clip, "pictures", lambda self, batch: forwards.append(len(batch)) or features(self, batch))
    other = ClipT(model=str(tiny / "clip"))
    judge = RelativeWords(reward=other, good="red", bad="blue")
    scores = torch.tensor(judge.score(images.clone(), prompts))
    assert forwards == [3], "the picture is seen once"
    expected = [other.score(images, [f"{word}. {prompt}" for prompt in prompts]) for word in ("red", "blue")]
    torch.testing.assert_close(scores, (expected[0] - expected[1]).cpu(), atol=1e-6, rtol=0)
    assert scores.abs().max() > 1e-4
    videos = images[:, None].expand(3, 5, *images.shape[1:])
    torch.testing.assert_close(torch.tensor(judge.score_videos(videos, prompts)), scores, atol=1e-6, rtol=0)
    plain = RelativeWords(reward=other, good="red", bad="").score(images, prompts)
    torch.testing.assert_close(
        torch.tensor(plain), (expected[0] - other.score(images, prompts)).cpu(), atol=1e-6, rtol=0
    )


def test_its_gradient_is_the_difference_of_two_gradients(tiny, images, prompts):
    other = ClipT(model=str(tiny / "clip"))
    judge, pulls = RelativeWords(reward=other, good="red", bad="blue"), []
    assert judge.has_gradient() and not relative(Told([], [])).has_gradient()
    check_paths(judge, images, prompts)
    for asked, words in ((judge, ""), (other, "red. "), (other, "blue. ")):
        seen = images.clone().requires_grad_()
        score_with_gradient(asked, seen, [words + prompt for prompt in prompts]).sum().backward()
        pulls.append(seen.grad)
    torch.testing.assert_close(pulls[0], pulls[1] - pulls[2], atol=1e-8, rtol=1e-4)
    assert pulls[0].abs().max() > 0


def test_the_network_rests_and_comes_back_with_the_other(tiny):
    other, called = ClipT(model=str(tiny / "clip")), []
    other.rest, other.come_back = (lambda word=word: called.append(word) for word in ("rest", "come back"))
    score([RelativeWords(reward=other)], torch.zeros(1, 40, 40, 3), ["a"])
    assert called == ["come back", "rest"]


def test_rewards_that_it_does_not_take(tiny):
    with pytest.raises(RewardError, match=r"no word in the prompt changes the score of 'sharpness'.* Fix: connect"):
        relative(Sharpness())
    with pytest.raises(RewardError, match=r"'variety' compares the pictures of a group. Fix: connect"):
        relative(Variety(model=str(tiny / "clip")))
    with pytest.raises(ValueError, match="good and bad are both 'photo'.* Fix: "):
        relative(ClipT(model=str(tiny / "clip")), good=" photo", bad="photo")
    dear = Told([], [])
    dear.groups_only = True
    assert relative(dear).groups_only and not relative(Told([], [])).groups_only


def test_which_rewards_read_the_prompt():
    """video_align's third dimension does too."""
    reads = "clip_t clip_direction pickscore hpsv2 image_reward relative_words video_align video_score http vlm_judge python vote"
    assert {kind for kind in REWARDS if reward_class(kind).reads_prompt} == set(reads.split())


def test_its_node_and_its_kind():
    node = NODE_CLASS_MAPPINGS["OTCA_RewardRelativeWords"]
    assert node.VALIDATE_INPUTS(good="photo", bad="drawing") is True
    assert node.VALIDATE_INPUTS(good="photo", bad="photo").startswith("good: good and bad are both 'photo'")
    assert node.VALIDATE_INPUTS(good=None, bad="") is True
    other = ClipT(model="shapes-clip")
    [judge] = node().build(reward=other, good="photo", bad="plastic render", coefficient=0.5, name="real")
    assert (judge.name, judge.reward, judge.coefficient) == ("real", other, 0.5)
    told = parse_reward("relative_words:reward=clip_t,good=photo,bad=drawing")
    assert isinstance(told.reward, ClipT) and (told.good, told.bad) == ("photo", "drawing")
