"""A model of ComfyUI's at its true width: against itself bare, against diffusers and peft, and in fewer bits. See true_size.md.

    PYTHON bench/true_size.py COMFYUI peer FILE [--rounds N] [--text N] [--side N] [--kept N]
    PYTHON bench/true_size.py COMFYUI forms FILE [--text N] [--side N] [--gguf FOLDER]
        (PYTHON: the one that starts COMFYUI. FILE: flux-2-klein-4b.safetensors of any number of blocks, by tools/true_size)

`peer`: forward, and forward with backward, of klein with LoRA of rank 32 on the Linear layers of its blocks and checkpointing,
against diffusers' network of the same shapes with peft's, all in float32; and against ComfyUI's own call without anything of
ours. They take turns in one process of one thread; CPU seconds are medians. Memory is the highest resident set above what there
was before the call, adapters and weights not in it, gradients in it; run it with MALLOC_MMAP_THRESHOLD_=262144.

`forms`: the file's weights in fewer bits, each loaded by ComfyUI's loader: velocity and gradient of the adapter against those of
the file itself. With `--gguf`, ComfyUI-GGUF's folder, which has to stand in custom_nodes too, and the package gguf.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import cosine_similarity

from comfyui_otca.bench.common import table
from comfyui_otca.host import headless_comfyui
from comfyui_otca.tools.true_size.networks import BFLOAT16, FP8, NETWORKS, SCALED, Weights, empty, of_blocks
from comfyui_otca.tools.true_size.writing import entries, write
from comfyui_otca.trainer.policy.adapters import Adapter

RANK, TEXT_WIDTH, CHANNELS = 32, 7680, 128  # of klein 4B's text and latents
QUANTIZERS = ("float8_e4m3fn", "nvfp4", "mxfp8", "int8_tensorwise")  # of comfy.quant_ops


class Ours:
    """Klein as Make Trainable has it, without the rest of a training; its adapter has moved."""

    def __init__(self, patcher, text: int, side: int, kept: int = 0):
        from comfyui_otca.trainer.native.expert import Expert

        self.expert = Expert(patcher)
        self.expert.checkpointing, self.expert.kept_blocks = True, kept
        self.expert.adapters.add(Adapter(RANK, float(RANK), ""))
        generator = torch.Generator().manual_seed(0)
        self.parameters = self.expert.adapters.parameters()
        for parameter in self.parameters.values():
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[1] ** -0.5 / 8)
        x = torch.randn(1, CHANNELS, side, side, generator=generator)
        self.call = x, torch.tensor([0.7]), torch.randn(1, text, TEXT_WIDTH, generator=generator), None, None
        self.expert.load(0.0)

    def bare(self) -> Tensor:
        self.expert.take_out(self.expert.patcher)
        try:
            return self.forward()
        finally:
            self.expert.put_in(self.expert.patcher)

    @torch.no_grad()
    def forward(self) -> Tensor:
        return self.expert.network(*self.call)

    def backward(self) -> None:
        from comfyui_otca.trainer.native import checkpointing, frozen

        with frozen.training(), checkpointing.Mutable() if self.expert.kept_blocks else contextlib.nullcontext():
            self.expert.network(*self.call).float().square().mean().backward()

    def gradient(self) -> Tensor:
        self.backward()
        return torch.cat([parameter.grad.flatten() for parameter in self.parameters.values()])


def theirs(expert, call: tuple) -> tuple[Callable[[], Tensor], list[torch.nn.Parameter]]:
    """The call of diffusers' network of the same shapes with peft's adapter, and what it trains."""
    from diffusers import Flux2Transformer2DModel
    from peft import LoraConfig

    x, time_, text, _, _ = call
    shapes: dict[str, Any] = dict(in_channels=CHANNELS, joint_attention_dim=TEXT_WIDTH, guidance_embeds=False)
    shapes |= dict(axes_dims_rope=(32,) * 4, num_attention_heads=24, attention_head_dim=128, mlp_ratio=3.0)
    shapes |= dict(num_layers=len(expert.network.double_blocks), num_single_layers=len(expert.network.single_blocks))
    network = Flux2Transformer2DModel(**shapes)
    named = {name for name, layer in network.named_modules() if isinstance(layer, torch.nn.Linear)}
    targets = [name for name in named if re.search(r"transformer_blocks\.\d", name)]
    network.requires_grad_(False).add_adapter(LoraConfig(r=RANK, lora_alpha=RANK, target_modules=targets))
    network.enable_gradient_checkpointing()
    side, tokens = x.shape[-1], text.shape[1]
    ids, text_ids = torch.zeros(side * side, 4), torch.zeros(tokens, 4)
    ids[:, 1], ids[:, 2] = torch.arange(side).repeat_interleave(side), torch.arange(side).repeat(side)
    text_ids[:, 3] = torch.arange(tokens)
    inputs = dict(hidden_states=x.flatten(2).transpose(1, 2), encoder_hidden_states=text, timestep=time_)
    inputs |= dict(img_ids=ids, txt_ids=text_ids, guidance=None, return_dict=False)
    return lambda: network.train()(**inputs)[0], [p for p in network.parameters() if p.requires_grad]


def peer(file: Path, text: int, side: int, rounds: int, kept: int) -> None:
    import comfy.sd

    model = Ours(comfy.sd.load_diffusion_model(str(file), model_options={"dtype": torch.float32}), text, side, kept)
    call, trained = theirs(model.expert, model.call)
    ways = {
        "ComfyUI, bare": model.bare,
        "forward": model.forward,
        "forward, diffusers and peft": torch.no_grad()(call),
        "forward and backward": model.backward,
        "forward and backward, diffusers and peft": lambda: call().square().mean().backward(),
    }
    seconds, memory = {name: [] for name in ways}, dict.fromkeys(ways, 0.0)
    for number in range(rounds + 1):  # the first one is not counted: it fills caches
        for name in list(ways)[:: 1 if number % 2 else -1]:
            for parameter in (*model.parameters.values(), *trained):
                parameter.grad = None
            gc.collect()
            before, started = _resident("VmRSS", forget=True), time.process_time()
            ways[name]()
            seconds[name].append(time.process_time() - started)
            memory[name] = max(memory[name], _resident("VmHWM") - before)
    rows = [[name, f"{statistics.median(seconds[name][1:]):.2f}", f"{memory[name]:.2f}"] for name in ways]
    print(table(["", "CPU s", "GB beside the weights"], rows))
    for ours_, other in (("forward", "ComfyUI, bare"), *((n, f"{n}, diffusers and peft") for n in list(ways)[1::2])):
        ratios = [a / b for a, b in zip(seconds[ours_][1:], seconds[other][1:], strict=True)]
        print(f"{ours_} / {other}: {statistics.median(ratios):.3f} ({', '.join(f'{ratio:.3f}' for ratio in ratios)})")


def _resident(field: str, forget: bool = False) -> float:
    """GB of this process that are resident, or were at most since the last time that was forgotten."""
    if forget:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    return int(re.findall(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text(encoding="utf-8"))[0]) / 1e6


def forms(file: Path, text: int, side: int, gguf: Path | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        exact = None
        for name, patcher in _loaded(file, Path(folder), gguf):
            model = Ours(patcher, text, side)
            velocity, gradient = model.forward().flatten().double(), model.gradient().double()
            exact = exact or (velocity, gradient)
            apart = float((velocity - exact[0]).norm() / exact[0].norm())
            angle, size = cosine_similarity(gradient, exact[1], dim=0), gradient.norm() / exact[1].norm()
            few = sum(type(p.data) is not Tensor or p.element_size() < 2 for p in model.expert.network.parameters())
            print(f"| {name} | {few} | {apart:.1e} | {angle:.5f} | {size:.4f} |", flush=True)
            del model, patcher
            gc.collect()


def _loaded(file: Path, folder: Path, gguf: Path | None) -> Iterator[tuple[str, object]]:
    """(form, MODEL), the file itself first. Each is in memory only while it is looked at."""
    import comfy.sd

    def load(path: Path, **options):
        return comfy.sd.load_diffusion_model(str(path), model_options=options)

    yield "bfloat16", load(file, dtype=BFLOAT16)
    yield "fp8_e4m3fn by the loader", load(file, dtype=FP8)
    blocks = len({key.split(".")[1] for key in load_file(file) if key.startswith("single_blocks")})
    weights = Weights(NETWORKS, "FLUX.2 klein 4B", BFLOAT16, SCALED)
    path = folder / "model.safetensors"
    network = empty(weights, blocks + 1)
    write(path, list(entries(network, weights)))
    yield SCALED, load(path)
    for form in QUANTIZERS:
        save_file(_quantized(load_file(file), list(of_blocks(network)), form), path)
        yield f"{form} by ComfyUI's quantizer", load(path)
    for kind in ("Q8_0", "Q4_0") if gguf else ():
        yield f"GGUF {kind}", _of_gguf(load_file(file), list(of_blocks(network)), kind, folder / "model.gguf")


def _quantized(state: dict[str, Tensor], layers: list[str], form: str) -> dict[str, Tensor]:
    """The layers as ComfyUI's own quantizer stores them."""
    from comfy.quant_ops import QUANT_ALGOS, QuantizedTensor

    scale = {} if form == "int8_tensorwise" or form == "mxfp8" else {"scale": "recalculate"}
    for layer in layers:
        layout = QUANT_ALGOS[form]["comfy_tensor_layout"]
        weight = QuantizedTensor.from_float(state.pop(f"{layer}.weight"), layout, **scale)
        state |= weight.state_dict(f"{layer}.weight")
        state[f"{layer}.comfy_quant"] = torch.tensor(list(json.dumps({"format": form}).encode()), dtype=torch.uint8)
    return state


def _of_gguf(state: dict[str, Tensor], layers: list[str], kind: str, path: Path):
    import gguf

    import nodes

    writer = gguf.GGUFWriter(str(path), "flux")
    for name, tensor in state.items():
        form = gguf.GGMLQuantizationType[kind if name.removesuffix(".weight") in layers else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(tensor.float().numpy(), form), raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    sys.modules["folder_paths"].add_model_folder_path("unet_gguf", str(path.parent))
    return nodes.NODE_CLASS_MAPPINGS["UnetLoaderGGUF"]().load_unet(path.name)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comfyui", type=Path)
    parser.add_argument("what", choices=["peer", "forms"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kept", type=int, default=0, help="blocks that are not computed again")
    parser.add_argument("--text", type=int, default=512)
    parser.add_argument("--side", type=int, default=16)
    parser.add_argument("--gguf", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    headless_comfyui.load(args.comfyui, "cpu", [args.gguf.name] if args.gguf else [])
    if args.what == "peer":
        peer(args.file, args.text, args.side, args.rounds, args.kept)
    else:
        forms(args.file, args.text, args.side, args.gguf)


if __name__ == "__main__":
    main()
