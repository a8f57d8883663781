"""Memory: the estimate against what is allocated, and its counts. Findings: bench/memory.md.

    python bench/memory.py allocations [--families FAMILY …] [--cases CASE …]
    python bench/memory.py gradients [--families FAMILY …] [--cases CASE …] [--side PIXELS]
    python bench/memory.py templates [--families TEMPLATE …] [--gpu-gb GB]
    ~/comfy/ComfyUI/.venv/bin/python bench/memory.py architectures ~/comfy/ComfyUI

`allocations`: our own rollout, decoding and update run on the pretend device, with random weights of 50 MB and more in bfloat16.
What tensors have on it is counted by their allocations, phase by phase (tests/device/heavy.py). The estimate is made beforehand,
from the configurations of the same folder.

`gradients`: the same for Reward Gradient Step, with a decoder of 64 channels (of videos 32) in its last level, CLIP-T by a
CLIP of 20 MB, and 4 samples; with `--side`, at that size and one at a time, by a decoder that makes 8 pixels of a latent
position.

`templates`: the estimate of each template of a large model, which its note and its light show, against a rehearsal of the same
training by the same network of diffusers, at its true size on the meta device. Both hold the same files.

`architectures`: the counts in trainer/memory/native.py, made on ComfyUI's own classes: parameters, trained parameters for each
unit of LoRA rank (all Linear layers of the blocks but the modulation), and what autograd keeps of one more block for its backward
pass, in vectors of the model's width for each token, with an adapter on these layers and all else frozen, in bfloat16. The last
is counted at width 512 on a CPU, whose attention keeps what FlashAttention keeps.

No GPU is used, and none was measured; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch.nn.functional import linear

from comfyui_otca.bench import common
from comfyui_otca.tools.true_size.networks import FLUX, KLEIN, LUMINA, WAN, flux, of_blocks, published
from comfyui_otca.trainer.families.options import LoadOptions
from comfyui_otca.trainer.memory import needs
from comfyui_otca.trainer.memory.blueprint import published as published_blueprints
from comfyui_otca.trainer.memory.case import GB, JUDGING, UNDECODING, UPDATE, Held, Machine
from comfyui_otca.trainer.memory.meta import Live
from comfyui_otca.trainer.memory.native import NativeCase
from comfyui_otca.trainer.memory.rehearsal import PipelineCase
from comfyui_otca.trainer.policy.adapters import Adapter
from comfyui_otca.trainer.types import MAKE_NODE

# --- templates against a rehearsal -------------------------------------------------------------------------------------

PULLED_PHASES = UPDATE, JUDGING, UNDECODING
API = Path(__file__).resolve().parents[1] / "workflows" / "api"
COUNTERPARTS = {  # template: the same network in diffusers
    "z_image": "Tongyi-MAI/Z-Image-Turbo",
    "qwen_image": "Qwen/Qwen-Image",
    "krea2": "krea/Krea-2-Raw",
    "flux2_klein": "black-forest-labs/FLUX.2-klein-4B",
    "flux1": "black-forest-labs/FLUX.1-dev",
    "wan22_5b": "Wan-AI/Wan2.2-TI2V-5B-Diffusers",
    "wan22_14b": "Wan-AI/Wan2.2-T2V-A14B-Diffusers",
}


@dataclass(frozen=True)
class Rehearsed(PipelineCase):
    """A rehearsal that holds what the template's files hold, and lets them come and go as ComfyUI does."""

    files: Held = field(kw_only=True)

    def held(self) -> Held:
        names = ("weights", "encoders", "vae", "encoders_visit", "vae_visit", "steps_aside", "streams", "at_once")
        return replace(super().held(), **{name: getattr(self.files, name) for name in names})


def of_template(name: str, gpu_gb: float = 0) -> tuple[NativeCase, Rehearsed]:
    """A template's training, counted and rehearsed; changed so that it fits a GPU of that size, if one is named."""
    graph = json.loads((API / f"{name}.json").read_text(encoding="utf-8"))
    case, _ = needs.read(graph, Machine(has=gpu_gb * GB))
    assert isinstance(case, NativeCase), "it has a Make Trainable"
    case = (case.together(gpu_gb * GB)[1] if gpu_gb else case).decided
    rank = needs.the_only(graph, "Make Trainable", MAKE_NODE)["inputs"]["lora_rank"]
    return case, Rehearsed(
        blueprint=published_blueprints()[COUNTERPARTS[name]],
        adapter=Adapter(rank, float(rank), ""),
        options=LoadOptions(gradient_checkpointing=bool(case.checkpointing), vae_tiling=case.tiling),
        dtype=torch.bfloat16,
        iteration=case.iteration,
        files=case.held(),
        machine=case.machine,
        blocks_out=0,
    )


