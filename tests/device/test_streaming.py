"""Blocks that are out: what of them is on the pretend device, what is moved, and when, counted by its allocations and copies.

The counter knows nothing of `families/streaming.py`: a buffer is what has the numbers of a block's weights in main memory.
"""

from __future__ import annotations

import json
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from comfyui_otca.host import devices
from comfyui_otca.tests.device import conftest, pretend
from comfyui_otca.tests.tiny import models as tiny
from comfyui_otca.tests.tiny import rewards
from comfyui_otca.trainer.families.options import LoadOptions
from comfyui_otca.trainer.families.streaming import lists
from comfyui_otca.trainer.flow import load_flow_model
from comfyui_otca.trainer.memory.blueprint import of_folder
from comfyui_otca.trainer.memory.case import ENCODING, Judge, Machine
from comfyui_otca.trainer.memory.rehearsal import PipelineCase
from comfyui_otca.trainer.policy.adapters import Adapter
from comfyui_otca.trainer.rewards.base import score_stack, score_with_gradient
from comfyui_otca.trainer.rewards.clip import ClipT

pytestmark = [pytest.mark.anywhere, pytest.mark.usefixtures("accelerator")]

WORKFLOWS = Path(__file__).resolve().parents[2] / "workflows" / "api"
DEVICE = "pretend:0"  # whose name torch knows only while it is there
DEEP = {
    "flux": (tiny.flux_dev, {"num_layers": 3, "num_single_layers": 5}),
    "sd3": (tiny.stable_diffusion_3, {"num_layers": 8}),
    "z-image": (tiny.z_image, {"n_layers": 4}),
    "wan22": (tiny.FAMILIES["wan22"], {"num_layers": 4}),
}
CALLS = {
    "flux": 1,
    "sd3": 1,
}  # of the network for a velocity; one after another for the negative prompt, where not said


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """deep(family): a checkpoint with so many blocks."""
    place = tmp_path_factory.mktemp("deep")

    def of(family):
        folder = place / family
        if not folder.is_dir():
            make, changes = DEEP[family]
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                pipeline = make()
                for name in ("transformer", "transformer_2"):
                    if old := getattr(pipeline, name, None):
                        options = {key: value for key, value in old.config.items() if not key.startswith("_")}
                        pipeline.register_modules(**{name: tiny._awake(type(old)(**options | changes), by=0.02)})
            pipeline.save_pretrained(folder)
        return folder

    return of


@pytest.fixture
def models(deep):
    """models(family, count, …): with so many blocks out, None: all of them; else the same."""

    def of(family, count=None, **load):
        usual = {"lora_rank": 2, "lora_alpha": 3.0, "dtype": "float32", "device": DEVICE}
        model = load_flow_model(deep(family), **usual | {"gradient_checkpointing": True} | load)
        stream(model, len(blocks_of(model)) if count is None else count)
        return model

    return of


def stream(model, count):
    model.streaming = lambda graph, guidance_is_embedded: (count, 0, "")
    model.stream(None, torch.device(DEVICE))


def blocks_of(model):
    return within(model.experts.values())


def within(networks):
    return [block for network in networks for _, blocks in lists(network) for block in blocks]


def frozen(block):
    return [weight for name, weight in block.named_parameters() if "lora_" not in name]


