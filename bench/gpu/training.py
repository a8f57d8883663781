"""One training iteration in the shape of a published model: its time against its floor and the matrix rate, and its memory."""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import torch

from comfyui_otca.bench.iteration import Peak, floor
from comfyui_otca.trainer import grpo, rollout
from comfyui_otca.trainer.advantages import fuse
from comfyui_otca.trainer.credit.steps import tcd
from comfyui_otca.trainer.families import loading
from comfyui_otca.trainer.flow import FlowModelError, LoadOptions
from comfyui_otca.trainer.memory.case import Iteration
from comfyui_otca.trainer.types import Prompts, SamplerSettings, Scores, UpdateSettings

from . import shapes
from .machine import wait
from .parts import Place, Skipped

SIDE, STEPS, ROUNDS = 512, 4, 2  # three of the steps are trained
TOP = 10  # rows of the profile


def iteration(
    place: Place,
    batch: int,
    keep_graph: bool = False,
    sampled_steps: int = 0,
    load: dict[str, Any] | None = None,
    shape: str = "flux",
) -> dict:
    """Seconds of the rollout and of the update, the bare calls, operations and memory; medians after one that warms up."""
    case = _Case(place, batch, keep_graph, sampled_steps, load, shape)
    forward, both = case.forward, case.both
    rows, bare = [], []
    peak = Peak(case.model)
    try:
        with peak:
            case.run(0)
    except RuntimeError as error:
        if "No viable backend for scaled_dot_product_attention" in str(error):
            raise Skipped("this device has no such kernel of scaled_dot_product_attention") from error
        raise
    for number in range(1, ROUNDS + 1):
        rows.append(case.run(number))
        bare.append(floor(case.model, case.taken, batch))
    trained = len(case.taken.trained)
    updated = sampled_steps or trained
    seconds = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    update = case.samples * updated * (both - forward if keep_graph else both)
    return {
        **case.about,
        "batch": batch,
        "samples": case.samples,
        "steps": STEPS,
        "trained_steps": trained,
        "seconds": seconds,
        "floor_seconds": statistics.median(bare),
        "forward_operations": forward,
        "forward_and_backward_operations": both,
        "rollout_share_of_rate": _share(place, case.samples * STEPS * forward, seconds["sampling"]),
        "update_share_of_rate": _share(place, update, seconds["update"]),
        "peak_bytes": round(peak.megabytes * 1e6),
        "estimated_bytes": case.estimated(),
    }


class _Case:
    """A model, and how it is trained."""

    def __init__(
        self,
        place: Place,
        batch: int,
        keep_graph: bool = False,
        sampled_steps: int = 0,
        load: dict | None = None,
        shape: str = "flux",
    ):
        self.place, self.shape, self.options = place, shape, LoadOptions(**(load or {}))
        self.model, self.about, self.blueprint = shapes.made(place, shape)
        side = 32 if place.tiny else SIDE
        self.batch, self.keep_graph, self.samples = batch, keep_graph, max(2, batch)  # a group has at least two
        self.settings = SamplerSettings(
            kind="dance_sde", eta=0.5, steps=STEPS, width=side, height=side, shift=3.0, guidance=3.5, batch_size=batch
        )
        self.update = UpdateSettings(learning_rate=1e-4, batch_size=batch, sampled_steps=sampled_steps)
        self.forward, self.both = self._operations()  # before anything is computed twice, or by a kernel that hides it
        try:
            loading.speed_up(self.model.transformer, self.options)
        except FlowModelError as error:
            raise Skipped(str(error)) from error

    def run(self, seed: int) -> dict[str, float]:
        """Seconds of one iteration's parts."""
        device = self.model.device
        wait(device)
        began = time.perf_counter()
        self.taken = rollout.sample(
            self.model,
            Prompts(("a red circle",), (0,)),
            self.settings,
            group_size=self.samples,
            seed=seed,
            keep_graph=self.keep_graph,
        )
        wait(device)
        sampled = time.perf_counter()
        scores = torch.randn(self.samples, 1, generator=torch.Generator().manual_seed(seed))
        judged = Scores(scores, ("made up",), (1.0,), self.taken.groups, torch.empty(self.samples, 0), (), ())
        advantages = fuse(judged, tcd(self.taken.latents, self.taken.final, self.taken.trained, w_min=0.5), "moca")
        wait(device)
        weighed = time.perf_counter()
        grpo.update(self.model, self.taken, advantages, self.update)
        wait(device)
        ended = time.perf_counter()
        return {"sampling": sampled - began, "update": ended - weighed, "iteration": ended - began}

    def _operations(self) -> tuple[int, int]:
        """Multiplications and additions of one sample: of a forward pass, and with the gradient of its adapter."""
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.utils.flop_counter import FlopCounterMode

        model, settings = self.model, self.settings
        condition = model.condition(["a red circle"], settings)
        x = torch.randn(1, *model.latent_shape(settings.height, settings.width)).to(model.device)
        counts = []
        for gradient in (False, True):
            # Some kernels of attention the counter does not know; its plain matrices it does.
            with (
                FlopCounterMode(display=False) as counter,
                torch.set_grad_enabled(gradient),
                sdpa_kernel(SDPBackend.MATH),
            ):
                velocity = model.velocity(x, 0.5, condition, settings.guidance)
                if gradient:
                    velocity.sum().backward()
            counts.append(counter.get_total_flops())
        model.policy.forget_gradients()
        return counts[0], counts[1]

    def estimated(self) -> int:
        """What `otca memory` says of it, with the weights as they are held."""
        settings = self.settings
        iteration = Iteration(
            (settings.width, settings.height, 1),
            samples=self.samples,
            steps=STEPS,
            trained_steps=len(self.taken.trained),
            batch=self.batch,
            sampling_batch=self.batch,
            guided=self.model.guides(settings.guidance),
            keep_graph=self.keep_graph,
        )
        found = shapes.estimated(self.place, self.shape, self.blueprint, self.options, iteration).needs
        return found.total + self.about["weights_bytes"] - found.parts["weights"]


def _share(place: Place, operations: float, seconds: float) -> float | None:
    """Of the matrix rate that was measured here; None where it was not."""
    file = place.folder / "rate.json"
    measured = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return operations / seconds / measured["result"]["rate"] if measured.get("state") == "done" else None


def profile(place: Place, batch: int) -> dict:
    """The kernels, or on a CPU the operators, that take the most time of an iteration."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    case = _Case(place, batch)
    case.run(0)
    on_gpu = case.model.device.type == "cuda"
    with profiler(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu) as trace:
        case.run(1)
    spent = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    rows = sorted(trace.key_averages(), key=lambda row: getattr(row, spent), reverse=True)
    total = sum(getattr(row, spent) for row in rows)
    largest = [{"name": row.key[:120], "calls": row.count, "seconds": getattr(row, spent) / 1e6} for row in rows[:TOP]]
    return {"batch": batch, "total_seconds": total / 1e6, "largest": largest}
