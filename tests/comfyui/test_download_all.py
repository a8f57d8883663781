"""A newcomer's first Run of each large model's template: the files of its list are there, as after ComfyUI's *Download all*, and
nothing else was done. The models are tiny ones under the published names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comfyui_otca.tests.comfyui.server import ComfyUI, installations, link
from comfyui_otca.tests.tiny import rewards as tiny_rewards
from comfyui_otca.tools.canvases.templates import TEMPLATES
from comfyui_otca.trainer.run.budget import BACKWARD

FAMILIES = {
    "z_image": "ZImage",
    "qwen_image": "QwenImage",
    "krea2": "Krea2",
    "flux2_klein": "Flux2",
    "flux1": "Flux",
    "wan22_5b": "WAN22_T2V",
    "wan22_14b": "WAN21_T2V",
}
NEWER = ("z_image", "krea2", "flux2_klein")  # than ComfyUI 0.3.64
SMALL = {"width": 64, "height": 64, "frames": 5, "tile": 64}
WORDS = 49408  # of the tokenizer that ComfyUI brings
MOST = 100  # forwards of a Run


@pytest.fixture(scope="module", params=installations() or [None], ids=lambda one: one.name if one else "no-comfyui")
def downloaded(request, tmp_path_factory):
    """A ComfyUI into which the files of all lists were downloaded."""
    if request.param is None:
        pytest.skip("no ComfyUI")

    def install(folder):
        link(folder)
        folder.with_name("stand_ins.py").symlink_to(Path(__file__).with_name("stand_ins.py"))

    server = ComfyUI(request.param, tmp_path_factory.mktemp("downloaded"), install)
    for name in FAMILIES:
        for file in listed(name):
            place = server.base / "models" / file["directory"] / file["name"]
            place.parent.mkdir(parents=True, exist_ok=True)
            if file["directory"] == "otca_rewards":
                tiny_rewards.hps(place, vocabulary=WORDS)
            else:
                place.write_text(FAMILIES[name])
    try:
        server.wait_until_up()
        yield server
    finally:
        server.stop()


def listed(name: str) -> list[dict]:
    """The files of which a template says where they come from, as ComfyUI reads it."""
    nodes = json.loads(TEMPLATES[name].canvas.read_text(encoding="utf-8"))["nodes"]
    return [file for node in nodes for file in node["properties"].get("models", [])]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_template_runs_with_the_files_of_its_list(downloaded, name):
    if name in NEWER and downloaded.installation.version.startswith("0.3."):
        pytest.skip("this ComfyUI is older than the model")
    graph = json.loads(TEMPLATES[name].api.read_text(encoding="utf-8"))
    for node in graph.values():
        sized = {key: value for key, value in SMALL.items() if key in node["inputs"]}
        node["inputs"] |= sized
    said = downloaded.run(graph)  # an invalid input would be answered by HTTP 400
    assert "execution_success" in said, said.get("execution_error", {}).get("exception_message")
    for node in graph.values():  # the next Run, which tries the model no more
        moving = {"OTCA_SDESampler": "seed", "OTCA_PromptDataset": "index"}.get(node["class_type"])
        node["inputs"] |= {moving: node["inputs"][moving] + 1} if moving else {}
    assert "execution_success" in downloaded.run(graph)
    first, row = downloaded.metrics(name)
    assert row["gradient_norm"] > 0 and first["forwards/all"] > row["forwards/all"], "the trial is counted, once"
    used = row["forwards/all"] + BACKWARD * row["forwards/with_gradient"]
    assert f"a Run is {used:.0f} forwards" in TEMPLATES[name].notes["Read me"] and used <= MOST
    saved = {path.name for path in (downloaded.base / "models" / "loras").glob(f"{name}_lora*.safetensors")}
    experts = ("_high_noise", "_low_noise") if name == "wan22_14b" else ("",)
    assert saved == {f"{name}_lora{expert}.safetensors" for expert in experts}
