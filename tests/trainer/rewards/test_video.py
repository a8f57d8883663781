"""VideoScore against transformers' Idefics2, one video at a time, with frames and tokens made by hand."""

from __future__ import annotations

import hashlib
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tokenizers import Tokenizer

from comfyui_otca.host import devices, paths
from comfyui_otca.tests.tiny.video_rewards import video_align, video_score
from comfyui_otca.trainer.rewards import RewardError, reward_class
from comfyui_otca.trainer.rewards.base import score, score_stack
from comfyui_otca.trainer.rewards.video import VideoScore, spread_frames

pytestmark = pytest.mark.anywhere

PROMPTS = ["a red ball rolls", "a green cat that jumps over the wall of a garden, slowly, twice", "x {y}"]


@pytest.fixture(scope="module")
def videos():
    """Larger than the tiny checkpoint's longest side, so that they are resized."""
    return torch.rand(3, 7, 44, 98, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return video_score(tmp_path_factory.mktemp("video_score"))


def rewards(folder, **options):
    return [
        VideoScore(f"video_score_{own}", dimension=own, model=str(folder), **options) for own in VideoScore.DIMENSIONS
    ]


def reference(folder, video, prompt, frames):
    """[5] for one video [F, 44, 98, 3] of which `frames` are seen."""
    from transformers import Idefics2Config, Idefics2Model

    tensors = {}
    for shard in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(shard)
    network = Idefics2Model(Idefics2Config.from_pretrained(folder)).eval()
    network.load_state_dict({name[6:]: tensor for name, tensor in tensors.items() if name.startswith("model.")})
    pictures = []
    for frame in frames:
        picture = Image.fromarray((video[frame] * 255).round().to(torch.uint8).numpy())
        picture = picture.resize((70, 31), Image.Resampling.BILINEAR)  # the longest side 70, 44 · 70 / 98 = 31.4
        pictures.append(torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255 * 2 - 1)
    start, end = (paths.ASSETS / "reward_prompts" / "video_score.txt").read_text().split("{text_prompt}")
    fake = "<fake_token_around_image>"
    text = f"{start}{prompt}{end}" + f"{fake}<image><image><image><image>{fake} " * len(frames)
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    with torch.no_grad():
        hidden = network(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            pixel_values=torch.stack(pictures)[None],
            pixel_attention_mask=torch.ones(1, len(frames), 31, 70, dtype=torch.long),
        ).last_hidden_state[0, -1]
    return tensors["score.weight"] @ hidden + tensors["score.bias"]


@pytest.mark.host  # auto is bfloat16 elsewhere
@pytest.mark.parametrize(("most", "frames"), [(48, range(7)), (3, (0, 2, 4))])
def test_scores_are_those_of_one_video_at_a_time(folder, videos, most, frames):
    expected = [reference(folder, video, prompt, frames) for video, prompt in zip(videos, PROMPTS, strict=True)]
    told = score(rewards(folder, most_frames=most, batch_size=0), videos.clone(), PROMPTS)
    assert told.std(0).min() > 1e-2  # it tells these videos apart
    torch.testing.assert_close(told, torch.stack(expected), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("total", "most"), [(81, 48), (81, 16), (49, 48), (17, 16), (121, 16)])
def test_frames_are_those_of_the_reference(total, most):
    """The published example, but for an extra last frame where rounding gives it one."""
    assert spread_frames(total, most) == np.arange(0, total, total / most).astype(int)[:most].tolist()
    assert spread_frames(most, most) == list(range(most)) and spread_frames(7, most) == list(range(7))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda file: file.unlink(), "has no '.*tensors are missing.*Fix: get all of its files"),
        (
            lambda file: file.write_bytes(file.read_bytes()[:-100]),
            "model-00002-of-00002.safetensors .*cannot be read.*Fix: ",
        ),
    ],
    ids=["missing", "cut off"],
)
def test_a_checkpoint_that_does_not_fit_is_named(folder, tmp_path, spoil, told):
    place = shutil.copytree(folder, tmp_path / "copy")
    spoil(place / "model-00002-of-00002.safetensors")
    with pytest.raises(RewardError, match=told):
        VideoScore(model=str(place))
    with pytest.raises(RewardError, match="holds a model of type clip, where idefics2 is needed.*Fix: "):
        VideoScore(model=str(paths.ASSETS / "shapes-clip"))
    with pytest.raises(FileNotFoundError, match=r"TIGER-Lab/VideoScore-v1.1 \(about 17 GB\)"):
        VideoScore(model="nowhere/VideoScore")


