"""Real reward servers on free ports: what is sent, what is made of the answers, and what of servers that misbehave."""

from __future__ import annotations

import asyncio
import base64
import io
import re
import socket
import threading

import av
import numpy as np
import pytest
import torch
from aiohttp import web
from PIL import Image

from comfyui_otca.assets.examples import reward_server
from comfyui_otca.host import stopping
from comfyui_otca.nodes.rewards.external import RewardHTTP
from comfyui_otca.trainer.pictures.media import sent
from comfyui_otca.trainer.rewards import http, server
from comfyui_otca.trainer.rewards.base import RewardError, score, score_stack
from comfyui_otca.trainer.types import Prompt

PROMPTS = ["one", "two", "three"]
SHADES = torch.tensor([0.0, 51 / 255, 1.0])
IMAGES = SHADES[:, None, None, None].expand(3, 4, 6, 3).clone()


def ask(url, images=IMAGES, prompts=PROMPTS, **options):
    return score([http.HTTPReward(url=url, **options)], images, prompts)[:, 0]


def error_of(url, **options):
    with pytest.raises(RewardError, match="^reward 'http' failed: ") as caught:
        ask(url, **options)
    text = str(caught.value)
    assert url in text and "Fix: " in text
    return text


# --- what is sent, and the example server ---------------------------------------------------------------------------


def test_pictures_go_out_as_png_with_their_prompts_in_batches(answering):
    url, requests = answering(lambda asked: {"scores": [len(sample["prompt"]) for sample in asked["samples"]]})
    assert ask(url, batch_size=2).tolist() == [3.0, 3.0, 5.0]
    assert [len(asked["samples"]) for _, asked in requests] == [2, 1]
    for headers, asked in requests:
        assert headers["Content-Type"] == "application/json" and "Authorization" not in headers
        assert (asked["version"], asked["media"], asked["fps"]) == (1, "png", None)
    samples = [sample for _, asked in requests for sample in asked["samples"]]
    assert [sample["prompt"] for sample in samples] == PROMPTS
    for sample, shade in zip(samples, (0, 51, 255), strict=True):
        picture = Image.open(io.BytesIO(base64.b64decode(sample["data"])))
        assert picture.format == "PNG" and picture.size == (6, 4) and picture.getpixel((0, 0)) == (shade,) * 3
    assert ask(url, batch_size=0).tolist() == [3.0, 3.0, 5.0] and len(requests) == 3, "0 is all at once"


def test_a_prompts_metadata_goes_with_it(answering):
    url, requests = answering({"scores": [1, 2, 3]})
    sign = {"text": "OPEN", "objects": [{"class": "sign", "count": 1}]}
    prompts = [Prompt("a sign", sign), Prompt("a tree"), "a sky"]
    reward = http.HTTPReward(url=url)
    reward.score(IMAGES, prompts)
    assert [{**sample, "data": None} for sample in requests[0][1]["samples"]] == [
        {"prompt": "a sign", "metadata": sign, "data": None},
        {"prompt": "a tree", "data": None},
        {"prompt": "a sky", "data": None},
    ]
    reward.score(IMAGES, [Prompt("a sign", {"text": "SHUT"}), *prompts[1:]])
    assert len(requests) == 2, "the same text with other metadata is another question"


def test_videos_go_out_as_mp4(answering):
    url, requests = answering({"scores": [1.0, 2.0]})
    videos = torch.zeros(2, 5, 32, 48, 3)
    videos[0, 3:] = 1.0
    assert ask(url, videos, ["a", "b"], fps=12.0).tolist() == [1.0, 2.0]
    [(_, asked)] = requests
    assert (asked["media"], asked["fps"]) == ("mp4", 12.0)
    content = base64.b64decode(asked["samples"][0]["data"])
    assert av.open(io.BytesIO(content)).streams.video[0].average_rate == 12
    (frames,) = sent("mp4", [content])
    assert frames.shape == (5, 32, 48, 3)
    means = frames.mean((1, 2, 3)) / 255
    assert np.abs(means - [0, 0, 0, 1, 1]).max() < 0.05


