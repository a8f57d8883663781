"""ImageReward against BLIP's original architecture written out on the same tensors."""

from __future__ import annotations

import shutil

import pytest
import torch

from comfyui_otca.tests.tiny import reference_rewards
from comfyui_otca.trainer.rewards.image_reward import ImageReward

pytestmark = pytest.mark.anywhere


def tokens(folder, prompts):
    from transformers import BertTokenizerFast

    return BertTokenizerFast.from_pretrained(folder / "bert-base-uncased")(
        prompts, truncation=True, max_length=35
    ).input_ids


def expected(folder, pictures, prompts):
    """One picture at a time, without padding."""
    state = torch.load(folder / "ImageReward.pt")
    pixels = torch.stack([reference_rewards.centre_crop(picture, 32) for picture in pictures])
    return reference_rewards.image_reward(state, pixels, tokens(folder, prompts))


def scorer(folder, **settings):
    files = {"path": "ImageReward.pt", "config": "med_config.json", "tokenizer": "bert-base-uncased"}
    return ImageReward(**{name: str(folder / file) for name, file in files.items()}, **settings)


@pytest.fixture
def folder(tiny):
    return tiny / "image_reward"


def test_the_score_by_the_original_architecture(folder, images, pictures, prompts):
    judge = scorer(folder)
    scores = judge.score(images, prompts)
    torch.testing.assert_close(scores, expected(folder, pictures, prompts), atol=1e-5, rtol=1e-5)
    assert scores.std() > 0.1
    assert torch.equal(judge.score(images, prompts), scores), "dropout rests"
    scores = judge.score(images[[0, 0, 1]], ["a red circle", "a blue circle", "a red circle"])
    assert (scores[0] - scores[1]).abs() > 1e-2 and (scores[0] - scores[2]).abs() > 1e-2, "both matter"


def test_padding_changes_nothing(folder, images, pictures):
    told = ["", "red", "a red circle on a blue background " * 9]
    assert len(tokens(folder, told)[2]) == 35
    wanted = expected(folder, pictures, told)
    torch.testing.assert_close(scorer(folder).score(images, told), wanted, atol=1e-5, rtol=1e-5)


def test_scores_are_in_the_authors_standard_deviations(folder, tmp_path, images, prompts):
    copy = shutil.copytree(folder, tmp_path / "copy")
    state = torch.load(folder / "ImageReward.pt")
    state["mlp.layers.7.weight"].zero_()
    state["mlp.layers.7.bias"].fill_(0.16717362830052426 + 2 * 1.0333394966054072)
    torch.save(state, copy / "ImageReward.pt")
    torch.testing.assert_close(scorer(copy).score(images, prompts), torch.full((3,), 2.0))


def test_files_are_found_by_their_published_names(folder, tmp_path, monkeypatch, images, prompts):
    shutil.copytree(folder, tmp_path / "ImageReward")
    shutil.move(tmp_path / "ImageReward" / "bert-base-uncased", tmp_path / "bert-base-uncased")
    monkeypatch.setenv("OTCA_MODELS", str(tmp_path))
    judge = ImageReward(tokenizer="bert-base-uncased")
    assert torch.equal(judge.score(images, prompts), scorer(folder).score(images, prompts))
