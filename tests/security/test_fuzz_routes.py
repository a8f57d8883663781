"""Made-up requests to every route of the three servers, 6 a route and 300 by `make test-all`: never a 500, never a traceback.

The paths, headers, bodies and their packing are a stranger's, and so are requests that break off. What is chosen is the same each
time.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import logging
import random
import re
import zlib
from urllib.parse import quote_from_bytes

import numpy as np
import pytest
from aiohttp import web

from comfyui_otca.host.questions import desk
from comfyui_otca.page import requests, votes
from comfyui_otca.page.gallery.index import id_of
from comfyui_otca.page.remote import server
from comfyui_otca.tests.page import conftest as page
from comfyui_otca.trainer.opinions.asking import VoteFolder
from comfyui_otca.trainer.rewards.server import png

site, made, stand_in = page.site, page.made, page.stand_in
FEW, MANY = 6, 300
TOKEN = "a token"
PATIENCE = 60  # seconds, only for what hangs
PARTS = [
    *b"first .. . %2e%2e a/b a%2fb %00 %ff%fe \xff %ed%a0%80 %0d%0a * 0001 -1 1e9 NUL samples.png after ~ %7e {id}".split(
        b" "
    ),
    *b"samples-000001.png first.zip <script> first%20".split(b" "),
    *[b"", b"con .txt", "花".encode() * 90, b"7" * 300, b"7" * 5000, b"x" * 256, b"x" * 7000],
]
TEXTS = [
    *["", "a", "first", "../x", "x" * 5000, "\ud800", "a\0b", "花" * 200, "http://[::1", "-1", "NaN", "\u202e", "%s%n"],
    *["/etc/passwd", "9223372037", "9" * 18],
]
VALUES = [None, True, False, 0, -1, 2**63, 10**400, 1e308, 0.5, [], {}, [[]], {"a": {"b": []}}, *TEXTS]
HEADERS = rb"""Origin: http://[::1|Origin: null|Origin: http://evil.example|Origin: \xff|Origin: //|Origin:|Cookie: ;;=;
Sec-Fetch-Site: cross-site|Sec-Fetch-Site: \xff|Sec-Fetch-Site: none|Cookie: otca_vote=\xff; a|Authorization: Bearer \xff\xfe
Authorization: Bearer|Authorization: Basic OjpA|Authorization: Bearer a token|Range: bytes=5-|Range: bytes=-1|Range: \xff
Range: bytes=9-1|Accept-Encoding: gzip, br;q=x|If-None-Match: *|If-Modified-Since: yesterday|Expect: 100-continue
Expect: nothing|Upgrade: websocket|X-Forwarded-For: \xff"""
HEADERS = [
    *HEADERS.replace(rb"\xff", b"\xff").replace(rb"\xfe", b"\xfe").replace(b"\n", b"|").split(b"|"),
    *[b"Content-Language: " + b"x" * 4000],
]
HOSTS = [*[b"localhost"] * 40, b"[::1", b"\xff", b"evil.example", b"", b"localhost:99999", b"127.0.0.1:x", b"a" * 300]
KINDS = [*[b"application/json"] * 12, b"text/plain", b"application/json; charset=\xff", b"", b"multipart/form-data"]


def good_bodies(graph, picture="0123456789abcdef"):
    """{the end of a POST route: what it takes}; a route that is not here fails the test."""
    asked = {"kind": "read", "what": "/etc"}
    sample = {"prompt": "p", "data": base64.b64encode(png(np.zeros((4, 4, 3), np.uint8))).decode(), "group": 0}
    edited = {"samples": [{**sample, "source": 0}], "sources": [sample["data"]]}
    return {
        "/results": {"prompt": graph, "workflow": "a"},
        "/suggestions": {"kind": "layers", "node": "1", "prompt": graph},
        "/taste": {"name": "mine"},
        "/gallery/workflow": {"ids": [picture], "model": "my_pictures"},
        "/gallery/opinions": {"lines": json.dumps({"picture": {"id": "a" * 64, "prompt": "p"}})},
        "/details": {"ids": [picture]},
        "/say": {"id": "0" * 32, "kind": "thumb", "picture": picture, "other": "", "value": 1},
        "/bundle": {"prompt": graph, "name": "a", "hashes": False},
        "/export": {"prompt": graph, "name": "a"},
        "/train": {"name": "mine", "iterations": 2, "gpus": 1, "reward_gpus": 0, "prompt": graph, "workflow": {}},
        "/prove": {"name": "mine", "hours": 0.5, "prompt": graph, "workflow": {}},
        "/watch": {"url": "http://127.0.0.1:1", "token": "t", "name": "copy"},
        "/resume": {"iterations": 3, "gpus": 1, "reward_gpus": 0},
        "/note": {"notes": "mine"},
        "/before_after": {"prompt": "a", "seed": 1},
        "/votes/{id}": {"answer": {"order": [0, 1]}},
        "/score": {"version": 1, "media": "png", "fps": None, **edited},
        **dict.fromkeys(("/coming", "/fits", "/wants"), {"prompt": graph}),
        **dict.fromkeys(("/allow", "/take_back"), asked),
        **dict.fromkeys(("/gallery/votes", "/release", "/lora", "/stop", "/move_up", "/delete", "/cancel"), {}),
    }


class Stranger:
    """Makes requests of a seed."""

    def __init__(self, seed, bodies, token):
        self.random, self.bodies, self.token = random.Random(seed), bodies, token

    def some(self, options, chance=1.0):
        return self.random.choice(options) if self.random.random() < chance else None

    def request(self, method, path):
        """The bytes of a request, and whether that is all of it: else the connection is closed after them."""
        target = path.encode()
        for name in ("{id}", "{name:.+}", "{name}", "{number}", "{pair}", "{which}", "{filename}"):
            target = target.replace(
                name.encode(), self.some(PARTS if self.random.random() < 0.7 else [b"first", b"0001"])
            )
        if self.random.random() < 0.5:
            target += b"?" + b"&".join(
                self.some(b"after name kind node sample step workflow token %ff since until said skip".split())
                + b"="
                + quote_from_bytes(self.some(TEXTS).encode(errors="surrogatepass")).encode()
                for _ in range(self.random.randrange(4))
            )
        if method == "POST" and self.random.random() < 0.5:
            return self.plain(path)
        lines = [b"Host: " + self.some(HOSTS), *filter(None, [self.some(HEADERS, 0.4), self.some(HEADERS, 0.2)])]
        if self.token and self.random.random() < 0.8:
            lines.append(b"Authorization: Bearer " + self.token.encode())
        content, whole = b"", True
        if method == "POST":
            content = self.content(path)
            lines += [b"Content-Type: " + self.some(KINDS)]
            if packing := self.some([b"gzip", b"deflate", b"identity", b"br", b"\xff"], 0.2):
                lines.append(b"Content-Encoding: " + packing)
                content = self.some([content, gzip.compress(content), zlib.compress(content)])
            content, whole = self.framed(content, lines)
        head = b"\r\n".join([method.encode() + b" " + target.replace(b" ", b"%20") + b" HTTP/1.1", *lines])
        sent = head + b"\r\nConnection: close\r\n\r\n" + content
        if self.random.random() < 0.1:
            return sent[: self.random.randrange(len(sent))], False
        return sent, whole

    def plain(self, path):
        """As the page sends it, but for one value in the body, so that what lies behind the checks is reached."""
        [good] = [body for end, body in self.bodies.items() if path.endswith(end)]
        self.change(value := dict(good))
        head = f"POST {path.format(id='first')} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.token}\r\n"
        content = json.dumps(value).encode()
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        return head.encode() + content, True

    def framed(self, content, lines):
        """The body as it is sent, and whether that is all of it. `lines` gets what is said of its length, be it wrong."""
        if self.random.random() < 0.2:
            lines.append(b"Transfer-Encoding: chunked")
            pieces = b"%x\r\n" % len(content) + content + b"\r\n0\r\n\r\n"
            return self.some([(pieces, True)] * 3 + [(b"zz\r\n", False), (b"5\r\nab\r\n0\r\n\r\n", False)])
        said = len(content) + self.some([0] * 12 + [-7, -1, 1, 9])
        lines.append(b"Content-Length: %d" % said)
        return content, said <= len(content)

    def content(self, path):
        [good] = [body for end, body in self.bodies.items() if path.endswith(end)]
        value = {name: value for name, value in good.items() if self.random.random() < 0.95}
        for _ in range(self.random.randrange(3)):
            self.change(value)
        text = json.dumps(value).encode()
        return self.some(
            [text] * 8 + [b"", b"[" * 50_000, text[:-1], b"\xff\xfe" + text, b'{"a": NaN}', b"1" * 5000, b"null"]
        )

    def change(self, value):
        """Something within a value, at any depth, becomes something else."""
        while isinstance(value, dict | list) and value:
            keys = list(value) if isinstance(value, dict) else range(len(value))
            key = self.some(keys)
            if not isinstance(value[key], dict | list) or self.random.random() < 0.4:
                value[key] = self.some(VALUES)
                return
            value[key] = value = dict(value[key]) if isinstance(value[key], dict) else list(value[key])
        if isinstance(value, dict):
            value[self.some(TEXTS)] = self.some(VALUES)


async def asked(app, made_requests):
    """The status that each of these requests brought; none where it was broken off."""
    runner = web.AppRunner(app, handler_cancellation=False)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    answers = []
    for before, sent, whole in made_requests:
        before()
        reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
        writer.write(sent)
        answer = b""
        with contextlib.suppress(ConnectionError):
            if whole:
                answer = await asyncio.wait_for(reader.read(), PATIENCE)
            else:
                await writer.drain()
        answers.append(re.findall(rb"^HTTP/1\.[01] (\d+)", answer, re.MULTILINE))
        writer.close()
    while runner.server.connections:  # those that were broken off are noticed
        await asyncio.sleep(0.01)
    await runner.cleanup()
    return answers


def routes_of(app):
    found = {(route.method, route.resource.canonical) for route in app.router.routes()}
    return sorted((method, path) for method, path in found if method in ("GET", "POST"))


def fuzz(app, bodies, count, caplog, before=lambda: None, token=""):
    logging.getLogger("aiohttp.server").addFilter(requests.in_one_line)
    routes = routes_of(app)
    made_requests, named = [], []
    for method, path in routes:
        stranger = Stranger(f"{method} {path}", bodies, token)
        for _ in range(count):
            made_requests.append((before, *stranger.request(method, path)))
            named.append(made_requests[-1][1][:300])
    answers = asyncio.run(asked(app, made_requests))
    failed = [(request, statuses) for request, statuses in zip(named, answers, strict=True) if b"500" in statuses]
    assert not failed, failed[:5]
    traces = [record.getMessage()[:500] for record in caplog.records if record.exc_info]
    assert not traces, traces[:5]
    return len(routes), {status for statuses in answers for status in statuses}


@pytest.fixture
def count(everything):
    return MANY if everything else FEW


def test_the_routes_of_comfyuis_server(site, made, stand_in, small_graph, count, caplog, tmp_path, monkeypatch):
    monkeypatch.setenv("OTCA_PERMISSIONS", str(tmp_path / "permissions.json"))
    stand_in("exit 0")
    app = web.Application()
    app.add_routes(site.routes)

    def before():  # what a request may have removed
        if not (site.folder / "first" / "metrics.jsonl").exists():
            (site.folder / "first" / "samples").mkdir(parents=True, exist_ok=True)
            for name, content in {"metrics.jsonl": made.row(1), "workflow.json": json.dumps(small_graph())}.items():
                (site.folder / "first" / name).write_text(content)

    (site.output / "a.png").write_bytes(png(np.zeros((4, 4, 3), np.uint8)))
    site.gallery.index.look(patience=9)
    bodies = good_bodies(small_graph(), id_of(str(site.output), "a.png"))
    number, statuses = fuzz(app, bodies, count, caplog, before)
    assert number > 40 and {b"200", b"400", b"403", b"404"} <= statuses


@pytest.mark.parametrize("token", ["", TOKEN])
def test_the_routes_of_otca_vote(tmp_path, small_graph, count, caplog, monkeypatch, token):
    monkeypatch.setattr(desk, "attended", False)
    app = votes.application(VoteFolder(tmp_path / "votes"), token)
    number, statuses = fuzz(app, good_bodies({}), count, caplog, token=token)
    assert number == 6 and (b"401" if token else b"403") in statuses and not desk.questions()


def test_the_routes_of_otca_serve(made, count, caplog):
    folder = made(files={"samples.png": page.PNG, "train.log": b"line"})
    app = server.application(folder, TOKEN)
    number, statuses = fuzz(app, good_bodies({}), count, caplog, token=TOKEN)
    assert number == 3 and b"401" in statuses
