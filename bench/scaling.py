"""Several processes against one: seconds, and what they send each other.

    python bench/scaling.py [--turns N] [--rounds N]

On the CPU, one thread a process: an iteration of OTCA's workflow by one process and two, with the same samples (strong scaling)
and with twice as many (weak scaling), LoRA, LoRA on sharded frozen weights, and all weights. The collectives of torch.distributed
are wrapped and counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from functools import wraps

import torch
import torch.distributed as dist

from comfyui_otca.bench.common import WORKFLOW, spread, table
from comfyui_otca.commands.options import quiet_libraries
from comfyui_otca.host import devices, distributed
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.processes import together
from comfyui_otca.trainer.run.loop import STEP_NODES, only, trained_model
from comfyui_otca.trainer.workflow.running import Workflow

GROUP = 12  # the workflow's own
LORA, SHARDED, FULL = "lora", "lora, sharded", "full"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5, help="of each case")
    parser.add_argument("--rounds", type=int, default=2, help="iterations in a turn, after one that warms up")
    options = parser.parse_args()
    torch.set_num_threads(1)
    measured(options.turns, options.rounds)


def measured(turns: int, rounds: int) -> None:
    """One process with half of the samples, one with all, and two with all take turns; ratios are taken within a turn."""
    heads = ("training", "samples", "1 process", "2 processes", "strong", "weak", "calls", "a process sends")
    print(table(heads, []), flush=True)
    for training in (LORA, SHARDED, FULL):
        seconds, counted = {case: [] for case in ((1, 2), (1, 4), (2, 4))}, Counter()
        for _ in range(turns):
            for (processes, prompts), own in seconds.items():
                measured = together(processes, iterations, training, prompts, rounds)
                for error in (result for result in measured if isinstance(result, Exception)):
                    raise error
                own.append(statistics.median(measured[0][0]))
                counted = measured[0][1]
        half, result, two = (statistics.median(own) for own in seconds.values())
        halves, ones, twos = seconds.values()
        strong = spread([a / b / 2 for a, b in zip(ones, twos, strict=True)])
        weak = spread([a / b for a, b in zip(halves, twos, strict=True)])
        calls = sum(number for (_, what), number in counted.items() if what == "calls")
        sent = sum(number for (_, what), number in counted.items() if what == "sent")
        print(
            f"| {training} | {4 * GROUP} | {result:.2f} s ({half:.2f} s for {2 * GROUP}) | {two:.2f} s | {strong} | {weak} | "
            f"{calls} | {sent / 1e6:.2f} MB |",
            flush=True,
        )
        for name in sorted({name for name, _ in counted}):
            print(f"  {training}: {name}: {counted[name, 'calls']} calls, {counted[name, 'sent'] / 1e6:.3f} MB sent")


def iterations(training: str, prompts: int, rounds: int) -> tuple[list[float], Counter]:
    """Seconds of each iteration of this process, and what the last one sent."""
    devices.choose("cpu")
    quiet_libraries()
    graph = json.loads(WORKFLOW.read_text(encoding="utf-8"))
    if training == SHARDED:
        memory = {"quantize": "none", "attention": "auto", "shard": True}
        memory |= dict.fromkeys(("offload_encoders", "vae_tiling", "gradient_checkpointing", "compile"), False)
        graph["memory"] = {"class_type": "OTCA_ModelMemory", "inputs": memory}
        graph["1"]["inputs"]["memory"] = ["memory", 0]
    workflow = Workflow(graph, NODE_CLASS_MAPPINGS)
    changes = {
        "1.training": FULL if training == FULL else LORA,
        "2.prompts_per_iteration": prompts,
        "3.keep_graph": "off",
    }
    for name, value in changes.items():
        workflow.set(name, value)
    step, seconds, counted = only(workflow, *STEP_NODES), [], Counter()
    trained_model(workflow)
    count(counted)
    for number in range(rounds + 1):  # the first one warms up
        counted.clear()
        distributed.meet()
        began = time.perf_counter()
        workflow.run({(node, name): value + number for node, name, value in workflow.advancing()}, [step])
        seconds.append(time.perf_counter() - began)
    return seconds[1:], counted


def count(into: Counter) -> None:
    """Has every collective say what a ring of N sends for it, in bytes a process."""

    def wrapped(name, size):
        function = getattr(dist, name)

        @wraps(function)
        def counting(*arguments, **options):
            into[name, "calls"] += 1
            into[name, "sent"] += size(*arguments, **options)
            return function(*arguments, **options)

        setattr(dist, name, counting)

    others = distributed.world() - 1
    wrapped("all_gather", lambda tensor_list, tensor, *_, **__: others * tensor.nbytes)
    wrapped("all_reduce", lambda tensor, *_, **__: 2 * others * tensor.nbytes // distributed.world())
    single = hasattr(dist, "all_gather_single")  # what FSDP2 calls them, by torch's version
    wrapped(
        "all_gather_single" if single else "all_gather_into_tensor", lambda _, input, *__, **___: others * input.nbytes
    )
    wrapped(
        "reduce_scatter_single" if single else "reduce_scatter_tensor", lambda output, *_, **__: others * output.nbytes
    )


if __name__ == "__main__":
    main()
