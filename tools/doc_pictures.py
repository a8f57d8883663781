"""`python -m comfyui_otca.tools.doc_pictures`: draws the pictures of the help pages (web/docs), and the pack's icon and banner.

Everything shown is computed: samples of the embedded model, and curves of the project's own formulas. `--only NAME …` draws some
of them. All take a minute. A picture is a function and a row in DRAWINGS.
"""

from __future__ import annotations

import argparse
import functools
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import torch
from matplotlib import colormaps, font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont

from ..trainer import gradient, rollout
from ..trainer.advantages import fuse, fuse_gains
from ..trainer.credit.gains import rewards_along
from ..trainer.credit.spatial import credit_map
from ..trainer.credit.steps import FLOORS, grpo_guard, noise_aware, pcpo, tcd, uniform
from ..trainer.families.base import FlowModel
from ..trainer.flow import load_flow_model
from ..trainer.grpo import clipped_objective
from ..trainer.matching import OLD_DECAYS
from ..trainer.networks import preprocess
from ..trainer.networks.features import PatchFeatures
from ..trainer.networks.network import shared
from ..trainer.pictures import figures, grids, heatmaps
from ..trainer.pictures.figures import DIVERGING, new_figure, rendered
from ..trainer.rewards import reward_class
from ..trainer.rewards.base import score_stack
from ..trainer.schedule import noise_levels, window_start
from ..trainer.sde import sensitivities, transition
from ..trainer.types import FUSION_WEIGHTS, GradientSettings, Prompts, SamplerSettings, Scores, StepCredit, Trajectories

ROOT = Path(__file__).resolve().parents[1]
PICTURES, REGISTRY = ROOT / "web" / "docs" / "pictures", ROOT / "assets" / "pictures"
MOST_BYTES = 60_000
COLORS = (*figures.COLORS[:4], figures.COLORS[5])  # without the light blue
DARK = "#1d1d24"
RANKS = [0, 1, 2, 4, 7, 9, 11]  # of the samples that are shown, among the twelve of a group; 0 is the best
ETAS = {"dance_sde": 0.3, "flow_sde": 0.7, "cps": 0.7, "ddim_sde": 0.7, "ddim_sde_schedule": 0.7, "precise": 0.7}
GROUP_SIZE = 12
# The sampler of the workflow otca, and prompts of its evaluation.
SETTINGS = SamplerSettings(
    kind="dance_sde", eta=0.5, steps=8, width=40, height=40, shift=0.0, guidance=3.5, shared_noise=True
)
CAPTIONS = (
    "a red circle on a blue background",
    "a green triangle on a white background",
    "an orange square on a black background",
    "a purple circle on a yellow background",
)


# -- what several pictures are made of, each computed once --------------------------------------------------------------


@functools.cache
def shapes_flux() -> FlowModel:
    return load_flow_model(ROOT / "assets" / "shapes-flux", device="cpu")


@functools.cache
def trajectories(groups: int) -> Trajectories:
    """GROUP_SIZE samples of each of the first `groups` captions."""
    prompts = Prompts(CAPTIONS[:groups], tuple(range(groups)))
    return rollout.sample(shapes_flux(), prompts, SETTINGS, group_size=GROUP_SIZE, seed=0)


@functools.cache
def scores(groups: int) -> Scores:
    """By three rewards that can be trained on, and by the judge of the shapes world."""
    rewards = [reward_class(kind)() for kind in ("clip_t", "colorfulness", "sharpness", "accuracy")]
    own = trajectories(groups)
    return score_stack(rewards, own.images, own.prompts, own.groups)


def credit(method, *options, groups: int = 2) -> StepCredit:
    """By a function of trainer/credit/steps.py, with its further arguments."""
    own = trajectories(groups)
    return replace(method(own.latents, own.final, own.trained, *options), sigmas=own.sigmas)


def rendered_with_legend(figure: Figure, axis: Axes) -> np.ndarray:
    """The figure as a picture; its one axis gets a legend, small numbers and a grid behind what is drawn."""
    axis.legend(fontsize=8)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25)
    axis.set_axisbelow(True)
    return figures.rendered(figure)


def step_labels(sigmas: Sequence[float], steps: Iterable[int]) -> list[str]:
    """For the ticks of an axis: each step's number above its noise level."""
    return [f"{step}\nσ {sigmas[step]:.2f}" for step in steps]


