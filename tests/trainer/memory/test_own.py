"""What models are made for: as our templates train them, and what is said of another size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comfyui_otca.trainer.memory import own

API = Path(__file__).resolve().parents[3] / "workflows" / "api"
LARGE = ["z_image", "qwen_image", "krea2", "flux2_klein", "flux1", "wan22_5b", "wan22_14b"]


def graph(name):
    return json.loads((API / f"{name}.json").read_text(encoding="utf-8"))


def sampler(content):
    return next((node, entry) for node, entry in content.items() if entry["class_type"] in own.TRAJECTORY_NODES)


@pytest.mark.parametrize("name", [*LARGE, "otca", "quickstart", "quickstart_comfyui", "preference_pairs"])
def test_a_model_is_made_for_what_its_template_says(name):
    content = graph(name)
    node, entry = sampler(content)
    values = own.of(content, node).values(entry["class_type"])
    assert values.keys() >= {"width", "height", "guidance"} and len(values) == 4
    assert values == {name: entry["inputs"][name] for name in values}
    prompts = own.of(content, node).values("OTCA_PromptDataset")
    datasets = [entry["inputs"] for entry in content.values() if entry["class_type"] == "OTCA_PromptDataset"]
    assert name in LARGE and not prompts or all(dataset["file"] == prompts["file"] for dataset in datasets)


def test_variants_and_models_that_are_not_listed():
    """Base models are not sampled as the distilled ones; a file of somebody's own has no size of ours."""
    assert own.of_file("sub\\Z_Image_bf16.safetensors").values("OTCA_SDESampler") == {"width": 1024, "height": 1024}
    assert own.of_file("flux-2-klein-base-4b.safetensors").steps is None
    assert own.of_file("flux1-schnell.safetensors").steps == 4
    assert own.of_file("mine.safetensors") is None
    content = graph("z_image")
    content["1"]["inputs"]["unet_name"] = "mine.safetensors"
    assert own.of(content, "9") is None
    content = graph("otca")
    loader = next(entry for entry in content.values() if entry["class_type"] == "OTCA_LoadFlowModel")
    loader["inputs"]["path"] = "elsewhere"
    assert own.of(content, sampler(content)[0]) is None


def test_which_sizes_are_far():
    """768 x 768 has 0.5625 of the pixels of 1024 x 1024, 832 x 832 has 0.66, 1536 x 1536 has 2.25."""
    made = own.of_file("flux1-dev.safetensors")
    assert [bool(own.far(made, side, side)) for side in (512, 768, 832, 1024, 1408, 1536)] == [1, 1, 0, 0, 0, 1]
    assert "512 x 512 is far from 1024 x 1024" in own.far(made, 512, 512)
    assert own.far(own.of_file("wan2.2_ti2v_5B_fp16.safetensors"), 1280, 704) == ""
