"""A judge by chat completions: what it asks, P(yes) and numbers, and servers and models that answer something else.

recorded_vllm.json and recorded_llama_cpp.json are answers written down in the formats that those servers document (vLLM's
`ChatCompletionResponse`, llama.cpp's `completion_token_output`), with probabilities that can be added up by hand.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import math
import threading
from pathlib import Path

import pytest
import torch
from PIL import Image

from comfyui_otca.host.access import permissions
from comfyui_otca.nodes.rewards.external import RewardVLMJudge
from comfyui_otca.study.scoring import parse_reward
from comfyui_otca.trainer.rewards import judge, server
from comfyui_otca.trainer.rewards.base import RewardError, score
from comfyui_otca.trainer.types import Prompt

HERE = Path(__file__).parent
SHADES = torch.tensor([0.0, 51 / 255, 1.0])
IMAGES = SHADES[:, None, None, None].expand(3, 4, 6, 3).clone()
PROMPTS = ["one", "two", "three"]
QUESTION = "Does this show {prompt}?"


@pytest.fixture
def chatting(answering):
    """As `answering`, at an address for chats; what is answered with a text is what the model says, and lists are JSON."""

    def say(given):
        if callable(given):
            return lambda asked: say(given(asked))
        return said(given) if isinstance(given, str) else given

    def start(*answers):
        url, requests = answering(*map(say, answers))
        return url.replace("/score", "/v1"), requests

    return start


def said(text, tokens=None, finish="stop"):
    """A chat completion. tokens: for each token {how it is written: its probability}, the one that was chosen first."""

    def content(listed):
        top = [{"token": token, "logprob": math.log(p), "bytes": None} for token, p in listed.items()]
        return {**top[0], "top_logprobs": top}

    logprobs = None if tokens is None else {"content": [content(listed) for listed in tokens]}
    message = {"role": "assistant", "content": text}
    return {"choices": [{"index": 0, "message": message, "logprobs": logprobs, "finish_reason": finish}]}


def recorded(name):
    return json.loads((HERE / f"recorded_{name}.json").read_text())


def number(value):
    """Of a server that gives no log-probabilities: prose where it is asked for yes or no, else a number."""
    return lambda asked: "Yes" if "logprobs" in asked else value


def ask(url, images=IMAGES, prompts=PROMPTS, **options):
    options = {"model": "m", "question": QUESTION, **options}
    return score([judge.VLMJudge(url=url, **options)], images, prompts)[:, 0]


def error_of(url, **options):
    with pytest.raises(RewardError, match="^reward 'vlm_judge' failed: ") as caught:
        ask(url, **options)
    assert "Fix: " in str(caught.value)
    return str(caught.value)


def text_of(asked):
    return asked["messages"][0]["content"][-1]["text"]


# --- P(yes) ---------------------------------------------------------------------------------------------------------


ODD, HOSTILE = (said("yes", [{"yes": 0.5, "no": 0.5}]) for _ in range(2))
ODD["choices"][0]["logprobs"]["content"][0]["top_logprobs"][0]["logprob"] = 1e6
HOSTILE["choices"][0]["logprobs"]["content"][0]["top_logprobs"] = [{"token": "no"}, {"token": "yes"}]
MARKS = [{"**": 0.9, "Yes": 0.1}, {"Yes": 0.5, "\u0120No": 0.125, "NO": 0.125, "yes.": 0.25}]


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        (recorded("vllm"), 0.75 / 0.95),  # Yes 0.6, " yes" 0.1 and yes 0.05 against No 0.2; The 0.03 is neither
        (recorded("llama_cpp"), 0.2),  # behind a line break: Yes 0.2 against No 0.7 and "▁no" 0.1; of YES it is 0
        (said("**Yes**, it does.", MARKS), 0.75),  # marks and spaces around a word mean nothing
        (ODD, 1 / 1.5),  # a log-probability above 0 is 0
    ],
    ids=["vLLM", "llama.cpp", "marks", "odd"],
)
def test_how_likely_yes_is(chatting, answer, score):
    torch.testing.assert_close(ask(chatting(answer)[0]), torch.full((3,), score), rtol=0, atol=1e-6)


def test_what_is_asked(chatting):
    url, requests = chatting(recorded("vllm"))
    ask(url, question="Is {prompt} in it? {prompt}!", prompts=["a {prompt}", "{metadata.x} {0}", "%s"], concurrency=1)
    texts = ["Is a {prompt} in it? a {prompt}!", "Is {metadata.x} {0} in it? {metadata.x} {0}!", "Is %s in it? %s!"]
    for (headers, asked), text, shade in zip(requests, texts, (0, 51, 255), strict=True):
        assert "Authorization" not in headers
        settings = {name: value for name, value in asked.items() if name != "messages"}
        assert settings == {"model": "m", "max_tokens": 16, "temperature": 0, "logprobs": True, "top_logprobs": 20}
        [message] = asked["messages"]
        picture, words = message["content"]
        assert message["role"] == "user" and words == {
            "type": "text",
            "text": f"{text}\nAnswer with one word: yes or no.",
        }
        kind, data = picture["image_url"]["url"].split(",")
        seen = Image.open(io.BytesIO(base64.b64decode(data)))
        assert kind == "data:image/png;base64" and seen.size == (6, 4) and seen.getpixel((0, 0)) == (shade,) * 3


def test_a_whole_address_is_taken_as_it_is_and_extra_fields_are_sent(chatting):
    url, requests = chatting(recorded("vllm"))
    ask(f"{url}/chat/completions/")
    ask(f"{url}/", extra='{"chat_template_kwargs": {"enable_thinking": false}, "top_logprobs": 5}')
    assert len(requests) == 6 and requests[3][1]["top_logprobs"] == 5
    assert requests[3][1]["chat_template_kwargs"] == {"enable_thinking": False}


def test_of_a_video_it_sees_some_frames_in_one_question(chatting):
    url, requests = chatting(recorded("vllm"))
    video = (torch.arange(9) / 255)[None, :, None, None, None].expand(1, 9, 4, 6, 3)
    ask(url, video, ["a"], frames=3)
    *pictures, words = requests[0][1]["messages"][0]["content"]
    shades = []
    for picture in pictures:
        data = base64.b64decode(picture["image_url"]["url"].split(",")[1])
        shades.append(Image.open(io.BytesIO(data)).getpixel((0, 0))[0])
    assert shades == [0, 4, 8] and words["text"].startswith("These are 3 frames of one video, in their order.\nDoes")


def test_questions_under_way_at_once_are_limited_and_answers_keep_their_order(chatting):
    now, most = [0], [0]

    def by_name(asked):
        p = int(text_of(asked).split()[3].strip("?")) / 10

        async def late():
            now[0] += 1
            most[0] = max(most[0], now[0])
            await asyncio.sleep(0.1 * (1 - p))  # the first ones answer last
            now[0] -= 1
            return said("no", [{"no": 1 - p, "yes": p}])

        return late()

    url, requests = chatting(by_name)
    scores = ask(url, IMAGES[:1].repeat(8, 1, 1, 1), list("12345678"), concurrency=3)
    torch.testing.assert_close(scores, torch.arange(1, 9) / 10)
    assert len(requests) == 8 and most[0] == 3


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (said("A red circle.", [{"A": 0.9, "Yes": 0.1}]), "'A red circle.', which begins with neither yes nor no"),
        (said("Nowhere", [{"No": 0.9, "Yes": 0.1}]), "'Nowhere', which begins with neither"),
        (said("<think>", [{"<think>": 0.9, "yes": 0.1}]), "neither yes nor no"),
        (said("yes", [{"maybe": 0.9, "yes": 0.1}]), "the probability of its first word is not known"),
        (said("Yes", [{"yes": 0.3, "Maybe": 0.61}]), "yes and no together are only 0.30 probable"),
        (said("", []), "it answered nothing"),
        (said("yes", None), "is not known"),
    ],
)
def test_an_answer_that_is_neither_masks_its_sample(chatting, caplog, answer, told):
    url, _ = chatting(said("yes", [{"yes": 0.8, "no": 0.2}]), answer, said("no", [{"no": 0.75, "yes": 0.25}]))
    scores = ask(url, concurrency=1)
    assert scores[1].isnan()
    torch.testing.assert_close(scores[[0, 2]], torch.tensor([0.8, 0.25]))
    [line] = [record.getMessage() for record in caplog.records if record.name.endswith("judge")]
    assert line.startswith("reward 'vlm_judge': 1 of 3 answers are not scores: sample 1: it answered ") and told in line


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "score"), [("7", 0.7), (" 7.5\n", 0.75), ("7/10", 0.7), ("0", 0.0), ("10", 1.0), ("3.", 0.3)]
)
def test_a_number_in_the_stated_range(chatting, answer, score):
    url, requests = chatting(answer, answer, answer, "2")
    assert ask(url, answer="number").tolist() == pytest.approx([score] * 3)
    asked = requests[0][1]
    assert "logprobs" not in asked and "top_logprobs" not in asked
    assert text_of(asked).endswith("one number from 0 to 10 and nothing else. 0 means not at all, 10 means fully.")
    assert ask(url, answer="number", scale="1, 5").tolist() == [0.25] * 3
    assert "from 1 to 5" in text_of(requests[3][1])


@pytest.mark.parametrize(
    "answer", ["I would say 7", "7 out of 10", "11", "-1", "7/9", "seven", "7, 8", "nan", "1e1", "٧", "", "  "]
)
def test_prose_is_no_number(chatting, caplog, answer):
    url, _ = chatting("4", answer, "6")
    scores = ask(url, answer="number", concurrency=1)
    assert scores.isnan().tolist() == [False, True, False]
    shown = repr(answer) if answer.strip() else "it answered nothing"
    assert any("1 of 3 answers are not scores: sample 1" in m and shown in m for m in caplog.messages)
    url, _ = chatting(said("1", finish="length"))
    assert ask(url, answer="number", max_tokens=1).isnan().all()
    assert "it answered '1', and was cut off by max_tokens" in caplog.text


# --- servers without log-probabilities ---------------------------------------------------------------------------------


def refuses(asked):
    return (422, '{"detail": "Unexpected fields in the request: {\'logprobs\'}"}') if "logprobs" in asked else "4"


@pytest.mark.parametrize(("answer", "why"), [(refuses, "refuses them: "), (number("4"), "gives none")])
def test_a_server_without_log_probabilities_is_told_of_once(chatting, caplog, answer, why):
    url, requests = chatting(answer)
    rewards = [
        judge.VLMJudge(name, url=url, model="m", question=q) for name, q in (("a", "Is it?"), ("b", "Is it not?"))
    ]
    other = judge.VLMJudge("c", url=url, model="m", question="Is it?", timeout=7)  # other settings, the same server
    assert score([*rewards, other], IMAGES, PROMPTS).flatten().tolist() == pytest.approx([0.4] * 9)
    [line] = [message for message in caplog.messages if "logprobs" in message]
    assert url in line and why in line and "a number instead of yes or no" in line
    assert len(requests) == 1 + 9


def test_what_says_nothing_of_log_probabilities(chatting):
    alone, _ = chatting(lambda asked: said("yes", [{"yes": 0.9}]) if "logprobs" in asked else "4")
    assert ask(alone).tolist() == pytest.approx([0.4] * 3), "a token without alternatives"
    empty, _ = chatting(said(""), recorded("vllm"))
    scores = ask(empty)
    assert scores[0].isnan() and scores[1:].tolist() == pytest.approx([0.75 / 0.95] * 2), "an empty answer"
    never, _ = chatting("yes")
    assert "gives no log-probabilities, which answer=yes_no needs" in error_of(never, answer="yes_no")


# --- servers that misbehave -------------------------------------------------------------------------------------------


def test_a_model_that_the_server_does_not_have_and_an_endless_answer(chatting, caplog):
    url, requests = chatting((404, '{"error": {"message": "The model `m` does not exist."}}'))
    told = error_of(url)
    assert "answered 404" in told and "does not exist" in told and "model='m' must be one that the server lists" in told
    assert len(requests) == 1 and "logprobs" not in caplog.text
    url, _ = chatting("x" * 10**6)
    assert "bytes about one sample" in error_of(url, answer="number")


@pytest.mark.parametrize(
    "answer",
    [
        (200, "<html>hello</html>"),
        (200, ""),
        {"choices": []},
        {"scores": [1]},
        {"choices": [{"message": 3}]},
        [],
        HOSTILE,
    ],
)
def test_what_is_no_chat_completion_is_shown(chatting, answer):
    url, _ = chatting(answer)
    shown = answer[1] if isinstance(answer, tuple) else json.dumps(answer)
    assert f"answered {shown[: server.SHOWN]!r}, which is not a chat completion" in error_of(url)


def test_one_failure_ends_all_and_stop_does(chatting, stopped_by):
    started = threading.Event()

    async def never():
        started.set()
        await asyncio.sleep(600)

    url, _ = chatting(recorded("vllm"), (500, "no memory"), lambda asked: never())
    assert "answered 500" in error_of(url, retries=0)
    started.clear()
    url, _ = chatting(lambda asked: never())
    stopped_by(started, lambda: ask(url))


def test_hosts_and_tokens_are_those_of_the_http_reward(chatting, monkeypatch):
    url, requests = chatting(recorded("vllm"))
    monkeypatch.setenv("OTCA_REWARD_TOKEN", "s3cret")
    monkeypatch.setenv("OTCA_REWARD_TOKEN_HOST", "127.0.0.1")
    ask(url, token_variable="OTCA_REWARD_TOKEN")
    assert requests[0][0]["Authorization"] == "Bearer s3cret"
    with pytest.raises(ValueError, match="does not begin with OTCA_REWARD_TOKEN"):
        ask(url, token_variable="OPENAI_API_KEY")
    with pytest.raises(permissions.NotAllowed, match="pictures and prompts"):
        ask("https://api.example.org/v1")


# --- templates, the node, the command line ------------------------------------------------------------------------------


def test_metadata_fills_a_question_or_it_does_not_apply(chatting):
    url, requests = chatting(recorded("vllm"))
    prompts = [Prompt("a sign", {"text": "OPEN", "n": 2}), Prompt("a tree", {"text": ""}), "a sky"]
    reward = judge.VLMJudge(url=url, model="m", question="Is {metadata.text} written {metadata.n} times?")
    scores = reward.score(IMAGES, prompts)
    assert scores[0] == pytest.approx(0.75 / 0.95) and scores[1:] == [None, None]
    assert [text_of(asked).splitlines()[0] for _, asked in requests] == ["Is OPEN written 2 times?"]


@pytest.mark.parametrize(
    "question", ["Is it {promt}?", "{metadata}", "Is it {prompt.x}?", "{ prompt }?", "{metadata.}?"]
)
def test_a_placeholder_that_is_none(question):
    with pytest.raises(ValueError, match=r"is not a placeholder. Fix: \{prompt\}"):
        judge.VLMJudge(url="http://127.0.0.1/v1", model="m", question=question)


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        *((extra, "is not a JSON object") for extra in ("[" * 200000, "{", "[1]")),
        ('{"messages": [], "n": 2}', "sets messages, n"),
    ],
)
def test_extra_fields_that_cannot_be(extra, told):
    with pytest.raises(ValueError, match=told):
        judge.VLMJudge(url="http://127.0.0.1/v1", model="m", question="Is it?", extra=extra)


def node_inputs(**changes):
    return {"url": "http://127.0.0.1:8000/v1", "model": "m", **changes}


def test_the_node_makes_a_reward_of_each_line(chatting):
    url, requests = chatting(lambda asked: "9" if "sharp" in text_of(asked) else "2")
    questions = "Is it {prompt}?\n\n quality:  Is it sharp?\n"
    inputs = node_inputs(
        url=url, questions=questions, coefficient=0.5, held_out=True, answer="number", groups_only=True
    )
    rewards = RewardVLMJudge().build(**inputs)
    names = ["vlm_judge_1", "vlm_judge_quality", "vlm_judge_3", "vlm_judge_4"]
    assert [reward.name for reward in rewards] == names
    assert [reward.coefficient for reward in rewards] == [0.5] * 4
    assert RewardVLMJudge.announced(**inputs) == tuple((name, True) for name in names)
    assert [(reward.held_out, reward.groups_only) for reward in rewards[:2]] == [(True, True)] * 2
    assert not requests
    assert score(rewards[:2], IMAGES, PROMPTS).tolist() == pytest.approx(torch.tensor([[0.2, 0.9]] * 3))
    assert [RewardVLMJudge.unasked(index, **inputs) for index in range(4)] == [False, False, True, True]
    with pytest.raises(RewardError, match="'vlm_judge_3' failed: it has no question. Fix: write one more line"):
        score(rewards[2:3], IMAGES, PROMPTS)


def test_a_single_question_is_named_as_the_node(chatting):
    reward, *_ = RewardVLMJudge().build(**node_inputs(questions="Is it {prompt}?", name="mine"))
    assert reward.name == "mine" and not reward.groups_only
    assert RewardVLMJudge.announced(questions="Is it?", name="mine")[0] == ("mine", False)
    url, _ = chatting(recorded("vllm"))
    settings = f"url={url},model=m,question=Is it red, or {{prompt}}?,concurrency=2,groups_only=true"
    reward = parse_reward(f"vlm_judge:{settings}")  # as the command line has it
    assert reward.question == "Is it red, or {prompt}?" and reward.groups_only
    assert score([reward], IMAGES, PROMPTS)[:, 0].tolist() == pytest.approx([0.75 / 0.95] * 3)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"url": "ftp://h"}, "url: "),
        (
            {"url": "https://api.example.org/v1"},
            "url: 'api.example.org:443' (pictures and prompts) is a host that you have not",
        ),
        ({"questions": " \n"}, "questions: the question is empty"),
        ({"questions": "a?\n" * 5}, "questions: 5 questions are too many. Fix: at most 4 lines"),
        ({"questions": "q: a?\nq: b?"}, "questions: two questions share a label: q, q"),
        ({"questions": "Is it {promt}?"}, "questions: {promt} is not a placeholder"),
        ({"scale": "10, 0"}, "scale: '10, 0' is not a range"),
        ({"extra": "x"}, "extra: 'x' is not a JSON object"),
        ({"token_variable": "HF_TOKEN"}, "token_variable: "),
        ({"clip": "2, 1"}, "clip: "),
    ],
)
def test_the_node_refuses(changes, told):
    given = {"url": "http://127.0.0.1:8000/v1", "questions": "Is it?", **changes}
    assert RewardVLMJudge.VALIDATE_INPUTS(**given).startswith(told)
    assert RewardVLMJudge.VALIDATE_INPUTS(**given | dict.fromkeys(changes)) is True, "linked"
