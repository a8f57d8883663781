"""Checkpoints: everything comes back to the bit, a failed write loses none, and a damaged one is named and passed over."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from dataclasses import replace

import pytest
import safetensors.torch
import torch

from comfyui_otca.host import own_folders
from comfyui_otca.tests.training import judged
from comfyui_otca.trainer import matching as forward_process
from comfyui_otca.trainer.credit.inverse_variance import StepNoise
from comfyui_otca.trainer.credit.learned import LearnedShares, StepShares
from comfyui_otca.trainer.gradient import RewardSpread
from comfyui_otca.trainer.grpo import UpdateSettings, update
from comfyui_otca.trainer.rollout import GraphDecisions
from comfyui_otca.trainer.run import checkpoint
from comfyui_otca.trainer.types import OLD, THETA, MatchingSettings, NextRollout

pytestmark = pytest.mark.anywhere

SETTINGS = UpdateSettings(learning_rate=1e-3, ema_decay=0.5)
MATCHING = MatchingSettings(learning_rate=1e-3, ema_decay=0.5, sampled_steps=2, epochs=2)


@pytest.fixture(scope="module")
def step(sample):
    """step(model, seed): one iteration with made-up rewards, by either update."""

    def go(model, seed, settings=SETTINGS):
        taken = sample(model, seed=seed)
        move = update if settings is SETTINGS else forward_process.update
        move(model, taken, judged(taken, seed), settings)

    return go


def state(model):
    tensors = {f"parameter {k}": v.detach().clone() for k, v in model.policy.trainable_named().items()}
    tensors |= {f"optimizer {k}": v.clone() for k, v in model.policy.optimizer_state().items()}
    if model.policy.ema is not None:
        tensors |= {f"average {i}": p.clone() for i, p in enumerate(model.policy.ema.shadow_params)}
    return tensors | {f"old {name}": value.clone() for name, value in model.policy.old_state().items()}


def assert_bit_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def test_everything_comes_back_to_the_bit(model, load_model, step, tmp_path):
    for seed in (1, 2):
        step(model, seed)
    model.policy.nonfinite_in_a_row = 3
    torch.manual_seed(42)
    torch.rand(5)
    checkpoint.save(model, tmp_path, 2)
    saved, next_draw = state(model), torch.rand(3)
    assert any(name.startswith("optimizer") for name in saved) and any(name.startswith("average") for name in saved)

    other = load_model(seed=9)
    assert checkpoint.restore(other, tmp_path) == 2
    assert torch.equal(torch.rand(3), next_draw)
    assert_bit_equal(state(other), saved)
    assert (other.policy.version, other.policy.nonfinite_in_a_row) == (2, 3)
    assert other.policy.ema.optimization_step == model.policy.ema.optimization_step == 2
    step(model, 3)
    step(other, 3)
    assert_bit_equal(state(other), state(model))
    assert any(not torch.equal(saved[name], now) for name, now in state(other).items())


def test_the_old_policy_comes_back_to_the_bit(model, load_model, step, tmp_path):
    """And with it the same levels, noise and schedule; a checkpoint without one leaves none."""
    model.policy.old_steps = 100
    for seed in (1, 2):
        step(model, seed, MATCHING)
    checkpoint.save(model, tmp_path, 2)
    saved = state(model)
    assert sum(name.startswith("old ") for name in saved) == sum(name.startswith("parameter ") for name in saved) > 0
    other = load_model(seed=9)
    assert checkpoint.restore(other, tmp_path) == 2
    assert_bit_equal(state(other), saved)
    assert other.policy.samples_with == OLD and other.policy.old_steps == 104
    for each in (model, other):
        step(each, 3, MATCHING)
    assert_bit_equal(state(other), state(model))
    assert any(not torch.equal(saved[name], now) for name, now in state(other).items() if name.startswith("old "))
    step(other, 4)
    assert other.policy.samples_with == THETA, "GRPO samples with what it trains"
    checkpoint.save(other, tmp_path, 5)
    assert checkpoint.restore(model, tmp_path) == 5
    assert model.policy.samples_with == THETA and model.policy.old_steps == 0


def test_a_late_old_policy_is_only_counted(model, load_model, step, tmp_path):
    step(model, 1, replace(MATCHING, old_policy="late", epochs=1))
    assert not (checkpoint.save(model, tmp_path, 1) / "old_policy.safetensors").exists()
    other = load_model(seed=9)
    checkpoint.restore(other, tmp_path)
    assert other.policy.old_steps == 1 and other.policy.samples_with == THETA


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (lambda place: (place / "old_policy.safetensors").unlink(), "old_policy.safetensors is missing"),
        (lambda place: flip(place / "old_policy.safetensors"), "old_policy.safetensors is damaged"),
        (lambda place: rewrite(place, {"steps": -1, "differs": True}), "state.json has an old_policy that"),
        (lambda place: rewrite(place, [1]), "state.json has an old_policy that holds a list"),
    ],
)
def test_a_damaged_old_policy_is_named(model, step, tmp_path, harm, told):
    step(model, 1, MATCHING)
    harm(checkpoint.save(model, tmp_path, 1))
    with pytest.raises(ValueError, match=told):
        checkpoint.restore(model, tmp_path)


def rewrite(place, old_policy):
    content = json.loads((place / "state.json").read_text())
    (place / "state.json").write_text(json.dumps(content | {"old_policy": old_policy}))


def test_before_any_update(model, load_model, step, tmp_path):
    checkpoint.save(model, tmp_path, 0)
    step(model, 1)
    other = load_model(seed=9)
    checkpoint.restore(other, tmp_path)
    assert other.policy.version == 0 and not other.policy.optimizer_state()
    step(other, 1)
    assert_bit_equal(state(other), state(model))


@pytest.mark.parametrize(
    ("saved", "keep", "left"),
    [
        ((1, 2, 3), 2, ["000002", "000003"]),
        ((1, 2, 3, 3), 2, ["000002", "000003"]),
        ((1, 2, 3, 4), 3, ["000002", "000003", "000004"]),
        ((1, 2, 3, 4), 1, ["000004"]),
        ((4, 8, 6), 2, ["000004", "000006"]),  # the run went back behind 8, which would be taken for the newest
        ((999_998, 999_999, 1_000_000), 2, ["999999", "1000000"]),
    ],
)
def test_the_last_ones_stay(model, tmp_path, saved, keep, left):
    for iteration in saved:
        checkpoint.save(model, tmp_path, iteration, keep)
    assert {place.name for place in tmp_path.iterdir()} == set(left)
    assert [place.name for place in checkpoint.complete(tmp_path)] == left
    assert checkpoint.restore(model, tmp_path) == saved[-1]


def test_unfinished_folders_are_not_seen_and_swept_up_and_a_copy_stays(model, tmp_path):
    assert checkpoint.restore(model, tmp_path / "nowhere") == 0
    shutil.copytree(checkpoint.save(model, tmp_path, 4), tmp_path / "000004 - Copy")  # as a file manager makes it
    (tmp_path / ".000005.123").mkdir()
    own_folders.mark_own(tmp_path / ".000005.123")
    (tmp_path / ".000005.123" / "state.json").write_text("{}")
    assert checkpoint.restore(model, tmp_path) == 4
    checkpoint.save(model, tmp_path, 6)
    assert sorted(place.name for place in tmp_path.iterdir()) == ["000004", "000004 - Copy", "000006"]
    assert checkpoint.restore(model, tmp_path) == 6 and len(checkpoint.complete(tmp_path)) == 2


def test_another_alpha_keeps_what_was_learned(model, load_model, step, tmp_path):
    """Seen before: alpha/rank times what was learned; ΔW by a learning rate of 0 was 4 times as large."""
    for seed in (1, 2):
        step(model, seed, MATCHING)
    checkpoint.save(model, tmp_path, 2)
    other = load_model(lora_alpha=16.0)
    checkpoint.restore(other, tmp_path)
    names, after = list(model.policy.trainable_named()), state(other)
    for name, value in state(model).items():
        kind, _, rest = name.partition(" ")
        key = names[int(rest.partition(".")[0])] if kind in ("optimizer", "average") else rest
        power = {"exp_avg": -1, "exp_avg_sq": -2}.get(rest.rpartition(".")[2], 0 if kind == "optimizer" else 1)
        torch.testing.assert_close(after[name], value * 0.25**power if "lora_B" in key else value, rtol=1e-6, atol=0)


def test_another_base_of_the_same_shapes_is_refused(load_model, flux_folder, tmp_path):
    checkpoint.save(load_model(), tmp_path, 1)
    copy = shutil.copytree(flux_folder, tmp_path / "elsewhere")
    assert checkpoint.restore(load_model(copy), tmp_path) == 1, "a copy is the same model"
    with pytest.raises(ValueError, match="another base model than .*scenes-flux. Fix: .*start_from"):
        checkpoint.restore(load_model(flux_folder.with_name("scenes-flux")), tmp_path)


def test_another_adapter_is_refused(model, load_model, tmp_path):
    checkpoint.save(model, tmp_path, 1)
    other = load_model(lora_rank=8)
    before = state(other)
    with pytest.raises(ValueError, match="000001 was made with another model or adapter.*Fix: "):
        checkpoint.restore(other, tmp_path)
    assert_bit_equal(state(other), before)


# --- damage -----------------------------------------------------------------------------------------------------------


def flip(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1  # one bit of the last number: still a safetensors file
    file.write_bytes(content)


DAMAGE = {
    "a bit": (flip, "is damaged: its SHA-256 is not that of state.json"),
    "cut short": (lambda file: file.write_bytes(file.read_bytes()[:-8]), "is damaged"),
    "removed": (lambda file: file.unlink(), "is missing"),
}


@pytest.fixture(scope="module")
def two_steps(load_model, step, tmp_path_factory):
    """A folder with two checkpoints, the state in the first, and a model that goes from one test to the next."""
    folder, model = tmp_path_factory.mktemp("checkpoints"), load_model()
    step(model, 1)
    checkpoint.save(model, folder, 1)
    saved = state(model)
    step(model, 2)
    checkpoint.save(model, folder, 2)
    return folder, saved, model


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["adapter.safetensors", "optimizer.safetensors", "ema.safetensors", "rng.safetensors"])
def test_a_damaged_one_is_named_and_the_one_before_is_used(two_steps, tmp_path, caplog, name, damage):
    folder, saved, other = two_steps
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    assert checkpoint.restore(other, folder) == 2
    file = tmp_path / "000002" / name
    harm, told = DAMAGE[damage]
    harm(file)
    assert checkpoint.restore(other, tmp_path) == 1
    assert_bit_equal(state(other), saved)
    [message] = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"{file} {told}") and message.endswith("continuing from iteration 1 instead")


@pytest.mark.parametrize("harm", [lambda file: file.write_text('{"iteration"'), lambda file: file.unlink()])
def test_with_no_other_a_damaged_one_is_an_error(model, tmp_path, harm):
    """And no start from scratch, which would forget the run."""
    file = checkpoint.save(model, tmp_path, 1) / "state.json"
    harm(file)
    with pytest.raises(ValueError, match=r"000001/state\.json is (not JSON|missing).*Fix: put the files back"):
        checkpoint.restore(model, tmp_path)


FILES = ("adapter", "optimizer", "ema", "rng", "old_policy", "credit")


def test_the_sums_are_those_of_the_files_and_none_is_believed_without_its_own(model, load_model, step, tmp_path):
    """Of every file that a checkpoint can have."""
    model.policy.old_steps, model.memo[LearnedShares]["7"] = 100, StepShares(2, torch.ones(6, 3))
    step(model, 1, MATCHING)
    place = checkpoint.save(model, tmp_path, 1)
    sums = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in place.iterdir()}
    del sums["state.json"], sums[".otca"]
    assert set(sums) == {f"{name}.safetensors" for name in FILES}
    written = json.loads((place / "state.json").read_text())
    assert written["sha256"] == sums
    other = load_model()
    assert checkpoint.restore(other, tmp_path) == 1
    for name in sums:
        lacking = {one: digest for one, digest in sums.items() if one != name}
        (place / "state.json").write_text(json.dumps({**written, "sha256": lacking}))
        with pytest.raises(ValueError, match=rf"{name} is damaged: its SHA-256 is not that of state\.json"):
            checkpoint.restore(other, tmp_path)


# --- what methods remember --------------------------------------------------------------------------------------------


def remembering(model):
    """Every kind of memo that a checkpoint holds."""
    model.memo.keep(NextRollout(unconditional_gradient=False))
    model.memo.keep(LearnedShares({"a": StepShares(7, torch.rand(6, 3))}))
    model.memo.keep(StepNoise(torch.rand(4, 3, dtype=torch.float64)))
    model.memo.keep(RewardSpread({"a": (3, 0.25)}))


def test_what_methods_remember_comes_back_also_of_an_older_checkpoint(model, load_model, tmp_path):
    """One that named each memo by itself; and what nobody has asked for is saved on."""
    remembering(model)
    place = checkpoint.save(model, tmp_path, 1)
    for older in (False, True):
        state = json.loads((place / "state.json").read_text())
        if older:
            memos = {name: memo["values"] for name, memo in state.pop("memos").items()}
            state |= dict(zip(("unconditional_gradient", "uses_graphs"), memos.pop("next_rollout"), strict=True))
            (place / "state.json").write_text(json.dumps(state | memos))
        between, other = load_model(), load_model()
        checkpoint.restore(between, tmp_path)
        checkpoint.save(between, tmp_path / "again", 1)
        checkpoint.restore(other, tmp_path / "again")
        assert other.memo[NextRollout] == NextRollout(unconditional_gradient=False)
        assert other.memo[RewardSpread] == {"a": (3, 0.25)} and other.memo[LearnedShares]["a"].again == 7
        assert torch.equal(other.memo[LearnedShares]["a"].figures, model.memo[LearnedShares]["a"].figures)
        assert torch.equal(other.memo[StepNoise].figures, model.memo[StepNoise].figures)


@pytest.mark.parametrize("kind", [NextRollout, GraphDecisions, LearnedShares, StepNoise, RewardSpread])
def test_a_memo_that_is_none_is_named_when_it_is_asked_for(model, load_model, tmp_path, kind):
    remembering(model)
    place = checkpoint.save(model, tmp_path, 1)
    state = json.loads((place / "state.json").read_text())
    for values in (
        *([None], {"a": "x"}, 7, {"a": -2}, [True]),
        *([True, True, [*calls, False, 0]] for calls in (("leap", -1, 1.0), ("leap", 1, "1"), ("drift", 1, 1.0))),
    ):
        state["memos"][kind.NAME] = {"values": values, "tensors": False}
        (place / "state.json").write_text(json.dumps(state))
        other = load_model()
        checkpoint.restore(other, tmp_path)
        with pytest.raises(ValueError, match=rf"{kind.NAME} of the checkpoint cannot be read .*Fix: delete that"):
            other.memo[kind]
    state["memos"] = {"../x": {"values": 1, "tensors": True}}
    (place / "state.json").write_text(json.dumps(state))
    with pytest.raises(ValueError, match=r"state\.json has memos that"):
        checkpoint.restore(load_model(), tmp_path)


# --- disks ------------------------------------------------------------------------------------------------------------


class Disk:
    """Counts what is asked of the disk, and is full from the `full`-th time on."""

    def __init__(self, monkeypatch):
        self.asked, self.full, self.flushed = 0, None, []
        for module, name in ((safetensors.torch, "save_file"), (os, "replace"), (os, "fsync")):
            monkeypatch.setattr(module, name, self._counted(getattr(module, name)))

    def _counted(self, function):
        def wrapped(*arguments, **options):
            self.asked += 1
            if self.full is not None and self.asked >= self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if function.__name__ == "fsync":
                self.flushed.append(os.readlink(f"/proc/self/fd/{arguments[0]}"))
            return function(*arguments, **options)

        return wrapped


def test_a_full_disk_loses_none(model, load_model, step, tmp_path, monkeypatch):
    """Full at every single write, rename and flush of a checkpoint, new or written again."""
    step(model, 1)
    for iteration in (1, 2):
        checkpoint.save(model, tmp_path, iteration)
    saved = state(model)
    step(model, 2)
    disk = Disk(monkeypatch)
    checkpoint.save(model, tmp_path / "elsewhere", 2)
    count = disk.asked
    assert count > 15
    for iteration in (3, 2):
        for disk.full in range(1, count):  # the last flush is that of the parent, after the rename
            disk.asked = 0
            with pytest.raises(OSError, match="No space left on device"):
                checkpoint.save(model, tmp_path, iteration)
            assert sorted(p.name for p in tmp_path.iterdir() if p.name != "elsewhere") == ["000001", "000002"]
    other = load_model()
    assert checkpoint.restore(other, tmp_path) == 2
    assert_bit_equal(state(other), saved)


def test_everything_is_flushed_before_it_appears(model, step, tmp_path, monkeypatch):
    """Each file, then the folder, then, once it has its name, the folder's parent."""
    step(model, 1)
    disk = Disk(monkeypatch)
    place = checkpoint.save(model, tmp_path, 1)
    aside = tmp_path / f".000001.{os.getpid()}"
    *before, folder, parent = disk.flushed
    assert {str(aside / file.name) for file in place.iterdir()} <= set(before)
    assert (folder, parent) == (str(aside), str(tmp_path))


def test_a_rename_that_fails_puts_the_old_one_back(tmp_path, monkeypatch):
    target = tmp_path / "best"
    with own_folders.new_folder(target) as aside:
        (aside / "a").write_text("old")
    replace = os.replace

    def refuse(source, place):
        if place == target and ".old" not in str(source):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        replace(source, place)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="Read-only"), own_folders.new_folder(target) as aside:
        (aside / "a").write_text("new")
    assert (target / "a").read_text() == "old" and list(tmp_path.iterdir()) == [target]
