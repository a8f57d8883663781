"""Rewards that are not ours: a server's, a function's in a file of the user's, and the user's own votes."""

import re

from ...host import files
from ...host.access import permissions
from ...host.access.wants import FIELDS, SECRET, SENDING, TOKEN, VOTES, Naming
from ...trainer.types import JUDGE_ANSWERS, JUDGE_TEMPLATES
from ..inputs import choice, complaint, integer, lines, miswired, number, socket, switch, text
from .base import JUDGE, REWARD, WEIGHTS, RewardNode, SeveralRewards


def wrong_address(url, token_variable):
    """The problem of a reward's address, or of the token that it sends there."""
    from ...trainer.rewards.server import check_host, check_token_variable

    sent = token_variable or None if url else None  # which is known here only with the address
    return (
        complaint("url", check_host, url)
        or complaint("token_variable", check_token_variable, token_variable)
        or complaint("token_variable", permissions.check_token, sent, url)
    )


class _ServerReward(RewardNode):
    """A reward that asks a server: its address, tokens, patience, and whether it may be asked about other pictures."""

    @classmethod
    def inputs(cls):
        required, optional = super().inputs()
        optional["groups_only"] = switch(label="only trained pictures", advanced=True).tip(
            "It may only be asked about the pictures that are trained on: evaluations leave it out, and credit that asks "
            "rewards again refuses it. For a server whose answers cost money or time."
        )
        return required, optional


TOKEN_VARIABLE = text(hint="OTCA_REWARD_TOKEN", names=Naming(TOKEN, SECRET, asks="never")).tip(
    "Name of the environment variable with a bearer token: OTCA_REWARD_TOKEN, or one that begins so. It goes "
    "only to the host that the variable of that name and _HOST names."
)


class RewardHTTP(_ServerReward):
    TITLE = "Reward: HTTP"
    CATEGORY = "OTCA/rewards/services"
    DESCRIPTION = (
        "Sends pictures or videos and their prompts to a reward server in any language, which answers with scores."
    )
    SEARCH_ALIASES = [*REWARD, "api", "server", "remote", "custom reward", "webhook"]
    KIND, CLASS = "http", "http.HTTPReward"

    REQUIRED = {
        "url": text("http://127.0.0.1:8189/score", label="address", names=SENDING).tip(
            "Address where the server takes pictures to score, by POST. Pictures and prompts go there, so you have to "
            "allow any machine but this one."
        )
    }

    OPTIONAL = {
        "timeout": number(60, 0.1, 86400, step=1, advanced=True).tip("Seconds that one request may take."),
        "batch_size": integer(16, 0, 4096, advanced=True).tip("Samples to one request. 0: all."),
        "token_variable": TOKEN_VARIABLE,
        "fps": number(16, 1, 240, step=1, label="frames per second", advanced=True).tip(
            "Frames per second of the mp4 files that videos are sent as."
        ),
    }

    @classmethod
    def VALIDATE_INPUTS(cls, url=None, token_variable="", clip=""):
        return wrong_address(url, token_variable) or super().VALIDATE_INPUTS(clip)


OWN = JUDGE_TEMPLATES[0]
SHARED = ("answer", "frames", "groups_only")  # what a judge is told wherever it is


