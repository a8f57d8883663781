"""Several processes that train one model: the same update as one process makes, and no one left waiting."""

from __future__ import annotations

import copy
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file

from comfyui_otca.host import distributed, stopping
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.processes import together
from comfyui_otca.tests.tiny import models as tiny
from comfyui_otca.tests.training import assert_same_tensors, reward_node, rows, train, untimed
from comfyui_otca.trainer import gradient as reward_gradient
from comfyui_otca.trainer import grpo, rollout
from comfyui_otca.trainer import matching as forward_process
from comfyui_otca.trainer.advantages import best_of_n, fuse, fuse_gains
from comfyui_otca.trainer.credit.steps import combined, grpo_guard, tcd, uniform, with_spatial
from comfyui_otca.trainer.flow import load_flow_model
from comfyui_otca.trainer.policy import lora
from comfyui_otca.trainer.rewards.base import Reward, score_stack
from comfyui_otca.trainer.run import checkpoint
from comfyui_otca.trainer.types import GradientSettings, MatchingSettings, Prompt, Prompts, Scores
from comfyui_otca.trainer.workflow.running import Workflow

TEXTS = ("a red circle on a blue background", "a green square on a white background")


@given(st.integers(1, 64), st.integers(1, 300))
def test_rows_are_shared_out_in_order_and_evenly(processes, total):
    shares = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "world", lambda: processes)
        for rank in range(processes):
            patch.setenv("RANK", str(rank))
            shares.append(distributed.rows(total))
        if total < processes:
            with pytest.raises(ValueError, match=f"{processes} processes for {total} samples. Fix: "):
                distributed.share(total)
    assert [row for own in shares for row in own] == list(range(total))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_alone_nobody_is_met():
    assert distributed.world() == 1 and distributed.is_main() and distributed.share(5).rows == range(5)
    rows = torch.arange(3.0)
    assert distributed.whole(rows) is rows and torch.equal(distributed.each(rows), rows[None])
    distributed.meet()
    distributed.announce(ValueError("unheard"))


