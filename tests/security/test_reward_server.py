"""F6 and F1: what hostile reward servers answer, and what of ours they get."""

from __future__ import annotations

import math
import tracemalloc

import pytest
import torch
from aiohttp import web

from comfyui_otca.host.access import permissions
from comfyui_otca.trainer.rewards import http
from comfyui_otca.trainer.rewards.base import RewardError

IMAGES, PROMPTS = torch.zeros(3, 4, 4, 3), ["one", "two", "three"]
LIMIT = http.ANSWER_BYTES + 3 * http.SAMPLE_BYTES
MOST_MORE = 100e6  # bytes that an answer may take while it arrives


@pytest.fixture
def serve(serve):
    """serve(handler) -> address of a server on a free port, until the test ends."""

    def start(handler):
        application = web.Application(client_max_size=2**26)
        application.router.add_post("/score", handler)
        return serve(application)

    return start


@pytest.fixture
def asked(serve):
    """asked() -> an address, and the headers of the requests that came there."""

    def start():
        requests = []

        async def handler(request):
            requests.append(request.headers)
            return web.json_response({"scores": [1, 2, 3]})

        return serve(handler), requests

    return start


def answers(content: bytes, status=200, **headers):
    async def handler(request):
        await request.read()
        return web.Response(body=content, status=status, headers=headers)

    return handler


def endless(status=200, **headers):
    async def handler(request):
        await request.read()
        response = web.StreamResponse(status=status, headers=headers)
        await response.prepare(request)
        piece = b'{"scores": [' + b"1, " * 300_000
        while True:
            await response.write(piece)

    return handler


def scores(url, **options):
    reward = http.HTTPReward(url=url, retries=0, timeout=30, **options)
    return torch.tensor(reward.score(IMAGES, PROMPTS))


def error_of(url, **options):
    """The message, after a look at what it took to get it."""
    tracemalloc.start()
    try:
        with pytest.raises(RewardError, match="Fix: ") as caught:
            scores(url, **options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MOST_MORE
    assert len(str(caught.value)) < 1000
    return str(caught.value)


@pytest.mark.parametrize("status", [200, 400, 500, 429])
def test_an_endless_answer(serve, status):
    told = error_of(serve(endless(status)))
    assert (f"answered more than {LIMIT:,} bytes about 3 samples" if status == 200 else f"answered {status}") in told


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip"])
@pytest.mark.parametrize("status", [200, 500])
def test_a_compressed_answer_is_not_read(serve, encoding, status):
    """Few bytes may be a bomb."""
    told = error_of(serve(endless(status, **{"Content-Encoding": encoding})))
    assert ("uncompressed" if status == 200 else "answered 500") in told


def test_a_token_of_another_host_is_not_sent(asked, monkeypatch):
    url, requests = asked()
    monkeypatch.setenv("OTCA_REWARD_TOKEN", "s3cret")
    monkeypatch.setenv("OTCA_REWARD_TOKEN_HOST", "score.example.org")
    with pytest.raises(permissions.NotAllowed, match="is for score.example.org.*Fix: "):
        scores(url, token_variable="OTCA_REWARD_TOKEN")
    assert requests == []
    monkeypatch.setenv("OTCA_REWARD_TOKEN_HOST", "127.0.0.1")
    scores(url, token_variable="OTCA_REWARD_TOKEN")
    [headers] = requests
    assert headers["Authorization"] == "Bearer s3cret"
    assert headers["Accept-Encoding"] == "identity", "a compressed answer may be a bomb"


@pytest.mark.parametrize(
    "content", [b"[" * 7000, b'{"scores": ' + b"[" * 5000, b'{"a":' * 1400, b'{"scores": [1, ' + b"1" * 5000 + b", 3]}"]
)
def test_json_that_is_nested_very_deep_and_a_number_of_five_thousand_digits(serve, content):
    assert "it must be JSON like" in error_of(serve(answers(content)))


@pytest.mark.parametrize("value", ["Infinity", "-Infinity", "NaN", "1e999", "1" + "0" * 400])
def test_what_is_no_finite_number_is_a_sample_left_out(serve, value):
    assert scores(serve(answers(f'{{"scores": [1, {value}, 3]}}'.encode()))).isnan().tolist() == [False, True, False]


def test_a_server_may_say_that_a_reward_does_not_apply(serve):
    url = serve(answers(b'{"scores": [1, "does not apply", null]}'))
    first, second, third = http.HTTPReward(url=url).score(IMAGES, PROMPTS)
    assert first == 1.0 and second is None and math.isnan(third)


def test_a_host_is_asked_for_again_when_something_is_sent(asked, monkeypatch):
    url, requests = asked()
    reward = http.HTTPReward(url=url, retries=0)
    monkeypatch.setattr(permissions, "is_loopback", lambda name: False)
    with pytest.raises(permissions.NotAllowed, match="pictures and prompts"):
        reward.score(IMAGES, PROMPTS)
    assert not requests
