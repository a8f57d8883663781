"""A CLIP object as judge: what is asked, and what is made of the answers. What it answers: tests/comfyui/test_judge.py."""

from __future__ import annotations

import hashlib
import math
from itertools import combinations

import numpy as np
import pytest
import torch
from PIL import Image

from comfyui_otca.nodes.rewards.external import RewardVLMJudge
from comfyui_otca.trainer.networks import RewardError
from comfyui_otca.trainer.networks.answers import Reading, sized
from comfyui_otca.trainer.rewards import clip_judge
from comfyui_otca.trainer.rewards.base import score, score_stack
from comfyui_otca.trainer.rewards.clip_judge import ClipJudge, PairJudge, opponents
from comfyui_otca.trainer.rewards.templates import TEMPLATES
from comfyui_otca.trainer.types import JUDGE_TEMPLATES, Prompt


class Fake:
    """Answers by how bright a picture's first corner is; notes what it is asked."""

    def __init__(self, clip):
        self.asked, self.clip, self.written = [], clip, []

    def ask(self, asked, choices, batch_size=0):
        self.asked += asked
        size = batch_size or len(asked) or 1
        for first in range(0, len(asked), size):
            yield {n: Reading(self.clip(asked[n], choices)) for n in range(len(asked))[first : first + size]}

    def write(self, one, longest=512):
        return self.written.pop(0) if self.written else "I cannot see it"

    def leave(self):
        self.asked.append("left")


@pytest.fixture(autouse=True)
def _faked(monkeypatch):
    monkeypatch.setattr(clip_judge, "Answers", Fake)


def bright(one, choices):
    """0.8 of the probability is on the choices; of one picture yes has its brightness, of two the brighter one has more."""
    light = [picture[0, 0, 0].item() for picture in one.pictures]
    chance = light[0] if len(light) == 1 else 0.5 + (light[-2] - light[-1]) / 2 + 0.1 * (1 - light[-2])
    return (0.8 * chance, 0.8 * (1 - chance))


def pictures(*light):
    return torch.tensor(light)[:, None, None, None].expand(-1, 4, 4, 3).clone()


LIGHT = (0.25, 0.5, 0.75)


def test_the_chance_of_yes_among_yes_and_no():
    judge = ClipJudge(judge=bright, question="Is this {prompt}?")
    assert score([judge], pictures(*LIGHT), ["a dog", "a cat", "{prompt}"])[:, 0].tolist() == pytest.approx(LIGHT)
    texts = [one.text for one in judge.answers.asked]
    assert texts == [f"Is this {name}?\nAnswer with one word: yes or no." for name in ("a dog", "a cat", "{prompt}")]
    score([judge], pictures(*LIGHT), ["a dog", "a cat", "{prompt}"])
    assert len(judge.answers.asked) == 3, "what is known is not asked again"
    score([judge], pictures(0.25), ["a cat"])
    assert len(judge.answers.asked) == 4, "another prompt is another question"


def test_the_expected_grade():
    chances = (0.1, 0.1, 0.2, 0.3, 0.1)  # of 1 to 5; 0.8 in all: (0.1 + 0.2 + 0.6 + 1.2 + 0.5) / 0.8 = 3.25
    judge = ClipJudge(judge=lambda one, choices: chances, question="How good?", answer="grade")
    assert score([judge], pictures(0.5), ["x"]).item() == pytest.approx((3.25 - 1) / 4)
    assert not judge.reads_prompt


def test_a_number_is_read_as_deep_as_its_decimals():
    """2.7 with 0.6, 3.1 with 0.4: expected 2.86."""

    def says(one, choices):
        end = one.begun.rpartition(": ")[2]
        chance = {"": {"2": 0.6, "3": 0.4}, "2.": {"7": 1.0}, "3.": {"1": 1.0}}[end]
        return tuple(chance.get(choice, 0.0) for choice in choices)

    judge = ClipJudge(judge=says, template="UnifiedReward-2.0 alignment")
    assert score([judge], pictures(0.5), ["a dog"]).item() == pytest.approx((2.86 - 1) / 4)
    begun = [one.begun for one in judge.answers.asked]
    assert begun == [f"Alignment Score (1-5): {end}" for end in ("", "2.", "3.")]


