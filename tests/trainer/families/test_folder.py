"""Folders of models that somebody damaged or made up: refused by name, before anything is built."""

from __future__ import annotations

import io
import json
import logging
import shutil

import pytest
import torch
from diffusers import StableDiffusion3Pipeline

from comfyui_otca.host.text import LONGEST_LINE
from comfyui_otca.trainer.families.configured import read_configuration
from comfyui_otca.trainer.families.options import FlowModelError
from comfyui_otca.trainer.families.sizes import RULES
from comfyui_otca.trainer.flow import load_flow_model


@pytest.fixture(params=["flux-dev", "sd3", "wan22-5b", "qwen-image-2.1"])
def folder(request, tiny_folder, tmp_path):
    return shutil.copytree(tiny_folder(request.param), tmp_path / "model")


def rewritten(file, change):
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def refused(folder, told):
    for look in (read_configuration, load_flow_model):
        with pytest.raises(FlowModelError, match=told) as refusal:
            look(folder)
        assert "Fix: copy" in str(refusal.value) and len(str(refusal.value)) < 600 + len(str(folder))


def test_an_index_without_a_part_is_refused_by_its_name(folder):
    """Seen before: a KeyError while validating, or a page of the library's names while loading."""
    index = folder / "model_index.json"
    whole = index.read_text()
    family = json.loads(whole)["_class_name"]
    for part in ("scheduler", "transformer", "vae", *RULES[family].parts):
        rewritten(index, lambda content, part=part: content.pop(part))
        refused(folder, f"model_index.json names no {part}, which a {family} has")
        index.write_text(whole)
    for part in ("scheduler", "transformer", "vae"):
        rewritten(index, lambda content, part=part: content.update({part: [None, None]}))
        refused(folder, f"names no {part}")
        index.write_text(whole)
    read_configuration(folder)


def test_a_scheduler_that_says_nothing_is_refused(folder):
    """Seen before: it was taken with defaults, without a word."""
    (folder / "scheduler" / "scheduler_config.json").write_text("{}")
    refused(folder, "scheduler_config.json says nothing")


@pytest.mark.parametrize("layers", [100_000, 10**30])
def test_more_layers_than_tensors_are_refused_before_they_are_built(folder, layers):
    """Seen before: a network of 100,000 layers was built for minutes, and then compared with its weights."""
    found = 0
    for config in folder.glob("*/config.json"):
        whole = config.read_text()
        for name in json.loads(whole):
            if name in ("num_layers", "num_hidden_layers", "layers_per_block"):
                rewritten(config, lambda content, name=name: content.update({name: layers}))
                refused(folder, rf"config\.json says {name} = {layers}, and the weights beside it are \d+ tensors")
                config.write_text(whole)
                found += 1
    assert found


def test_a_part_within_a_configuration_is_counted_too(tiny_folder, tmp_path):
    folder = shutil.copytree(tiny_folder("qwen-image-2.1"), tmp_path / "model")
    config = folder / "text_encoder" / "config.json"
    rewritten(config, lambda content: content["text_config"].update(num_hidden_layers=100_000))
    refused(folder, "num_hidden_layers = 100000")


@pytest.mark.parametrize("shards", ["10GB", "40KB"])
def test_a_variant_that_is_alone_is_loaded_and_known_as_the_same_model(tiny_folder, tmp_path, shards):
    """Seen before: "holds other weights than its config.json describes", where nothing is wrong with the folder."""
    whole, folder = tiny_folder("sd3"), tmp_path / "model"
    pipeline = StableDiffusion3Pipeline.from_pretrained(whole)
    pipeline.save_pretrained(folder, variant="fp16", max_shard_size=shards)
    assert all(".fp16" in file.name for file in folder.glob("*/*.safetensors"))
    read_configuration(folder)
    one, other = load_flow_model(whole, device="cpu"), load_flow_model(folder, device="cpu")
    assert one.identity == other.identity, "by its tensors, whatever the files are called"
    for name, value in one.transformer.state_dict().items():
        assert torch.equal(value, other.transformer.state_dict()[name])
    broken = shutil.copytree(folder, tmp_path / "broken")
    part = max((broken / "transformer").glob("*.safetensors"))
    part.unlink()
    refused(broken, part.name if shards == "40KB" else "no .safetensors weights")


def test_what_a_library_logs_of_a_prompt_is_one_short_line(tiny_folder, monkeypatch):
    """Seen before: a prompt of 20 MB, which diffusers quotes where it cuts it off, made a log of 20 MB."""
    model = load_flow_model(tiny_folder("flux-dev"), lora_rank=2, lora_alpha=2.0, device="cpu")
    shown = io.StringIO()
    for handler in logging.getLogger("diffusers").handlers:
        monkeypatch.setattr(handler, "stream", shown, raising=False)
    monkeypatch.setattr(logging.getLogger("diffusers"), "level", logging.WARNING)
    model.embed(["a red circle " * 20_000], model.device)
    lines = shown.getvalue().splitlines()
    assert any("truncated" in line for line in lines) and max(map(len, lines)) < LONGEST_LINE + 200
