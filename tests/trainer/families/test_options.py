"""Full fine-tuning, and the options of loading that save memory: what they change, and that they change no numbers."""

from __future__ import annotations

import pytest
import torch

from comfyui_otca.host import devices
from comfyui_otca.tests.training import judged
from comfyui_otca.trainer.flow import FlowModelError, load_flow_model
from comfyui_otca.trainer.grpo import UpdateSettings, update
from comfyui_otca.trainer.policy import lora
from comfyui_otca.trainer.policy import saved as weights
from comfyui_otca.trainer.policy.policy import LossScale

SIZE = {"width": 32, "height": 32, "guidance": 4.5}


@pytest.fixture(scope="module")
def folder(tiny_folder):
    return tiny_folder("sd3")


@pytest.fixture
def step(sample, small_settings):
    """step(model): one real update on made-up rewards; returns its metrics."""

    def run(model, **settings):
        taken = sample(model, small_settings(**SIZE))
        return update(model, taken, judged(taken), UpdateSettings(learning_rate=1e-3, **settings))

    return run


@pytest.fixture
def velocity(small_settings):
    """velocity(model): at the same noise, with guidance."""

    def at(model):
        x = torch.randn((2, *model.latent_shape(32, 32)), generator=torch.Generator().manual_seed(1))
        condition = model.condition(["a red circle", "a blue square"], small_settings(**SIZE))
        return model.velocity(x, 0.7, condition, 4.5)

    return at


def of(model):
    return {name: p.detach().clone() for name, p in model.transformer.named_parameters()}


def test_full_fine_tuning_changes_the_base_and_lora_does_not(folder, step):
    for training in ("full", "lora"):
        model = load_flow_model(folder, training=training, device="cpu", lora_rank=2)
        before = of(model)
        assert step(model)["gradient_norm"] > 0
        moved = {name for name, value in of(model).items() if not torch.equal(value, before[name])}
        base = {name for name in moved if "lora_" not in name}
        assert bool(base) == (training == "full") and moved
        assert model.policy.is_adapted == (training == "lora")


@torch.no_grad()
def test_the_reference_of_a_fully_trained_model_is_the_untrained_one(folder, step, velocity):
    model = load_flow_model(folder, training="full", device="cpu")
    before = velocity(model)
    with torch.enable_grad():
        assert step(model, kl_coefficient=0.1)["kl/reference"] > 0
    after = velocity(model)
    assert (after - before).abs().max() > 1e-5
    with model.policy.reference():
        torch.testing.assert_close(velocity(model), before, rtol=0, atol=0)
    torch.testing.assert_close(velocity(model), after, rtol=0, atol=0)


@pytest.mark.parametrize("training", ["lora", "full"])
def test_saved_loaded_and_exported_it_makes_the_same_pictures(folder, step, velocity, tmp_path, training):
    def load(path=folder):
        return load_flow_model(path, training=training, device="cpu", lora_rank=2, lora_alpha=3.0)

    model = load()
    step(model)
    weights.save(model, tmp_path, {})
    again = load()
    weights.load(again, tmp_path)
    torch.testing.assert_close(velocity(again), velocity(model), rtol=0, atol=1e-5)
    assert (velocity(load()) - velocity(model)).abs().max() > 1e-4
    again.export(tmp_path / "whole")
    torch.testing.assert_close(velocity(load(tmp_path / "whole")), velocity(model), rtol=0, atol=1e-5)


def test_nothing_saved_yet(folder, tmp_path):
    model = load_flow_model(folder, device="cpu")
    with pytest.raises(FileNotFoundError, match="has no lora.safetensors yet. Fix: "):
        weights.load(model, tmp_path)
    with pytest.raises(ValueError, match="it has no adapter to save. Fix: "):
        lora.save_named(load_flow_model(folder, training="full", device="cpu"), tmp_path, "name", {})


def test_what_is_trained_as_a_whole_is_float32_and_computed_in_bfloat16(folder, step, velocity):
    model = load_flow_model(folder, training="full", device="cpu", dtype="bfloat16")
    assert {p.dtype for p in model.policy.trainable_parameters()} == {torch.float32} and model.dtype == torch.bfloat16
    assert step(model)["gradient_norm"] > 0
    linear = model.transformer.transformer_blocks[0].attn.to_q
    seen = []
    linear.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    velocity(model)
    assert seen == [torch.bfloat16]


