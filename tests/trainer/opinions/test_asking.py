"""A folder of votes that asks: what is asked, what is kept at once, and what is not asked again."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

from comfyui_otca.host import stopping
from comfyui_otca.host.questions import NotOpen, Question, desk
from comfyui_otca.trainer.opinions import votes
from comfyui_otca.trainer.opinions.asking import VoteFolder, as_pictures
from comfyui_otca.trainer.rewards import RewardError, reward_class

BEST_IS_2 = {"kind": "order", "order": [[2], [0, 1]]}
PROMPTS = ["a red circle"] * 3 + ["a blue square"] * 3
GROUPS = [0, 0, 0, 1, 1, 1]


def pictures(count=6):
    """Uniform pictures of as many colours."""
    return [np.full((4, 5, 3), 10 * number, np.uint8) for number in range(count)]


class Waiting:
    """A call that waits for people in a thread of its own, as ComfyUI's does."""

    def __init__(self, function, *arguments):
        self.abandoned, self.result, self.error = threading.Event(), None, None
        self.thread = threading.Thread(target=self._run, args=(function, *arguments))
        self.thread.start()

    def _run(self, function, *arguments):
        stopping.helper.abandoned = self.abandoned
        try:
            self.result = function(*arguments)
        except BaseException as error:  # for the test to look at
            self.error = error

    def questions(self, count):
        while len(desk.questions()) < count:
            assert self.thread.is_alive(), self.error
            self.thread.join(0.01)
        return desk.questions()

    def end(self):
        self.thread.join(30)
        assert not self.thread.is_alive()
        if self.error:
            raise self.error
        return self.result

    def stop(self):
        self.abandoned.set()
        with pytest.raises(stopping.Stopped):
            self.end()


@pytest.fixture
def folder(tmp_path):
    return VoteFolder(tmp_path / "votes")


@pytest.fixture
def learning(tmp_path):
    """A folder that learns from its votes."""
    return VoteFolder(tmp_path / "votes", encoder="shapes-clip")


@pytest.fixture
def ask():
    """ask(folder, pictures, prompts, groups): begins to ask; whatever still waits at the end is stopped."""
    begun = []

    def begin(folder, samples, prompts=PROMPTS, groups=GROUPS):
        begun.append(Waiting(folder.scores, samples, prompts, groups))
        return begun[-1]

    yield begin
    for waiting in begun:
        waiting.abandoned.set()
        waiting.thread.join(30)
    assert desk.questions() == []


def test_what_is_asked_is_told_while_an_answer_is_being_kept():
    """Seen before: ComfyUI's server, which asks in its one loop, stood still while a vote waited for the disk."""
    question = Question("a", "a cat", [], lambda _: ThreadPoolExecutor(1).submit(desk.questions).result(9))
    waiting = Waiting(desk.ask, [question])
    waiting.questions(1)
    desk.answer("a", {"kind": "skip"})
    waiting.end()


def test_each_group_is_asked_and_scored_by_its_own_answer(folder, ask):
    waiting = ask(folder, pictures())
    first, second = waiting.questions(2)
    assert (first.text, second.text) == ("a red circle", "a blue square") and len(first.pictures) == 3
    for question, number in ((first, 0), (second, 3)):
        assert np.asarray(Image.open(question.pictures[0])).tolist() == pictures()[number].tolist()
    desk.answer(second.id, {"kind": "skip"})
    assert waiting.thread.is_alive(), "the other group has no answer yet"
    desk.answer(first.id, BEST_IS_2)
    row = votes.read(folder.store)[1].as_json()  # is there when the answer is taken
    assert (row["prompt"], row["answer"], row["replaces"]) == ("a red circle", BEST_IS_2, None)
    assert [folder.folder / picture for picture in row["pictures"]] == list(first.pictures)
    scores = waiting.end()
    # By hand: two pairs, s = (a, a, -2a) reversed; the others are alike, and the sum is 0.
    assert scores[2] > 0 > scores[0] == scores[1] and sum(scores[:3]) == pytest.approx(0, abs=1e-9)
    assert scores[3:] == [None] * 3
    assert folder.scores(pictures(3)[::-1], PROMPTS[:3], GROUPS[:3]) == scores[2::-1], "in another order"


