"""CLIP-T, and the forward that it shares with other rewards on the same checkpoint."""

from __future__ import annotations

import shutil

import pytest
import torch

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.tiny import reference_rewards
from comfyui_otca.trainer.networks.clip import Clip
from comfyui_otca.trainer.rewards import REWARDS, Reward, reward_class
from comfyui_otca.trainer.rewards.aesthetic import Aesthetic
from comfyui_otca.trainer.rewards.base import RewardError, score_stack
from comfyui_otca.trainer.rewards.clip import ClipT

from .conftest import truncated

pytestmark = pytest.mark.anywhere


def expected(folder, pictures, prompts):
    """Cosines by CLIPModel's own joint forward, of pixels cropped by hand."""
    from transformers import CLIPModel, CLIPTokenizerFast

    model = CLIPModel.from_pretrained(folder).eval()
    pixels = torch.stack([reference_rewards.centre_crop(picture, 32) for picture in pictures])
    tokens = CLIPTokenizerFast.from_pretrained(folder)(prompts, padding=True, return_tensors="pt")
    with torch.no_grad():
        out = model(pixel_values=pixels, **tokens)
    return (out.logits_per_image / model.logit_scale.exp()).diagonal()


def test_the_cosine_of_picture_and_prompt(tiny, images, pictures, prompts):
    scores = ClipT(model=str(tiny / "clip")).score(images, prompts)
    torch.testing.assert_close(scores.cpu(), expected(tiny / "clip", pictures, prompts), atol=1e-6, rtol=1e-5)
    assert scores.std() > 1e-3


def test_the_embedded_judge_says_what_it_said():
    """Numbers of the first release."""
    images = torch.rand(3, 40, 56, 3, generator=torch.Generator().manual_seed(0))
    scores = ClipT().score(images, ["a red circle", "a blue square on a green background", "zebra"])
    torch.testing.assert_close(scores.cpu(), torch.tensor([-0.209096, 0.528587, -0.143147]), atol=1e-5, rtol=0)


def test_a_batch_scores_as_its_pictures_do_alone(tiny, images, prompts):
    scorer = ClipT(model=str(tiny / "clip"))
    together = scorer.score(images, prompts)
    alone = torch.cat([scorer.score(images[row : row + 1], prompts[row : row + 1]) for row in range(3)])
    torch.testing.assert_close(together, alone)
    scorer.batch_size = 2
    torch.testing.assert_close(scorer.score(images.clone(), prompts), together)


def test_a_prompt_is_encoded_once(tiny, images, monkeypatch):
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


def test_long_prompts_are_cut_at_77_tokens(tiny, images):
    scorer = ClipT(model=str(tiny / "clip"))
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


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_half_precision_scores_are_near(tiny, images, prompts, dtype):
    scorer = ClipT(model=str(tiny / "clip"), dtype=dtype)
    scores = scorer.score(images, prompts)
    assert scorer.network.model.dtype == getattr(torch, dtype) and scores.dtype == torch.float32
    torch.testing.assert_close(scores, ClipT(model=str(tiny / "clip")).score(images, prompts), atol=0.02, rtol=0)


def test_weights_that_lack_something_are_no_clip(tiny, tmp_path):
    from safetensors.torch import load_file, save_file

    shutil.copytree(tiny / "clip", tmp_path / "clip")
    weights = load_file(tmp_path / "clip" / "model.safetensors")
    del weights["visual_projection.weight"]
    save_file(weights, tmp_path / "clip" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        RewardError, match=r"clip cannot be loaded as a CLIPModel \(visual_projection.weight is missing\)"
    ):
        ClipT(model=str(tmp_path / "clip"))


def test_weights_that_were_cut_off(tiny, tmp_path):
    shutil.copytree(tiny / "clip", tmp_path / "clip")
    (tmp_path / "clip" / "model.safetensors").unlink()
    truncated(tiny / "clip" / "model.safetensors", tmp_path / "clip")
    with pytest.raises(
        RewardError, match=r"clip cannot be loaded as a CLIPModel \(SafetensorError.*Fix: get the whole"
    ):
        ClipT(model=str(tmp_path / "clip"))


def test_its_node_takes_a_path_and_says_what_is_missing(tiny, images, prompts):
    node = NODE_CLASS_MAPPINGS["OTCA_RewardClipT"]
    assert node.VALIDATE_INPUTS(model="shapes-clip") is True
    assert node.VALIDATE_INPUTS(model=None) is True
    assert node.VALIDATE_INPUTS(model="shapes-clip", path="nowhere").startswith("path: model 'nowhere' was not found")
    assert node.VALIDATE_INPUTS(model="shapes-clip", clip="2, 1").startswith("clip: ")
    [scorer] = node().build(model="shapes-clip", path=str(tiny / "clip"), coefficient=0.5, batch_size=2, clip="-1, 0.0")
    assert (scorer.name, scorer.coefficient, scorer.batch_size, scorer.bounds) == ("clip_t", 0.5, 2, (-1.0, 0.0))
    assert scorer.network.path.name == "clip"


def test_saved_canvases_find_its_inputs_where_they_were():
    """A canvas holds values by position: what is new comes last."""
    declared = NODE_CLASS_MAPPINGS["OTCA_RewardClipT"].INPUT_TYPES()
    names = [*declared["required"], *declared["optional"]]
    assert names[:5] == ["model", "coefficient", "path", "held_out", "name"]
    assert names[5:] == ["device", "dtype", "batch_size", "offload", "rescale", "clip"]


@pytest.mark.parametrize("kind", REWARDS)
def test_every_row_of_the_table_is_a_reward(kind):
    assert issubclass(reward_class(kind), Reward)