def test_rewards_take_turns_on_the_gpus_that_follow(monkeypatch):
    """Six that train and two for rewards, on each machine."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "6")
    found = []
    for rank in range(6):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        found.append(distributed.reward_gpu(2))
    assert found == ["cuda:6", "cuda:7"] * 3
    with pytest.raises(ValueError, match="--reward-gpus 3 and .* 6 here, are 9 GPUs .* has 8. Fix: "):
        distributed.reward_gpu(3)
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    monkeypatch.delenv("LOCAL_RANK")
    assert distributed.reward_gpu(1) == "cuda:1", "one process trains on the first"


def test_processes_without_accelerators_are_told_so():
    """accelerate would let each of them train by itself."""
    begin = "from comfyui_otca.host import distributed; distributed.begin(cpu=False)"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "CUDA_VISIBLE_DEVICES": ""}
    ranks = [{"WORLD_SIZE": "2", "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    command, output = [sys.executable, "-c", begin], {"stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, env=shared | rank, **output) for rank in ranks]
    for process in both:
        _, errors = process.communicate(timeout=60)
        assert process.returncode and "2 processes were started, and" in errors and "Fix: --device cpu" in errors


def test_who_waits_for_others_says_so_and_not_for_ever():
    """As after a failure, where the others met processes that were about to end."""
    begin = (
        "from datetime import timedelta; from comfyui_otca.host import distributed, silence; silence.FIRST = 0.5; "
        "distributed.JOINING = timedelta(seconds=2); distributed.begin(cpu=True)"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    ranks = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    command = [sys.executable, "-c", begin]
    alone = subprocess.run(command, env={**os.environ, **address, **ranks}, capture_output=True, text=True, check=False)
    host = socket.gethostname()
    assert f"process 1 of 2 on {host} waits for the others to join … " in alone.stderr
    assert alone.returncode and f"process 1 of 2 on {host} could not join the others within 2 s" in alone.stderr


# -- meetings ----------------------------------------------------------------------------------------------------------


def _rows_and_gradients():
    rows = torch.arange(14.0).reshape(7, 2)[list(distributed.share(7).rows)]
    parameters = [torch.nn.Parameter(torch.zeros(2, 2)) for _ in range(3)]
    parameters[0].grad = torch.full((2, 2), 1.0 + distributed.rank())
    if distributed.rank() == 1:
        parameters[1].grad = torch.eye(2)
    distributed.sum_gradients(parameters)
    return distributed.whole(rows), distributed.each(torch.tensor(distributed.rank())), [p.grad for p in parameters]


@pytest.mark.parametrize("count", [2, 4])
def test_rows_are_put_together_and_gradients_added(count):
    for whole, ranks, (first, second, third) in together(count, _rows_and_gradients):
        assert torch.equal(whole, torch.arange(14.0).reshape(7, 2))
        assert ranks.tolist() == list(range(count))
        assert torch.equal(first, torch.full((2, 2), count * (count + 1) / 2))
        assert torch.equal(second, torch.eye(2)) and third is None


def _advantages(scores, credit, gains):
    own = list(distributed.share(len(scores.groups)).rows)

    def mine(value):
        tensors = {f.name: getattr(value, f.name) for f in fields(value)}
        return replace(value, **{name: t[own] for name, t in tensors.items() if isinstance(t, torch.Tensor)})

    whole = distributed.whole(mine(scores))
    by_steps = fuse_gains(distributed.whole(gains[own]), distributed.whole(credit.similarity[own]), whole, (0, 1, 3))
    fused = fuse(whole, distributed.whole(mine(credit)), "moca", recentering="group")
    return [(a.step_advantage, a.fused.coefficients, a.valid, a.credit.weights, a.metrics) for a in (fused, by_steps)]


def test_split_groups_have_the_statistics_of_whole_ones():
    """Bit for bit: two groups of six over four processes, so that one ends amid each group; one sample is masked."""
    generator = torch.Generator().manual_seed(0)
    groups = torch.arange(2).repeat_interleave(6)
    values = torch.randn((12, 3), generator=generator)
    values[4, 1] = torch.nan
    scores = Scores(values, ("a", "b", "c"), (1.0, 0.5, 2.0), groups, values[:, :1], ("h",), ())
    latents = torch.randn((12, 5, 2, 4, 4), generator=generator)
    credit = tcd(latents, latents[:, -1], (0, 1, 3))
    gains = torch.randn((12, 3, 3), generator=generator)
    expected = _advantages(scores, credit, gains)
    for both in together(4, _advantages, scores, credit, gains):
        for found, wanted in zip(both, expected, strict=True):
            assert all(map(torch.equal, found[:-1], wanted[:-1])) and found[-1] == wanted[-1]


def _choice():
    own = distributed.share(8)
    latents = torch.randn((len(own.rows), 6, 2, 2, 2), generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(7)
    return uniform(latents, latents[:, -1], range(5), 0.4, generator, own).weights


def test_the_steps_that_a_sample_keeps_do_not_depend_on_who_holds_it():
    assert torch.equal(torch.cat(together(4, _choice)), _choice())


# -- one update --------------------------------------------------------------------------------------------------------


class Brightness(Reward):
    def score(self, images, prompts):
        return images.mean((1, 2, 3))

    differentiable = score


class Redness(Reward):
    def score(self, images, prompts):
        return images[..., 0].mean((1, 2)) - images[..., 1:].mean((1, 2, 3))


def _update(model, settings, changes):
    """One iteration on two groups of four; the gradients, the adapter after it, and the figures."""
    prompts = Prompts(changes.get("texts", TEXTS), (0, 1))
    trajectories = rollout.sample(model, prompts, settings, group_size=4, seed=3, **changes["sample"])
    rewards = [Brightness("brightness"), Redness("redness")]
    scores = score_stack(rewards, trajectories.images, trajectories.prompts, trajectories.groups)
    credit = tcd(trajectories.latents, trajectories.final, trajectories.trained)
    if changes.get("guarded"):
        of_latents = trajectories.latents, trajectories.final, trajectories.trained
        credit = combined(credit, grpo_guard(*of_latents, trajectories.stds, trajectories.sigmas))
        shape, rows = trajectories.final.shape[2:], trajectories.share.rows
        credit = with_spatial(
            credit, torch.stack([torch.rand(shape, generator=torch.Generator().manual_seed(row)) for row in rows])
        )
    scores.values[[row in changes.get("masked", []) for row in trajectories.share.rows], 0] = torch.nan
    own, scores = scores, distributed.whole(scores)
    advantages = fuse(scores, distributed.whole(credit), "weighted_advantages")
    advantages = best_of_n(advantages, *changes["kept"]) if "kept" in changes else advantages
    if "gradient" in changes:
        follows = GradientSettings(learning_rate=1e-4, **changes["gradient"])
        metrics, shown = reward_gradient.update(
            model, trajectories, own, follows, advantages if "also" in changes["gradient"] else None
        )
        metrics["sample/furthest"] = float(shown.step_advantage.sum(1).argmax())
    elif "matching" in changes:
        matching = MatchingSettings(learning_rate=1e-4, **changes["matching"])
        metrics = forward_process.update(model, trajectories, advantages, matching)
    else:
        chosen = grpo.UpdateSettings(learning_rate=1e-4, **changes["update"])
        metrics = grpo.update(model, trajectories, advantages, chosen)
    parameters = model.policy.trainable_named()
    return (
        trajectories.groups.tolist(),
        {name: p.grad.clone() for name, p in parameters.items() if p.grad is not None},
        {name: p.detach().clone() for name, p in parameters.items()},
        {name: value for name, value in metrics.items() if not name.startswith("seconds/")},
    )


RECOMPUTED = {"sample": {}, "kept": (1, 2), "update": {}}
KEPT_AND_KL = {"sample": {"keep_graph": True}, "update": {"kl_coefficient": 0.05, "ema_decay": 0.9}}
EPOCHS = {"batch_size": 2, "epochs": 2, "clip_range": 0.1}
TWO_EPOCHS = {"sample": {}, "guarded": True, "update": EPOCHS, "settings": {"merge_adapter": True}}
ODE = {"kind": "ode", "shared_noise": False}
LEVELS = {"sampled_steps": 2, "kl_coefficient": 0.05, "epochs": 2, "old_policy": "gradual"}
MATCHING = {"sample": {}, "masked": [2], "matching": LEVELS | {"batch_size": 2}, "settings": ODE}
COMPARED = {"sample": {}, "kept": (1, 2), "matching": LEVELS | {"loss": "dgpo"}, "settings": ODE}
LEAPS = {"sample": {}, "masked": [2], "gradient": {"mode": "leap", "batch_size": 1}, "settings": ODE}
BESIDE = {"sample": {}, "gradient": {"mode": "last_steps", "also": "grpo", "tile": 16}}


@pytest.mark.parametrize(
    ("count", "changes"),
    [
        (2, RECOMPUTED),
        (4, RECOMPUTED),
        (2, KEPT_AND_KL),
        (4, TWO_EPOCHS),
        (4, MATCHING),
        (2, COMPARED),
        (4, LEAPS),
        (2, BESIDE),
    ],
    ids=[
        *("2-best of n", "4-best of n", "2-kept graph, KL", "4-two epochs, guarded", "4-matching, masked", "2-dgpo"),
        *("4-leaps, masked", "2-last steps and grpo"),
    ],
)
def test_several_processes_make_the_update_of_one(count, changes, load_model, perturb, small_settings):
    """2: a group each. 4: half a group each."""
    settings = small_settings(**changes.get("settings", {}))
    _, gradients, adapter, metrics = _update(perturb(load_model()), settings, changes)
    model = perturb(load_model())
    found = together(count, _update, model, settings, changes)
    assert [group for groups, *_ in found for group in groups] == [0] * 4 + [1] * 4
    largest = max(gradient.abs().max() for gradient in gradients.values())
    for _, own_gradients, own_adapter, own_metrics in found:
        assert own_gradients.keys() == gradients.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(own_gradients[name], gradient, rtol=0, atol=1e-6 * largest.clamp(min=1).item())
        # Adam divides by the gradient's size, so that one entry in thousands, whose gradient is nearly zero, turns by rounding.
        off = torch.cat([(own_adapter[name] - value).abs().flatten() for name, value in adapter.items()])
        assert (off > 1e-6).float().mean() < 1e-3 and off.max() < 1e-4
        for name, value in own_adapter.items():
            assert torch.equal(value, found[0][2][name]), "all processes hold the same adapter"
        assert own_metrics == found[0][3] and own_metrics.keys() == metrics.keys()
        for name, value in metrics.items():
            assert own_metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name


AVERAGED = {"ema_decay": 0.5, "batch_size": 2}
FULL = {"sample": {}, "masked": [2], "kept": (1, 1), "update": AVERAGED | {"kl_coefficient": 0.05}}
MATCHED = LEVELS | AVERAGED | {"kl_coefficient": 0.1, "epochs": 1}
SHARDED_MATCHING = {"sample": {}, "masked": [2], "matching": MATCHED}


def _full_update(path, settings, changes=FULL):
    """An update of all weights: its gradients, what is trained, the average and the moments, whole; then another one."""
    model = load_flow_model(path, training="full", device="cpu")
    with model.policy.reference():
        reference = copy.deepcopy(model.policy.trained_state())
    _, _, _, metrics = _update(model, settings, changes)
    gradients = {
        name: distributed.full(p.grad) for name, p in model.policy.trainable_named().items() if p.grad is not None
    }
    policy = model.policy
    states = copy.deepcopy((gradients, policy.trained_state(), policy.average_state(), policy.optimizer_state()))
    local = sum(getattr(p, "to_local", lambda p=p: p)().numel() for p in model.policy.trainable_parameters())
    return *states, reference, metrics, _update(model, settings, changes)[3], local


@pytest.mark.parametrize(("family", "changes"), [("flux", FULL), ("wan22", FULL), ("wan22", SHARDED_MATCHING)])
def test_a_sharded_model_makes_the_update_of_a_whole_one(family, changes, small_settings, tiny_folder):
    """FSDP2: every process holds a part of the weights, and together they move as one process's would.

    Of the second model the processes have unequally many samples to each of its networks, and call both equally often.
    """
    sizes = {} if family == "flux" else {"width": 32, "height": 16, "frames": 5, "guidance": 4.5}
    sizes |= ODE if "matching" in changes else {}
    path = tiny_folder(family)
    settings = small_settings(**sizes)
    gradients, *states, reference, metrics, metrics_2, count = _full_update(path, settings, changes)
    found = together(2, _full_update, path, settings, changes)
    assert sum(own[-1] for own in found) == count, "nothing is held twice"
    assert not any(found[1][1:5]), "whole states are for the process that writes them"
    for own_gradients, *own_states, own_reference, own_metrics, own_metrics_2, _ in found[:1]:
        assert own_gradients.keys() == gradients.keys()
        for name, gradient in gradients.items():
            # Half a batch is rounded otherwise than a whole one, and guidance makes it more: on one processor 1.7e-3 of the
            # largest entry was seen. What is summed twice, or left out, would be off by half.
            largest = gradient.abs().max().item()
            torch.testing.assert_close(own_gradients[name], gradient, rtol=0, atol=3e-6 + 4e-3 * largest, msg=name)
        for own_state, state in zip(own_states, states, strict=True):
            assert own_state.keys() == state.keys()
        for name, value in states[0].items():
            # Adam divides by the gradient's size, so that an entry whose gradient is nearly zero may turn by rounding.
            clear = gradients[name].abs() > 1e-3 if name in gradients else torch.ones_like(value, dtype=torch.bool)
            torch.testing.assert_close(own_states[0][name][clear], value[clear], rtol=0, atol=1e-6, msg=name)
            assert torch.equal(own_reference[name], reference[name]), "the reference is the untrained model"
        assert any(not torch.equal(own_states[0][name], value) for name, value in reference.items())
        for own, wanted in ((own_metrics, metrics), (own_metrics_2, metrics_2)):
            for name, value in wanted.items():
                assert own[name] == pytest.approx(value, rel=1e-2, abs=1e-5), name


KL = {"sample": {}, "update": {"kl_coefficient": 0.05, "batch_size": 2}}


def _adapter_update(path, settings, options, texts=TEXTS):
    """An update of an adapter, and how many bytes of frozen weights this process holds of how many."""
    model = load_flow_model(path, device="cpu", lora_rank=4, lora_alpha=4.0, **options)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.policy.trainable_parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    _, gradients, adapter, metrics = _update(model, settings, {**KL, "texts": texts})
    assert {tensor.dtype for tensor in (*gradients.values(), *adapter.values())} == {torch.float32}
    frozen = [p for network in model.experts.values() for p in network.parameters() if not p.requires_grad]
    held = sum(getattr(p, "to_local", lambda p=p: p)().nbytes for p in frozen)
    checkpoint.save(model, path / "checkpoints", 1 + model.policy.is_sharded)
    return gradients, adapter, metrics, held, sum(p.nbytes for p in frozen)


def _whole_and_sharded(path, settings, texts, **options):
    return [_adapter_update(path, settings, {**options, "shard": shard}, texts) for shard in (False, True)]


# Very like others that are always here; and Qwen-Image 2.1 for its time.
LONG = ("flux2-dev", "wan22-i2v", "qwen-image-2.1")


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("sd3", {"gradient_checkpointing": True}),
        ("wan22", {"dtype": "bfloat16"}),  # Wan keeps its norms in float32
        ("z-image", {}),
        ("qwen-image", {}),
        ("flux2-klein-base", {}),
        ("krea2", {}),
        ("qwen-image-2.1", {}),
        ("wan22-5b", {}),
        ("flux2-dev", {}),
        # In float32 sampling one by one instead of eight at once changes a gradient by 2.5e-6, in one process too.
        ("wan22-i2v", {"dtype": "bfloat16"}),
    ],
)
def test_an_adapter_learns_the_same_on_a_sharded_model(
    family, options, small_settings, everything, tmp_path, tiny_folder
):
    """With KL, both halves of guidance and, of Wan, two experts; the frozen weights are held once."""
    if family in LONG and not everything:
        pytest.skip("--everything")
    path, texts = tiny_folder(family), TEXTS
    if family == "wan22-i2v":
        Image.linear_gradient("L").save(tmp_path / "first.png")
        texts = tuple(Prompt(text, {"image": str(tmp_path / "first.png")}) for text in TEXTS)
    settings = small_settings(
        **{**tiny.SIZES.get(family, tiny.VIDEO), "height": 32 if family in ("wan22-5b", "qwen-image-2.1") else 16},
        steps=3,
        guidance=4.5,
    )
    gradients, adapter, metrics, _, size = _adapter_update(path, settings, options, texts)
    assert family not in ("wan22", "wan22-i2v") or len({name.startswith("transformer_2.") for name in gradients}) == 2
    found = together(2, functools.partial(_whole_and_sharded, path, settings, texts, **options))
    (_, first), (_, second) = found
    assert first[3] + second[3] == size == first[4] and max(first[3], second[3]) < 0.52 * size
    for whole, sharded in found:
        assert whole[3] == size
        for name, gradient in gradients.items():
            for own in (whole[0][name], gradient):
                torch.testing.assert_close(sharded[0][name], own, rtol=0, atol=1e-6, msg=name)
        for name, value in adapter.items():
            assert torch.equal(sharded[1][name], first[1][name]), "all processes hold the same adapter"
            clear = gradients[name].abs() > 1e-3 if name in gradients else torch.ones_like(value, dtype=torch.bool)
            torch.testing.assert_close(sharded[1][name][clear], value[clear], rtol=0, atol=1e-6, msg=name)
        assert sharded[2]["kl/penalty"] > 0
        for name, value in metrics.items():
            assert sharded[2][name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    alone = load_flow_model(path, device="cpu", lora_rank=4, lora_alpha=4.0, shard=True, **options)
    assert not alone.policy.is_sharded and checkpoint.restore(alone, path / "checkpoints") == 2
    for name, value in alone.policy.trained_state().items():
        assert torch.equal(value, first[1][name]), "one process goes on from it"


def _sampled(path, settings):
    """What a model gives in bfloat16: whole, with all weights sharded, and with its frozen ones sharded beside a new adapter."""
    found = []
    for options in ({}, {"training": "full"}, {"shard": True}):
        model = load_flow_model(path, device="cpu", dtype="bfloat16", **options)
        found.append(rollout.sample(model, Prompts(TEXTS, (0, 1)), settings, group_size=2, seed=3).final)
        if options:
            with pytest.raises(ValueError, match="2 processes cannot share 3 samples equally.*Fix: "):
                rollout.sample(model, Prompts(TEXTS[:1], (0,)), settings, group_size=3, seed=3)
    return found


def test_sharded_in_bfloat16_the_model_is_the_same_and_wants_equal_shares(flux_folder, small_settings):
    """FSDP2 would round what its blocks are given, and FLUX's positions with it: 0.04 in these latents."""
    for whole, *others in together(2, _sampled, flux_folder, small_settings(steps=2)):
        for own in others:
            torch.testing.assert_close(own, whole, rtol=0, atol=1e-3)


