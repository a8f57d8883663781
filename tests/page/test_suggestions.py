"""What the page offers while somebody types: only what a workflow may name, in lists of a bounded length."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from comfyui_otca.host import paths
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.page import suggestions
from comfyui_otca.trainer.prompts import read_prompts
from comfyui_otca.trainer.run import offered
from comfyui_otca.trainer.workflow.running import Workflow

WORKFLOWS = Path(__file__).resolve().parents[2] / "workflows" / "api"


def graph(name):
    return json.loads((WORKFLOWS / f"{name}.json").read_text(encoding="utf-8"))


def node_of(prompt, class_type):
    return next(node for node, entry in prompt.items() if entry["class_type"] == class_type)


def values(site, kind):
    answer = site.get(f"/otca/suggestions?kind={kind}")
    assert answer.status == 200, answer.error
    return answer.json["values"]


def by_graph(site, kind, node, prompt):
    return site.post("/otca/suggestions", {"kind": kind, "node": node, "prompt": prompt})


def test_every_kind_that_an_input_names_is_known(site):
    kinds = {
        options["suggest"]
        for node in NODE_CLASS_MAPPINGS.values()
        for section in ("required", "optional")
        for _, options in node.INPUT_TYPES().get(section, {}).values()
        if "suggest" in options
    }
    assert kinds == {*suggestions.MACHINES, *suggestions.GRAPHS, "runs"}
    for kind in kinds - suggestions.GRAPHS.keys():
        assert all(isinstance(value, str) and value for value in values(site, kind))


def test_runs_are_offered_by_name_the_latest_first(site, made):
    for name, when in (("first", 3.0), ("second", 9.0), ("third", 6.0)):
        os.utime(made(name), (when, when))
    assert values(site, "runs") == ["second", "third", "first"]


def test_prompt_files_are_those_that_the_node_then_reads(site, tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    (folder / "deep" / "deeper").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    for name in ("a.txt", "deep/b.JSONL", "deep/deeper/c.txt", "d.png", ".e.txt", ".hidden/f.txt"):
        (folder / name).write_text('{"prompt": "a red circle"}\n')
    secret = tmp_path / "secret.txt"
    secret.write_text("token")
    (folder / "link.txt").symlink_to(secret)
    (folder / "folder").symlink_to(tmp_path)
    monkeypatch.setenv("OTCA_INPUT", str(folder))
    offered_files = values(site, "prompt_files")
    assert offered_files[:3] == ["a.txt", "deep/b.JSONL", "deep/deeper/c.txt"]
    assert not [
        name for name in offered_files if "secret" in name or "link" in name or name.startswith((".", "folder"))
    ]
    for name in offered_files:
        assert read_prompts("", name)


def test_folders_of_pairs_and_files_of_rewards(site, tmp_path, monkeypatch):
    (tmp_path / "head.pth").write_bytes(b"")
    (tmp_path / "judge" / "x").mkdir(parents=True)
    for name in ("med_config.json", "judge/weights.safetensors", "judge/x/too_deep.pt", "readme.md"):
        (tmp_path / name).write_bytes(b"")
    monkeypatch.setenv("OTCA_MODELS", str(tmp_path))
    assert values(site, "reward_weights") == ["head.pth", "judge/weights.safetensors"]
    assert values(site, "reward_configs") == ["med_config.json"]
    assert "shapes_pairs" in values(site, "pair_folders")
    assert {"shapes-clip", "scenes-clip"} <= set(values(site, "encoders"))


def test_a_large_folder_is_not_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(suggestions, "MOST_LISTED", 5)
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text("a red circle")
    assert len(suggestions.names_in([tmp_path], suggestions.file_of(".txt"), 0)) == 5
    monkeypatch.setattr(suggestions, "MOST_LOOKED_AT", 3)
    assert len(suggestions.names_in([tmp_path], suggestions.file_of(".txt"), 0)) == 3
    assert suggestions.names_in([tmp_path / "nowhere"], suggestions.file_of(".txt"), 3) == []


def test_devices_are_those_that_there_are(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert suggestions.MACHINES["devices"]()[:4] == ["auto", "cpu", "cuda:0", "cuda:1"]


def test_metrics_are_those_of_the_rewards_that_are_connected(site):
    prompt = graph("otca")
    run = node_of(prompt, "OTCA_TrainingRun")
    answer = by_graph(site, "metrics", run, prompt)
    assert answer.json["several"] is False
    names = [f"evaluation/{name}" for name in ("sum", "clip_t", "colorfulness", "sharpness", "accuracy")]
    assert answer.json["values"] == names
    for name in names:  # each is one that validate takes, and no other is
        prompt[run]["inputs"]["best_metric"] = name
        assert not [each for each in site.jobs.check(prompt)[1] if each.input == "best_metric"]
    reward = node_of(prompt, "OTCA_RewardSharpness")
    prompt[reward]["inputs"]["name"] = "crisp"
    assert "evaluation/crisp" in by_graph(site, "metrics", run, prompt).json["values"]
    begun = {"1": {"class_type": "OTCA_TrainingRun", "inputs": {"report": ["9", 1]}}}
    circle = {"9": {"class_type": "OTCA_GRPOStep", "inputs": {"advantages": ["9", 0]}}}
    for in_the_making in (begun, begun | circle):
        assert by_graph(site, "metrics", "1", in_the_making).json["values"] == []


def test_layers_are_those_of_the_chosen_folder(site, tmp_path):
    prompt = graph("otca")
    node = node_of(prompt, "OTCA_LoadFlowModel")
    answer = by_graph(site, "layers", node, prompt)
    assert answer.json["several"] is True
    names = answer.json["values"]
    assert {"attn.to_q", "ff.net.2", "proj_mlp"} <= set(names) and not [name for name in names if "norm" in name]
    for name in names:  # each is one that validate takes
        prompt[node]["inputs"]["lora_targets"] = name
        assert not [each for each in site.jobs.check(prompt)[1] if each.input == "lora_targets"]
    for path in (str(tmp_path), "../..", "\\\\server\\share", "/proc/self"):  # a stranger's is not looked into
        prompt[node]["inputs"]["path"] = path
        assert by_graph(site, "layers", node, prompt).json["values"] == []


class Loader:
    """As ComfyUI's own loader is known to the server."""

    FOREIGN = True
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "load"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"unet_name": ([], {})}}

    @staticmethod
    def folder(name):
        return Path("models/diffusion_models")


