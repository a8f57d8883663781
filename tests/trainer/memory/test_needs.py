"""`otca memory`: a workflow's training as the estimate sees it, by the files that are here and by those that are not."""

from __future__ import annotations

import copy
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from transformers import (
    CLIPConfig,
    CLIPModel,
    GroundingDinoConfig,
    GroundingDinoForObjectDetection,
    Owlv2Config,
    Owlv2ForObjectDetection,
)

from comfyui_otca.__main__ import main, parser
from comfyui_otca.commands import options
from comfyui_otca.host.access import permissions
from comfyui_otca.host.access.permissions import NotAllowed
from comfyui_otca.trainer.families import streaming
from comfyui_otca.trainer.memory import needs
from comfyui_otca.trainer.memory.blueprint import published
from comfyui_otca.trainer.memory.case import GB, REWARDS, Judge, Pull
from comfyui_otca.trainer.memory.native import ARCHITECTURES

ROOT = Path(__file__).resolve().parents[3]
API = ROOT / "workflows" / "api"


def graph(name="z_image"):
    return json.loads((API / f"{name}.json").read_text(encoding="utf-8"))


def grpo():
    """Z-Image's workflow with groups and GRPO Step in place of the reward's gradient."""
    content = graph("z_image")
    for node in content.values():
        if node["class_type"] == "OTCA_SDESampler":
            node["inputs"] |= {"group_size": 12, "kind": "dance_sde", "shared_noise": True, "batch_size": 2}
        if node["class_type"] == "OTCA_RewardGradientStep":
            node |= {"class_type": "OTCA_GRPOStep", "inputs": {"model": node["inputs"]["model"], "batch_size": 1}}
    return content


def changed(name, **inputs):
    """The workflow with other inputs, {class_type without OTCA_: {input: value}}."""
    content = copy.deepcopy(graph(name) if isinstance(name, str) else name)
    for node in content.values():
        node["inputs"].update(inputs.get(node["class_type"].removeprefix("OTCA_"), {}))
    return content


def test_files_that_are_not_here_count_as_published():
    case, lines = needs.read(graph("z_image"))
    assert case.needs.parts["weights"] == 2 * 6_154_908_736
    assert case.needs.parts["text encoder"] == 8_044_982_048
    it = case.iteration
    assert (it.size, it.batch, it.sampling_batch, it.guided) == ((1024, 1024, 1), 1, 1, False)
    assert case.trained == 32 * 2_219_520
    assert lines[0] == "z_image_turbo_bf16.safetensors: not here, published figures" and len(lines) == 3


def test_settings_of_the_graph():
    case, _ = needs.read(graph("qwen_image"))
    assert case.iteration.guided and case.weights_bytes == 20_430_401_088, "guided, and fp8 by its name"
    case, _ = needs.read(graph("flux1"))
    assert not case.iteration.guided and case.weights_bytes == 11_901_408_320, (
        "its guidance is embedded; fp8 by the loader's input"
    )
    case, _ = needs.read(graph("wan22_14b"))
    assert case.weights_bytes == 2 * 14_288_491_584 and case.model.networks == 2 and case.tiling
    # with a second epoch, which computes again what the rollout keeps nevertheless
    kept = changed(grpo(), SDESampler={"keep_graph": "on"}, GRPOStep={"ema_decay": 0.9, "batch_size": 0, "epochs": 2})
    case, _ = needs.read(kept)
    it = case.iteration
    assert (it.kept_calls, it.samples, it.trained_steps, it.copies, it.batch) == (7, 24, 7, 1, 24)
    case, _ = needs.read(changed("z_image", MakeTrainable={"memory": "low"}))
    assert case.needs.parts["weights"] == 2 * 6_154_908_736 // 32, "one block at a time"


def test_the_larger_of_training_and_evaluations_counts():
    """Of three graphs, one samples as the other only evaluates."""

    def of(size, guidance, **run):
        sampler = {"width": size, "height": size, "guidance": guidance, "keep_graph": "off"}
        case = needs.read(changed("qwen_image", SDESampler=sampler, TrainingRun=run))[0]
        return case, case.needs.phases

    apart = {"evaluation_width": 1024, "evaluation_height": 1024, "evaluation_guidance": 4.0}
    (case, small), (_, large), (other, both) = of(512, 1.0), of(1024, 4.0), of(512, 1.0, **apart)
    for phase in ("sampling", "decoding"):
        assert both[phase] == large[phase] != small[phase]
    assert both["the update"] == small["the update"] != large["the update"]
    assert (case.iteration.evaluated, other.iteration.evaluated) == (None, ((1024, 1024, 1), True))
    assert of(512, 1.0, evaluate_every=0, **apart)[1] == small
    ways = [way for way in other.iteration.ways() if "evaluations" in way.words]
    assert [name for _, name, value in ways[0].sets if not value] == [*apart, "evaluation_frames"]
    assert replace(other, iteration=replace(other.iteration, **ways[0].iteration)).needs.phases == small