# -- whole trainings ---------------------------------------------------------------------------------------------------


class Acts(Brightness):
    """In process 1 it does something beside, told how many batches it has seen."""

    def __init__(self, act):
        super().__init__("sharpness")
        self.act, self.seen = act, 0

    def score(self, images, prompts):
        self.seen += 1
        if distributed.rank() == 1:
            self.act(self.seen)
        return super().score(images, prompts)


def acting(act):
    return {"OTCA_RewardSharpness": reward_node(lambda: Acts(act))}


def fail(seen):
    raise OSError("the scorer's disk is gone")


def stop(seen):
    """Only process 1 sees the request, so the other has to hear it from it."""
    raise stopping.Stopped("a test")


def die(seen):
    if seen == 3:
        os.kill(os.getpid(), signal.SIGKILL)


def _train(workflow, folder, resume=False):
    said = []
    return train(workflow, folder, resume=resume, say=said.append), said


def without_adapter(workflow):
    """The same without Save LoRA: where all weights are trained there is nothing for it."""
    return Workflow({name: node for name, node in workflow.graph.items() if name != "13"}, NODE_CLASS_MAPPINGS)


TWO = {
    "OTCA_SDESampler": {"group_size": 2, "steps": 3},
    "OTCA_TrainingRun": {"iterations": 2, "checkpoint_every": 1, "evaluate_every": 2},
}


