"""What Training Run refuses before anything is trained."""

from __future__ import annotations

from comfyui_otca.nodes.run import TrainingRun


def test_an_evaluation_prompt_that_is_no_object_is_named():
    assert (
        TrainingRun.VALIDATE_INPUTS("a-run", evaluation_prompts='a fox\n{"prompt": "a sign", "text": "OPEN"}') is True
    )
    told = TrainingRun.VALIDATE_INPUTS("a-run", evaluation_prompts='a fox\n{"text": "OPEN"}')
    assert told.startswith("evaluation_prompts: ") and "Fix: " in told
