"""VideoAlign against transformers' own loading of the base, a merge by hand and one video at a time."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer

from comfyui_otca.host import paths
from comfyui_otca.study.scoring import score_files
from comfyui_otca.tests.tiny.video_rewards import ADAPTED, ALPHA, FIGURES, RANK, video_align
from comfyui_otca.tests.trainer.rewards.test_published import cut
from comfyui_otca.trainer.pictures import media
from comfyui_otca.trainer.rewards import RewardError
from comfyui_otca.trainer.rewards.base import score
from comfyui_otca.trainer.rewards.relative import RelativeWords
from comfyui_otca.trainer.rewards.video_align import VideoAlign, patches, resized, sampled_frames, size_within

pytestmark = pytest.mark.anywhere

DIMENSIONS = ("vq", "mq", "ta")
TOKENS = ("<|VQ_reward|>", "<|MQ_reward|>", "<|TA_reward|>")
PROMPTS = ["a red ball rolls", "a green cat that jumps over the wall of a garden, slowly, twice", "x {y}"]


@pytest.fixture(scope="module")
def videos():
    return torch.rand(3, 9, 40, 56, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """made(layout, output_dim): the folder that holds VideoReward and Qwen2-VL, made once."""
    folders = {}

    def make(layout="full", output_dim=1):
        key = layout, output_dim
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("video_align")
            video_align(folders[key], layout=layout, output_dim=output_dim)
        return folders[key]

    return make


def rewards(folder, **options):
    places = {"model": str(folder / "VideoReward"), "base": str(folder / "Qwen2-VL")}
    return [VideoAlign(f"video_align_{own}", dimension=own, **places, **options) for own in DIMENSIONS]


def copied(folder, tmp_path):
    """A checkpoint of the test's own, to spoil."""
    return shutil.copytree(folder, tmp_path / "copy")


@pytest.fixture
def alike(made, videos):
    """alike(folder): asserts that a checkpoint scores as the whole one does."""
    expected = score(rewards(made()), videos, PROMPTS)
    return lambda folder: torch.testing.assert_close(
        score(rewards(folder), videos, PROMPTS), expected, rtol=0, atol=1e-5
    )


def settings_of(folder, change):
    """Changes model_config.json in place."""
    file = folder / "VideoReward" / "model_config.json"
    settings = json.loads(file.read_text())
    change(settings)
    file.write_text(json.dumps(settings))


# --- the score, by other means --------------------------------------------------------------------------------------


def reference(folder, video, prompt, output_dim=1):
    """[3] for one video [9, 40, 56, 3]: the base as transformers loads it, the adapter merged into it, nothing padded."""
    from transformers import Qwen2VLForConditionalGeneration

    network = Qwen2VLForConditionalGeneration.from_pretrained(folder / "Qwen2-VL", dtype=torch.float32)
    language = network.model.language_model
    trained = torch.load(folder / "VideoReward" / "checkpoint-11352" / "model.pth", weights_only=True)
    trained = {name.removeprefix("base_model.model."): tensor for name, tensor in trained.items()}
    with torch.no_grad():
        for name in ADAPTED:
            _, _, layer, block, part = name.split(".")
            linear = getattr(getattr(language.layers[int(layer)], block), part)
            down, up = (trained[f"{name}.lora_{side}.default.weight"] for side in "AB")
            for row in range(len(linear.weight)):
                linear.weight[row] += (ALPHA / RANK) * sum(up[row, rank] * down[rank] for rank in range(RANK))
        embedding = trained["model.embed_tokens.weight"]
        language.embed_tokens.weight[: len(embedding)] = embedding
        network.model.visual.merger.mlp[2].bias.copy_(trained["visual.merger.mlp.2.bias"])

    frames = (video[[0, 3, 5, 8]] * 255).round().permute(0, 3, 1, 2)
    frames = torch.nn.functional.interpolate(frames, (280, 392), mode="bicubic", antialias=True).clamp(0, 255).round()
    rows = patches_by_hand(frames, 14, 2)
    count = 2 * 20 * 28 // 4
    text = (paths.ASSETS / "reward_prompts" / "video_align.txt").read_text().split("{text_prompt}")
    tokenizer = Tokenizer.from_file(str(folder / "Qwen2-VL" / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in TOKENS])
    ids = tokenizer.encode(
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        + "<|im_start|>user\n<|vision_start|>"
        + "<|video_pad|>" * count
        + f"<|vision_end|>{text[0]}{prompt}{text[1]}<|im_end|>\n<|im_start|>assistant\n"
    ).ids
    with torch.no_grad():
        hidden = network.model(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            position_ids=torch.arange(len(ids)).view(1, 1, -1).repeat(3, 1, 1),
            pixel_values_videos=rows,
            video_grid_thw=torch.tensor([[2, 20, 28]]),
        ).last_hidden_state[0]
    answers = []
    for number, (token, dimension) in enumerate(zip(TOKENS, ("VQ", "MQ", "TA"), strict=True)):
        raw = trained["rm_head.weight"] @ hidden[ids.index(tokenizer.token_to_id(token))]
        raw = raw[number if output_dim == 3 else 0].item()
        answers.append((raw - FIGURES[f"{dimension}_mean"]) / FIGURES[f"{dimension}_std"])
    return torch.tensor(answers)


