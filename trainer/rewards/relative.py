"""Relative words: one reward asked twice, and only what a word changes counts (SRPO, 2509.06942)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from ..networks import RewardError
from ..types import LEFT_OUT, Prompt, metadata_of
from .base import GroupReward, Reward, as_column


class RelativeWords(Reward):
    """r(picture, "good. prompt") - r(picture, "bad. prompt") of another reward r: what it likes whatever the words cancels out.

    The other's coefficient, held_out and bounds play no part.

    Args:
        reward: the other reward; it reads the prompt.
        good, bad: the words, put before the prompt as in SRPO; an empty one: the prompt by itself.

    Raises:
        RewardError: the other does not read the prompt, or compares groups.
        ValueError: both words are the same.
    """

    def __init__(
        self, name: str = "relative_words", *, reward: Reward, good: str = "photo", bad: str = "plastic render", **use
    ):
        super().__init__(name, **use)
        if isinstance(reward, GroupReward):
            raise RewardError(f"reward: {reward.name!r} compares the pictures of a group. Fix: connect {_READERS}")
        if not reward.reads_prompt:
            raise RewardError(
                f"reward: no word in the prompt changes the score of {reward.name!r}, so that every difference would be 0. "
                f"Fix: connect {_READERS}"
            )
        check_words(good, bad)
        self.reward, self.good, self.bad = reward, good.strip(), bad.strip()
        self.groups_only, self.tolerance = reward.groups_only, 2 * reward.tolerance
        self.has_gradient = reward.has_gradient

    def score(self, images: Tensor, prompts: Sequence[str]) -> list[float | None]:
        return self._apart(self.reward.score, images, prompts)

    def score_videos(self, videos: Tensor, prompts: Sequence[str]) -> list[float | None]:
        return self._apart(self.reward.score_videos, videos, prompts)

    def differentiable(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        better, worse = (with_word(word, prompts) for word in (self.good, self.bad))
        return self.reward.differentiable(images, better) - self.reward.differentiable(images, worse)

    def _apart(self, score: Callable, samples: Tensor, prompts: Sequence[str]) -> list[float | None]:
        better, worse = (as_column(score(samples, with_word(word, prompts))) for word in (self.good, self.bad))
        left_out = (better == LEFT_OUT) | (worse == LEFT_OUT)
        apart = (better - worse).tolist()
        return [None if out else value for out, value in zip(left_out.tolist(), apart, strict=True)]

    def of_files(self, fps: float) -> None:
        self.reward.of_files(fps)

    def come_back(self) -> None:
        self.reward.come_back()

    def rest(self) -> None:
        self.reward.rest()


_READERS = "one that reads the prompt, such as Reward: CLIP-T, HPSv2.1, PickScore or ImageReward"


def check_words(good: str, bad: str) -> None:
    """Raises ValueError if both words ask the same."""
    if good.strip() == bad.strip():
        raise ValueError(
            f"good and bad are both {good.strip()!r}, so that every score is 0. Fix: write two different words or phrases"
        )


def with_word(word: str, prompts: Sequence[str]) -> list[str]:
    """The prompts with a word before them, "word. prompt"; what they say beside their text stays."""
    return [Prompt(f"{word}. {prompt}", metadata_of(prompt)) for prompt in prompts] if word else list(prompts)
