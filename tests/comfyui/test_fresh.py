"""The pack in an environment that has what ComfyUI's own requirements install, and the oldest transformers that they take."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error

import pytest

from comfyui_otca.host.paths import ASSETS
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests import training
from comfyui_otca.tests.comfyui.conftest import each
from comfyui_otca.tests.comfyui.server import ROOT, WORKFLOWS, ComfyUI, fresh
from comfyui_otca.trainer.workflow import Workflow

SMALL = {
    "OTCA_PromptDataset": {"prompts_per_iteration": 2},
    "OTCA_SDESampler": {"group_size": 3},
    "OTCA_TrainingRun": {"evaluation_seeds": 1, "iterations": 2, "evaluate_every": 1},
}


@pytest.fixture(scope="module", **each(fresh()))
def environment(request):
    return request.param or pytest.skip("no fresh environment: ~/envs/fresh-<version>, or name it by COMFYUI_FRESH")


@pytest.fixture(scope="module")
def server(environment, tmp_path_factory):
    with ComfyUI(environment, tmp_path_factory.mktemp("fresh")) as server:
        yield server


def asked(environment, *words) -> str:
    return subprocess.run([environment.python, *words], capture_output=True, text=True, check=True).stdout


def small(name: str) -> dict:
    graph = json.loads((WORKFLOWS / "api" / f"{name}.json").read_text(encoding="utf-8"))
    for node in graph.values():
        node["inputs"] |= SMALL.get(node["class_type"], {})
    return graph


def installs(environment, *wanted) -> dict[str, str]:
    """What pip would install, by its report of a dry run, {package: version}."""
    report = asked(environment, "-m", "pip", "install", "--quiet", "--dry-run", "--report", "-", *wanted)
    return {one["metadata"]["name"]: one["metadata"]["version"] for one in json.loads(report)["install"]}


def test_requirements_change_nothing_and_add_nothing(environment):
    listed = {line.partition("==")[0] for line in asked(environment, "-m", "pip", "freeze").splitlines()}
    assert "transformers" in listed and not {"diffusers", "peft", "accelerate", "matplotlib", "ftfy"} & listed
    assert installs(environment, "--no-index", "-r", ROOT / "requirements.txt") == {}


def test_it_starts_and_lists_every_node(server):
    ours = {name for name, node in server.object_info.items() if node["python_module"] == "custom_nodes.ComfyUI-OTCA"}
    assert ours == set(NODE_CLASS_MAPPINGS) and server.complaints(end=server.up_at) == []


@pytest.mark.parametrize("name", ["quickstart", "quickstart_comfyui"])
def test_a_template_trains(server, name):
    """Load Flow Model on the embedded model, which here ComfyUI's own networks make, and Make Trainable to Tuned Model."""
    told = server.run(small(name))
    assert "execution_success" in told, told
    (run,) = [node["inputs"]["run_name"] for node in small(name).values() if node["class_type"] == "OTCA_TrainingRun"]
    (row,) = server.metrics(run)
    assert row["gradient_norm"] > 0 and (server.run_folder(run) / "lora.safetensors").is_file()


def test_the_embedded_model_scores_there_as_it_does_with_diffusers(server, tmp_path):
    """The first iteration samples from the untrained model: the same pictures, whichever library made its networks."""
    graph = small("quickstart")
    (run,) = [node["inputs"] for node in graph.values() if node["class_type"] == "OTCA_TrainingRun"]
    run |= {"run_name": "beside diffusers", "iterations": 1}
    assert "execution_success" in server.run(graph)
    assert training.train(Workflow(graph, NODE_CLASS_MAPPINGS), tmp_path / "run") == 0
    (here,), (there,) = training.rows(tmp_path / "run"), server.metrics("beside diffusers")
    means = {name: value for name, value in here.items() if name.startswith("reward/") and name.endswith("/mean")}
    assert len(means) >= 3 and {name: there[name] for name in means} == pytest.approx(means, rel=1e-4)


def test_what_needs_an_extra_says_so_with_its_command(server):
    """Before anything runs, for what VALIDATE_INPUTS sees; else when it loads what diffusers alone can do."""
    shutil.copytree(ASSETS / "shapes-flux", server.base / "models" / "diffusers" / "copied")
    graph = small("quickstart")
    (loader,) = [node for node in graph.values() if node["class_type"] == "OTCA_LoadFlowModel"]
    loader["inputs"]["dtype"] = "bfloat16"
    told = server.run(graph)["execution_error"]
    assert told["node_type"] == "OTCA_LoadFlowModel"
    messages = [told["exception_message"]]
    for changes in ({"dtype": "auto", "training": "full"}, {"model": "copied", "training": "lora"}):
        loader["inputs"] |= changes
        with pytest.raises(urllib.error.HTTPError) as refused:
            server.run(graph)
        (node,) = json.load(refused.value)["node_errors"].values()
        messages.append(node["errors"][0]["details"])
    for message in messages:
        assert "Load Flow Model" in message and "needs diffusers>=0.38 (none is here)" in message
        assert f"{server.installation.python} -m pip install" in message and "It keeps what is here" in message
