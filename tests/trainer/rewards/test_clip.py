"""CLIP-T, the aesthetic head and PickScore against CLIPModel's own forward, which rewards on one checkpoint share."""

from __future__ import annotations

import math
import shutil

import pytest
import safetensors.torch
import torch

from comfyui_otca.tests.tiny import reference_rewards
from comfyui_otca.trainer.networks.features import Clip
from comfyui_otca.trainer.rewards.base import check_paths, score, score_stack, score_with_gradient
from comfyui_otca.trainer.rewards.clip import Aesthetic, ClipDirection, ClipT, PickScore
from comfyui_otca.trainer.types import Prompt

# --- CLIP-T -----------------------------------------------------------------------------------------------------------

pytestmark = pytest.mark.anywhere


def reference(folder, tokenizer, pictures, prompts):
    """CLIPModel's own joint forward, of pixels cropped by hand and texts padded to the longest only; and its scale."""
    from transformers import CLIPModel, CLIPTokenizerFast

    model = CLIPModel.from_pretrained(folder).eval()
    pixels = torch.stack([reference_rewards.centre_crop(picture, 32) for picture in pictures])
    tokens = CLIPTokenizerFast.from_pretrained(tokenizer)(prompts, padding=True, return_tensors="pt")
    with torch.no_grad():
        return model(pixel_values=pixels, **tokens), model.logit_scale.exp()


def test_scores_are_those_of_clip_model(tiny, images, pictures, prompts):
    out, scale = reference(tiny / "clip", tiny / "clip", pictures, prompts)
    with torch.no_grad():
        head = reference_rewards.head(torch.load(tiny / "aesthetic.pth"), out.image_embeds)  # normalised ones
    logits = reference(tiny / "pickscore", tiny / "clip", pictures, prompts)[0].logits_per_image.diagonal()
    cosines = (out.logits_per_image / scale).diagonal()
    for judge, expected in (
        (ClipT(model=str(tiny / "clip")), cosines),
        (aesthetic(tiny), head),
        (pickscore(tiny), logits),
    ):
        scores = judge.score(images, prompts)
        torch.testing.assert_close(scores.cpu(), expected, atol=1e-5, rtol=1e-5)
        assert scores.std() > 1e-4, judge.name
    assert logits.abs().max() > 0.2, "a cosine times exp(2.66)"


def test_the_embedded_judge_says_what_it_said():
    """Numbers of the weights that are committed."""
    images = torch.rand(3, 40, 56, 3, generator=torch.Generator().manual_seed(0))
    scores = ClipT().score(images, ["a red circle", "a blue square on a green background", "zebra"])
    torch.testing.assert_close(scores.cpu(), torch.tensor([-0.214423, 0.524375, -0.152637]), atol=1e-5, rtol=0)


def test_a_prompt_is_encoded_once_and_cut_at_77_tokens(tiny, images, monkeypatch):
    scorer = ClipT(model=str(tiny / "clip"))
    asked, model = [], scorer.network.model
    encode = model.get_text_features
    monkeypatch.setattr(
        model, "get_text_features", lambda **tokens: asked.append(len(tokens["input_ids"])) or encode(**tokens)
    )
    first = scorer.score(images, ["red", "blue", "red"])
    second = scorer.score(images.flip(0), ["red", "blue", "red"])
    assert asked == [2]
    torch.testing.assert_close(first.flip(0), second)
    long = "red circle " * 40
    scores = scorer.score(images[[0, 0]], [long, long + "blue square"])
    assert scores[0] == scores[1]


def test_rewards_on_one_checkpoint_share_one_forward(tiny, images, prompts, monkeypatch):
    forwards, features = [], Clip.pictures
    monkeypatch.setattr(Clip, "pictures", lambda self, batch: forwards.append(len(batch)) or features(self, batch))
    stack = [
        ClipT(model=str(tiny / "clip")),
        Aesthetic(path=str(tiny / "aesthetic.pth"), model=str(tiny / "clip" / ".." / "clip")),
    ]
    groups = torch.arange(3)
    scores = score_stack(stack, images.clone(), prompts, groups)
    assert forwards == [3]
    assert scores.values.isfinite().all()
    video = images[:, None].expand(3, 4, *images.shape[1:]).clone()
    score_stack(stack, video, prompts, groups)
    assert forwards == [3, 12], "the frames of a video too"


def test_scores_of_a_video_are_the_mean_over_its_frames(tiny, images, prompts):
    scorer = ClipT(model=str(tiny / "clip"))
    each = torch.stack([scorer.score(images[frame].expand(3, -1, -1, -1).clone(), prompts) for frame in range(3)])
    videos = torch.tensor(scorer.score_videos(images.expand(3, *images.shape), prompts))
    torch.testing.assert_close(videos, each.mean(0).cpu())