def test_pictures_in_the_prompts_lines_are_counted(tmp_path, monkeypatch):
    monkeypatch.setenv("OTCA_INPUT", str(tmp_path))
    lines = [{"prompt": "make it blue", "image": "a.png"}, {"prompt": "both", "images": ["a.png", "b.png"]}]
    (tmp_path / "edits.jsonl").write_text("\n".join(map(json.dumps, lines)))
    plain, edits = changed("qwen_image"), changed("qwen_image", PromptDataset={"file": "edits.jsonl"})
    gone = changed("qwen_image", PromptDataset={"file": "nowhere.jsonl"})
    found = [needs.read(each)[0] for each in (plain, edits, gone)]
    assert [case.iteration.references for case in found] == [0, 2, 0]
    # 1024 x 1024 in tokens of 16 pixels and 256 of text; each picture as many again, and 14 x 14 that the encoder sees
    ratio = (4096 + 256 + 2 * (4096 + 196)) / (4096 + 256)
    assert found[1].graph(1).kept == pytest.approx(ratio * found[0].graph(1).kept)
    assert found[1].latent() == found[0].latent(), "what is sampled is as large as before"


def test_files_that_are_here_are_read(tmp_path, monkeypatch):
    monkeypatch.setenv("OTCA_MODELS", str(tmp_path / "models"))
    folder = tmp_path / "models" / "unet"  # as ComfyUI once called diffusion_models
    folder.mkdir(parents=True)
    tensors = {f"blocks.{number}.proj.weight": np.zeros((48, 16), np.float16) for number in range(3)}
    tensors |= {f"blocks.{number}.out.weight": np.zeros((16, 16), np.float16) for number in range(3)}
    save_file(tensors | {"norm.weight": np.zeros(16, np.float16)}, folder / "mine.safetensors")
    case, lines = needs.read(changed("z_image", UNETLoader={"unet_name": "mine.safetensors"}))
    model = case.model
    assert (model.params, model.width, model.layers, model.lora) == (3 * 64 * 16 + 16, 16, 3, 3 * (48 + 16 + 16 + 16))
    assert case.weights_bytes == 2 * 3088, "as filed, without the header"
    assert lines[0].startswith("mine.safetensors: read, ")


def test_a_file_that_is_removed_while_it_is_counted_keeps_its_bytes_or_counts_as_not_here(tmp_path):
    (path := tmp_path / "ae.sft").write_bytes(b"four")
    one, other = needs.File("a", path), needs.File("b", path)
    assert one.bytes == 4
    path.unlink()
    assert (one.bytes, other.bytes) == (4, None)


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match="not here, and its name is not that of .* Fix: say by --comfyui"):
        needs.read(changed("z_image", UNETLoader={"unet_name": "mine.safetensors"}))
    with pytest.raises(ValueError, match="Make Trainable or Load Flow Model: the workflow has 0 of it"):
        needs.read({"1": {"class_type": "OTCA_SDESampler", "inputs": {}}})


def test_the_command_says_what_does_not_fit(capsys):
    assert main(["memory", str(API / "z_image.json"), "--gpu-gb", "12"]) == 0
    assert "fits; 5.1 GB of the weights stay in main memory: each call" in capsys.readouterr().out
    assert main(["memory", str(API / "z_image.json"), "--gpu-gb", "4"]) == 0
    out = capsys.readouterr().out
    assert "does not fit" in out and "with size 768 × 768: " in out and "not measured on a GPU" in out
    assert main(["memory", str(API / "z_image.json"), "--gpu-gb", "80"]) == 0
    assert "not fit" not in capsys.readouterr().out and GB == 10**9, "as files are counted"


def test_a_workflow_names_no_file_outside_of_the_models():
    with pytest.raises(NotAllowed, match="/etc/mine.safetensors"):
        needs.read(changed("z_image", UNETLoader={"unet_name": "/etc/mine.safetensors"}))


