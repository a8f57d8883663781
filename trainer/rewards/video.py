"""Rewards for videos: what they share, and VideoScore (2406.15252): five dimensions by one pass of an Idefics2."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ...host import extras, paths
from ..networks import preprocess
from ..networks.network import Network
from ..networks.published import ALL, Published, pillow_processor, transformers_class
from .base import NetworkReward


class VideoNetwork(Network, ABC):
    """A network that scores videos."""

    def __init__(self, path: Path, device: torch.device, dtype: torch.dtype):
        extras.check("A reward for videos", "rewards", "transformers")
        super().__init__(path, device, dtype)

    @abstractmethod
    def score(self, videos: Tensor, prompts: Sequence[str]) -> Tensor:
        """[B, D] for frames [B, n, H, W, 3] in [0, 1]."""


class VideoReward(NetworkReward):
    """One dimension of a network's scores of a video. Rewards of the other dimensions share its forward pass.

    A subclass names its DIMENSIONS in the order of the network's scores.
    """

    network: VideoNetwork
    DIMENSIONS: tuple[str, ...]
    dimension: str  # one of them

    @abstractmethod
    def frames(self, total: int) -> list[int]:
        """Which of a video's frames the network looks at."""

    def score(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        raise ValueError(
            f"it scores videos, and was given pictures of shape {tuple(images.shape)}. "
            f"Fix: sample videos (a video model, frames above 1), or connect a reward for pictures in its place"
        )

    def score_videos(self, videos: Tensor, prompts: Sequence[str]) -> Tensor:
        chosen = self.frames(videos.shape[1])
        scores = self.network.once(
            videos, (*chosen, *prompts), lambda: self.in_batches(self.network.score, videos[:, chosen], prompts)
        )
        return scores[:, self.DIMENSIONS.index(self.dimension)]


# --- VideoScore -------------------------------------------------------------------------------------------------------

CHECKPOINT = "TIGER-Lab/VideoScore-v1.1"
FILES = Published("VideoScore", ALL, "about 17 GB", CHECKPOINT)


class VideoScore(VideoReward):
    """One of five dimensions, about 1 (bad) to 4 (real).

    Args:
        dimension: one of DIMENSIONS.
        model: folder or cached hub id of the checkpoint, as published.
        most_frames: that it looks at; of longer videos as many, evenly spread.
    """

    DIMENSIONS = ("visual", "temporal", "dynamic", "alignment", "factual")

    def __init__(
        self,
        name: str = "video_score",
        *,
        dimension: str = "visual",
        model: str = CHECKPOINT,
        most_frames: int = 48,
        **use,
    ):
        super().__init__(name, VideoScoreNetwork, find(model), **use)
        self.dimension, self.most_frames = dimension, most_frames

    def frames(self, total: int) -> list[int]:
        return spread_frames(total, self.most_frames)


def find(model: str) -> Path:
    """The folder of the checkpoint."""
    return FILES.find_folder(model, "preprocessor_config.json")


def spread_frames(total: int, most: int) -> list[int]:
    """All frames, or `most` of them, evenly spread from the first on."""
    count = min(most, total)
    return [number * total // count for number in range(count)]


class VideoScoreNetwork(VideoNetwork):
    """Idefics2 with five numbers read off the last token: mantis-vl's Idefics2ForSequenceClassification."""

    AUTO_DTYPE = torch.bfloat16

    def __init__(self, path: Path, device: torch.device, dtype: torch.dtype):
        super().__init__(path, device, dtype)
        FILES.check_type(path, "idefics2")
        tensors = {name.removeprefix("model."): tensor for name, tensor in FILES.read_all(path).items()}
        config = transformers_class("Idefics2Config").from_pretrained(path, local_files_only=True)

        def build():
            model = transformers_class("Idefics2Model")(config)
            model.score = torch.nn.Linear(config.text_config.hidden_size, len(VideoScore.DIMENSIONS))
            return model

        self.model = FILES.filled(build, tensors, path, dtype)
        self.model.score.float()  # else bfloat16 would make close scores equal
        tokenizer = transformers_class("AutoTokenizer")
        self.processor = transformers_class("Idefics2Processor")(
            pillow_processor("Idefics2ImageProcessor").from_pretrained(path, local_files_only=True),
            tokenizer.from_pretrained(path, local_files_only=True, padding_side="right", trust_remote_code=False),
            image_seq_len=config.perceiver_config.resampler_n_latents,
        )
        self.prompt = (paths.ASSETS / "reward_prompts" / "video_score.txt").read_text(encoding="utf-8")
        self.settle(device)

    @torch.no_grad()
    def score(self, videos: Tensor, prompts: Sequence[str]) -> Tensor:
        """[B, 5] float32 for frames [B, n, H, W, 3] in [0, 1]."""
        frames = "<image> " * videos.shape[1]
        inputs = self.processor(
            text=[self.prompt.replace("{text_prompt}", prompt) + frames for prompt in prompts],
            images=[preprocess.pil(video) for video in videos],
            padding=True,
            return_tensors="pt",
        ).to(self.device)
        hidden = self.model(**inputs, use_cache=False).last_hidden_state
        last = inputs.attention_mask.sum(1) - 1
        return self.model.score(hidden[torch.arange(len(videos)), last].float()).cpu()