class Watched(TorchDispatchMode):
    """Notes, of the blocks that are out, when each is called and when its weights are copied to the device.

    Attributes:
        events: ("use" or "copy", number of the block), in turn.
        peak: the most bytes of their weights that were on the device at once.
    """

    def __init__(self, blocks):
        super().__init__()
        self.sizes, self.events, self.now, self.peak = {}, [], 0, 0
        self._numbers = {}
        for block in blocks:
            weights = frozen(block)
            if {weight.device.type for weight in weights} == {"cpu"}:
                number = self._numbers[min(weight.data_ptr() for weight in weights)] = len(self.sizes)
                self.sizes[number] = sum(weight.nbytes for weight in weights)
                block.register_forward_pre_hook(lambda *_, number=number: self.events.append(("use", number)))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        source = args[1] if func is pretend.COPY else None
        number = None if source is None else self._numbers.get(source.data_ptr())
        if number is not None and source.device.type == "cpu":
            assert args[2:] == (True,) and pretend._is_pinned(source), "the host would wait"
            self.events.append(("copy", number))
            self.now += self.sizes[number]
            self.peak = max(self.peak, self.now)
            weakref.finalize(args[0].untyped_storage(), self._freed, self.sizes[number])
        return result

    def _freed(self, size):
        self.now -= size

    def moved(self):
        return sum(self.sizes[number] for what, number in self.events if what == "copy")

    def used(self):
        """The lower bound: each block that is called comes once."""
        return sum(self.sizes[number] for what, number in self.events if what == "use")

    def ahead(self):
        """The share of calls whose weights came before."""
        late = sum(
            what == "copy" and before == ("use", number)
            for before, (what, number) in zip(self.events, self.events[1:], strict=False)
        )
        return 1 - late / sum(what == "use" for what, _ in self.events)

    def two(self):
        """Bytes of the two largest blocks."""
        return sum(sorted(self.sizes.values())[-2:])


def call(model, family, gradient):
    """One call of the model, with a backward pass or without; guided where it is classifier-free."""
    settings = conftest.SamplerSettings(**{"kind": "ode", "steps": 2, **conftest.SIZES[family], "negative_prompt": "a"})
    condition = model.condition(["a red circle"], settings)
    shape = model.latent_shape(settings.height, settings.width, settings.frames)
    x = torch.randn(1, *shape, generator=torch.Generator().manual_seed(0)).to(model.device)
    with torch.set_grad_enabled(gradient), model.autocast():
        velocity = model.velocity(x, 0.5, condition, settings.guidance)
    if gradient:
        velocity.sum().backward()
    return velocity


@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "and back"])
@pytest.mark.parametrize("family", DEEP)
def test_two_blocks_are_there_and_each_comes_once_a_pass_before_its_turn(family, gradient, models):
    model = models(family)
    with Watched(blocks_of(model)) as seen:
        call(model, family, gradient)  # it begins with nothing there, and shows the order
        seen.events.clear()
        call(model, family, gradient)
    calls = CALLS.get(family, 2) / len(model.experts)  # of which one is asked
    assert sum(what == "use" for what, _ in seen.events) == len(seen.sizes) * calls * (1 + gradient)
    assert seen.peak <= seen.two()
    assert seen.moved() <= 1.05 * seen.used()
    assert seen.ahead() >= 0.95
    assert {weight.device.type for block in blocks_of(model) for weight in frozen(block)} == {"cpu"}


ITERATIONS = {
    "flux": ("flux", {}),
    "kept graphs, bfloat16": ("sd3", {"keep_graph": True, "dtype": "bfloat16"}),
    "merged, bfloat16": ("sd3", {"sampler": {"merge_adapter": True}, "dtype": "bfloat16"}),
    "two experts": ("wan22", {"update": {"batch_size": 3, "ema_decay": 0.5}}),
    "half of it without gradient": ("z-image", {"update": {"unconditional_gradient": False}}),
    "a reference": ("flux", {"matching": {"loss": "nft", "old_policy": "gradual", "kl_coefficient": 0.1}}),
}


def iterations(model, family, sampler=None, update=None, matching=None, keep_graph=False):
    rows = [conftest.iteration(model, family, seed, sampler, update, matching, keep_graph)[0] for seed in range(2)]
    return rows, [parameter.detach().cpu() for parameter in model.policy.trainable_parameters()]


@pytest.mark.parametrize("case", ITERATIONS)
def test_iterations_are_those_of_resident_blocks_to_the_bit(case, models):
    family, options = ITERATIONS[case]
    options = dict(options)
    load = {"dtype": options.pop("dtype", "float32")}
    expected, weights = iterations(models(family, 0, **load), family, **options)
    for count in (None, 3)[: 1 + (case == "flux")]:
        model = models(family, count, **load)
        with Watched(blocks_of(model)) as seen:
            rows, trained = iterations(model, family, **options)
        assert rows == expected and all(map(torch.equal, trained, weights))
        assert len(seen.sizes) == (count or len(blocks_of(model)))
        if count is None:
            assert seen.peak <= seen.two()
            assert seen.moved() <= 1.05 * seen.used()
            assert seen.ahead() >= 0.95
    assert all(row["gradient_norm"] > 0 for row in expected), expected