def test_layers_of_a_comfyui_model_are_read_off_the_file_that_its_loader_names(tmp_path, monkeypatch):
    shapes = {
        "blocks.0.attn.qkv.weight": (4, 4),
        "blocks.1.attn.qkv.weight": (4, 4),
        "blocks.0.adaLN_modulation.1.weight": (4, 4),
        "blocks.0.norm.weight": (4,),
        "blocks.0.conv.weight": (4, 4, 1),
        "final.weight": (4, 4),
    }
    tensors = {f"model.diffusion_model.{name}": np.zeros(shape, np.float32) for name, shape in shapes.items()}
    save_file({**tensors, "vae.blocks.0.other.weight": np.zeros((2, 2), np.float32)}, tmp_path / "mine.safetensors")
    monkeypatch.setenv(paths.weights_variable("diffusion_models"), str(tmp_path))
    prompt = {
        "1": {"class_type": "UNETLoader", "inputs": {"unet_name": "mine.safetensors"}},
        "2": {"class_type": "OTCA_MakeTrainable", "inputs": {"model": ["1", 0]}},
    }
    classes = {**NODE_CLASS_MAPPINGS, "UNETLoader": Loader}
    assert offered.layers(Workflow(prompt, classes), "2") == ["attn.qkv"]
    for other in ("../mine.safetensors", str(tmp_path / "mine.safetensors"), "nowhere.safetensors"):
        prompt["1"]["inputs"]["unet_name"] = other
        assert offered.layers(Workflow(prompt, classes), "2") == []


def test_what_is_not_known_is_refused_with_the_fix(site):
    answer = site.get("/otca/suggestions?kind=../../etc")
    assert answer.status == 404 and "Fix: ?kind=devices" in answer.error
    assert site.get("/otca/suggestions").status == 404
    prompt = graph("otca")
    assert by_graph(site, "runs", "1", prompt).status == 404
    assert by_graph(site, "metrics", "99", prompt).status == 404
    assert by_graph(site, "metrics", "1", {"1": 5}).status == 400
    assert site.post("/otca/suggestions", {"kind": "metrics"}).status == 400