def test_an_answer_can_be_changed_and_taken_back_until_the_round_is_over(folder, ask):
    waiting = ask(folder, pictures())
    first, second = waiting.questions(2)
    desk.answer(first.id, BEST_IS_2)
    desk.answer(first.id, {"kind": "order", "order": [[0], [2]]})
    desk.answer(first.id, None)
    assert votes.standing(votes.read(folder.store)) == []
    desk.answer(second.id, {"kind": "alike"})
    assert waiting.thread.is_alive(), "the first one is open again"
    desk.answer(first.id, {"kind": "order", "order": [[1], [2]]})
    scores = waiting.end()
    assert scores[1] == -scores[2] > 0 and scores[0] is None
    lines = votes.read(folder.store)
    assert len(lines) == 5 and [vote.replaces for vote in lines[:3]] == [None, lines[0].id, lines[1].id]
    with pytest.raises(NotOpen, match="is not open any more"):
        desk.answer(first.id, None)


def test_an_empty_or_wrong_answer_is_refused_and_the_question_stays(folder, ask):
    first, _ = ask(folder, pictures()).questions(2)
    for answer, wrong in (
        ({"kind": "order", "order": []}, "puts no picture above another"),
        ({"kind": "order", "order": [[0], [9]]}, "names picture 9"),
        ({}, "has no 'kind'"),
        ("best", "holds a text, and not an object"),
        ({"kind": "withdrawn"}, "has the kind 'withdrawn'"),
        (None, "takes back a vote that was not given"),
    ):
        with pytest.raises(ValueError, match=wrong):
            desk.answer(first.id, answer)
        assert first.answer is None and not folder.store.file.exists()


def test_what_a_request_repeated_can_be_taken_back_and_corrected(folder, ask):
    first = ask(folder, pictures(2), PROMPTS[:2], GROUPS[:2])
    (question,) = first.questions(1)
    again = ask(folder, pictures(2), PROMPTS[:2], [5, 5])
    again.questions(2)
    keep_of_first, keep_of_again = [asked.keep for asked in desk.questions() if asked.id == question.id]
    keep_of_first({"kind": "order", "order": [[0], [1]]})
    first.stop()
    keep_of_again(None)
    assert votes.standing(votes.read(folder.store)) == []
    with pytest.raises(ValueError, match="that was not given"):
        keep_of_again(None)
    desk.answer(question.id, {"kind": "order", "order": [[1], [0]]})
    (vote,) = votes.standing(votes.read(folder.store))
    low, high = again.end()
    assert vote.answer.order == ((1,), (0,)) and low < high


def test_a_vote_on_part_of_a_group_leaves_the_group_to_be_asked_about(folder, ask):
    """Whose prompt may hold half a character."""
    waiting = ask(folder, pictures(2), ["\ud800"] * 2, GROUPS[:2])
    desk.answer(waiting.questions(1)[0].id, {"kind": "pair", "winner": 1, "loser": 0})
    waiting.end()
    assert votes.read(folder.store)[0].prompt == "\ud800"
    waiting = ask(folder, pictures(3), ["\ud800"] * 3, GROUPS[:3])
    (question,) = waiting.questions(1)
    assert len(question.pictures) == 3
    desk.answer(question.id, BEST_IS_2)
    low, middle, high = waiting.end()
    assert low < middle < high, "by both votes"


def test_equal_samples_are_shown_once_and_what_cannot_be_shown_has_failed(folder, ask):
    images = torch.linspace(0, 1, 4)[:, None, None, None].expand(4, 4, 5, 3).clone()
    images[1, 0, 0, 0], images[3] = math.nan, images[0]
    waiting = ask(folder, as_pictures(images), PROMPTS[:1] * 4, GROUPS[:1] * 4)
    (question,) = waiting.questions(1)
    assert len(question.pictures) == 2
    desk.answer(question.id, {"kind": "pair", "winner": 1, "loser": 0})
    first, failed, last, equal = waiting.end()
    assert first == equal == -last < 0 and math.isnan(failed)
    assert folder.scores(pictures(1) * 3, ["other"] * 3, GROUPS[:3]) == [None] * 3, "nothing to choose among"


