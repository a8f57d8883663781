"""Stop, pressed at any moment of an update: each function is a question, and returns figures."""

from __future__ import annotations

from functools import partial

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from comfyui_otca.host import stopping
from comfyui_otca.tests.comfyui.native.made import Made, make
from comfyui_otca.tests.comfyui.native.proofs import Contrast
from comfyui_otca.trainer import gradient, grpo, matching
from comfyui_otca.trainer.advantages import fuse
from comfyui_otca.trainer.credit.steps import uniform
from comfyui_otca.trainer.rewards.base import score_stack
from comfyui_otca.trainer.types import GradientSettings, MatchingSettings, UpdateSettings


def stops(family: str, kind: str, every: int = 1, half: bool = False, is_recorded: bool = False, **options) -> dict:
    """One update of a kind, again and again from the same start, with ComfyUI's flag set at one call of a layer after the other.

    `every`: so many calls of a layer from one try to the next.
    `half`: with the loss scale of float16.
    `is_recorded`: whether a Training Run follows, which is then asked before it has recorded.
    """
    from comfy import model_management

    made = make(family, {"dtype": torch.float16} if half else {})
    ask, update = model_management.throw_exception_if_processing_interrupted, _update(made, kind, **options)
    begin, end, calls = _tried(made, update, None)
    found = {"calls": calls, "raised": 0, "whole": 0, "broken": [], "moved": begin != end}
    for number in range(0, calls, every):
        stopping.request.recorded = is_recorded
        try:
            before, after, _ = _tried(made, update, number)
            if is_recorded:
                model_management.throw_exception_if_processing_interrupted()
                stopping.release()  # as Training Run does it
            is_right = after == end and model_management.processing_interrupted()
            found["whole"] += 1
        except model_management.InterruptProcessingException:
            update()
            is_right = _state(made) == end
            found["raised"] += 1
        if not is_right:
            found["broken"].append(number)
        try:
            model_management.throw_exception_if_processing_interrupted()
        except model_management.InterruptProcessingException:
            pass
    found["asks_as_before"] = model_management.throw_exception_if_processing_interrupted is ask
    return found


def _tried(made: Made, update, stop_at: int | None) -> tuple[list, list, int]:
    """The state before and after an update of a fresh policy, and how many layers were called."""
    from comfy import model_management

    made.model.make_fresh()
    before, calls = _state(made), 0

    def count(module, args) -> None:
        nonlocal calls
        if isinstance(module, torch.nn.Linear):
            if calls == stop_at:
                model_management.interrupt_current_processing(True)
            calls += 1

    with register_module_forward_pre_hook(count):
        try:
            update()
        except BaseException:
            assert _state(made) == before, f"stopped at layer call {stop_at}, it has moved"
            raise
    return before, _state(made), calls


def _state(made: Made) -> list:
    """All that an update changes, as plain numbers."""
    policy = made.model.policy
    average = policy.ema.shadow_params if policy.ema else policy.trainable_parameters()
    moments = [float(value.double().sum()) for value in policy.optimizer_state().values()]
    weights = [p.tolist() for p in (*policy.trainable_parameters(), *average)]
    return [weights, moments, policy.version, vars(policy.loss_scale), policy.old_steps]


def _update(made: Made, kind: str, **options):
    from comfy import model_management

    taken = made.sample(steps=2)
    scores = score_stack([Contrast("contrast")], taken.images, taken.prompts, taken.groups)
    credit = uniform(taken.latents, taken.final, taken.trained)
    advantages = fuse(scores, credit, "weighted_advantages")
    ask = lambda: model_management.throw_exception_if_processing_interrupted()  # noqa: E731
    update, settings, judged = {
        "grpo": (grpo.update, UpdateSettings, advantages),
        "matching": (matching.update, MatchingSettings, advantages),
        "gradient": (gradient.update, GradientSettings, scores),
    }[kind]
    of_settings = settings(1e-2, ema_decay=0.5, batch_size=2, **options)
    return partial(update, made.model, taken, judged, of_settings, on_step=ask)