def test_the_example_server_scores_brightness_or_by_a_scorer_of_ones_own(serve):
    url = serve(reward_server.application())
    torch.testing.assert_close(ask(url), SHADES)
    videos = SHADES[:, None, None, None, None].expand(3, 5, 32, 48, 3)
    assert (ask(url, videos) - SHADES).abs().max() < 0.02  # mp4 is lossy

    def lengths(samples, prompts, metadata):
        return [len(prompt) + len(beside.get("text", "")) for prompt, beside in zip(prompts, metadata, strict=True)]

    prompts = [Prompt("one", {"text": "OPEN"}), *PROMPTS[1:]]
    assert ask(serve(reward_server.application(lengths)), prompts=prompts).tolist() == [7.0, 3.0, 5.0]


def test_within_a_running_loop_as_in_comfyui_and_while_an_evaluation_ends_before_a_stop(answering):
    url, _ = answering({"scores": [1, 2, 3]})

    async def node():
        return ask(url)

    assert asyncio.run(node()).tolist() == [1.0, 2.0, 3.0]
    stopping.request.signal = 2
    with stopping.finishing():
        assert ask(url, IMAGES.clone()).tolist() == [1.0, 2.0, 3.0]


# --- servers that misbehave -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ['{"scores": [1.5, null, 2]}', '{"scores": [1.5, NaN, 2]}'])
def test_what_could_not_be_scored_masks_its_sample(answering, answer):
    url, _ = answering(answer)
    scores = score_stack([http.HTTPReward(url=url)], IMAGES, PROMPTS, torch.tensor([0, 1, 2])).values[:, 0]
    assert scores[[0, 2]].tolist() == [1.5, 2.0] and scores[1].isnan()


def test_a_server_that_is_down(impatient):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/score"
    text = error_of(url, retries=2)
    assert "could not be reached" in text and "3 times in a row" in text and "start the reward server" in text


def test_a_server_that_is_slow(answering):
    async def late():
        await asyncio.sleep(60)

    url, requests = answering(lambda asked: late())
    text = error_of(url, timeout=0.2, retries=1)
    assert "gave no answer within 0.2 s, 2 times in a row" in text and "raise timeout" in text
    assert len(requests) == 2


@pytest.mark.parametrize("number", [500, 503, 429])
def test_a_server_that_recovers_is_asked_again(answering, number):
    url, requests = answering((number, "no"), (number, "no"), {"scores": [1, 2, 3]})
    assert ask(url, retries=2).tolist() == [1.0, 2.0, 3.0]
    assert len(requests) == 3 and requests[0][1] == requests[2][1]


def test_a_server_that_does_not_recover(answering):
    url, requests = answering((500, "out of memory\n" + "x" * 5000))
    text = error_of(url, retries=2)
    assert "answered 500 Internal Server Error: 'out of memory" in text and "3 times in a row" in text
    assert 150 < text.count("x") < 200, "the first 200 characters of the answer"
    assert len(requests) == 3


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (400, "server's own log"),
        (401, "token_variable"),
        (404, "correct url"),
        (413, "batch_size"),
        *((number, "redirects are not followed; if you trust 'http://127.0.0.1") for number in (301, 302, 307, 308)),
    ],
)
def test_a_refusal_is_final(answering, number, fix):
    elsewhere, reached = answering({"scores": [1, 2, 3]})
    headers = {"Location": elsewhere} if number < 400 else {}
    url, requests = answering(lambda asked: web.Response(status=number, text="not you", headers=headers))
    text = error_of(url)
    assert f"answered {number}" in text and "'not you'" in text and fix in text
    assert len(requests) == 1 and not reached


@pytest.mark.parametrize("answer", ["<html>hello</html>", "[1, 2, 3]", '{"score": [1, 2, 3]}', "", "3"])
def test_garbage_is_shown(answering, answer):
    url, requests = answering(answer)
    assert f"answered {answer!r}. Fix: it must be JSON like" in error_of(url)
    assert len(requests) == 1


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"scores": [1, 2]}, "gave 2 scores for 3 samples"),
        ({"scores": [1, 2, 3, 4]}, "gave 4 scores for 3 samples"),
        ({"scores": 1.0}, "gave no list of scores for 3 samples"),
        ({"scores": {}}, "gave no list of scores for 3 samples"),
        ({"scores": None}, "gave no list of scores for 3 samples"),
        ({"scores": {"vq": [1, 2, 3]}}, "gave no list of scores for 3 samples"),
        ({"scores": [1, "high", 3]}, "gave 'high' among its scores, for sample 1"),
        ({"scores": [1, 2, True]}, "gave True among its scores, for sample 2"),
        ({"scores": [[1], 2, 3]}, "gave [1] among its scores, for sample 0"),
    ],
)
def test_a_wrong_count_or_type_is_named(answering, answer, told):
    assert told in error_of(answering(answer)[0])