def sampler_noise() -> np.ndarray:
    """Standard deviation of each transition, by sampler kind."""
    sigmas = noise_levels(SamplerSettings(steps=16), shift=3.0)
    x = torch.zeros(1, 1)
    figure = new_figure(5.6, 3.4)
    axis = figure.subplots()
    for (kind, eta), color, marker in zip(ETAS.items(), (*COLORS, "black"), "osD^vP", strict=True):
        stds = [
            transition(kind, x, x, sigma, after, eta=eta, sigma_after_first=sigmas[1]).std
            for sigma, after in zip(sigmas, sigmas[1:], strict=False)
        ][:-1]  # the last step is deterministic
        axis.plot(stds, color=color, marker=marker, markersize=4, label=f"{kind}, eta {eta:g}")
    axis.set_xticks(range(0, 15, 2), step_labels(sigmas, range(0, 15, 2)), fontsize=8)
    axis.set_xlabel("denoising step", fontsize=9)
    axis.set_ylabel("std of the noise that the step adds", fontsize=9)
    axis.set_ylim(0, 1.3)  # leaves room for the legend
    axis.set_title("Exploration of each step: 16 steps, shift 3", fontsize=10)
    return rendered_with_legend(figure, axis)


def window_places() -> np.ndarray:
    """Which steps are trained in which iteration, by mode."""
    steps, length, count = 25, 4, 140
    cases = {
        "progressive, every 5": {"every": 5},
        "progressive_decay, every 5": {"mode": "progressive_decay", "every": 5},
        "random": {"mode": "random"},
    }
    figure = new_figure(5.6, 4.4)
    for axis, (title, options), color in zip(figure.subplots(3, 1, sharex=True), cases.items(), COLORS, strict=False):
        starts = np.array([window_start(iteration, steps, length, **options) for iteration in range(count)])
        axis.bar(range(count), length, bottom=starts - 0.5, width=1.0, color=color)
        axis.set_ylim(steps - 0.5, -0.5)
        axis.set_ylabel("step", fontsize=9)
        axis.set_title(title, fontsize=10)
        axis.tick_params(labelsize=8)
    axis.set_xlabel("iteration", fontsize=9)
    figure.suptitle("Stochastic, trained steps of 25: a window of 4", fontsize=10)
    return rendered(figure)


def sampler_group() -> np.ndarray:
    captions = [f"sample {number}" for number in range(GROUP_SIZE)]
    return grids.sample_grid(trajectories(1).images, captions, columns=6, scale=2)


def reward_table() -> np.ndarray:
    return heatmaps.reward_table(scores(2), trajectories(2).images)


