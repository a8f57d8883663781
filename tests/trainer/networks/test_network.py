"""Networks of rewards: loaded once for all, asked once a batch, away between uses; and the reading of published files."""

from __future__ import annotations

import gc
import sys

import pytest
import torch

from comfyui_otca.host import devices
from comfyui_otca.trainer.networks import network as networks
from comfyui_otca.trainer.networks import published
from comfyui_otca.trainer.networks.network import Network, shared
from comfyui_otca.trainer.networks.published import Published, transformers_class
from comfyui_otca.trainer.rewards.base import NetworkReward, RewardError, score_stack

CPU = torch.device("cpu")
FILE = Published("the model", "model.pt", "3 MB", "owner/name")


class Doubling(Network):
    """Gives each picture's mean, doubled; counts its forwards and remembers where it was moved."""

    def __init__(self, place, device, dtype, **own):
        super().__init__(place, device, dtype)
        self.layer, self.own, self.batches, self.moved = torch.nn.Linear(1, 1), own, [], []
        self.settle(device)

    def _networks(self):
        return [self.layer]

    def _move(self, device):
        self.moved.append(str(device))
        super()._move(CPU)

    def pictures(self, images):
        self.batches.append(len(images))
        return 2 * images.mean((1, 2, 3))


class Mean(NetworkReward):
    def score(self, images, prompts):
        return self.network.once(images, "mean", lambda: self.in_batches(self.network.pictures, images))


def rewards(place, count=2, **use):
    return [Mean(f"mean {number}", Doubling, place, device="cpu", **use) for number in range(count)]


IMAGES = torch.arange(5.0)[:, None, None, None].expand(5, 2, 2, 3) / 8


def stack(scorers, images=IMAGES):
    return score_stack(scorers, images, ["a"] * len(images), torch.zeros(len(images), dtype=torch.long))


def test_gpus_for_rewards_are_what_auto_means(tmp_path, monkeypatch):
    """The device "meta" stands for a GPU that this machine need not have."""
    devices.choose(None, "meta")
    assert shared(Doubling, tmp_path).moved == ["meta"]
    assert shared(Doubling, tmp_path, "cpu").moved == ["cpu"], "what the node names it gets"


def test_one_network_for_one_checkpoint_device_and_precision(tmp_path):
    one = shared(Doubling, tmp_path, "cpu")
    assert one.dtype is torch.float32 and shared(Doubling, tmp_path / "x" / "..", "cpu", "float32") is one
    half = shared(Doubling, tmp_path, "cpu", "float16")
    assert half is not one and half.dtype is torch.float16
    assert shared(Doubling, tmp_path / "other", "cpu") is not one
    own = shared(Doubling, tmp_path, "cpu", tokenizer="here")
    assert own is not one and own.own == {"tokenizer": "here"}


def test_a_network_goes_with_its_last_reward(tmp_path):
    scorers = rewards(tmp_path)
    first = id(scorers[0].network)
    assert id(scorers[1].network) == first
    before = len(networks._loaded)
    scorers.clear()
    gc.collect()
    assert len(networks._loaded) == before - 1


def test_two_rewards_pay_for_one_forward(tmp_path):
    scorers, images = rewards(tmp_path), IMAGES.clone()
    values = stack(scorers, images).values
    torch.testing.assert_close(values, torch.arange(5.0)[:, None].expand(5, 2) / 4)
    assert scorers[0].network.batches == [5]
    scorers[0].score(images, [])
    assert scorers[0].network.batches == [5, 5] and len(scorers[0].network._results) == 1
    del images
    gc.collect()
    assert len(scorers[0].network._results) == 0, "what was computed of a batch goes with it"


@pytest.mark.parametrize(("size", "batches"), [(0, [5]), (2, [2, 2, 1]), (5, [5]), (9, [5])])
def test_batches_are_of_the_size_asked_for_and_change_nothing(tmp_path, size, batches):
    [scorer] = rewards(tmp_path, 1, batch_size=size)
    torch.testing.assert_close(stack([scorer]).values[:, 0], torch.arange(5.0) / 4)
    assert scorer.network.batches == batches


