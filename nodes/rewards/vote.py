"""The reward that asks people."""

from ..inputs import complaint, number, text
from .base import RewardNode


class RewardVote(RewardNode):
    TITLE = "Reward: Vote"
    DESCRIPTION = "Your own choice: the training stops and shows each prompt's pictures, and you say which are better."
    KIND = "vote"

    @classmethod
    def own_inputs(cls):
        return {
            "votes": text(
                "votes",
                tip="Name of the folder below output/otca_votes that keeps the votes and their pictures. Pictures that were "
                "voted on before are not asked about again.",
            )
        }

    @classmethod
    def own_optional_inputs(cls):
        return {
            "url": text(
                tip="Address of an otca vote, as in http://127.0.0.1:8190/score, which asks in a browser elsewhere and keeps the "
                "votes there. Needed where the training does not run on the canvas. Empty: this page asks."
            ),
            "token_variable": text(
                tip="Name of the environment variable with that server's token: OTCA_REWARD_TOKEN, or one that begins so. It "
                "goes only to the host that the variable of that name and _HOST names."
            ),
            "fps": number(16, 1, 240, step=1, tip="Frames per second of the videos that are shown."),
        }

    @classmethod
    def VALIDATE_INPUTS(cls, votes, url="", token_variable="", clip=""):
        from ...host.access.permissions import check_token
        from ...host.names import plain_name
        from ...trainer.rewards.http import check_host, check_token_variable

        sent = token_variable or None if url else None
        return (
            complaint("votes", plain_name, votes)
            or complaint("url", check_host, url or None)
            or complaint("token_variable", check_token_variable, token_variable)
            or complaint("token_variable", check_token, sent, url)
            or super().VALIDATE_INPUTS(clip)
        )

    @classmethod
    def only_of_groups(cls, **_):
        return True

    @classmethod
    def WANTS(cls, url="", **_):
        from ...host.access.wants import posts

        return posts(url, "pictures and prompts", "url") if url != "" else []
