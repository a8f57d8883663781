"""Somebody's votes as a reward: the training stops and asks which of a prompt's pictures are the best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....host import paths
from ....host.names import plain_name
from ....host.questions import desk
from ...networks import RewardError
from ..base import GroupReward
from .asking import VoteFolder, as_pictures

if TYPE_CHECKING:
    from torch import Tensor

NOBODY = (
    "nobody is here to vote: the training does not run on the canvas. Fix: start `otca vote` where somebody has a browser, and "
    "set url of Reward: Vote to its address, as in http://127.0.0.1:8190/score"
)
WEEK = 7 * 86400.0  # how long a vote server may take to answer
RETRIES = 10  # where it is started again meanwhile: about eight minutes


class VoteReward(GroupReward):
    """Bradley-Terry scores of each group, from what somebody says of its pictures on the canvas or at a vote server.

    Args:
        votes: name of the folder of votes, see `paths.votes_folder`; not used with `url`.
        url: of an `otca vote` that asks instead, and keeps the votes where it runs; empty: the canvas asks.
        token_variable: the environment variable with that server's token.
        fps: frames a second of the videos that are shown.
    """

    def __init__(
        self,
        name: str = "vote",
        *,
        votes: str = "votes",
        url: str = "",
        token_variable: str = "",
        fps: float = 16.0,
        **use,
    ):
        super().__init__(name, **use)
        self.folder = VoteFolder(paths.votes_folder() / plain_name(votes), fps)
        self.server = _server(url, token_variable, fps) if url else None

    def score_groups(self, samples: Tensor, prompts: Sequence[str], groups: Sequence[int]) -> list[float | None]:
        if self.server is not None:
            (scores,) = self.server.scores(samples, prompts).values()
            return scores
        if not desk.someone_answers():
            raise RewardError(NOBODY)
        return self.folder.scores(as_pictures(samples), prompts, groups)


def _server(url: str, token_variable: str, fps: float):
    from ..http import Server, check_token_variable, check_url

    return Server(check_url(url), WEEK, RETRIES, 0, check_token_variable(token_variable), fps)
