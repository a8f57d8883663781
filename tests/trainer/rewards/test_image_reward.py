"""ImageReward against BLIP's original architecture written out on the same tensors."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.tiny import reference_rewards
from comfyui_otca.trainer.rewards.base import RewardError
from comfyui_otca.trainer.rewards.image_reward import MEAN, STD, ImageReward

from .conftest import truncated

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


@pytest.fixture
def copy(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    return tmp_path / "copy"


def test_the_score_by_the_original_architecture(folder, images, pictures, prompts):
    scores = scorer(folder).score(images, prompts)
    torch.testing.assert_close(scores, expected(folder, pictures, prompts), atol=1e-5, rtol=1e-5)
    assert scores.std() > 0.1


def test_both_picture_and_prompt_matter(folder, images):
    judge = scorer(folder)
    scores = judge.score(images[[0, 0, 1]], ["a red circle", "a blue circle", "a red circle"])
    assert (scores[0] - scores[1]).abs() > 1e-2 and (scores[0] - scores[2]).abs() > 1e-2


def test_padding_changes_nothing(folder, images, pictures):
    told = ["", "red", "a red circle on a blue background " * 9]
    assert len(tokens(folder, told)[2]) == 35
    torch.testing.assert_close(
        scorer(folder).score(images, told), expected(folder, pictures, told), atol=1e-5, rtol=1e-5
    )


def test_a_batch_scores_as_its_pictures_do_alone(folder, images, prompts):
    judge = scorer(folder, batch_size=1)
    alone = judge.score(images, prompts)
    judge.batch_size = 0
    torch.testing.assert_close(judge.score(images, prompts), alone, atol=1e-5, rtol=1e-5)


def test_scores_are_in_the_authors_standard_deviations(folder, copy, images, prompts):
    state = torch.load(folder / "ImageReward.pt")
    state["mlp.layers.7.weight"].zero_()
    state["mlp.layers.7.bias"].fill_(0.16717362830052426 + 2 * 1.0333394966054072)
    torch.save(state, copy / "ImageReward.pt")
    torch.testing.assert_close(scorer(copy).score(images, prompts), torch.full((3,), 2.0))
    assert (MEAN, STD) == (0.16717362830052426, 1.0333394966054072)


def test_dropout_rests(folder, images, prompts):
    judge = scorer(folder)
    assert torch.equal(judge.score(images, prompts), judge.score(images, prompts))


def test_files_are_found_by_their_published_names(folder, tmp_path, monkeypatch, images, prompts):
    shutil.copytree(folder, tmp_path / "ImageReward")
    shutil.move(tmp_path / "ImageReward" / "bert-base-uncased", tmp_path / "bert-base-uncased")
    monkeypatch.setenv("OTCA_MODELS", str(tmp_path))
    judge = ImageReward(tokenizer="bert-base-uncased")
    assert torch.equal(judge.score(images, prompts), scorer(folder).score(images, prompts))


def test_another_file_is_refused(folder, copy, tiny):
    shutil.copy(tiny / "hps.pt", copy / "ImageReward.pt")
    with pytest.raises(
        RewardError, match=r"is not ImageReward: it has no 'blip\..*ImageReward\.pt \(1\.8 GB\) from THUDM/ImageReward"
    ):
        scorer(copy)


@pytest.mark.parametrize(
    ("key", "named"),
    [
        ("blip.visual_encoder.blocks.1.attn.qkv.weight", r"encoder\.layers\.1\.self_attn\.qkv\.weight"),
        (
            "blip.text_encoder.encoder.layer.0.crossattention.self.key.bias",
            r"encoder\.layer\.0\.crossattention\.self\.key\.bias",
        ),
        ("mlp.layers.4.weight", r"mlp\.layers\.4\.weight"),
    ],
)
def test_a_missing_tensor_is_named(folder, copy, key, named):
    state = torch.load(folder / "ImageReward.pt")
    del state[key]
    torch.save(state, copy / "ImageReward.pt")
    with pytest.raises(RewardError, match=rf"has no '{named}' \(1 of"):
        scorer(copy)


def test_a_file_that_was_cut_off(folder, copy):
    (copy / "ImageReward.pt").unlink()
    truncated(folder / "ImageReward.pt", copy)
    with pytest.raises(RewardError, match=r"ImageReward\.pt \([\d,]+ bytes\) is not ImageReward: it cannot be read"):
        scorer(copy)


def test_a_configuration_of_another_size_does_not_fit(copy):
    told = json.loads((copy / "med_config.json").read_text())
    (copy / "med_config.json").write_text(json.dumps({**told, "intermediate_size": 128}))
    with pytest.raises(RewardError, match=r"does not fit its layout .*intermediate\.dense"):
        scorer(copy)


def test_a_configuration_that_lacks_something(copy):
    (copy / "med_config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(RewardError, match=r"med_config\.json .*has no 'vocab_size'"):
        scorer(copy)


def test_a_tokenizer_of_another_model_is_refused(copy):
    vocabulary = copy / "bert-base-uncased" / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text() + "".join(f"word{number}\n" for number in range(9)))
    with pytest.raises(RewardError, match="bert-base-uncased has 74 tokens where .* knows 67"):
        scorer(copy)


def test_its_node_says_what_is_missing(folder):
    node = NODE_CLASS_MAPPINGS["OTCA_RewardImageReward"]
    names = {"path": "ImageReward.pt", "config": "med_config.json", "tokenizer": "bert-base-uncased"}
    there = {name: str(folder / file) for name, file in names.items()}
    assert node.VALIDATE_INPUTS(**there) is True
    for name in there:
        assert node.VALIDATE_INPUTS(**{**there, name: "nowhere"}).startswith(f"{name}: ")
    [judge] = node().build(**there, coefficient=1.0)
    assert judge.name == "image_reward"