def patches_by_hand(frames, patch, merge):
    """[n, 3, h, w] of 0…255 to rows: two frames deep, four neighbours in a row, channels first in each."""
    mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    normal = torch.stack([(frames[:, channel] / 255 - mean[channel]) / std[channel] for channel in range(3)], 1)
    high, wide = frames.shape[2] // patch, frames.shape[3] // patch
    rows = []
    for time in range(0, len(frames), 2):
        for top in range(0, high, merge):
            for left in range(0, wide, merge):
                for y in range(top, top + merge):
                    for x in range(left, left + merge):
                        block = normal[time : time + 2, :, y * patch : (y + 1) * patch, x * patch : (x + 1) * patch]
                        rows.append(torch.cat([block[:, channel].flatten() for channel in range(3)]))
    return torch.stack(rows)


@pytest.mark.host  # auto is bfloat16 elsewhere
@pytest.mark.parametrize("output_dim", [1, 3])
def test_scores_are_those_of_one_video_at_a_time(made, videos, output_dim):
    folder = made("full", output_dim)
    expected = [reference(folder, video, own, output_dim) for video, own in zip(videos, PROMPTS, strict=True)]
    expected = torch.stack(expected)
    assert expected.std(0).min() > 1e-2  # it tells these videos apart
    torch.testing.assert_close(score(rewards(folder), videos, PROMPTS), expected, rtol=0, atol=1e-4)


def test_every_published_layout_scores_alike(made, alike, tmp_path):
    for layout in ("adapter", "merged"):
        alike(made(layout))
    folder = copied(made("merged"), tmp_path)  # names since transformers 4.52, in a model.pth
    file, step = folder / "VideoReward" / "model.safetensors", folder / "VideoReward" / "checkpoint-5"
    step.mkdir()
    torch.save(load_file(file), step / "model.pth")
    file.unlink()
    alike(folder)


def test_another_prompt_or_another_order_of_frames_is_another_score(made, videos):
    ours = rewards(made())
    told = score(ours, videos, PROMPTS)
    others = [*PROMPTS[1:], PROMPTS[0]]
    assert (score(ours, videos.clone(), others)[:, 2] - told[:, 2]).abs().min() > 1e-3
    assert (score(ours, videos, others)[:, 2] - told[:, 2]).abs().min() > 1e-3  # not what was kept of this tensor
    assert (score(ours, videos.flip(1), PROMPTS) - told).abs().min() > 1e-5


def test_without_figures_the_score_is_raw(made, videos, tmp_path):
    folder, figures = copied(made(), tmp_path), {}
    expected = score(rewards(folder), videos, PROMPTS)
    settings_of(folder, lambda settings: figures.update(settings.pop("inference_config")))
    mean, std = (torch.tensor([figures[f"{own.upper()}_{of}"] for own in DIMENSIONS]) for of in ("mean", "std"))
    torch.testing.assert_close(score(rewards(folder), videos, PROMPTS), expected * std + mean, rtol=0, atol=1e-5)


def test_the_adapters_scale_is_the_checkpoints(made, alike, tmp_path):
    """rsLoRA divides by the root of the rank: of rank 4 and alpha 4, the scale of alpha 8 without it."""
    folder = copied(made("adapter"), tmp_path)
    settings_of(folder, lambda settings: settings["peft_lora_config"].update(lora_alpha=4, use_rslora=True))
    alike(folder)
    settings_of(folder, lambda settings: settings["peft_lora_config"].update(use_rslora=False))
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        alike(folder)