def test_what_is_moved_or_put_on_later_leaves_the_blocks_where_they_are(models):
    """Away and back, another adapter, a fresh one, and other blocks: the results stay."""
    stays, moved = models("flux", 0), models("flux")
    guide = Adapter(2, 2.0, seed=5)
    for model in (stays, moved):
        conftest.iteration(model, "flux", 0)
        assert model.leave() and model.device.type == "cpu"
        model.come_back()
        model.policy.add_adapter(guide, "guide")
        conftest.sampled(model, "flux")
        model.policy.remove_adapters(["guide"])
        model.make_fresh()
    assert {weight.device.type for block in blocks_of(moved) for weight in frozen(block)} == {"cpu"}
    assert {str(weight.device) for weight in moved.policy.trainable_parameters()} == {DEVICE}
    expected, _ = conftest.iteration(stays, "flux", 0)
    for count in (None, 2, 0):
        if count is not None:
            stream(moved, count)
            moved.make_fresh()
        assert conftest.iteration(moved, "flux", 0)[0] == expected
    assert {str(weight.device) for block in blocks_of(moved) for weight in frozen(block)} == {DEVICE}


@pytest.mark.parametrize("gradient", [False, True])
def test_stopped_within_a_block_all_is_as_before(gradient, models):
    """As by Stop: what was there is let go of, and the next call is right."""

    class Stopped(Exception):
        pass

    def stop(*args):
        raise Stopped

    model, expected = models("flux"), call(models("flux", 0), "flux", gradient=False)
    block = blocks_of(model)[4]
    inner = next(module for module in block.modules() if isinstance(module, torch.nn.Linear))
    hook = inner.register_forward_hook(stop)
    with Watched(blocks_of(model)) as seen:
        with pytest.raises(Stopped):
            call(model, "flux", gradient=gradient)
        hook.remove()
        assert {weight.device.type for weight in frozen(block)} == {"cpu"}
        assert torch.equal(call(model, "flux", gradient=False), expected)
    assert seen.peak <= seen.two()


def test_without_room_for_the_next_block_all_is_as_before(models, monkeypatch):
    """Merged, too: what is not in main memory would be taken for a block that stays."""
    model, stays = models("sd3"), models("sd3", 0)
    call(stays, "sd3", gradient=False)  # what was read once is not read again, in whatever batch
    fetch, calls = devices.fetch, iter(range(10**6))

    def short(target, source):
        if next(calls) == 4:
            raise MemoryError
        return fetch(target, source)

    monkeypatch.setattr(devices, "fetch", short)
    with pytest.raises(MemoryError):
        call(model, "sd3", gradient=False)
    assert {weight.device.type for block in blocks_of(model) for weight in frozen(block)} == {"cpu"}
    samples = [conftest.sampled(one, "sd3", sampler={"merge_adapter": True}).latents for one in (model, stays)]
    assert torch.equal(*samples)


def test_blocks_that_could_not_all_be_put_out_are_put_out_the_next_time(models, monkeypatch):
    """And never is more of main memory taken than by the blocks that were out and one that is copied."""
    model, expected = models("flux"), call(models("flux", 0), "flux", gradient=False)
    make, held, most = devices.buffer_for, [], []
    fails = iter([False, True] + 100 * [False])

    def counted(device, size):
        if next(fails):
            raise MemoryError
        buffer = make(device, size)
        held.append((weakref.ref(buffer.untyped_storage()), size))
        most.append(sum(bytes_ for storage, bytes_ in held if storage() is not None))
        return buffer

    monkeypatch.setattr(devices, "buffer_for", counted)
    with pytest.raises(MemoryError):
        stream(model, 7)
    stream(model, 7)
    assert sum({weight.device.type for weight in frozen(block)} == {"cpu"} for block in blocks_of(model)) == 7
    assert torch.equal(call(model, "flux", gradient=False), expected)
    most.clear()
    stream(model, 6)
    sizes = [sum(weight.nbytes for weight in frozen(block)) for block in blocks_of(model)]
    assert max(most) <= 1.05 * (sum(sizes) + max(sizes)), (max(most), sizes)


