"""The counts in trainer/memory/architectures.py, made on ComfyUI's own classes. Nothing is downloaded, no GPU is needed.

    COMFYUI_PATH=~/comfy/ComfyUI ~/comfy/ComfyUI/.venv/bin/python bench/architectures.py

Prints for each model its parameters, the trained parameters for each unit of LoRA rank (all Linear layers of the blocks but the
modulation), and what autograd keeps of one more block for its backward pass, in vectors of the model's width for each token,
with an adapter on these layers and all else frozen, in bfloat16. The last is counted at width 512 on a CPU, whose attention
keeps what FlashAttention keeps; kernels of a GPU may keep less or more.
"""

import os
import re
import sys
from functools import partial

sys.path.insert(0, os.path.expanduser(os.environ.get("COMFYUI_PATH", "~/comfy/ComfyUI")))
sys.argv = sys.argv[:1]
from comfy.cli_args import args  # noqa: E402

args.cpu = True
import comfy.model_management  # noqa: E402
import comfy.ops  # noqa: E402
import torch  # noqa: E402
from comfy.ldm.flux.model import Flux  # noqa: E402
from comfy.ldm.krea2.model import SingleStreamDiT  # noqa: E402
from comfy.ldm.lumina.model import NextDiT  # noqa: E402
from comfy.ldm.qwen_image.model import QwenImageTransformer2DModel  # noqa: E402
from comfy.ldm.wan.model import WanModel  # noqa: E402
from torch.nn.functional import linear  # noqa: E402

BLOCKS = r"(double_blocks|single_blocks|transformer_blocks|blocks|layers|noise_refiner|context_refiner)\.\d+\."
MODULATION = ("mod", "adaLN")
RANK, WIDTH, SIDE, TEXT = 4, 512, 32, 256

FLUX = dict(image_model="flux", in_channels=16, out_channels=16, mlp_ratio=4.0, axes_dim=[16, 56, 56], theta=10000)
FLUX |= dict(patch_size=2, qkv_bias=True, guidance_embed=True, txt_ids_dims=[])
KLEIN = dict(image_model="flux2", in_channels=128, out_channels=128, vec_in_dim=None, mlp_ratio=3.0, axes_dim=[32] * 4)
KLEIN |= dict(theta=2000, patch_size=1, qkv_bias=False, guidance_embed=False, global_modulation=True, mlp_silu_act=True)
KLEIN |= dict(ops_bias=False, txt_ids_dims=[3])
LUMINA = dict(patch_size=2, in_channels=16, qk_norm=True, axes_dims=[32, 48, 48], axes_lens=[1536, 512, 512])
LUMINA |= dict(rope_theta=256.0, ffn_dim_multiplier=8 / 3, z_image_modulation=True, time_scale=1000.0)
WAN = dict(model_type="t2v", patch_size=(1, 2, 2))


def flux(width, heads, double, single, **more):
    return Flux(hidden_size=width, num_heads=heads, depth=double, depth_single_blocks=single, **more)


def published(**how):
    """The models as they are published."""
    klein = partial(flux, **KLEIN, **how)
    wan = partial(WanModel, **WAN, **how)
    return {
        "FLUX.1": lambda: flux(3072, 24, 19, 38, vec_in_dim=768, context_in_dim=4096, **FLUX, **how),
        "FLUX.2 klein 4B": lambda: klein(3072, 24, 5, 20, context_in_dim=7680),
        "FLUX.2 klein 9B": lambda: klein(4096, 32, 8, 24, context_in_dim=12288),
        "Qwen-Image": lambda: QwenImageTransformer2DModel(**how),
        "Krea 2": lambda: SingleStreamDiT(**how),
        "Z-Image": lambda: NextDiT(
            dim=3840, cap_feat_dim=2560, n_layers=30, n_heads=30, n_kv_heads=30, pad_tokens_multiple=32, **LUMINA, **how
        ),
        "Wan 2.2 5B": lambda: wan(in_dim=48, out_dim=48, dim=3072, ffn_dim=14336, num_heads=24, num_layers=30),
        "Wan 2.2 14B": lambda: wan(in_dim=16, out_dim=16, dim=5120, ffn_dim=13824, num_heads=40, num_layers=40),
    }


def narrow(**how):
    """{kind of block: (tokens, one block, two blocks, how to call)} at width 512."""
    x = torch.randn(1, 16, SIDE, SIDE, dtype=torch.bfloat16)
    packed = torch.randn(1, 128, SIDE // 2, SIDE // 2, dtype=torch.bfloat16)
    text, pooled, layers = (
        torch.randn(shape, dtype=torch.bfloat16) for shape in ((1, TEXT, 64), (1, 64), (1, TEXT, 128))
    )
    time, guidance, picture = torch.tensor([0.5]), torch.tensor([3.5]), (SIDE // 2) ** 2
    one = partial(flux, WIDTH, 4, vec_in_dim=64, context_in_dim=64, **FLUX, **how)
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
        "FLUX.1 double": (both, one(1, 1), one(2, 1), call_flux),
        "FLUX.1 single": (both, one(1, 1), one(1, 2), call_flux),
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


def adapted(model):
    """The Linear layers of the blocks but the modulation."""
    for name, module in model.named_modules():
        if (
            isinstance(module, torch.nn.Linear)
            and re.match(BLOCKS, name)
            and not any(word in name for word in MODULATION)
        ):
            yield module


def kept_bytes(model, call) -> int:
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter.requires_grad_(False), std=0.02)
    for layer in adapted(model):
        a, b = (
            torch.randn(shape, dtype=torch.bfloat16, requires_grad=True)
            for shape in ((RANK, layer.in_features), (layer.out_features, RANK))
        )
        layer.forward = lambda x, frozen=layer.forward, a=a, b=b: frozen(x) + linear(linear(x, a), b)  # pyright: ignore[reportAttributeAccessIssue]
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = (
                storage.nbytes(),
                tensor,
            )  # with the tensor, so that its address is not used again
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = call(model)
    del result
    return sum(size for size, _ in kept.values())


def main() -> None:
    how = dict(dtype=torch.bfloat16, operations=comfy.ops.disable_weight_init)
    for name, build in published(device="meta", **how).items():
        model = build()
        per_rank = sum(layer.in_features + layer.out_features for layer in adapted(model))
        print(f"{name}: {sum(p.numel() for p in model.parameters()):,} parameters, {per_rank:,} for each unit of rank")
    comfy.model_management.in_training = True
    for name, (tokens, one, two, call) in narrow(device="cpu", **how).items():
        vectors = (kept_bytes(two, call) - kept_bytes(one, call)) / (tokens * WIDTH * 2)
        print(f"{name}: {vectors:.1f} vectors a token and block")


if __name__ == "__main__":
    main()
