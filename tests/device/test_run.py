"""Whole trainings on the pretend accelerator: rewards beside it or on another device, overlap, checkpoints, resuming, export."""

from __future__ import annotations

import json

import pytest
import torch

from comfyui_otca.__main__ import main
from comfyui_otca.tests import training
from comfyui_otca.tests.device import conftest
from comfyui_otca.trainer.rewards import reward_class
from comfyui_otca.trainer.rewards.base import score
from comfyui_otca.trainer.rewards.overlap import Overlap
from comfyui_otca.trainer.run import checkpoint

pytestmark = [pytest.mark.anywhere, pytest.mark.usefixtures("accelerator")]


@pytest.fixture
def workflow(small_graph, tmp_path):
    """The file of a small training in which `auto` is the accelerator."""
    sampler = {"group_size": 2, "steps": 3, "width": 16, "height": 16}
    run = {"iterations": 2, "checkpoint_every": 1, "evaluate_every": 2, "evaluation_seeds": 1}
    file = tmp_path / "workflow.json"
    file.write_text(json.dumps(small_graph({"OTCA_SDESampler": sampler, "OTCA_TrainingRun": run})))
    return file


def test_a_training_that_is_resumed_is_the_whole_one(workflow, tmp_path):
    """Checkpoints hold no place: what was saved on a device comes back to the bit there."""
    file, whole, parts = workflow, tmp_path / "whole", tmp_path / "parts"
    assert main(["train", str(file), "--output", str(whole)]) == 0
    assert main(["train", str(file), "--output", str(parts), "--iterations", "1"]) == 0
    assert main(["train", str(file), "--output", str(parts), "--resume"]) == 0
    assert training.untimed(whole) == training.untimed(parts) and training.rows(whole)[-1]["gradient_norm"] > 0
    training.assert_same_tensors(whole / "lora.safetensors", parts / "lora.safetensors")


def test_what_a_device_has_learned_goes_on_on_the_cpu(trained, tmp_path):
    there = trained("flux", "pretend:0", matching={"epochs": 2, "ema_decay": 0.5}).model
    checkpoint.save(there, tmp_path, 1)
    here = trained("flux", "cpu", iterations=0).model
    assert checkpoint.restore(here, tmp_path) == 1
    pairs = zip(there.policy.trainable_parameters(), here.policy.trainable_parameters(), strict=True)
    assert all(torch.equal(one.detach().cpu(), other.detach()) for one, other in pairs)
    assert conftest.iteration(here, "flux", 3)[0]["gradient_norm"] > 0


@pytest.mark.parametrize("place", ["pretend:0", "pretend:1"])
@pytest.mark.parametrize("overlaps", [False, True], ids=["afterwards", "meanwhile"])
def test_rewards_on_this_device_or_another(place, overlaps, trained):
    """The same scores, by a thread of their own too; a reward that is asked to leaves its device afterwards."""
    model = trained("flux", "pretend:0", iterations=0).model
    expected = reward_class("clip_t")(device="cpu")
    reward, own = reward_class("clip_t")(device=place, offload=True), Overlap()
    reward.come_back()
    assert reward.network is not expected.network and reward.network.device == torch.device(place)
    own.expect([reward] if overlaps else [])
    taken = conftest.sampled(model, "flux", sampler={"batch_size": 2}, overlap=own)
    texts = [taken.prompts[group] for group in taken.groups]
    found = own.take(taken.images, [reward])
    assert (found is not None) == overlaps
    values = (
        torch.cat([part.values["clip_t"] for part in found.parts()])
        if found
        else score([reward], taken.images, texts)[:, 0]
    )
    torch.testing.assert_close(values, score([expected], taken.images, texts)[:, 0])
    assert reward.network.device.type == "cpu", "it has left"


def test_networks_are_shared_by_device(accelerator):
    networks = [reward_class("clip_t")(device=device).network for device in ("auto", "pretend:0", "pretend:1")]
    assert networks[0] is networks[1] and networks[1] is not networks[2]
