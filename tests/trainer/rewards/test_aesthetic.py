"""LAION's aesthetic predictor against its head written out, on CLIPModel's own picture features."""

from __future__ import annotations

import pytest
import torch

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.tiny import reference_rewards
from comfyui_otca.tests.tiny import rewards as tiny_rewards
from comfyui_otca.trainer.rewards.aesthetic import Aesthetic
from comfyui_otca.trainer.rewards.base import RewardError

from .conftest import truncated

pytestmark = pytest.mark.anywhere


def expected(tiny, pictures):
    from transformers import CLIPModel

    model = CLIPModel.from_pretrained(tiny / "clip").eval()
    pixels = torch.stack([reference_rewards.centre_crop(picture, 32) for picture in pictures])
    with torch.no_grad():
        features = model.visual_projection(model.vision_model(pixels).pooler_output)
        unit = features / features.square().sum(1, keepdim=True).sqrt()
        return reference_rewards.head(torch.load(tiny / "aesthetic.pth"), unit)


def scorer(tiny, model="clip"):
    return Aesthetic(path=str(tiny / "aesthetic.pth"), model=str(tiny / model))


def test_the_head_on_normalised_features(tiny, images, pictures, prompts):
    scores = scorer(tiny).score(images, prompts)
    torch.testing.assert_close(scores, expected(tiny, pictures), atol=1e-6, rtol=1e-5)
    assert scores.std() > 1e-4


def test_the_prompt_plays_no_part(tiny, images, prompts):
    assert torch.equal(scorer(tiny).score(images, prompts), scorer(tiny).score(images.clone(), ["other"] * 3))


def test_a_batch_scores_as_its_pictures_do_alone(tiny, images, prompts):
    judge = scorer(tiny)
    alone = torch.cat([judge.score(images[row : row + 1], prompts[row : row + 1]) for row in range(3)])
    torch.testing.assert_close(judge.score(images, prompts), alone)


@pytest.mark.host  # to the bit, which the place of memory decides
def test_the_same_head_in_safetensors(tiny, images, prompts, tmp_path):
    from safetensors.torch import save_file

    save_file(torch.load(tiny / "aesthetic.pth"), tmp_path / "head.safetensors")
    judge = Aesthetic(path=str(tmp_path / "head.safetensors"), model=str(tiny / "clip"))
    assert torch.equal(judge.score(images, prompts), scorer(tiny).score(images.clone(), prompts))


def test_the_published_name_is_found_in_a_model_folder(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("OTCA_MODELS", str(tmp_path))
    tiny_rewards.aesthetic(tmp_path / "sac+logos+ava1-l14-linearMSE.pth")
    assert Aesthetic(model=str(tiny / "clip")).head[0].in_features == 768


def test_a_clip_of_another_width_is_refused(tiny, tmp_path):
    narrow = tiny_rewards.clip(tmp_path / "narrow", projection=512)
    with pytest.raises(RewardError, match=r"gives 512 features where .* reads 768.*openai/clip-vit-large-patch14"):
        scorer(tiny, narrow)


def test_a_head_of_another_width_is_refused(tiny, tmp_path):
    wide = tiny_rewards.aesthetic(tmp_path / "wide.pth", inputs=512)
    with pytest.raises(RewardError, match=r"wide\.pth .*does not fit its layout.*sac\+logos\+ava1-l14-linearMSE\.pth"):
        Aesthetic(path=str(wide), model=str(tiny / "clip"))


def test_another_file_is_refused(tiny):
    with pytest.raises(
        RewardError,
        match=r"hps\.pt .*is not LAION's aesthetic predictor v2: it has no 'layers\.0\.bias' .*3,714,759 bytes",
    ):
        Aesthetic(path=str(tiny / "hps.pt"), model=str(tiny / "clip"))


def test_a_file_that_was_cut_off(tiny, tmp_path):
    cut = truncated(tiny / "aesthetic.pth", tmp_path)
    with pytest.raises(RewardError, match=r"cannot be read.*improved-aesthetic-predictor"):
        Aesthetic(path=str(cut), model=str(tiny / "clip"))


def test_its_node_says_what_is_missing(tiny):
    node = NODE_CLASS_MAPPINGS["OTCA_RewardAesthetic"]
    there = {"path": str(tiny / "aesthetic.pth"), "model": str(tiny / "clip")}
    assert node.VALIDATE_INPUTS(**there) is True
    assert node.VALIDATE_INPUTS(path=None, model=None) is True
    assert "path: " in node.VALIDATE_INPUTS(**{**there, "path": "nowhere.pth"})
    assert "model: model 'nowhere'" in node.VALIDATE_INPUTS(**{**there, "model": "nowhere"})
    [judge] = node().build(**there, coefficient=1.0, device="cpu", dtype="auto", batch_size=1, offload=False)
    assert judge.name == "aesthetic" and judge.batch_size == 1
