"""A folder with just enough of ComfyUI's outline that it can be imported: its modules' names, V1 and V3 node classes."""

from __future__ import annotations

from pathlib import Path

FILES = {
    "comfyui_version.py": '__version__ = "0.33.0"\n',
    "comfy/__init__.py": "",
    "comfy/options.py": "parsing = False\ndef enable_args_parsing(enable=True):\n    global parsing\n    parsing = enable\n",
    "comfy/cli_args.py": """
import argparse, sys
from . import options
parser = argparse.ArgumentParser()
parser.add_argument("--cpu", action="store_true")
parser.add_argument("--lowvram", action="store_true")
for name in ("output", "input", "user", "base"):
    parser.add_argument(f"--{name}-directory")
parser.add_argument("--extra-model-paths-config", action="append", nargs="+")
seen = list(sys.argv)
args = parser.parse_args(sys.argv[1:] if options.parsing else [])
""",
    "comfy/model_management.py": """
import torch
from .cli_args import args
cpu_at_import = args.cpu
current_loaded_models = []
def get_torch_device():
    return torch.device("cpu")
def unet_dtype(device=None, weight_dtype=None):
    return weight_dtype
def throw_exception_if_processing_interrupted():
    pass
def unload_all_models():
    pass
def soft_empty_cache():
    pass
""",
    "folder_paths.py": """
import os
from comfy.cli_args import args
base_path = args.base_directory or os.path.dirname(os.path.realpath(__file__))
models_dir = os.path.join(base_path, "models")
output, entered = os.path.join(base_path, "output"), os.path.join(base_path, "input")
folder_names_and_paths = {}
def add_model_folder_path(kind, folder, is_default=False):
    folder_names_and_paths.setdefault(kind, ([], set()))[0].append(folder)
for kind in ("unet", "diffusion_models"):
    add_model_folder_path("diffusion_models", os.path.join(models_dir, kind))
for kind in ("checkpoints", "loras", "vae", "text_encoders"):
    add_model_folder_path(kind, os.path.join(models_dir, kind))
add_model_folder_path("custom_nodes", os.path.join(base_path, "custom_nodes"))
def get_folder_paths(kind):
    return folder_names_and_paths[kind][0]
def get_filename_list(kind):
    folders = [folder for folder in get_folder_paths(kind) if os.path.isdir(folder)]
    return sorted(name for folder in folders for name in os.listdir(folder))
def get_output_directory():
    return output
def set_output_directory(folder):
    global output
    output = folder
def get_input_directory():
    return entered
def set_input_directory(folder):
    global entered
    entered = folder
user = os.path.join(base_path, "user")
def get_user_directory():
    return user
def get_temp_directory():
    return os.path.join(base_path, "temp")
def set_user_directory(folder):
    global user
    user = folder
""",
    "comfy/utils.py": "",  # which hides the other utils from whoever imports nodes first
    "utils/__init__.py": "",
    "utils/extra_config.py": """
import folder_paths
loaded = []
def load_extra_path_config(path):
    loaded.append(path)
    for folder in open(path).read().split():
        folder_paths.add_model_folder_path(folder.rpartition("/")[2], folder)
""",
    # with an entry point, but without anybody who has made the one instance
    "server.py": "import utils.extra_config\nclass PromptServer:\n    pass\n",
    "comfy_api/__init__.py": "",
    "comfy_api/latest/__init__.py": "",
    "comfy_api/latest/_io.py": """
import enum
class Hidden(str, enum.Enum):
    unique_id = "UNIQUE_ID"
def get_finalized_class_inputs(types, live):
    return {name: table for name, table in types.items() if name != "hidden"}, types.get("hidden"), {}
def build_nested_inputs(values, nesting):
    return values
class Output:
    def __init__(self, *result, expand=None, block_execution=None):
        self.result, self.expand, self.block_execution = result, expand, block_execution
class ComfyNode:
    FUNCTION = "EXECUTE_NORMALIZED"
    hidden = None
    @classmethod
    def validate_inputs(cls, **inputs):
        raise NotImplementedError
    @classmethod
    def fingerprint_inputs(cls, **inputs):
        raise NotImplementedError
    @classmethod
    def PREPARE_CLASS_CLONE(cls, data):
        return type(cls.__name__, (cls,), {"hidden": data["hidden_inputs"]})
    @classmethod
    def EXECUTE_NORMALIZED(cls, **inputs):
        return cls.execute(**inputs)
""",
    "nodes.py": """
import importlib.util, logging, os, sys, traceback
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "comfy"))
import torch
import folder_paths
from comfy import model_management
from comfy_api.latest._io import ComfyNode, Output
argv = list(sys.argv)

class V1:
    inputs = {}
    RETURN_TYPES, FUNCTION = ("INT",), "go"
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": cls.inputs}

class UNETLoader(V1):
    RETURN_TYPES = ("MODEL",)
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"unet_name": (folder_paths.get_filename_list("diffusion_models"),)}}
    def go(self, unet_name):
        return (unet_name,)

class LoadImage(V1):  # whose choices ComfyUI leaves to the class, which takes whatever exists
    inputs = {"image": (["seen.png"], {"image_upload": True})}
    @classmethod
    def VALIDATE_INPUTS(cls, image):
        return True
    def go(self, image):
        return (4,)

class Mode(V1):  # whether a node runs in inference mode, as a number
    inputs = {"seed": ("INT", {"default": 0, "control_after_generate": True})}
    def go(self, seed):
        return (int(torch.is_inference_mode_enabled()),)

class SaveImage(V1):
    inputs = {"images": ("IMAGE",)}
    OUTPUT_NODE = True
    def go(self, images):
        raise AssertionError("a training must not run it")

class Split(V1):
    OUTPUT_IS_LIST = (True,)
    def go(self):
        return ([1, 2],)

class V3(ComfyNode):
    inputs = {}
    RETURN_TYPES = ["INT"]
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": cls.inputs}

class PrimitiveInt(V3):
    RELATIVE_PYTHON_MODULE = "comfy_extras.nodes_primitive"
    inputs = {"value": ("INT", {"control_after_generate": True})}
    @classmethod
    def execute(cls, value):
        return Output(value)

class WhoAmI(V3):
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"more": ("INT", {})}, "hidden": {"unique_id": ("UNIQUE_ID",)}}
    @classmethod
    def fingerprint_inputs(cls, more):
        return more
    @classmethod
    def execute(cls, more):
        return Output(int(cls.hidden["UNIQUE_ID"]) + more)

class Expands(V3):
    @classmethod
    def execute(cls):
        return Output(1, expand={"1": {}})

ALL = (UNETLoader, LoadImage, Mode, SaveImage, Split, PrimitiveInt, WhoAmI, Expands)
NODE_CLASS_MAPPINGS = {cls.__name__: cls for cls in ALL}
NODE_DISPLAY_NAME_MAPPINGS = {"UNETLoader": "Load Diffusion Model"}

async def init_extra_nodes(init_custom_nodes=True, init_api_nodes=True):
    assert not init_custom_nodes and not init_api_nodes
    import server
    logging.warning("IMPORT FAILED: what only a server can do")

async def load_custom_node(path, ignore=(), module_parent="custom_nodes"):
    try:
        spec = importlib.util.spec_from_file_location(path, path + "/__init__.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception as error:
        logging.warning(traceback.format_exc())
        logging.warning(f"Cannot import {path} module for custom nodes: {error}")
        return False
    for name, cls in module.NODE_CLASS_MAPPINGS.items():
        cls.RELATIVE_PYTHON_MODULE = f"{module_parent}.{path.rpartition('/')[2]}"
        NODE_CLASS_MAPPINGS[name] = cls
    return True
""",
    "custom_nodes/good/__init__.py": """
class Three:
    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}
    RETURN_TYPES, FUNCTION = ("INT",), "three"
    def three(self):
        return (3,)
NODE_CLASS_MAPPINGS = {"Three": Three}
""",
    "custom_nodes/routes/__init__.py": "from server import PromptServer\nPromptServer.instance.routes\n",
    "custom_nodes/unnamed/__init__.py": "raise AssertionError('nobody has named it')\n",
}


def make(folder: Path, changes: dict[str, str | None] | None = None) -> Path:
    """Writes it there; `changes`: {file: other content, or None to leave it out}."""
    for name, content in {**FILES, **(changes or {})}.items():
        if content is not None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    (folder / "models" / "diffusion_models").mkdir(parents=True, exist_ok=True)
    return folder