def test_a_training_of_two(small_workflow, real_model, tmp_path):
    """It writes what one process writes, once; and goes on from there bit for bit."""
    first, second = together(2, _train, small_workflow(TWO), tmp_path / "two")
    assert first[0] == second[0] == 0 and first[1] and not second[1], "one process speaks"
    assert _train(small_workflow(TWO), tmp_path / "one")[0] == 0
    ours, alone = rows(tmp_path / "two"), rows(tmp_path / "one")
    assert [row["iteration"] for row in ours] == [1, 2] and ours[0].keys() == alone[0].keys()
    for name in ("reward/clip_t/mean", "z/group_mean", "held_out/accuracy/mean", "credit/step/0", "gradient_norm"):
        assert ours[0][name] == pytest.approx(alone[0][name], rel=1e-4, abs=1e-5), name
    written, expected = ({p.name for p in (tmp_path / name).iterdir()} for name in ("two", "one"))
    assert written == expected
    first, second = (load_file(tmp_path / name / "lora.safetensors") for name in ("two", "one"))
    assert first.keys() == second.keys()
    ours, alone = (rows(tmp_path / name, "evaluation.jsonl")[0]["rewards"] for name in ("two", "one"))
    assert ours["clip_t"]["values"] == pytest.approx(alone["clip_t"]["values"], abs=1e-5)
    shorter = {**TWO, "OTCA_TrainingRun": {**TWO["OTCA_TrainingRun"], "iterations": 1}}
    together(2, _train, small_workflow(shorter), tmp_path / "again")
    assert [code for code, _ in together(2, _train, small_workflow(TWO), tmp_path / "again", True)] == [0, 0]
    assert_same_tensors(tmp_path / "again" / "lora.safetensors", tmp_path / "two" / "lora.safetensors")


