"""PickScore against CLIPModel's joint forward, whose logits it is."""

from __future__ import annotations

import shutil

import pytest
import torch

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.tiny import reference_rewards
from comfyui_otca.tests.tiny import rewards as tiny_rewards
from comfyui_otca.trainer.rewards.base import RewardError, score
from comfyui_otca.trainer.rewards.pickscore import PickScore

from .conftest import truncated

pytestmark = pytest.mark.anywhere


def expected(tiny, pictures, prompts):
    """Logits by the whole model, with texts padded to the longest only."""
    from transformers import CLIPModel, CLIPTokenizerFast

    model = CLIPModel.from_pretrained(tiny / "pickscore").eval()
    pixels = torch.stack([reference_rewards.centre_crop(picture, 32) for picture in pictures])
    tokens = CLIPTokenizerFast.from_pretrained(tiny / "clip")(prompts, padding=True, return_tensors="pt")
    with torch.no_grad():
        return model(pixel_values=pixels, **tokens).logits_per_image.diagonal()


def scorer(tiny, **settings):
    return PickScore(path=str(tiny / "pickscore"), processor=str(tiny / "clip"), **settings)


def test_the_scaled_cosine(tiny, images, pictures, prompts):
    scores = scorer(tiny).score(images, prompts)
    torch.testing.assert_close(scores.cpu(), expected(tiny, pictures, prompts), atol=1e-5, rtol=1e-5)
    assert scores.abs().max() > 0.2, "a cosine times exp(2.66)"


def test_divided_by_26_as_some_trainers_do(tiny, images, pictures, prompts):
    judge = scorer(tiny)
    judge.rescale = 1 / 26
    torch.testing.assert_close(
        score([judge], images, prompts)[:, 0], expected(tiny, pictures, prompts) / 26, atol=1e-6, rtol=1e-5
    )


def test_a_batch_scores_as_its_pictures_do_alone(tiny, images, prompts):
    judge = scorer(tiny)
    alone = torch.cat([judge.score(images[row : row + 1], prompts[row : row + 1]) for row in range(3)])
    torch.testing.assert_close(judge.score(images, prompts), alone, atol=1e-5, rtol=1e-5)


def test_a_folder_with_its_own_tokenizer_needs_no_other(tiny, images, prompts, tmp_path):
    whole = tmp_path / "whole"
    shutil.copytree(tiny / "pickscore", whole)
    for name in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        shutil.copy(tiny / "clip" / name, whole)
    judge = PickScore(path=str(whole), processor="nowhere")
    assert torch.equal(judge.score(images, prompts), scorer(tiny).score(images.clone(), prompts))


def test_without_tokenizer_anywhere_the_second_folder_is_named(tiny):
    with pytest.raises(FileNotFoundError, match="model 'nowhere' was not found .no preprocessor_config.json"):
        PickScore(path=str(tiny / "pickscore"), processor="nowhere")


def test_a_tokenizer_of_another_model_is_refused(tiny, tmp_path):
    other = tiny_rewards.clip(tmp_path / "other")
    tiny_rewards.clip_tokenizer(other, vocabulary=600)
    with pytest.raises(RewardError, match="the tokenizer in .*other has 600 tokens where .*pickscore knows 567"):
        PickScore(path=str(tiny / "pickscore"), processor=str(other))


def test_weights_that_were_cut_off(tiny, tmp_path):
    shutil.copytree(tiny / "pickscore", tmp_path / "pickscore")
    (tmp_path / "pickscore" / "model.safetensors").unlink()
    truncated(tiny / "pickscore" / "model.safetensors", tmp_path / "pickscore")
    with pytest.raises(RewardError, match="pickscore cannot be loaded as a CLIPModel"):
        PickScore(path=str(tmp_path / "pickscore"), processor=str(tiny / "clip"))


def test_its_node_says_what_is_missing(tiny):
    node = NODE_CLASS_MAPPINGS["OTCA_RewardPickScore"]
    assert node.VALIDATE_INPUTS(path=str(tiny / "pickscore"), processor=str(tiny / "clip")) is True
    wrong = node.VALIDATE_INPUTS(path=str(tiny / "pickscore"), processor="nowhere")
    assert wrong.startswith("processor: model 'nowhere' was not found (no preprocessor_config.json")
    assert node.VALIDATE_INPUTS(path=None, processor="nowhere") is True, "linked: known when the graph runs"
    assert node.VALIDATE_INPUTS(path="nowhere").startswith("path: model 'nowhere' was not found (no config.json")
    [judge] = node().build(path=str(tiny / "pickscore"), processor=str(tiny / "clip"), coefficient=1.0, rescale=1 / 26)
    assert judge.name == "pickscore" and judge.rescale == 1 / 26