def test_the_latest_of_several_checkpoints_counts_and_the_base_needs_no_weights_beside_it(made, alike, tmp_path):
    folder = copied(made(), tmp_path)
    steps = folder / "VideoReward"
    changed = torch.load(steps / "checkpoint-11352" / "model.pth", weights_only=True)
    changed["base_model.model.rm_head.weight"] = 2 * changed["base_model.model.rm_head.weight"]
    torch.save(changed, steps / "checkpoint-900" / "model.pth")
    (folder / "Qwen2-VL" / "model.safetensors").unlink()
    alike(folder)


# --- frames and patches ---------------------------------------------------------------------------------------------


def test_two_frames_a_second():
    for total, fps, expected in (
        (81, 16, [0, 9, 18, 27, 36, 44, 53, 62, 71, 80]),  # 10.125 frames
        (49, 16, [0, 10, 19, 29, 38, 48]),
        (121, 24, [0, 13, 27, 40, 53, 67, 80, 93, 107, 120]),
        (9, 16, [0, 3, 5, 8]),  # at least four
        (5, 16, [0, 1, 3, 4]),
        (3, 16, [0, 2]),  # even
        (2, 16, [0, 1]),
        (40, 16, [0, 13, 26, 39]),  # 5 frames: half of it, 2.5, is rounded to the even 2
        (56, 16, [0, 8, 16, 24, 31, 39, 47, 55]),  # 7 frames: 3.5 is rounded to 4
    ):
        assert sampled_frames(total, fps, 2.0) == expected
    assert len(sampled_frames(10_000, 16, 2.0)) == 768, "at most"


def test_a_file_is_judged_at_its_own_rate(made, tmp_path, monkeypatch):
    """Seen before: every file was taken to have 16 frames a second."""
    clip = np.random.default_rng(0).integers(0, 256, (24, 40, 56, 3), np.uint8)
    files = [tmp_path / f"{fps}.mp4" for fps in (4, 8, 24)]
    for file in files:
        file.write_bytes(media.mp4(clip, float(file.stem)))
    (ours,) = rewards(made())[:1]
    counts = []
    counting = lambda videos, prompts: counts.append(videos.shape[1]) or torch.zeros(len(videos), 3)  # noqa: E731
    monkeypatch.setattr(ours.network, "score", counting)
    score_files([ours], files, [""] * 3, 8)
    assert counts == [12, 6, 4], "two frames a second, an even number"
    counts.clear()
    (about_text,) = rewards(made())[2:]
    score_files([RelativeWords(reward=about_text)], files, [""] * 3, 8)
    assert counts == [12, 12, 6, 6, 4, 4], "also of a reward that another one asks"
    counts.clear()
    ours.fps = 8.0
    score_files([ours], files, [""] * 3, 8)
    assert counts == [6, 6, 6], "as the user says"


def test_resized_frames_are_whole_numbers_within_bounds():
    for size, expected in (
        ((480, 832), (336, 588)),  # 476 x 840 is too much; both sides over 1.41059, down to multiples of 28
        ((40, 56), (280, 392)),  # both times 6.693, up
        ((336, 336), (336, 336)),
        ((350, 350), (336, 336)),  # 12.5 is rounded to the even 12
        ((720, 1280), (336, 588)),
    ):
        assert size_within(*size, 28, 100_352, 200_704) == expected
    same = torch.randint(0, 256, (1, 2, 336, 336, 3), generator=torch.Generator().manual_seed(2)) / 255
    assert torch.equal(resized(same, 28, 200_704), (same * 255).round().permute(0, 1, 4, 2, 3))
    larger = torch.rand(1, 2, 20, 20, 3, generator=torch.Generator().manual_seed(3)).round()  # overshoots, if let
    frames = resized(larger, 28, 200_704)
    assert frames.shape == (1, 2, 3, 336, 336)
    assert torch.equal(frames, frames.round()) and frames.min() == 0 and frames.max() == 255


