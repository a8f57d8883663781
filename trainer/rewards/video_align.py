"""VideoAlign's VideoReward: visual quality, motion quality and text alignment of a video, all by one pass of a Qwen2-VL
(Liu et al., 2501.13918)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ...host import paths
from ..networks import preprocess
from ..networks.published import ALL, Published, transformers_class
from .video import VideoNetwork, VideoReward

CHECKPOINT, BASE = "KlingTeam/VideoReward", "Qwen/Qwen2-VL-2B-Instruct"
FILES = Published("VideoAlign's VideoReward on Qwen2-VL-2B", ALL, "5.03 GB", CHECKPOINT)
BASE_FILES = Published("Qwen2-VL", ALL, "4.4 GB; without its weights 12 MB, enough beside a model.pth", BASE)
REWARD_TOKENS = ("<|VQ_reward|>", "<|MQ_reward|>", "<|TA_reward|>")
# Qwen2-VL's chat template of one user message: a video, then a text.
CHAT = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
    "<|vision_start|>{video}<|vision_end|>{text}<|im_end|>\n<|im_start|>assistant\n"
)
# Settings of model_config.json whose other values ask for other prompts or frames than those made here.
ONLY = {"prompt_template_type": "detailed_special", "sample_type": "uniform", "num_frames": None}
LEAST_FRAMES, MOST_FRAMES = 4, 768
FPS = 16.0  # Wan 2.1's
LEAST_PIXELS = 128 * 28 * 28  # of a frame


class VideoAlign(VideoReward):
    """One of VQ, MQ, TA: (raw − mean) / std, by the checkpoint's own figures; raw where it has none.

    Args:
        dimension: vq, mq or ta.
        model: folder or cached hub id of the checkpoint: model_config.json, and checkpoint-*/ or model*.safetensors.
        base: the same of the Qwen2-VL that it was trained from, for what the checkpoint's folder lacks.
        fps: frames per second of the videos to score; 0: what the file says, and FPS where that says nothing.
    """

    network: VideoAlignNetwork
    DIMENSIONS = ("vq", "mq", "ta")

    def __init__(
        self,
        name: str = "video_align",
        *,
        dimension: str = "vq",
        model: str = CHECKPOINT,
        base: str = BASE,
        fps: float = 0.0,
        **use,
    ):
        super().__init__(name, VideoAlignNetwork, find(model), {"base": find_base(base, model)}, **use)
        self.dimension, self.fps = dimension, fps
        self.reads_prompt = dimension == "ta"  # the network reads it after it has judged the others

    def frames(self, total: int) -> list[int]:
        return sampled_frames(total, self.fps or self.file_fps or FPS, self.network.fps)


def find(model: str) -> Path:
    """The folder of the checkpoint."""
    return FILES.find_folder(model, "model_config.json")


def find_base(base: str, model: str) -> Path:
    """The folder of the tokenizer, and of all weights that the checkpoint does not hold: its own, if it holds them all."""
    folder, marker = find(model), "tokenizer_config.json"
    if (folder / marker).is_file():
        return folder
    return BASE_FILES.find_folder(base, marker)


class VideoAlignNetwork(VideoNetwork):
    """Qwen2-VL with its adapter merged and a linear head on three special tokens."""

    AUTO_DTYPE = torch.bfloat16

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype, *, base: Path):
        super().__init__(folder, device, dtype)
        BASE_FILES.check_type(base, "qwen2_vl")
        settings = json.loads((folder / "model_config.json").read_text(encoding="utf-8"))
        data = settings["data_config"]
        for name, value in ONLY.items():
            if (setting := data.get(name, value)) != value:
                raise FILES.misfit(folder, f"has {name} {setting!r}; only {value!r} can be scored")
        self.fps, self.most_pixels = data["fps"], data["max_frame_pixels"]
        figures = settings.get("inference_config") or {}
        of_each = [dimension.upper() for dimension in VideoAlign.DIMENSIONS]
        self.mean = torch.tensor([figures.get(f"{dimension}_mean", 0.0) for dimension in of_each])
        self.std = torch.tensor([figures.get(f"{dimension}_std", 1.0) for dimension in of_each])

        tokenizer = transformers_class("AutoTokenizer")
        self.tokenizer = tokenizer.from_pretrained(
            base, local_files_only=True, padding_side="right", trust_remote_code=False
        )
        self.tokenizer.add_tokens(list(REWARD_TOKENS), special_tokens=True)
        self.reward_ids = torch.tensor(self.tokenizer.convert_tokens_to_ids(list(REWARD_TOKENS)))
        self.prompt = (paths.ASSETS / "reward_prompts" / "video_align.txt").read_text(encoding="utf-8")

        tensors = _merged(_weights(folder, base), settings["peft_lora_config"])
        if (head := tensors.get("rm_head.weight", torch.empty(0))).shape[:1] not in ((1,), (3,)):
            raise FILES.misfit(
                folder, f"has an rm_head.weight of shape {tuple(head.shape)}, where 1 or 3 rows are needed"
            )
        config = transformers_class("Qwen2VLConfig").from_pretrained(base, local_files_only=True)
        if (embedding := tensors.get("language_model.embed_tokens.weight")) is not None:
            config.text_config.vocab_size = len(embedding)  # the reference cuts it to its tokenizer's

        def build():
            model = transformers_class("Qwen2VLModel")(config)
            model.rm_head = torch.nn.Linear(config.text_config.hidden_size, len(head), bias=False)
            return model

        # Rotary frequencies change precision too: in bfloat16 the network was trained with rounded ones.
        self.model = FILES.filled(build, tensors, folder, dtype)
        self.model.rm_head.float()  # else bfloat16 would make close scores equal
        self.settle(device)

    @torch.no_grad()
    def score(self, videos: Tensor, prompts: Sequence[str]) -> Tensor:
        """[B, 3] float32 for frames [B, n, H, W, 3] in [0, 1], n even."""
        vision = self.model.config.vision_config
        frames = resized(videos.to(self.device), vision.patch_size * vision.spatial_merge_size, self.most_pixels)
        pixels, grid = patches(frames, vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size)
        pads = "<|video_pad|>" * (math.prod(grid) // vision.spatial_merge_size**2)
        texts = [CHAT.format(video=pads, text=self.prompt.replace("{text_prompt}", prompt)) for prompt in prompts]
        tokens = self.tokenizer(texts, padding=True, return_tensors="pt").to(self.device)
        hidden = self.model(
            **tokens,
            # Counted through, as the reference does; by itself transformers would give each token of a frame its own position.
            position_ids=torch.arange(tokens.input_ids.shape[1], device=self.device).expand(3, *tokens.input_ids.shape),
            pixel_values_videos=pixels,
            video_grid_thw=torch.tensor([grid] * len(videos), device=self.device),
            use_cache=False,
        ).last_hidden_state
        is_reward = torch.isin(tokens.input_ids, self.reward_ids.to(self.device))
        raw = self.model.rm_head(hidden[is_reward].float()).unflatten(0, (len(videos), 3)).cpu()
        raw = raw.diagonal(dim1=1, dim2=2) if raw.shape[2] == 3 else raw[:, :, 0]
        return (raw - self.mean) / self.std


def sampled_frames(total: int, fps: float, wanted_fps: float) -> list[int]:
    """An even number of frames, evenly spread with both ends: `wanted_fps` of a video of `total` frames at `fps`, at least
    LEAST_FRAMES where it has them.

    Raises:
        ValueError: a video of one frame.
    """
    if total < 2:
        raise ValueError(f"a video of {total} frame has no motion to judge. Fix: sample at least 2, better 4 frames")
    most = min(MOST_FRAMES, total) // 2 * 2
    count = round(min(max(total / fps * wanted_fps, LEAST_FRAMES), most) / 2) * 2
    return torch.linspace(0, total - 1, count).round().long().tolist()


def size_within(height: int, width: int, factor: int, least: int, most: int) -> tuple[int, int]:
    """The multiples of `factor` nearest to the size, shrunk or grown alike so that their product is in [least, most]."""
    sides = [max(factor, round(side / factor) * factor) for side in (height, width)]
    if math.prod(sides) > most:
        scale = math.sqrt(height * width / most)
        sides = [math.floor(side / scale / factor) * factor for side in (height, width)]
    elif math.prod(sides) < least:
        scale = math.sqrt(least / (height * width))
        sides = [math.ceil(side * scale / factor) * factor for side in (height, width)]
    return sides[0], sides[1]


def resized(videos: Tensor, factor: int, most_pixels: int) -> Tensor:
    """[B, n, 3, h, w] float32, whole numbers in 0…255, for [B, n, H, W, 3] in [0, 1]: bicubic with antialias."""
    height, width = videos.shape[2:4]
    size = size_within(height, width, factor, LEAST_PIXELS, most_pixels)
    frames = (videos.float() * 255).round().flatten(0, 1).permute(0, 3, 1, 2)
    frames = torch.nn.functional.interpolate(frames, size, mode="bicubic", antialias=True, align_corners=False)
    return frames.clamp(0, 255).round().unflatten(0, videos.shape[:2])


def patches(frames: Tensor, patch: int, merge: int, stack: int) -> tuple[Tensor, tuple[int, int, int]]:
    """The patches that Qwen2-VL's video processor makes of frames [B, n, 3, h, w] in 0…255, without torchvision.

    Returns:
        Patches [B · n/stack · h/patch · w/patch, 3 · stack · patch²], those that are merged side by side, and one video's
        grid (n/stack, h/patch, w/patch).
    """
    count, time, _, height, width = frames.shape
    grid = time // stack, height // patch, width // patch
    mean, std = (frames.new_tensor(figures)[:, None, None] for figures in (preprocess.CLIP_MEAN, preprocess.CLIP_STD))
    cut = ((frames / 255 - mean) / std).reshape(
        count, grid[0], stack, 3, grid[1] // merge, merge, patch, grid[2] // merge, merge, patch
    )
    return cut.permute(0, 1, 4, 7, 5, 8, 3, 2, 6, 9).flatten(6).flatten(0, 5), grid


def _weights(folder: Path, base: Path) -> dict[str, Tensor]:
    """The checkpoint's tensors in their published names: whole, or what was trained on top of the base's."""
    steps = sorted(folder.glob("checkpoint-*"), key=lambda step: int(step.name.removeprefix("checkpoint-")))
    if not steps:
        return FILES.read_all(folder)
    if (whole := steps[-1] / "model.pth").is_file():
        return dict(FILES.read(whole))
    trained = [steps[-1] / "adapter_model.safetensors", steps[-1] / "non_lora_state_dict.pth"]
    if missing := [file.name for file in trained if not file.is_file()]:
        raise FileNotFoundError(
            f"{steps[-1]} has neither model.pth nor {' and '.join(missing)}. Fix: copy or download {CHECKPOINT} again"
        )
    parts = [BASE_FILES.read_all(base), *(FILES.read(file) for file in trained)]
    return {_plain(name): tensor for part in parts for name, tensor in part.items()}


def _merged(tensors: Mapping[str, Tensor], settings: Mapping) -> dict[str, Tensor]:
    """W + α/r · B A under the names of Qwen2VLModel, without the language model's own head."""
    named = {_plain(name): tensor for name, tensor in tensors.items()}
    for name in [name for name in named if name.endswith(".lora_A.weight")]:
        down, up = named.pop(name), named.pop(name.replace("lora_A", "lora_B"))
        rank = settings["lora_r"]
        scale = settings["lora_alpha"] / (math.sqrt(rank) if settings.get("use_rslora") else rank)
        weight = name.replace(".lora_A", "")
        named[weight] = torch.addmm(named[weight].float(), up.float(), down.float(), alpha=scale)
    return {name: tensor for name, tensor in named.items() if name != "lm_head.weight"}


def _plain(name: str) -> str:
    """A parameter's name in Qwen2VLModel, out of any layout: with or without peft, before or since transformers 4.52."""
    name = name.removeprefix("base_model.model.").replace(".base_layer", "").replace(".default", "")
    if name.startswith("model."):
        name = name.removeprefix("model.")
        return name if name.startswith(("visual.", "language_model.")) else f"language_model.{name}"
    return name