@pytest.mark.parametrize("place", ["models", "moved/models", "listed"])
def test_the_command_looks_where_the_comfyui_looks_that_the_user_names(
    fake_comfyui, place, tmp_path, monkeypatch, capsys
):
    """In its own folder, that of its --base-directory, and one of its extra_model_paths.yaml: as `otca train` does."""
    monkeypatch.delenv(permissions.FOLDERS)
    comfyui = fake_comfyui({"extra_model_paths.yaml": f"{tmp_path}/listed/vae\n"} if place == "listed" else {})
    folder = (comfyui if place == "models" else tmp_path) / place / "vae"
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"decoder.weight": np.zeros((8, 8), np.float32)}, folder / "ae.safetensors")
    if place == "moved/models":
        monkeypatch.setenv("COMFYUI_ARGUMENTS", f"--base-directory {tmp_path}/moved")
    assert main(["memory", str(API / "z_image.json"), "--comfyui", str(comfyui)]) == 0
    assert "ae.safetensors: read, 0.00 GB" in capsys.readouterr().out


def test_pairs_are_groups_of_two():
    content = grpo()
    [sampler] = [id_ for id_, entry in content.items() if entry["class_type"] == "OTCA_SDESampler"]
    [step] = [entry for entry in content.values() if entry["class_type"] == "OTCA_GRPOStep"]
    inputs = {"model": content[sampler]["inputs"]["model"], "pairs_per_iteration": 3, "width": 512, "height": 768}
    content[sampler] = {"class_type": "OTCA_MyPictures", "inputs": {**inputs, "levels": 8, "guidance": 1.0}}
    step["class_type"] = "OTCA_MatchingStep"
    step["inputs"]["batch_size"] = 0
    case, _ = needs.read(content)
    it = case.iteration
    assert (it.size, it.batch, it.sampling_batch, it.kept_calls, it.guided) == ((512, 768, 1), 6, 6, 0, False)


def with_one_judge(name):
    """The workflow without all judges but one, and that one's entry."""
    content = graph(name) if isinstance(name, str) else name
    first, *others = [number for number, entry in content.items() if entry["class_type"] in REWARDS]
    return {number: entry for number, entry in content.items() if number not in others}, content[first]


def test_a_clip_that_judges_visits_with_the_bytes_of_its_file(tmp_path, monkeypatch):
    """Two judges on one CLIP count once; of a file that is not here the published parameters."""
    monkeypatch.setenv("OTCA_MODELS", str(tmp_path))
    folder = tmp_path / "text_encoders"
    folder.mkdir(parents=True)
    content = changed(
        "z_image", RewardHPSv2={"offload": False}
    )  # else the larger of both that visit is all that counts
    plain = needs.read(content)[0].iteration.rewards
    content["clip"] = {"class_type": "CLIPLoader", "inputs": {"clip_name": "qwen3vl.safetensors", "type": "krea2"}}
    for node in ("one", "other"):
        content[node] = {"class_type": "OTCA_RewardVLMJudge", "inputs": {"judge": ["clip", 0], "questions": "Is it?"}}
    case, lines = needs.read(content)
    assert case.iteration.rewards == (*plain, Judge(2 * 4_437_815_808, offload=True))
    assert "qwen3vl.safetensors: not here, published figures" in lines
    save_file({"weight": np.zeros((100, 1000), np.float32)}, folder / "qwen3vl.safetensors")
    case, lines = needs.read(content)
    [judge] = case.iteration.rewards[len(plain) :]
    assert judge.offload and 400_000 <= judge.bytes < 401_000 and "qwen3vl.safetensors: read, 0.00 GB" in lines
    phases = case.needs.phases
    assert phases["scoring"]["rewards"] - phases["the update"].get("rewards", 0) == judge.bytes, (
        "the update has its room"
    )


def test_the_rewards_gradient_is_read_off_its_node():
    content, judge = with_one_judge(grpo())
    [step] = [entry for entry in content.values() if entry["class_type"] == "OTCA_GRPOStep"]
    step["class_type"] = "OTCA_RewardGradientStep"
    step["inputs"] = {"model": step["inputs"]["model"], "mode": "leap", "tile": 256, "batch_size": 2}
    case, _ = needs.read(content)
    it = case.iteration
    assert (it.pull, it.batch, it.pulled) == (Pull(False, 256, calls=2), 2, True), (
        "its pull to the original is on by default"
    )
    judge["class_type"] = "OTCA_RewardPickScore"
    judge["inputs"] |= {"offload": True, "batch_size": 3}
    step["inputs"] |= {"mode": "low_variance", "advantages": ["1", 0], "kl_coefficient": 0.0}
    case, _ = needs.read(content)
    it = case.iteration
    assert (it.pull, it.pulled) == (Pull(True, 256, adds=True), False)
    assert it.rewards == (Judge(3_900_000_000, True, 434_891_272, 3),)
    assert case.needs.phases["the rewards' gradient"]["judging"] > 2 * 434_891_272
    judge["inputs"]["held_out"] = True
    assert needs.read(content)[0].iteration.rewards[0].graph == 0, "only watched"
    judge["inputs"]["device"] = "cpu"
    assert needs.read(content)[0].iteration.rewards == ()


