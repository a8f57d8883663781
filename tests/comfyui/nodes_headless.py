"""Run by ComfyUI's own interpreter: `nodes_headless.py COMFYUI REPOSITORY`.

Runs a graph of ComfyUI's own nodes without its server, and prints as its last line JSON of what a node of ours was given.
"""

import importlib.util
import json
import sys

comfyui, repository = sys.argv[1:]
spec = importlib.util.spec_from_file_location(
    "comfyui_otca", f"{repository}/__init__.py", submodule_search_locations=[repository]
)
package = sys.modules["comfyui_otca"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)

from comfyui_otca.host import comfyui as host  # noqa: E402
from comfyui_otca.host import headless_comfyui  # noqa: E402
from comfyui_otca.host.foreign_nodes import NodeClasses  # noqa: E402
from comfyui_otca.trainer.workflow.running import Workflow  # noqa: E402


class Tiny:
    """A MODEL and a CONDITIONING, as loaders and text encoders give them."""

    RETURN_TYPES, FUNCTION = ("MODEL", "CONDITIONING"), "make"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    def make(self):
        from comfyui_otca.tests.comfyui import tiny

        flux = tiny.build("Flux")
        return (flux.model, flux.conditioning("a lamp"))


class Probe:
    """Notes what it is given."""

    RETURN_TYPES, FUNCTION, OUTPUT_NODE = (), "look", True

    @classmethod
    def INPUT_TYPES(cls):
        types = {"flux": "MODEL", "sd3": "MODEL", "aura": "MODEL", "conditioning": "CONDITIONING", "latent": "LATENT"}
        optional = {"text": ("STRING", {"default": ""}), "switched": ("INT", {"default": 0})}
        return {"required": {name: (type_,) for name, type_ in types.items()}, "optional": optional}

    def look(self, latent, conditioning, text="", switched=0, **models):
        import torch

        half = {name: model.get_model_object("model_sampling").percent_to_sigma(0.5) for name, model in models.items()}
        answers.update(
            half={name: float(sigma) for name, sigma in half.items()},
            guidance=conditioning[0][1]["guidance"],
            shape=list(latent["samples"].shape),
            inference=[latent["samples"].is_inference(), torch.is_inference_mode_enabled()],
            text=text,
            switched=switched,
        )
        return ()


answers: dict = {}
loaded = headless_comfyui.load(comfyui, "cpu")
graph = {
    "1": {"class_type": "OTCA_Tiny", "inputs": {}},
    "2": {
        "class_type": "ModelSamplingFlux",
        "inputs": {"model": ["1", 0], "max_shift": 1.15, "base_shift": 0.5, "width": 1024, "height": 1024},
    },
    "3": {"class_type": "ModelSamplingSD3", "inputs": {"model": ["1", 0], "shift": 3.0}},
    "4": {"class_type": "ModelSamplingAuraFlow", "inputs": {"model": ["1", 0], "shift": 1.73}},
    "5": {"class_type": "FluxGuidance", "inputs": {"conditioning": ["1", 1], "guidance": 7.5}},
    "6": {"class_type": "PrimitiveInt", "inputs": {"value": 3}},
    "7": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 128, "batch_size": ["6", 0]}},
    "8": {"class_type": "PreviewImage", "inputs": {"images": ["99", 0]}},
    "9": {
        "class_type": "OTCA_Probe",
        "inputs": {"flux": ["2", 0], "sd3": ["3", 0], "aura": ["4", 0], "conditioning": ["5", 0], "latent": ["7", 0]},
    },
}
if {"ComfySwitchNode", "StringFormat"} <= set(loaded.classes):  # inputs that grow, and types that are matched
    texts = {"f_string": "{a} and {b}", "values.a": "one", "values.b": "two"}
    graph["10"] = {"class_type": "StringFormat", "inputs": texts}
    graph["11"] = {"class_type": "PrimitiveInt", "inputs": {"value": 11}}
    switch = {"switch": True, "on_false": ["6", 0], "on_true": ["11", 0]}
    graph["12"] = {"class_type": "ComfySwitchNode", "inputs": switch}
    graph["9"]["inputs"] |= {"text": ["10", 0], "switched": ["12", 0]}
workflow = Workflow(graph, NodeClasses({"OTCA_Tiny": Tiny, "OTCA_Probe": Probe}, loaded.classes))
answers["problems"] = [str(problem) for problem in workflow.validate() if problem.severity == "error"]
answers["ran"] = []
if not answers["problems"]:
    workflow.run(on_node=lambda node, cached: answers["ran"].append(node))
answers["all"] = list(graph)
answers["server"] = host.in_comfyui()
print(json.dumps(answers))
