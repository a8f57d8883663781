"""On a real GPU: places, waits, the drift of log-probs in half precision, and the stream of the rewards that score meanwhile.

python -m pytest tests/device/test_cuda.py --device cuda:0
"""

from __future__ import annotations

import warnings

import pytest
import torch

from comfyui_otca.tests.device import conftest
from comfyui_otca.trainer import grpo, matching
from comfyui_otca.trainer.rewards import reward_class
from comfyui_otca.trainer.rewards.base import Reward, score
from comfyui_otca.trainer.rewards.overlap import Overlap
from comfyui_otca.trainer.types import MatchingSettings, UpdateSettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.anywhere,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
DEVICE = "cuda:0"


@pytest.mark.parametrize("family", conftest.SIZES)
def test_an_update_is_the_cpus(family, trained):
    expected, found = (trained(family, device, iterations=2) for device in ("cpu", DEVICE))
    for row, of_cpu in zip(found.rows, expected.rows, strict=True):
        assert row["gradient_norm"] == pytest.approx(of_cpu["gradient_norm"], rel=5e-2)
        assert row["loss"] == pytest.approx(of_cpu["loss"], rel=5e-2, abs=1e-4)


@pytest.mark.parametrize("family", ["flux", "sd3", "wan22"])
@pytest.mark.parametrize("move", ["grpo", "matching"])
def test_an_update_waits_once(family, move, trained):
    """By CUDA's own count, which warns of every operation that waits. Reading the figures is the one."""
    model = trained(family, DEVICE).model
    taken = conftest.sampled(model, family)
    advantages = conftest.judged(taken)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            if move == "grpo":
                grpo.update(model, taken, advantages, UpdateSettings(learning_rate=1e-3))
            else:
                matching.update(model, taken, advantages, MatchingSettings(learning_rate=1e-3))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = [f"{one.filename}:{one.lineno}" for one in seen if "synchronizing CUDA operation" in str(one.message)]
    assert len(waits) == 1, waits


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_drifts_less_than_it_clips(dtype, trained):
    """Log-probs that the update computes again, against the rollout's, in another batch shape: |ρ - 1| before any step."""
    model = trained("flux", DEVICE, load={"dtype": dtype}, iterations=0).model
    taken = conftest.sampled(model, "flux", sampler={"batch_size": 1})
    figures = grpo.update(model, taken, conftest.judged(taken), UpdateSettings(learning_rate=1e-3))
    assert figures["ratio/mean"] == 1.0 and figures["ratio/drift"] < 1e-2
    assert figures["policy/skipped_updates"] == 0 and figures["gradient_norm"] > 0


class Placed(Reward):
    """Notes on which stream and device it scores."""

    def __init__(self):
        super().__init__("placed")
        self.streams, self.devices = set(), set()

    def score(self, images, prompts):
        self.streams.add(torch.cuda.current_stream().cuda_stream)
        self.devices.add(torch.cuda.current_device())
        return images.to(DEVICE).mean((1, 2, 3))


def test_rewards_that_score_meanwhile_have_a_stream_of_their_own(trained):
    model = trained("flux", DEVICE, iterations=0).model
    placed, clip, own = Placed(), reward_class("clip_t")(device=DEVICE), Overlap()
    own.expect([placed, clip])
    taken = conftest.sampled(model, "flux", sampler={"batch_size": 1}, overlap=own)
    parts = own.take(taken.images, [placed, clip]).parts()
    texts = [taken.prompts[group] for group in taken.groups]
    expected = score([placed, clip], taken.images, texts)
    found = torch.stack([torch.cat([part.values[name] for part in parts]) for name in ("placed", "clip_t")], 1)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert placed.devices == {0} and len(placed.streams) == 2, "that of the thread, and this one's"


def test_kept_graph_and_recomputed_are_one_update(trained):
    kept, again = (trained("sd3", DEVICE, keep_graph=keep, iterations=1) for keep in (True, False))
    assert kept.rows[0]["gradient_norm"] == pytest.approx(again.rows[0]["gradient_norm"], rel=1e-3)


def test_what_left_the_device_gives_its_memory_back(trained):
    model = trained("flux", DEVICE, update={"ema_decay": 0.5}).model
    before = torch.cuda.memory_allocated()
    assert model.leave()
    assert torch.cuda.memory_allocated() < before
    model.come_back()
    assert conftest.iteration(model, "flux", 3)[0]["gradient_norm"] > 0