def test_every_column_is_cut_alike(tmp_path):
    [scorer] = rewards(tmp_path, 1, batch_size=2)
    seen = []
    scorer.in_batches(
        lambda numbers, words: seen.append((numbers.tolist(), words)) or numbers, torch.arange(3), ["a", "b", "c"]
    )
    assert seen == [([0, 1], ["a", "b"]), ([2], ["c"])]


class Away(Doubling):
    """Where it says it is, without an accelerator: wherever it was last sent."""

    def __init__(self, place, device, dtype):
        super().__init__(place, torch.device("cuda:1"), dtype)

    def _move(self, device):
        super()._move(device)
        self.layer.device = device


def test_offloaded_networks_leave_after_the_stack_and_come_back_for_the_next(tmp_path):
    network = shared(Away, tmp_path, "cpu")
    resting = Mean("resting", Away, tmp_path, device="cpu", offload=True)
    assert network.moved == ["cuda:1", "cpu"], "it waits for its first use, too"
    stack([resting, Mean("other", Away, tmp_path, device="cpu")])
    assert network.moved == ["cuda:1", "cpu"] * 2, "it left when both had scored"
    values = stack([resting]).values
    assert network.moved == ["cuda:1", "cpu"] * 3
    torch.testing.assert_close(values[:, 0], torch.arange(5.0) / 4)


def test_without_offload_it_stays(tmp_path):
    network = shared(Away, tmp_path, "cpu")
    stack([Mean("staying", Away, tmp_path, device="cpu")])
    assert network.moved == ["cuda:1"]
    assert shared(Doubling, tmp_path, "cpu").leave() is False, "its place is read off its parameters"


class Harmful:
    def __reduce__(self):
        return (sys.exit, ("unpickled",))


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        (
            "cut.pt",
            {"a": torch.zeros(1000)},
            r"\(3,000 bytes\) is not the model: it cannot be .*\(3 MB\) from owner/name",
        ),
        ("cut.safetensors", b"\x10\0\0\0\0\0\0\0{", "cannot be read"),
        (
            "harmful.pt",
            {"a": Harmful()},
            r"cannot be read \(UnpicklingError: it holds other things than tensors\)\. Fix: ",
        ),
        ("one.pt", torch.zeros(3), "it holds a Tensor and no named tensors"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, told):
    place = tmp_path / name
    torch.save(content, place)
    if name.startswith("cut"):
        place.write_bytes(content if isinstance(content, bytes) else place.read_bytes()[:3000])
    with pytest.raises(RewardError, match=rf"{name} .*{told}"):
        FILE.read(place)


def test_files_of_before_zip_archives_are_read(tmp_path):
    torch.save({"a": torch.arange(3)}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    assert FILE.read(tmp_path / "old.pth")["a"].tolist() == [0, 1, 2]


def test_a_published_file_that_is_nowhere(monkeypatch, tmp_path):
    monkeypatch.setenv("OTCA_MODELS", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match=r"model\.pt was not found\. Fix: get model\.pt \(3 MB\) from .*\.co/owner/name/"
    ):
        FILE.find()


def test_a_torchvision_that_does_not_fit_is_named(monkeypatch, tmp_path):
    """As where a torchvision built for CUDA stands beside a torch for the CPU."""
    import transformers

    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)

    def broken(self, name):
        raise ModuleNotFoundError(
            f"Could not import module '{name}'. Are this object's requirements defined correctly?"
        )

    monkeypatch.setattr(type(transformers), "__getattr__", broken, raising=False)
    with pytest.raises(
        RewardError, match=r"torchvision does not fit torch .*nms does not exist.*uninstall torchvision"
    ):
        transformers_class("NoSuchModel")


def test_another_fault_of_transformers_is_not_put_on_torchvision(monkeypatch):
    monkeypatch.setattr(published.importlib.util, "find_spec", lambda name: None)
    with pytest.raises((ImportError, AttributeError), match="NoSuchModel"):
        transformers_class("NoSuchModel")
