"""Whether a folder fits is said before it is loaded, by the same figures as `otca memory`."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from comfyui_otca.host import devices
from comfyui_otca.tests.tiny import models as tiny
from comfyui_otca.trainer.families.options import FlowModelError, LoadOptions
from comfyui_otca.trainer.families.sizes import LatentGrid
from comfyui_otca.trainer.flow import load_flow_model
from comfyui_otca.trainer.memory import fitting, needs
from comfyui_otca.trainer.memory.blueprint import of_folder
from comfyui_otca.trainer.memory.rehearsal import PipelineCase
from comfyui_otca.trainer.policy.adapters import Adapter
from comfyui_otca.trainer.types import SamplerSettings

API = Path(__file__).resolve().parents[3] / "workflows" / "api"

ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.make("sd3", tmp_path_factory.mktemp("sd3") / "sd3")


@pytest.fixture
def free(monkeypatch):
    """free(bytes): so much is free on every device."""
    return lambda size: monkeypatch.setattr(devices, "free_memory", lambda device: round(size))


def numbers(folder, *parts):
    """How many are in the weights, by the files."""
    files = [file for part in parts for file in (folder / part).glob("*.safetensors")]
    return sum(tensor.numel() for file in files for tensor in load_file(file).values())


def case(folder, adapter=None, dtype=torch.float32, processes=1, **options):
    return PipelineCase(of_folder(folder), adapter, LoadOptions(**options), dtype, None, processes, reserve=0)


def about(size):
    return pytest.approx(size, rel=0.004)  # beside the weights there are some numbers of positions


def test_offloaded_networks_need_no_room_on_the_device(folder):
    def needed(**options):
        """{phase: bytes} without the adapter, whose gradients are there in the update alone."""
        held = case(folder, Adapter(1, 1.0), **options)
        return {phase: size - 12 * held.rehearsal.trained for phase, size in held.needs.totals.items()}

    def size(*parts):
        return about(4 * numbers(folder, *parts))

    assert needed()["sampling"] == size("transformer", "vae", *ENCODERS)
    found = needed(offload_vae=True)
    assert found["sampling"] == size("transformer", *ENCODERS)
    assert found["decoding"] == size("transformer", "vae", *ENCODERS), "it is there while it decodes"
    found = needed(offload_encoders=True)
    assert found["encoding prompts"] == size("vae", *ENCODERS), "the transformer steps aside"
    assert found["sampling"] == size("transformer", "vae")
    found = needed(offload_encoders=True, offload_vae=True)
    assert found["encoding prompts"] == size(*ENCODERS)
    assert found["decoding"] == size("transformer", "vae"), "never both"


def test_too_little_memory_is_said_before_anything_is_loaded(folder, free, caplog):
    # float32: weight, gradient, two moments, the reference and a copy
    full = 4 * numbers(folder, "vae", *ENCODERS) + 24 * numbers(folder, "transformer")
    free(0.995 * full)
    message = (
        "sd3 needs about 0.0 GB on cpu before activations, .* are free. Fix: .*training lora .*, or a larger device"
    )
    with pytest.raises(FlowModelError, match=message):
        load_flow_model(folder, device="cpu", training="full")
    load_flow_model(folder, device="cpu", training="lora")
    assert "tight" not in caplog.text
    free(1.005 * full)
    load_flow_model(folder, device="cpu", training="full")
    assert "tight" in caplog.text


def test_the_adapter_needs_room_too(folder, free):
    """An adapter of rank 64 on a large model takes several GB: a weight, its gradient and two moments in float32."""
    model = load_flow_model(folder, device="cpu", lora_rank=8)
    adapter = 16 * sum(parameter.numel() for parameter in model.policy.trainable_parameters())
    weights = 4 * numbers(folder, "transformer", "vae", *ENCODERS)
    free(1.005 * weights + adapter)
    load_flow_model(folder, device="cpu", lora_rank=8)
    free(0.995 * weights + adapter)
    with pytest.raises(FlowModelError, match="before activations, .* are free. Fix: "):
        load_flow_model(folder, device="cpu", lora_rank=8)


def test_what_has_plenty_of_room_is_not_counted(folder, free, monkeypatch):
    monkeypatch.setattr(PipelineCase, "held", None)
    free(17 * sum(file.stat().st_size for file in folder.rglob("*.safetensors")))
    load_flow_model(folder, device="cpu")


def test_several_processes_need_their_part_each(folder):
    """A model that is trained as a whole is shared out; but the weights are there in float32 before."""
    trained, rest = numbers(folder, "transformer"), 2 * numbers(folder, "vae", *ENCODERS)

    def needed(processes, adapter=None, **options):
        held = case(folder, adapter, torch.bfloat16, processes, **options)
        return held.needs.total - (16 * held.rehearsal.trained if adapter else 0)

    small = Adapter(1, 1.0)
    for processes, each in ((1, 22), (2, 11), (8, 4)):
        assert needed(processes) == about(each * trained + rest)
        assert needed(processes, small) == about(2 * trained + rest)
        assert needed(processes, small, shard=True) == about(2 * trained / processes + rest)


def test_what_comfyui_loaded_is_counted_with_the_update_that_follows():
    """As `otca memory` counts the same graph: two pictures, one to a call, the rewards' gradient through the decoder's tiles."""
    graph = json.loads((API / "z_image.json").read_text(encoding="utf-8"))
    expert = SimpleNamespace(
        blocks={},
        core=SimpleNamespace(model_config=SimpleNamespace(unet_config={"image_model": "lumina2"})),
        patcher=SimpleNamespace(model_size=lambda: 7),
    )
    model = SimpleNamespace(
        wrapped={"model": expert},
        source="z",
        grid=LatentGrid(16, 8, 2),
        policy=SimpleNamespace(trainable_parameters=list),
        guidance_is_embedded=False,
        calls_per_velocity=lambda guidance: 1 + (guidance != 1),
        options=SimpleNamespace(is_low_memory=False),
        clip=None,
        vae=None,
        dtype=torch.bfloat16,
        planned=fitting.planned(graph, False),
        most_pictures=0,
    )
    settings = SamplerSettings.from_inputs(graph["9"]["inputs"])
    counted, _ = needs.read(graph)
    case = fitting.case_of(model, settings, True)
    assert case.iteration == counted.iteration and case.iteration.pull.tile == 512
    assert "the decoder's gradient" in case.needs.phases
    model.most_pictures = 2
    assert fitting.case_of(model, settings, True).iteration.references == 2, "as many as it has seen"
    model.planned = fitting.planned({**graph, "99": graph["17"]}, False)  # two updates: which one is not known
    assert model.planned is None and fitting.case_of(model, settings, True).iteration.pull is None