def test_gradient_checkpointing_stores_less_and_computes_the_same(folder, perturb, small_settings, velocity):
    plain, saving = (
        perturb(load_flow_model(folder, device="cpu", lora_rank=2, gradient_checkpointing=on)) for on in (False, True)
    )
    for model in (plain, saving):
        velocity(model).square().mean().backward()
    for one, other in zip(saving.policy.trainable_parameters(), plain.policy.trainable_parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-6)
    settings = small_settings(**SIZE)
    assert saving.graph_bytes(settings) < 0.7 * plain.graph_bytes(settings)


def test_with_checkpointing_the_decoders_blocks_are_computed_again_with_the_same_gradient(folder, small_settings):
    kept, gradients = [], []
    for on in (False, True):
        model = load_flow_model(folder, device="cpu", lora_rank=2, gradient_checkpointing=on)
        shape = model.sample_shape(["a red circle"], small_settings(**SIZE))
        latents = torch.randn(1, *shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
        sizes = []
        with (
            torch.autograd.graph.saved_tensors_hooks(lambda t, sizes=sizes: sizes.append(t.nbytes) or t, lambda t: t),
            model.decoder(["a red circle"]) as decode,
        ):
            pictures = decode(latents)
        pictures.square().sum().backward()
        kept.append(sum(sizes))
        gradients.append(latents.grad)
    assert torch.equal(*gradients) and gradients[0].any()
    assert kept[1] < 0.3 * kept[0]


def test_offloaded_encoders_visit_only_to_embed(folder, monkeypatch, small_settings):
    model = load_flow_model(folder, device="cpu", offload_encoders=True)
    encoder, moves = model.pipeline.text_encoder_3, []
    assert encoder not in model._networks() and model.transformer in model._networks()
    monkeypatch.setattr(encoder, "to", lambda device: moves.append(("encoder", str(device))))
    monkeypatch.setattr(model.transformer, "to", lambda device: moves.append(("transformer", str(device))))
    expected = load_flow_model(folder, device="cpu").embeddings(["a red circle"]).tensors
    found = model.embeddings(["a red circle"]).tensors
    assert moves == [("encoder", "cpu")] * 2, "to the model's device, which is the CPU here, and back"
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=0)
    model.embeddings(["a red circle"])
    assert len(moves) == 2, "a prompt that is known needs no encoder"
    monkeypatch.setattr(devices, "free_memory", lambda device: 1)
    model.embeddings(["another prompt"])
    order = ["transformer", "encoder", "encoder", "transformer"]
    assert [name for name, _ in moves[2:]] == order, "without room for both, the transformer steps aside"


def test_an_offloaded_autoencoder_visits_only_to_decode_and_encode_and_tiles_if_asked_to(folder, monkeypatch):
    model = load_flow_model(folder, device="cpu", offload_vae=True)
    vae, moves = model.pipeline.vae, []
    assert vae not in model._networks() and model.pipeline.text_encoder in model._networks()
    monkeypatch.setattr(vae, "to", lambda device: moves.append(str(device)))
    latents = torch.randn((3, *model.latent_shape(32, 32)), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model.decode(latents, 2), load_flow_model(folder, device="cpu").decode(latents, 2))
    assert moves == ["cpu", "cpu"], "to the model's device, which is the CPU here, and back"
    pictures = torch.rand((3, 32, 32, 3), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model.encode(pictures, 2), load_flow_model(folder, device="cpu").encode(pictures, 2))
    assert moves == ["cpu"] * 4
    assert load_flow_model(folder, device="cpu", vae_tiling=True).pipeline.vae.use_tiling and not vae.use_tiling


