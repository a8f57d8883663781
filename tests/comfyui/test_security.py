"""What a stranger's graph asks of a real ComfyUI, queued as by its page: refused with node, value and fix, and nothing done."""

from __future__ import annotations

import json
import time
import urllib.error

import pytest

from comfyui_otca.tests.comfyui.server import ROOT

pytestmark = pytest.mark.usefixtures("once")  # nothing here depends on ComfyUI's version
OUTSIDE = str(ROOT / "requirements.txt")  # neither in the input folder nor below the tests' own
FOREIGN_HOST = "http://0.0.0.0:9/score"


@pytest.fixture
def graph(small_graph):
    """graph(class, input, text, linked): OTCA's small workflow and an HTTP reward, with that text typed in or from a node."""

    def make(kind, name, text, linked):
        run = {"run_name": f"security-{time.monotonic_ns()}"}
        content = small_graph({"OTCA_SDESampler": {"seed": time.monotonic_ns() % 10**9}, "OTCA_TrainingRun": run})
        if kind == "OTCA_RewardHTTP":
            content["70"] = {"class_type": kind, "inputs": {"url": text, "coefficient": 1.0}}
            stack = next(node for node in content.values() if node["class_type"] == "OTCA_RewardStack")
            stack["inputs"]["reward_7"] = ["70", 0]
        content["900"] = {"class_type": "PrimitiveString", "inputs": {"value": text}}
        node = next(node for node in content.values() if node["class_type"] == kind)
        node["inputs"][name] = ["900", 0] if linked else text
        return content

    return make


def refused_when_queued(comfyui, graph):
    """{class: what is wrong} of the nodes that ComfyUI marks; what does not need them it may run."""
    try:
        told = json.loads(comfyui.post("/prompt", {"prompt": graph}))
    except urllib.error.HTTPError as error:
        told = json.load(error)
    return {error["class_type"]: error["errors"][0]["details"] for error in told["node_errors"].values()}


def failed_when_run(comfyui, graph):
    """(class of the node, what it said) of the node that ended the prompt."""
    told = comfyui.run(graph)
    assert "execution_error" in told, told
    return told["execution_error"]["node_type"], told["execution_error"]["exception_message"]


def files(comfyui):
    """All that is there but ComfyUI's own log and settings."""
    return {place for place in comfyui.base.parent.rglob("*") if not place.is_relative_to(comfyui.base / "user")}


@pytest.mark.parametrize(
    ("kind", "name", "text", "refusing", "said"),
    [
        ("OTCA_TrainingRun", "run_name", "../../escaped", "OTCA_SDESampler", "cannot come through a link. Fix: "),
        ("OTCA_TrainingRun", "run_name", "/tmp/escaped", "OTCA_SDESampler", "cannot come through a link. Fix: "),
        ("OTCA_SaveLoRA", "filename", "../../escaped", "OTCA_SaveLoRA", "plain name"),
    ],
)
def test_a_linked_name_leads_nowhere(comfyui, graph, kind, name, text, refusing, said):
    before = files(comfyui)
    node, told = failed_when_run(comfyui, graph(kind, name, text, linked=True))
    assert node == refusing and said in told and "Fix: " in told
    written = {place for place in files(comfyui) - before if "temp" not in place.parts}
    assert not [place for place in written if "escaped" in place.name]
    assert kind == "OTCA_SaveLoRA" or "metrics.jsonl" not in {place.name for place in written}


@pytest.mark.parametrize(
    ("kind", "name", "text", "said"),
    [
        ("OTCA_PromptDataset", "file", OUTSIDE, "no folder that workflows may read"),
        ("OTCA_PromptDataset", "file", "/proc/kmsg", "no folder that workflows may read"),
        ("OTCA_RewardHTTP", "url", FOREIGN_HOST, "--allow-host"),
    ],
)
def test_what_the_user_has_not_allowed_is_refused(comfyui, graph, kind, name, text, said):
    """Before anything runs where it is typed in, and by the node itself where it comes through a link."""
    shown = text.removeprefix("http://").removesuffix("/score")
    typed = refused_when_queued(comfyui, graph(kind, name, text, linked=False))[kind]
    node, linked = failed_when_run(comfyui, graph(kind, name, text, linked=True))
    assert node == kind
    for told in (typed, linked):
        assert shown in told and said in told and "Fix: " in told
    assert comfyui.get("/system_stats"), "and ComfyUI answers"