def test_in_half_precision_scores_are_near(tiny, images, prompts):
    exact = ClipT(model=str(tiny / "clip")).score(images, prompts)
    for dtype in ("bfloat16", "float16"):
        scorer = ClipT(model=str(tiny / "clip"), dtype=dtype)
        scores = scorer.score(images, prompts)
        assert scorer.network.model.dtype == getattr(torch, dtype) and scores.dtype == torch.float32
        torch.testing.assert_close(scores, exact, atol=0.02, rtol=0)


# --- the aesthetic head -----------------------------------------------------------------------------------------------


def aesthetic(tiny, model="clip"):
    return Aesthetic(path=str(tiny / "aesthetic.pth"), model=str(tiny / model))


@pytest.mark.host  # to the bit, which the place of memory decides
def test_the_same_head_in_safetensors_and_by_its_published_name(tiny, images, prompts, tmp_path, monkeypatch):
    from safetensors.torch import save_file

    expected = aesthetic(tiny).score(images.clone(), prompts)
    save_file(torch.load(tiny / "aesthetic.pth"), tmp_path / "head.safetensors")
    shutil.copy(tiny / "aesthetic.pth", tmp_path / "sac+logos+ava1-l14-linearMSE.pth")
    monkeypatch.setenv("OTCA_MODELS", str(tmp_path))
    for settings in ({"path": str(tmp_path / "head.safetensors")}, {}):
        judge = Aesthetic(**settings, model=str(tiny / "clip"))
        assert torch.equal(judge.score(images.clone(), ["no matter"] * 3), expected)


# --- PickScore --------------------------------------------------------------------------------------------------------


def pickscore(tiny, **settings):
    return PickScore(path=str(tiny / "pickscore"), processor=str(tiny / "clip"), **settings)


def test_a_folder_with_its_own_tokenizer_needs_no_other(tiny, images, prompts, tmp_path):
    whole = tmp_path / "whole"
    shutil.copytree(tiny / "pickscore", whole)
    for name in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        shutil.copy(tiny / "clip" / name, whole)
    judge = PickScore(path=str(whole), processor="nowhere")
    assert torch.equal(judge.score(images, prompts), pickscore(tiny).score(images.clone(), prompts))


def test_the_scale_is_the_filed_one_in_every_precision(tiny):
    """log(100) in bfloat16 is 4.59375, whose exponential is 98.86."""
    state = safetensors.torch.load_file(tiny / "pickscore" / "model.safetensors")
    expected = math.exp(float(state["logit_scale"]))
    for dtype in ("float32", "bfloat16"):
        assert pickscore(tiny, dtype=dtype).scale == pytest.approx(expected, rel=1e-7)
    assert abs(float(state["logit_scale"].bfloat16().float().exp()) - expected) > 1e-3 * expected, (
        "which rounding would show"
    )


# --- direction --------------------------------------------------------------------------------------------------------


def test_direction_is_how_the_picture_changed_against_how_its_texts_do(tiny, images, pictures, prompts):
    """By CLIPModel's own normalised points, with the first picture as the source of all."""
    out, _ = reference(tiny / "clip", tiny / "clip", pictures, prompts)
    texts = reference(tiny / "clip", tiny / "clip", pictures[:2], ["a red circle", "a blue square"])[0].text_embeds
    judge = ClipDirection(model=str(tiny / "clip"), source=images[:1])
    lines = [Prompt("make it blue", {"source_text": "a red circle", "target_text": "a blue square"})] * len(images)
    expected = torch.nn.functional.cosine_similarity(out.image_embeds - out.image_embeds[:1], texts[1:] - texts[:1])
    found = score([judge], images, lines)[:, 0]
    torch.testing.assert_close(found[1:], expected[1:], atol=1e-4, rtol=1e-4)
    assert found[0].abs() < 1e-3 and found[1:].std() > 1e-3, "the source itself went nowhere"
    plain = [Prompt("a blue square", {"source_text": "a red circle"})] * len(images)
    torch.testing.assert_close(score([judge], images, plain)[:, 0], found)


def test_direction_applies_where_a_line_says_what_its_source_shows(tiny, images):
    judge = ClipDirection(model=str(tiny / "clip"), source=images[:1])
    lines = ["a dog", *[Prompt("a dog", {"source_text": "a cat"})] * (len(images) - 1)]
    found = judge.score(images, lines)
    assert found[0] is None and all(isinstance(value, float) for value in found[1:])
    assert judge.score(images[:1], ["a dog"]) == [None]
    moved = images.clone().requires_grad_()
    score_with_gradient(judge, moved, lines).sum().backward()
    assert not moved.grad[0].any() and moved.grad[1].any()
    check_paths(judge, moved, lines)
