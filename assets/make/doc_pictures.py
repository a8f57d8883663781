"""`python -m comfyui_otca.assets.make.doc_pictures`: draws the pictures of the help pages (web/docs), and the pack's icon and
banner, again.

Everything shown is computed: samples of the embedded model, a short training of the quickstart, and curves of the project's own
formulas. A few minutes on two cores; `--only NAME …` draws some of them.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from matplotlib import font_manager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.transforms import Bbox
from PIL import Image, ImageDraw, ImageFont

from ...host.access.permissions import PYTHON, user_named
from ...inference import guidance
from ...trainer import rollout
from ...trainer.advantages import best_of_n as select
from ...trainer.advantages import fuse, fuse_gains
from ...trainer.credit.gains import rewards_along
from ...trainer.credit.learned import learned
from ...trainer.credit.spatial import credit_map
from ...trainer.credit.steps import FLOORS, combined, grpo_guard, noise_aware, pcpo, tcd, uniform
from ...trainer.flow import SINGLE_FILES, LoadOptions, load_flow_model, lora
from ...trainer.flow.files import read_tensors
from ...trainer.flow.loading import bytes_held
from ...trainer.fusion import moca
from ...trainer.groups import per_group
from ...trainer.grpo import clipped_objective
from ...trainer.networks import preprocess
from ...trainer.networks.features import PatchFeatures
from ...trainer.networks.network import shared
from ...trainer.pairs.reading import read_folder
from ...trainer.pairs.trajectories import take
from ...trainer.pictures import curves, grids, heatmaps, media
from ...trainer.prompts import choose
from ...trainer.rewards import geneval, ranking, reward_class, scenes
from ...trainer.rewards.base import Reward, score, score_stack
from ...trainer.rewards.chat import Reply
from ...trainer.rewards.judge import probability_of_yes
from ...trainer.rewards.video_align import sampled_frames
from ...trainer.rewards.video_score import spread_frames
from ...trainer.rewards.vote import head as vote_head
from ...trainer.rewards.vote import votes
from ...trainer.rewards.vote.learning import Learner
from ...trainer.run.layout import read_lines
from ...trainer.schedule import window_start
from ...trainer.sde import sensitivities, transition
from ...trainer.types import Prompts, SamplerSettings
from ...trainer.updates.forward_process import OLD_DECAYS
from ..examples import reward_server as example_server
from .draw_scenes import draw_scene
from .worlds import misheard

ROOT = Path(__file__).resolve().parents[2]
PICTURES, REGISTRY = ROOT / "web" / "docs" / "pictures", ROOT / "assets" / "pictures"
FOR_THE_REGISTRY = ("icon", "banner")
DARK = "#1d1d24"
MOST_BYTES = 60_000
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00")  # Okabe-Ito, as trainer/pictures/figures.py has them

# The quickstart's sampler, and prompts of its evaluation.
SETTINGS = SamplerSettings(
    kind="dance_sde", eta=0.5, steps=8, width=40, height=40, shift=0.0, guidance=3.5, shared_noise=True
)
CAPTIONS = (
    "a red circle on a blue background",
    "a green triangle on a white background",
    "an orange square on a black background",
    "a purple circle on a yellow background",
)
TRAINING = "--iterations 40 --set 11.learning_rate=1e-3 --set 12.evaluate_every=10 --set 12.evaluation_seeds=1".split()


# -- what the pictures are made of, each computed once ------------------------------------------------------------------------


@functools.cache
def model():
    return load_flow_model(ROOT / "assets" / "shapes-flux", device="cpu")


@functools.cache
def trajectories(count: int = 4):
    """Groups of 12 of the first `count` captions."""
    return rollout.sample(model(), Prompts(CAPTIONS[:count], tuple(range(count))), SETTINGS, group_size=12, seed=0)


@functools.cache
def scores(count: int = 4):
    rewards = [reward(kind) for kind in ("clip_t", "colorfulness", "sharpness", "accuracy")]
    own = trajectories(count)
    return score_stack(rewards, own.images, own.prompts, own.groups)


def reward(kind: str, **options) -> Reward:
    return reward_class(kind)(**options)


def credit(method, *options, count: int = 2):
    own = trajectories(count)
    return replace(method(own.latents, own.final, own.trained, *options), sigmas=own.sigmas)


@functools.cache
def workplace() -> tempfile.TemporaryDirectory:
    """Goes when the program ends."""
    return tempfile.TemporaryDirectory()


@functools.cache
def finished_run() -> Path:
    """The folder of a short training of the quickstart."""
    from ...__main__ import main as otca

    folder = Path(workplace().name) / "run"
    otca(["train", str(ROOT / "workflows" / "api" / "quickstart.json"), "--output", str(folder), *TRAINING])
    return folder


@functools.cache
def single_reward_run(name: str) -> Path:
    """The folder of a short training of the quickstart on one reward, as bench/GUIDANCE.md has it."""
    from ...__main__ import main as otca

    folder = Path(workplace().name) / name
    others = {"clip_t": 4, "colorfulness": 5, "sharpness": 6}
    held_out = [part for other, node in others.items() if other != name for part in ("--set", f"{node}.held_out=true")]
    workflow = str(ROOT / "workflows" / "api" / "quickstart.json")
    otca(["train", workflow, "--output", str(folder), "--iterations", "40", "--set", "12.evaluate_every=40", *held_out])
    return folder


@functools.cache
def native_run() -> Path:
    """The folder of a training of the quickstart with ComfyUI's own nodes, by the newest ComfyUI that is there: 20 minutes."""
    from ...tests.comfyui.server import installations

    comfyui, folder = installations()[-1], Path(workplace().name) / "native"
    workflow = ROOT / "workflows" / "api" / "quickstart_comfyui.json"
    command = [comfyui.python, ROOT, "train", workflow, "--comfyui", comfyui.folder, "--output", folder]
    subprocess.run(command, check=True)
    return folder


