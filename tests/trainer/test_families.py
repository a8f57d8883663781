"""OTCA's workflow with a tiny checkpoint of every family in place of shapes-flux, from the command line to the files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.torch import load_file

from comfyui_otca.__main__ import main
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.tiny import models as tiny
from comfyui_otca.tests.training import whole_and_resumed
from comfyui_otca.trainer.pictures import media

pytestmark = [pytest.mark.anywhere, pytest.mark.usefixtures("real_model")]


@pytest.fixture(params=list(tiny.SIZES))
def family(request):
    return request.param


@pytest.fixture
def workflow(family, small_graph, tmp_path, tiny_folder):
    sampler = {**tiny.SIZES[family], "guidance": 4.5, "steps": 4, "group_size": 3}
    changes = {
        "OTCA_LoadFlowModel": {"path": str(tiny_folder(family))},
        "OTCA_SDESampler": sampler,
        "OTCA_TrainingRun": {"iterations": 2, "checkpoint_every": 1, "evaluate_every": 2, "evaluation_seeds": 1},
    }
    path = tmp_path / "workflow.json"
    path.write_text(json.dumps(small_graph(changes)))
    return path


def test_trains_saves_and_resumes(family, workflow, tmp_path):
    run = tmp_path / "run"
    assert main(["train", str(workflow), "--output", str(run)]) == 0
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [1, 2]
    assert all(row["gradient_norm"] > 0 and row["policy/skipped_updates"] == 0 for row in rows)
    trained = [name for name in rows[0] if name.startswith("credit/step/")]
    assert len(trained) == 3, "all but the last step, across the boundary of two experts"

    names = ["lora_high_noise", "lora_low_noise"] if family == "wan22" else ["lora"]
    files = [run / f"{name}.safetensors" for name in names]
    for file in files:
        adapter = load_file(file)
        assert any(value.abs().max() > 0 for key, value in adapter.items() if "lora_B" in key), file.name
    del adapter  # which would keep the file in use
    assert sorted(run.glob("lora*.safetensors")) == sorted(files)

    video = run / "samples" / "000002.mp4"
    assert video.is_file() == family.startswith("wan")
    if video.is_file():
        assert len(media.read(video)) == 5

    (tmp_path / "prompts.txt").write_text("a red circle\na blue square")
    common = ["--prompts", str(tmp_path / "prompts.txt"), "--seeds", "1", "--reward", "sharpness"]
    assert main(["eval", str(run), "--lora", f"again={run}", *common]) == 0
    rows = [json.loads(line) for line in (run / "evaluation" / "scores.jsonl").read_text().splitlines()]
    base, trained, again = (np.array([row["scores"]["sharpness"] for row in rows[i : i + 2]]) for i in (0, 2, 4))
    assert (base != trained).all() and (trained == again).all()
    if family.startswith("wan"):
        assert len(media.read(run / "evaluation" / "pictures" / "run" / "0002-0.mp4")) == 5

    arguments = ["train", str(run), "--output", str(run), "--resume", "--iterations", "3"]
    assert main(arguments) == 0
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 3
    assert main(["sample", str(run), "--prompt", "a red circle"]) == 0
    assert (run / "samples-1.png").is_file()
    video = run / "samples-1.mp4"
    assert video.is_file() == family.startswith("wan")
    if video.is_file():
        frames = media.read(video)
        assert len(frames) == 5 and frames.shape[1:3] != media.read(run / "samples-1.png").shape[:2], "after alone"


KEPT = {"unconditional_gradient": False}


@pytest.mark.parametrize(
    ("family", "keep_graph", "option"),
    [
        ("sd3", "off", {"sampled_steps": 1}),
        *((name, "on", KEPT) for name in tiny.SIZES if name not in ("wan21", "wan22")),
    ],
    indirect=["family"],
)
def test_what_makes_an_update_cheaper_resumes_to_the_bit(workflow, tmp_path, keep_graph, option):
    content = json.loads(workflow.read_text())
    for node in content.values():
        changes = {"OTCA_SDESampler": {"keep_graph": keep_graph}, "OTCA_GRPOStep": option}
        node["inputs"].update(changes.get(node["class_type"], {}))
    workflow.write_text(json.dumps(content))
    for row in whole_and_resumed(workflow, tmp_path):
        assert row["gradient_norm"] > 0 and ("update/sampled_share" in row) == ("sampled_steps" in option)


def test_a_bare_video_model(tmp_path, tiny_folder):
    path = tiny_folder("wan21")
    options = ["--prompt", "a red circle", "--seeds", "1", "--steps", "2", "--output", str(tmp_path / "a.png")]
    assert main(["sample", str(path), *options]) == 2, "it does not say what size it is for"
    assert main(["sample", str(path), *options, "--size", "32x16", "--frames", "9"]) == 0
    assert len(media.read(tmp_path / "a.mp4")) == 9
    assert main(["sample", str(path), *options, "--size", "32x16", "--frames", "8"]) != 0


def test_the_sampler_hands_frames_to_comfyui_as_a_batch(writes_to, workflow, family, tmp_path):
    from comfyui_otca.trainer.workflow.running import Workflow

    writes_to(tmp_path / "run")
    loaded = Workflow.load(workflow, NODE_CLASS_MAPPINGS)
    trajectories, images = loaded.run(targets=["3"])["3"]
    size = tiny.SIZES[family]
    assert images.shape == (6 * size.get("frames", 1), size["height"], size["width"], 3)
    assert len(trajectories.images) == 6
