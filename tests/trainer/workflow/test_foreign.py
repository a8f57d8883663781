"""What a graph needs of ComfyUI."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image, PngImagePlugin

from comfyui_otca.trainer.workflow import foreign
from comfyui_otca.trainer.workflow.reading import read_canvas


class Loader:
    FOREIGN, PACK = True, "ComfyUI-GGUF"

    @classmethod
    def folder(cls, name):
        return Path("/models/diffusion_models") if name == "unet_name" else None


class Native:
    NEEDS_COMFYUI = True


GRAPH = {
    "1": {"class_type": "UNETLoader", "inputs": {"unet_name": "a.safetensors", "weight_dtype": "default"}},
    "2": {"class_type": "ModelSamplingFlux", "inputs": {"model": ["1", 0]}},
    "3": {"class_type": "OTCA_MakeTrainable", "inputs": {"model": ["2", 0]}},
    "4": {"class_type": "OTCA_TunedModel", "inputs": {"model": ["3", 0]}},
    "5": {"class_type": "KSampler", "inputs": {"model": ["4", 0]}},
    "6": {"class_type": "VAELoader", "inputs": {"vae_name": "b.safetensors"}},
    "7": {"class_type": "PreviewImage", "inputs": {"images": ["5", 0], "vae": ["6", 0]}},
}


def test_only_what_ours_need():
    assert foreign.foreign(GRAPH) == ["1", "2"]
    assert foreign.needs_comfyui(GRAPH, {}) == ["UNETLoader", "ModelSamplingFlux"]
    assert list(foreign.headless(GRAPH)) == ["1", "2", "3", "4"]


def test_a_class_of_ours_may_need_it_too():
    graph = {"3": GRAPH["3"]}
    assert foreign.needs_comfyui(graph, {"OTCA_MakeTrainable": Native}) == ["OTCA_MakeTrainable"]
    assert foreign.needs_comfyui(graph, {}) == [] and foreign.needs(graph, {}) is None


def test_files_and_packs():
    needs = foreign.needs(GRAPH, {"UNETLoader": Loader})
    assert needs == foreign.Needs(
        ("UNETLoader", "ModelSamplingFlux"), (("diffusion_models", "a.safetensors"),), ("ComfyUI-GGUF",)
    )


def canvas(*models):
    return {"nodes": [{"id": 1, "properties": {"models": list(models)}}]}


def test_addresses_also_of_subgraphs():
    inner = canvas({"name": "b", "url": "https://example.org/b", "directory": "vae"})
    outer = canvas({"name": "a", "url": "https://example.org/a", "directory": "loras"})
    outer["definitions"] = {"subgraphs": [inner]}
    assert foreign.addresses(outer) == {"a": "https://example.org/a", "b": "https://example.org/b"}


@pytest.mark.parametrize(
    "url", [None, 3, "javascript:alert(1)", "file:///etc/passwd", "https://a\x1b[31m", "http://[a"]
)
def test_what_is_no_address(url):
    assert foreign.addresses(canvas({"name": "a", "url": url})) == {}


@pytest.mark.parametrize(
    "content",
    [None, [], {}, {"nodes": 3}, {"nodes": [3, {"properties": []}, {"properties": {"models": 3}}]}, canvas(3, {})],
)
def test_a_canvas_of_another_form(content):
    assert foreign.addresses(content) == {}
    assert foreign.addresses({"definitions": {"subgraphs": [content, 3]}}) == {}


def test_the_canvas_of_a_png(tmp_path):
    chunks = PngImagePlugin.PngInfo()
    chunks.add_text("prompt", json.dumps(GRAPH))
    chunks.add_text("workflow", json.dumps(canvas({"name": "a", "url": "https://example.org/a"})))
    Image.new("RGB", (1, 1)).save(tmp_path / "a.png", pnginfo=chunks)
    Image.new("RGB", (1, 1)).save(tmp_path / "b.png")
    assert foreign.addresses(read_canvas(tmp_path / "a.png")) == {"a": "https://example.org/a"}
    assert read_canvas(tmp_path / "b.png") is None and read_canvas(tmp_path / "c.json") is None
