"""What rewards for videos share: several scores of one forward pass, over a few of the frames."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..networks.network import Network
from .base import NetworkReward

if TYPE_CHECKING:
    from torch import Tensor


class VideoNetwork(Network, ABC):
    """What scores videos."""

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
            videos,
            (*chosen, *prompts),
            lambda: self.in_batches(self.network.score, videos[:, chosen], prompts),
        )
        return scores[:, self.DIMENSIONS.index(self.dimension)]