def templates(families: list[str], gpu_gb: float) -> None:
    """GB beside the weights, estimated / rehearsed = their ratio; prints a table."""
    print(common.table(["template", *PULLED_PHASES, "others, least and most"], []), flush=True)
    for name in families or COUNTERPARTS:
        counted, rehearsed = (
            {phase: sum(parts.values()) - parts.get("weights", 0) for phase, parts in case.needs.phases.items()}
            for case in of_template(name, gpu_gb)
        )
        cells = [
            f"{counted[phase] / GB:.1f} / {rehearsed[phase] / GB:.1f} = {counted[phase] / rehearsed[phase]:.2f}"
            if phase in counted
            else ""
            for phase in PULLED_PHASES
        ]
        others = (counted.keys() & rehearsed.keys()).difference(PULLED_PHASES)
        ratios = [counted[phase] / rehearsed[phase] for phase in others]
        print(f"| {name} | {' | '.join(cells)} | {min(ratios):.2f} to {max(ratios):.2f} |", flush=True)


# --- against allocations -----------------------------------------------------------------------------------------------


def allocations(families: list[str], cases: list[str]) -> None:
    """MB, estimated / counted = their ratio; prints a table."""
    from comfyui_otca.tests.device import heavy, pretend

    pretend.register()
    print(common.table(["family", "training", *heavy.PHASES], []), flush=True)
    ratios = []
    for family in families or heavy.SIZES:
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = heavy.make(family, Path(folder) / family)
            for name in cases or heavy.CASES:
                training = heavy.Training(family, **heavy.CASES[name])
                estimated = heavy.estimated(checkpoint, training)
                with pretend.active():
                    counted = heavy.counted(checkpoint, training)
                pairs = [(estimated[phase], counted[phase]) for phase in heavy.PHASES]
                ratios += [estimate / measured for estimate, measured in pairs]
                print(f"| {family} | {name} | {' | '.join(_ratio(*pair) for pair in pairs)} |", flush=True)
    print(f"{len(ratios)} ratios from {min(ratios):.2f} to {max(ratios):.2f}")