class RewardVLMJudge(SeveralRewards, _ServerReward):
    TITLE = "Reward: Judge"
    CATEGORY = "OTCA/rewards/services"
    DESCRIPTION = (
        "Asks a vision-language model questions about each picture or video: one that ComfyUI has loaded as a CLIP, such as "
        "Qwen3-VL, or one on any OpenAI-compatible server (vLLM, Ollama, llama.cpp, LM Studio …). Each question is an "
        "objective of its own."
    )
    SEARCH_ALIASES = [*REWARD, *JUDGE, "vlm", "llm", "qwen-vl", "openai", "ollama", "vllm", "unified reward", "judge"]
    KIND, CLASS = "vlm_judge", "judge.VLMJudge"
    ENDS = ("1", "2", "3", "4")
    SHOWN_END = "quality"
    RETURN_TYPES = ("OTCA_REWARD",) * len(ENDS)
    RETURN_NAMES = tuple(f"question_{end}" for end in ENDS)
    OUTPUT_TOOLTIPS = tuple(f"The answer to line {end} of questions." for end in ENDS)

    REQUIRED = {
        "url": text("http://127.0.0.1:8000/v1", label="address", names=SENDING).tip(
            "Address of the server, as clients of OpenAI take it. Pictures and prompts go there, so you have to allow "
            "any machine but this one."
        ),
        "model": text("Qwen/Qwen3-VL-8B-Instruct").tip("Name of the model on that server."),
        "questions": lines(
            "alignment: Does this picture show {prompt}?\nquality: Is this a good picture, without mistakes?",
            hint="Questions, one per line: Is this a good picture?",
        ).tip(
            "A question a line, one to four: each is a reward. prompt in braces stands for the prompt. A line may begin "
            "with its name and a colon."
        ),
    }

    OPTIONAL = {
        "answer": choice(JUDGE_ANSWERS, advanced=True).tip(
            "yes_no: how likely yes is, by log-probabilities. number: a number in scale, of a server alone. grade: the "
            "expected grade from 1 to 5. auto: yes_no where there are log-probabilities, else number."
        ),
        "scale": text("0, 10", advanced=True).tip(
            "Lowest and highest number of an answer, which become the scores 0 and 1."
        ),
        "max_tokens": integer(16, 1, 65536, advanced=True).tip(
            "Tokens of an answer. More only for models that think first."
        ),
        "concurrency": integer(4, 1, 256, advanced=True).tip("Questions under way at once."),
        "frames": integer(4, 1, 64, advanced=True).tip("Frames of a video that it sees, evenly spread."),
        "timeout": number(120, 0.1, 86400, step=1, advanced=True).tip("Seconds that one question may take."),
        "token_variable": TOKEN_VARIABLE.advanced(),
        "extra": text(
            label="more request fields",
            hint='{"temperature": 0}',
            advanced=True,
            names=Naming(FIELDS, SECRET, asks="never"),
        ).tip("More fields of the request, as a JSON object: for example those that stop a model from thinking first."),
    }

    MORE = {
        "judge": socket("CLIP").tip(
            "A vision-language model from ComfyUI's CLIPLoader: Qwen3-VL, Qwen3.5 or Gemma. Then no server is asked."
        ),
        "template": choice(JUDGE_TEMPLATES).tip(
            "A question that is ready, in place of those in questions; only question_1 gives it. It needs a CLIP. Those of "
            "UnifiedReward are for its own weights."
        ),
        "compare": switch().tip(
            "Asks about two pictures of a prompt at a time, which is the better one; the score is a picture's share of "
            "wins. It needs a CLIP."
        ),
        "source": socket("IMAGE").tip(
            "The picture that was edited, for questions with source in braces. Not connected: image in the prompt's line."
        ),
        "batch_size": integer(8, 0, 4096, advanced=True).tip("Questions to one forward pass of a CLIP. 0: all."),
        "offload": switch(advanced=True).tip("Between two uses the CLIP waits in main memory."),
    }

    @classmethod
    def VALIDATE_INPUTS(
        cls,
        url=None,
        questions=None,
        scale="0, 10",
        token_variable="",
        extra="",
        clip="",
        answer="",
        template=OWN,
        compare=False,
        input_types=(),
    ):
        from ...trainer.rewards import judge

        links = dict(input_types)
        only_of_servers = answer == "number" and "answer: number needs a server. Fix: grade, or disconnect judge"
        return (
            miswired(cls.INPUT_TYPES(), links)
            or (only_of_servers if "judge" in links else wrong_address(url, token_variable))
            or ("judge" not in links and cls._only_of_clips(questions, template, compare))
            or (template == OWN and complaint("questions", judge.parse_questions, questions, len(cls.ENDS)))
            or complaint("scale", judge.parse_scale, scale)
            or complaint("extra", judge.parse_extra, extra)
            or super().VALIDATE_INPUTS(clip)
        )

    @staticmethod
    def _only_of_clips(questions, template, compare):
        """The settings of a server's judge that only a CLIP knows."""
        for name, is_set in (("template", template not in (None, OWN)), ("compare", compare)):
            if is_set:
                return f"{name}: only a CLIP is asked so. Fix: connect judge, or leave {name} as it was"
        if "{source}" in (questions or ""):
            return "questions: {source} needs a CLIP. Fix: connect judge, or leave it out"
        return None

    @classmethod
    def WANTS(cls, judge="", **inputs):
        return [] if judge is None else super().WANTS(**inputs)  # None: it is connected

    @classmethod
    def only_of_groups(cls, groups_only=False, compare=False, template=OWN, **_):
        return bool(groups_only or compare or cls.compares(template))

    @classmethod
    def names(cls, name, inputs):
        from ...trainer.rewards.judge import names_of

        template, text = inputs.get("template") or OWN, inputs.get("questions", "")
        if template != OWN:
            text = re.sub(r"\W+", "_", template) + f": {template}"
        return names_of(text, name or cls.KIND, len(cls.ENDS))

    @classmethod
    def unasked(cls, index, questions=None, template=OWN, **_):
        """Whether an output is known to have no line of questions, so that nothing may be connected to it."""
        count = len([line for line in (questions or "").splitlines() if line.strip()]) if template == OWN else 1
        return questions is not None and index >= count

    @classmethod
    def sees_source(cls, questions="", template=OWN, **_):
        from ...trainer.rewards.templates import SOURCE, TEMPLATES

        return TEMPLATES[template].sees_source if template in TEMPLATES else SOURCE in (questions or "")

    @staticmethod
    def compares(template):
        from ...trainer.rewards.templates import TEMPLATES

        return template in TEMPLATES and TEMPLATES[template].compares

    def own(self, inputs):
        from ...trainer.rewards.judge import parse_questions

        questions, template, compare = (
            inputs.pop("questions"),
            inputs.pop("template", OWN),
            inputs.pop("compare", False),
        )
        own = [] if template != OWN else parse_questions(questions, len(self.ENDS))
        rows = [{"question": question} for question in own] or [{"template": template}]
        rows += [{"question": ""}] * (len(self.ENDS) - len(rows))  # what is connected to these says so when it is asked
        is_local = inputs.get("judge") is not None
        kind = ("pair_judge" if compare or self.compares(template) else "clip_judge") if is_local else self.KIND
        for name in set(inputs).difference(self.MORE, SHARED) if is_local else set(inputs).intersection(self.MORE):
            del inputs[name]
        return [{"kind": kind, **row} for row in rows]


