"""The device itself: its matrix rate, the tests that want one, and processes that train together."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
import xml.etree.ElementTree
from pathlib import Path

import torch

from .parts import Place, Skipped

ROOT = Path(__file__).resolve().parents[2]
SIZES = (4096, 8192, 16384)  # of the square matrices; the best rate counts
TIMES = 10


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def rate(place: Place) -> dict:
    """What the device is, and how many multiplications and additions of bfloat16 matrices it does in a second."""
    device = torch.device(place.device)
    rates = {}
    for size in (256,) if place.tiny else SIZES:
        a, b = (torch.randn(size, size, dtype=torch.bfloat16).to(device) for _ in range(2))
        seconds = []
        for number in range(TIMES + 2):
            wait(device)
            began = time.perf_counter()
            torch.mm(a, b)
            wait(device)
            if number > 1:
                seconds.append(time.perf_counter() - began)
        rates[size] = 2 * size**3 / statistics.median(seconds)
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


def gpu_tests(place: Place) -> dict:
    """The tests marked gpu: placement, waits, drift in half precision, the rewards' stream."""
    files = ["test_cuda.py", "test_kept.py"]
    return _tests(place, [str(ROOT / "tests" / "device" / name) for name in files])


def anywhere_tests(place: Place) -> dict:
    """The tests that hold on every device, on this one."""
    return _tests(place, [str(ROOT / "tests" / "trainer" / "test_sde.py")] if place.tiny else [str(ROOT / "tests")])


def _tests(place: Place, files: list[str]) -> dict:
    results = place.folder / "tests.xml"
    device = [] if place.device == "cpu" else ["--device", place.device]
    command = [
        sys.executable,
        "-m",
        "pytest",
        *files,
        *device,
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junit-xml={results}",
    ]
    subprocess.run([*command, "-n", "0"], cwd=ROOT)
    if not results.is_file():
        raise RuntimeError("pytest wrote no results")
    cases = list(xml.etree.ElementTree.parse(results).iter("testcase"))
    results.unlink()
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    names = [f"{case.get('classname')}::{case.get('name')}" for case in failed]
    counts = {"passed": len(cases) - len(failed) - len(skipped), "failed": len(failed), "skipped": len(skipped)}
    return counts | {"failures": names}


def collectives(place: Place) -> dict:
    """NCCL, or gloo on a CPU, in a process alone: what a sum over all processes, and a gathering of all, come to."""
    import torch.distributed as dist

    device = torch.device(place.device)
    if device.type not in ("cuda", "cpu"):
        raise Skipped(f"{device.type} has no collectives")
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    store = dist.HashStore()
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
    one, all_of_them = (row[0]["gradient_norm"] for row in rows.values())
    return {"processes": count, "seconds": seconds, "gradient_norm": {"1": one, str(count): all_of_them}}