# --- tokens and addresses -------------------------------------------------------------------------------------------


def test_a_token_comes_from_the_environment(answering, monkeypatch):
    """And never stands in an error."""
    url, requests = answering({"scores": [1, 2, 3]}, (403, "no"))
    monkeypatch.delenv("OTCA_REWARD_TOKEN_TEST", raising=False)
    monkeypatch.setenv("OTCA_REWARD_TOKEN_TEST_HOST", "127.0.0.1")
    assert "OTCA_REWARD_TOKEN_TEST, which is not set" in error_of(url, token_variable="OTCA_REWARD_TOKEN_TEST")
    assert not requests
    monkeypatch.setenv("OTCA_REWARD_TOKEN_TEST", "s3cret")
    ask(url, token_variable="OTCA_REWARD_TOKEN_TEST")
    assert requests[0][0]["Authorization"] == "Bearer s3cret"
    assert "s3cret" not in error_of(url, token_variable="OTCA_REWARD_TOKEN_TEST", images=IMAGES.clone())


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        *(
            ({"url": url}, "url: .*is not the address of a server. Fix: ")
            for url in ("", "file:///etc/passwd", "ftp://host/score", "127.0.0.1:8189/score", "http:///score")
        ),
        ({"url": "https://me:s3cret@host/score"}, "url: the address of host carries"),
        ({"token_variable": "HF_TOKEN"}, "token_variable: 'HF_TOKEN' does not begin with OTCA_REWARD_TOKEN. Fix: "),
        ({"clip": "2, 1"}, "clip: "),
    ],
)
def test_what_the_node_refuses(inputs, told):
    inputs = {"url": "http://127.0.0.1/score", **inputs}
    refused = RewardHTTP.VALIDATE_INPUTS(**inputs)
    assert re.match(told, refused) and "s3cret" not in refused
    if "clip" not in inputs:
        with pytest.raises(ValueError, match=told.partition(": ")[2]):
            http.HTTPReward(**inputs)


def test_the_node(answering):
    url, requests = answering({"scores": [1, 2, 3]})
    assert RewardHTTP.VALIDATE_INPUTS(url) is True
    assert RewardHTTP.VALIDATE_INPUTS(None, None, None) is True, "linked"
    own = {"clip": "1.5, 2.5", "url": url, "groups_only": True}
    (reward,) = RewardHTTP().build(0.5, True, "mine", **own)
    assert (reward.name, reward.coefficient, reward.held_out, reward.groups_only) == ("mine", 0.5, True, True)
    assert not requests, "the server is reached only when something is scored"
    assert score([reward], IMAGES, PROMPTS)[:, 0].tolist() == [1.5, 2.0, 2.5]


# --- stopping -------------------------------------------------------------------------------------------------------


def test_stop_ends_a_request(answering, stopped_by):
    started, cancelled = threading.Event(), threading.Event()

    async def never():
        started.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    url, _ = answering(lambda asked: never())
    before = threading.active_count()
    stopped_by(started, lambda: ask(url, timeout=600))
    assert threading.active_count() == before
    assert cancelled.wait(30), "the server learns of it"


def test_stop_ends_the_waiting_between_two_tries(answering, stopped_by, monkeypatch):
    monkeypatch.setattr(server, "FIRST_WAIT", 600.0)
    started = threading.Event()
    url, requests = answering(lambda asked: started.set() or (503, "no"))
    stopped_by(started, lambda: ask(url))
    assert len(requests) == 1


@pytest.mark.parametrize("kind", [Exception, BaseException])
def test_comfyuis_interrupt_passes_whatever_it_is(answering, comfyui, kind):
    import comfy.model_management as management

    Interrupt = type("InterruptProcessingException", (kind,), {})

    def throw():
        raise Interrupt

    management.InterruptProcessingException, management.throw_exception_if_processing_interrupted = Interrupt, throw

    async def late():
        await asyncio.sleep(600)

    url, _ = answering(lambda asked: late())
    with pytest.raises(Interrupt):
        ask(url)
