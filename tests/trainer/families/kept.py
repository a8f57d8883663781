"""Files whose layers are stored in 8 bits or fewer, of a checkpoint, and the same numbers in full for comparison."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = Path("transformer") / "diffusion_pytorch_model.safetensors"


def fp8(
    folder, target, kind=torch.float8_e4m3fn, factor=None, layers=r".*(to_.*|ff.*)\.weight", component="transformer"
):
    """(file, folder): a file in 8 bits, with factors by the name `factor` or plain, and a folder that has its very numbers."""
    wide = shutil.copytree(folder, target / "wide")
    (whole,) = (folder / component).glob("*.safetensors")
    narrow, widened = {}, {}
    generator = torch.Generator().manual_seed(1)
    for name, tensor in load_file(whole).items():
        if not re.fullmatch(layers, name):
            narrow[name] = widened[name] = tensor
            continue
        scale = torch.rand((), generator=generator) + 0.5 if factor else torch.ones(())
        narrow[name] = (tensor / scale).to(kind)
        widened[name] = narrow[name].float() * scale
        if factor:
            narrow[name.removesuffix(".weight") + factor] = scale
    file = target / "kept.safetensors"
    save_file(narrow, file)
    save_file(widened, wide / component / whole.name)
    return file, wide


def gguf(folder, target, kind, layers=r".*(to_.*|ff.*)\.weight"):
    """(file, folder): a GGUF file, quantized by the package gguf, and a folder that has the numbers it says that it holds."""
    import gguf as package

    wide = shutil.copytree(folder, target / "wide")
    form = package.GGMLQuantizationType[kind]
    file = target / "kept.gguf"
    writer = package.GGUFWriter(str(file), "otca-test")
    widened = {}
    for name, tensor in load_file(folder / WEIGHTS).items():
        if re.fullmatch(layers, name) and tensor.shape[1] % package.GGML_QUANT_SIZES[form][0] == 0:
            packed = package.quants.quantize(tensor.float().numpy(), form)
            writer.add_tensor(name, packed, raw_dtype=form)
            widened[name] = torch.from_numpy(package.quants.dequantize(packed, form).copy())
        else:
            writer.add_tensor(name, tensor.float().numpy())
            widened[name] = tensor.float()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(widened, wide / WEIGHTS)
    return file, wide