def test_a_share_of_two_pictures_is_read_to_the_hundredth():
    """0.43 for the one that comes first, always: both orders together say that there is no difference."""

    def says(one, choices):
        chance = {"": "0", "0.": "4", "0.4": "3"}[one.begun.rpartition(": ")[2]]
        return tuple(float(choice == chance) for choice in choices)

    judge = PairJudge(judge=says, template="UnifiedReward-2.0 pair alignment")
    read = list(judge._read([judge._asked((torch.zeros(2, 2, 3), torch.ones(2, 2, 3)), "x")]))
    assert read == [{0: pytest.approx(0.43)}]
    assert judge.score_groups(pictures(0.1, 0.9), ["x"] * 2, [0, 0]) == pytest.approx([0.5, 0.5])


def test_pairs_are_asked_in_both_orders_and_averaged():
    judge = PairJudge(judge=bright, question="Which shows {prompt}?")
    light = (0.2, 0.6, 0.9, 0.3)
    found = judge.score_groups(pictures(*light), ["a", "a", "a", "b"], [0, 0, 0, 1])

    def first(one, other):
        return 0.5 + (one - other) / 2 + 0.1 * (1 - one)

    def wins(one, other):
        return (first(one, other) + 1 - first(other, one)) / 2

    expected = [sum(wins(light[a], light[b]) for b in range(3) if b != a) / 2 for a in range(3)]
    assert found[:3] == pytest.approx(expected) and found[3] is None, "a group of one has nothing to compare"
    assert sum(found[:3]) == pytest.approx(1.5), "every win is another's loss"
    assert len(judge.answers.asked) == 6 and {one.begun for one in judge.answers.asked} == {"Picture "}
    shown = {id(picture) for one in judge.answers.asked for picture in one.pictures}
    assert len(shown) == 3, "the same tensors, so that each is looked at once"


def test_a_pair_without_an_answer_does_not_count():
    def deaf(one, choices):
        light = {picture[0, 0, 0].item() for picture in one.pictures}
        return (0.1, 0.1) if light == {0.0, 0.5} else bright(one, choices)

    found = PairJudge(judge=deaf, question="Which?").score_groups(pictures(0.0, 0.5, 1.0), ["a"] * 3, [0] * 3)
    whole = PairJudge(judge=bright, question="Which?").score_groups(pictures(0.0, 1.0), ["a"] * 2, [0] * 2)
    assert found[0] == pytest.approx(whole[0]), "its other comparison is what it has"


@pytest.mark.parametrize("count", [2, 5, 9, 10, 24])
def test_the_design_is_balanced(count):
    pairs = opponents(range(count))
    met = [sum(member in pair for pair in pairs) for member in range(count)]
    assert set(met) == {min(count - 1, 8)} and all(a != b for a, b in pairs)
    assert len({frozenset(pair) for pair in pairs}) == len(pairs)
    if count <= 9:
        assert pairs == list(combinations(range(count), 2))


def test_it_says_what_its_numbers_are():
    grades = ClipJudge(judge=bright, question="How good is it?", answer="grade")
    yes, which = ClipJudge(judge=bright, question="Is it?"), PairJudge(judge=bright, question="Which?")
    assert [judge.meaning for judge in (grades, yes, which)] == ["grade", "yes_no", "which"]


def test_pairs_feed_a_stack_like_any_reward():
    judges = [PairJudge("pairs", judge=bright, question="Which?"), ClipJudge("yes", judge=bright, question="Is it?")]
    scores = score_stack(judges, pictures(0.1, 0.9, 0.2, 0.3), ["a", "b"], torch.tensor([0, 0, 1, 1]))
    pairs, yes = (scores.values[:, scores.names.index(name)] for name in ("pairs", "yes"))
    assert yes.tolist() == pytest.approx([0.1, 0.9, 0.2, 0.3])
    assert (pairs[0::2] + pairs[1::2]).tolist() == pytest.approx([1, 1]) and pairs[1] > pairs[0] and pairs[3] > pairs[2]


def test_what_is_not_answered_is_masked_and_said(caplog):
    def sometimes(one, choices):
        light = one.pictures[0][0, 0, 0].item()
        return {0.25: (0.3, 0.1), 0.5: (math.nan, 0.2)}.get(light) or bright(one, choices)

    judge = ClipJudge(judge=sometimes, question="Is it?")
    assert score([judge], pictures(*LIGHT), ["x"] * 3)[:, 0].isnan().tolist() == [True, True, False]
    told = next(record.getMessage() for record in caplog.records if "are not answered" in record.getMessage())
    assert "2 of 3 questions are not answered" in told and "question 1: the model's numbers are NaN" in told
    assert "question 0: yes or no is only 0.40 probable, and it would answer 'I cannot see it'" in told
    with pytest.raises(RewardError, match="1 of 1 questions are not answered.*Fix: ask what can be answered so"):
        score([judge], pictures(0.25), ["x"])