def reward_views() -> np.ndarray:
    """Three samples side by side are a wide picture: what each judge sees of it."""
    wide = torch.cat(list(trajectories(4).images[: 3 * GROUP_SIZE : GROUP_SIZE]), 1)[None]
    mean, std = (torch.tensor(channels).view(3, 1, 1) for channels in (preprocess.CLIP_MEAN, preprocess.CLIP_STD))
    views = {
        f"the picture, {wide.shape[2]} × {wide.shape[1]}": wide[0],
        "CLIP-T, Aesthetic, PickScore, ImageReward": preprocess.centre_crop(wide, 224)[0],
        "HPSv2.1": preprocess.letterbox(wide, 224)[0],
    }
    figure = new_figure(7.0, 2.2)
    axes = figure.subplots(1, 3, width_ratios=(2.4, 1, 1))
    for axis, (title, view) in zip(axes, views.items(), strict=True):
        picture = view if view.shape[2] == 3 else (view * std + mean).permute(1, 2, 0)
        axis.imshow(picture.clamp(0, 1), interpolation="nearest")
        axis.set_title("\n".join(textwrap.wrap(title, 24)), fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
    return rendered(figure)


def tcd_floors() -> np.ndarray:
    """One trajectory's weights under each floor; a high w_min, so that they differ."""
    w_min = 0.8
    floors = {"no floor (w_min 0)": (0.0, "affine")}
    floors |= {floor: (w_min, floor) for floor in FLOORS}
    figure = new_figure(5.6, 3.2)
    axis = figure.subplots()
    for number, ((label, options), color) in enumerate(zip(floors.items(), ("#999999", *COLORS[:3]), strict=True)):
        own = credit(tcd, *options)
        row = own.raw.std(1).argmax()  # the trajectory whose credit is the most uneven
        label = f"{label}, mean {own.weights[row].mean():.2f}"
        places = np.arange(len(own.trained)) + 0.2 * (number - 1.5)
        axis.bar(places, own.weights[row], 0.2, color=color, label=label)
    axis.axhline(w_min, color="black", linewidth=0.8, linestyle=":")
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set_xticks(range(len(own.trained)), step_labels(own.sigmas, own.trained), fontsize=8)
    axis.set_ylabel("weight w", fontsize=9)
    axis.set_title(f"One sample's weights with w_min {w_min} (dotted), by floor", fontsize=10)
    return rendered_with_legend(figure, axis)


def tcd_heatmap() -> np.ndarray:
    """Step weights of the samples of two groups."""
    own = credit(tcd)
    figure = new_figure(5.6, 4.0)
    axis = figure.subplots()
    image = axis.imshow(own.weights, cmap=figures.SEQUENTIAL, aspect="auto", vmin=0, interpolation="nearest")
    axis.axhline(GROUP_SIZE - 0.5, color="black", linewidth=1.5)
    middles = [GROUP_SIZE / 2 - 0.5, 3 * GROUP_SIZE / 2 - 0.5]
    axis.set_yticks(middles, ["\n".join(textwrap.wrap(caption, 14)) for caption in CAPTIONS[:2]], fontsize=10)
    axis.set_xticks(range(len(own.trained)), step_labels(own.sigmas, own.trained), fontsize=10)
    axis.set_xlabel("denoising step and its noise level", fontsize=10)
    axis.set_title("Step weights w of two groups (TCD)", fontsize=11)
    figure.colorbar(image, ax=axis, fraction=0.05)
    return rendered(figure)


def step_pull() -> np.ndarray:
    """How hard a step pulls at the velocity: weight, ratio scale and sensitivity c_j multiplied, of mean 1."""
    settings = replace(SETTINGS, kind="flow_sde", eta=0.7, steps=10)
    own = rollout.sample(shapes_flux(), Prompts(CAPTIONS[:1], (0,)), settings, group_size=2, seed=0)
    felt = sensitivities(settings.kind, own.sigmas, settings.eta)
    methods = {
        "uniform": (uniform, ()),
        "noise-aware": (noise_aware, (own.stds,)),
        "PCPO": (pcpo, (felt, own.sigmas)),
        "GRPO-Guard": (grpo_guard, (own.stds, own.sigmas)),
    }
    figure = new_figure(5.6, 3.4)
    axis = figure.subplots()
    for number, (label, (method, options)) in enumerate(methods.items()):
        credit = method(own.latents, own.final, own.trained, *options)
        scale = torch.tensor(credit.ratio_scale or [1.0] * len(own.trained))
        pull = credit.weights[0] * scale * torch.tensor([felt[step] for step in own.trained])
        places = np.arange(len(pull)) + 0.2 * (number - 1.5)
        axis.bar(places, pull / pull.mean(), 0.2, label=label, color=COLORS[number])
    axis.set_xticks(range(len(own.trained)), step_labels(own.sigmas, own.trained), fontsize=8)
    axis.set_ylabel("pull at the velocity, mean 1", fontsize=9)
    axis.set_title("How hard each step pulls (flow_sde, η 0.7, 10 steps)", fontsize=10)
    return rendered_with_legend(figure, axis)


def credit_places() -> np.ndarray:
    """The first sample of each group, and which places of it the credit goes to."""
    own = trajectories(4)
    network = shared(PatchFeatures, ROOT / "assets" / "shapes-clip", "cpu")
    return heatmaps.lit(own.images[::GROUP_SIZE], credit_map(network, own)[::GROUP_SIZE])


def reward_shares() -> np.ndarray:
    """The share of one reward of four against its weight, where the weight enters the sum and where it enters the solver."""
    generator, ones = torch.Generator().manual_seed(0), torch.ones(512, 1)
    values = torch.randn(512, 4, generator=generator) + 0.5 * torch.randn(512, 1, generator=generator)
    groups, weights = torch.arange(512) // 16, np.geomspace(0.05, 4, 41)
    still = StepCredit(ones, ones, ones, torch.zeros(512, 2), (0,))
    figure = new_figure(5.6, 3.2)
    axis = figure.subplots()
    for number, (method, place) in enumerate(product(("moca", "min_norm"), FUSION_WEIGHTS)):
        stacks = [Scores(values, tuple("abcd"), (w, 1, 1, 1), groups, values[:, :0], (), ()) for w in weights.tolist()]
        parts = [fuse(stack, still, method, weights=place).fused.parts for stack in stacks]
        sizes = [part.abs().mean(0) for part in parts if part is not None]
        shares, style = [100 * size[0] / size.sum() for size in sizes], ("-", "--")[number % 2]
        axis.plot(weights, shares, style, color=COLORS[number // 2], linewidth=2, label=f"{method}, weights {place}")
    axis.set(xscale="log", ylim=(0, 79))
    axis.set_xticks([0.05, 0.1, 0.25, 0.5, 1, 2, 4], ["0.05", "0.1", "0.25", "0.5", "1", "2", "4"])
    axis.set_xlabel("coefficient of one reward; that of the three others is 1", fontsize=9)
    axis.set_ylabel("its share of the advantage, %", fontsize=9)
    axis.set_title("A weight is a preference", fontsize=10)
    return rendered_with_legend(figure, axis)


def stepwise_gain() -> np.ndarray:
    """Rewards of the predicted picture along six trajectories of a prompt, each step coloured by its advantage."""
    own, judged, name = trajectories(1), scores(1), "sharpness"
    place = judged.names.index(name)
    values, rewards = judged.values[:, [place]], judged.rewards[place : place + 1]
    judged = replace(judged, values=values, names=(name,), coefficients=(1.0,), rewards=rewards)
    along = rewards_along(shapes_flux(), own, judged, range(len(own.sigmas)), 5)
    gains = along.diff(dim=1)[:, list(own.trained)]
    similarity = credit(tcd, groups=1).similarity
    advantage = fuse_gains(gains, similarity, judged, own.trained).step_advantage
    figure = new_figure(5.6, 3.2)
    axis = figure.subplots()
    places = range(len(own.trained) + 1)
    for row in range(0, GROUP_SIZE, 2):
        for position, step in enumerate(own.trained):
            color = COLORS[1] if advantage[row, position] > 0 else "#7B5AA6"
            strength = 0.8 + 1.6 * min(2.0, advantage[row, position].abs().item())
            axis.plot([step, step + 1], along[row, step : step + 2, 0], color=color, linewidth=strength)
        axis.plot(places, along[row, :-1, 0], "o", color="#333333", markersize=3)
    axis.set_xticks(places, step_labels(own.sigmas, places))
    axis.set_xlabel("point of the trajectory and its noise level", fontsize=9)
    axis.set_ylabel(f"{name} of the predicted picture", fontsize=9)
    axis.set_title("Six samples of a prompt; orange steps gained more than their group", fontsize=10)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25)
    return rendered(figure)


def clipped_loss() -> np.ndarray:
    """The loss of one entry over the importance ratio, for a step to reinforce and for one to discourage."""
    clip = 1e-4
    shift = torch.linspace(-3, 3, 121, dtype=torch.float64)
    log_ratio = torch.log1p(shift * clip)
    figure = new_figure(5.6, 3.0)
    axis = figure.subplots()
    for advantage, color, style in ((1.0, COLORS[1], "-"), (-1.0, COLORS[3], "--")):
        weight = torch.tensor(advantage, dtype=torch.float64)
        losses = [clipped_objective(own, torch.zeros_like(own), weight, clip)[0].item() for own in log_ratio]
        rise = (np.array(losses) + advantage) / clip  # against the loss at ρ = 1
        axis.plot(shift, rise, color=color, linewidth=2.2, linestyle=style, label=f"Ã = {advantage:+g}")
    for edge in (-1, 1):
        axis.axvline(edge, color="black", linewidth=0.8, linestyle=":")
    axis.set_xticks(range(-3, 4), ("1−3c", "1−2c", "1−c", "1", "1+c", "1+2c", "1+3c"))
    axis.set_xlabel("importance ratio ρ, clip_range c", fontsize=9)
    axis.set_ylabel("loss − loss at ρ = 1, in c", fontsize=9)
    axis.set_title("Flat means no gradient: the step has moved far enough", fontsize=10)
    return rendered_with_legend(figure, axis)


def old_policy() -> np.ndarray:
    """How much of the policy that samples stays, over the optimizer steps."""
    steps = range(0, 601)
    figure = new_figure(5.6, 3.0)
    axis = figure.subplots()
    for (name, decay), color, style in zip(OLD_DECAYS.items(), COLORS, ("-", "--", ":"), strict=False):
        axis.plot(steps, [decay(n) for n in steps], color=color, linewidth=2.2, linestyle=style, label=name)
    axis.set_xlabel("optimizer steps n", fontsize=9)
    axis.set_ylabel("d: what stays of the old policy", fontsize=9)
    axis.set_title("The policy that samples lags behind the trained one: a brake", fontsize=10)
    return rendered_with_legend(figure, axis)


def gradient_places() -> np.ndarray:
    """Which steps the gradient of CLIP-T comes from, by each mode of Reward Gradient Step: shares of one update."""
    settings = replace(SETTINGS, kind="ode", steps=6, shared_noise=False)
    own = rollout.sample(shapes_flux(), Prompts(CAPTIONS, (0, 1, 2, 3)), settings, group_size=8, seed=0)
    scored = score_stack([reward_class("clip_t")()], own.images, own.prompts, own.groups)
    figure = new_figure(5.6, 3.0)
    axis = figure.subplots()
    for number, mode in enumerate(gradient.MODES):
        still = GradientSettings(0.0, mode=mode, steps=2, kl_coefficient=0.0)
        shares = gradient.update(shapes_flux(), own, scored, still)[1].credit.raw.mean(0)
        places = np.arange(len(shares)) + 0.2 * (number - 1.5)
        axis.bar(places, 100 * shares, 0.2, label=f"{mode}, steps = 2", color=COLORS[number])
    axis.set_xticks(range(len(own.stds)), step_labels(own.sigmas, range(len(own.stds))), fontsize=8)
    axis.set_ylabel("share of the gradient, %", fontsize=9)
    axis.set_title("Where the gradient comes from (CLIP-T, 6 steps)", fontsize=10)
    return rendered_with_legend(figure, axis)


def icon() -> np.ndarray:
    sheet = Image.new("RGB", (400, 400), DARK)
    _paint_credit(sheet, corner=14, side=48, gap=6)
    return np.asarray(sheet)


def banner() -> np.ndarray:
    """21:9: the icon's heatmap, each row ending with its picture, and what the pack does."""
    sheet, corner, side, gap = Image.new("RGB", (1680, 720), DARK), 30, 84, 12
    chosen, left = _paint_credit(sheet, corner, side, gap), corner + 7 * (side + gap)
    for row, sample in enumerate(chosen):
        picture = Image.fromarray((trajectories(1).images[sample] * 255).round().byte().numpy())
        sheet.paste(picture.resize((side, side), Image.Resampling.NEAREST), (left, corner + row * (side + gap)))
    pen = ImageDraw.Draw(sheet)
    for text, y, size in (
        ("OTCA", 180, 190),
        ("Train image and video models", 420, 43),
        ("by reinforcement learning,", 480, 43),
        ("as a ComfyUI graph", 540, 43),
    ):
        font = ImageFont.truetype(font_manager.findfont("DejaVu Sans:bold"), size)
        pen.text((870, y), text, font=font, fill="white")
    return np.asarray(sheet)


def _paint_credit(sheet: Image.Image, corner: int, side: int, gap: int) -> np.ndarray:
    """Paints the credit of seven samples of one prompt at seven steps; returns which samples, the best first."""
    effective = fuse(scores(1), credit(tcd, 0.0, groups=1), "weighted_advantages").step_advantage.numpy()
    chosen = np.argsort(-effective.mean(1))[RANKS]
    effective = effective[chosen]
    limit = np.abs(effective).max()
    cells = colormaps[DIVERGING](0.5 + 0.5 * np.sign(effective) * np.sqrt(np.abs(effective) / limit))
    for row, column in np.ndindex(7, 7):
        color = tuple((cells[row, column, :3] * 255).astype(int).tolist())
        x, y = corner + column * (side + gap), corner + row * (side + gap)
        sheet.paste(color, (x, y, x + side, y + side))
    return chosen


# Each picture by its name, which is that of its file.
DRAWINGS: dict[str, Callable[[], np.ndarray]] = {
    drawing.__name__: drawing
    for drawing in (
        *(sampler_noise, window_places, sampler_group, reward_table, reward_views, tcd_floors, tcd_heatmap),
        *(
            step_pull,
            credit_places,
            reward_shares,
            stepwise_gain,
            clipped_loss,
            old_policy,
            gradient_places,
            icon,
            banner,
        ),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m comfyui_otca.tools.doc_pictures", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=DRAWINGS, default=list(DRAWINGS), metavar="NAME")
    for name in parser.parse_args().only:
        path = (REGISTRY if name in ("icon", "banner") else PICTURES) / f"{name}.png"
        picture = Image.fromarray(DRAWINGS[name]())
        picture.save(path, optimize=True)
        if path.stat().st_size > MOST_BYTES:  # a palette halves the bytes; only colour bars would show it
            picture.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
        size = path.stat().st_size
        print(f"{path.relative_to(ROOT)}: {picture.width} x {picture.height}, {size} bytes")
        if size > MOST_BYTES:
            raise SystemExit(f"{path} is larger than {MOST_BYTES} bytes")


if __name__ == "__main__":
    main()
