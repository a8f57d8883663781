"""The pretend accelerator refuses what CUDA refuses, and counts what makes a GPU wait: without that, tests on it say nothing.

That its numbers are the CPU's, test_training.py says of whole iterations.
"""

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


def test_float64_is_an_option():
    assert torch.ones(2, dtype=torch.float64, device=ONE).dtype == torch.float64
    with pretend.active(float64=False), pytest.raises(TypeError, match="pretend:0 has no float64"):
        torch.ones(2, device=ONE).double()


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