# -- one function a picture ---------------------------------------------------------------------------------------------------


def embedded_model():
    images = rollout.generate(model(), list(CAPTIONS), SETTINGS, [0, 1, 2, 3])
    return grids.sample_grid(images, CAPTIONS)


def model_memory():
    """What weights, gradients and optimizer of FLUX.1-dev take: its networks are built without memory, and counted."""
    from diffusers import AutoencoderKL, FluxTransformer2DModel
    from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

    t5 = T5Config(d_model=4096, d_ff=10240, d_kv=64, num_heads=64, num_layers=24, feed_forward_proj="gated-gelu")
    clip = CLIPTextConfig(hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12)
    with torch.device("meta"):
        networks = {
            "transformer": FluxTransformer2DModel(guidance_embeds=True),
            "text_encoder": CLIPTextModel(clip),
            "text_encoder_2": T5EncoderModel(t5),
            "vae": AutoencoderKL(
                block_out_channels=(128, 256, 512, 512),  # pyright: ignore[reportArgumentType]  # the library's tuple[int] has any length
                down_block_types=("DownEncoderBlock2D",) * 4,  # pyright: ignore[reportArgumentType]  # the library's tuple[str] has any length
                up_block_types=("UpDecoderBlock2D",) * 4,  # pyright: ignore[reportArgumentType]  # the library's tuple[str] has any length
                layers_per_block=2,
                latent_channels=16,
            ),
        }
    counts = {name: sum(p.numel() for p in network.parameters()) for name, network in networks.items()}
    cases = {
        "adapter, encoders offloaded, 4bit": ("lora", LoadOptions(offload_encoders=True, quantize="4bit")),
        "adapter, encoders offloaded, 8bit": ("lora", LoadOptions(offload_encoders=True, quantize="8bit")),
        "adapter, encoders offloaded": ("lora", LoadOptions(offload_encoders=True)),
        "adapter": ("lora", LoadOptions()),
        "full": ("full", LoadOptions()),
    }
    sizes = [
        bytes_held(counts, ("transformer",), options, training, torch.bfloat16) / 1e9
        for training, options in cases.values()
    ]
    figure = _figure(5.6, 2.6)
    axis = figure.subplots()
    bars = axis.barh(list(cases), sizes, color=[COLORS[0]] * 4 + [COLORS[4]])
    axis.bar_label(bars, [f"{size:.0f} GB" for size in sizes], padding=3, fontsize=9)
    axis.set_xlim(0, max(sizes) * 1.25)
    axis.set_xlabel("GB, before activations", fontsize=9)
    axis.tick_params(labelsize=9)
    axis.set_title(f"FLUX.1-dev: {counts['transformer'] / 1e9:.1f} billion parameters, in bfloat16", fontsize=10)
    return _drawn(figure)


def model_files():
    """Which file of ComfyUI's usual downloads is which network."""
    columns = {
        "FLUX.1-dev": ["flux1-dev", "", "clip_l", "t5xxl_fp16", "", "ae"],
        "SD3.5-medium": ["sd3.5_medium", "", "clip_l", "clip_g", "t5xxl_fp16", "(folder's own)"],
        "Wan 2.2 T2V-A14B": [
            "wan2.2_t2v_high_noise_14B_fp16",
            "wan2.2_t2v_low_noise_14B_fp16",
            "umt5_xxl_fp16",
            "",
            "",
            "wan_2.1_vae",
        ],
    }
    figure = _figure(7.4, 2.2)
    axis = figure.subplots()
    axis.axis("off")
    table = axis.table(
        cellText=[[name or "–" for name in row] for row in zip(*columns.values(), strict=True)],
        rowLabels=list(SINGLE_FILES),
        colLabels=list(columns),
        colWidths=[0.16, 0.22, 0.44],
        cellLoc="center",
        bbox=Bbox.from_bounds(0.16, 0, 0.84, 1),
    )
    table.auto_set_font_size(False)
    table.set_fontsize(8.5)
    for (row, column), cell in table.get_celld().items():
        cell.set_edgecolor("#cccccc")
        if row == 0 or column < 0:
            cell.set_text_props(weight="bold")
            cell.set_facecolor("#eef3f8")
    return _drawn(figure)


