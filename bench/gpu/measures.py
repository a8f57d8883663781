"""The measures of `python -m comfyui_otca.bench.gpu`, and for how many seconds at most."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
import xml.etree.ElementTree
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from comfyui_otca.bench.common import ROOT, take_turns, wait
from comfyui_otca.bench.iteration import Peak, floor
from comfyui_otca.bench.rewards import throughput
from comfyui_otca.trainer import grpo, rollout
from comfyui_otca.trainer.advantages import fuse
from comfyui_otca.trainer.credit.steps import tcd
from comfyui_otca.trainer.families import loading
from comfyui_otca.trainer.flow import FlowModelError, LoadOptions
from comfyui_otca.trainer.memory.case import Iteration
from comfyui_otca.trainer.types import Prompts, SamplerSettings, Scores, UpdateSettings

from . import shapes
from .shapes import Place


class Skipped(Exception):
    """A part that cannot be had here, with the reason."""


@dataclass(frozen=True)
class Part:
    measure: Callable[[Place], dict]
    seconds: int


# --- the device itself ------------------------------------------------------------------------------------------------

SIZES = (4096, 8192, 16384)  # of the square matrices; the best rate counts
TIMES = 10


def rate(place: Place) -> dict:
    """The device, and how many multiplications and additions of bfloat16 matrices it does in a second."""
    device = torch.device(place.device)

    def product(size: int) -> Callable[[], torch.Tensor]:
        a, b = (torch.randn(size, size, dtype=torch.bfloat16).to(device) for _ in range(2))
        return lambda: torch.mm(a, b)

    seconds, _ = take_turns({size: product(size) for size in ((256,) if place.tiny else SIZES)}, TIMES, device)
    rates = {size: 2 * size**3 / median for size, median in seconds.items()}
    is_cuda = device.type == "cuda"
    about = torch.cuda.get_device_properties(device) if is_cuda else None
    return {
        "device": about.name if about else platform.processor() or platform.machine(),
        "memory": about.total_memory if about else 0,
        "capability": list(torch.cuda.get_device_capability(device)) if is_cuda else None,
        "devices": torch.cuda.device_count(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "rates": rates,
        "rate": max(rates.values()),
    }


def tests(place: Place, files: Sequence[str], tiny: Sequence[str] = ()) -> dict:
    """The tests that this device is for; `tiny`: the files of a rehearsal."""
    results = place.folder / "tests.xml"
    command = [sys.executable, "-m", "pytest", *(ROOT / "tests" / file for file in (place.tiny and tiny) or files)]
    command += [] if place.device == "cpu" else ["--device", place.device]
    subprocess.run([*command, "-n", "0", "-q", "-p", "no:cacheprovider", f"--junit-xml={results}"], cwd=ROOT)
    if not results.is_file():
        raise RuntimeError("pytest wrote no results")
    cases = list(xml.etree.ElementTree.parse(results).iter("testcase"))
    results.unlink()
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    names = [f"{case.get('classname')}::{case.get('name')}" for case in failed]
    counts = {"passed": len(cases) - len(failed) - skipped, "failed": len(failed), "skipped": skipped}
    return counts | {"failures": names}


def collectives(place: Place) -> dict:
    """NCCL, or gloo on a CPU, in a process alone: what a sum over all processes, and a gathering of all, come to."""
    import torch.distributed as dist

    device = torch.device(place.device)
    if device.type not in ("cuda", "cpu"):
        raise Skipped(f"{device.type} has no collectives")
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    store = dist.HashStore()  # pyright: ignore[reportAttributeAccessIssue] not on Windows
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=store, rank=0, world_size=1)
    values = torch.arange(8.0).to(device)
    total, gathered = values.clone(), [torch.empty_like(values)]
    dist.all_reduce(total)
    dist.all_gather(gathered, values)
    wait(device)
    if not (torch.equal(total, values) and torch.equal(gathered[0], values)):
        raise RuntimeError(f"of {values.tolist()} a process alone got {total.tolist()} and {gathered[0].tolist()}")
    backend = dist.get_backend()
    dist.destroy_process_group()
    return {"backend": backend}


def processes(place: Place) -> dict:
    """The embedded model trained by one process and by one on every GPU: the same run, and how long it takes."""
    device = torch.device(place.device)
    count = torch.cuda.device_count() if device.type == "cuda" else 2
    if device.type not in ("cuda", "cpu") or count < 2:
        raise Skipped("there is one GPU here")
    rows, seconds = {}, {}
    for number in (1, count):
        output = place.folder / f"run-{number}-{os.getpid()}"
        changes = {"OTCA_TrainingRun.iterations": 2, "OTCA_SDESampler.steps": 3, "OTCA_TrainingRun.evaluate_every": 0}
        changes |= {"OTCA_PromptDataset.prompts_per_iteration": count, "OTCA_SDESampler.group_size": 4}
        command = [sys.executable, str(ROOT), "train", str(ROOT / "workflows" / "api" / "otca.json")]
        command += ["--output", str(output), "--device", device.type]
        command += [part for name, value in changes.items() for part in ("--set", f"{name}={value}")]
        began = time.perf_counter()
        subprocess.run(command + (["--gpus", str(number)] if number > 1 else []), cwd=ROOT, check=True)
        seconds[number] = time.perf_counter() - began
        [log] = output.rglob("metrics.jsonl")
        rows[number] = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    single, all_of_them = (row[0]["gradient_norm"] for row in rows.values())
    return {"processes": count, "seconds": seconds, "gradient_norm": {"1": single, str(count): all_of_them}}


# --- an iteration -----------------------------------------------------------------------------------------------------

SIDE, STEPS, ROUNDS = 512, 4, 2  # three of the steps are trained
TOP = 10  # rows of the profile


def iteration(place: Place, batch: int, **how) -> dict:
    """Seconds of the rollout and of the update, the bare calls, operations and memory; medians after one that warms up."""
    case = Case(place, batch, **how)
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
    seconds = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    update = case.samples * (case.update.sampled_steps or trained) * (both - forward if case.keep_graph else both)
    return {
        **case.about,
        "batch": batch,
        "blocks_out": case.blocks_out,
        "bytes_a_pass": sum(replace(case.whole, blocks_out=case.blocks_out).out),
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


class Case:
    """A model, and how it is trained."""

    def __init__(
        self,
        place: Place,
        batch: int,
        keep_graph: bool = False,
        sampled_steps: int = 0,
        load: dict | None = None,
        shape: str = "flux",
        out: float = 0,
    ):
        """`out`: the share of the blocks that stay in main memory."""
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
        self.whole = shapes.estimated(place, shape, self.blueprint, self.options, None, 0)
        self.blocks_out = round(out * len(self.whole.rehearsal.blocks))
        if out:
            self.model.streaming = lambda graph, guidance_is_embedded: (self.blocks_out, 0, "")
            self.model.stream(None, self.model.device)

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
        """The estimate of `otca memory`, with the weights as they are held."""
        settings = self.settings
        iteration = Iteration(
            (settings.width, settings.height, 1),
            samples=self.samples,
            steps=STEPS,
            trained_steps=len(self.taken.trained),
            batch=self.batch,
            sampling_batch=self.batch,
            guided=self.model.guides(settings.guidance),
            kept_calls=len(self.taken.trained) * self.keep_graph,
        )
        case = shapes.estimated(self.place, self.shape, self.blueprint, self.options, iteration, self.blocks_out)
        return case.needs.total + self.about["weights_bytes"] - self.whole.needs.parts["weights"]


def _share(place: Place, operations: float, seconds: float) -> float | None:
    """The share of the matrix rate that was measured here; None if it was not."""
    file = place.folder / "rate.json"
    measured = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return operations / seconds / measured["result"]["rate"] if measured.get("state") == "done" else None


def profile(place: Place, batch: int) -> dict:
    """The kernels, or on a CPU the operators, that take the most time of an iteration."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    case = Case(place, batch)
    case.run(0)
    on_gpu = case.model.device.type == "cuda"
    with profiler(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu) as trace:
        case.run(1)
    spent = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    rows = sorted(trace.key_averages(), key=lambda row: getattr(row, spent), reverse=True)
    total = sum(getattr(row, spent) for row in rows)
    largest = [{"name": row.key[:120], "calls": row.count, "seconds": getattr(row, spent) / 1e6} for row in rows[:TOP]]
    return {"batch": batch, "total_seconds": total / 1e6, "largest": largest}


