"""The reward that asks people."""

from ..inputs import complaint, number, switch, text
from .base import JUDGE, REWARD, RewardNode


class RewardVote(RewardNode):
    TITLE = "Reward: Vote"
    DESCRIPTION = "Your own choice: the training stops and shows each prompt's pictures, and you say which are better."
    SEARCH_ALIASES = [*REWARD, *JUDGE, "vote", "human feedback", "rlhf", "rate images", "choose"]
    KIND = "vote"

    @classmethod
    def own_inputs(cls):
        return {
            "votes": text("votes", suggest="votes", label="folder of votes").tip(
                "Name of the folder below output/otca_votes that keeps the votes and their pictures. Pictures that were "
                "voted on before are not asked about again."
            )
        }

    @classmethod
    def own_optional_inputs(cls):
        return {
            "url": text(label="address", hint="this page asks").tip(
                "Address of a server that otca vote started, as in http://127.0.0.1:8190/score. It asks in a browser "
                "elsewhere, and keeps the votes there. Needed where the training does not run on the canvas. "
                "Empty: this page asks."
            ),
            "token_variable": text(hint="OTCA_REWARD_TOKEN", advanced=True).tip(
                "Name of the environment variable with that server's token: OTCA_REWARD_TOKEN, or one that begins so. It "
                "goes only to the host that the variable of that name and _HOST names."
            ),
            "fps": number(16, 1, 240, step=1, label="frames a second", advanced=True).tip(
                "Frames per second of the videos that are shown."
            ),
            "learn": switch().tip(
                "A small head learns from your votes. After some of them it scores the groups that it is sure of, and you "
                "are asked about four pictures at most of each of the others."
            ),
            "encoder": text("shapes-clip", suggest="encoders").tip(
                "What it sees pictures by: a CLIP, SigLIP 2 or DINOv2 folder, the name of one, or a hub id in the local "
                "cache. shapes-clip knows small pictures of shapes only."
            ),
        }

    @classmethod
    def VALIDATE_INPUTS(cls, votes, url="", token_variable="", learn=False, encoder="", clip=""):
        from ...host import search
        from ...host.access.permissions import check_token
        from ...host.names import plain_name
        from ...trainer.networks.features import MARKER
        from ...trainer.rewards.server import check_host, check_token_variable

        sent = token_variable or None if url else None
        return (
            complaint("votes", plain_name, votes)
            or complaint("url", check_host, url or None)
            or complaint("token_variable", check_token_variable, token_variable)
            or complaint("token_variable", check_token, sent, url)
            or (learn and complaint("encoder", search.model, encoder, MARKER))
            or (
                url
                and learn
                and "learn: the votes are kept at url. Fix: switch it off, and start otca vote with --learn"
            )
            or super().VALIDATE_INPUTS(clip)
        )

    @classmethod
    def only_of_groups(cls, **_):
        return True

    @classmethod
    def WANTS(cls, url="", learn=False, encoder="", **_):
        from ...host.access.wants import posts, reads

        learned = reads(encoder, "a reward model", "encoder") if learn is None or learn else []
        return [*(posts(url, "pictures and prompts", "url") if url != "" else []), *learned]
