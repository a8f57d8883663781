"""Rewards with published weights: a batch is its pictures, and a file that is not what it should be is named."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.tiny import rewards as tiny_rewards
from comfyui_otca.trainer.rewards import REWARDS, RewardError, reward_class
from comfyui_otca.trainer.rewards.base import Reward

pytestmark = pytest.mark.anywhere

# The inputs of each, below the folder of tiny checkpoints.
CLIP_T, PICKSCORE = {"model": "clip"}, {"path": "pickscore", "processor": "clip"}
AESTHETIC, HPS = {"path": "aesthetic.pth", "model": "clip"}, {"path": "hps.pt", "tokenizer": "clip"}
IMAGE_REWARD = {
    "path": "image_reward/ImageReward.pt",
    "config": "image_reward/med_config.json",
    "tokenizer": "image_reward/bert-base-uncased",
}
PUBLISHED = {
    "clip_t": CLIP_T,
    "aesthetic": AESTHETIC,
    "pickscore": PICKSCORE,
    "hpsv2": HPS,
    "image_reward": IMAGE_REWARD,
}


def below(folder, inputs):
    return {name: str(folder / place) for name, place in inputs.items()}


def test_every_row_of_the_table_is_a_reward():
    assert all(issubclass(reward_class(kind), Reward) for kind in REWARDS)


@pytest.mark.parametrize("kind", PUBLISHED)
def test_a_batch_scores_as_its_pictures_do_alone(tiny, images, prompts, kind):
    judge = reward_class(kind)(**below(tiny, PUBLISHED[kind]))
    together = judge.score(images, prompts)
    alone = torch.cat([judge.score(images[row : row + 1], prompts[row : row + 1]) for row in range(3)])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    judge.batch_size = 2
    torch.testing.assert_close(judge.score(images.clone(), prompts), together, atol=1e-5, rtol=1e-5)


# --- files that are not what they should be -----------------------------------------------------------------------------


def cut(folder, name):
    file = folder / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def copied(folder, other, name):
    shutil.copy(folder / other, folder / name)


def without(folder, name, key):
    state = torch.load(folder / name)
    del state.get("state_dict", state)[key]
    torch.save(state, folder / name)


def reshaped(folder, name, key):
    state = torch.load(folder / name)
    state["state_dict"][key] = torch.ones(5)
    torch.save(state, folder / name)


def without_in_clip(folder, key):
    weights = load_file(folder / "clip" / "model.safetensors")
    del weights[key]
    save_file(weights, folder / "clip" / "model.safetensors", metadata={"format": "pt"})


def configured(folder, changes):
    """Without changes there is only its kind."""
    file = folder / "image_reward" / "med_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes} if changes else {"model_type": "bert"}))


def more_words(folder, name):
    file = folder / "image_reward" / name / "vocab.txt"
    file.write_text(file.read_text() + "".join(f"word{number}\n" for number in range(9)))


def other_tokenizer(folder, name):
    tiny_rewards.clip_tokenizer(folder / name, vocabulary=600)


def wide_head(folder, name):
    tiny_rewards.aesthetic(folder / name, inputs=512)


def narrow_clip(folder, name):
    tiny_rewards.clip(folder / name, projection=512)


BLIP, LAYER = "image_reward/ImageReward.pt", "encoder.layer.0.crossattention.self.key.bias"


@pytest.mark.parametrize(
    ("kind", "spoil", "told"),
    [
        (
            "clip_t",
            (cut, "clip/model.safetensors"),
            r"clip cannot be loaded as a CLIPModel \(SafetensorError.*Fix: get the whole",
        ),
        (
            "clip_t",
            (without_in_clip, "visual_projection.weight"),
            r"clip cannot be loaded as a CLIPModel \(visual_projection.weight is missing\)",
        ),
        ("aesthetic", (cut, "aesthetic.pth"), "cannot be read.*improved-aesthetic-predictor"),
        (
            "aesthetic",
            (copied, "hps.pt", "aesthetic.pth"),
            r"is not LAION's aesthetic predictor v2: it has no 'layers\.0\.bias' .*3,714,759 bytes",
        ),
        ("aesthetic", (wide_head, "aesthetic.pth"), r"does not fit its layout.*sac\+logos\+ava1-l14-linearMSE\.pth"),
        ("aesthetic", (narrow_clip, "clip"), "gives 512 features where .* reads 768.*openai/clip-vit-large-patch14"),
        ("pickscore", (cut, "pickscore/model.safetensors"), "pickscore cannot be loaded as a CLIPModel"),
        ("pickscore", (other_tokenizer, "clip"), "the tokenizer in .*clip has 600 tokens where .*pickscore knows 567"),
        ("hpsv2", (cut, "hps.pt"), r"hps\.pt \([\d,]+ bytes\) is not HPSv2\.1: it cannot be read .*3\.9 GB"),
        (
            "hpsv2",
            (copied, "aesthetic.pth", "hps.pt"),
            r"is not HPSv2\.1: it has no .*HPS_v2\.1_compressed\.pt .* from xswu/HPSv2",
        ),
        (
            "hpsv2",
            (without, "hps.pt", "visual.transformer.resblocks.1.ln_2.weight"),
            r"has no 'vision_model\.encoder\.layers\.1\.layer_norm2\.weight' \(1 of \d+",
        ),
        ("hpsv2", (reshaped, "hps.pt", "ln_final.weight"), r"does not fit its layout .*final_layer_norm\.weight"),
        ("hpsv2", (other_tokenizer, "clip"), "clip has 600 tokens where .* knows 567"),
        ("image_reward", (cut, BLIP), r"ImageReward\.pt \([\d,]+ bytes\) is not ImageReward: it cannot be read"),
        (
            "image_reward",
            (copied, "hps.pt", BLIP),
            r"is not ImageReward: it has no 'blip\..*ImageReward\.pt \(1\.8 GB\) from THUDM/ImageReward",
        ),
        (
            "image_reward",
            (without, BLIP, "blip.visual_encoder.blocks.1.attn.qkv.weight"),
            r"has no 'encoder\.layers\.1\.self_attn\.qkv\.weight' \(1 of",
        ),
        ("image_reward", (without, BLIP, f"blip.text_encoder.{LAYER}"), rf"has no '{LAYER}' \(1 of"),
        ("image_reward", (without, BLIP, "mlp.layers.4.weight"), r"has no 'mlp\.layers\.4\.weight'"),
        ("image_reward", (configured, {"intermediate_size": 128}), r"does not fit its layout .*intermediate\.dense"),
        ("image_reward", (configured, {}), r"med_config\.json .*has no 'vocab_size'"),
        ("image_reward", (more_words, "bert-base-uncased"), "bert-base-uncased has 74 tokens where .* knows 67"),
    ],
)
def test_a_file_that_does_not_fit_is_named(tiny, tmp_path, kind, spoil, told):
    for place in {place.split("/")[0] for place in (*PUBLISHED[kind].values(), "hps.pt", "aesthetic.pth")}:
        copy = shutil.copytree if (tiny / place).is_dir() else shutil.copy
        copy(tiny / place, tmp_path / place)
    how, *arguments = spoil
    how(tmp_path, *arguments)
    with pytest.raises(RewardError, match=told):
        reward_class(kind)(**below(tmp_path, PUBLISHED[kind]))


# --- their nodes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "wrong"),
    [
        ("Aesthetic", "aesthetic", {"path": "path: ", "model": "model: model 'nowhere'"}),
        (
            "PickScore",
            "pickscore",
            {
                "path": "path: model 'nowhere' was not found. Fix: get https://huggingface.co/yuvalkirstain/PickScore_v1",
                "processor": "processor: model 'nowhere' was not found. Fix: get https://huggingface.co/laion/",
            },
        ),
        (
            "HPSv2",
            "hpsv2",
            {
                "path": "path: nowhere was not found. Fix: get HPS_v2.1_compressed.pt (3.9 GB) from https://huggingface.co/xswu/",
                "tokenizer": "tokenizer: ",
            },
        ),
        ("ImageReward", "image_reward", {name: f"{name}: " for name in IMAGE_REWARD}),
    ],
)
def test_a_node_says_what_is_missing(tiny, name, kind, wrong):
    node, there = NODE_CLASS_MAPPINGS[f"OTCA_Reward{name}"], below(tiny, PUBLISHED[kind])
    assert node.VALIDATE_INPUTS(**there) is True and node.VALIDATE_INPUTS() is True
    for name, told in wrong.items():
        chosen = {"provider": "transformers"} if name == "tokenizer" and kind == "hpsv2" else {}
        assert node.VALIDATE_INPUTS(**there | chosen | {name: "nowhere"}).startswith(told)
    [judge] = node().build(**there, coefficient=1.0, held_out=True, device="cpu", batch_size=1)
    assert (judge.name, judge.held_out, judge.batch_size) == (kind, True, 1)


def test_the_node_of_clip_t_takes_a_path(tiny):
    node = NODE_CLASS_MAPPINGS["OTCA_RewardClipT"]
    assert node.VALIDATE_INPUTS(model="shapes-clip") is True and node.VALIDATE_INPUTS(model=None) is True
    assert node.VALIDATE_INPUTS(model="shapes-clip", path="nowhere").startswith("path: model 'nowhere' was not found")
    assert node.VALIDATE_INPUTS(model="shapes-clip", clip="2, 1").startswith("clip: ")
    [scorer] = node().build(model="shapes-clip", path=str(tiny / "clip"), coefficient=0.5, batch_size=2, clip="-1, 0.0")
    assert (scorer.name, scorer.coefficient, scorer.batch_size, scorer.bounds) == ("clip_t", 0.5, 2, (-1.0, 0.0))
    assert scorer.network.path.name == "clip"
