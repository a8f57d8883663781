"""Export: the exact command lines."""

from __future__ import annotations

import shlex
from pathlib import Path

from comfyui_otca.__main__ import parser
from comfyui_otca.host import headless_comfyui
from comfyui_otca.host.foreign_nodes import NodeClasses
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.page.export import REPOSITORY, commands
from comfyui_otca.trainer.workflow.foreign import Needs


def titled(entries, word):
    return next(entry for entry in entries if word in entry["title"])


def test_the_one_gpu_line_is_what_the_command_line_takes():
    for name in ("mine", "my run's", "$HOME;ls"):
        (line,) = titled(commands(f"{name}.json", name), "One GPU")["lines"]
        python, folder, *arguments = shlex.split(line)
        options = parser().parse_args(arguments)
        assert (python, folder) == ("python", "ComfyUI-OTCA")
        assert options.workflow == Path(f"{name}.json") and options.output == Path(f"runs/{name}")


def test_the_lines_of_set_up_and_of_several_gpus():
    lines = commands("a.json", "a")
    clone, install, models = lines[0]["lines"]
    assert (
        REPOSITORY in clone and install == 'pip install -e "ComfyUI-OTCA[diffusers,plots]"' and "OTCA_MODELS" in models
    )
    assert f'Repository = "{REPOSITORY}"' in (Path(__file__).parents[2] / "pyproject.toml").read_text()
    (eight,) = titled(lines, "Eight GPUs")["lines"]
    assert eight == "python ComfyUI-OTCA train a.json --output runs/a --gpus 8"
    assert parser().parse_args(shlex.split(eight)[2:]).gpus == 8
    assert "shared disk" in titled(lines, "Several")["note"]
    several = titled(lines, "Several")["lines"][-1]
    for word in ("accelerate launch", "--num_machines 2", "--machine_rank $MACHINE_RANK", "--main_process_ip $MAIN_"):
        assert word in several


def test_what_comfyui_has_to_bring():
    files = (("vae", "a.safetensors"), ("loras", "b\nrm -rf ~"))
    lines = commands("a.json", "a", Needs(("VAELoader", "UnetLoaderGGUF"), files, ("ComfyUI-GGUF",)))
    first = lines[0]
    assert first["title"] == "ComfyUI there" and "VAELoader, UnetLoaderGGUF" in first["note"]
    assert '# ComfyUI/models/vae/: "a.safetensors"' in first["lines"]
    assert all(line.startswith(("git ", "pip ", "# ")) and line.isprintable() for line in first["lines"])
    assert "# ComfyUI/custom_nodes/ComfyUI-GGUF" in first["lines"]
    for title, command in (("Check", "validate"), ("One GPU", "train"), ("Eight GPUs", "train")):
        (line,) = titled(lines, title)["lines"]
        options = parser().parse_args(shlex.split(line)[2:])
        assert options.comfyui == "ComfyUI" and options.custom_nodes == ["ComfyUI-GGUF"] and f" {command} " in line
    assert "--comfyui ComfyUI" in titled(lines, "Several")["lines"][-1]


def test_export_of_a_graph_with_comfyuis_nodes(site, small_graph, fake_comfyui):
    loaded = headless_comfyui.load(fake_comfyui(), "cpu")
    graph = small_graph()
    graph["90"] = {"class_type": "PrimitiveInt", "inputs": {"value": 4}}
    sampler = next(entry for entry in graph.values() if entry["class_type"] == "OTCA_SDESampler")
    sampler["inputs"]["steps"] = ["90", 0]
    site.jobs.node_classes = NodeClasses(NODE_CLASS_MAPPINGS, loaded.classes)
    answer = site.post("/otca/export", {"prompt": graph, "name": "mine"}).json
    assert answer["problems"] == [] and "PrimitiveInt" in answer["commands"][0]["note"]


def test_export(site, small_graph):
    answer = site.post("/otca/export", {"prompt": small_graph(), "name": "mine"}).json
    assert answer["problems"] == [] and answer["filename"] == "mine.json"
    assert answer["commands"] == commands("mine.json", "mine", None, ["diffusers"])
    wrong = site.post("/otca/export", {"prompt": small_graph({"OTCA_SDESampler": {"group_size": -1}})})
    assert wrong.status == 200 and wrong.json["problems"][0]["input"] == "group_size" and wrong.json["commands"]
    for run_name, file in (("from the graph", "from the graph.json"), ("../bad", None), (["4", 0], None)):
        graph = small_graph({"OTCA_TrainingRun": {"run_name": run_name}})
        assert site.post("/otca/export", {"prompt": graph}).json["filename"] == (file or "workflow.json")
