"""A tiny checkpoint of every family in a real ComfyUI, trained there by its API."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from PIL import Image

from comfyui_otca.tests.comfyui.conftest import need_diffusers
from comfyui_otca.tests.tiny import models as tiny

API = Path(__file__).resolve().parents[2] / "workflows" / "api" / "otca.json"
DEADLINE = 180

UNKNOWN = ("qwen-image-2.1",)  # to the newest ComfyUI here, too
OLD = ("sd3", "wan21", "wan22", "wan22-5b", "qwen-image")  # that are known to older ones of ComfyUI

PICTURED = "wan22-i2v"
LONG = (PICTURED, *UNKNOWN)


@pytest.mark.parametrize("family", [*tiny.SIZES, PICTURED])
def test_it_trains(comfyui, newest, family, everything, tmp_path):
    need_diffusers(comfyui.installation)
    if family in LONG and not everything:
        pytest.skip("--everything")
    if not newest and family not in OLD:
        pytest.skip("this ComfyUI is older than the family")
    model, name = tiny.make(family, tmp_path / family), f"family-{family}"
    graph = json.loads(API.read_text(encoding="utf-8"))
    graph["1"]["inputs"] |= {"path": str(model), "lora_rank": 2}
    graph["2"]["inputs"] |= {"prompts_per_iteration": 2}
    prompts = "a red circle on a blue background"
    if family == PICTURED:
        prompts = json.dumps({"prompt": prompts, "image": "first.png"})
        Image.new("RGB", (32, 16), "red").save(comfyui.base / "input" / "first.png")
        (comfyui.base / "input" / "pictured.jsonl").write_text(f"{prompts}\n{prompts.replace('circle', 'square')}\n")
        graph["2"]["inputs"] |= {"prompts": "", "file": "pictured.jsonl"}
    graph["3"]["inputs"] |= {**tiny.SIZES.get(family, tiny.VIDEO), "group_size": 3, "steps": 4, "guidance": 4.5}
    graph["11"]["inputs"] |= {"learning_rate": 1e-2}
    graph["12"]["inputs"] |= {"run_name": name, "evaluation_prompts": prompts, "evaluation_seeds": 1}
    graph["13"]["inputs"] |= {"filename": name}
    for iteration in range(3):
        graph["2"]["inputs"]["index"] = graph["3"]["inputs"]["seed"] = iteration
        finish(comfyui, graph)
    rows = comfyui.metrics(name)
    assert [row["iteration"] for row in rows] == [1, 2, 3] and all(row["gradient_norm"] > 0 for row in rows)


def finish(comfyui, graph) -> None:
    """Queues one prompt and waits until it has succeeded."""
    prompt_id = json.loads(comfyui.post("/prompt", {"prompt": graph}))["prompt_id"]
    deadline = time.monotonic() + DEADLINE
    while not (history := comfyui.get(f"/history/{prompt_id}")):
        assert time.monotonic() < deadline, comfyui.log()[-2000:]
        time.sleep(0.2)
    status = history[prompt_id]["status"]
    assert status["status_str"] == "success", status["messages"]
