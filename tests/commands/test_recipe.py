"""`otca recipe`: what of another trainer's configuration is carried over, and that the rest is named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from comfyui_otca.__main__ import main
from comfyui_otca.commands.recipe import FLOW_FACTORY, FLOW_GRPO, Lost
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.tiny import models as tiny
from comfyui_otca.tests.tiny import rewards as tiny_rewards

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming_from.md"
SD3 = "stabilityai/stable-diffusion-3.5-medium"

# As GRPO and NFT of SD3.5 are published for Flow-Factory: what matters of them, by hand.
GRPO = f"""
mixed_precision: "no"
model: {{model_name_or_path: {SD3}, model_type: sd3-5, finetune_type: lora, lora_rank: 32, target_modules: default}}
train:
  trainer_type: grpo
  advantage_aggregation: sum
  resolution: [512, 768]
  group_size: 18
  unique_sample_num_per_epoch: 64
  per_device_batch_size: 8
  gradient_step_per_epoch: 2
  ema_decay: 0.9
  ema_update_interval: 4
  kl_type: v-based
  kl_beta: 0.004
  clip_range: [-0.0001, 0.0002]
scheduler: {{dynamics_type: CPS, noise_level: 0.8, num_sde_steps: 3, sde_steps: [0, 1, 2, 3, 4]}}
eval: {{resolution: [1024, 512], guidance_scale: 5, eval_freq: 7}}
log: {{colour: red}}
rewards:
  - {{name: a, reward_model: PickScore, weight: 2.6, batch_size: 16, device: cuda, dtype: bfloat16}}
  - {{name: b, reward_model: CLIP, weight: 0.5, crop: 3}}
eval_rewards: {{name: c, reward_model: OCR}}
"""
NFT = f"""
mixed_precision: "no"
model: {{model_name_or_path: {SD3}, finetune_type: lora, lora_alpha: 64}}
train:
  trainer_type: nft
  nft_beta: 0.5
  off_policy: true
  ema_decay_schedule: piecewise_linear
  flat_steps: 75
  ramp_rate: 0.0075
  ema_decay: 0.999
  num_train_timesteps: 2
  timestep_range: 0.5
  group_size: 16
scheduler: {{dynamics_type: ODE}}
rewards: {{reward_model: PickScore}}
"""
CODE = """
import ml_collections, os
open(os.environ["TRACE"], "w")
def start():
    config = base.get_config()
    config.pretrained.model = "stabilityai/stable-diffusion-3.5-medium"
    config.mixed_precision = "no"
    return config
def pickscore():
    open(os.environ["TRACE"], "w")
    gpu_number = 4
    config = start()
    config.dataset = os.path.join(os.getcwd(), "dataset/pickscore")
    config.sample.num_steps = 10
    config.sample.train_batch_size = 8
    config.sample.num_image_per_prompt = 16
    groups = gpu_number * config.sample.train_batch_size / config.sample.num_image_per_prompt
    config.sample.num_batches_per_epoch = int(16 / groups)
    config.train.gradient_accumulation_steps = config.sample.num_batches_per_epoch // 2
    config.train.timestep_fraction = 0.99
    config.train.beta = 0.04
    config.train.ema = True
    config.reward_fn = {"pickscore": 1.0}
    return config
def get_config(name):
    return globals()[name]()
"""
BASE = """
import ml_collections
def get_config():
    config = ml_collections.ConfigDict()
    config.resolution = 512
    config.pretrained = pretrained = ml_collections.ConfigDict()
    config.sample = sample = ml_collections.ConfigDict()
    sample.guidance_scale = 4.5
    config.train = train = ml_collections.ConfigDict()
    train.learning_rate = 3e-4
    config.prompt_fn_kwargs = {}
    return config
