"""Real trainings of the embedded model in the first layer, where all others train a toy: see also test_one_iteration.py."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from comfyui_otca.__main__ import main
from comfyui_otca.tests.conftest import forget

pytestmark = pytest.mark.usefixtures("real_model")


@pytest.fixture
def trained(small_graph, tmp_path):
    """trained(name, iterations, graph): a run's lines of metrics.jsonl, without timings, and its adapter."""

    def run(name, iterations, source="otca.json"):
        forget()
        changes = {"OTCA_TrainingRun": {"iterations": iterations, "evaluate_every": 2, "checkpoint_every": 1}}
        (tmp_path / f"{name}.json").write_text(json.dumps(small_graph(changes, source)))
        resume = ["--resume"] if (tmp_path / name).exists() else []
        assert main(["train", str(tmp_path / f"{name}.json"), "--output", str(tmp_path / name), *resume]) == 0
        rows = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        timings = ("seconds/", "samples_per_second")
        kept = [{key: value for key, value in row.items() if not key.startswith(timings)} for row in rows]
        return kept, load_file(tmp_path / name / "lora.safetensors")

    return run


def test_a_resumed_run_is_the_same_to_the_bit(trained):
    rows, adapter = trained("whole", 3)
    trained("parts", 1)
    assert trained("parts", 3)[0] == rows
    other = trained("parts", 3)[1]
    assert all(torch.equal(value, other[name]) for name, value in adapter.items())
    for row in rows:
        # 2 prompts x 3 samples, 4 steps, as in trainer/run/test_loop.py; on-policy every ratio is 1
        measured = row["iteration"] == 1  # kl/reference, without a KL term
        assert (row["forwards/all"], row["forwards/with_gradient"]) == (2 + 3 * 6 + 4 * measured, 2 + 2 * 6)
        assert row["ratio/mean"] == 1 and row["gradient_norm"] > 0 and (row.get("kl/reference", 0) > 0) == measured
        assert 0 <= row["reward/clip_t/mean"] <= 1 and 0 <= row["held_out/accuracy/mean"] <= 1


def test_matching_moves_the_adapter(trained):
    rows, adapter = trained("matching", 2, "matching.json")
    assert [row["iteration"] for row in rows] == [1, 2] and all(row["gradient_norm"] > 0 for row in rows)
    assert max(value.abs().max() for name, value in adapter.items() if "lora_B" in name) > 0