def test_a_training_of_two_by_reward_gradients(small_workflow, tmp_path):
    """Their figures are those of one process, and a stop in one of them stops both."""
    changes = {**TWO, "OTCA_TrainingRun": {"iterations": 2, "evaluate_every": 2}}
    workflow = small_workflow(changes, source="reward_gradient.json")
    answers = together(2, _train, workflow, tmp_path / "two")
    assert [code for code, _ in answers] == [0, 0] and _train(workflow, tmp_path / "one")[0] == 0
    ours, alone = rows(tmp_path / "two"), rows(tmp_path / "one")
    for own, wanted in zip(ours, alone, strict=True):
        compared = {
            name: value
            for name, value in wanted.items()
            if not name.startswith(("seconds/", "samples_per", "forwards/"))
        }
        assert {name: own[name] for name in compared} == pytest.approx(compared, rel=1e-3, abs=1e-5, nan_ok=True)
    assert {"gradient/clip_t", "spread/clip_t", "kl/penalty"} <= ours[0].keys()
    answers = together(
        2,
        _train,
        small_workflow(changes, {"OTCA_RewardScenes": reward_node(lambda: Acts(stop))}, "reward_gradient.json"),
        tmp_path / "stopped",
    )
    assert all("stopped by a test after iteration 0" in said[-1] for _, said in answers[:1])
    assert json.loads((tmp_path / "stopped" / "status.json").read_text())["status"] == "stopped"


