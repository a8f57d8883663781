"""Leaving an accelerator and coming back, played on devices that every machine has."""

import pytest
import torch

from comfyui_otca.host import devices
from comfyui_otca.host.devices import Resident


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
    import weakref

    monkeypatch.setattr(devices, "_residents", weakref.WeakSet())


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


def test_on_the_cpu_there_is_nothing_to_release():
    model = Model()
    model.settle(torch.device("cpu"))
    assert devices.release_all() == 0
    model.come_back()
    assert model.devices == ["cpu", "cpu"]


def test_is_not_kept_alive():
    Model().settle(torch.device("cuda"))
    assert devices.release_all() == 0


def test_a_flow_model_moves_with_all_that_it_learned(model, sample, perturb, monkeypatch):
    """Moments and average live beside the weights: what is moved is recorded, since the CPU is the only device here."""
    from comfyui_otca.trainer.grpo import UpdateSettings

    model.policy.optimizer_for(UpdateSettings(learning_rate=1e-3, ema_decay=0.5))
    parameter = model.policy.trainable_parameters()[0]
    parameter.grad = torch.ones_like(parameter)
    model.policy.optimizer.step()
    moved = []
    original = torch.Tensor.to

    def to(tensor, *arguments, **options):
        moved.append(tensor)
        return original(tensor, *arguments, **options)

    monkeypatch.setattr(torch.Tensor, "to", to)
    model._move(torch.device("cpu"))
    state = model.policy.optimizer.state[parameter]
    assert {"exp_avg", "exp_avg_sq", "step"} == set(state)
    assert all(any(value is tensor for tensor in moved) for value in state.values())
    assert all(any(shadow is tensor for tensor in moved) for shadow in model.policy.ema.shadow_params)


def test_weights_are_counted_where_they_are():
    model = Model()
    model.networks = [torch.nn.Linear(3, 2), torch.nn.Linear(2, 2, device="meta")]
    devices._residents.add(model)
    assert devices.held_on("cpu", 0) == 4 * (3 * 2 + 2)
    assert devices.held_on("meta", 0) == 4 * (2 * 2 + 2)
    assert devices.held_on("cuda", 0) is None
