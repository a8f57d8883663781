"""Checkpoints: everything comes back to the bit, the last two stay, and half-written ones are not seen."""

from __future__ import annotations

import pytest
import torch

from comfyui_otca.trainer import checkpoint
from comfyui_otca.trainer.credit import uniform
from comfyui_otca.trainer.fusion import fuse
from comfyui_otca.trainer.grpo import UpdateSettings, update
from comfyui_otca.trainer.types import Scores

SETTINGS = UpdateSettings(learning_rate=1e-3, ema_decay=0.5)


@pytest.fixture
def step(sample):
    """step(model, seed): one iteration with made-up rewards."""

    def go(model, seed):
        taken = sample(model, seed=seed)
        values = torch.randn((6, 1), generator=torch.Generator().manual_seed(seed))
        scores = Scores(values, ("a",), (1.0,), taken.groups, torch.empty(6, 0), (), ())
        credit = uniform(taken.latents, taken.final, taken.trained)
        update(model, taken, fuse(scores, credit, "weighted_advantages"), SETTINGS)

    return go


def state(model):
    tensors = {f"parameter {k}": v.detach().clone() for k, v in model.trainable_named().items()}
    tensors |= {f"optimizer {k}": v.clone() for k, v in model.optimizer_state().items()}
    if model.ema is not None:
        tensors |= {f"average {i}": p.clone() for i, p in enumerate(model.ema.shadow_params)}
    return tensors


def assert_bit_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def test_everything_comes_back_to_the_bit(model, load_model, step, tmp_path):
    for seed in (1, 2):
        step(model, seed)
    model.nonfinite_in_a_row = 3
    torch.manual_seed(42)
    torch.rand(5)
    checkpoint.save(model, tmp_path, 2)
    saved, next_draw = state(model), torch.rand(3)
    assert any(name.startswith("optimizer") for name in saved) and any(name.startswith("average") for name in saved)

    other = load_model(seed=9)
    assert checkpoint.restore(other, tmp_path) == 2
    assert torch.equal(torch.rand(3), next_draw)
    assert_bit_equal(state(other), saved)
    assert (other.version, other.nonfinite_in_a_row) == (2, 3)
    assert other.ema.optimization_step == model.ema.optimization_step == 2
    step(model, 3)
    step(other, 3)
    assert_bit_equal(state(other), state(model))
    assert any(not torch.equal(saved[name], now) for name, now in state(other).items())


def test_before_any_update(model, load_model, step, tmp_path):
    checkpoint.save(model, tmp_path, 0)
    step(model, 1)
    other = load_model(seed=9)
    checkpoint.restore(other, tmp_path)
    assert other.version == 0 and not other.optimizer_state()
    step(other, 1)
    assert_bit_equal(state(other), state(model))


def test_the_last_two_stay(model, tmp_path):
    for iteration in (1, 2, 3):
        checkpoint.save(model, tmp_path, iteration)
    assert sorted(place.name for place in tmp_path.iterdir()) == ["000002", "000003"]
    checkpoint.save(model, tmp_path, 3)
    assert [place.name for place in checkpoint.complete(tmp_path)] == ["000002", "000003"]


def test_the_order_is_that_of_numbers(model, tmp_path):
    for iteration in (999_998, 999_999, 1_000_000):
        checkpoint.save(model, tmp_path, iteration)
    assert [place.name for place in checkpoint.complete(tmp_path)] == ["999999", "1000000"]
    assert checkpoint.restore(model, tmp_path) == 1_000_000


def test_incomplete_folders_are_not_seen(model, tmp_path):
    assert checkpoint.restore(model, tmp_path / "nowhere") == 0
    checkpoint.save(model, tmp_path, 4)
    (tmp_path / "000009").mkdir()
    (tmp_path / ".000005.123").mkdir()
    (tmp_path / ".000005.123" / "state.json").write_text("{}")
    assert checkpoint.restore(model, tmp_path) == 4


def test_another_adapter_is_refused(model, load_model, tmp_path):
    checkpoint.save(model, tmp_path, 1)
    other = load_model(lora_rank=8)
    before = state(other)
    with pytest.raises(ValueError, match="000001 was made with another model or adapter.*Fix: "):
        checkpoint.restore(other, tmp_path)
    assert_bit_equal(state(other), before)


@pytest.mark.parametrize("name", ["adapter", "optimizer", "ema", "rng"])
def test_a_truncated_file_is_named(model, load_model, step, tmp_path, name):
    step(model, 1)
    place = checkpoint.save(model, tmp_path, 1)
    file = place / f"{name}.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ValueError, match=rf"{name}\.safetensors is truncated"):
        checkpoint.restore(load_model(), tmp_path)


def test_a_truncated_state_is_named(model, tmp_path):
    (checkpoint.save(model, tmp_path, 1) / "state.json").write_text('{"iteration"')
    with pytest.raises(ValueError, match=r"state\.json is truncated.*Fix: "):
        checkpoint.restore(model, tmp_path)