def test_a_training_of_two_that_share_a_model(small_workflow, real_model, tmp_path):
    """Checkpoints are whole, so that one process, or two again, go on from them."""

    def workflow(iterations):
        run = {**TWO["OTCA_TrainingRun"], "iterations": iterations, "evaluation_prompts": "a red circle\na blue square"}
        changes = {
            **TWO,
            "OTCA_LoadFlowModel": {"training": "full"},
            "OTCA_GRPOStep": {"learning_rate": 1e-5, "ema_decay": 0.5},
            "OTCA_TrainingRun": {**run, "evaluation_seeds": 1},
        }
        return without_adapter(small_workflow(changes))

    assert [code for code, _ in together(2, _train, workflow(1), tmp_path / "begun")] == [0, 0]
    shutil.copytree(tmp_path / "begun", tmp_path / "alone")
    assert [code for code, _ in together(2, _train, workflow(2), tmp_path / "begun", True)] == [0, 0]
    assert [code for code, _ in together(2, _train, workflow(2), tmp_path / "at once")] == [0, 0]
    assert _train(workflow(2), tmp_path / "alone", True)[0] == 0
    weights = "transformer/diffusion_pytorch_model.safetensors"
    assert_same_tensors(tmp_path / "begun" / weights, tmp_path / "at once" / weights)
    at_once, alone = (load_file(tmp_path / name / weights) for name in ("at once", "alone"))
    for name, tensor in at_once.items():
        torch.testing.assert_close(alone[name].float(), tensor.float(), rtol=0, atol=3e-5, msg=name)
    assert [row["iteration"] for row in rows(tmp_path / "alone")] == [1, 2]
    assert untimed(tmp_path / "at once")[1] == untimed(tmp_path / "begun")[1]