# --- what surrounds the transformer -------------------------------------------------------------------------------------

PICTURE_ROUNDS = 3


def decode(place: Place) -> dict:
    """Pictures a second of the autoencoder in FLUX.1's shape."""
    model, *_ = shapes.made(place)
    cases = ((32, 2),) if place.tiny else ((512, 1), (512, 4), (1024, 1), (1024, 4))
    ways = {case: partial(model.decode, torch.randn(case[1], *model.latent_shape(case[0], case[0]))) for case in cases}
    seconds, _ = take_turns(ways, PICTURE_ROUNDS, model.device)
    return {"pictures_per_second": {f"{side}, batch {batch}": batch / seconds[side, batch] for side, batch in cases}}


def rewards(place: Place) -> dict:
    """Pictures a second of a stack of rewards with networks of a modest size: bench/rewards.py."""
    count, side = (2, 32) if place.tiny else (64, 512)
    ways, about = throughput(count, 0, 1 if place.tiny else PICTURE_ROUNDS, place.device, side, place.tiny)
    return {"pictures_per_second": {way: count / median for way, (median, _) in ways.items()}, "about": about}


# --- all of them ------------------------------------------------------------------------------------------------------

ATTENTIONS = ("native", "_native_flash", "_native_efficient", "_native_cudnn", "flash", "sage")
BATCHES = (1, 4, 8)

# In the order of worth: the last ones go first where time is short.
PARTS: dict[str, Part] = {
    "rate": Part(rate, 90),
    "gpu_tests": Part(partial(tests, files=["device/test_cuda.py", "device/test_kept.py"]), 300),
    "collectives": Part(collectives, 90),
    **{f"batch_{batch}": Part(partial(iteration, batch=batch), 180) for batch in BATCHES},
    "kept_graph": Part(partial(iteration, batch=1, keep_graph=True), 180),
    "sampled_steps": Part(partial(iteration, batch=4, sampled_steps=1), 120),
    "checkpointing": Part(partial(iteration, batch=4, load={"gradient_checkpointing": True}), 180),
    "half_out": Part(partial(iteration, batch=4, out=0.5, load={"gradient_checkpointing": True}), 240),
    "all_out": Part(partial(iteration, batch=4, out=1.0, load={"gradient_checkpointing": True}), 240),
    "profile": Part(partial(profile, batch=4), 180),
    "compile": Part(partial(iteration, batch=4, load={"compile": True}), 300),
    **{f"attention_{name}": Part(partial(iteration, batch=4, load={"attention": name}), 120) for name in ATTENTIONS},
    "decode": Part(decode, 90),
    "rewards": Part(rewards, 120),
    "z_image": Part(partial(iteration, batch=1, shape="z_image"), 180),
    "qwen_image": Part(partial(iteration, batch=1, shape="qwen_image"), 180),
    "processes": Part(processes, 240),
    "anywhere_tests": Part(partial(tests, files=["."], tiny=["trainer/test_sde.py"]), 600),
}