"""


@pytest.fixture
def carry(tmp_path, monkeypatch, capsys):
    """carry(text, *options): the graph by class, and the lines about what is not in it."""

    def run(text, *options, suffix="yaml"):
        (tmp_path / f"theirs.{suffix}").write_text(text)
        (tmp_path / "base.py").write_text(BASE)
        output = tmp_path / "ours.json"
        code = main(["recipe", str(tmp_path / f"theirs.{suffix}"), "--output", str(output), *options])
        out, error = capsys.readouterr()
        if code:
            return error
        lines = dict(line.strip().split(": ", 1) for line in out.splitlines()[1:-1])
        return {
            node["class_type"].removeprefix("OTCA_"): node["inputs"] for node in json.loads(output.read_text()).values()
        }, lines

    monkeypatch.setenv("TRACE", str(tmp_path / "ran"))
    return run


def test_grpo_is_carried_by_the_factors_of_the_page(carry):
    graph, lines = carry(GRPO)
    sampler, step = graph["SDESampler"], graph["GRPOStep"]
    assert (sampler["kind"], sampler["eta"], sampler["log_prob_norm"], sampler["shift"]) == (
        "cps",
        0.8,
        "squared_error",
        0,
    )
    assert (sampler["width"], sampler["height"], sampler["group_size"], sampler["steps"]) == (768, 512, 18, 10)
    assert (sampler["window_start"], sampler["window_length"], sampler["stochastic_steps"]) == (0, 5, 3)
    assert (sampler["shared_noise"], sampler["guidance"], sampler["batch_size"], step["batch_size"]) == (
        False,
        3.5,
        8,
        8,
    )
    assert graph["PromptDataset"]["prompts_per_iteration"] == 64
    run = graph["TrainingRun"]
    assert (run["evaluation_width"], run["evaluation_height"], run["evaluation_guidance"]) == (512, 1024, 5.0)
    assert (run["evaluate_every"], run["evaluation_steps"], run["checkpoint_every"], run["run_name"]) == (
        7,
        30,
        10,
        "theirs",
    )
    assert step["ema_decay"] == pytest.approx(0.9**0.25) and step["kl_coefficient"] == 0.004
    assert (step["clip_range"], step["clip_range_low"], step["learning_rate"]) == (2e-4, 1e-4, 1e-5)
    assert (step["kl"], step["parts"]) == ("velocity", 2)
    model = graph["LoadFlowModel"]
    assert (model["lora_rank"], model["lora_alpha"], model["dtype"], model["path"]) == (32, 64, "bfloat16", SD3)
    assert (graph["WeightedFuse"]["mode"], graph["WeightedFuse"]["std_scope"]) == ("weighted_sum", "batch")
    assert graph["StepCredit"]["method"] == "uniform" and "MatchingStep" not in graph
    rewards = {name: inputs for name, inputs in graph.items() if name.startswith("Reward") and name != "RewardStack"}
    assert {name: (inputs["coefficient"], inputs["held_out"]) for name, inputs in rewards.items()} == {
        "RewardPickScore": (pytest.approx(0.1), False),  # raw scores are added: theirs is a 26th
        "RewardClipT": (0.5, False),
        "RewardText": (1.0, True),
    }
    assert (rewards["RewardPickScore"]["batch_size"], rewards["RewardPickScore"]["dtype"]) == (16, "bfloat16")


def test_a_kl_of_means_and_a_clip_range_alike_on_both_sides(carry):
    step = carry(GRPO.replace("v-based", "x-based").replace("[-0.0001, 0.0002]", "[-0.0002, 0.0002]"))[0]["GRPOStep"]
    assert (step["kl"], step["clip_range"], step["clip_range_low"]) == ("mean", 2e-4, 0)


def test_what_no_node_says_is_named_with_its_value_and_why(carry):
    _, lines = carry(GRPO)
    assert lines["train.adv_clip_range = 5.0 (its default)"].startswith("GRPO Step clips no advantage")
    assert lines["log.colour = 'red'"] == "not known" and lines["reward CLIP"] == "crop = 3: no such input"
    assert "train.kl_beta = 0.004" not in lines and "model.model_type = 'sd3-5'" not in lines


def test_a_loss_of_matching_step_takes_its_own_settings(carry):
    graph, lines = carry(NFT)
    step = graph["MatchingStep"]
    assert "GRPOStep" not in graph and graph["SDESampler"]["kind"] == "ode"
    assert (step["loss"], step["beta"], step["old_policy"], step["sampled_steps"], step["ema_decay"]) == (
        "nft",
        0.5,
        "late",
        2,
        0,
    )
    assert graph["RewardPickScore"]["coefficient"] == 1 and graph["WeightedFuse"]["std_scope"] == "group"
    assert (step["lowest_level"], step["highest_level"], step["parts"]) == (0.5, 1.0, 2)
    assert "train.off_policy = True" not in lines


@pytest.mark.parametrize(("loss", "beta", "kl"), [("awm", 0, 0.1), ("dpo", 2000, 0.5), ("dgpo", 100, 0.5)])
def test_defaults_that_the_file_does_not_name_are_theirs(loss, beta, kl, carry):
    step = carry(NFT.replace("nft\n", f"{loss}\n  kl_type: v-based\n  kl_beta: 0.5\n"))[0]["MatchingStep"]
    assert (step["loss"], step["beta"], step["kl_coefficient"], step["learning_rate"]) == (loss, beta, kl, 1e-5)


def test_of_python_values_are_read_and_nothing_runs(carry, tmp_path):
    graph, lines = carry(CODE, "--name", "pickscore", suffix="py")
    assert not (tmp_path / "ran").exists()
    sampler, step = graph["SDESampler"], graph["GRPOStep"]
    assert graph["PromptDataset"]["prompts_per_iteration"] == 16, "8 batches of 8 on 4 GPUs, 16 to a prompt"
    assert (sampler["kind"], sampler["steps"], sampler["guidance"], sampler["width"], sampler["group_size"]) == (
        "flow_sde",
        10,
        4.5,
        512,
        16,
    )
    assert (step["kl_coefficient"], step["kl"], step["parts"]) == (0.04, "flow_grpo", 2)
    assert step["ema_decay"] == pytest.approx(0.9**0.25)
    assert (graph["LoadFlowModel"]["lora_rank"], graph["LoadFlowModel"]["lora_alpha"]) == (32, 64)
    assert graph["StepCredit"]["timestep_fraction"] == 1
    assert lines["dataset = \"os.path.join(os.getcwd(), 'dataset/pickscore')\""].startswith("name its list")


def test_of_python_what_is_not_read_is_named_with_its_line(carry):
    more = """    for step in range(3):
        config.sample.num_steps = step
    config.sample.update({"num_steps": 11})
    config.train.clip_range *= 2
    config.pretrained.model = os.environ.get("MODEL")
    n = 3
    return config"""
    code = CODE.replace("    return config\ndef get_config", f"{more}\ndef get_config")
    graph, lines = carry(code, "--name", "pickscore", suffix="py")
    assert len([name for name in lines if name.startswith("pickscore, line")]) == 4, "open(…) is one of them"
    assert "for step in range(3)" in "".join(f"{name}: {line}" for name, line in lines.items())
    assert graph["SDESampler"]["steps"] == 10 and graph["GRPOStep"]["clip_range"] == 1e-4
    assert lines["pretrained.model = \"os.environ.get('MODEL')\""] == "it is not computed"
    assert graph["LoadFlowModel"]["path"] != "os.environ.get('MODEL')" and not any(
        name.startswith("n =") for name in lines
    )


def test_steps_by_hand_and_an_average_that_warms_up_are_named(carry):
    by_hand = GRPO.replace("gradient_step_per_epoch: 2", "gradient_accumulation_steps: 4\n  ema_decay_schedule: linear")
    graph, lines = carry(by_hand.replace("target_modules: default", "target_modules: transformer.default"))
    assert graph["GRPOStep"]["parts"] == 1 and graph["LoadFlowModel"]["lora_targets"] == ""
    assert lines["train.gradient_accumulation_steps = 4"].startswith("a number is of calls there")
    assert lines["train.ema_decay_schedule = 'linear'"] == "the average has no warm-up here"


@pytest.mark.parametrize(
    ("text", "options", "suffix", "words"),
    [
        (NFT.replace("nft\n", "crd\n"), (), "yaml", "'crd' has no node here. Fix: one of grpo, "),
        (NFT.replace("PickScore", "vllm"), (), "yaml", "no reward of it has a node here. Fix: "),
        ("a: [", (), "yaml", "cannot be read: "),
        ("[" * 50_000, (), "yaml", "cannot be read: "),
        ("#" * 300_000, (), "yaml", "Fix: name the file that their trainer takes"),
        (NFT, ("--name", "f"), "yaml", "Fix: leave it out with "),
        (CODE, (), "py", "Fix: name the function of "),
        ("def f(:", ("--name", "f"), "py", "cannot be read: "),
        (GRPO.replace("interval: 4", "interval: 0"), (), "yaml", "train.ema_decay = 0.9 cannot be carried over: "),
        (GRPO.replace("lora_rank: 32", "lora_rank: few"), (), "yaml", "lora_rank"),
        ("- 1", (), "yaml", "has no part called train. Fix: "),
        (CODE, ("--name", "nosuch"), "py", "--name nosuch is not a function of the file. Fix: one of start, pickscore"),
        (CODE, ("--name", "get_config"), "py", "has no part called train. Fix: "),
        ("def f():\n    x = f()\n    y = f()\n    return x", ("--name", "f"), "py", "call each other too often. Fix: "),
        ("train: {a: 1}\ndata: {datasets: [a]}\nrewards: CLIP", (), "yaml", "['a'] cannot be carried over"),
    ],
)  # fmt: skip
def test_what_it_cannot_read_it_refuses(text, options, suffix, words, carry):
    assert words in carry(text, *options, suffix=suffix)


DATASETS = """
data:
  datasets:
    - {name: signs, dataset_dir: dataset/ocr, train: {weight: 3}, eval: {}}
    - {name: sign, dataset_dir: dataset/pickscore, train: {}}
    - {name: off, dataset_dir: dataset/off, train: {enabled: false}}
    - {name: never, dataset_dir: dataset/never, train: {weight: 0}}
    - {name: asked, dataset_dir: dataset/asked, eval: {}}