class RewardPython(RewardNode):
    TITLE = "Reward: Python"
    CATEGORY = "OTCA/rewards/services"
    DESCRIPTION = "Scores by a function in a .py file of yours. Off until you allow its folder."
    SEARCH_ALIASES = [*REWARD, "custom reward", "python", "function", "script"]
    KIND, CLASS = "python", "python.PythonReward"

    REQUIRED = {
        "file": text("my_reward.py", names=Naming("a reward", permissions.RUN))
        .tip("A file in a folder that OTCA_ALLOW_PYTHON_REWARDS names. A workflow alone runs nothing.")
        .checked(permissions.python_file),
        "function": text("score").tip(
            "Name of the function, which takes images [B, H, W, 3] and prompts, and returns B scores."
        ),
    }

    @classmethod
    def IS_CHANGED(cls, file, **_):
        if file is None:  # linked
            return float("nan")
        return files.sha256(permissions.python_file(file))


class RewardVote(RewardNode):
    TITLE = "Reward: Vote"
    CATEGORY = "OTCA/rewards"
    DESCRIPTION = "Your own choice: the training stops and shows each prompt's pictures, and you say which are better."
    SEARCH_ALIASES = [*REWARD, *JUDGE, "vote", "human feedback", "rlhf", "rate images", "choose"]
    KIND, CLASS = "vote", ".opinions.reward.VoteReward"

    REQUIRED = {
        "votes": text("votes", suggest="votes", label="folder of votes", names=Naming(VOTES, asks="never")).tip(
            "Name of the folder below output/otca_votes that keeps the votes and their pictures. Pictures that were "
            "voted on before are not asked about again."
        )
    }

    OPTIONAL = {
        "url": text(label="address", hint="this page asks", names=SENDING).tip(
            "Address of a server that otca vote started, as in http://127.0.0.1:8190/score. It asks in a browser "
            "elsewhere, and keeps the votes there. Needed where the training does not run on the canvas. "
            "Empty: this page asks."
        ),
        "token_variable": text(hint="OTCA_REWARD_TOKEN", advanced=True, names=Naming(TOKEN, SECRET, asks="never")).tip(
            "Name of the environment variable with that server's token: OTCA_REWARD_TOKEN, or one that begins so. It "
            "goes only to the host that the variable of that name and _HOST names."
        ),
        "fps": number(16, 1, 240, step=1, label="frames per second", advanced=True).tip(
            "Frames per second of the videos that are shown."
        ),
        "learn": switch().tip(
            "A small head learns from your votes. After some of them it scores the groups that it is sure of, and you "
            "are asked about four pictures at most of each of the others."
        ),
        "encoder": text("shapes-clip", suggest="encoders", names=WEIGHTS).tip(
            "What it sees pictures by: a CLIP, SigLIP 2 or DINOv2 folder, the name of one, or a hub id in the local "
            "cache. shapes-clip knows small pictures of shapes only."
        ),
    }

    @classmethod
    def VALIDATE_INPUTS(cls, votes=None, url="", token_variable="", learn=False, encoder="", clip=""):
        from ...host import search
        from ...host.text import plain_name
        from ...trainer.networks.features import MARKER

        return (
            complaint("votes", plain_name, votes)
            or wrong_address(url or None, token_variable)
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
    def WANTS(cls, learn=False, **inputs):
        unread = {} if learn is None or learn else {"encoder": ""}
        return super().WANTS(**{**inputs, **unread})