def test_beside_blocks_that_are_out_as_many_graphs_are_kept_as_were_counted(models):
    model, settings = models("flux", 0, gradient_checkpointing=False), conftest.SamplerSettings(width=32, height=32)
    free = model.kept_calls(settings, [1, 1, 1])
    model.streaming = lambda graph, guidance_is_embedded: (2, 1, "")
    model.stream(None, torch.device(DEVICE))
    assert free == 3 and model.kept_calls(settings, [1, 1, 1]) == 1 and model.transformer.is_gradient_checkpointing
    stream(model, 0)
    assert model.kept_calls(settings, [1, 1, 1]) == 3 and not model.transformer.is_gradient_checkpointing


def test_blocks_that_are_not_computed_again_are_not_brought(models):
    """With an adapter on the last blocks alone the backward pass ends there, and then a forward pass begins."""
    model = models("flux", lora_targets="single_transformer_blocks.3.attn.to_q")
    with Watched(blocks_of(model)) as seen:
        for _ in range(3):
            seen.events.clear()
            call(model, "flux", gradient=True)
    assert sum(what == "use" for what, _ in seen.events) == 8 + 2
    assert sum(what == "copy" for what, _ in seen.events) == 8 + 2 and seen.ahead() == 1


def test_memory_decides_before_loading_and_by_the_graph(deep, monkeypatch):
    """As many are out as the count says: at first by what is held, then by what the graph is about to compute."""
    graph = json.loads((WORKFLOWS / "otca.json").read_text(encoding="utf-8"))
    free = {"bytes": 0}
    for name in ("free_memory", "available"):
        monkeypatch.setattr(devices, name, lambda device: free["bytes"])
    usual = {"lora_rank": 2, "dtype": "float32", "device": DEVICE}

    def out_of(model):
        assert {str(p.device) for p in model.policy.trainable_parameters()} == {DEVICE}
        return sum(weight.device.type == "cpu" for block in blocks_of(model) for weight in frozen(block)[:1])

    held = sum(file.stat().st_size for file in deep("flux").rglob("*.safetensors"))
    free["bytes"] = held
    model = load_flow_model(deep("flux"), **usual)
    assert 0 < out_of(model) < 8
    free["bytes"] = 10**12
    model.make_room(graph)
    assert out_of(model) == 0 and "fits" in model.memory_line(conftest.SamplerSettings())
    model = load_flow_model(deep("flux"), **usual | {"memory": "low"})
    assert out_of(model) == 8
    model.make_room(graph)
    assert out_of(model) == 8 and "8 of 8 blocks" in model.memory_line(conftest.SamplerSettings())
    model = load_flow_model(deep("flux"), **usual)
    free["bytes"] = held
    model.make_room(graph)
    assert out_of(model) == 0, "there is so much that nothing was counted"


def test_a_whole_model_is_exported_from_where_its_weights_are(models, tmp_path):
    saved = []
    for count in (0, None):
        model = models("flux", count)
        conftest.iteration(model, "flux", 0)
        model.leave()  # a sum of the device may be rounded otherwise
        model.come_back() if count is None else None
        model.export(tmp_path / str(count))
        saved.append(load_file(next((tmp_path / str(count) / "transformer").glob("*.safetensors"))))
    assert saved[0].keys() == saved[1].keys() and all(torch.equal(saved[0][key], saved[1][key]) for key in saved[0])


# -- text encoders, which visit the device -------------------------------------------------------------------------------

T5_LAYERS = 40


