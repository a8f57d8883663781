"""The words of the canvas: an input's name in plain words where its own is a term or a symbol, and what an empty text box shows.

The tooltip says the paper's term. A key is an input's name, or `Class.input` for one node's own.
"""

from __future__ import annotations

# Inputs that are not here are called what they are called in files, with spaces: run_name is "run name".
PLAIN = {
    # the model
    "LoadFlowModel.path": "another model folder",
    "LoadFlowModel.training": "what is trained",
    "lora_rank": "adapter rank",
    "lora_alpha": "adapter alpha",
    "lora_targets": "layers with adapter",
    "dtype": "precision",
    "max_sequence_length": "prompt tokens",
    "resume_run": "resume run",
    "start_from": "start from adapter",
    "boundary": "noise level of the switch",
    "quantize": "bits of the weights",
    "offload_vae": "offload autoencoder",
    "vae_tiling": "decode in tiles",
    "shard": "split over GPUs",
    # prompts and sampling
    "PromptDataset.prompts": "prompts, if no file",
    "group_size": "samples per prompt",
    "SDESampler.kind": "kind of noise",
    "eta": "amount of noise",
    "shift": "timestep shift",
    "guidance_2": "guidance of 2nd expert",
    "keep_graph": "keep autograd graph",
    "log_prob_norm": "log-probability",
    "fraction_after_window": "share after window",
    "MixGRPOWindow.length": "window length",
    "MixGRPOWindow.every": "iterations a move",
    "MixGRPOWindow.stride": "steps a move",
    "PreferencePairs.levels": "noise levels",
    # rewards
    "clip": "bounds of the score",
    "rescale": "factor of the score",
    "fps": "frames a second",
    "url": "address",
    "groups_only": "only trained pictures",
    "RewardVLMJudge.extra": "more request fields",
    "RewardObjects.overlap": "box overlap",
    "RewardStack.overlap": "score while sampling",
    "votes": "folder of votes",
    # credit and fusion
    "w_min": "smallest weight",
    "TCDWeights.floor": "how it is applied",
    "SpatialCredit.floor": "smallest share",
    "normalize": "scale of weights",
    "proxy": "measure of progress",
    "features": "image encoder",
    "timestep_fraction": "share of steps",
    "LearnedCredit.decay": "averaging decay",
    "components": "principal components",
    "exploration": "measure of movement",
    "recenter": "recentering",
    "std_scope": "spread is taken over",
    "WeightedFuse.mode": "what is added up",
    "StepwiseGain.fusion": "what is added up",
    "tweedie_steps": "prediction steps",
    "per_step": "each step by itself",
    "BestOfN.best": "best samples",
    "BestOfN.worst": "worst samples",
    # the update
    "kl_coefficient": "pull to original",
    "ema_kl_coefficient": "pull to average",
    "ema_decay": "averaging decay",
    "max_grad_norm": "longest gradient",
    "sampled_steps": "steps to train",
    "GRPOStep.objective": "loss",
    "MatchingStep.beta": "strength of the loss",
    "MatchingStep.guidance": "train with guidance",
    "unconditional_gradient": "gradient of both halves",
    # the run
    "evaluation_seeds": "seeds a prompt",
    "TrainingRun.iterations": "headless iterations",
    "best_metric": "keep best by",
    "stop_after_decline": "stop after declines",
    "wandb_project": "W&B project",
}

# Outputs that say more by other words than by their names, which saved workflows hold.
OUTPUTS = {
    "ScoreImages.best": "best pictures",
    "ScoreImages.ranked": "ranked pictures",
    "ScoreImages.places": "ranks",
    "SpatialCredit.places": "regions",
}

# What an empty box shows. A box of several lines has no label beside it, so its text begins with the name.
PLACEHOLDERS = {
    "PromptDataset.prompts": "Prompts, one a line, if no file is named",
    "PromptDataset.file": "prompts.txt, in the input folder",
    "ImplicitRewardGuidance.guides": "Guides, one a line: my_run = 1.5",
    "ImplicitRewardGuidance.prompts": "Prompts, one a line",
    "PreferencePairs.folder": "a folder with pairs.jsonl",
    "TrainingRun.evaluation_prompts": "Evaluation prompts, one a line; empty: the first iteration's",
    "TrainingRun.run_name": "my_run",
    "TrainingRun.best_metric": "evaluation/sum",
    "TrainingRun.wandb_project": "none",
    "ScoreImages.prompt": "Prompt: what the pictures should show",
    "SaveLoRA.filename": "my_lora",
    "LoadFlowModel.path": "a folder, or owner/name",
    "LoadFlowModel.transformer_file": "the folder's own",
    "lora_targets": "attention and feed-forward",
    "negative_prompt": "Negative prompt: what to lead away from",
    "RewardClipT.path": "a folder, or owner/name",
    "RewardVLMJudge.questions": "Questions, one a line: Is this a good picture?",
    "RewardVLMJudge.extra": '{"temperature": 0}',
    "RewardMyTaste.encoder": "the one in the file",
    "name": "its own name",
    "clip": "0.1, 0.4",
    "token_variable": "OTCA_REWARD_TOKEN",
    "score_key": "score",
    "RewardVote.url": "this page asks",
}


def plain(node: str, name: str, linked: bool = False) -> str:
    """The input's name as the canvas shows it. A `linked` one is a socket, which is called by its type's word: clip is CLIP."""
    return PLAIN.get(f"{node}.{name}") or (not linked and PLAIN.get(name)) or name.replace("_", " ")


def output(node: str, name: str) -> str:
    """An output's name as the canvas shows it."""
    return OUTPUTS.get(f"{node}.{name}", name)


def placeholder(node: str, name: str) -> str | None:
    """What its empty text box shows; None: nothing."""
    return PLACEHOLDERS.get(f"{node}.{name}") or PLACEHOLDERS.get(name)


def names_itself(node: str, name: str, linked: bool = False) -> bool:
    """Whether the shown name is its own, but for spaces; else the tooltip says how it is called in files and messages."""
    return plain(node, name, linked) == name.replace("_", " ")
