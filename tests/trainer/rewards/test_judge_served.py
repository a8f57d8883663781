"""The judge against `transformers serve` with a tiny vision-language model, and against that model asked directly."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
import torch

from comfyui_otca.tests.tiny import judge as tiny_judge
from comfyui_otca.trainer.rewards import judge
from comfyui_otca.trainer.rewards.base import RewardError, score

LEVELS = (0, 3, 5, 7, 10)
IMAGES = (torch.tensor(LEVELS) * 25.5).round()[:, None, None, None].expand(5, 16, 16, 3) / 255
PROMPTS = ["a picture"] * 5
BRIGHT, WHAT = tiny_judge.QUESTIONS
WAIT = 120  # seconds that the server may take to begin

missing = [name for name in ("fastapi", "uvicorn", "openai") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(
    bool(missing), reason=f"transformers serve needs {', '.join(missing)}: pip install them"
)


@pytest.fixture(scope="module", autouse=True)
def _long(everything):
    if not everything:
        pytest.skip("it trains a model and starts a server: make test-all")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_judge.vlm(tmp_path_factory.mktemp("judge"), judge.number_instruction(0, 10))


@pytest.fixture(scope="module")
def served():
    """The address of a running `transformers serve`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", "--host", "127.0.0.1"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, "--port", str(port), "--device", "cpu"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        for _ in range(WAIT * 10):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health").close()
                break
            assert process.poll() is None, process.communicate()[0].decode()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.communicate()


@pytest.fixture(scope="module")
def directly(model):
    """directly(question) -> what the model says of each picture, by transformers alone."""
    from transformers import AutoProcessor, LlavaForConditionalGeneration

    processor = AutoProcessor.from_pretrained(model)
    network = LlavaForConditionalGeneration.from_pretrained(model)
    instruction = "Answer with one number from 0 to 10 and nothing else. 0 means not at all, 10 means fully."

    def ask(question):
        said = []
        for level in LEVELS:
            content = [
                {"type": "image", "image": tiny_judge.shade(level)},
                {"type": "text", "text": f"{question}\n{instruction}"},
            ]
            inputs = processor.apply_chat_template(
                [{"role": "user", "content": content}],
                **dict(add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"),
            )
            tokens = network.generate(**inputs, max_new_tokens=16, do_sample=False)
            said.append(processor.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
        return said

    return ask


def test_the_score_is_what_the_model_says_when_it_is_asked_directly(served, model, directly, caplog):
    said = directly(BRIGHT)
    assert len(set(said)) > 1, "the model tells pictures apart"
    reward = judge.VLMJudge(url=served, model=str(model), question=BRIGHT)
    assert score([reward], IMAGES, PROMPTS)[:, 0].tolist() == pytest.approx([int(number) / 10 for number in said])
    again = judge.VLMJudge(url=served, model=str(model), question=BRIGHT, timeout=60)
    score([again], IMAGES, PROMPTS)
    [line] = [message for message in caplog.messages if "logprobs" in message]
    assert "It is asked for a number instead of yes or no" in line, "said once: it gives no log-probabilities"


def test_prose_is_masked_and_named(served, model, directly, caplog):
    assert directly(WHAT) == [tiny_judge.PROSE] * 5
    reward = judge.VLMJudge(url=served, model=str(model), question=WHAT, answer="number")
    assert score([reward], IMAGES, PROMPTS).isnan().all()
    assert f"5 of 5 answers are not scores: sample 0: it answered {tiny_judge.PROSE!r}" in caplog.text


def test_a_model_that_is_not_there(served, model):
    reward = judge.VLMJudge(url=served, model=f"{model}-not", question=WHAT, retries=0)
    with pytest.raises(RewardError, match="answered 500 Internal Server Error"):
        score([reward], IMAGES, PROMPTS)