def test_a_training_of_two_that_share_the_frozen_weights(small_workflow, real_model, load_model, tmp_path):
    """One prompt to evaluate: the process without one keeps pace. What is written is what a process alone reads."""
    run = {"iterations": 1, "evaluation_prompts": "a red circle", "evaluation_seeds": 1}
    graph = small_workflow({"OTCA_GRPOStep": {"ema_decay": 0.0}, "OTCA_TrainingRun": run}).graph
    chosen = {"quantize": "none", "attention": "auto", "shard": True}
    chosen |= dict.fromkeys(("offload_encoders", "vae_tiling", "gradient_checkpointing", "compile"), False)
    graph["20"] = {"class_type": "OTCA_ModelMemory", "inputs": chosen}
    graph["1"]["inputs"]["memory"] = ["20", 0]
    answers = together(2, _train, Workflow(graph, NODE_CLASS_MAPPINGS), tmp_path)
    assert [code for code, _ in answers] == [0, 0]
    alone = load_model()
    assert checkpoint.restore(alone, tmp_path / "checkpoints") == 1
    written, state = load_file(tmp_path / "lora.safetensors"), lora.adapter_state(alone, "transformer")
    assert written.keys() == state.keys() and any(tensor.any() for name, tensor in state.items() if "lora_B" in name)
    for name, tensor in state.items():
        assert torch.equal(written[name], tensor), name