def test_float16_scales_the_loss_and_gives_the_same_gradient(folder, perturb, step):
    """In float16 the smallest number is 6e-8, and many of these gradients are below it."""
    gradients = {}
    for dtype in ("float32", "float16"):
        model = perturb(load_flow_model(folder, device="cpu", lora_rank=2, dtype=dtype))
        metrics = step(model, max_grad_norm=1e9)
        expected = 65536 if dtype == "float16" else 1
        assert metrics["policy/skipped_updates"] == 0 and model.policy.loss_scale.value == expected
        found = [p.grad.flatten() for p in model.policy.trainable_parameters() if p.grad is not None]
        gradients[dtype] = torch.cat(found)
    cosine = torch.nn.functional.cosine_similarity(gradients["float16"], gradients["float32"], dim=0)
    assert cosine > 0.99
    assert gradients["float16"].norm() == pytest.approx(gradients["float32"].norm().item(), rel=0.05)


def test_a_scale_that_is_too_large_is_halved_and_the_update_dropped(folder, perturb, step):
    model = perturb(load_flow_model(folder, device="cpu", lora_rank=2, dtype="float16"))
    model.policy.loss_scale.value = 2.0**60
    before = [p.detach().clone() for p in model.policy.trainable_parameters()]
    assert step(model)["policy/skipped_updates"] == 1 and model.policy.loss_scale.value == 2.0**59
    assert all(torch.equal(p, b) for p, b in zip(model.policy.trainable_parameters(), before, strict=True))


def test_a_scale_that_has_held_is_doubled_again():
    scale = LossScale(8.0)
    for _ in range(LossScale.PATIENCE - 1):
        scale.held()
    assert scale.value == 8
    scale.held()
    assert (scale.value, scale.good) == (16, 0)
    scale.value = LossScale.MOST
    for _ in range(2 * LossScale.PATIENCE):
        scale.held()
    assert scale.value == LossScale.MOST
    plain = LossScale.of(torch.bfloat16)
    plain.held(), plain.overflowed()
    assert plain.value == 1


def test_sharding_needs_a_newer_torch(folder, monkeypatch):
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.6.0+cpu"))
    with pytest.raises(FlowModelError, match="shard needs torch 2.7, here is 2.6.0.*Fix: update torch"):
        load_flow_model(folder, device="cpu", shard=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "no_such_backend"}, "attention 'no_such_backend' cannot be had here.*Fix: auto"),
        (
            {"training": "full", "quantize": "8bit"},
            "quantize = 8bit freezes the weights that training = full change.*Fix",
        ),
        ({"training": "half"}, "training must be one of"),
        ({"shard": True, "quantize": "4bit"}, "quantize = 4bit cannot be spread over processes.*Fix: quantize = none"),
        (
            {"memory": "low", "compile": True},
            "cannot leave the device with compile. Fix: memory = auto on Model Memory",
        ),
        ({"attention": "_native_math"}, "SD3Transformer2DModel computes attention in one way only. Fix: auto"),
    ],
)
def test_what_cannot_be_had_here(folder, options, message):
    with pytest.raises(ValueError, match=message):
        load_flow_model(folder, device="cpu", **options)


def test_an_attention_backend_is_one_models_own(flux_folder):
    """diffusers has one for the whole process too, which a network without its own takes: another model's, for example."""
    from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

    before = _AttentionBackendRegistry.get_active_backend()[0]
    chosen = load_flow_model(flux_folder, device="cpu", attention="_native_math")
    [own] = {block.attn.processor._attention_backend for block in chosen.transformer.transformer_blocks}
    assert own == AttentionBackendName._NATIVE_MATH != before
    assert _AttentionBackendRegistry.get_active_backend()[0] == before
    other = load_flow_model(flux_folder, device="cpu")
    assert all(block.attn.processor._attention_backend is None for block in other.transformer.transformer_blocks)


def test_every_use_of_a_block_has_its_compiled_graph(folder, tiny_folder):
    """Seen before: the ninth graph of a block, as that of merged sampling, met torch's limit and ran uncompiled for good."""
    with pytest.raises(FlowModelError, match="no blocks of SD3Transformer2DModel. Fix: switch it off"):
        load_flow_model(folder, device="cpu", lora_rank=2, compile=True)
    # Not by monkeypatch, after which the option is gone: it takes away what stands in no __dict__.
    with torch._dynamo.config.patch(recompile_limit=8):
        load_flow_model(tiny_folder("flux-dev"), device="cpu", lora_rank=2, compile=True)
        # gradient, samples, adapter, first block or a later one
        assert torch._dynamo.config.recompile_limit >= 2 * 2 * 3 * 2