"""
ONLY = ", applicable_datasets: [signs]}"
ONE = ", applicable_datasets: signs}"  # of which "sign" is a part
OF_BOTH = [{"judged_by": ["pickscore", "clip_t", "text"]}, {"judged_by": ["pickscore", "text"]}]


@pytest.mark.parametrize(("more", "judges"), [("}", [{}, {}]), (ONLY, OF_BOTH), (ONE, OF_BOTH)])
def test_datasets_are_lines_with_their_weights_and_judges(more, judges, carry):
    graph, lines = carry(GRPO.replace("crop: 3}", f"crop: 3{more}") + DATASETS)
    rows = [json.loads(line) for line in graph["PromptDataset"]["prompts"].splitlines()]
    named = [{"file": "dataset/ocr", "weight": 3}, {"file": "dataset/pickscore", "weight": 1}]
    assert rows == [row | judged for row, judged in zip(named, judges, strict=True)]
    assert graph["PromptDataset"]["file"] == "" and "data.dataset_dir = 'data' (its default)" not in lines
    assert not any("applicable_datasets" in line for line in lines)
    assert "looked for in the input folder" in next(
        why for name, why in lines.items() if name.startswith("data.datasets")
    )


def test_a_file_that_is_there_stays(carry, tmp_path):
    (tmp_path / "ours.json").write_text("mine")
    assert "ours.json is there already. Fix: " in carry(NFT) and (tmp_path / "ours.json").read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "options", "suffix"), [(GRPO, (), "yaml"), (NFT, (), "yaml"), (CODE, ("--name", "pickscore"), "py")]
)
def test_a_published_configuration_trains(text, options, suffix, carry, real_model, tmp_path, monkeypatch):
    tiny.make("sd3", tmp_path / "models" / SD3)
    tiny_rewards.pickscore(tmp_path / "models" / "yuvalkirstain" / "PickScore_v1")
    tiny_rewards.clip(tmp_path / "models" / "laion" / "CLIP-ViT-H-14-laion2B-s32B-b79K", projection=64)
    tiny_rewards.clip(tmp_path / "models" / "openai" / "clip-vit-large-patch14")
    monkeypatch.setenv("OTCA_MODELS", str(tmp_path / "models"))
    small = (
        "SDESampler.group_size=2",
        "SDESampler.width=32",
        "SDESampler.height=32",
        "PromptDataset.prompts_per_iteration=2",
    )
    small += ("TrainingRun.evaluate_every=0", "LoadFlowModel.dtype=float32")
    text = text.replace("eval_rewards: {name: c, reward_model: OCR}", "")
    carry(text, *options, "--set", *small, suffix=suffix)
    workflow = tmp_path / "ours.json"
    assert (
        main(["train", str(workflow), "--device", "cpu", "--output", str(tmp_path / "run"), "--iterations", "3"]) == 0
    )
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 3 and all(row["gradient_norm"] > 0 for row in rows)


def rows(table):
    """The page's lines of a table: what changes a training."""
    values = {name: setting.default for names, setting in table.items() for name in names.split()}
    for names, setting in table.items():
        if setting.here or isinstance(setting.carry("?", values), Lost):
            inputs = {}
            for one in setting.here.split():
                node, _, name = one.partition(".")
                inputs.setdefault(f"**{NODE_CLASS_MAPPINGS[f'OTCA_{node}'].TITLE}** ", []).append(f"`{name}`")
            ours = ", ".join(node + ", ".join(names) for node, names in inputs.items()) or "none"
            theirs = ", ".join(f"`{name}`" for name in names.split())
            default = "" if setting.default is None else str(setting.default)
            yield f"| {theirs} | {ours} | {setting.factor} | {default} | *{'run' if setting.run else 'read'}* |"


@pytest.mark.parametrize(("heading", "table"), [("Flow-Factory", FLOW_FACTORY), ("flow_grpo", FLOW_GRPO)])
def test_the_page_shows_the_table_that_the_command_carries_by(heading, table):
    section = re.search(rf"^## {heading}\b.*?(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.M | re.S)[0]
    assert [line for line in section.splitlines() if line.endswith("* |")] == list(rows(table))


def test_every_input_of_the_tables_is_there():
    for table in (FLOW_FACTORY, FLOW_GRPO):
        for setting in table.values():
            for one in setting.here.split():
                node, _, name = one.partition(".")
                declared = NODE_CLASS_MAPPINGS[f"OTCA_{node}"].INPUT_TYPES()
                assert name in {**declared["required"], **declared.get("optional", {})}, one
