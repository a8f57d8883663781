"""Several processes against one: seconds, what they send each other, and a model of many GPUs from that.

    python bench/scaling.py [--turns N] [--rounds N]

On the CPU, one thread a process: an iteration of OTCA's workflow by one process and two, with the same samples (strong scaling)
and with twice as many (weak scaling), LoRA, LoRA on sharded frozen weights, and all weights. The collectives of torch.distributed
are wrapped and counted. Then FLUX.1-dev's transformer is built without memory, its adapter and its FLOPs are counted, and seconds
follow from stated rates.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from functools import wraps
from pathlib import Path

import torch
import torch.distributed as dist

from comfyui_otca.host import distributed
from comfyui_otca.host.terminal import quiet_libraries, terminal
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.processes import together
from comfyui_otca.trainer.families.flux import Flux
from comfyui_otca.trainer.run.loop import STEP_NODES, only, trained_model
from comfyui_otca.trainer.workflow.running import Workflow

WORKFLOW = Path(__file__).resolve().parent.parent / "workflows" / "api" / "otca.json"
GROUP, STEPS, TRAINED = 12, 8, 7  # the workflow's own
LORA, SHARDED, FULL = "lora", "lora, sharded", "full"

# Assumptions of the model
TFLOPS, USED = 989e12, 0.4  # bfloat16 of an H100 SXM, and the share of it that transformers of this size reach
NVLINK, INFINIBAND, NODE = 450e9, 50e9, 8  # bytes a second, of every GPU and in each direction; GPUs of a node
LATENCY, MEETINGS = 50e-6, 40  # seconds a collective between nodes; collectives of an iteration without the gradient
TOTAL, OWN = 512, 8  # samples of an iteration in all (strong), and of every GPU (weak)
SIDE, TOKENS, RANK = 1024, 512, 64  # pixels, text tokens, LoRA rank


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5, help="of each case")
    parser.add_argument("--rounds", type=int, default=2, help="iterations in a turn, after one that warms up")
    options = parser.parse_args()
    torch.set_num_threads(1)
    measured(options.turns, options.rounds)
    modelled()


# -- measured ----------------------------------------------------------------------------------------------------------


def measured(turns: int, rounds: int) -> None:
    """One process with half of the samples, one with all, and two with all take turns; ratios are taken within a turn."""
    print("| training | samples | 1 process | 2 processes | strong | weak | calls | a process sends |")
    print("|---|---|---|---|---|---|---|---|")
    for training in (LORA, SHARDED, FULL):
        seconds, counted = {case: [] for case in ((1, 2), (1, 4), (2, 4))}, Counter()
        for _ in range(turns):
            for (processes, prompts), own in seconds.items():
                measured = together(processes, iterations, training, prompts, rounds)
                for error in (one for one in measured if isinstance(one, Exception)):
                    raise error
                own.append(statistics.median(measured[0][0]))
                counted = measured[0][1]
        half, one, two = (statistics.median(own) for own in seconds.values())
        halves, ones, twos = seconds.values()
        strong = _spread([a / b / 2 for a, b in zip(ones, twos, strict=True)])
        weak = _spread([a / b for a, b in zip(halves, twos, strict=True)])
        calls = sum(number for (_, what), number in counted.items() if what == "calls")
        sent = sum(number for (_, what), number in counted.items() if what == "sent")
        print(
            f"| {training} | {4 * GROUP} | {one:.2f} s ({half:.2f} s for {2 * GROUP}) | {two:.2f} s | {strong} | {weak} | "
            f"{calls} | {sent / 1e6:.2f} MB |",
            flush=True,
        )
        for name in sorted({name for name, _ in counted}):
            print(f"  {training}: {name}: {counted[name, 'calls']} calls, {counted[name, 'sent'] / 1e6:.3f} MB sent")


def _spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} … {max(ratios):.2f})"


def iterations(training: str, prompts: int, rounds: int) -> tuple[list[float], Counter]:
    """Seconds of each iteration of this process, and what the last one sent."""
    terminal.device = "cpu"
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


# -- modelled ----------------------------------------------------------------------------------------------------------


def modelled() -> None:
    weights, adapter, flops = flux()
    forward = flops / (TFLOPS * USED)
    print(f"\nFLUX.1-dev: {weights / 1e9:.2f} B parameters, rank-{RANK} adapter {adapter / 1e6:.0f} M; ", end="")
    print(f"a forward pass of a {SIDE} x {SIDE} sample: {flops / 1e12:.0f} TFLOPs, {forward:.3f} s\n")
    print("| training | GPUs | samples a GPU | compute | communication | efficiency |")
    print("|---|---|---|---|---|---|")
    for training in (LORA, SHARDED, FULL):
        # Backward: for LoRA about one forward, without gradients of frozen weights; else two. Checkpointing: one more.
        passes = STEPS + TRAINED * (4 if training == FULL else 3)
        for kind, own in (("strong", None), ("weak", OWN)):
            for gpus in (8, 64, 512):
                samples = own or TOTAL // gpus
                compute = samples * passes * forward
                # Micro-batches of one sample; weights in bfloat16 for each forward and backward, gradients in float32
                gathers, scatters = samples * (STEPS + 2 * TRAINED), samples * TRAINED
                sent = 0.0 if training == LORA else gathers * gathered(2 * weights, gpus)
                sent += scatters * gathered(4 * weights, gpus) if training == FULL else reduced(4 * adapter, gpus)
                spoken = MEETINGS * LATENCY if gpus > NODE else 0.0
                label = f"{samples} ({kind})"
                efficiency = compute / (compute + sent + spoken)
                print(f"| {training} | {gpus} | {label} | {compute:.1f} s | {sent + spoken:.3f} s | {efficiency:.3f} |")


def gathered(size: float, gpus: int) -> float:
    """Seconds to put `size` bytes together in every GPU: each one's share between nodes, then within the node."""
    nodes = gpus / NODE
    return size / NODE * (nodes - 1) / nodes / INFINIBAND + size * (NODE - 1) / NODE / NVLINK


def reduced(size: float, gpus: int) -> float:
    """Seconds to add up `size` bytes of every GPU: a reduce-scatter and an all-gather."""
    return 2 * gathered(size, gpus)


def flux() -> tuple[int, int, float]:
    """Parameters, those of the adapter, and FLOPs of one sample's forward pass, of FLUX.1-dev's transformer."""
    from diffusers import FluxTransformer2DModel
    from peft import LoraConfig
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        network = FluxTransformer2DModel(guidance_embeds=True)  # the defaults are the published sizes
        image, dim = (SIDE // 16) ** 2, network.config["joint_attention_dim"]
        inputs = {
            "hidden_states": torch.empty(1, image, network.config["in_channels"]),
            "encoder_hidden_states": torch.empty(1, TOKENS, dim),
            "pooled_projections": torch.empty(1, network.config["pooled_projection_dim"]),
            "timestep": torch.empty(1),
            "guidance": torch.empty(1),
            "img_ids": torch.empty(image, 3),
            "txt_ids": torch.empty(TOKENS, 3),
        }
        weights = sum(parameter.numel() for parameter in network.parameters())
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            network(**inputs)
        network.add_adapter(LoraConfig(r=RANK, target_modules=list(Flux.LORA_TARGETS)))
        adapter = sum(p.numel() for name, p in network.named_parameters() if "lora_" in name)
    return weights, adapter, counter.get_total_flops()


if __name__ == "__main__":
    main()
