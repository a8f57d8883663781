"""The estimate of memory against what is allocated, and against torch's own tracker at the shapes of published models.

    python bench/memory_estimate.py [--only PART] [--cases CASE …]

First: our own rollout, decoding and update run on the pretend device, with random weights of 50 MB and more in bfloat16. What
tensors have on it is counted by their allocations, phase by phase (tests/device/heavy.py). The estimate is made beforehand, from
the configurations of the same folder. Second: one call of a network at its published shape, forward and backward, under
FakeTensorMode: our counter beside torch.distributed's MemTracker. No GPU is used, and none was measured.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from comfyui_otca.tests.device import heavy, pretend
from comfyui_otca.trainer.memory.meta import Live

CASES = {
    "LoRA": {},
    "checkpointing": {"load": {"gradient_checkpointing": True}},
    "batch 1": {"update": {"batch_size": 1}, "sampling_batch": 1},
    "batch 3": {"update": {"batch_size": 3}, "sampling_batch": 4},
    "kept graph": {"keep_graph": True},
    "all weights": {"load": {"training": "full"}},
    "moving average": {"update": {"ema_decay": 0.9}},
    "encoders offloaded": {"load": {"offload_encoders": True}},
}


def allocations(families: list[str], cases: dict[str, dict]) -> None:
    """MB, estimated / counted = their ratio; prints a table."""
    print("| family | training | " + " | ".join(heavy.PHASES) + " |", "|---" * (2 + len(heavy.PHASES)) + "|", sep="\n")
    for family in families:
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = heavy.make(family, Path(folder) / family)
            for name, options in cases.items():
                training = heavy.Training(family, **options)
                estimated = heavy.estimated(checkpoint, training)
                with pretend.active():
                    counted = heavy.counted(checkpoint, training)
                cells = [
                    f"{estimated[phase] / 1e6:.0f} / {counted[phase] / 1e6:.0f} = {estimated[phase] / counted[phase]:.2f}"
                    for phase in heavy.PHASES
                ]
                print(f"| {family} | {name} | " + " | ".join(cells) + " |", flush=True)


def flux(dtype):
    from diffusers import FluxTransformer2DModel

    def call(network, x):
        tokens, ids = torch.empty(1, 512, 4096, dtype=dtype), torch.empty(4096, 3)
        more = {"txt_ids": torch.empty(512, 3), "img_ids": ids, "guidance": torch.ones(1), "timestep": torch.ones(1)}
        pooled = torch.empty(1, 768, dtype=dtype)
        return network(x, encoder_hidden_states=tokens, pooled_projections=pooled, return_dict=False, **more)[0]

    return lambda: FluxTransformer2DModel(guidance_embeds=True), (1, 4096, 64), call


def wan(dtype):
    from diffusers import WanTransformer3DModel

    def call(network, x):
        tokens = torch.empty(1, 512, 4096, dtype=dtype)
        return network(x, timestep=torch.ones(1), encoder_hidden_states=tokens, return_dict=False)[0]

    return WanTransformer3DModel, (1, 16, 5, 60, 104), call


def qwen_image(dtype):
    from diffusers import QwenImageTransformer2DModel

    def call(network, x):
        tokens = torch.empty(1, 256, 3584, dtype=dtype)
        more = {"img_shapes": [[(1, 64, 64)]], "timestep": torch.ones(1), "return_dict": False}
        return network(x, encoder_hidden_states=tokens, encoder_hidden_states_mask=None, **more)[0]

    return QwenImageTransformer2DModel, (1, 4096, 64), call


def z_image(dtype):
    from diffusers import ZImageTransformer2DModel

    def call(network, x):
        return network([x], torch.ones(1), [torch.empty(256, 2560, dtype=dtype)], return_dict=False)[0][0]

    return ZImageTransformer2DModel, (16, 1, 128, 128), call


SHAPES = {"FLUX.1, 1024 × 1024": flux, "Qwen-Image, 1024 × 1024": qwen_image, "Z-Image, 1024 × 1024": z_image}
SHAPES["Wan 14B, 832 × 480, 17 frames"] = wan


def trackers() -> None:
    """GB that one call of each network holds at most, forward and backward, with the gradients of all weights, beside these."""
    print("| network | parameters | our counter, GB | MemTracker, GB |", "|---|---|---|---|", sep="\n")
    for name, shape in SHAPES.items():
        dtype = torch.bfloat16
        build, size, call = shape(dtype)
        with torch.device("meta"):
            network = build()
        count = sum(parameter.numel() for parameter in network.parameters())
        with FakeTensorMode(allow_non_fake_inputs=True):
            for module in network.modules():
                for key, old in module._parameters.items():
                    if old is not None:
                        module._parameters[key] = torch.nn.Parameter(torch.empty(old.shape, dtype=dtype))
                for key, old in module._buffers.items():
                    if old is not None:
                        module._buffers[key] = torch.empty(old.shape, dtype=old.dtype)
            weights = [*network.parameters(), *network.buffers()]
            tracked = _tracked(network, size, call)
            network.zero_grad()
            with Live(weights) as live:
                call(network, torch.empty(size, dtype=torch.bfloat16)).sum().backward()
        held = sum(weight.nbytes for weight in weights)
        print(f"| {name} | {count:,} | {live.peak / 1e9:.2f} | {(tracked - held) / 1e9:.2f} |", flush=True)


class Total(MemTracker):
    """torch's tracker without the peak of every module, for which it goes through all modules at every operator.

    The time of that is quadratic in the blocks: 1 s for one of Qwen-Image's, 54 s for 16, and minutes for its 60. The peak of a
    device is followed as before, and comes to the same bytes.
    """

    def _update_peak_stats(self, peak_state) -> None:
        for device, held in self._curr_mem_snap.items():
            if self._peak_mem.get(device, 0) < held["Total"]:
                self._peak_mem[device], self._peak_mem_snap[device] = held["Total"], dict(held)


def _tracked(network, size, call) -> int:
    tracker = Total()
    tracker.track_external(network)
    with tracker:
        call(network, torch.empty(size, dtype=torch.bfloat16)).sum().backward()
    return tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*heavy.SIZES, "trackers"])
    parser.add_argument(
        "--cases", nargs="+", choices=list(CASES), default=list(CASES), metavar="CASE", help="kinds of training"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    pretend.register()
    if arguments.only in (None, "trackers"):
        trackers()
    if arguments.only != "trackers":
        cases = {name: CASES[name] for name in arguments.cases}
        allocations([arguments.only] if arguments.only else list(heavy.SIZES), cases)


if __name__ == "__main__":
    main()
