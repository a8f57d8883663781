"""Make Trainable and Tuned Model as far as they can be tried without ComfyUI; what they make is tested in tests/comfyui/."""

from __future__ import annotations

import math

import pytest

from comfyui_otca.nodes.native import EmbeddedModel, MakeTrainable, TunedModel


@pytest.mark.parametrize("rank", [0, -1, 1025])
def test_a_rank_that_no_adapter_has_is_refused_before_anything_runs(rank):
    assert f"lora_rank = {rank} is out of range. Fix: give one from 1 to 1024" in MakeTrainable.VALIDATE_INPUTS(
        "", "", rank
    )


def test_only_one_place_to_begin():
    message = MakeTrainable.VALIDATE_INPUTS("a-run", "an-adapter", 16)
    assert message.startswith("start_from: resume_run = 'a-run' already says where to begin. Fix: ")


def test_an_adapter_that_is_not_there_is_named(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    message = MakeTrainable.VALIDATE_INPUTS("", "nowhere.safetensors", 16)
    assert message.startswith("start_from: guide 'nowhere.safetensors' was not found") and "Fix: " in message


def test_nothing_said_is_a_fresh_adapter():
    assert MakeTrainable.VALIDATE_INPUTS("", "", 16) is True and MakeTrainable.VALIDATE_INPUTS("", "", None) is True


def test_a_model_of_the_diffusers_route_is_refused_with_the_way_to_use_it():
    with pytest.raises(ValueError, match="it comes from Load Flow Model.*Fix: save it with Save LoRA"):
        TunedModel().tuned(object())


def test_the_tuned_model_is_made_anew_each_time_since_the_model_changes_in_place():
    assert math.isnan(TunedModel.IS_CHANGED(model=object()))


def test_without_comfyui_it_says_what_to_do():
    message = EmbeddedModel.VALIDATE_INPUTS("shapes-flux")
    assert "ComfyUI is not here" in message and "Fix: " in message and "--comfyui" in message
    with pytest.raises(ValueError, match="ComfyUI is not here"):
        EmbeddedModel().load("shapes-flux")


@pytest.mark.parametrize("name", ["shapes-clip", "../shapes-flux"])
def test_no_other_folder_is_read(name):
    assert "is no embedded model" in EmbeddedModel.VALIDATE_INPUTS(name)
    with pytest.raises(ValueError, match="Fix: choose shapes-flux or scenes-flux"):
        EmbeddedModel().load(name)


def test_a_linked_name_is_judged_when_the_graph_runs():
    assert EmbeddedModel.VALIDATE_INPUTS(None) is True
