"""Which prompts an evaluation takes, and which rewards it asks."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from comfyui_otca.tests import training
from comfyui_otca.trainer.families.base import Forwards
from comfyui_otca.trainer.rewards.base import GroupReward, Reward
from comfyui_otca.trainer.run import evaluation
from comfyui_otca.trainer.run.evaluation import prompts
from comfyui_otca.trainer.run.folder import check_evaluation
from comfyui_otca.trainer.types import Prompt, RunSettings, SamplerSettings, metadata_of

TRAINED = SimpleNamespace(trajectories=SimpleNamespace(prompts=("a cat", Prompt("a dog", {"count": 2}))))


def test_prompts_of_the_settings_go_before_those_of_the_first_evaluation_and_these_before_the_iterations():
    chosen = RunSettings(evaluation_prompts=" a bird \n\na fish")
    row = {"prompts": ["a horse", "a sheep"], "metadata": [{}, {"count": 3}]}
    assert prompts(chosen, [row], TRAINED) == ["a bird", "a fish"]
    earlier = prompts(RunSettings(), [row, {"prompts": ["other"]}], TRAINED)
    assert earlier == ["a horse", "a sheep"] and [*map(metadata_of, earlier)] == [{}, {"count": 3}]
    assert prompts(RunSettings(), [{"prompts": ["a horse"]}], TRAINED) == ["a horse"]
    first = prompts(RunSettings(), [], TRAINED)
    assert first == ["a cat", "a dog"] and [*map(metadata_of, first)] == [{}, {"count": 2}]


def test_prompts_of_the_settings_may_say_more_than_their_texts():
    chosen = prompts(RunSettings(evaluation_prompts='a bird\n {"prompt": "a sign", "text": "OPEN"}'), [], TRAINED)
    assert chosen == ["a bird", "a sign"] and [*map(metadata_of, chosen)] == [{}, {"text": "OPEN"}]


def test_pictures_are_set_beside_those_that_began_alike_alone(tmp_path):
    images, both = torch.zeros(2, 8, 8, 3), tmp_path / "samples.png"
    evaluation.save_pictures(tmp_path, images, ["a", "b"], 0, True)
    evaluation.save_pictures(tmp_path, images, ["a", "b"], 2, False)
    assert not both.exists()
    evaluation.save_pictures(tmp_path, images, ["a", "b"], 2, True)
    assert both.exists()


def test_a_kill_amid_the_pictures_of_an_evaluation_leaves_no_line_of_it(small_workflow, tmp_path, monkeypatch):
    """Seen before: the line came first, and the resumed run had no pictures from before training."""
    monkeypatch.setattr(evaluation, "save_pictures", lambda *_: sys.exit("killed"))
    with pytest.raises(SystemExit, match="killed"):
        training.train(small_workflow(), tmp_path)
    assert not (tmp_path / "evaluation.jsonl").read_bytes()


@pytest.mark.parametrize("metadata", [[{}], [{}, 1]])
def test_damaged_metadata_is_named(metadata):
    with pytest.raises(ValueError, match="one object for each prompt"):
        check_evaluation({"iteration": 0, "prompts": ["a", "b"], "metadata": metadata, "rewards": {}})


class Dear(GroupReward):
    """One that somebody answers, and what was learned of the answers."""

    def __init__(self, name, learned=None):
        super().__init__(name)
        self.learned = learned

    def score_groups(self, samples, prompts, groups):
        raise AssertionError("nobody is asked in an evaluation")

    def for_other_pictures(self):
        return self.learned


class Fixed(Reward):
    def score(self, images, prompts):
        return torch.arange(len(images)).float()


def test_what_stands_in_for_a_reward_is_kept_apart_and_nobody_is_asked(monkeypatch):
    """What has learned since measures by another scale, so nothing may be decided by it."""
    monkeypatch.setattr(evaluation.rollout, "generate", lambda *_: torch.zeros(2, 4, 4, 3))
    rewards = (Dear("vote", Fixed("vote")), Dear("other"), Fixed("plain"))
    report = SimpleNamespace(
        trajectories=SimpleNamespace(settings=SamplerSettings()),
        advantages=SimpleNamespace(scores=SimpleNamespace(rewards=rewards)),
    )
    model = SimpleNamespace(forwards=Forwards())
    row, _, _ = evaluation.evaluate(model, report, 3, ["a", "b"], RunSettings(), lambda calls: lambda: None)
    check_evaluation(row)
    assert row["rewards"].keys() == {"plain"} and row["learned"].keys() == {"vote"}
    assert row["learned"]["vote"]["mean"] == row["rewards"]["plain"]["mean"] == 0.5