def test_ones_failure_ends_all_and_is_named(small_workflow, tmp_path):
    began = time.monotonic()
    first, second = together(2, _train, small_workflow(TWO, acting(fail)), tmp_path)
    assert "the scorer's disk is gone" in str(second) and 'node 8 "Reward Stack"' in str(second)
    assert f"process 1 of 2 on {socket.gethostname()} failed: " in str(first) and "the scorer's disk is gone" in str(
        first
    )
    assert time.monotonic() - began < 60, "no one waited for a time-out"
    status = json.loads((tmp_path / "status.json").read_text())
    assert status["status"] == "failed" and "process 1 of 2 on" in status["error"]


def test_one_that_is_killed_is_missed_at_once_and_nothing_is_lost(small_workflow, tmp_path):
    changes = {"OTCA_TrainingRun": {"iterations": 6, "checkpoint_every": 1, "evaluate_every": 6}}
    began = time.monotonic()
    first, second = together(2, _train, small_workflow(changes, acting(die)), tmp_path)
    host = socket.gethostname()
    assert second is None and f"process 0 of 2 on {host} lost process 1 of 2 on {host} (" in str(first)
    assert time.monotonic() - began < 60
    saved = sorted(place.name for place in (tmp_path / "checkpoints").iterdir())
    assert saved and len(rows(tmp_path)) == int(saved[-1])


def _meet_until_one_dies(victim):
    if distributed.rank() == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        distributed.meet()


@pytest.mark.parametrize("victim", [0, 1])
def test_of_four_the_one_that_was_lost_is_named_by_all(victim):
    """Its neighbours notice it, and the others by them; the first has the store at which they ask who is there."""
    answers = together(4, _meet_until_one_dies, victim)
    assert answers.pop(victim) is None
    assert all(f" lost process {victim} of 4 on {socket.gethostname()} (" in str(answer) for answer in answers), answers


def test_a_slow_one_is_waited_for(small_workflow, tmp_path):
    changes = {"OTCA_TrainingRun": {"iterations": 1, "evaluation_prompts": "a red circle"}}
    workflow = small_workflow(changes, acting(lambda seen: time.sleep(0.5)))
    assert [code for code, _ in together(2, _train, workflow, tmp_path)] == [0, 0]


def test_a_stop_reaches_all(small_workflow, tmp_path):
    first, second = together(2, _train, small_workflow(TWO, acting(stop)), tmp_path)
    assert first[0] == second[0] == 0
    assert "stopped by a test after iteration 0" in first[1][-1]
    assert json.loads((tmp_path / "status.json").read_text())["status"] == "stopped"


def _stopped_amid_the_update(workflow, folder):
    """Only process 1 gets the signal, while the other is on its way into the next forward pass of the model they share."""
    own = grpo.velocity_at

    def velocity_at(*arguments):
        if distributed.rank() == 1:
            stopping.request.signal = signal.SIGTERM
        return own(*arguments)

    grpo.velocity_at = velocity_at
    return _train(workflow, folder)


def test_a_stop_reaches_all_that_share_a_model(small_workflow, real_model, tmp_path):
    changes = {"OTCA_LoadFlowModel": {"training": "full"}, "OTCA_GRPOStep": {"learning_rate": 1e-5}, **TWO}
    answers = together(2, _stopped_amid_the_update, without_adapter(small_workflow(changes)), tmp_path)
    assert [code for code, _ in answers] == [0, 128 + signal.SIGTERM]
    assert json.loads((tmp_path / "status.json").read_text())["status"] == "stopped"