def test_the_picture_that_was_edited_comes_first(tmp_path):
    source = pictures(0.125)
    judge = ClipJudge(judge=lambda one, choices: (0.9, 0.0), template="edit followed", source=source)
    score([judge], pictures(0.5, 0.75), ["make it red"] * 2)
    for one, light in zip(judge.answers.asked, (0.5, 0.75), strict=True):
        assert [picture[0, 0, 0].item() for picture in one.pictures] == [0.125, light]
        text = "The last picture was made from the first picture. Does it follow this instruction: make it red?"
        assert one.text.startswith(text)
    with pytest.raises(RewardError, match="2 pictures, and one stands for all samples"):
        score([ClipJudge(judge=bright, template="rest kept", source=pictures(0.1, 0.2))], pictures(0.5), ["x"])
    with pytest.raises(RewardError, match="prompt 'x' has no image. Fix: name one in that line"):
        score([ClipJudge(judge=bright, template="same person")], pictures(0.5), ["x"])
    Image.fromarray(np.full((4, 6, 3), 51, np.uint8)).save(tmp_path / "start.png")
    named = ClipJudge(judge=lambda one, choices: (0.9, 0.0), question="Is {source} kept?")
    score([named], pictures(0.5, 0.75), [Prompt("x", {"images": [str(tmp_path / "start.png")]})] * 2)
    first, second = (one.pictures[0] for one in named.answers.asked)
    assert first is second, "so that it is looked at once"
    assert first.shape == (4, 6, 3) and first[0, 0, 0].item() == pytest.approx(0.2)


def test_a_prompt_that_lacks_what_is_asked_for_is_left_out():
    judge = ClipJudge(judge=bright, question="Does it say {metadata.sign}?")
    assert judge.score(pictures(0.25, 0.5), [Prompt("x", {"sign": "OPEN"}), "y"]) == [pytest.approx(0.25), None]


def test_a_video_is_some_of_its_frames():
    judge = ClipJudge(judge=lambda one, choices: (0.9, 0.1), question="Is it?", frames=3)
    videos = torch.arange(5.0)[None, :, None, None, None].expand(1, 5, 2, 2, 3)
    score([judge], videos, ["x"])
    [one] = judge.answers.asked
    assert [picture[0, 0, 0].item() for picture in one.pictures] == [0, 2, 4]
    assert one.text.startswith("These are 3 frames of one video, in their order.\nIs it?")
    with pytest.raises(RewardError, match="it compares pictures, and these are videos"):
        PairJudge(judge=bright, question="Which?").score_groups(videos, ["x"], [0])


def test_it_waits_in_main_memory_where_it_shall():
    judge = ClipJudge(judge=bright, question="Is it?", offload=True)
    score([judge], pictures(0.5), ["x"])
    assert judge.answers.asked[-1] == "left"


@pytest.mark.parametrize(
    ("kind", "settings", "told"),
    [
        (ClipJudge, {"question": "Is it?", "answer": "number"}, "answer='number' needs a server. Fix: answer=grade"),
        (ClipJudge, {"template": "which is better"}, "its question is about two pictures"),
        (PairJudge, {"template": "content"}, "its question is about one picture. Fix: switch compare off"),
        (PairJudge, {"question": "Is it?", "answer": "grade"}, "answer='grade' is about one picture"),
        (ClipJudge, {"question": "Is it {promt}?"}, "{promt} is not a placeholder"),
    ],
)
def test_what_cannot_be_asked_is_refused(kind, settings, told):
    with pytest.raises(ValueError) as error:
        kind(judge=bright, **settings)
    assert str(error.value).startswith(told)


def test_pictures_are_shown_in_sizes_that_a_model_takes():
    assert sized(torch.zeros(512, 768, 3), 65536).shape == (512, 768, 3)
    assert sized(torch.zeros(40, 40, 3), 65536).shape == (256, 256, 3)
    assert sized(torch.zeros(2048, 1024, 3)).shape == (1448, 724, 3)
    assert sized(torch.full((300, 200, 3), 0.3), side=896).unique().tolist() == pytest.approx([0.3])


def test_an_answer_that_begins_with_its_reasons_is_written_out(caplog):
    """Two scores of 0 to 25, of which the lower one counts: 20/25 and 5/25."""
    judge = ClipJudge(judge=bright, template="UnifiedReward-Edit quality")
    judge.answers.written = [
        '{\n\n"reasoning" : "a [sharp] picture",\n"score" : [20, 23],\n}',
        '{"reasoning": "blurred", "score": [25, 5]}',
        '{"reasoning": "score: none of it',
        '{"score": [26, 5]}',
    ]
    found = score([judge], pictures(0.1, 0.2, 0.3, 0.4), ["x"] * 4)[:, 0]
    assert found[:2].tolist() == pytest.approx([0.8, 0.2]) and found[2:].isnan().all()
    assert 'question 2: it answered \'{"reasoning": "score: none of it\', which has no scores' in caplog.text
    assert "question 3: it answered" in caplog.text