# --- what both judges of videos have in common ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def align(tmp_path_factory):
    folder = tmp_path_factory.mktemp("video_align")
    video_align(folder)
    return {"model": str(folder / "VideoReward"), "base": str(folder / "Qwen2-VL")}


@pytest.fixture(params=["video_score", "video_align"])
def judges(request, folder, align):
    """judges(settings): the rewards of all dimensions of one network."""
    kind = reward_class(request.param)
    places = {"model": str(folder)} if kind is VideoScore else align

    def made(**options):
        return [kind(f"{request.param}_{own}", dimension=own, **places, **options) for own in kind.DIMENSIONS]

    return made


def test_a_batch_is_its_single_videos(judges, videos):
    ours = judges(batch_size=0)
    together = score(ours, videos.clone(), PROMPTS)
    for batch_size in (1, 2):
        apart = score(judges(batch_size=batch_size), videos.clone(), PROMPTS)
        torch.testing.assert_close(together, apart, rtol=0, atol=1e-5)
    beside = score(ours, videos[:2], [PROMPTS[0], "a very " * 200])  # a long prompt changes nothing for a short one
    torch.testing.assert_close(beside[:1], together[:1], rtol=0, atol=1e-5)


def test_one_forward_pass_for_all_objectives(judges, videos):
    ours = judges(batch_size=0)
    ours[-1].held_out = True
    calls = []
    handle = ours[0].network.model.register_forward_hook(lambda *_: calls.append(1))
    scores = score_stack(ours, videos.clone(), PROMPTS, torch.tensor([0, 1, 2]))
    handle.remove()
    assert len(calls) == 1 and scores.held_out_names == (ours[-1].name,)
    assert scores.names == tuple(reward.name for reward in ours[:-1]) and scores.values.shape == (3, len(ours) - 1)
    with pytest.raises(RewardError, match=r"'video_\w+'.*scores videos.*\(2, 8, 8, 3\).*Fix: "):
        score(ours, torch.rand(2, 8, 8, 3), PROMPTS[:2])


@pytest.mark.host  # auto is bfloat16 elsewhere
def test_in_bfloat16_the_head_keeps_its_precision(judges, videos):
    ours, exact = judges(dtype="bfloat16", batch_size=0), judges()
    network = ours[0].network
    assert network is not exact[0].network
    for name, weight in network.model.named_parameters():
        assert weight.dtype == (torch.float32 if name.startswith(("score.", "rm_head.")) else torch.bfloat16), name
    if hasattr(network.model, "rm_head"):  # as the reference's .to makes it
        assert network.model.language_model.rotary_emb.inv_freq.dtype == torch.bfloat16
    told = score(ours, videos, PROMPTS)
    assert not torch.equal(told, told.bfloat16().float())
    torch.testing.assert_close(told, score(exact, videos, PROMPTS), rtol=0.1, atol=0.1)


def test_offloaded_it_leaves_after_use_and_comes_back(judges, videos, monkeypatch):
    ours, moves = judges(offload=True), []
    monkeypatch.setattr(ours[0].network, "come_back", lambda: moves.append("back"))
    monkeypatch.setattr(ours[0].network, "leave", lambda: moves.append("left"))
    score(ours, videos, PROMPTS)
    assert moves == ["back"] * len(ours) + ["left"] * len(ours)
    assert ours[0].network._networks() == [ours[0].network.model], "the head moves with the rest"


@pytest.mark.anywhere
def test_where_blocks_come_one_by_one_scores_are_the_same_to_the_bit(judges, videos, monkeypatch, device):
    if device == "cpu":
        pytest.skip("where there is no accelerator nothing visits it")
    ours, scores = judges(offload=True), []
    for free in (10**12, 1):
        monkeypatch.setattr(devices, "free_memory", lambda device, free=free: free)
        scores.append(score(ours, videos.clone(), PROMPTS))
        assert (ours[0].network.blocks_out is None) == (free > 1)
    assert torch.equal(*scores)


def test_the_prompt_is_the_published_one_to_the_letter():
    for name, digest in {
        "video_score": "49b386d9ea3003760c983cc258cf4211faf858d58191f95fcfacdf68a8fed2c0",
        "video_align": "fdb6309bac618dd0c8b1b589d3a0970a974f7856eecbb355a190b2dce54af700",
    }.items():
        assert hashlib.sha256((paths.ASSETS / "reward_prompts" / f"{name}.txt").read_bytes()).hexdigest() == digest
