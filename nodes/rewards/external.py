"""Rewards that are not ours: a server's, and a function's in a file of the user's."""

from ...host.access import permissions
from ..inputs import complaint, integer, number, text
from .base import RewardNode


class RewardHTTP(RewardNode):
    TITLE = "Reward: HTTP"
    DESCRIPTION = (
        "Sends pictures or videos and their prompts to a reward server in any language, which answers with scores."
    )
    KIND = "http"

    @classmethod
    def own_inputs(cls):
        return {
            "url": text(
                "http://127.0.0.1:8189/score",
                tip="Address where the server takes scores by POST. Pictures and prompts go there, so you have to allow any "
                "machine but this one.",
            )
        }

    @classmethod
    def own_optional_inputs(cls):
        return {
            "score_key": text(tip="Name of the score, of a server that gives several; they share one request."),
            "timeout": number(60, 0.1, 86400, step=1, tip="Seconds that one request may take."),
            "retries": integer(
                3, 0, 20, tip="Further tries where the server is down, slow or busy; after 0.5 s, 1 s, 2 s …"
            ),
            "batch_size": integer(16, 0, 4096, tip="Samples to one request. 0: all."),
            "token_variable": text(
                tip="Name of the environment variable with a bearer token: OTCA_REWARD_TOKEN, or one that begins so. It goes "
                "only to the host that the variable of that name and _HOST names."
            ),
            "fps": number(16, 1, 240, step=1, tip="Frames per second of the mp4 files that videos are sent as."),
        }

    @classmethod
    def VALIDATE_INPUTS(cls, url, token_variable="", clip=""):
        from ...host.access.permissions import check_token
        from ...trainer.rewards.server import check_host, check_token_variable

        sent = token_variable or None if url else None  # which is known here only with the address
        return (
            complaint("url", check_host, url)
            or complaint("token_variable", check_token_variable, token_variable)
            or complaint("token_variable", check_token, sent, url)
            or super().VALIDATE_INPUTS(clip)
        )

    @classmethod
    def WANTS(cls, url="", **_):
        from ...host.access.wants import posts

        return posts(url, "pictures and prompts", "url")


class RewardPython(RewardNode):
    TITLE = "Reward: Python"
    DESCRIPTION = "Scores by a function in a .py file of yours. Off until you allow its folder."
    KIND = "python"

    @classmethod
    def own_inputs(cls):
        return {
            "file": text(
                "my_reward.py",
                tip="A file in a folder that OTCA_ALLOW_PYTHON_REWARDS names. A workflow alone runs nothing.",
            ),
            "function": text(
                "score", tip="Name of the function, which takes images [B, H, W, 3] and prompts, and returns B scores."
            ),
        }

    @classmethod
    def VALIDATE_INPUTS(cls, file, clip=""):
        return complaint("file", permissions.python_file, file) or super().VALIDATE_INPUTS(clip)

    @classmethod
    def WANTS(cls, file="", **_):
        return [permissions.Want(permissions.RUN, file if isinstance(file, str) else "", "a reward", "file")]

    @classmethod
    def IS_CHANGED(cls, file, **_):
        import hashlib

        if file is None:  # linked
            return float("nan")
        return hashlib.sha256(permissions.python_file(file).read_bytes()).hexdigest()