@pytest.fixture
def read(monkeypatch):
    """read(model, texts, bytes): the embeddings, where so much is free on the device beside what is there when nobody visits."""

    def embeddings(model, texts, free):
        here = [network for name, network in model.components().items() if name not in model.visitors]

        def left(device):
            return free - sum(p.nbytes for n in here for p in n.parameters() if p.device.type != "cpu")

        with monkeypatch.context() as patch:
            patch.setattr(devices, "free_memory", left)
            return {name: tensor.cpu() for name, tensor in model.embeddings(texts).tensors.items()}

    return embeddings


def encoders(model):
    return list(model.components("text_encoder").values())


def weights_in(networks):
    return {id(p): p for network in networks for p in network.parameters()}.values()


@pytest.mark.parametrize(
    "family", ["flux-dev", "sd3", "wan22", "z-image", "qwen-image", "flux2-klein", "flux2-dev", "krea2"]
)
def test_encoders_whose_blocks_come_read_as_whole_ones_to_the_bit(family, tiny_folder, read):
    """Weights that several modules share, as T5's embeddings, and lists within lists; what learned and what computes stays."""
    usual = {"lora_rank": 2, "device": DEVICE, "dtype": "bfloat16", "offload_encoders": True}
    whole, streamed = (load_flow_model(tiny_folder(family), **usual) for _ in range(2))
    texts = ["a red circle", "!"]
    expected, got = read(whole, texts, 10**12), read(streamed, texts, 1)
    assert expected.keys() == got.keys() and all(torch.equal(expected[name], got[name]) for name in got)
    assert "forward" in set.intersection(*(set(vars(block)) for block in within(encoders(streamed))))
    assert whole.encoders_out is None and {str(p.device) for p in weights_in(streamed.experts.values())} == {DEVICE}
    assert {p.device.type for p in weights_in(encoders(streamed))} == {"cpu"}


@pytest.fixture
def wordy(tmp_path):
    """A FLUX whose T5 has many blocks."""
    from transformers import T5EncoderModel

    pipeline = tiny.flux_dev()
    config = pipeline.text_encoder_2.config
    config.num_layers = T5_LAYERS
    pipeline.register_modules(text_encoder_2=T5EncoderModel(config).eval())
    pipeline.save_pretrained(tmp_path / "wordy")
    return tmp_path / "wordy"


def test_two_blocks_of_an_encoder_are_there_and_each_comes_once_a_pass(wordy, read):
    model = load_flow_model(wordy, lora_rank=2, device=DEVICE, offload_encoders=True)
    blocks = within(encoders(model))
    first = [weakref.ref(weight) for block in blocks for weight in frozen(block)]
    read(model, ["one"], 1)
    assert not any(weight() is not None for weight in first), "main memory would hold them twice"
    with Watched(blocks) as seen:
        read(model, ["two"], 1)
    assert sum(what == "use" for what, _ in seen.events) == len(blocks) == 2 + T5_LAYERS
    assert seen.peak <= seen.two() and seen.moved() <= 1.05 * seen.used() and seen.ahead() >= 0.95


def test_encoders_stream_where_the_count_says_so(wordy, read):
    """The bytes of them that are on the device at once, with so much memory: whole, whole without the others, or few."""
    model = load_flow_model(wordy, lora_rank=2, device=DEVICE, dtype="float32", offload_encoders=True)
    options, networks = LoadOptions(offload_encoders=True), encoders(model)
    case = PipelineCase(of_folder(wordy), Adapter(2, 16.0), options, torch.float32, None, reserve=0)
    whole, seen = sum(p.nbytes for p in weights_in(networks)), []
    beside = case.estimate().totals[ENCODING] - whole

    def look(*_):
        there = model.encoders_out.there.values() if model.encoders_out else ()
        tensors = [*weights_in(networks), *(buffer for buffer, _ in there)]
        seen.append(sum(tensor.nbytes for tensor in tensors if tensor.device.type != "cpu"))

    for block in within(networks):
        block.register_forward_hook(look)
    for share in (10, 1.2, 0.8, 0.2, 10):
        has = round(beside + share * whole)
        counted = replace(case, machine=Machine(DEVICE, has)).needs.phases[ENCODING]["text encoder"]
        seen.clear()
        read(model, [f"number {share} {model.encoders_out}"], has - beside)
        assert max(seen) == pytest.approx(counted, rel=0.001), share
        assert (model.encoders_out is not None) == (max(seen) < 0.2 * whole) == (share < 1)


