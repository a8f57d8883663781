"""A reward server to copy: `python -m comfyui_otca.assets.examples.reward_server --port 8189`, then the node Reward: HTTP.

It scores brightness. Return your model's scores from `score` instead; nothing else has to change, and nothing of this pack is
needed: aiohttp, numpy, Pillow, and av for videos.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
from collections.abc import Callable, Sequence

import av
import numpy as np
from aiohttp import web
from PIL import Image

MOST_BYTES = 2**30  # of one request

Scorer = Callable[[Sequence[np.ndarray], Sequence[str], Sequence[dict]], list]


def score(samples: Sequence[np.ndarray], prompts: Sequence[str], metadata: Sequence[dict]) -> list[float | None]:
    """One number a sample, None for what cannot be scored.

    Args:
        samples: pictures [H, W, 3] or videos [F, H, W, 3], uint8.
        prompts: one a sample.
        metadata: what each prompt says beside its text, from a .jsonl file of prompts; empty for most.
    """
    return [float(sample.mean()) / 255 for sample in samples]


def decode(media: str, data: str) -> np.ndarray:
    content = base64.b64decode(data)
    if media == "mp4":
        # no other format, which might name files of this machine
        with av.open(io.BytesIO(content), "r", format="mp4") as video:
            return np.stack([frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)])
    return np.asarray(Image.open(io.BytesIO(content), formats=["PNG"]).convert("RGB"))


def application(scorer: Scorer = score) -> web.Application:
    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        if body["version"] != 1:
            raise web.HTTPBadRequest(text=f"version {body['version']} is not known here")
        samples = [decode(body["media"], sample["data"]) for sample in body["samples"]]
        prompts = [sample["prompt"] for sample in body["samples"]]
        metadata = [sample.get("metadata", {}) for sample in body["samples"]]
        # In a thread, so that the server still answers while the model works.
        return web.json_response({"scores": await asyncio.to_thread(scorer, samples, prompts, metadata)})

    app = web.Application(client_max_size=MOST_BYTES)
    app.router.add_post("/score", answer)
    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 to be reached from other machines")
    parser.add_argument("--port", type=int, default=8189)
    options = parser.parse_args()
    web.run_app(application(), host=options.host, port=options.port)


if __name__ == "__main__":
    main()
