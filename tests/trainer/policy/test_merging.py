"""The adapter as part of the weights while sampling: the same trajectories, and weights that come back to the bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from comfyui_otca.tests.tiny import models as tiny
from comfyui_otca.trainer import rollout
from comfyui_otca.trainer.advantages import fuse
from comfyui_otca.trainer.credit.steps import tcd
from comfyui_otca.trainer.flow import load_flow_model
from comfyui_otca.trainer.grpo import UpdateSettings, update
from comfyui_otca.trainer.run.loop import only, trained_model
from comfyui_otca.trainer.types import Scores

SIZES = {"flux": {}} | {name: size | {"guidance": 4.5} for name, size in tiny.SIZES.items() if name != "wan21"}
TEXTS = ["a red circle on a blue background", "a green square"]
SCALE = 3.0 / 2.0  # alpha / rank


@pytest.fixture(scope="module", params=list(SIZES))
def family(request):
    return request.param


@pytest.fixture(scope="module")
def folder(family, tiny_folder):
    return tiny_folder(family)


@pytest.fixture
def load(folder, perturb):
    """load(): with an adapter that matters."""
    return lambda **options: perturb(load_flow_model(folder, lora_rank=2, lora_alpha=3.0, device="cpu", **options))


@pytest.fixture
def flux(flux_folder, perturb):
    """As `load`, where one family is enough."""
    return lambda **options: perturb(load_flow_model(flux_folder, lora_rank=2, lora_alpha=3.0, device="cpu", **options))


@pytest.fixture
def plain(family, small_settings):
    return small_settings(**SIZES[family])


def merging(settings):
    return replace(settings, merge_adapter=True)


def weights(model):
    return {f"{n}.{name}": p for n, network in model.experts.items() for name, p in network.named_parameters()}


def base_of(model):
    return {name: p.data.clone() for name, p in weights(model).items() if "lora_" not in name}


def assert_untouched(model, before):
    now = weights(model)
    assert before and all(torch.equal(now[name], value) for name, value in before.items())


def count_adapter_calls(model):
    calls = []
    for network in model.experts.values():
        for name, module in network.named_modules():
            if name.endswith("lora_A.default"):
                module.register_forward_pre_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    return calls


def judged(taken):
    values = torch.randn((len(taken.groups), 1), generator=torch.Generator().manual_seed(4))
    scores = Scores(values, ("a",), (1.0,), taken.groups, torch.empty(len(values), 0), (), ())
    return fuse(scores, tcd(taken.latents, taken.final, taken.trained), "weighted_advantages")


def updated(model, taken):
    """The gradient, and the metrics, of an update that moves nothing."""
    model.policy.version = 0
    metrics = update(
        model, taken, judged(taken), UpdateSettings(learning_rate=0.0, weight_decay=0.0, max_grad_norm=1e9)
    )
    model.policy.version = 0
    gradients = [p.grad for p in model.policy.trainable_parameters() if p.grad is not None]
    assert len(gradients) > 20
    return torch.cat([gradient.flatten().double() for gradient in gradients]), metrics


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_adapted_weight_is_the_sum_rounded_once(load, family, dtype):
    model = load(dtype=dtype)
    before, now = base_of(model), weights(model)
    adapted = [name.removesuffix(".lora_A.default.weight") for name in now if "lora_A" in name]
    assert len({name.split(".")[0] for name in adapted}) == (2 if family == "wan22" else 1)
    with model.policy.merged():
        for name in adapted:
            down, up = (now[f"{name}.lora_{part}.default.weight"] for part in "AB")
            total = before[f"{name}.base_layer.weight"].double() + SCALE * up.double() @ down.double()
            merged = now[f"{name}.base_layer.weight"]
            assert merged.dtype == getattr(torch, dtype)
            # Half a unit in the last place, and a little for the float32 of the sum.
            epsilon = torch.finfo(merged.dtype).eps
            assert ((merged.double() - total).abs() <= 0.501 * epsilon * total.abs() + 1e-6).all()
            assert not torch.equal(merged, before[f"{name}.base_layer.weight"])
        others = set(before) - {f"{name}.base_layer.weight" for name in adapted}
        assert others and all(torch.equal(now[name], before[name]) for name in others)
    assert_untouched(model, before)


def test_the_same_trajectories_and_gradients(load, plain, sample):
    model = load()
    before, calls = base_of(model), count_adapter_calls(model)
    taken = sample(model, plain)
    assert calls
    calls.clear()
    merged = sample(model, merging(plain))
    assert not calls
    assert_untouched(model, before)
    for name in ("latents", "final", "log_probs", "images"):
        torch.testing.assert_close(getattr(merged, name), getattr(taken, name), rtol=1e-5, atol=1e-5)
    assert not torch.equal(merged.latents, taken.latents), "another order of rounding"

    expected, _ = updated(model, taken)
    gradient, metrics = updated(model, merged)
    assert True in calls, "the update computes with the adapter"
    assert (gradient - expected).norm() <= 1e-5 * expected.norm()
    assert metrics["ratio/mean"] == 1 and metrics["clip/high"] == metrics["clip/low"] == 0
    assert 0 < metrics["ratio/drift"] < 1e-5
    # At the very same points nothing of the rollout's rounding is left.
    gradient, _ = updated(model, replace(taken, log_probs=merged.log_probs))
    assert torch.equal(gradient, expected)


def test_in_bfloat16_the_drift_of_rounding_is_reported(flux, small_settings, sample):
    model = flux(dtype="bfloat16")
    before = base_of(model)
    taken = sample(model, merging(small_settings()))
    assert_untouched(model, before)
    gradient, metrics = updated(model, taken)
    assert gradient.norm() > 0 and metrics["ratio/mean"] == 1
    by_hand = {}
    for position, step in enumerate(taken.trained):
        rows = torch.arange(len(taken.groups))
        with torch.no_grad():
            now = rollout.trained_transition(taken, step, rollout.velocity_at(model, taken, step, rows), rows)
        by_hand[step] = now.log_prob(taken.latents[:, step + 1]) - taken.log_probs[:, position]
    largest = max((difference.exp() - 1).abs().max().item() for difference in by_hand.values())
    assert metrics["ratio/drift"] == pytest.approx(largest, rel=1e-3) and 1e-5 < largest < 0.05


def test_an_exception_amid_the_rollout_leaves_the_weights(load, plain, sample):
    class Stop(BaseException):
        pass

    def stop():
        calls.append(None)
        if len(calls) == 3:
            raise Stop

    model, calls = load(), []
    before, expected = base_of(model), sample(model, plain).final
    with pytest.raises(Stop):
        sample(model, merging(plain), on_step=stop)
    assert_untouched(model, before)
    calls.clear()
    with pytest.raises(Stop):
        rollout.generate(model, TEXTS, merging(plain), [1, 2], stop)
    assert_untouched(model, before)
    assert torch.equal(sample(model, plain).final, expected)
    with model.policy.reference():
        pass


def test_evaluation_merges_what_is_on_at_that_moment(flux, small_settings):
    model, plain = flux(), small_settings()
    model.policy.optimizer_for(UpdateSettings(learning_rate=0.0, ema_decay=0.5))
    with torch.no_grad():
        for shadow in model.policy.ema.shadow_params:
            shadow *= 0.5

    def pictures(settings):
        return rollout.generate(model, TEXTS, settings, [1, 2])

    calls = count_adapter_calls(model)
    trained = pictures(plain)
    with model.policy.averaged():
        averaged = pictures(plain)
        calls.clear()
        torch.testing.assert_close(pictures(merging(plain)), averaged, rtol=0, atol=1e-5)
    assert not calls and (averaged - trained).abs().max() > 1e-3
    with model.policy.reference():
        assert torch.equal(pictures(merging(plain)), pictures(plain))
    assert torch.equal(pictures(plain), trained)


def test_the_node_hands_it_on(small_workflow, perturb):
    workflow = small_workflow({"OTCA_SDESampler": {"merge_adapter": True, "keep_graph": "off"}})
    calls = count_adapter_calls(perturb(trained_model(workflow)))
    sampler = only(workflow, "OTCA_SDESampler")
    assert workflow.run(targets=[sampler])[sampler][0].settings.merge_adapter and not calls
    workflow.run({(sampler, "merge_adapter"): False}, targets=[sampler])
    assert calls


def test_there_is_no_reference_within(flux):
    model = flux()
    before = base_of(model)
    with pytest.raises(RuntimeError, match="has no reference"), model.policy.merged(), model.policy.reference():
        pass
    assert_untouched(model, before)


def test_a_kept_graph_wins(flux, sample, small_settings):
    model = flux()
    expected, _ = updated(model, sample(model, small_settings(), keep_graph=True))
    taken = sample(model, merging(small_settings()), keep_graph=True)
    gradient, metrics = updated(model, taken)
    assert torch.equal(gradient, expected) and metrics["ratio/drift"] == 0


def test_a_fully_trained_model_has_nothing_to_merge(flux_folder, sample, small_settings):
    model = load_flow_model(flux_folder, training="full", device="cpu")
    taken = [sample(model, settings).latents for settings in (small_settings(), merging(small_settings()))]
    assert torch.equal(*taken)


def test_quantized_and_shared_weights_are_refused_and_left(flux, sample, small_settings):
    model = flux()
    layer = [module for name, module in model.transformer.named_modules() if name.endswith("base_layer")][-1]
    weight = layer.weight
    layer.weight = torch.nn.Parameter(torch.zeros(weight.shape, dtype=torch.uint8), requires_grad=False)
    before = base_of(model)
    with pytest.raises(ValueError, match=r"merge_adapter: the weights are quantized \(torch.uint8\).* Fix: "):
        sample(model, merging(small_settings()))
    assert_untouched(model, before)
    layer.weight = weight
    model.policy.is_sharded = True
    with pytest.raises(ValueError, match="merge_adapter: each process holds a part .* Fix: "):
        sample(model, merging(small_settings()))
