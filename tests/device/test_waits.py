"""How often a GPU would have to wait for the host: once for each optimizer step, at the end of a rollout, and for the rewards."""

from __future__ import annotations

import pytest

from comfyui_otca.tests.device import conftest, pretend
from comfyui_otca.trainer import grpo, matching
from comfyui_otca.trainer.flow import load_flow_model
from comfyui_otca.trainer.types import MatchingSettings, NextRollout, UpdateSettings

pytestmark = [pytest.mark.anywhere, pytest.mark.usefixtures("accelerator")]

READING = "trainer/updates/optimizer.py"  # where `Tally.read` is

GRPO, MATCHING = (grpo.update, UpdateSettings), (matching.update, MatchingSettings)
UPDATES = {
    "plain": (GRPO, "flux", {}),
    "three epochs": (GRPO, "flux", {"epochs": 3, "ema_decay": 0.5, "clip_range": 0.1}),
    "kl in parts": (GRPO, "flux", {"kl_coefficient": 0.1, "batch_size": 3}),
    "kl in parts, guided": (GRPO, "sd3", {"kl_coefficient": 0.1, "batch_size": 3}),
    "dppo": (GRPO, "flux", {"objective": "dppo"}),
    "dppo, two epochs": (GRPO, "flux", {"objective": "dppo", "epochs": 2, "clip_range": 0.1}),
    "log_hinge, sampled": (GRPO, "flux", {"objective": "log_hinge", "sampled_steps": 1}),
    "two experts": (GRPO, "wan22", {}),
    "nft": (MATCHING, "flux", {"loss": "nft"}),
    "awm": (MATCHING, "flux", {"loss": "awm", "epochs": 2, "ema_decay": 0.5, "kl_coefficient": 0.1}),
    "dgpo": (MATCHING, "flux", {"loss": "dgpo", "batch_size": 4}),
    "dgpo of two experts": (MATCHING, "wan22", {"loss": "dgpo", "batch_size": 4}),
    "dpo, two epochs": (MATCHING, "flux", {"loss": "dpo", "epochs": 2, "sampled_steps": 0}),
}


@pytest.fixture(scope="module")
def models(tiny_folder):
    """models(family, …): one for all tests of this file, which has sampled already, and so has embedded its prompts."""
    made = {}

    def of(family, **load):
        key = family, *load.items()
        if key not in made:
            own = {"lora_rank": 2, "lora_alpha": 3.0, "dtype": "float32", "device": "pretend:0", **load}
            made[key] = load_flow_model(tiny_folder(family), **own)
            conftest.sampled(made[key], family)
        return made[key]

    return of


def waits_of(move, model, taken, settings):
    """What that update waited for."""
    advantages = conftest.judged(taken)
    with pretend.watched() as seen:
        figures = move(model, taken, advantages, settings)
    assert figures["gradient_norm"] > 0 and figures["policy/skipped_updates"] == 0
    return seen


@pytest.mark.parametrize("case", UPDATES)
def test_an_update_waits_once_a_step(case, models):
    (move, settings_of), family, changes = UPDATES[case]
    settings = settings_of(learning_rate=1e-3, **changes)
    seen = waits_of(move, models(family), conftest.sampled(models(family), family), settings)
    assert sum(seen.within(READING).values()) == sum(seen.waits.values()) == settings.epochs, seen.waits


def test_a_kept_graph_and_all_weights_wait_once_too(models):
    model = models("flux", training="full")
    model.memo.keep(NextRollout())  # as after the first update: graphs can be used
    taken = conftest.sampled(model, "flux", keep_graph=True)
    assert taken.kept
    seen = waits_of(grpo.update, model, taken, UpdateSettings(learning_rate=1e-4))
    assert sum(seen.waits.values()) == 1, seen.waits


def test_trajectories_of_an_earlier_policy_wait_once_too(models):
    model = models("flux")
    taken = conftest.sampled(model, "flux")
    for _ in range(2):
        seen = waits_of(grpo.update, model, taken, UpdateSettings(learning_rate=1e-3, clip_range=0.1))
    assert sum(seen.waits.values()) == 1, seen.waits


@pytest.mark.parametrize("changes", [{}, {"batch_size": 2}, {"kind": "ode", "shared_noise": False}], ids=str)
# Not Qwen-Image: where prompts are of different length, its network makes a number on the device, and waits for it. That of 2.1
# reads where the picture stands in the sequence.
@pytest.mark.parametrize("family", ["flux", "sd3", "wan22", "z-image", "krea2", "flux2-klein-base", "wan22-5b"])
def test_a_rollout_waits_at_the_end_of_each_part_alone(family, changes, models):
    """Latents, what came out and log-probs leave the device when a part has been sampled, and pictures when they are decoded.

    `on_step`, which looks whether to stop, and comes before every model call, costs no wait.
    """
    steps = []
    conftest.sampled(models(family), family, sampler=changes)  # prompts are embedded once, and tables of positions made
    with pretend.watched() as seen:
        taken = conftest.sampled(models(family), family, sampler=changes, on_step=lambda: steps.append(len(seen.waits)))
    parts = 2 if changes.get("batch_size") else 1
    leaving = 2 if changes.get("kind") == "ode" else 3  # there are no log-probs of a deterministic sampler
    assert len(steps) == parts * len(taken.stds) and steps[: len(taken.stds)] == [0] * len(taken.stds)
    at_the_end = {line: count for line, count in seen.waits.items() if line.startswith("trainer/rollout.py")}
    assert len(at_the_end) == leaving and set(at_the_end.values()) == {parts}
    assert sum(seen.within("trainer/families/pipeline.py").values()) == parts, "decoded pictures"
    assert seen.within("trainer/families/", "trainer/policy/") == seen.within("trainer/families/pipeline.py")
    assert sum(seen.waits.values()) == sum(at_the_end.values()) + sum(
        seen.within("trainer/families/", "trainer/policy/").values()
    ), seen.waits


def test_scores_of_a_network_are_read_once(models, accelerator):
    from comfyui_otca.trainer.rewards import reward_class
    from comfyui_otca.trainer.rewards.base import score

    reward, taken = reward_class("clip_t")(device=accelerator), conftest.sampled(models("flux"), "flux")
    score([reward], taken.images, ["a red circle"] * 4)  # which embeds the prompt
    with pretend.watched() as seen:
        score([reward], taken.images.clone(), ["a red circle"] * 4)
    assert [line for line in seen.waits if line.endswith(" to the host")] == list(
        seen.within("trainer/rewards/base.py")
    )
    assert sum(seen.waits.values()) == 3, "pixels and texts to the device, scores back"
