"""What a stranger's graph asks of a real ComfyUI, queued as by its page: refused with node, value and fix, and nothing done."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from comfyui_otca.tests.comfyui.server import ROOT

pytestmark = pytest.mark.usefixtures("once")  # nothing here depends on ComfyUI's version
SECONDS = 120
OUTSIDE = str(ROOT / "requirements.txt")  # neither in the input folder nor below the tests' own


@pytest.fixture
def graph(small_graph):
    """graph(changes, {class: (input, text)}): OTCA's small workflow; the text of the second comes from another node."""

    def make(changes=None, linked=None):
        content = small_graph({"OTCA_SDESampler": {"seed": time.monotonic_ns() % 10**9}, **(changes or {})})
        for number, (kind, (name, text)) in enumerate((linked or {}).items(), 900):
            content[str(number)] = {"class_type": "PrimitiveString", "inputs": {"value": text}}
            next(node for node in content.values() if node["class_type"] == kind)["inputs"][name] = [str(number), 0]
        return content

    return make


@pytest.fixture
def listening():
    """The address of a server on this machine that is none of its loopback's, and what reached it."""
    reached = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            reached.append(self.headers)
            self.send_error(500)

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("0.0.0.0", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://0.0.0.0:{server.server_port}/score", reached
    server.shutdown()
    thread.join()
    server.server_close()


def refused_when_queued(comfyui, graph):
    """{class: what is wrong} of the nodes that ComfyUI marks; what does not need them it may run."""
    try:
        told = json.loads(comfyui.post("/prompt", {"prompt": graph}))
    except urllib.error.HTTPError as error:
        told = json.load(error)
    errors = told["node_errors"]
    return {error["class_type"]: error["errors"][0]["details"] for error in errors.values()}


def failed_when_run(comfyui, graph):
    """(class of the node, what it said) of the node that ended the prompt."""
    number = json.loads(comfyui.post("/prompt", {"prompt": graph}))["prompt_id"]
    deadline = time.monotonic() + SECONDS
    while not (history := comfyui.get(f"/history/{number}")):
        assert time.monotonic() < deadline, comfyui.log()[-2000:]
        time.sleep(0.2)
    told = dict(map(tuple, history[number]["status"]["messages"]))
    assert "execution_error" in told, told
    return told["execution_error"]["node_type"], told["execution_error"]["exception_message"]


def files(comfyui):
    """All that is there but ComfyUI's own log and settings."""
    return {place for place in comfyui.base.parent.rglob("*") if not place.is_relative_to(comfyui.base / "user")}


def with_server(graph, url):
    graph["70"] = {"class_type": "OTCA_RewardHTTP", "inputs": {"url": url, "coefficient": 1.0, "retries": 0}}
    stack = next(node for node in graph.values() if node["class_type"] == "OTCA_RewardStack")
    stack["inputs"]["reward_7"] = ["70", 0]
    return graph


@pytest.mark.parametrize("name", ["../../otca-escaped", "/tmp/otca-escaped", "..\\x"])
def test_a_linked_run_name_leads_nowhere(comfyui, graph, name):
    before = files(comfyui)
    kind, told = failed_when_run(comfyui, graph(linked={"OTCA_TrainingRun": ("run_name", name)}))
    assert kind == "OTCA_SDESampler" and "run_name = ['" in told and "cannot come through a link. Fix: " in told
    written = {place for place in files(comfyui) - before if "temp" not in place.parts}
    assert not [place for place in written if "escaped" in str(place) or place.name == "metrics.jsonl"]


def test_a_linked_name_of_a_lora_leads_nowhere(comfyui, graph):
    before = files(comfyui)
    changes = {"OTCA_TrainingRun": {"run_name": f"security-{time.monotonic_ns()}"}}
    kind, told = failed_when_run(comfyui, graph(changes, {"OTCA_SaveLoRA": ("filename", "../../escaped")}))
    assert kind == "OTCA_SaveLoRA" and "plain name" in told and "Fix: " in told
    assert not [place for place in files(comfyui) - before if "escaped" in place.name]


@pytest.mark.parametrize("file", [OUTSIDE, "/proc/self/environ", "/proc/kmsg"])
def test_a_prompt_file_outside(comfyui, graph, file):
    said = refused_when_queued(comfyui, graph({"OTCA_PromptDataset": {"file": file}}))
    assert file in said["OTCA_PromptDataset"] and "no folder that workflows may read" in said["OTCA_PromptDataset"]
    assert "Fix: " in said["OTCA_PromptDataset"]
    kind, told = failed_when_run(comfyui, graph(linked={"OTCA_PromptDataset": ("file", file)}))
    assert kind == "OTCA_PromptDataset" and repr(file) in told and "Fix: " in told
    assert comfyui.get("/system_stats"), "and ComfyUI answers"


def test_an_unknown_host(comfyui, graph, listening):
    url, reached = listening
    said = refused_when_queued(comfyui, with_server(graph(), url))
    host = url.removeprefix("http://").removesuffix("/score")
    assert host in said["OTCA_RewardHTTP"] and "you have not allowed" in said["OTCA_RewardHTTP"]
    linked = with_server(graph(), url)
    linked["900"] = {"class_type": "PrimitiveString", "inputs": {"value": url}}
    linked["70"]["inputs"]["url"] = ["900", 0]
    kind, told = failed_when_run(comfyui, linked)
    assert kind == "OTCA_RewardHTTP" and host in told and "--allow-host" in told
    assert not reached


def test_the_page_is_told_and_a_click_allows(comfyui, graph, listening):
    """Last in this file: what is allowed stays so for this server."""
    url, _ = listening
    prompt = with_server(graph(), url)

    def wants():
        told = json.loads(comfyui.post("/otca/permissions/wants", {"prompt": prompt}))["wants"]
        return next(want for want in told if want["kind"] == "post")

    want = wants()
    assert want["allowed"] is False and want["rememberable"] is True
    comfyui.post("/otca/permissions/allow", {"kind": "post", "what": want["remember"]})
    assert wants()["allowed"] is True
    prompt["70"]["inputs"]["url"] = url  # queued, and no longer refused; it is not waited for
    number = json.loads(comfyui.post("/prompt", {"prompt": prompt}))["prompt_id"]
    comfyui.post("/interrupt", {})
    comfyui.post("/queue", {"delete": [number]})
