"""Whether a folder fits is said before it is loaded, by the same figures as `otca memory`."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
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
from comfyui_otca.trainer.memo import Memos
from comfyui_otca.trainer.memory import fitting, needs
from comfyui_otca.trainer.memory.blueprint import of_folder
from comfyui_otca.trainer.memory.case import ENCODING, GB, Machine
from comfyui_otca.trainer.memory.rehearsal import PipelineCase
from comfyui_otca.trainer.native.model import NativeModel, case_of
from comfyui_otca.trainer.policy.adapters import Adapter
from comfyui_otca.trainer.types import TRAJECTORY_NODES, SamplerSettings

API = Path(__file__).resolve().parents[3] / "workflows" / "api"

SMALL = Adapter(1, 1.0)
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


class LargeEncoders(PipelineCase):
    def held(self):
        return replace(super().held(), encoders=GB, encoders_visit=True, steps_aside=(ENCODING,))


@pytest.fixture(scope="module")
def streamed(folder):
    """streamed(bytes, …): the decided case of a model with eight blocks on a GPU with so much memory."""
    blueprint = of_folder(folder)
    library, kind, config = blueprint.parts["transformer"]
    deep = replace(blueprint, parts={**blueprint.parts, "transformer": (library, kind, {**config, "num_layers": 8})})

    def of(has, device="cuda:0", adapter=SMALL, kind=PipelineCase, **options):
        machine = Machine(device, has)
        return kind(deep, adapter, LoadOptions(**options), torch.float32, None, 1, 0, machine).decided

    return of


def test_as_few_blocks_are_out_as_need_to_be(streamed):
    whole = streamed(GB)
    sizes, most = whole.rehearsal.blocks, whole.estimate().total
    assert whole.blocks_out == 0 and len(sizes) == 8 and "main memory" not in whole.sentence(GB)
    all_out = most - sum(sizes) + sum(sorted(sizes)[-2:])
    for has in (most, most - 1, (most + all_out) // 2, all_out, 1):
        case = streamed(has)
        fewer = replace(case, blocks_out=case.blocks_out - 1).estimate().total if case.blocks_out else has + 1
        assert fewer > has and (case.estimate().total <= has or (has, case.blocks_out) == (1, 8))
    assert streamed(all_out).estimate().total == all_out, "two are there: one that computes, and one that comes"
    low = streamed(GB, memory="low")
    assert low.blocks_out == 8 and low.estimate().total == all_out
    moved = f"8 of 8 blocks stay in main memory: {sum(sizes) / GB:.1f} GB go to the GPU in each pass through a network"
    assert low.sentence(GB).endswith(moved)
    assert streamed(0).blocks_out == 0, "how much there is is not known"


def test_no_more_are_out_than_make_a_phase_fit(streamed):
    """The text encoders do not fit, whatever else is there."""
    update = streamed(0, kind=LargeEncoders).estimate().totals["the update"]
    for has, least in ((update, 0), (update - 1, 1)):
        case = streamed(has, kind=LargeEncoders)
        assert case.needs.total > GB > has and least <= case.blocks_out < 8
        assert case.estimate().totals["the update"] <= has


@pytest.mark.parametrize(
    "options",
    [{"device": ""}, {"adapter": None}, {"quantize": "4bit"}, {"shard": True}, {"compile": True}],
    ids=lambda options: next(iter(options)),
)
def test_what_has_to_stay_stays(options, streamed):
    assert not streamed(1, **options).out


def test_several_processes_need_their_part_each(folder):
    """A model that is trained as a whole is shared out; but the weights are there in float32 before."""
    trained, rest = numbers(folder, "transformer"), 2 * numbers(folder, "vae", *ENCODERS)

    def needed(processes, adapter=None, **options):
        held = case(folder, adapter, torch.bfloat16, processes, **options)
        return held.needs.total - (16 * held.rehearsal.trained if adapter else 0)

    for processes, each in ((1, 22), (2, 11), (8, 4)):
        assert needed(processes) == about(each * trained + rest)
        assert needed(processes, SMALL) == about(2 * trained + rest)
        assert needed(processes, SMALL, shard=True) == about(2 * trained / processes + rest)


def loaded(graph, case, device="cuda"):
    """What NativeModel is of a model with the figures of that case, as far as memory is concerned."""
    model, networks = case.model, case.model.networks
    layer = torch.nn.Linear(model.width, 1, device="meta")
    experts = {
        name: SimpleNamespace(
            blocks={str(number): layer for number in range(model.layers)},
            core=SimpleNamespace(model_config=SimpleNamespace(unet_config={"image_model": model.image_model})),
            patcher=SimpleNamespace(model_size=lambda: case.weights_bytes // networks),
        )
        for name in ("model", "low_noise_model")[:networks]
    }
    patch = 2 if model.values % 4 == 0 else 1
    return SimpleNamespace(
        wrapped=experts,
        grid=LatentGrid(model.values // patch**2, model.pixels // patch, patch, time=model.time),
        policy=SimpleNamespace(trainable_parameters=lambda: [torch.empty(case.trained, device="meta")]),
        guidance_is_embedded=model.embeds_guidance,
        calls_per_velocity=lambda guidance: 1 if model.embeds_guidance else 1 + (guidance != 1),
        options=SimpleNamespace(is_low_memory=False, checkpointing=case.checkpointing, vae_tiling=False),
        clip=SimpleNamespace(patcher=SimpleNamespace(model_size=lambda: case.encoder_bytes)),
        vae=SimpleNamespace(patcher=SimpleNamespace(model_size=lambda: case.vae_bytes)),
        dtype=torch.bfloat16 if device == "cuda" else torch.float32,
        device=torch.device(device),
        planned=fitting.planned(graph, model.embeds_guidance, torch.device(device)),
        most_pictures=0,
        memo=Memos(),
    )


@pytest.mark.parametrize("name", ["z_image", "qwen_image", "krea2", "flux2_klein", "flux1", "wan22_5b", "wan22_14b"])
def test_what_is_counted_is_what_runs(name, monkeypatch):
    """The decision by the graph and its files, and the one by the model at hand, for each size and free memory."""
    graph, seen = json.loads((API / f"{name}.json").read_text(encoding="utf-8")), set()
    for device, gb, side in product(("cuda", "cpu"), (4, 8, 12, 16, 24, 32, 48, 80, 900), (256, 512, 1024)):
        size = {"width": side, "height": side}
        sized = {
            n: {**e, "inputs": {**e["inputs"], **{k: v for k, v in size.items() if k in e["inputs"]}}}
            for n, e in graph.items()
        }
        there = Machine("cuda:0" if device == "cuda" else "", gb * GB, gb * GB)
        monkeypatch.setattr(fitting, "here", lambda device, there=there: there)
        counted, _ = needs.read(sized, machine=there)
        sampler = next(e["inputs"] for e in sized.values() if e["class_type"] in TRAJECTORY_NODES)
        ran = NativeModel.case(loaded(sized, counted, device), SamplerSettings.from_inputs(sampler))
        assert ran.iteration == counted.iteration, (device, gb, side)
        for choice in fitting.Decisions.FIELDS:
            assert getattr(ran, choice) == getattr(counted.decided, choice), (choice, device, gb, side)
        ours, theirs = ran.needs.phases["the update"], counted.needs.phases["the update"]
        assert ours == pytest.approx(theirs, rel=0.01), (device, gb, side)
        assert ran.streamed == pytest.approx(counted.streamed, rel=0.01), (device, gb, side)
        seen.add(counted.decided.checkpointing)
    assert seen == ({True} if "wan" in name else {True, False}), "Wan's templates have it on"
    model = loaded(graph, counted, device)
    model.most_pictures, model.planned = 2, fitting.planned({**graph, "99": graph["17"]}, False, model.device)
    case = case_of(model, SamplerSettings.from_inputs(sampler))
    assert case.iteration.references == 2 and model.planned is None, "of two updates it is not known which is meant"