def shapes(count, seed):
    """Pictures for an encoder of shapes, of which later ones are redder."""
    noise = np.random.default_rng(seed).integers(0, 60, (count, 40, 40, 3))
    for number, pixels in enumerate(noise):
        pixels[8:32, 8:32] = (40 + 200 * number // (count - 1), 40, 40)
    return list(noise.astype(np.uint8))


def test_with_learn_what_is_sure_is_not_asked_and_of_the_rest_four_pictures(learning, ask):
    folder, redder = learning, {"kind": "order", "order": [[3], [1, 2], [0]]}
    for round_ in range(5):
        waiting = ask(folder, shapes(4, round_), [f"prompt {round_}"] * 4, [0] * 4)
        (question,) = waiting.questions(1)
        assert len(question.pictures) == 4, "nothing is sure yet"
        desk.answer(question.id, redder)
        scores = waiting.end()
        assert scores[3] > scores[1] > scores[0] and scores[1] == pytest.approx(scores[2]), "by the vote itself"
    clear, alike = shapes(4, 9), [shapes(2, seed)[0] for seed in range(7, 13)]
    waiting = ask(folder, [*clear, *alike], ["clear"] * 4 + ["alike"] * 6, [0] * 4 + [1] * 6)
    (question,) = waiting.questions(1)
    assert question.text == "alike" and len(question.pictures) == 4
    assert "Learned from 5 votes" in question.about["learned"] and "sure of 1 of 2 groups" in question.about["learned"]
    desk.answer(question.id, {"kind": "order", "order": [[0], [1, 2, 3]]})
    scores = waiting.end()
    assert sorted(scores[:4]) == scores[:4] and all(map(math.isfinite, scores))
    assert len(votes.read(folder.store)) == 6


def test_with_learn_a_group_that_is_neither_sure_nor_answered_has_no_scores(learning, ask):
    waiting = ask(learning, shapes(3, 0), ["p"] * 3, [0] * 3)
    desk.answer(waiting.questions(1)[0].id, {"kind": "alike"})
    waiting.end()
    (vote,) = votes.read(learning.store)
    votes.append(learning.store, votes.Vote("p", vote.pictures, votes.Answer("withdrawn"), vote.id))
    (group,) = learning._groups(shapes(3, 0), ["p"] * 3, [0] * 3, 16.0, {0: None})
    assert learning._scores(group, votes.read(learning.store)) == [None] * 3


def test_a_corrected_vote_is_learned_anew_and_an_unreadable_picture_is_not_learned(learning, monkeypatch, caplog):
    def vote(pictures, winner, *replaces):
        answer = votes.parse_answer({"kind": "pair", "winner": winner, "loser": 1 - winner}, 2)
        return votes.Vote("p", tuple(pictures), answer, *replaces)

    names = [learning._kept(pixels, 16.0) for pixels in shapes(3, 0)]
    (learning.folder / names[2]).write_bytes(b"no picture")
    first, wrong = vote(names[:2], 0), vote(names[1:], 0)
    learning.learner.learn([first, wrong])
    low, high = learning.learner.judgement_of(names[:2]).scores
    assert low > high and learning.learner.votes == 1
    assert names[2] in caplog.text and "cannot be read" in caplog.text
    assert learning.learner.judgement_of(names) is None
    learning.learner.learn([first, wrong, vote(names[:2], 1, first.id)])
    low, high = learning.learner.judgement_of(names[:2]).scores
    assert low < high and learning.learner.votes == 1
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # far too large a picture
    name = learning._kept(shapes(2, 1)[0], 16.0)
    assert learning.learner.judgement_of([name]) is None and name in caplog.text


def test_the_reward_refuses_where_nobody_could_answer(tmp_path, monkeypatch):
    monkeypatch.setenv("OTCA_VOTES", str(tmp_path))
    monkeypatch.setattr(desk, "attended", False)
    reward = reward_class("vote")()
    with pytest.raises(RewardError, match="otca vote"):
        reward.score_groups(torch.rand(2, 4, 4, 3), ["p", "p"], [0, 0])
    with pytest.raises(ValueError, match="plain name"):
        reward_class("vote")(votes="../elsewhere")
    with pytest.raises(FileNotFoundError, match="no-such-encoder"):  # when it is built
        reward_class("vote")(learn=True, encoder="no-such-encoder")
    assert reward.groups_only and reward.for_other_pictures() is None


def test_the_share_of_foretold_votes_is_watched(tmp_path, monkeypatch):
    """Three votes for the first of the same two pictures: the first one has no prediction, the others are foretold."""
    monkeypatch.setenv("OTCA_VOTES", str(tmp_path))
    silent, reward = reward_class("vote")(votes="mine"), reward_class("vote")(votes="mine", learn=True)
    assert silent.watched() == reward.watched() == {}
    names = tuple(reward.folder._kept(pixels, 16.0) for pixels in shapes(2, 0))
    for number, (winner, foretold) in enumerate([(0, {}), (0, {"foretold": 1.0}), (1, {"foretold": 0.5})]):
        answer = votes.parse_answer({"kind": "pair", "winner": winner, "loser": 1 - winner}, 2)
        votes.append(reward.folder.store, votes.Vote(f"prompt {number}", names, answer))
        assert reward.watched() == foretold and silent.watched() == {}
