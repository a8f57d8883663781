"""`otca recipe`: the configuration of another trainer as a workflow of ours, and what of it no node can say.

`FLOW_FACTORY` and `FLOW_GRPO` are what a setting of theirs becomes; docs/coming_from.md shows the same tables.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import operator
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from . import options
from .options import SET, arg, command

MOST_BYTES = 256 * 1024  # of a configuration file
MOST_CALLS = 100  # of functions of a configuration file, which may call each other
MOST = 1e12  # what arithmetic in one may come to

Values = Mapping[str, Any]  # a configuration: {dotted name: value}, those that the file leaves out among them


class Lost(NamedTuple):
    """Why a value is not carried over as it stands, and what is set in its place (None: nothing)."""

    why: str
    value: Any = None


class Text(str):
    """An expression of a Python file that is not computed, as it stands there."""


class Setting(NamedTuple):
    """A setting of another trainer. Its name in parentheses: it is in the code there, and no file names it.

    Attributes:
        here: our inputs, as `GRPOStep.clip_range`; those are set whose node the graph has. Empty: there is no input.
        default: what it is there where the file does not name it, and so what is carried over.
        factor: what becomes of the value, or why there is no input, in words.
        carry: from the value and the whole configuration to our value, a tuple with one for each input, or Lost.
        of: the only trainer types that have it.
        run: whether their code and ours gave the same on one tensor; else both were read.
    """

    here: str = ""
    default: Any = None
    factor: str = "1"
    carry: Callable[[Any, Values], Any] = lambda value, values: value
    of: str = ""
    run: bool = False


def lost(why: str, default: Any = None, same: tuple = (None,)) -> Setting:
    """A setting without an input here; values of `same` mean what is done here anyway."""
    return Setting("", default, why, lambda value, _: None if value in same else Lost(why))


def apart(why: str, default: Any = None) -> Setting:
    """A setting that does not change what is trained, or that another one carries."""
    return Setting("", default, why, lambda *_: None)


def _named(names: Mapping) -> Callable[[Any, Values], Any]:
    return lambda value, _: names.get(value, Lost(f"here only {', '.join(map(str, names))}"))


def _targets(value: Any, values: Values) -> Any:
    if value == "all":
        return Lost("here the layers that adapters of this model usually have", "")
    of_flux = "flux.1" in str(values["model.model_name_or_path"]).lower()
    value = value.rpartition(".")[2] if isinstance(value, str) and value.endswith(".default") else value
    listed = (_OF_FLUX.split() if of_flux else []) if value == "default" else value
    return ", ".join(listed) if isinstance(listed, list) else listed


def _size(part: str) -> Callable[[Any, Values], tuple]:
    """Width and height: one number, or height and width; numbers of their own stand above it."""
    return lambda value, values: (
        values[f"{part}.width"] or (value[-1] if isinstance(value, list) else value),
        values[f"{part}.height"] or (value[0] if isinstance(value, list) else value),
    )


def _kl(value: Any, values: Values) -> Any:
    of_means = values["train.kl_type"] == "x-based"
    if "grpo" in values["train.trainer_type"]:
        return value, None, "mean" if of_means else "velocity"
    if value and of_means:
        return Lost("of the latents there, 0.003 to 0.033 of ours by step: look for your own", value / 100)
    return value / 5 if values["train.trainer_type"] == "awm" else value


def _old_policy(value: Any, values: Values) -> Any:
    names = "train.ema_decay_schedule", "train.flat_steps", "train.ramp_rate", "train.ema_decay"
    pace = PACES.get(tuple(values[name] for name in names), Lost("no such pace here", "gradual"))
    return pace if value else "on_policy"


def _noisy(values: Values) -> list[int]:
    """The steps that may have noise."""
    steps = values["scheduler.sde_steps"]
    return list(range(values["train.num_inference_steps"] - 1)) if steps is None else steps


def _window(value: Any, values: Values) -> Any:
    steps = _noisy(values)
    every = len(steps) in (0, values["train.num_inference_steps"] - 1)
    window = (0, 0) if every else (min(steps), max(steps) - min(steps) + 1)
    return window if every or window[1] == len(steps) else Lost("here steps in a row", window)


def _updates(values: Values) -> float:
    """Optimizer steps of a rollout."""
    batches, each_of = values["sample.num_batches_per_epoch"], values["train.gradient_accumulation_steps"]
    return batches / each_of if isinstance(batches, int) and isinstance(each_of, int) else 1


def _fraction(value: Any, values: Values) -> Any:
    return (
        1.0
        if int(values["sample.num_steps"] * value) == values["sample.num_steps"] - 1
        else Lost("all but the last have noise here, and of these as many are drawn at random", value)
    )


def _datasets(value: Any, values: Values) -> Any:
    rows = []
    for source in value or ():
        name, train = source.get("name", "default"), source.get("train")
        if train is not None and train.get("enabled", True) and train.get("weight", 1):
            row = {"file": source.get("dataset_dir", "data"), "weight": train.get("weight", 1)}
            if any(only for _, only in values["judges"]):
                row["judged_by"] = [judge for judge, only in values["judges"] if name in (only or [name])]
            rows.append(json.dumps(row, ensure_ascii=False))
    why = "its folders are looked for in the input folder, all prompts of each are taken, and none is of evaluations"
    return Lost(why, ("\n".join(rows), "")) if rows else None


_MACHINE = apart("of the machine or the log, not of the training")
_PROMPTS = "name its list by `--set PromptDataset.file=…`"
_WANDB = lost("**Training Run** `wandb_project` sends figures out: set it yourself", None, (None, "none"))
_ADAM = "fixed here"
_OF_FLUX = (
    "attn.to_k attn.to_q attn.to_v attn.to_out.0 attn.add_k_proj attn.add_q_proj attn.add_v_proj attn.to_add_out "
)
_OF_FLUX += "ff.net.0.proj ff.net.2 ff_context.net.0.proj ff_context.net.2"
PACES = {("piecewise_linear", 0, 0.001, 0.5): "gradual", ("piecewise_linear", 75, 0.0075, 0.999): "late"}
LOSSES = ("nft", "awm", "dgpo", "dpo")  # of Matching Step
REWARD_KEYS = ("rewards", "eval_rewards")

FLOW_FACTORY = {
    "mixed_precision": Setting(
        "LoadFlowModel.dtype",
        "bf16",
        "no is bfloat16 there too",
        _named({"bf16": "bfloat16", "fp16": "float16", "no": "bfloat16"}),
        run=True,
    ),
    "launcher config_file num_processes main_process_port": _MACHINE,
    "data.dataset_dir": Setting(
        "", "data", _PROMPTS, lambda _, values: None if values["data.datasets"] else Lost(_PROMPTS)
    ),
    "data.datasets": Setting(
        "PromptDataset.prompts PromptDataset.file",
        None,
        "newer there (5f6cda1): each that has `train` a line with its `weight`; `applicable_datasets` of rewards is `judged_by`",
        _datasets,
    ),
    "data.max_dataset_size": lost("all lines of the file are prompts"),
    "data.preprocessing_batch_size data.dataloader_num_workers data.cache_dir data.force_reprocess "
    "data.enable_preprocess data.preprocess_parallelism data.sampler_type": _MACHINE,
    "model.model_name_or_path": Setting("LoadFlowModel.path", "black-forest-labs/FLUX.1-dev"),
    "model.model_type model.resume_type": apart("the model's folder, or the file, says it"),
    "model.finetune_type": Setting("LoadFlowModel.training", "full"),
    "model.lora_rank": Setting("LoadFlowModel.lora_rank", 8),
    "model.lora_alpha": Setting(
        "LoadFlowModel.lora_alpha",
        None,
        "null is twice the rank",
        lambda value, values: value or 2 * values["model.lora_rank"],
    ),
    "model.target_modules": Setting(
        "LoadFlowModel.lora_targets", "all", "default: of FLUX.1 their list, else ours", _targets
    ),
    "model.target_components": lost(
        "all transformers of a model are trained", "transformer", ("transformer", ["transformer"])
    ),
    "model.master_weight_dtype": lost("what is trained is float32 here", "bfloat16", ("fp32", "float32")),
    "model.resume_path": Setting("LoadFlowModel.start_from", None, carry=lambda value, _: value or ""),
    "model.attn_backend": lost("**Model Memory** `attention` has other names"),
    "train.trainer_type": Setting(
        "StepCredit.method MatchingStep.loss",
        "grpo",
        "the same word",
        _named({"grpo": "uniform", "grpo-guard": "grpo_guard"} | {loss: ("uniform", loss) for loss in LOSSES}),
    ),
    "train.resolution": Setting("SDESampler.width SDESampler.height", 512, "[height, width]", _size("train")),
    "train.height train.width": apart("stand above `train.resolution`"),
    "train.num_frames": Setting("SDESampler.frames", 1),
    "train.max_epochs": Setting(
        "TrainingRun.iterations", None, "an epoch is a rollout", lambda value, _: value or Lost("there is no end there")
    ),
    "train.per_device_batch_size": Setting("SDESampler.batch_size GRPOStep.batch_size MatchingStep.batch_size", 1),
    "train.group_size": Setting("SDESampler.group_size", 1),
    "train.unique_sample_num_per_epoch": Setting("PromptDataset.prompts_per_iteration", 8),
    "train.gradient_step_per_epoch": Setting(
        "GRPOStep.parts MatchingStep.parts",
        2,
        "each of some of the groups; 1 where `train.gradient_accumulation_steps` is a number",
        lambda value, values: value if values["train.gradient_accumulation_steps"] == "auto" else 1,
    ),
    "train.gradient_accumulation_steps": lost(
        "a number is of calls there, and stands above `train.gradient_step_per_epoch`: set parts by it",
        "auto",
        ("auto",),
    ),
    "train.num_inner_epochs": Setting("GRPOStep.epochs MatchingStep.epochs", 1),
    "train.num_inference_steps": Setting("SDESampler.steps", 10, run=True),
    "train.guidance_scale": Setting("SDESampler.guidance", 3.5),
    "train.guidance_scale_2": Setting(
        "SDESampler.guidance_2", None, "null is 0: the first", lambda value, _: value or 0.0
    ),
    "train.condition_image_size train.auto_resize eval.condition_image_size eval.auto_resize": lost(
        "pictures to edit have the size that the model's pipeline gives them"
    ),
    "train.seed": Setting("SDESampler.seed PromptDataset.seed LoadFlowModel.seed", 42, "other random numbers"),
    "train.learning_rate": Setting("GRPOStep.learning_rate MatchingStep.learning_rate", 1e-5),
    "train.adam_weight_decay": lost(_ADAM, 1e-4, (1e-4,)),
    "train.adam_betas": lost(_ADAM, [0.9, 0.999], ([0.9, 0.999],)),
    "train.adam_epsilon": lost(_ADAM, 1e-8, (1e-8,)),
    "train.max_grad_norm": lost(_ADAM, 1.0, (1,)),
    "train.enable_gradient_checkpointing": Setting("ModelMemory.gradient_checkpointing", False),
    "train.offload_samples_to_cpu train.ref_param_device train.ema_device": _MACHINE,
    "train.latent_storage_dtype": lost("latents stay float32", "fp16", ("fp32",)),
    "train.ema_decay": Setting(
        "GRPOStep.ema_decay MatchingStep.ema_decay",
        0.995,
        "to the power of 1 / `ema_update_interval`; 0 with `off_policy`",
        lambda value, values: 0.0 if values["train.off_policy"] else value ** (1 / values["train.ema_update_interval"]),
    ),
    "train.ema_update_interval": apart("see `train.ema_decay`", 10),
    "train.ema_decay_schedule": Setting(
        "",
        "power",
        "the average has no warm-up here; with `off_policy` it is the pace",
        lambda value, values: (
            None if value == "constant" or values["train.off_policy"] else Lost("the average has no warm-up here")
        ),
    ),
    "train.off_policy": Setting(
        "MatchingStep.old_policy",
        False,
        "false: on_policy; DiffusionNFT's two paces: gradual, late; by epoch there",
        _old_policy,
    ),
    "train.flat_steps train.ramp_rate train.warmup_steps": apart("see `train.off_policy`"),
    "train.advantage_aggregation": Setting(
        "WeightedFuse.mode",
        "gdpo",
        "sum: weighted_sum",
        _named({"gdpo": "weighted_advantages", "sum": "weighted_sum"}),
        run=True,
    ),
    "train.global_std": Setting(
        "WeightedFuse.std_scope",
        True,
        "sum: true is batch; the spread is the biased one there, 0.97 of ours at G = 16",
        lambda value, values: "batch" if value and values["train.advantage_aggregation"] == "sum" else "group",
    ),
    "train.clip_range": Setting(
        "GRPOStep.clip_range GRPOStep.clip_range_low",
        1e-4,
        "[-y, x] is x and y",
        lambda value, _: (
            (value[1], 0.0 if value[0] == -value[1] else -value[0]) if isinstance(value, list) else (value, 0.0)
        ),
        "grpo grpo-guard",
        run=True,
    ),
    "train.adv_clip_range": lost("**GRPO Step** clips no advantage, **Matching Step** at 5", 5.0, ()),
    "train.kl_type": apart("see `train.kl_beta`", "x-based"),
    "train.kl_beta": Setting(
        "GRPOStep.kl_coefficient MatchingStep.kl_coefficient GRPOStep.kl",
        0,
        "**GRPO Step**: 1, `kl` is velocity (v-based) or mean (x-based). Else v-based 1, awm 1/5; x-based 1/100 and a warning",
        _kl,
        run=True,
    ),
    "train.nft_beta": Setting("MatchingStep.beta", 1.0, of="nft", run=True),
    "train.beta": Setting("MatchingStep.beta", 2000.0, of="dpo", run=True),
    "train.dpo_beta": Setting("MatchingStep.beta", 100.0, of="dgpo"),
    "train.num_train_timesteps": Setting(
        "MatchingStep.sampled_steps", 0, "null is 0: all", lambda value, _: value or 0
    ),
    "train.time_sampling_strategy train.time_shift train.weighting_scheme train.logit_mean train.logit_std": lost(
        "the levels are those of the sampler's steps"
    ),
    "train.timestep_range": Setting(
        "MatchingStep.lowest_level MatchingStep.highest_level",
        None,
        "x is 1 - x and 1; [x, y] is 1 - y and 1 - x. Not named: 0.9, of dpo 0.99, of dgpo 0.6",
        lambda value, values: (
            (1 - value[1], 1 - value[0])
            if isinstance(value, list)
            else (1 - (value or {"dpo": 0.99, "dgpo": 0.6}.get(values["train.trainer_type"], 0.9)), 1.0)
        ),
    ),
    "train.awm_weighting": Setting(
        "MatchingStep.weighting", "Uniform", "in small letters", lambda value, _: value.lower(), "awm", True
    ),
    "train.ghuber_power train.kl_weight train.ema_kl_beta": lost("awm as its authors have it"),
    "train.use_shared_noise train.clip_dsm train.clip_kl train.switch_ema_ref train.kl_cfg train.use_ema_ref "
    "train.ema_ref_max_decay train.ema_ref_ramp_rate train.ema_ref_device": lost("dgpo as its authors have it"),
    "scheduler.dynamics_type": Setting(
        "SDESampler.kind SDESampler.log_prob_norm",
        "Flow-SDE",
        "CPS with squared_error",
        _named(
            {
                "Flow-SDE": ("flow_sde", "full"),
                "Dance-SDE": ("dance_sde", "full"),
                "CPS": ("cps", "squared_error"),
                "ODE": ("ode", "full"),
            }
        ),
        run=True,
    ),
    "scheduler.noise_level": Setting("SDESampler.eta", 0.7, run=True),
    "scheduler.sde_steps": Setting(
        "SDESampler.window_start SDESampler.window_length", None, "null: all but the last", _window
    ),
    "scheduler.num_sde_steps": Setting(
        "SDESampler.stochastic_steps",
        1,
        "null, all of them, and ODE: 0",
        lambda value, values: (
            0 if values["scheduler.dynamics_type"] == "ODE" or value in (None, len(_noisy(values))) else value
        ),
    ),
    "scheduler.seed": apart("the sampler has one seed"),
    "(noise_of_a_group)": Setting("SDESampler.shared_noise", False, "each sample has its own first noise"),
    "scheduler.flow_shift": Setting("SDESampler.shift", 0.0, "none: the checkpoint's own"),
    "eval.eval_freq": Setting("TrainingRun.evaluate_every", 10),
    "eval.num_inference_steps": Setting("TrainingRun.evaluation_steps", 30),
    "eval.resolution": Setting(
        "TrainingRun.evaluation_width TrainingRun.evaluation_height", 1024, "[height, width]", _size("eval")
    ),
    "eval.height eval.width": apart("stand above `eval.resolution`"),
    "eval.guidance_scale": Setting("TrainingRun.evaluation_guidance", 3.5),
    "eval.guidance_scale_2": lost("as in training"),
    "eval.num_frames": Setting("TrainingRun.evaluation_frames", 0),
    "eval.per_device_batch_size eval.seed": _MACHINE,
    "log.run_name": Setting(
        "TrainingRun.run_name", None, "null: the file's name", lambda value, values: value or values["name"]
    ),
    "log.save_freq": Setting(
        "TrainingRun.checkpoint_every", 10, carry=lambda value, _: value or Lost("there none is kept")
    ),
    "log.project": _MACHINE,
    "log.logging_backend": _WANDB,
    "log.save_dir log.save_model_only log.verbose": _MACHINE,
}

FLOW_GRPO = {
    "pretrained.model": Setting("LoadFlowModel.path", "runwayml/stable-diffusion-v1-5"),
    "pretrained.revision": lost("the folder is as it is", "main", ("main", "")),
    "use_lora": Setting(
        "LoadFlowModel.training", True, "true: lora, false: full", _named({True: "lora", False: "full"})
    ),
    "(rank)": Setting("LoadFlowModel.lora_rank", 32),
    "(alpha)": Setting("LoadFlowModel.lora_alpha", 64),
    "(kind)": Setting("SDESampler.kind", "flow_sde"),
    "(noise_of_a_group)": Setting("SDESampler.shared_noise", False, "each sample has its own first noise"),
    "(shift)": Setting("SDESampler.shift", 0.0, "the checkpoint's own"),
    "(sum_of_rewards)": Setting("WeightedFuse.mode", "weighted_sum"),
    "mixed_precision": Setting(
        "LoadFlowModel.dtype", "fp16", carry=_named({"bf16": "bfloat16", "fp16": "float16", "no": "float32"})
    ),
    "resolution": Setting("SDESampler.width SDESampler.height", 768),
    "dataset": lost(_PROMPTS, "", ()),
    "prompt_fn": lost("prompts are lines of a file", "imagenet_animals", ("general_ocr",)),
    "prompt_fn_kwargs": lost("prompts are lines of a file", None, (None, {})),
    "sample.num_steps": Setting("SDESampler.steps", 40),
    "sample.eval_num_steps": Setting("TrainingRun.evaluation_steps", 40),
    "sample.guidance_scale": Setting("SDESampler.guidance", 4.5),
    "sample.train_batch_size": Setting("SDESampler.batch_size", 1),
    "sample.num_image_per_prompt": Setting("SDESampler.group_size", 1),
    "sample.num_batches_per_epoch": Setting(
        "PromptDataset.prompts_per_iteration",
        2,
        "times GPUs · `train_batch_size` / `num_image_per_prompt`",
        lambda value, values: (
            round(
                value * values["gpu_number"] * values["sample.train_batch_size"] / values["sample.num_image_per_prompt"]
            )
            if isinstance(value, int)
            else Lost("no number that can be read")
        ),
    ),
    "gpu_number": apart("see `sample.num_batches_per_epoch`", 1),
    "sample.global_std": Setting(
        "WeightedFuse.std_scope",
        True,
        "true: batch, false: group; biased there",
        _named({True: "batch", False: "group"}),
    ),
    "sample.noise_level": Setting("SDESampler.eta", 0.7),
    "sample.test_batch_size sample.batch_size": apart("nothing of it changes the training"),
    "train.batch_size": Setting("GRPOStep.batch_size", 1),
    "train.learning_rate": Setting("GRPOStep.learning_rate", 3e-4),
    "train.use_8bit_adam": lost(_ADAM, False, (False,)),
    "train.adam_beta1": lost(_ADAM, 0.9, (0.9,)),
    "train.adam_beta2": lost(_ADAM, 0.999, (0.999,)),
    "train.adam_weight_decay": lost(_ADAM, 1e-4, (1e-4,)),
    "train.adam_epsilon": lost(_ADAM, 1e-8, (1e-8,)),
    "train.max_grad_norm": lost(_ADAM, 1.0, (1,)),
    "train.gradient_accumulation_steps": Setting(
        "GRPOStep.parts",
        1,
        "`num_batches_per_epoch` / it",
        lambda _, values: (
            int(parts) if (parts := _updates(values)) >= 1 and parts % 1 == 0 else Lost("no whole number of steps", 1)
        ),
    ),
    "train.num_inner_epochs": Setting("GRPOStep.epochs", 1),
    "train.cfg": lost("trained as it is sampled", True, (True,)),
    "train.adv_clip_max": lost("**GRPO Step** clips no advantage", 5, ()),
    "train.clip_range": Setting("GRPOStep.clip_range", 1e-4),
    "train.timestep_fraction": Setting("StepCredit.timestep_fraction", 1.0, "all but the last step: 1", _fraction),
    "train.beta": Setting(
        "GRPOStep.kl_coefficient GRPOStep.kl",
        0.0,
        "1, and `kl` is flow_grpo",
        lambda value, _: (value, "flow_grpo"),
        run=True,
    ),
    "train.lora_path": Setting("LoadFlowModel.start_from", None, carry=lambda value, _: value or ""),
    "train.ema": Setting(
        "GRPOStep.ema_decay",
        False,
        "0.9 every 8 optimizer steps there",
        lambda value, values: 0.9 ** (_updates(values) / 8) if value else 0.0,
    ),
    "per_prompt_stat_tracking": lost("advantages are of a prompt's group", True, (True,)),
    "seed": Setting("SDESampler.seed PromptDataset.seed LoadFlowModel.seed", 42, "other random numbers"),
    "run_name": Setting(
        "TrainingRun.run_name", "", "empty: the function's name", lambda value, values: value or values["name"]
    ),
    "num_checkpoint_limit": Setting("TrainingRun.keep_checkpoints", 5),
    "save_freq": Setting("TrainingRun.checkpoint_every", 20),
    "eval_freq": Setting("TrainingRun.evaluate_every", 20),
    "logdir save_dir allow_tf32": _MACHINE,
}

# Of both: {their name of a reward: (our node, their score in units of ours, what is not the same)}.
REWARDS = {
    "pickscore": ("RewardPickScore", 1 / 26, ""),
    "pickscore_rank": ("RewardPickScore", 1, "there the rank within the group, here the score itself"),
    "clip": ("RewardClipT", 1, ""),
    "ocr": ("RewardText", 1, ""),
    "aesthetic": ("RewardAesthetic", 1, ""),
    "imagereward": ("RewardImageReward", 1, ""),
    "jpeg_compressibility": ("RewardJpegCompressibility", 1 / 500, ""),
    "jpeg_incompressibility": ("RewardJpegIncompressibility", 1, ""),
}


@command(
    "recipe",
    "write another trainer's configuration as a workflow",
    arg("file", "a Flow-Factory YAML, or a flow_grpo Python file with --name", type=Path),
    arg("--name", "of a Python file: the function that makes the configuration"),
    arg(
        "--output", "the workflow (default: the file's or the function's name, .json, here)", type=Path, metavar="FILE"
    ),
    SET,
)
def recipe(arguments: argparse.Namespace) -> int:
    """Writes the workflow that a configuration of Flow-Factory or flow_grpo stands for, and prints each of its values that no
    node can say. Nothing of the file is run."""
    import yaml

    path, name = arguments.file, arguments.name or arguments.file.stem
    output = arguments.output or Path(f"{name}.json")
    if output.exists():
        raise ValueError(f"--output {output} is there already. Fix: name another file")
    of_code = path.suffix == ".py"
    if of_code != (arguments.name is not None):
        fix = f"name the function of {path} by it" if of_code else f"leave it out with {path}"
        raise ValueError(f"--name belongs to a Python file, and only to that. Fix: {fix}")
    try:
        content = text_of(path)
        code = _Code(path, content) if of_code else None
        config = code.config(name) if code else _flat(yaml.safe_load(content))
    except (UnicodeError, yaml.YAMLError, SyntaxError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}. Fix: name the file that their trainer takes") from error
    if not any(setting.startswith("train.") for setting in config):
        raise ValueError(f"{path} has no part called train. Fix: name the file that their trainer takes")
    workflow, lines = carried(config, FLOW_GRPO if of_code else FLOW_FACTORY, name)
    options.change(workflow, arguments.set)
    workflow.save(output)
    print(
        f"{output}: what {path} trains, as a workflow; not carried over as it is:",
        *lines,
        *(code.unread if code else ()),
        sep="\n  ",
    )
    print(f"next: otca validate {output}")
    return 0


def carried(config: dict[str, Any], table: Mapping[str, Setting], name: str):
    """The workflow of a configuration, and a line for each value that is not carried over as it is."""
    from ..host import paths
    from ..nodes import NODE_CLASS_MAPPINGS
    from ..trainer.workflow.running import Workflow

    trained, judged = (
        entries if isinstance(entries, list) else [entries] for entries in (config.pop(key, []) for key in REWARD_KEYS)
    )
    settings = {name: setting for names, setting in table.items() for name in names.split()}
    judges: list[tuple[str, Any]] = []  # our name of each reward, and those datasets alone that it judges
    values = {name: setting.default for name, setting in settings.items()} | config | {"judges": judges, "name": name}
    trainer = values.get("train.trainer_type", "grpo")
    if trainer not in ("grpo", "grpo-guard", *LOSSES):
        raise ValueError(
            f"train.trainer_type {trainer!r} has no node here. Fix: one of grpo, grpo-guard, {', '.join(LOSSES)}"
        )
    graph = Workflow.load(paths.ASSETS.parent / "workflows" / "api" / "otca_flux.json", NODE_CLASS_MAPPINGS).graph
    template = {
        node["class_type"]: graph.pop(id_) for id_, node in [*graph.items()] if "OTCA_Reward" in node["class_type"]
    }
    stack = template["OTCA_RewardStack"]["inputs"]
    graph["8"] = {"class_type": "OTCA_RewardStack", "inputs": {"trajectories": stack["trajectories"]}}
    units = values.get("train.advantage_aggregation") != "gdpo" and len(trained) > 1  # raw scores are added up
    lines, rewards = [], {}
    for number, entry in enumerate([*trained, *judged]):
        entry = entry if isinstance(entry, dict) else {"reward_model": entry}
        kind = str(entry.get("reward_model"))
        node, unit, why = REWARDS.get(kind.lower(), ("", 1, "no node of ours"))
        lines += [f"reward {kind}: {why}"] * bool(why)
        if node:
            only = entry.get("applicable_datasets")
            name = NODE_CLASS_MAPPINGS[f"OTCA_{node}"].announced()[0][0]
            judges.append((name, [only] if isinstance(only, str) else only))
        if node and node not in rewards:
            weight = float(entry.get("weight", 1)) * (unit if units else 1)
            rewards[node] = {**entry, "coefficient": weight, "held_out": number >= len(trained)}
            graph[node] = template.get(f"OTCA_{node}", {"class_type": f"OTCA_{node}", "inputs": {}})
            graph["8"]["inputs"][f"reward_{len(rewards)}"] = [node, 0]
    if all(inputs["held_out"] for inputs in rewards.values()):
        raise ValueError(f"no reward of it has a node here. Fix: put one of {', '.join(REWARDS)} in its place")
    workflow = Workflow(graph, NODE_CLASS_MAPPINGS)
    exchanges = {"TCDWeights": "StepCredit", "MOCAFuse": "WeightedFuse", **{node: node for node in rewards}}
    for node, other in (exchanges | ({"GRPOStep": "MatchingStep"} if "grpo" not in trainer else {})).items():
        workflow.exchange(node, other)
    for node, inputs in rewards.items():
        declared = workflow.nodes[node].declared
        for key in inputs.keys() - {"name", "reward_model", "weight", "applicable_datasets"}:
            if key in declared:
                workflow.set(f"{node}.{key}", inputs[key])
            else:
                lines.append(f"reward {inputs['reward_model']}: {key} = {inputs[key]!r}: no such input")
    for name in [*values][:-2]:  # without our own
        setting, value = settings.get(name, lost("not known", None, ())), values[name]
        if setting.of and trainer not in setting.of.split():
            setting = lost(f"here with {setting.of} alone", None, (value,) if name not in config else ())
        if isinstance(value, Text) and setting.here:
            setting = lost("it is not computed", None, ())
        try:
            result = setting.carry(value, values)
        except (AttributeError, TypeError, ValueError, ArithmeticError) as error:
            raise ValueError(f"{name} = {value!r} cannot be carried over: {error}. Fix: write it as they do") from error
        if isinstance(result, Lost):
            lines.append(f"{name} = {value!r}{'' if name in config else ' (its default)'}: {result.why}")
            result = result.value
        inputs = setting.here.split()
        for address, converted in zip(
            inputs, result if isinstance(result, tuple) else (result,) * len(inputs), strict=False
        ):
            if converted is not None and workflow.find(address.partition(".")[0]):
                workflow.set(address, round(converted, 9) if isinstance(converted, float) else converted)
    return workflow, [line.replace("*", "").replace("`", "") for line in sorted(lines)]


def text_of(path: Path) -> str:
    """The text of a configuration file. Raises Damaged: it is too large, or no file; ValueError: it is not there."""
    from ..host.files import read_bytes

    content = read_bytes(path, MOST_BYTES, "name the file that their trainer takes")
    if content is None:
        raise ValueError(f"{path} is not there. Fix: copy it there, as their repository has it")
    return content.decode("utf-8")


# --- reading ----------------------------------------------------------------------------------------------------------


def _flat(values: Any, before: str = "") -> dict[str, Any]:
    flat = {}
    for name, value in values.items() if isinstance(values, dict) else ():
        inner = isinstance(value, dict) and name not in REWARD_KEYS
        flat |= _flat(value, f"{before}{name}.") if inner else {f"{before}{name}": value}
    return flat


_ARITHMETIC: Mapping[type, Callable] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


class _Code:
    """Functions of Python files that build a configuration by assignments. They are read, and nothing of them runs.

    What is not a literal, a name, arithmetic or one of these functions is kept as its text.
    """

    def __init__(self, path: Path, content: str):
        """`path`: the file of that content; the one called base.py beside it is what it calls base."""
        files = {"": content}
        if re.search(r"\bbase\.", content):
            files["base."] = text_of(path.with_name("base.py"))
        parts = [(before, part) for before, text in files.items() for part in ast.parse(text).body]
        self.unread: list[str] = []
        self.functions = {before + part.name: part for before, part in parts if isinstance(part, ast.FunctionDef)}
        self.aliases: dict[str, str] = {}  # of `config.train = train = …`
        self.calls = 0

    def config(self, function: str) -> dict[str, Any]:
        """The configuration that a function makes, as a YAML file has it."""
        if function not in self.functions:
            raise ValueError(
                f"--name {function} is not a function of the file. Fix: one of {', '.join(self.functions)}"
            )
        names = self.names(function).items()
        config = {name.removeprefix("config."): value for name, value in names if "." in name or name in FLOW_GRPO}
        named = config.pop("reward_fn", {})
        named = named if isinstance(named, dict) else {named: 1}
        return config | {"rewards": [{"reward_model": kind, "weight": weight} for kind, weight in named.items()]}

    def names(self, function: str) -> dict[str, Any]:
        """Names with their values, as `config.train.beta`, of a function and of those that it calls for its own."""
        self.calls += 1
        if self.calls > MOST_CALLS:
            raise ValueError(f"{function} and others call each other too often. Fix: name a plain configuration")
        names: dict[str, Any] = {}
        for part in self.functions[function].body[bool(ast.get_docstring(self.functions[function])) :]:
            if not isinstance(part, ast.Assign | ast.Return | ast.Pass | ast.Import | ast.ImportFrom):
                self.unread.append(f"{function}, line {part.lineno}: {ast.unparse(part).splitlines()[0]}: not read")
            elif isinstance(part, ast.Assign):
                value, (key, *others) = ast.unparse(part.value), map(ast.unparse, part.targets)
                self.aliases |= dict.fromkeys(others, key)
                if value.removesuffix("()") in self.functions:
                    names |= self.names(value.removesuffix("()"))
                elif not value.endswith("ConfigDict()"):
                    names[self.full(key)] = self.value(part.value, names)
        return names

    def full(self, name: str) -> str:
        head, dot, rest = name.partition(".")
        return self.aliases.get(head, head) + dot + rest

    def value(self, node: ast.expr, names: Mapping[str, Any]) -> Any:
        text = self.full(ast.unparse(node))
        if text in names:
            return names[text]
        with contextlib.suppress(ValueError):  # it is no literal
            return ast.literal_eval(node)
        sides = [node.left, node.right] if isinstance(node, ast.BinOp) else getattr(node, "args", [])
        work = int if text.startswith("int(") else _ARITHMETIC.get(type(getattr(node, "op", None)))
        numbers = [self.value(side, names) for side in sides] if work else [""]
        plain = all(isinstance(number, int | float) and 0 < abs(number) <= MOST for number in numbers)
        return work(*numbers) if work and plain else Text(text)
