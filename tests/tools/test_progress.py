"""A training of the embedded models that was interrupted goes on bit for bit."""

from __future__ import annotations

import torch
from diffusers.training_utils import EMAModel

from comfyui_otca.tools.models.flux import keep, resume


def made():
    torch.manual_seed(4)
    module = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=10, pct_start=0.3)
    return module, EMAModel(module.parameters(), decay=0.9), optimizer, schedule


def train(parts, steps: int) -> None:
    module, average, optimizer, schedule = parts
    for _ in range(steps):
        optimizer.zero_grad()
        module(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        schedule.step()
        average.step(module.parameters())


def test_it_goes_on_where_it_was_saved(tmp_path):
    whole = made()
    train(whole, 10)
    first = made()
    train(first, 6)
    path = tmp_path / "model.progress.pt"
    keep(path, 6, *first)
    torch.manual_seed(99)
    second = made()
    torch.manual_seed(99)
    assert resume(path, *second) == 6
    train(second, 4)
    for one, other in zip(whole[0].parameters(), second[0].parameters(), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(whole[1].shadow_params, second[1].shadow_params, strict=True):
        assert torch.equal(one, other)
    assert [path.name for path in tmp_path.iterdir()] == ["model.progress.pt"]
