"""A person's votes as a reward: the training stops and asks which of a prompt's pictures are the best."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ...host import paths
from ...host.questions import desk
from ...host.text import plain_name
from ..networks import RewardError
from ..rewards.base import GroupReward, Reward
from ..rewards.http import HTTPReward
from ..rewards.taste import TasteReward
from .asking import VoteFolder, as_pictures

NOBODY = (
    "no voter is here: the training does not run on the canvas. Fix: start `otca vote` on a machine with a browser, and "
    "set url of Reward: Vote to its address, as in http://127.0.0.1:8190/score"
)
ENCODER = "shapes-clip"
WEEK = 7 * 86400.0  # how long a vote server may take to answer
RETRIES = 10  # where it is started again meanwhile: about eight minutes


class VoteReward(GroupReward):
    """Bradley-Terry scores of each group, from what a person says of its pictures on the canvas or at a vote server.

    Raises:
        FileNotFoundError: the encoder was not found.
        RewardError: its weights cannot be read.

    Args:
        votes: name of the folder of votes, see `paths.votes_folder`; not used with `url`.
        url: of an `otca vote` that asks instead, and keeps the votes where it runs; empty: the canvas asks.
        token_variable: the environment variable with that server's token.
        fps: frames a second of the videos that are shown.
        learn: whether a head learns from the votes, scores what it is sure of, and leaves only the rest to be asked.
        encoder: of that head: a folder, the name of one, or a hub id in the local cache.
    """

    def __init__(
        self,
        name: str = "vote",
        *,
        votes: str = "votes",
        url: str = "",
        token_variable: str = "",
        fps: float = 16.0,
        learn: bool = False,
        encoder: str = ENCODER,
        **use,
    ):
        super().__init__(name, **use)
        self.folder = VoteFolder(paths.votes_folder() / plain_name(votes), fps, encoder if learn else "")
        if learn and not url:
            _ = self.folder.learner  # a wrong encoder is found now, and not after the first pictures
        options = {"timeout": WEEK, "retries": RETRIES, "batch_size": 0, "token_variable": token_variable, "fps": fps}
        self.server = HTTPReward(name, url=url, **options) if url else None

    def score_groups(self, samples: Tensor, prompts: Sequence[str], groups: Sequence[int]) -> list[float | None]:
        if self.server is not None:
            return self.server.column(samples, prompts, groups)
        if not desk.someone_answers():
            raise RewardError(NOBODY)
        return self.folder.scores(as_pictures(samples), prompts, groups)

    def watched(self) -> dict[str, float]:
        """The share of the votes that was foretold before it was learned: scores of votes are 0 on average, whatever is drawn."""
        accuracy = None if self.server else self.folder.accuracy()
        return {"foretold": accuracy.mean} if accuracy and accuracy.votes else {}

    def for_other_pictures(self) -> Reward | None:
        """The taste that was learned, under the same name, once it is enough."""
        learner = None if self.server else self.folder.learner
        if learner is None or not learner.ready:
            return None
        with learner.busy:
            learned = TasteReward(self.name, learner.head(), coefficient=self.coefficient, held_out=self.held_out)
        learned.bounds = self.bounds
        return learned
