"""Which prompts an evaluation takes, and which rewards it asks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from comfyui_otca.trainer.run.evaluation import prompts
from comfyui_otca.trainer.run.layout import check_evaluation
from comfyui_otca.trainer.types import Prompt, RunSettings, metadata_of

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


@pytest.mark.parametrize("metadata", [[{}], [{}, 1]])
def test_damaged_metadata_is_named(metadata):
    with pytest.raises(ValueError, match="one object for each prompt"):
        check_evaluation({"iteration": 0, "prompts": ["a", "b"], "metadata": metadata, "rewards": {}})