# --- templates ----------------------------------------------------------------------------------------------------------


def test_templates_are_those_that_the_node_lists():
    assert JUDGE_TEMPLATES[1:] == tuple(TEMPLATES)
    for template in TEMPLATES.values():
        kind = PairJudge if template.compares else ClipJudge
        kind(judge=bright, template=next(name for name, one in TEMPLATES.items() if one is template))


def test_published_templates_are_their_makers_word_by_word():
    """By the digests of the makers' texts, filled with the caption `a dog`: CodeGoat24/UnifiedReward at ff6f520."""
    found = {
        name: hashlib.sha256(template.text.replace("{prompt}", "a dog").encode()).hexdigest()[:16]
        for name, template in TEMPLATES.items()
        if template.credit
    }
    assert found == DIGESTS


# Of the texts as the makers' own programs make them, not of ours.
DIGESTS = {
    "UnifiedReward-2.0 alignment": "c8e8e60d2593ac80",
    "UnifiedReward-2.0 pair alignment": "6950e4b4c0d0ced1",
    "UnifiedReward pair": "4f3ed250a407d0e2",
    "UnifiedReward-Edit pair": "18f5e438575574b2",
    "UnifiedReward-Edit instruction": "32674e6f0d44883b",
    "UnifiedReward-Edit quality": "ddb40baa511dbf2f",
}


# --- the node -----------------------------------------------------------------------------------------------------------

GIVEN = {"url": "", "model": "", "questions": "a: Is it?\nb: Is it {prompt}?", "judge": bright}


def test_with_a_clip_no_server_is_asked():
    rewards = RewardVLMJudge().build(**GIVEN, batch_size=3, frames=2, max_tokens=5, held_out=True)
    assert [type(reward) for reward in rewards] == [ClipJudge] * 4
    assert [reward.name for reward in rewards] == ["vlm_judge_a", "vlm_judge_b", "vlm_judge_3", "vlm_judge_4"]
    assert (rewards[0].batch_size, rewards[0].frames) == (3, 2) and rewards[1].held_out
    assert score(rewards[:2], pictures(0.25), ["x"])[0].tolist() == pytest.approx([0.25, 0.25])
    with pytest.raises(RewardError, match="it has no question"):
        score(rewards[2:3], pictures(0.25), ["x"])
    links = {"input_types": {"judge": "CLIP"}}
    assert RewardVLMJudge.VALIDATE_INPUTS(url="nowhere", questions="Is it?", **links) is True
    assert RewardVLMJudge.WANTS(url="https://example.org", judge=None) == []
    assert RewardVLMJudge.WANTS(url="https://example.org") != []


def test_a_template_takes_the_place_of_the_questions():
    rewards = RewardVLMJudge().build(**GIVEN, template="UnifiedReward pair")
    assert type(rewards[0]) is PairJudge and rewards[0].template is TEMPLATES["UnifiedReward pair"]
    assert rewards[0].name == "vlm_judge_UnifiedReward_pair"
    assert RewardVLMJudge.only_of_groups(template="UnifiedReward pair") and RewardVLMJudge.only_of_groups(compare=True)
    assert not RewardVLMJudge.only_of_groups(template="content")
    assert [RewardVLMJudge.unasked(index, "a?\nb?", "content") for index in (0, 1)] == [False, True]


@pytest.mark.parametrize(
    ("given", "links", "told"),
    [
        ({"answer": "number"}, {"judge": "CLIP"}, "answer: number needs a server"),
        ({}, {"judge": "MODEL"}, "judge receives MODEL where CLIP is needed"),
        ({"template": "content"}, {}, "template: only a CLIP is asked so. Fix: connect judge"),
        ({"compare": True}, {}, "compare: only a CLIP is asked so"),
        ({"questions": "Is {source} kept?"}, {}, "questions: {source} needs a CLIP"),
        ({"questions": ""}, {"judge": "CLIP"}, "questions: the question is empty"),
    ],
)
def test_the_node_refuses(given, links, told):
    given = {"url": "http://127.0.0.1:8000/v1", "questions": "Is it?", **given}
    assert RewardVLMJudge.VALIDATE_INPUTS(**given, input_types=links).startswith(told)
