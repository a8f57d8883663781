"""The nodes of the video rewards: several objectives of one network."""

from __future__ import annotations

import pytest
import torch

from comfyui_otca.nodes.rewards.videos import RewardVideoAlign, RewardVideoScore
from comfyui_otca.tests.tiny.video_rewards import video_align, video_score

COMMON = ["name", "device", "dtype", "batch_size", "offload", "clip"]


@pytest.fixture(scope="module")
def align(tmp_path_factory):
    folder = tmp_path_factory.mktemp("align")
    return {"model": str(video_align(folder)), "base": str(folder / "Qwen2-VL")}


@pytest.fixture(scope="module")
def score(tmp_path_factory):
    return {"model": str(video_score(tmp_path_factory.mktemp("score")))}


def test_objectives_of_a_node_share_their_settings():
    declared = RewardVideoAlign.INPUT_TYPES()
    assert list(declared["required"]) == ["model", "base", "fps"]
    assert list(declared["optional"]) == [*COMMON, "coefficient", "held_out"]
    assert declared["optional"]["batch_size"][1]["default"] == 1
    assert RewardVideoAlign.RETURN_NAMES == ("vq", "mq", "ta") and len(RewardVideoScore.RETURN_TYPES) == 5
    assert "video_score_visual" in RewardVideoScore.INPUT_TYPES()["optional"]["name"][1]["tooltip"]


def test_three_rewards_of_one_network(align):
    with torch.inference_mode():
        vq, mq, ta = RewardVideoAlign().build(**align, fps=8.0, coefficient=0.5, clip="-20, 20", batch_size=2)
        other = RewardVideoAlign().build(**align, fps=8.0, coefficient=2.0, held_out=True)[2]
    assert vq.network is mq.network is ta.network is other.network
    assert [reward.name for reward in (vq, mq, ta)] == ["video_align_vq", "video_align_mq", "video_align_ta"]
    assert [reward.dimension for reward in (vq, mq, ta)] == ["vq", "mq", "ta"]
    assert [reward.coefficient for reward in (vq, mq, ta, other)] == [0.5, 0.5, 0.5, 2.0]
    assert [reward.held_out for reward in (vq, mq, ta, other)] == [False, False, False, True]
    assert {(reward.fps, reward.batch_size, reward.bounds) for reward in (vq, mq, ta)} == {(8.0, 2, (-20.0, 20.0))}


def test_a_name_of_ones_own_starts_all_names(score):
    rewards = RewardVideoScore().build(**score, most_frames=16, name="judge")
    assert [reward.name for reward in rewards] == [f"judge_{dimension}" for dimension in RewardVideoScore.DIMENSIONS]
    assert {reward.most_frames for reward in rewards} == {16}


def test_what_is_missing_is_told_before_anything_runs(align, score):
    assert RewardVideoAlign.VALIDATE_INPUTS(**align) is True
    assert RewardVideoAlign.VALIDATE_INPUTS(model=None, base=None) is True  # linked
    assert RewardVideoAlign.VALIDATE_INPUTS(**align | {"model": "nowhere"}).startswith("model: model 'nowhere' was not")
    assert RewardVideoAlign.VALIDATE_INPUTS(**align | {"base": "nowhere"}).startswith("base: model 'nowhere' was not")
    assert RewardVideoAlign.VALIDATE_INPUTS(**align, clip="3, 1").startswith("clip: ")
    assert RewardVideoScore.VALIDATE_INPUTS(**score) is True
    assert "TIGER-Lab/VideoScore-v1.1 (about 17 GB)" in RewardVideoScore.VALIDATE_INPUTS(model="nowhere")