def gradients(families: list[str], cases: list[str], side: int) -> None:
    """The same along the rewards' gradient: of rewards and decoder together, and of the calls of the network."""
    from comfyui_otca.tests.device import heavy, pretend

    pretend.register()
    print(common.table(["family", "mode", *heavy.PULLED], []), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for family in families or ("sd3", "flux", "wan"):
            of_decoder = {"decoder": 32 if "wan" in family else 64, "levels": 4 if side else 2}
            checkpoint = heavy.make(family, Path(folder) / family, **of_decoder)
            for name in cases or heavy.PULLS:
                sample = {"sampling_batch": 1, "size": (side, side, 1)} if side else {}
                pull = heavy.PULLS[name] | ({"batch_size": 1} if side else {})
                training = heavy.Training(family, pull=pull, **sample)
                estimated = heavy.estimated(checkpoint, training)
                with pretend.active():
                    counted = heavy.counted(checkpoint, training)
                pairs = [_ratio(estimated[phase], counted[phase]) for phase in heavy.PULLED]
                print(f"| {family} | {name} | {' | '.join(pairs)} |", flush=True)


def _ratio(ours: float, counted: float) -> str:
    return f"{ours / 1e6:.0f} / {counted / 1e6:.0f} = {ours / counted:.2f}"


# --- the counts of ComfyUI's models ---------------------------------------------------------------------------------------

RANK, WIDTH, SIDE, TEXT = 4, 512, 32, 256


def narrow(**how):
    """{kind of block: (tokens, one block, two blocks, how to call)} at width 512."""
    from comfy.ldm.krea2.model import SingleStreamDiT
    from comfy.ldm.lumina.model import NextDiT
    from comfy.ldm.qwen_image.model import QwenImageTransformer2DModel
    from comfy.ldm.wan.model import WanModel

    x = torch.randn(1, 16, SIDE, SIDE, dtype=torch.bfloat16)
    packed = torch.randn(1, 128, SIDE // 2, SIDE // 2, dtype=torch.bfloat16)
    text, pooled, layers = (
        torch.randn(shape, dtype=torch.bfloat16) for shape in ((1, TEXT, 64), (1, 64), (1, TEXT, 128))
    )
    time, guidance, picture = torch.tensor([0.5]), torch.tensor([3.5]), (SIDE // 2) ** 2
    blocks = partial(flux, WIDTH, 4, vec_in_dim=64, context_in_dim=64, **FLUX, **how)
    klein = partial(flux, WIDTH, 4, context_in_dim=64, **KLEIN, **how)
    small = dict(n_heads=4, n_kv_heads=4, n_refiner_layers=1, **LUMINA, **how)
    qwen = partial(
        QwenImageTransformer2DModel, num_attention_heads=4, attention_head_dim=128, joint_attention_dim=64, **how
    )
    krea = partial(
        SingleStreamDiT, features=WIDTH, heads=4, kvheads=1, txtdim=64, txtlayers=2, txtheads=2, txtkvheads=2
    )
    wan = dict(in_dim=16, out_dim=16, dim=WIDTH, ffn_dim=2384, num_heads=4, text_dim=64, **WAN, **how)
    both = picture + TEXT

    def call_flux(m):
        return m(x, time, text, pooled, guidance)

    return {
        "FLUX.1 double": (both, blocks(1, 1), blocks(2, 1), call_flux),
        "FLUX.1 single": (both, blocks(1, 1), blocks(1, 2), call_flux),
        "klein double": (both, klein(1, 1), klein(2, 1), lambda m: m(packed, time, text, None, None)),
        "klein single": (both, klein(1, 1), klein(1, 2), lambda m: m(packed, time, text, None, None)),
        "Z-Image": (
            both,
            *(NextDiT(dim=WIDTH, cap_feat_dim=64, n_layers=n, **small) for n in (1, 2)),
            lambda m: m(x, time, text, TEXT),
        ),
        "Qwen-Image": (both, qwen(num_layers=1), qwen(num_layers=2), lambda m: m(x[:, :, None], time, text)),
        "Krea 2": (both, krea(layers=1, tdim=64, **how), krea(layers=2, tdim=64, **how), lambda m: m(x, time, layers)),
        "Wan 2.2": (
            picture,
            WanModel(num_layers=1, **wan),
            WanModel(num_layers=2, **wan),
            lambda m: m(x[:, :, None], time, text[:, :8]),
        ),
    }


def kept_bytes(model, call) -> int:
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter.requires_grad_(False), std=0.02)
    held = [*model.parameters(), *model.buffers()]
    for layer in of_blocks(model).values():
        shapes = (RANK, layer.in_features), (layer.out_features, RANK)
        a, b = (torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for shape in shapes)
        layer.forward = lambda x, frozen=layer.forward, a=a, b=b: frozen(x) + linear(linear(x, a), b)
        held += [a, b]
    with Live(held) as live, torch.enable_grad():
        result = call(model)
        kept = live.now
    del result
    return kept


def architectures(comfyui: Path) -> None:
    from comfyui_otca.host import headless_comfyui

    headless_comfyui.load(comfyui, "cpu")
    import comfy.model_management
    import comfy.ops

    how = dict(dtype=torch.bfloat16, operations=comfy.ops.disable_weight_init)
    for name, build in published(device="meta", **how).items():
        model = build()
        per_rank = sum(layer.in_features + layer.out_features for layer in of_blocks(model).values())
        print(f"{name}: {sum(p.numel() for p in model.parameters()):,} parameters, {per_rank:,} for each unit of rank")
    comfy.model_management.in_training = True
    for name, (tokens, single, two, call) in narrow(device="cpu", **how).items():
        vectors = (kept_bytes(two, call) - kept_bytes(single, call)) / (tokens * WIDTH * 2)
        print(f"{name}: {vectors:.1f} vectors a token and block")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    of_allocations = kinds.add_parser("allocations")
    of_gradients = kinds.add_parser("gradients")
    of_gradients.add_argument("--side", type=int, default=0, metavar="PIXELS")
    for parser_of in (of_allocations, of_gradients):
        parser_of.add_argument("--families", nargs="+", default=[], metavar="FAMILY")
        parser_of.add_argument("--cases", nargs="+", default=[], metavar="CASE", help="kinds of training")
    of_templates = kinds.add_parser("templates")
    of_templates.add_argument("--families", nargs="+", default=[], metavar="TEMPLATE")
    of_templates.add_argument("--gpu-gb", type=float, default=0, help="with the changes by which they fit this GPU")
    kinds.add_parser("architectures").add_argument("comfyui", type=Path)
    options = vars(parser.parse_args())
    torch.set_num_threads(1)
    kind = {"allocations": allocations, "gradients": gradients, "templates": templates, "architectures": architectures}
    kind[options.pop("kind")](**options)


if __name__ == "__main__":
    main()
