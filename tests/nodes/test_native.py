"""Make Trainable and Tuned Model as far as they can be tried without ComfyUI; what they make is tested in tests/comfyui/."""

from __future__ import annotations

import math

import pytest

from comfyui_otca.nodes.native import EmbeddedModel, MakeTrainable, TunedModel


def test_what_a_graph_alone_shows_to_be_wrong_is_named(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    validate = MakeTrainable.VALIDATE_INPUTS
    assert validate("", "", 16) is True and validate("", "", None) is True, "a fresh adapter"
    for rank in (0, -1, 1025):
        assert f"lora_rank = {rank} is out of range. Fix: give one from 1 to 1024" in validate("", "", rank)
    both = validate("a-run", "an-adapter", 16)
    assert both.startswith("start_from: resume_run = 'a-run' already says where to begin. Fix: ")
    nowhere = validate("", "nowhere.safetensors", 16)
    assert nowhere.startswith("start_from: adapter 'nowhere.safetensors' was not found") and "Fix: " in nowhere


def test_a_model_of_the_diffusers_route_is_refused_with_the_way_to_use_it():
    with pytest.raises(ValueError, match="it comes from Load Flow Model.*Fix: save it with Save LoRA"):
        TunedModel().tuned(object())
    assert math.isnan(TunedModel.IS_CHANGED(model=object())), "made anew each time: the model changes in place"


def test_without_comfyui_the_embedded_model_says_what_to_do():
    message = EmbeddedModel.VALIDATE_INPUTS("shapes-flux")
    assert "ComfyUI is not here" in message and "Fix: " in message and "--comfyui" in message
    with pytest.raises(ValueError, match="ComfyUI is not here"):
        EmbeddedModel().load("shapes-flux")


def test_no_other_folder_is_read():
    for name in ("shapes-clip", "../shapes-flux"):
        assert "is not an embedded model" in EmbeddedModel.VALIDATE_INPUTS(name)
        with pytest.raises(ValueError, match="Fix: choose shapes-flux or scenes-flux"):
            EmbeddedModel().load(name)
    assert EmbeddedModel.VALIDATE_INPUTS(None) is True, "a linked name is judged when the graph runs"
