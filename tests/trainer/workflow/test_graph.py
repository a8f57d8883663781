"""Graphs as they are kept: what ComfyUI writes into a graph while it runs is no part of it."""

import json

from comfyui_otca.trainer.policy.lora import workflow_metadata
from comfyui_otca.trainer.workflow.graph import resumable

# As ComfyUI queues it: a node that always runs again, as Tuned Model, has answered NaN.
QUEUED = {
    "1": {"class_type": "OTCA_MakeTrainable", "inputs": {"lora_rank": 4, "resume_run": "before"}},
    "2": {"class_type": "OTCA_TunedModel", "inputs": {"model": ["1", 0]}, "is_changed": [float("nan")]},
}
TUNED = {"class_type": "OTCA_TunedModel", "inputs": {"model": ["1", 0]}}


def test_a_run_keeps_a_graph_that_can_be_read_again():
    kept = resumable(QUEUED)
    assert kept == {"1": {"class_type": "OTCA_MakeTrainable", "inputs": {"lora_rank": 4, "resume_run": ""}}, "2": TUNED}
    json.dumps(kept, allow_nan=False)
    assert QUEUED["1"]["inputs"]["resume_run"] == "before" and "is_changed" in QUEUED["2"]


def test_a_lora_file_carries_a_graph_that_the_page_can_read():
    assert workflow_metadata(QUEUED, None) == {"prompt": {"1": QUEUED["1"], "2": TUNED}}
