"""A custom node of the tests: ComfyUI's stock loaders, for files that only say which tiny family they stand for.

A published model is recognised by sizes that no tiny one has, so the files themselves cannot be tiny models. That a file is
there, by its name and in its folder, is asked as the stock loaders ask it.
"""

import importlib.util
import sys
from pathlib import Path

import folder_paths
from safetensors import safe_open

import nodes

PLACE = Path(__file__).resolve().parent / "tiny" / "__init__.py"
spec = importlib.util.spec_from_file_location("otca_tiny", PLACE, submodule_search_locations=[str(PLACE.parent)])
tiny = sys.modules["otca_tiny"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tiny)


def stood_in(folder: str, name: str):
    """The tiny family that a file names."""
    with safe_open(folder_paths.get_full_path_or_raise(folder, name), "pt") as file:
        return tiny.build(file.metadata()["tiny"])


def counted(model):
    """A model that notes the samples of each call of its network in a file."""
    file = Path(folder_paths.base_path, "samples.txt").open("a", encoding="utf-8", buffering=1)
    model.model.diffusion_model.register_forward_pre_hook(lambda network, args: print(len(args[0]), file=file))
    return model


# ComfyUI lets no custom node replace one of its own, so their functions are.
nodes.UNETLoader.load_unet = lambda self, unet_name, **_: (counted(stood_in("diffusion_models", unet_name).model),)
nodes.CLIPLoader.load_clip = lambda self, clip_name, **_: (stood_in("text_encoders", clip_name).clip,)
nodes.DualCLIPLoader.load_clip = lambda self, clip_name1, **_: (stood_in("text_encoders", clip_name1).clip,)
nodes.VAELoader.load_vae = lambda self, vae_name, **_: (stood_in("vae", vae_name).vae,)
NODE_CLASS_MAPPINGS = {}
