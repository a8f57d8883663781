"""Every family, and every option of sampler and update, on the pretend accelerator: nothing is in the wrong place, and what
comes out are the numbers of the CPU."""

from __future__ import annotations

import pytest
import torch

from comfyui_otca.tests.device import conftest, pretend
from comfyui_otca.trainer import rollout
from comfyui_otca.trainer.types import OLD_POLICIES

pytestmark = pytest.mark.anywhere

EPOCHS = {"epochs": 2, "ema_decay": 0.5}

CASES = {
    # families
    "flux": ("flux", {}),
    "sd3": ("sd3", {}),
    "wan21": ("wan21", {}),
    **{
        family: (family, {})
        for family in ("z-image", "qwen-image", "qwen-image-2.1", "flux2-klein-base", "flux2-dev", "krea2", "wan22-5b")
    },
    "wan22": ("wan22", {"update": {"batch_size": 3}}),
    "all weights": ("flux", {"load": {"training": "full"}, "update": {"kl_coefficient": 0.1, **EPOCHS}}),
    "offloaded": ("sd3", {"load": {"offload_encoders": True, "offload_vae": True, "vae_tiling": True}}),
    "checkpointing": ("flux", {"load": {"gradient_checkpointing": True}, "sampler": {"batch_size": 3}}),
    # the sampler
    "kept graph": ("sd3", {"keep_graph": True}),
    "merged": ("flux", {"sampler": {"merge_adapter": True, "batch_size": 3, "shared_noise": False}}),
    "flow_sde": ("flux", {"sampler": {"kind": "flow_sde"}}),
    "cps": ("flux", {"sampler": {"kind": "cps", "log_prob_norm": "squared_error", "window": (1, 1)}}),
    "flash": ("flux", {"sampler": {"window": (0, 1), "fraction_after_window": 0.5, "ode_solver": "adams_bashforth"}}),
    # GRPO Step
    "epochs": ("flux", {"update": {"kl_coefficient": 0.1, "batch_size": 3, **EPOCHS}}),
    "dppo": ("flux", {"update": {"objective": "dppo", "clip_range": 0.1, **EPOCHS}}),
    "log_hinge": ("flux", {"update": {"objective": "log_hinge", "sampled_steps": 1}}),
    "unconditional": ("sd3", {"update": {"unconditional_gradient": False, "batch_size": 3}}),
    # Matching Step
    **{
        f"{loss} {old}": ("flux", {"matching": {"loss": loss, "old_policy": old, "sampled_steps": 1}, "iterations": 2})
        for loss, old in zip(("nft", "awm", "dgpo"), OLD_POLICIES, strict=True)
    },
    "dpo": ("wan22", {"matching": {"loss": "dpo", "batch_size": 4, **EPOCHS}}),
    "pulls": (
        "sd3",
        {"matching": {"loss": "nft", "guidance": False, "kl_coefficient": 0.1, **EPOCHS}, "sampler": {"kind": "cps"}},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_numbers_are_the_cpus(case, trained, accelerator):
    family, options = CASES[case]
    expected, found = (trained(family, device, **options) for device in ("cpu", accelerator))
    assert found.model.device == torch.device(accelerator)
    for row, of_cpu in zip(found.rows, expected.rows, strict=True):
        assert row["gradient_norm"] > 0 and row["policy/skipped_updates"] == 0
        assert row == pytest.approx(of_cpu, rel=1e-2, abs=1e-4)
    for weights, of_cpu in zip(found.weights, expected.weights, strict=True):
        # AdamW's first step is the gradient's sign, which where it is nearly 0 rounding decides.
        assert ((weights - of_cpu).abs() < 1e-4).float().mean() > 0.97


@pytest.mark.parametrize("casts", [True, False], ids=["casting", "not casting"])
@pytest.mark.parametrize("training", ["lora", "full"])
def test_half_precision(training, casts, trained, accelerator):
    load = {"dtype": "bfloat16", "training": training}
    if training == "full" and not casts:
        pytest.skip("float32 weights and bfloat16 activations need autocast, on every device")
    with pretend.active(casts=casts):
        result = trained("flux", accelerator, load=load)
    assert {weights.dtype for weights in result.weights} == {torch.float32}
    assert result.rows[0]["gradient_norm"] > 0 and result.rows[0]["policy/skipped_updates"] == 0


@pytest.mark.parametrize("matching", [None, {"loss": "awm"}], ids=["grpo", "matching"])
@pytest.mark.parametrize("family", ["sd3", "wan22"])
def test_without_float64(family, matching, trained, accelerator):
    """As on Apple's GPUs, which diffusers' FLUX and our DiffusionNFT know by name; the others use no such numbers at all."""
    with pretend.active(float64=False):
        assert trained(family, accelerator, matching=matching).rows[0]["gradient_norm"] > 0


def test_a_gradient_that_is_not_finite_changes_nothing(trained, accelerator, monkeypatch):
    """The optimizer is told on the device, before the host knows."""
    result = trained("flux", accelerator, update=EPOCHS)
    policy = result.model.policy
    moments = {name: value.clone() for name, value in policy.optimizer_state().items()}
    monkeypatch.setattr(conftest, "judged", lambda taken, seed: _infinite(taken, seed))
    figures, _ = conftest.iteration(result.model, "flux", 1, update=EPOCHS)
    assert figures["policy/skipped_updates"] == 2 and policy.version == 1 and policy.nonfinite_in_a_row == 1
    pairs = zip(policy.trainable_parameters(), result.weights, strict=True)
    assert all(torch.equal(parameter.detach().cpu(), before) for parameter, before in pairs)
    assert all(torch.equal(value, moments[name]) for name, value in policy.optimizer_state().items())


def _infinite(taken, seed, judged=conftest.judged):
    from dataclasses import replace

    advantages = judged(taken, seed)
    return replace(advantages, step_advantage=torch.full_like(advantages.step_advantage, torch.inf))


def test_away_and_back_with_all_it_learned(trained, accelerator):
    """`leave` takes weights, moments, average and the old policy to main memory; an update goes on where it was."""
    stays, leaves = (trained("flux", accelerator, matching={"old_policy": "gradual", **EPOCHS}).model for _ in range(2))
    assert leaves.leave() and leaves.device.type == "cpu"
    policy = leaves.policy
    held = [
        *policy.trainable_parameters(),
        *policy.old,
        *policy.ema.shadow_params,
        *[value for state in policy.optimizer.state.values() for value in state.values()],
    ]
    assert {tensor.device.type for tensor in held} == {"cpu"}
    rows = [conftest.iteration(model, "flux", 5, matching=EPOCHS)[0] for model in (stays, leaves)]
    assert rows[0] == rows[1] and leaves.device == torch.device(accelerator)


def test_evaluation_credit_and_pictures(trained, tiny_folder, accelerator):
    """What looks at the model beside sampling and update."""
    model = trained("flux", accelerator).model
    taken = conftest.sampled(model, "flux", keep_predictions=True)
    assert taken.latents.device.type == taken.images.device.type == taken.predictions.device.type == "cpu"
    pictures = rollout.generate(model, ["a red circle", "b"], taken.settings, [1, 2])
    assert pictures.shape == (2, 16, 16, 3) and pictures.device.type == "cpu"
    assert model.encode(pictures).device.type == "cpu"
    assert model.graph_bytes(taken.settings) > 0
