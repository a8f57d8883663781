"""The words by which people find our nodes: what they type into the search, beside title and description."""

from __future__ import annotations

# What somebody looks for who has no node in mind.
_TRAIN = ("train lora", "lora training", "fine-tune", "finetune", "fine tuning", "post-training")
_RL = ("rlhf", "reinforcement learning", "rl", "policy gradient", "alignment")
_MODELS = ("flux", "sd3", "wan", "z-image", "qwen-image")
_REWARD = ("reward", "reward model", "score image", "objective")
_JUDGE = ("preference", "human preference", "quality", "image quality")
_CREDIT = ("credit", "credit assignment", "step weights", "timestep weights", "heatmap")
_FUSE = ("fuse", "combine rewards", "multi-objective", "multi-reward", "advantage")

SEARCH_ALIASES: dict[str, tuple[str, ...]] = {
    "LoadFlowModel": (*_TRAIN, *_RL, *_MODELS, "load model", "diffusers", "flow matching"),
    "ModelMemory": ("low vram", "offload", "quantize", "4-bit", "8-bit", "gradient checkpointing", "compile", "shard"),
    "ModelFiles": ("safetensors", "single file", "checkpoint", "unet", "text encoder", "vae"),
    "MakeTrainable": (*_TRAIN, *_RL, *_MODELS, "add lora", "adapter", "peft"),
    "TunedModel": ("trained model", "apply lora", "before and after", "ksampler", "preview training"),
    "EmbeddedModel": ("tiny flux", "flux", "demo", "cpu", "load model", "shapes", "scenes"),
    "PromptDataset": ("prompts", "dataset", "prompt list", "prompt file", "txt", "jsonl", "batch prompts"),
    "MixGRPOWindow": ("mixgrpo", "mix grpo", "sliding window", "sde window", "grpo"),
    "SDESampler": (
        "sampler",
        "rollout",
        "sample",
        "ksampler",
        "generate",
        "trajectories",
        "grpo",
        "flow-grpo",
        "dancegrpo",
    ),
    "PreferencePairs": ("dpo", "preference", "pairs", "chosen rejected", "pick-a-pic", "offline", "dataset", *_TRAIN),
    "RewardClipT": (*_REWARD, "clip score", "text alignment", "prompt following"),
    "RewardAesthetic": (*_REWARD, *_JUDGE, "aesthetic", "laion", "beauty"),
    "RewardPickScore": (*_REWARD, *_JUDGE, "pickscore", "pick-a-pic"),
    "RewardHPSv2": (*_REWARD, *_JUDGE, "hps", "hpsv2", "hpsv2.1"),
    "RewardImageReward": (*_REWARD, *_JUDGE, "imagereward", "blip"),
    "RewardMyTaste": (*_REWARD, *_JUDGE, "personal taste", "my style", "like"),
    "RewardColorfulness": (*_REWARD, "colour", "color", "saturation", "vivid"),
    "RewardSharpness": (*_REWARD, "sharp", "blur", "focus", "laplacian"),
    "RewardJpegCompressibility": (*_REWARD, "jpeg", "file size", "ddpo", "simple"),
    "RewardJpegIncompressibility": (*_REWARD, "jpeg", "file size", "ddpo", "detail"),
    "RewardShapesAccuracy": (*_REWARD, "shapes", "accuracy", "exact judge", "held out"),
    "RewardScenes": (*_REWARD, "scenes", "counting", "relations", "exact judge"),
    "RewardVideoAlign": (*_REWARD, *_JUDGE, "score video", "video quality", "motion", "videoreward"),
    "RewardVideoScore": (*_REWARD, *_JUDGE, "score video", "video quality"),
    "RewardText": (*_REWARD, "ocr", "text rendering", "typography", "spelling", "read text"),
    "RewardObjects": (*_REWARD, "geneval", "object detection", "counting", "composition", "owl", "grounding dino"),
    "RewardHTTP": (*_REWARD, "api", "server", "remote", "custom reward", "webhook"),
    "RewardVLMJudge": (
        *_REWARD,
        *_JUDGE,
        "vlm",
        "llm",
        "qwen-vl",
        "openai",
        "ollama",
        "vllm",
        "unified reward",
        "judge",
    ),
    "RewardPython": (*_REWARD, "custom reward", "python", "function", "script"),
    "RewardVote": (*_REWARD, *_JUDGE, "vote", "human feedback", "rlhf", "rate images", "choose"),
    "RewardStack": (*_REWARD, "score images", "rewards", "combine rewards", "multi-reward"),
    "ScoreImages": (*_REWARD, *_JUDGE, "rank images", "best of n", "pick best", "sort images", "aesthetic score"),
    "TCDWeights": (*_CREDIT, "tcd", "otca", "trajectory credit"),
    "UniformWeights": (*_CREDIT, "uniform", "grpo", "flow-grpo", "dancegrpo", "plain grpo"),
    "NoiseAwareWeights": (*_CREDIT, "tempflow", "tempflow-grpo", "noise level"),
    "PCPOWeights": (*_CREDIT, "pcpo", "proportionate"),
    "GRPOGuard": (*_CREDIT, "grpo-guard", "ratio normalization", "over-optimization", "reward hacking"),
    "LearnedCredit": (*_CREDIT, "variance", "per objective"),
    "CombineCredit": (*_CREDIT, "multiply weights"),
    "SpatialCredit": (*_CREDIT, "vipo", "dino", "region", "mask", "saliency"),
    "MOCAFuse": (*_FUSE, "moca", "otca", "mgda", "pareto"),
    "WeightedFuse": (*_FUSE, "weighted sum", "gdpo", "flow-grpo", "dancegrpo", "sum rewards"),
    "MinNormFuse": (*_FUSE, "min-norm", "mgda", "pareto", "conflict"),
    "StepwiseGain": (*_FUSE, *_CREDIT, "stepwise-flow-grpo", "dense reward", "process reward"),
    "BestOfN": ("best of n", "filter samples", "select", "dancegrpo", "cheaper update"),
    "GRPOStep": (*_TRAIN, *_RL, "grpo", "ppo", "flow-grpo", "dancegrpo", "dppo", "optimizer", "train step"),
    "MatchingStep": (
        *_TRAIN,
        *_RL,
        "dpo",
        "diffusion dpo",
        "nft",
        "diffusionnft",
        "awm",
        "dgpo",
        "optimizer",
        "train step",
    ),
    "TrainingRun": (*_TRAIN, "trainer", "checkpoint", "log", "curves", "evaluate", "wandb", "iterations", "epochs"),
    "SaveLoRA": ("save lora", "export lora", "safetensors", "lora", "train lora"),
    "ImplicitRewardGuidance": ("guidance", "merge lora", "mix adapters", "lora strength", "several loras", "inference"),
}

# The six of the method, in the order of its graph; the loader of folders and the one of ComfyUI's models are one step of it.
ESSENTIALS_CATEGORY = "Training"
ESSENTIALS = ("LoadFlowModel", "MakeTrainable", "SDESampler", "RewardStack", "TCDWeights", "MOCAFuse", "GRPOStep")
