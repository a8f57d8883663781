"""The pretend accelerator refuses what CUDA refuses, gives the CPU's numbers, and counts what makes a GPU wait."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from comfyui_otca.host import devices
from comfyui_otca.tests.device import pretend

ONE, OTHER, CPU = "pretend:0", "pretend:1", "cpu"
pytestmark = [pytest.mark.anywhere, pytest.mark.usefixtures("accelerator")]

REFUSED = {
    "a tensor of the CPU": lambda: torch.ones(3, device=ONE) + torch.ones(3),
    "another device": lambda: torch.ones(3, device=ONE) + torch.ones(3, device=OTHER),
    "a weight of the CPU": lambda: nn.Linear(3, 2)(torch.ones(1, 3, device=ONE)),
    "a number of the CPU, but in no arithmetic": lambda: torch.stack([torch.ones((), device=ONE), torch.ones(())]),
    "indices of the device into the CPU": lambda: torch.ones(3)[torch.zeros(1, dtype=torch.int64, device=ONE)],
    "values of the CPU": lambda: torch.ones(3, device=ONE).index_put_((torch.tensor([0, 1]),), torch.ones(2)),
    "a generator of the CPU": lambda: torch.randn(3, generator=torch.Generator(), device=ONE),
    "numpy": lambda: torch.ones(3, device=ONE).numpy(),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cuda_refuses_is_refused(what):
    with pytest.raises((RuntimeError, TypeError)):
        REFUSED[what]()


def test_what_cuda_takes_is_taken():
    x = torch.arange(6.0, device=ONE).view(2, 3)
    assert (x + torch.tensor(1.0)).sum().item() == 21
    assert x[torch.tensor([1])].tolist() == [[3.0, 4.0, 5.0]], "indices may be in main memory"
    assert x.to(OTHER).device == torch.device(OTHER) and x.cpu().device.type == CPU
    assert torch.where(x > 2, x, 0.0).sum().item() == 12


def test_float64_is_an_option():
    assert torch.ones(2, dtype=torch.float64, device=ONE).dtype == torch.float64
    with pretend.active(float64=False), pytest.raises(TypeError, match="pretend:0 has no float64"):
        torch.ones(2, device=ONE).double()


def test_views_share_their_memory():
    x = torch.zeros(4, device=ONE)
    x.view(2, 2)[1] += 3
    assert x.tolist() == [0, 0, 3, 3]


def test_conjugate_numbers_are_conjugate():
    """The gradient of rotated positions, of Z-Image and Qwen-Image, multiplies by them."""
    x = torch.polar(torch.ones(3), torch.arange(3.0))
    assert torch.equal((x.to(ONE).conj() * 2).cpu(), x.conj() * 2)
    assert torch.equal((x.to(ONE).conj().imag + 1).cpu(), x.conj().imag + 1)


def test_a_module_moves_as_it_does_to_a_gpu():
    """Its parameters stay the same objects, so that whoever holds them sees them where they are."""
    layer = nn.Linear(3, 2)
    expected, held = layer(torch.ones(1, 3)).detach(), layer.weight
    layer.to(ONE)
    assert held is layer.weight and held.device == torch.device(ONE) and isinstance(held, nn.Parameter)
    torch.testing.assert_close(layer(torch.ones(1, 3, device=ONE)).cpu(), expected)
    layer.to(CPU)
    assert held is layer.weight and type(held) is nn.Parameter
    assert torch.equal(layer(torch.ones(1, 3)), expected)


def test_data_of_another_place_and_of_the_same():
    parameter, value = nn.Parameter(torch.ones(2)), torch.full((2,), 5.0, device=ONE)
    parameter.data = value
    assert parameter.device == torch.device(ONE) and parameter.requires_grad
    parameter.data = 2 * value
    assert parameter.tolist() == [10, 10] and value.tolist() == [5, 5]


def test_the_gradient_and_the_fused_optimizer_are_the_cpus():
    weights = []
    for device in (CPU, ONE):
        layer = nn.Linear(3, 2)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.fill_(0.5)
        layer.to(device)
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True)
        layer(torch.arange(3.0).to(device)[None]).square().sum().backward()
        optimizer.step()
        weights.append(layer.weight.detach().cpu())
    assert torch.equal(*weights)


@pytest.mark.parametrize("casts", [True, False])
def test_autocast(casts):
    x = torch.ones(2, 2, device=ONE)
    with pretend.active(casts=casts), torch.autocast(pretend.NAME, dtype=torch.bfloat16):
        assert (x @ x).dtype == (torch.bfloat16 if casts else torch.float32)
        assert nn.functional.layer_norm(x.bfloat16(), (2,)).dtype == (torch.float32 if casts else torch.bfloat16)
        assert torch.cat([x, x.bfloat16()]).dtype == torch.float32


WAITING = {
    "a number": lambda x: x.sum().item(),
    "a question": lambda x: bool((x > 0).all()),
    "a copy to the host": lambda x: x.cpu(),
    "a list": lambda x: x.tolist(),
    "a copy from the host": lambda x: torch.ones(3).to(ONE),
    "a list to the device": lambda x: torch.tensor([1.0, 2.0], device=ONE),
    "where something is": lambda x: x.nonzero(),
    "a mask": lambda x: x[x > 0],
    "an index of the host": lambda x: x[torch.tensor([0])],
    "much that is not pinned": lambda x: torch.ones(20_000).to(ONE, non_blocking=True),
}
QUEUED = {
    "arithmetic": lambda x: (x * 2 + 1).clamp(0, 1).mean(),
    "what is made there": lambda x: torch.full((3,), 2.0, device=ONE),
    "an index of its own": lambda x: x[torch.zeros(1, dtype=torch.int64, device=ONE)],
    "a little": lambda x: torch.ones(3).to(ONE, non_blocking=True),
    "much that is pinned": lambda x: torch.ones(20_000).pin_memory().to(ONE, non_blocking=True),
    "what devices.upload takes there": lambda x: [
        devices.upload(torch.ones(n), torch.device(ONE)) for n in (3, 20_000)
    ],
}


@pytest.mark.parametrize("what", [*WAITING, *QUEUED])
def test_what_makes_a_gpu_wait(what):
    x = torch.arange(3.0, device=ONE)
    with pretend.watched() as seen:
        (WAITING | QUEUED)[what](x)
    assert sum(seen.waits.values()) == (what in WAITING), seen.waits
    assert all(line.startswith("tests/device/test_pretend.py:") for line in seen.waits)


def test_one_copy_brings_many_figures():
    figures = {
        "a": torch.tensor(0.1, device=ONE),
        "b": torch.tensor(True, device=ONE),
        "c": torch.rand(2, 3, device=ONE),
    }
    wide = torch.full((), 0.1, dtype=torch.float64, device=ONE)
    with pretend.watched() as seen:
        read = devices.download(figures | {"wide": wide})
    assert sum(seen.waits.values()) == 1
    for name, value in figures.items():
        assert read[name].dtype == value.dtype and torch.equal(read[name], value.cpu()), name
    assert read["wide"].item() == 0.1


def test_it_is_no_accelerator_outside():
    assert devices.default_device().type == pretend.NAME
    pretend.STATE.active = False
    assert devices.default_device().type == CPU
    pretend.STATE.active = True