def test_relative_words_ask_a_judge_twice_and_variety_takes_whole_groups():
    content, judge = with_one_judge(grpo())
    [number] = [number for number, entry in content.items() if entry is judge]
    judge["class_type"], judge["inputs"] = "OTCA_RewardHPSv2", {"held_out": True, "batch_size": 1}
    content["x"] = {"class_type": "OTCA_RewardRelativeWords", "inputs": {"reward": [number, 0]}}
    assert needs.read(content)[0].iteration.rewards == (Judge(3_900_000_000, graph=2 * 434_891_272),)
    content["x"]["inputs"]["held_out"] = True
    assert needs.read(content)[0].iteration.rewards[0].graph == 0
    content["y"] = {"class_type": "OTCA_RewardVariety", "inputs": {"batch_size": 1}}
    [step] = [entry for entry in content.values() if entry["class_type"] == "OTCA_GRPOStep"]
    assert needs.read(content)[0].iteration.batch == 1
    step["class_type"] = "OTCA_RewardGradientStep"
    it = needs.read(content)[0].iteration
    assert (it.batch, it.rewards[1]) == (12, Judge(1_700_000_000, graph=368_934_792))
    content["y"]["inputs"]["held_out"] = True
    assert needs.read(content)[0].iteration.batch == 1


