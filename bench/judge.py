"""Pictures a second of Reward: VLM Judge, and whether it says what its model says: with a tiny model in `transformers serve`.

    python bench/judge.py [--pictures 32] [--side 512] [--rounds 5]

Needs what `transformers serve` needs: fastapi, uvicorn, openai. Ways take turns, so that whatever else the machine does weighs on
all alike; medians, and ratios within this run, are shown:

- directly: the same model and the same pictures in this process, by transformers alone;
- served: through the reward, one question at a time and four;
- waiting: through the reward from a server that computes nothing and answers after 50 ms, one, four and sixteen at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from aiohttp import web

from comfyui_otca.host.terminal import quiet_libraries
from comfyui_otca.tests.tiny import judge as tiny_judge
from comfyui_otca.trainer.networks import preprocess
from comfyui_otca.trainer.rewards.base import score
from comfyui_otca.trainer.rewards.judge import VLMJudge, number_instruction

QUESTION = tiny_judge.QUESTIONS[0]
DELAY = 0.05  # seconds that the server without a model takes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=32)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    quiet_libraries()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    shades = torch.linspace(0, 1, options.pictures)[:, None, None, None]
    pictures = shades.expand(options.pictures, options.side, options.side, 3).clone()
    prompts = ["a picture"] * options.pictures

    def judged(url: str, model: str, concurrency: int):
        reward = VLMJudge(url=url, model=model, question=QUESTION, answer="number", concurrency=concurrency)
        return lambda: score([reward], pictures.clone(), prompts)[:, 0]

    with tempfile.TemporaryDirectory() as folder, _waiting() as waiting:
        model = tiny_judge.vlm(Path(folder), number_instruction(0, 10))
        with served() as url:
            ways = {"directly": _directly(model, pictures)}
            ways |= {f"served, {many} at once": judged(url, str(model), many) for many in (1, 4)}
            ways |= {f"waiting, {many} at once": judged(waiting, "none", many) for many in (1, 4, 16)}
            _report(ways, options)


def _report(ways, options) -> None:
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    scores = {}
    for number in range(options.rounds + 1):  # the first round warms up
        for way, run in ways.items():
            started = time.perf_counter()
            scores[way] = run()
            if number:
                seconds[way].append(time.perf_counter() - started)
    print(f"{options.pictures} pictures of {options.side} × {options.side}\n")
    print("| | seconds | pictures a second | ÷ one at a time | scores that differ from the model's own |")
    print("|---|---|---|---|---|")
    for way, times in seconds.items():
        median, kind = statistics.median(times), way.split(",")[0]
        first = statistics.median(seconds.get(f"{kind}, 1 at once", times))
        other = "" if kind == "waiting" else int((scores[way] != scores["directly"]).sum())
        print(f"| {way} | {median:.2f} | {options.pictures / median:.1f} | {first / median:.2f} | {other} |")


def _directly(folder: Path, pictures: torch.Tensor):
    """What the model says of each picture, by transformers alone."""
    from transformers import AutoProcessor, LlavaForConditionalGeneration

    processor = AutoProcessor.from_pretrained(folder)
    network: Any = LlavaForConditionalGeneration.from_pretrained(folder)

    def run() -> torch.Tensor:
        said = []
        for picture in preprocess.pil(pictures):
            text = f"{QUESTION}\n{number_instruction(0, 10)}"
            content = [{"type": "image", "image": picture}, {"type": "text", "text": text}]
            inputs = processor.apply_chat_template(
                [{"role": "user", "content": content}],
                **dict(add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"),
            )
            tokens = network.generate(**inputs, max_new_tokens=16, do_sample=False)
            said.append(float(processor.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)))
        return torch.tensor(said) / 10

    return run


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The address of a running `transformers serve`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", "--host", "127.0.0.1"]
    process = subprocess.Popen(
        [*command, "--port", str(port), "--device", "cpu"],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while process.poll() is None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health").close()
                break
            time.sleep(0.1)
        else:
            raise SystemExit("transformers serve does not begin here. Fix: pip install fastapi uvicorn openai")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def _waiting() -> Iterator[str]:
    """The address of a server that computes nothing and answers after DELAY."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(DELAY)
        return web.json_response({"choices": [{"message": {"content": "5"}, "finish_reason": "stop"}]})

    async def start() -> web.AppRunner:
        application = web.Application(client_max_size=2**26)
        application.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    runner = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


if __name__ == "__main__":
    main()