def test_encoders_that_cannot_be_put_out_leave_the_others_where_they_were(wordy, read, monkeypatch):
    model = load_flow_model(wordy, lora_rank=2, device=DEVICE, offload_encoders=True)

    def full(device, size):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(devices, "buffer_for", full)
        with pytest.raises(MemoryError):
            read(model, ["one"], 1)
    assert str(model.device) == DEVICE and {p.device.type for p in weights_in(encoders(model))} == {"cpu"}
    read(model, ["one"], 1)
    assert model.encoders_out is not None


# -- judges, which leave between two uses --------------------------------------------------------------------------------


@pytest.fixture
def clip_t(tmp_path):
    """A CLIP-T whose towers have many blocks."""
    folder = rewards.clip(tmp_path / "clip", text=(32, 30, 2), vision=(64, 30, 2))
    return ClipT(model=str(folder), device=DEVICE, offload=True)


def judged(clip_t):
    """One look at pictures, and the way back to them."""
    seen = torch.rand(2, 40, 40, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    score_with_gradient(clip_t, seen, ["a red circle", "a blue square"]).sum().backward()
    return seen.grad


def test_two_blocks_of_a_judge_are_there_and_each_comes_once_a_pass(clip_t, monkeypatch):
    monkeypatch.setattr(devices, "free_memory", lambda device: 1)
    judged(clip_t)
    clip_t.rest()
    blocks = within([clip_t.network.model])
    with Watched(blocks) as seen:
        judged(clip_t)
        clip_t.rest()
    assert {p.device.type for p in clip_t.network.model.parameters()} == {"cpu"} and seen.now == 0
    assert sum(what == "use" for what, _ in seen.events) == 30, "a block that is computed again is no call"
    assert seen.peak <= seen.two() and seen.moved() <= 1.05 * 2 * seen.used()


@pytest.mark.parametrize("times", [1.9, 2.1])
def test_a_judge_streams_where_the_count_says_so(clip_t, times, monkeypatch):
    assert clip_t.network.device.type == "cpu", "it waits for its first use, too"
    judge = Judge(sum(p.nbytes for p in clip_t.network.model.parameters()), offload=True)
    monkeypatch.setattr(devices, "free_memory", lambda device: times * judge.bytes)
    asked = []
    monkeypatch.setattr(devices, "ask_for_room", lambda size, device: asked.append(size))
    for _ in range(2):
        clip_t.rest()
        judged(clip_t)
    assert asked[0] == 2 * judge.bytes and (asked[1] < 0.4 * asked[0]) == (times < 2), "of ComfyUI, for what comes"
    there = sum(p.nbytes for p in clip_t.network.model.parameters() if p.device.type != "cpu")
    assert (there < judge.bytes) == (judge.there(times * judge.bytes) < judge.bytes) == (times < 2)
    monkeypatch.setattr(devices, "free_memory", lambda device: 10 * judge.bytes)
    clip_t.rest()
    judged(clip_t)
    assert clip_t.network.blocks_out is None, "there is room again"


def test_judges_of_a_stack_are_there_one_after_another(tmp_path):
    """As they are counted. Two that ask one network have it there once."""
    folders = [str(rewards.clip(tmp_path / name)) for name in ("one", "other")]
    stack = [ClipT(f"{n}{i}", model=n, device=DEVICE, offload=True) for i in range(2) for n in folders]
    networks, there = [stack[0].network, stack[1].network], []
    for network in networks:
        network.model.vision_model.register_forward_hook(
            lambda *_: there.append([each.device.type != "cpu" for each in networks])
        )
    pictures = torch.rand(2, 40, 40, 3, generator=torch.Generator().manual_seed(0))
    for order in (stack[::2] + stack[1::2], stack):
        there.clear()
        score_stack(order, pictures.clone(), ["a"], torch.tensor([0, 0]))
        assert [sum(each) for each in there] == ([1, 1] if order is not stack else [1, 2])
    assert {network.device.type for network in networks} == {"cpu"}