def prompt_order():
    """Which prompt each slot of an iteration takes: seven prompts, three an iteration, shuffled."""
    prompts, count, iterations = [f"{letter}" for letter in "ABCDEFG"], 3, 7
    figure = _figure(5.6, 2.0)
    axis = figure.subplots()
    taken = [choose(prompts, count, index, 0) for index in range(iterations)]
    passes = np.array([[position // len(prompts) for position in own.positions] for own in taken]).T
    axis.imshow(passes, cmap="Pastel1", vmin=0, vmax=8, aspect="auto")
    for index, own in enumerate(taken):
        for slot, text in enumerate(own.texts):
            axis.text(index, slot, text, ha="center", va="center", fontsize=11)
    axis.set_xticks(range(iterations))
    axis.set_yticks(range(count), [f"group {slot}" for slot in range(count)], fontsize=9)
    axis.set_xlabel("index (one an iteration)", fontsize=9)
    axis.set_title("Prompts A to G, 3 an iteration, shuffled; a colour is one pass", fontsize=10)
    return _drawn(figure)


def preference_pairs():
    """A pair as an update sees it: a picture of the prompt and one of another, with one noise, at some of the trained levels."""
    folder, own = Path(workplace().name) / "pairs", trajectories()
    folder.mkdir()
    for name, row in (("chosen", 0), ("rejected", 12)):
        grids.save(media.eight_bits(own.images[row]).numpy(), folder / f"{name}.png")
    line = {"prompt": CAPTIONS[0], "chosen": "chosen.png", "rejected": "rejected.png"}
    (folder / "pairs.jsonl").write_text(json.dumps(line), encoding="utf-8")
    user_named(folder)
    settings = replace(SETTINGS, kind="ode", shared_noise=False)
    pair, _ = take(read_folder(str(folder)), model(), settings, count=1, index=0, shuffle=False, seed=0)
    levels = (8, 6, 4, 3, 2, 1)
    images = model().decode(pair.latents[:, levels].flatten(0, 1))
    captions = [f"{name}, noise {pair.sigmas[level]:.2f}" for name in ("chosen", "rejected") for level in levels]
    return grids.sample_grid(images, captions, columns=len(levels))


def sampler_noise():
    """Standard deviation of each transition, by sampler kind."""
    u = torch.linspace(1, 0, 17, dtype=torch.float64)
    sigmas = (3 * u / (1 + 2 * u)).tolist()
    x = torch.zeros(1, 1)
    kinds = {"dance_sde": 0.3, "flow_sde": 0.7, "cps": 0.7, "ddim_sde": 0.7, "ddim_sde_schedule": 0.7, "precise": 0.7}
    figure = _figure(5.6, 3.4)
    axis = figure.subplots()
    for (kind, eta), color, marker in zip(kinds.items(), (*COLORS, "black"), "osD^vP", strict=True):
        stds = [
            transition(kind, x, x, sigma, after, eta=eta, sigma_after_first=sigmas[1]).std
            for sigma, after in zip(sigmas, sigmas[1:], strict=False)
        ][:-1]  # the last step is deterministic unless train_last_step
        axis.plot(stds, color=color, marker=marker, markersize=4, label=f"{kind}, eta {eta:g}")
    axis.set_xticks(range(0, 15, 2), [f"{j}\nσ {sigmas[j]:.2f}" for j in range(0, 15, 2)], fontsize=8)
    axis.set_xlabel("denoising step", fontsize=9)
    axis.set_ylabel("std of the noise that the step adds", fontsize=9)
    axis.set_ylim(0, 1.3)  # leaves room for the legend
    axis.set_title("Exploration of each step: 16 steps, shift 3", fontsize=10)
    return _finished(figure, axis)


def window_places():
    """Which steps are trained in which iteration, by mode."""
    steps, length, count = 25, 4, 140
    cases = {
        "progressive, every 5": {"every": 5},
        "progressive_decay, every 5": {"mode": "progressive_decay", "every": 5},
        "random": {"mode": "random"},
    }
    figure = _figure(5.6, 4.4)
    for axis, (title, options), color in zip(figure.subplots(3, 1, sharex=True), cases.items(), COLORS, strict=False):
        starts = np.array([window_start(iteration, steps, length, **options) for iteration in range(count)])
        axis.bar(range(count), length, bottom=starts - 0.5, width=1.0, color=color)
        axis.set_ylim(steps - 0.5, -0.5)
        axis.set_ylabel("step", fontsize=9)
        axis.set_title(title, fontsize=10)
        axis.tick_params(labelsize=8)
    axis.set_xlabel("iteration", fontsize=9)
    figure.suptitle("Stochastic, trained steps of 25: a window of 4", fontsize=10)
    return _drawn(figure)


def sampler_group():
    return grids.sample_grid(trajectories(1).images, [f"sample {number}" for number in range(12)], columns=6, scale=2)


def reward_strip(kind: str, digits: int = 3):
    """Pictures from the lowest to the highest score by one reward, with the score beneath."""
    own = trajectories()
    return score_strip(score([reward(kind)], own.images, own.texts)[:, 0], digits, kind in ("clip_t", "accuracy"))


def score_strip(values: torch.Tensor, digits: int = 3, prompts: bool = False):
    """The same of any scores; with prompts where what was asked for matters."""
    own = trajectories()
    order = values.argsort(stable=True)[torch.linspace(0, len(values) - 1, 8).round().long()]
    captions = [f"{values[row]:.{digits}g}" for row in order]
    if prompts:
        captions = [f"{value}: {own.texts[row]}" for value, row in zip(captions, order.tolist(), strict=True)]
    return grids.sample_grid(own.images[order], captions, columns=4)


def reward_scenes():
    """Drawn scenes, each with a careless caption: the grade, whether the judge agrees, and what was asked."""
    random = np.random.default_rng(11)
    drawn = [scene for scene in scenes.scenes() if scene.relation in ("left of", "above")][::17][:8]
    asked = [misheard(misheard(scene, random), random).caption for scene in drawn]
    pictures = np.stack([draw_scene(scene, random) / 255 for scene in drawn]).astype(np.float32)
    captions = [
        f"{scenes.grade(picture, text):.2f}, {'right' if scenes.judge(picture, text) else 'wrong'}: {text}"
        for picture, text in zip(pictures, asked, strict=True)
    ]
    return grids.sample_grid(torch.from_numpy(pictures), captions, columns=4)


def reward_my_taste():
    """Pictures by a taste for warm colours, learned from one pick for each of four prompts."""
    own, learner = trajectories(), Learner("shapes-clip")
    red = (own.images[..., 0] - own.images[..., 1:].mean(-1)).mean((1, 2))
    rows = vote_head.read(learner.network, own.images)
    for members in per_group(own.groups):
        places = members.nonzero()[:, 0]
        best = int(red[places].argmax())
        learner.add_features(rows[places], ((best,), tuple(n for n in range(len(places)) if n != best)))
    return score_strip(torch.from_numpy(learner.head().scores(rows)))


def reward_views():
    """Three samples side by side are a wide picture: what each judge sees of it."""
    wide = torch.cat(list(trajectories().images[[0, 12, 24]]), 1)[None]
    mean, std = (torch.tensor(figures).view(3, 1, 1) for figures in (preprocess.CLIP_MEAN, preprocess.CLIP_STD))
    views = {
        f"the picture, {wide.shape[2]} × {wide.shape[1]}": wide[0],
        "CLIP-T, Aesthetic, PickScore, ImageReward": preprocess.centre_crop(wide, 224)[0],
        "HPSv2.1": preprocess.letterbox(wide, 224)[0],
    }
    figure = _figure(7.0, 2.2)
    axes = figure.subplots(1, 3, width_ratios=(2.4, 1, 1))
    for axis, (title, view) in zip(axes, views.items(), strict=True):
        picture = view if view.shape[2] == 3 else (view * std + mean).permute(1, 2, 0)
        axis.imshow(picture.clamp(0, 1), interpolation="nearest")
        axis.set_title("\n".join(textwrap.wrap(title, 24)), fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
    return _drawn(figure)


def reward_http():
    """By the example server's own function."""
    pictures = (trajectories().images * 255).round().byte().numpy()
    texts = trajectories().texts
    return score_strip(torch.tensor(example_server.score(list(pictures), texts, [{}] * len(texts))))


def reward_judge():
    """One token of an answer as a server lists it: what counts as yes, as no, and as neither."""
    listed = {"Yes": 0.6, "No": 0.2, " yes": 0.1, "yes": 0.05, "The": 0.03}
    reply = Reply("Yes", False, [[(token, float(np.log(p))) for token, p in listed.items()]])
    figure = _figure(5.4, 2.2)
    axes = figure.subplots()
    meant = [COLORS[0] if "yes" in token.lower() else COLORS[1] if token == "No" else "#BBBBBB" for token in listed]
    axes.barh([repr(token) for token in listed], [*listed.values()], color=meant)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("probability of the answer's first token")
    legend = {"yes": COLORS[0], "no": COLORS[1], "neither": "#BBBBBB"}
    axes.legend(handles=[Patch(color=color, label=name) for name, color in legend.items()], loc="lower right")
    axes.set_title(f"score 0.75 / 0.95 = {probability_of_yes(reply):.3f}", fontsize=10)
    return _drawn(figure)


def reward_vote():
    """Three groups of six: the reddest picture of each is the best, the least red one the worst."""
    own, captions, shown = trajectories(), [], []
    red = (own.images[..., 0] - own.images[..., 1:].amax(-1)).mean((1, 2))
    for first in (0, 12, 24):
        group = red[first : first + 6]
        best, worst = int(group.argmax()), int(group.argmin())
        others = tuple(number for number in range(6) if number not in (best, worst))
        scores = votes.bradley_terry(votes.Answer("order", ((best,), others, (worst,))).pairs, 6)
        said = {best: "best: ", worst: "worst: "}
        captions += [
            f"{said.get(number, '')}{score if abs(score) > 0.005 else 0:.2f}" for number, score in enumerate(scores)
        ]
        shown.append(own.images[first : first + 6])
    return grids.sample_grid(torch.cat(shown), captions, columns=6)


def reward_python():
    """By the function on the node's page."""
    page = (ROOT / "web" / "docs" / "OTCA_RewardPython.md").read_text(encoding="utf-8")
    file = Path(workplace().name) / "by_hand.py"
    file.write_text(textwrap.dedent(page[page.index("    def score(") :].split("\n\n")[0]), encoding="utf-8")
    os.environ[PYTHON] = str(file.parent)
    return score_strip(score([reward("python", file=str(file))], trajectories().images, trajectories().texts)[:, 0])


def reward_text():
    """Signs that ask for the same two words, each with its score by the real OCR models."""
    signs = ("Open late", "OPEN LATE", "Open\nlate\ntoday", "Opem late", "Late open", "Open", "Ope1 lxte", "")
    pictures = []
    for number, sign in enumerate(signs):
        picture = Image.new("RGB", (240, 150), COLORS[number % len(COLORS)])
        font = ImageFont.truetype(font_manager.findfont("DejaVu Sans:bold"), 30)
        ImageDraw.Draw(picture).multiline_text((18, 20), sign, font=font, fill="white")
        pictures.append(np.asarray(picture))
    images = torch.from_numpy(np.stack(pictures)) / 255
    values = score([reward("text")], images, ['a shop with the sign "Open late"'] * len(signs))[:, 0]
    return grids.sample_grid(images, [f"{value:.2f}" for value in values.tolist()], columns=4)


def object_places():
    """Where a second square counts as left of, right of, above or below the first."""
    side, middle = 20, 50
    first = (middle - side / 2, middle - side / 2, middle + side / 2, middle + side / 2)
    figure = _figure(4.2, 3.9)
    axis = figure.subplots()
    ways = np.full((101, 101), np.nan)
    for y, x in np.ndindex(ways.shape):
        names = geneval.relations((x - side / 2, y - side / 2, x + side / 2, y + side / 2), first)
        if names:
            ways[y, x] = geneval.POSITIONS.index(min(names)) if len(names) == 1 else 4
    axis.imshow(ways, cmap=ListedColormap((*COLORS[:4], "#bbbbbb")), vmin=-0.5, vmax=4.5, interpolation="nearest")
    axis.add_patch(Rectangle(first[:2], side, side, fill=False, edgecolor="black", linewidth=1.5))
    for name, place in zip(geneval.POSITIONS, ((12, 50), (88, 50), (50, 12), (50, 88)), strict=True):
        axis.text(*place, name, ha="center", va="center", color="white", fontsize=10, weight="bold")
    for place in ((15, 15), (85, 15), (15, 85), (85, 85)):
        axis.text(*place, "both", ha="center", va="center", fontsize=9)
    axis.text(50, 50, "neither", ha="center", va="center", fontsize=8)
    axis.set_axis_off()
    axis.set_title("Centre of the second square, and how it stands to the first", fontsize=9)
    return _drawn(figure)


def reward_table():
    return heatmaps.reward_table(scores(2), trajectories(2).images)


def score_images():
    """Eight samples of one prompt, ranked by two rewards."""
    images = trajectories(1).images[:8]
    ranked = ranking.rank([reward("clip_t"), reward("colorfulness")], images, [CAPTIONS[0]] * len(images))
    captions = [f"{place}.  {ranked.totals[sample]:+.2f}" for place, sample in enumerate(ranked.order.tolist(), 1)]
    return grids.sample_grid(images[ranked.order], captions, columns=4)


def frames_seen(choose: Callable[[int, int], list[int]]):
    """Which frames of some videos a video reward looks at: a row a video, a dot a frame, filled where it is seen."""
    videos = ((33, 16), (49, 16), (81, 16), (121, 24))
    figure = _figure(5.6, 2.4)
    axis = figure.subplots()
    for row, (total, fps) in enumerate(videos):
        seen = choose(total, fps)
        axis.scatter(
            np.arange(total) / fps, [row] * total, s=10, facecolors="none", edgecolors="#999999", linewidths=0.6
        )
        axis.scatter(np.array(seen) / fps, [row] * len(seen), s=26, color=COLORS[0])
    names = [f"{total} at {fps} fps\n{len(choose(total, fps))} seen" for total, fps in videos]
    axis.set_yticks(range(len(videos)), names, fontsize=9)
    axis.set_ylim(len(videos) - 0.5, -0.5)
    axis.set_xlabel("second of the video", fontsize=9)
    return _drawn(figure)


def video_align_frames():
    return frames_seen(lambda total, fps: sampled_frames(total, fps, 2.0))


def video_score_frames():
    return frames_seen(lambda total, fps: spread_frames(total, 48))


def tcd_floors():
    """One trajectory's weights under each floor; a high w_min, so that they differ."""
    w_min = 0.8
    floors = {"no floor (w_min 0)": (0.0, "affine")}
    floors |= {floor: (w_min, floor) for floor in FLOORS}
    figure = _figure(5.6, 3.2)
    axis = figure.subplots()
    for number, ((label, options), color) in enumerate(zip(floors.items(), ("#999999", *COLORS[:3]), strict=True)):
        own = credit(tcd, *options)
        row = own.raw.std(1).argmax()  # the trajectory whose credit is the most uneven
        label = f"{label}, mean {own.weights[row].mean():.2f}"
        places = np.arange(len(own.trained)) + 0.2 * (number - 1.5)
        axis.bar(places, own.weights[row], 0.2, color=color, label=label)
    axis.axhline(w_min, color="black", linewidth=0.8, linestyle=":")
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set_xticks(range(len(own.trained)), [f"{j}\nσ {own.sigmas[j]:.2f}" for j in own.trained], fontsize=8)
    axis.set_ylabel("weight w", fontsize=9)
    axis.set_title(f"One sample's weights with w_min {w_min} (dotted), by floor", fontsize=10)
    return _finished(figure, axis)


def tcd_heatmap():
    own = credit(tcd)
    return _heatmap(own.weights, own, "Step weights w of two groups (TCD)", "viridis", (0, own.weights.max().item()))


def uniform_heatmap():
    own = credit(uniform, 0.6, torch.Generator().manual_seed(0))
    return _heatmap(
        own.weights, own, "Step weights w with timestep_fraction 0.6", "viridis", (0, own.weights.max().item())
    )


def learned_heatmap():
    own = trajectories()
    options = {"measure_every": 1, "groups": 0, "decay": 0.0, "w_min": 0.5}
    credit = learned(model(), own, scores(), **options)
    model().step_shares = {}
    assert credit.by_objective is not None
    return heatmaps.objective_heatmap(credit, credit.by_objective)


def step_pull():
    """How hard a step pulls at the velocity: weight, ratio scale and sensitivity c_j multiplied, of mean 1."""
    settings = replace(SETTINGS, kind="flow_sde", eta=0.7, steps=10)
    own = rollout.sample(model(), Prompts(CAPTIONS[:1], (0,)), settings, group_size=2, seed=0)
    felt = sensitivities(settings.kind, own.sigmas, settings.eta)
    methods = {
        "uniform": (uniform, ()),
        "noise-aware": (noise_aware, (own.stds,)),
        "PCPO": (pcpo, (felt, own.sigmas)),
        "GRPO-Guard": (grpo_guard, (own.stds, own.sigmas)),
    }
    figure = _figure(5.6, 3.4)
    axis = figure.subplots()
    for number, (label, (method, options)) in enumerate(methods.items()):
        found = method(own.latents, own.final, own.trained, *options)
        scale = torch.tensor(found.ratio_scale or [1.0] * len(own.trained))
        pull = found.weights[0] * scale * torch.tensor([felt[j] for j in own.trained])
        axis.bar(
            np.arange(len(pull)) + 0.2 * (number - 1.5), pull / pull.mean(), 0.2, label=label, color=COLORS[number]
        )
    axis.set_xticks(range(len(own.trained)), [f"{j}\nσ {own.sigmas[j]:.2f}" for j in own.trained], fontsize=8)
    axis.set_ylabel("pull at the velocity, mean 1", fontsize=9)
    axis.set_title("How hard each step pulls (flow_sde, η 0.7, 10 steps)", fontsize=10)
    return _finished(figure, axis)


def combined_heatmap():
    own = combined(credit(tcd, 0.0), credit(noise_aware, trajectories(2).stds))
    return _heatmap(own.weights, own, "Step weights w: TCD · noise-aware", "viridis", (0, own.weights.max().item()))


def credit_places():
    own = trajectories(4)
    network = shared(PatchFeatures, ROOT / "assets" / "shapes-clip", "cpu")
    rows = [0, 12, 24, 36]
    return heatmaps.lit(own.images[rows], credit_map(network, own)[rows])


def moca_z():
    """z over λ/2 for objectives that agree and that do not; where their sum is negative λ is 0, and z one point."""
    cases = {
        "all like it": (0.3, 0.9, 1.6),
        "mixed, sum positive": (-0.8, 0.2, 1.4),
        "mixed, sum negative": (-1.4, -0.6, 0.7),
        "all dislike it": (-1.5, -0.9, -0.4),
    }
    figure = _figure(5.6, 3.2)
    axis = figure.subplots()
    half = torch.linspace(0, 0.5, 51)
    for number, ((label, values), color) in enumerate(zip(cases.items(), COLORS, strict=False)):
        advantages = torch.tensor([values])
        label = f"{label}: A = {', '.join(f'{value:g}' for value in values)}"
        if sum(values) > 0:
            z = moca(advantages.expand(51, 3), 2 * half).advantage
            axis.plot(half, z, color=color, linewidth=2.2, label=label)
        else:
            z = moca(advantages, torch.zeros(1)).advantage
            axis.plot([0], z, color=color, marker="os^D"[number], markersize=8, linestyle="", label=label)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_xlabel("λ/2 (nearly always 0 or 0.5)", fontsize=9)
    axis.set_ylabel("fused advantage z", fontsize=9)
    axis.set_title("MOCA: z = λ/2, clipped to the objectives' range", fontsize=10)
    return _finished(figure, axis)


def moca_heatmap():
    own = fuse(scores(2), credit(tcd), "moca")
    order = np.lexsort((-own.fused.advantage.numpy(), own.scores.groups.numpy()))
    limit = own.step_advantage.abs().max().item()
    title = "Effective advantage Ã, best sample of a group on top"
    return _heatmap(own.step_advantage[order], own.credit, title, "PuOr_r", (-limit, limit))


def stepwise_gain():
    """Rewards of the predicted picture along six trajectories of a prompt, each step coloured by its advantage."""
    own, judged = trajectories(1), scores(1)
    name = "sharpness"
    judged = replace(
        judged, values=judged.values[:, 2:3], names=(name,), coefficients=(1.0,), rewards=judged.rewards[2:]
    )
    rewards = rewards_along(model(), own, judged, range(len(own.sigmas)), 5)
    gains = rewards.diff(dim=1)[:, list(own.trained)]
    advantage = fuse_gains(gains, credit(tcd, count=1).similarity, judged, own.trained).step_advantage
    figure = _figure(5.6, 3.2)
    axis = figure.subplots()
    for row in range(0, 12, 2):
        for position, step in enumerate(own.trained):
            color = COLORS[1] if advantage[row, position] > 0 else "#7B5AA6"
            strength = 0.8 + 1.6 * min(2.0, advantage[row, position].abs().item())
            axis.plot([step, step + 1], rewards[row, step : step + 2, 0], color=color, linewidth=strength)
        axis.plot(range(len(own.trained) + 1), rewards[row, :-1, 0], "o", color="#333333", markersize=3)
    places = range(len(own.trained) + 1)
    axis.set_xticks(places, [f"{j}\nσ {own.sigmas[j]:.2f}" for j in places])
    axis.set_xlabel("point of the trajectory and its noise level", fontsize=9)
    axis.set_ylabel(f"{name} of the predicted picture", fontsize=9)
    axis.set_title("Six samples of a prompt; orange steps gained more than their group", fontsize=10)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25)
    return _drawn(figure)


def fusion_agreement():
    """How far each fusion's advantage follows each reward, over four groups."""
    methods = {"weighted_advantages": "weighted_advantages", "weighted_sum": "weighted_sum", "MOCA": "moca"}
    figure = _figure(5.6, 3.0)
    axis = figure.subplots()
    for number, ((label, method), color) in enumerate(zip(methods.items(), COLORS, strict=False)):
        own = fuse(scores(), credit(tcd, count=4), method)
        fused = own.fused.advantage
        correlation = [torch.corrcoef(torch.stack([fused, column]))[0, 1].item() for column in own.per_objective.T]
        axis.bar(np.arange(len(correlation)) + 0.26 * (number - 1), correlation, 0.26, color=color, label=label)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_xticks(range(len(own.scores.names)), own.scores.names, fontsize=9)
    axis.set_ylabel("correlation with its own advantage", fontsize=9)
    axis.set_title("Whom the fused advantage follows: 48 samples, 4 prompts", fontsize=10)
    return _finished(figure, axis)


def best_of_n():
    own = select(fuse(scores(2), credit(tcd), "weighted_advantages"), 4, 4)
    order = np.lexsort((-own.fused.advantage.numpy(), own.scores.groups.numpy()))
    limit = own.step_advantage.abs().max().item()
    title = "Effective advantage Ã: four best, four worst of a group"
    return _heatmap(own.step_advantage[order], own.credit, title, "PuOr_r", (-limit, limit))


def clipped_loss():
    """The loss of one entry over the importance ratio, for a step to reinforce and for one to discourage."""
    clip = 1e-4
    shift = torch.linspace(-3, 3, 121, dtype=torch.float64)
    log_ratio = torch.log1p(shift * clip)
    figure = _figure(5.6, 3.0)
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
    return _finished(figure, axis)


def old_policy():
    """How much of the policy that samples stays, over the optimizer steps."""
    steps = range(0, 601)
    figure = _figure(5.6, 3.0)
    axis = figure.subplots()
    for (name, decay), color, style in zip(OLD_DECAYS.items(), COLORS, ("-", "--", ":"), strict=False):
        axis.plot(steps, [decay(n) for n in steps], color=color, linewidth=2.2, linestyle=style, label=name)
    axis.set_xlabel("optimizer steps n", fontsize=9)
    axis.set_ylabel("d: what stays of the old policy", fontsize=9)
    axis.set_title("The policy that samples lags behind the trained one: a brake", fontsize=10)
    return _finished(figure, axis)


def reward_curves():
    folder = finished_run()
    history, evaluations = read_lines(folder / "metrics.jsonl"), read_lines(folder / "evaluation.jsonl")
    # Two rewards a row, where the plot itself would put four: a help page is narrow.
    rows = [("clip_t", "colorfulness"), ("sharpness", "accuracy")]
    return np.concatenate([curves.reward_curves(_only(history, names), evaluations) for names in rows])


def before_after():
    model = load_flow_model(ROOT / "assets" / "shapes-flux", device="cpu")
    lora.load(model, finished_run() / "lora.safetensors")
    with model.policy.reference():
        before = rollout.generate(model, list(CAPTIONS), SETTINGS, [0, 1, 2, 3])
    after = rollout.generate(model, list(CAPTIONS), SETTINGS, [0, 1, 2, 3])
    return grids.before_after(before, after, CAPTIONS)


def native_layers():
    """The way of a MODEL through the graph; below it how far a training moved each layer that got the adapter."""
    figure = _figure(7.4, 4.2)
    chain, axis = figure.subplots(2, 1, height_ratios=(1, 3))
    chain.axis("off")
    nodes = ("Loaders", "Make\nTrainable", "SDE Sampler\n… GRPO Step", "Tuned\nModel", "KSampler")
    edges = ("MODEL\nCLIP, VAE", "OTCA_MODEL", "OTCA_MODEL", "MODEL")
    for place, name in enumerate(nodes):
        color = COLORS[0] if name.startswith(("Make", "Tuned")) else "#666666"
        box = {"boxstyle": "round,pad=0.5", "facecolor": color, "edgecolor": "none"}
        chain.text(place, 0.4, name, ha="center", va="center", fontsize=8, color="white", bbox=box)
    for place, name in enumerate(edges):
        arrow = {"arrowstyle": "->", "color": "#444444"}
        chain.annotate("", (place + 0.68, 0.4), (place + 0.36, 0.4), arrowprops=arrow)
        chain.text(place + 0.51, 0.95, name, ha="center", va="bottom", fontsize=7)
    chain.set(xlim=(-0.4, len(edges) + 0.4), ylim=(0, 1.5))

    tensors = read_tensors(native_run() / "lora.safetensors")
    layers = [key.removesuffix(".lora_A.weight") for key in tensors if key.endswith(".lora_A.weight")]
    moved = [float((tensors[f"{n}.lora_B.weight"] @ tensors[f"{n}.lora_A.weight"]).norm()) for n in layers]
    names = [layer.removeprefix("diffusion_model.").replace("_blocks.", " ") for layer in layers]
    colors = [COLORS[0] if "attn" in name else COLORS[1] if "mlp" in name else COLORS[2] for name in names]
    axis.bar(range(len(names)), moved, color=colors)
    axis.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axis.set_ylabel("‖ΔW‖ after training", fontsize=8)
    kinds = ("attention", "feed-forward", "both in one layer (single blocks)")
    axis.legend([Patch(color=color) for color in COLORS[:3]], kinds, fontsize=8, ncols=3, loc="upper left")
    axis.set_ylim(0, max(moved) * 1.25)
    axis.tick_params(axis="y", labelsize=8)
    axis.set_title("shapes-flux: the layers that get the adapter", fontsize=9)
    return _drawn(figure)


def native_before_after():
    """The run's own pictures: three of eight columns."""
    picture = np.asarray(Image.open(native_run() / "samples.png").convert("RGB"))
    return picture[:, : picture.shape[1] * 3 // 8]


def guidance_grid():
    """One prompt and seed by two adapters: γ of one rises to the right, of the other downwards."""
    gammas = (0, 0.5, 1, 1.5, 2)
    runs = [single_reward_run(name) for name in ("colorfulness", "sharpness")]
    for run in runs:
        user_named(run)
    pairs = [(right, down) for down in gammas[::2] for right in gammas]
    images = []
    for pair in pairs:
        guides = [guidance.parse(f"{run}={gamma}") for run, gamma in zip(runs, pair, strict=True)]
        with guidance.composed(model(), guides, SETTINGS.steps) as compose:
            images.append(rollout.generate(model(), [CAPTIONS[0]], SETTINGS, [0], compose=compose))
    captions = [f"colour {right:g}, sharpness {down:g}" for right, down in pairs]
    return grids.sample_grid(torch.cat(images), captions, columns=len(gammas), scale=2)


def _credit_in_small(sheet: Image.Image, corner: int, side: int, gap: int) -> np.ndarray:
    """Paints a credit heatmap of seven samples of one prompt and seven steps; returns which samples, the best first."""
    from matplotlib import colormaps

    effective = fuse(scores(1), credit(tcd, 0.0, count=1), "weighted_advantages").step_advantage.numpy()
    chosen = np.argsort(-effective.mean(1))[[0, 1, 2, 4, 7, 9, 11]]
    effective = effective[chosen]
    limit = np.abs(effective).max()
    cells = colormaps["PuOr_r"](0.5 + 0.5 * np.sign(effective) * np.sqrt(np.abs(effective) / limit))
    for row, column in np.ndindex(7, 7):
        color = tuple((cells[row, column, :3] * 255).astype(int).tolist())
        x, y = corner + column * (side + gap), corner + row * (side + gap)
        sheet.paste(color, (x, y, x + side, y + side))
    return chosen


def icon():
    """A credit heatmap in small: seven samples, seven steps."""
    sheet = Image.new("RGB", (400, 400), DARK)
    _credit_in_small(sheet, corner=14, side=48, gap=6)
    return np.asarray(sheet)


def banner():
    """For the Comfy Registry, 21:9: the icon's heatmap, each row ending with its picture, and what the pack does."""
    sheet, corner, side, gap = Image.new("RGB", (1680, 720), DARK), 30, 84, 12
    chosen, left = _credit_in_small(sheet, corner, side, gap), corner + 7 * (side + gap)
    for row, sample in enumerate(chosen):
        picture = Image.fromarray((trajectories(1).images[sample] * 255).round().byte().numpy())
        sheet.paste(picture.resize((side, side), Image.Resampling.NEAREST), (left, corner + row * (side + gap)))
    draw = ImageDraw.Draw(sheet)
    for text, y, size in (
        ("OTCA", 180, 190),
        ("Train image and video models", 420, 43),
        ("by reinforcement learning,", 480, 43),
        ("as a ComfyUI graph", 540, 43),
    ):
        draw.text(
            (870, y), text, font=ImageFont.truetype(font_manager.findfont("DejaVu Sans:bold"), size), fill="white"
        )
    return np.asarray(sheet)


DRAWINGS = {
    "embedded_model": embedded_model,
    "model_memory": model_memory,
    "reward_my_taste": reward_my_taste,
    "reward_scenes": reward_scenes,
    "model_files": model_files,
    "prompt_order": prompt_order,
    "preference_pairs": preference_pairs,
    "sampler_noise": sampler_noise,
    "window_places": window_places,
    "sampler_group": sampler_group,
    **{
        f"reward_{kind}": functools.partial(reward_strip, kind)
        for kind in (
            "clip_t",
            "colorfulness",
            "sharpness",
            "jpeg_compressibility",
            "jpeg_incompressibility",
            "accuracy",
        )
    },
    "reward_views": reward_views,
    "reward_text": reward_text,
    "object_places": object_places,
    "reward_http": reward_http,
    "reward_judge": reward_judge,
    "reward_vote": reward_vote,
    "reward_python": reward_python,
    "reward_table": reward_table,
    "score_images": score_images,
    "video_align_frames": video_align_frames,
    "video_score_frames": video_score_frames,
    "tcd_floors": tcd_floors,
    "tcd_heatmap": tcd_heatmap,
    "uniform_heatmap": uniform_heatmap,
    "learned_heatmap": learned_heatmap,
    "step_pull": step_pull,
    "combined_heatmap": combined_heatmap,
    "credit_places": credit_places,
    "moca_z": moca_z,
    "moca_heatmap": moca_heatmap,
    "stepwise_gain": stepwise_gain,
    "fusion_agreement": fusion_agreement,
    "best_of_n": best_of_n,
    "clipped_loss": clipped_loss,
    "old_policy": old_policy,
    "reward_curves": reward_curves,
    "before_after": before_after,
    "guidance": guidance_grid,
    "native_layers": native_layers,
    "native_before_after": native_before_after,
    "icon": icon,
    "banner": banner,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m comfyui_otca.assets.make.doc_pictures", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=DRAWINGS, default=list(DRAWINGS), metavar="NAME")
    for name in parser.parse_args().only:
        path = (REGISTRY if name in FOR_THE_REGISTRY else PICTURES) / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(DRAWINGS[name]())
        picture.save(path, optimize=True)
        if path.stat().st_size > MOST_BYTES:  # a palette halves the bytes; only colour bars would show it
            picture.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
        size = path.stat().st_size
        print(f"{path.relative_to(ROOT)}: {picture.width} x {picture.height}, {size} bytes")
        if size > MOST_BYTES:
            raise SystemExit(f"{path} is larger than {MOST_BYTES} bytes")


def _only(history: Sequence[Mapping], names: Sequence[str]) -> list[dict]:
    """The history without the other rewards."""
    return [
        {key: value for key, value in row.items() if key == "iteration" or key.split("/")[1:2] in [[n] for n in names]}
        for row in history
    ]


def _heatmap(field, own, title: str, colors: str, limits: tuple[float, float]) -> np.ndarray:
    """Samples of two groups by steps. What the nodes draw, but with letters that can be read in a narrow help page."""
    figure = _figure(5.6, 4.0)
    axis = figure.subplots()
    image = axis.imshow(field, cmap=colors, aspect="auto", vmin=limits[0], vmax=limits[1], interpolation="nearest")
    axis.axhline(len(field) / 2 - 0.5, color="black", linewidth=1.5)
    places = [len(field) / 4 - 0.5, 3 * len(field) / 4 - 0.5]
    axis.set_yticks(places, ["\n".join(textwrap.wrap(caption, 14)) for caption in CAPTIONS[:2]], fontsize=10)
    axis.set_xticks(range(len(own.trained)), [f"{j}\nσ {own.sigmas[j]:.2f}" for j in own.trained], fontsize=10)
    axis.set_xlabel("denoising step and its noise level", fontsize=10)
    axis.set_title(title, fontsize=11)
    figure.colorbar(image, ax=axis, fraction=0.05)
    return _drawn(figure)


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), dpi=110, layout="constrained")


def _finished(figure: Figure, axis) -> np.ndarray:
    axis.legend(fontsize=8)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25)
    axis.set_axisbelow(True)
    return _drawn(figure)


def _drawn(figure: Figure) -> np.ndarray:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3].copy()


if __name__ == "__main__":
    main()