def test_a_judge_in_bfloat16_takes_half():
    content, judge = with_one_judge("z_image")
    judge["class_type"], judge["inputs"] = "OTCA_RewardHPSv2", {"dtype": "bfloat16"}
    case, _ = needs.read(content)
    assert case.iteration.rewards == (Judge(1_950_000_000, graph=434_891_272 // 2),)
    judge["inputs"]["dtype"] = "auto"
    wide, _ = needs.read(content)
    [words] = [words for words in wide.changes() if words.startswith("dtype bfloat16")]
    assert wide.changes()[words].needs.total == case.needs.total == wide.needs.total - 1_950_000_000
    judge["class_type"] = "OTCA_RewardVideoAlign"
    assert not needs.read(content)[0].iteration.rewards[0].is_wide, "its file is bfloat16 already"


def test_of_a_video_a_judge_sees_eight_frames():
    content, judge = with_one_judge("wan22_5b")
    judge["class_type"], judge["inputs"]["batch_size"] = "OTCA_RewardClipT", 16
    [found] = needs.read(content)[0].iteration.rewards
    assert (found.graph, found.batch) == (8 * 368_934_792, 2)


def test_a_folder_of_diffusers_is_rehearsed(capsys):
    assert main(["memory", str(API / "otca.json"), "--gpu-gb", "1"]) == 0
    out = capsys.readouterr().out
    assert "shapes-flux: its configurations were read" in out and "not measured on a GPU" in out
    assert "does not fit" in out and "with device cpu on every reward (slow): " in out


# Numbers in the weights of published models. Networks: ComfyUI's own classes, bench/memory.py. Text encoders: what
# huggingface.co counts in their files; T5 XXL's has 9,524,621,312 bytes of bfloat16, Qwen3-4B's 8,044,936,192 and its header.
COUNTS = {
    "black-forest-labs/FLUX.1-dev": {
        "transformer": ARCHITECTURES["flux1"].params,
        "text_encoder_2": 9_524_621_312 // 2,
    },
    "Wan-AI/Wan2.2-T2V-A14B-Diffusers": dict.fromkeys(
        ("transformer", "transformer_2"), ARCHITECTURES["wan22_14b"].params
    ),
    "Wan-AI/Wan2.2-TI2V-5B-Diffusers": {"transformer": ARCHITECTURES["wan22_5b"].params},
    "Tongyi-MAI/Z-Image": {"transformer": ARCHITECTURES["z_image"].params, "text_encoder": 8_044_936_192 // 2},
    "Qwen/Qwen-Image-2512": {"transformer": ARCHITECTURES["qwen_image"].params, "text_encoder": 8_292_166_656},
    "krea/Krea-2-Raw": {"transformer": ARCHITECTURES["krea2"].params, "text_encoder": 4_437_815_808},
    "black-forest-labs/FLUX.2-klein-base-4B": {"transformer": ARCHITECTURES["flux2_klein_4b"].params},
    "black-forest-labs/FLUX.2-klein-base-9B": {"transformer": ARCHITECTURES["flux2_klein_9b"].params},
    "black-forest-labs/FLUX.2-dev": {"text_encoder": 24_011_361_280},
}


@pytest.mark.parametrize("name", COUNTS)
def test_published_configurations_are_those_of_the_published_weights(name):
    networks = published()[name].networks()
    assert COUNTS[name] == {part: sum(p.numel() for p in networks[part].parameters()) for part in COUNTS[name]}


@pytest.mark.parametrize(
    ("kind", "config"), [(Owlv2ForObjectDetection, Owlv2Config), (GroundingDinoForObjectDetection, GroundingDinoConfig)]
)
def test_of_a_judge_whose_blocks_come_no_more_is_there_than_is_counted(kind, config):
    """Of the two networks of Reward: Objects, a published detector and CLIP, which have the largest share outside of blocks."""
    tower = {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "patch_size": 14,
    }
    text = {"hidden_size": 768, "intermediate_size": 3072, "projection_dim": 768}
    clip = CLIPConfig(text_config=text, vision_config=tower, projection_dim=768)
    with torch.device("meta"):
        networks = CLIPModel(clip), kind(config())
    whole = sum(p.nbytes for network in networks for p in network.parameters())
    judge = Judge(REWARDS["OTCA_RewardObjects"], offload=True)
    assert whole == pytest.approx(judge.bytes, rel=0.05)
    least = whole - sum(streaming.away(streaming.sizes([network])) for network in networks)
    assert 0.9 * judge.there(1) < least < judge.there(1)


def test_building_a_network_leaves_its_configuration_as_it_was():
    """transformers writes what it assumes of rotary positions into the dictionary that it is given."""
    found = published()["Qwen/Qwen-Image"]
    before = copy.deepcopy(found.parts)
    found.networks()
    assert found.parts == before


def test_guidance_is_counted_as_the_family_means_it():
    def rows(model, guidance):
        case, _ = needs.read(changed("otca_flux", LoadFlowModel={"path": model}, SDESampler={"guidance": guidance}))
        return 1 + case.iteration.guided

    # Z-Image's 0 is without, klein base's 1; FLUX.2 dev's is a number that the network takes
    assert [rows("Tongyi-MAI/Z-Image", guidance) for guidance in (0.0, 1.0)] == [1, 2]
    assert [rows("black-forest-labs/FLUX.2-klein-base-4B", guidance) for guidance in (1.0, 4.0)] == [1, 2]
    assert rows("black-forest-labs/FLUX.2-dev", 4.0) == 1


def recipe(heading):
    """The graph of a line of docs/recipes.md."""
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    [line] = re.findall(rf"^{re.escape(heading)}:\n\n    otca (train .*)$", page, re.M)
    return options.load(parser().parse_args(shlex.split(line))).graph


def documented() -> dict[str, str]:
    """{workflow, or a line of docs/recipes.md: GB} of the tables in docs/models.md, as many figures as of these in a row."""
    found = {}
    for line in (ROOT / "docs" / "models.md").read_text(encoding="utf-8").splitlines():
        *_, workflows, figures = ["", *line.strip("| ").split(" | ")]
        if re.fullmatch(r"[\d.]+(, [\d.]+)*", figures) and (names := re.findall(r"`(.+?)`", workflows)):
            found |= dict(zip(names, figures.split(", "), strict=True))
    return found


def test_the_figures_of_the_docs_are_those_of_the_estimate(everything):
    figures = documented()
    assert len(figures) == 20
    wrong = {}
    for name, figure in figures.items():
        content = graph(name) if (API / f"{name}.json").is_file() else recipe(name)
        if everything or any(node["class_type"] == "OTCA_MakeTrainable" for node in content.values()):
            case, _ = needs.read(content)
            if figure != f"{case.needs.total / GB:.1f}":
                wrong[name] = figure, case.needs.total / GB
    assert not wrong


def test_quantizing_a_published_model_takes_its_bits():
    case, lines = needs.read(recipe("FLUX.1 in 4 bits, a 24 GB GPU"))
    assert lines == ["black-forest-labs/FLUX.1-dev: not here, published configurations"]
    # nearly all of its weights are in Linear layers: 4.5 bits each
    assert case.needs.parts["weights"] == pytest.approx(11_901_408_320 * 4.5 / 8, rel=0.01)
    assert case.needs.total <= 24 * GB, "as its name says"
