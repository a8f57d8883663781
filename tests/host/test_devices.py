"""Leaving an accelerator and coming back, played on devices that every machine has."""

import weakref

import pytest
import torch

from comfyui_otca.host import devices
from comfyui_otca.host.devices import Resident
from comfyui_otca.trainer.types import UpdateSettings


class Network(torch.nn.Linear):
    """Says it is where it was last sent, so that no accelerator is needed."""

    def __init__(self):
        super().__init__(2, 2)
        self.device = torch.device("cpu")

    def to(self, device):
        self.device = torch.device(device)
        return self


class Model(Resident):
    def __init__(self):
        self.networks = [Network(), Network()]

    def _networks(self):
        return self.networks

    @property
    def devices(self):
        return [str(network.device) for network in self.networks]


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.setattr(devices, "resident_networks", weakref.WeakSet())


def test_leaves_and_comes_back():
    model = Model()
    model.settle(torch.device("cuda:1"))
    assert devices.release_all() == 1
    assert model.devices == ["cpu", "cpu"]
    assert devices.release_all() == 0, "it is gone already"
    for _ in range(2):
        model.come_back()
        assert model.devices == ["cuda:1", "cuda:1"]
    assert Resident().leave() is False, "a reward without networks"


def test_what_is_on_the_cpu_and_what_is_gone_is_not_released():
    Model().settle(torch.device("cuda"))
    model = Model()
    model.settle(torch.device("cpu"))
    assert devices.release_all() == 0
    model.come_back()
    assert model.devices == ["cpu", "cpu"]


def test_a_flow_model_moves_with_all_that_it_learned(model, sample, perturb, monkeypatch):
    """Moments and average live beside the weights: what is moved is recorded, since the CPU is the only device here."""
    model.policy.optimizer_for(UpdateSettings(learning_rate=1e-3, ema_decay=0.5))
    parameter = model.policy.trainable_parameters()[0]
    parameter.grad = torch.ones_like(parameter)
    model.policy.optimizer.step()
    moved, to = [], torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *a, **k: moved.append(tensor) or to(tensor, *a, **k))
    model._move(torch.device("cpu"))
    state = model.policy.optimizer.state[parameter]
    assert {"exp_avg", "exp_avg_sq", "step"} == set(state)
    assert all(any(value is tensor for tensor in moved) for value in state.values())
    assert all(any(shadow is tensor for tensor in moved) for shadow in model.policy.ema.shadow_params)


def test_weights_are_counted_where_they_are():
    model = Model()
    model.networks = [torch.nn.Linear(3, 2), torch.nn.Linear(2, 2, device="meta")]
    devices.resident_networks.add(model)
    assert devices.held_on("cpu", 0) == 4 * (3 * 2 + 2)
    assert devices.held_on("meta", 0) == 4 * (2 * 2 + 2)
    assert devices.held_on("cuda", 0) is None