def test_patches_are_cut_as_by_hand():
    frames = (torch.rand(2, 4, 3, 56, 84, generator=torch.Generator().manual_seed(1)) * 255).round()
    rows, grid = patches(frames, 14, 2, 2)
    assert grid == (2, 4, 6) and rows.shape == (2 * 2 * 4 * 6, 1176)
    expected = torch.cat([patches_by_hand(video, 14, 2) for video in frames])
    torch.testing.assert_close(rows, expected, rtol=0, atol=1e-6)


# --- what is refused ------------------------------------------------------------------------------------------------


def test_what_is_missing_of_another_kind_or_too_short(made):
    model, base = str(made() / "VideoReward"), str(made() / "Qwen2-VL")
    with pytest.raises(RewardError, match="1 frame has no motion.*Fix: "):
        score(rewards(made()), torch.rand(2, 1, 8, 8, 3), PROMPTS[:2])
    with pytest.raises(
        FileNotFoundError, match=r"KlingTeam/VideoReward \(5.03 GB\).* into a folder that you name by \$OTCA_MODELS"
    ):
        VideoAlign(model="nowhere/VideoReward", base=base)
    with pytest.raises(FileNotFoundError, match=r"Qwen/Qwen2-VL-2B-Instruct \(4.4 GB"):
        VideoAlign(model=model, base="nowhere")
    with pytest.raises(RewardError, match="shapes-clip .*holds a model of type clip, where qwen2_vl is needed.*Fix: "):
        VideoAlign(model=model, base=str(paths.ASSETS / "shapes-clip"))


STEP = "VideoReward/checkpoint-11352"
WHOLE = "VideoReward/model.safetensors"
Q = "language_model.layers.1.self_attn.q_proj.weight"


def gone(folder, name):
    (folder / name).unlink()


def pickled(folder, name):
    torch.save({"rm_head.weight": math.prod}, folder / name)


def tensors(folder, change):
    found = load_file(folder / WHOLE)
    change(found)
    save_file(found, folder / WHOLE)


def smaller(folder, name):
    file = folder / name
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_hidden_layers": 1}))


def asking_otherwise(folder, kind):
    settings_of(folder, lambda settings: settings["data_config"].update(prompt_template_type=kind))


@pytest.mark.parametrize(
    ("layout", "spoil", "told"),
    [
        ("adapter", (gone, "Qwen2-VL/model.safetensors"), r"Qwen2-VL has no model\*\.safetensors.*Fix: "),
        ("adapter", (gone, f"{STEP}/non_lora_state_dict.pth"), "neither model.pth nor non_lora_state_dict.pth.*Fix: "),
        *(
            (layout, (cut, name), rf"{name.split('/')[-1]} \([\d,]+ bytes\) .*cannot be read.*Fix: get all .*5.03 GB")
            for layout, name in (
                ("full", f"{STEP}/model.pth"),
                ("adapter", f"{STEP}/adapter_model.safetensors"),
                ("adapter", f"{STEP}/non_lora_state_dict.pth"),
                ("merged", WHOLE),
            )
        ),
        ("full", (pickled, f"{STEP}/model.pth"), "model.pth .*cannot be read.*UnpicklingError"),
        ("merged", (tensors, lambda found: found.pop(f"model.{Q}")), rf"no '{Q}' \(1 of .* are missing.*Fix: "),
        (
            "merged",
            (tensors, lambda found: found.update({"rm_head.weight": torch.zeros(4, 32)})),
            r"shape \(4, 32\).*1 or 3 rows.*Fix: ",
        ),
        ("full", (smaller, "Qwen2-VL/config.json"), "does not fit its layout.*does not belong to it.*Fix: "),
        ("full", (asking_otherwise, "video_score"), "prompt_template_type 'video_score'; only 'detailed_special'"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_named(made, tmp_path, layout, spoil, told):
    folder = copied(made(layout), tmp_path)
    how, *arguments = spoil
    how(folder, *arguments)
    with pytest.raises((RewardError, FileNotFoundError), match=told):
        rewards(folder)


def test_settings_that_older_files_lack_are_the_references_own(made, alike, tmp_path):
    folder = copied(made(), tmp_path)

    def older(settings):
        del settings["data_config"]["sample_type"], settings["data_config"]["num_frames"]
        del settings["peft_lora_config"]["use_rslora"]

    settings_of(folder, older)
    alike(folder)
