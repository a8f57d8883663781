"""Refusals of an update, by settings alone: said before a graph runs, and again by the update itself.

Imports no torch: nodes and the checks of a graph ask this too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..types import GradientSettings, MatchingSettings, SamplerSettings
from ..workflow.problem import Misfit


def of_ratios(sampler: SamplerSettings) -> Iterator[Misfit]:
    """The settings of a sampler that GRPO Step cannot train."""
    if sampler.kind == "ode":
        message = "kind = ode adds no noise, so its steps have no probabilities whose ratio GRPO Step could train"
        yield Misfit("kind", message, "another kind on SDE Sampler, or Matching Step as the update")


def of_matching(sampler: SamplerSettings, keeps_graph: bool) -> Iterator[Misfit]:
    """The settings of a sampler that mean nothing to Matching Step. `keeps_graph`: whether a graph was asked for."""
    if sampler.window is not None:
        message = (
            "window_start and window_length choose the steps whose ratios are trained, and Matching Step trains noise levels, "
            "without ratios"
        )
        fix = "set both to 0 on SDE Sampler and disconnect MixGRPO Window; sampled_steps saves forward passes"
        yield Misfit("window_length", message, fix)
    yield from of_kept_graph("Matching Step noises the clean samples again", keeps_graph)


def of_kept_graph(why: str, keeps_graph: bool) -> Iterator[Misfit]:
    """Says that an update has no use for the sampler's graph, where one was asked for."""
    if keeps_graph:
        message = f"keep_graph = on: {why}, and has no use for the sampler's graph"
        yield Misfit("keep_graph", message, "set keep_graph to auto or off on SDE Sampler")


def of_credit(method: str, step: str = "Matching Step") -> Misfit:
    """Says that a credit before a Step without ratios scales them."""
    message = f"{method} scales importance ratios, and {step} has none"
    fix = "TCD Weights or another credit in its place, or GRPO Step as the update"
    return Misfit("advantages", message, fix)


def of_measuring(method: str, step: str = "Matching Step") -> Misfit:
    """Says that a Step does not measure what its credit goes by."""
    message = (
        f"{method} goes by the gradients of GRPO Step, and {step} measures none, so that all steps would weigh alike"
    )
    return Misfit("advantages", message, "another credit in its place, or GRPO Step as the update")


def of_selection(loss: str, most: int) -> Iterator[Misfit]:
    """Checks `most`, how many samples of each group are kept: a loss of pairs needs the two of a pair."""
    if loss == "dpo" and most < 2:
        message = f"{most} sample of each group is left, and loss = dpo compares two: Matching Step learns nothing"
        yield Misfit("worst", message, "worst = 1 or more on Best of N, or another loss on Matching Step")


def of_processes(loss: str, groups: int, processes: int, name: str = "prompts_per_iteration") -> Misfit:
    """Says that groups do not stay whole, of a loss that compares a group's samples. `name`: the input that counts them."""
    message = (
        f"loss = {loss} compares the samples of a group at one point, and {processes} processes share {groups} groups, so that "
        "some would be parted"
    )
    return Misfit(
        name, message, f"make {name} a multiple of {processes}, train with fewer processes, or take loss nft or awm"
    )


def of_range(settings: MatchingSettings, sigmas: Sequence[float]) -> Misfit:
    """Says that no noise level of the sampler is within the range of Matching Step."""
    levels = ", ".join(f"{sigma:.2f}" for sigma in sigmas[:-1])
    message = (
        f"lowest_level = {settings.lowest_level:g}, highest_level = {settings.highest_level:g}: the levels are {levels}"
    )
    return Misfit("lowest_level", message, "a range with one of them, or more steps on SDE Sampler")


def of_parts(parts: int, groups: int) -> Iterator[Misfit]:
    """Checks that each part of a rollout has a group."""
    if parts > groups:
        message = f"parts = {parts}: an optimizer step takes whole groups, and the rollout has {groups}"
        yield Misfit("parts", message, "as many prompts or more, or fewer parts")


def of_gradients(connected: Iterable[str]) -> Misfit:
    """Says that no reward that is trained has a gradient, which Reward Gradient Step would follow."""
    names = ", ".join(connected) or "none is connected"
    message = f"no trained reward has a gradient ({names}), and Reward Gradient Step follows one"
    fix = (
        "connect one that has: CLIP-T, HPSv2, PickScore, ImageReward, Aesthetic, My Taste, Sharpness, Colorfulness, Variety; or "
        "use GRPO Step or Matching Step, which need none"
    )
    return Misfit("scores", message, fix)


def of_decoder() -> Misfit:
    """Says that the decoder of Reward Gradient Step stands in for one that ComfyUI loaded."""
    message = "it stands in for the VAE of Make Trainable, and a model of Load Flow Model decodes by its own"
    return Misfit("decoder", message, "disconnect decoder, or load the model by ComfyUI's loaders and Make Trainable")


def of_gradient_settings(settings: GradientSettings, steps: int) -> Iterator[Misfit]:
    """The problems of the inputs of Reward Gradient Step alone, for a sampler of so many steps."""
    if settings.mode != "last_steps" and settings.steps < 1:
        message = f"steps = {settings.steps}: only mode = last_steps takes 0, which means all steps"
        yield Misfit("steps", message, f"1 or more for mode = {settings.mode}")
    if settings.mode == "last_steps" and settings.steps > steps:
        message = f"steps = {settings.steps}: the sampler has {steps} steps"
        yield Misfit("steps", message, f"{steps} or fewer, or 0 for all of them")


def of_drawing(mode: str, credits: str) -> list[Misfit]:
    """Says that a mode of Reward Gradient Step draws no steps, for advantages of which it takes the credit."""
    if mode in ("one_call", "leap"):
        return []
    message = f"mode = {mode} takes the same steps of every sample, and {credits} weighs steps"
    return [Misfit("mode", message, "mode = leap or one_call, which draw steps by credit, or disconnect the credit")]


def of_levels(settings: GradientSettings, sigmas: Sequence[float]) -> Iterator[Misfit]:
    """Checks that some of the sampler's noise levels are low enough for Reward Gradient Step."""
    needed = {"one_call": 1, "leap": 2}.get(settings.mode, 0)
    if sum(sigma <= settings.highest_level for sigma in sigmas[:-1]) < needed:
        levels = ", ".join(f"{sigma:.2f}" for sigma in sigmas[:-1])
        message = (
            f"highest_level = {settings.highest_level:g}: the sampler's levels are {levels}, and mode = {settings.mode} needs "
            f"{needed} that are not above it"
        )
        yield Misfit("highest_level", message, "a higher level, or more steps on SDE Sampler")
