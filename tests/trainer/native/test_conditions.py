"""Prompts as ComfyUI's samplers hand them on: what can share a call, and what rides along."""

from __future__ import annotations

import torch

from comfyui_otca.trainer.native import conditions
from comfyui_otca.trainer.native.conditions import Encodings, NativeCondition, Prompt
from comfyui_otca.trainer.native.sources import Asked


class Regular:
    """As comfy.conds.CONDRegular: one row."""

    def __init__(self, cond):
        self.cond = cond


class Other(Regular):
    pass


def prompt(length=4, **entries):
    rows = {"c_crossattn": Regular(torch.full((1, length, 2), float(length)))}
    return Prompt({"model": {"positive": [{"model_conds": rows, **entries}]}})


class Clip:
    def __init__(self):
        self.asked = []

    def tokenize(self, text):
        return text

    def encode_from_tokens_scheduled(self, text):
        self.asked.append(text)
        with torch.inference_mode():
            return [[torch.full((1, len(text), 2), float(len(text))), {"pooled_output": torch.ones(1, 2)}]]


def test_rows_keep_the_numbers_of_their_prompts():
    condition = NativeCondition((prompt(), prompt()), (0, 0, 1, 1), {})
    assert condition.rows(torch.tensor([3, 0])).index == (1, 0)


def test_prompts_of_one_form_share_a_call():
    assert prompt().kind("model") == prompt().kind("model") is not None
    assert prompt(4).kind("model") != prompt(5).kind("model")


def test_what_holds_for_a_part_serves_alone():
    assert prompt(area=(1, 1, 0, 0)).kind("model") is None
    assert prompt(timestep_start=0.5).kind("model") is None
    two = Prompt({"model": {"positive": prompt().processed["model"]["positive"] * 2}})
    assert two.kind("model") is None
    shared = Prompt({"model": {"positive": [{"model_conds": {"n": Regular(3)}}]}})
    assert shared.kind("model") is None


def test_another_way_of_joining_is_another_kind():
    one, other = prompt(), prompt()
    other.processed["model"]["positive"][0]["model_conds"]["c_crossattn"] = Other(torch.zeros(1, 4, 2))
    assert one.kind("model") != other.kind("model")


def test_together_they_are_rows_below_each_other():
    one, other = prompt(), prompt()
    other.processed["model"]["positive"][0]["model_conds"]["c_crossattn"].cond = torch.zeros(1, 4, 2)
    [cond] = conditions.together([one, other, one], "model")["positive"]
    rows = cond["model_conds"]["c_crossattn"]
    assert type(rows) is Regular and rows.cond[:, 0, 0].tolist() == [4.0, 0.0, 4.0]
    assert conditions.together([one, one], "model") is one.processed["model"], "ComfyUI repeats a single row itself"


def test_scheduled_is_what_holds_at_some_noise_levels():
    assert not prompt().is_scheduled
    assert prompt(timestep_end=0.5).is_scheduled and prompt(timestep_start=0.0).is_scheduled


def test_each_prompt_is_encoded_once_and_as_an_ordinary_tensor():
    clip = Clip()
    encodings = Encodings(clip)
    first = encodings.of([Asked("a"), Asked("bb"), Asked("a")])
    again = encodings.of([Asked("bb")])
    assert clip.asked == ["a", "bb"] and first[0] is first[2] and again[0] is first[1]
    [[embedding, entries]] = first[1]
    assert not embedding.is_inference() and not entries["pooled_output"].is_inference()
    assert embedding.shape == (1, 2, 2)


def test_the_longest_unused_are_forgotten(monkeypatch):
    monkeypatch.setattr(conditions, "MOST_BYTES", 60)  # "a" has 8 + 8 bytes, "bbbb" 32 + 8
    clip = Clip()
    encodings = Encodings(clip)
    encodings.of([Asked("a")])
    encodings.of([Asked("bbbb")])
    encodings.of([Asked("cc")])  # 24 more: "a" and then "bbbb" have to go
    encodings.of([Asked("cc"), Asked("bbbb"), Asked("a")])
    assert clip.asked == ["a", "bbbb", "cc", "bbbb", "a"] or clip.asked == ["a", "bbbb", "cc", "a"]


def test_entries_are_put_beside_the_embeddings():
    conditioning = [[torch.ones(1), {"a": 1}], [torch.ones(1), {}]]
    keyed = conditions.with_keys(conditioning, {"guidance": 2.0})
    assert [entries for _, entries in keyed] == [{"a": 1, "guidance": 2.0}, {"guidance": 2.0}]
    assert conditioning[0][1] == {"a": 1}


def test_what_rides_along_is_what_the_text_encoder_does_not_give():
    reference = [torch.ones(1, 4)]
    given = [[torch.ones(1), {"pooled_output": torch.ones(1), "reference_latents": reference, "guidance": 2.5}]]
    encoded = [[torch.ones(1), {"pooled_output": torch.ones(1)}]]
    found = conditions.extra_keys(given, encoded)
    assert found.keys() == {"reference_latents", "guidance"} and found["guidance"] == 2.5
    assert (
        torch.equal(found["reference_latents"][0], reference[0]) and found["reference_latents"][0] is not reference[0]
    )
    assert conditions.extra_keys([], encoded) == {}


def test_an_ordinary_copy_of_what_was_made_in_inference_mode():
    with torch.inference_mode():
        value = {"a": [torch.ones(2)], "b": (torch.zeros(1), "text"), "c": 3}
    copy = conditions.ordinary_copy(value)
    assert not copy["a"][0].is_inference() and type(copy["b"]) is tuple and copy["b"][1] == "text" and copy["c"] == 3
    assert torch.equal(copy["a"][0], torch.ones(2)) and copy["a"][0].data_ptr() != value["a"][0].data_ptr()
