#!/usr/bin/env bash
# The picture and the table of "A point above the frontier" in bench/FOLLOWING.md: trainings by reward gradients with other seeds than
# elsewhere in that note, their pictures from other noises, and the judge against the diversity.
#
#     bench/frontier.sh OUTPUT [again]
#
# Goes on where it was stopped. About half an hour on one core. `again`: what was nearest to a point above it, with eight more
# training seeds and on other noises; an hour.
set -e
output=$1 again=$2 noises=4000 seeds=3
methods=()
line() { # a name, the first training seed, a method of bench/comparison.py, and what is changed in it
    local name=$1 first=$2 method=$3 seed
    shift 3
    [ $# = 0 ] || set -- --set "$@"
    otca compare "$name=$output/methods/$method.json" --output "$output/$name" --forwards 14000 --evaluations 1 --evaluation-seeds 2 \
        --score judge --judge grade --features scenes-clip --seed "$first" --seeds $seeds --learning-rates 1e-3 "$@"
    for seed in $(seq $first $((first + seeds - 1))); do
        methods+=(--lora "$name-$seed=$output/$name/$name/lr0.001/seed$seed/lora.safetensors")
    done
}
guides() { # a training seed, and the strengths of the template's adapter in all steps, and in the last four alone
    local seed=$1 of=lr0.001/seed$1/lora.safetensors strength
    for strength in $2; do methods+=(--guide "all_$strength-$seed=$output/leap/leap/$of=$strength"); done
    for strength in $3; do methods+=(--guide "late_$strength-$seed=$output/leap/leap/$of=0:0,4:$strength"); done
    methods+=(--guide "variety_late_2-$seed=$output/variety_0.5/variety_0.5/$of=0:0,4:2")
}
python -m comfyui_otca.bench.comparison methods "$output/methods" --world followed
if [ "$again" ]; then
    noises=8000
    for first in 411 401; do
        [ $first = 411 ] && seeds=8 || seeds=6
        line leap $first leap
        line variety_0.5 $first leap_variety_0.5
        for seed in $(seq $first $((first + seeds - 1))); do guides $seed "0.5 0.75" 2; done
    done
else
    line leap 401 leap
    line leap 404 leap
    line kl_3 401 leap RewardGradientStep.kl_coefficient=3
    line rank_64 401 leap LoadFlowModel.lora_rank=64 LoadFlowModel.lora_alpha=64
    line rank_4 401 leap LoadFlowModel.lora_rank=4 LoadFlowModel.lora_alpha=4
    line norm_1 401 leap RewardGradientStep.kl=norm
    line min_norm_0.5 401 leap_min_norm_0.5
    line variety_0.5 401 leap_variety_0.5
    line variety_0.5 404 leap_variety_0.5
    for seed in 401 402 403; do
        guides $seed "0.5 0.75 1.5" "1 2 3"
        methods+=(--guide "early_1-$seed=$output/leap/leap/lr0.001/seed$seed/lora.safetensors=0:1,4:0")
    done
    for seed in 404 405 406; do guides $seed 0.5 2; done
fi
otca eval scenes-flux "${methods[@]}" --prompts scenes_eval.txt --seed $noises --seeds 12 --steps 8 --size 40x40 --batch-size 48 \
    --reward scenes:strict=true --reward clip_t:model=scenes-clip --reward sharpness --output "$output/pictures"
python - "$output" <<'END'
"""Prints the table and draws the picture, from what `otca eval` wrote."""
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from comfyui_otca.bench.common import table
from comfyui_otca.study.statistics import clustered
from comfyui_otca.tools.models.draw import draw_scene, misdrawn_scene
from comfyui_otca.trainer.errors import standard_error
from comfyui_otca.trainer.groups import distances
from comfyui_otca.trainer.networks import features
from comfyui_otca.trainer.pictures.figures import COLORS, new_figure
from comfyui_otca.trainer.rewards.scenes import Scenes, parse_caption

LINES = {  # each begins before training or at the default
    "strength γ, all 8 steps": ("base", "all_0.5", "all_0.75", "leap", "all_1.5"),
    "strength γ, last 4 of 8 steps": ("base", "late_1", "late_2", "late_3"),
    "strength 1, first 4 of 8 steps": ("base", "early_1"),
    "pull to the original κ 1, 3": ("leap", "kl_3"),
    "Variety added, 0, 0.5": ("leap", "variety_0.5"),
    "Variety 0.5, strength 2, last 4 of 8 steps": ("base", "variety_late_2"),
    "rank 16, 64": ("leap", "rank_64"),
}
output, encoder = Path(sys.argv[1]), features.load("scenes-clip")
rows = defaultdict(lambda: defaultdict(dict))  # {method: {training seed: {(prompt, noise): a line of scores.jsonl}}}
for row in map(json.loads, (output / "pictures" / "scores.jsonl").open()):
    method, _, seed = row["method"].partition("-") if row["method"] != "base" else ("base", "", "base")
    rows[method][seed][row["prompt"], row["seed"]] = row
pairs = sorted(rows["base"]["base"])
prompts = [prompt for prompt, _ in pairs]
groups = torch.tensor([prompts.index(prompt) for prompt in prompts])


@torch.no_grad()
def varied(pictures, judge):
    """How far each picture is from the others of its prompt, [N], and in the mean a right one from the other right ones."""
    pictures, right = torch.from_numpy(np.stack(pictures)) / 255, torch.tensor(judge) == 1
    points = torch.cat([encoder.pictures(part) for part in pictures.split(96)]).double()
    apart = distances(points[right], groups[right])
    return distances(points, groups).tolist(), apart[apart > 0].mean().item()


def figures(some):
    """Judge, diversity, sharpness and CLIP-T of each picture, [4, N], and the diversity among the right ones."""
    some = [some[pair] for pair in pairs]
    judge, sharpness, clip_t = ([row["scores"][name] for row in some] for name in ("scenes", "sharpness", "clip_t"))
    pictures = [np.array(Image.open(output / "pictures/pictures" / row["method"] / row["file"])) for row in some]
    diversity, right = varied(pictures, judge)
    return np.array([judge, diversity, sharpness, clip_t]), right


of = {method: {seed: figures(some) for seed, some in by_seed.items()} for method, by_seed in rows.items()}
base, base_right = of["base"]["base"]
slider = LINES["strength γ, all 8 steps"]


def whole(method, seeds):
    return np.concatenate([base if method == "base" else of[method][seed][0] for seed in seeds], 1)


def above(method, seeds, labels):
    """How far the judge is above the line through the slider's points, at the same diversity; the errors of both count."""
    there = [other for other in slider if other == "base" or of.get(other, {}).keys() >= {*seeds}]
    own, line = whole(method, seeds), [whole(other, seeds) for other in there]
    places = [points[1].mean() for points in line]
    first = next((i for i in range(len(line) - 2) if own[1].mean() >= places[i + 1]), len(line) - 2)
    one, two = line[first], line[first + 1]
    share = (own[1].mean() - places[first + 1]) / (places[first] - places[first + 1])
    slope = (one[0].mean() - two[0].mean()) / (places[first] - places[first + 1])
    apart = own - share * one - (1 - share) * two
    excess = apart[0] - slope * apart[1]
    interval, error = clustered(excess, *labels), standard_error(excess, *labels)[1]
    return f"{interval.mean:+.3f} ± {error:.3f} ({interval.low:+.3f} … {interval.high:+.3f})"


def row(method, seeds):
    """A line of the table, and the method's point in the picture: diversity, judge and the errors of both."""
    own, start, labels = whole(method, seeds), np.tile(base, len(seeds)), (np.repeat(seeds, len(pairs)), prompts * len(seeds))
    errors = [standard_error(own[i] - start[i], *labels)[1] for i in (1, 0)]  # of the change, since all have the prompts' levels
    means, left = own.mean(1), own[1].mean() / base[1].mean()
    single = ", ".join(f"{of[method][seed][0][0].mean():.3f}" for seed in seeds)
    right = np.mean([of[method][seed][1] for seed in seeds])
    excess = "" if method in slider else above(method, seeds, labels)
    more = f"{right:.3f}", f"{means[2] / base[2].mean():.2f}", f"{means[3]:.3f}"
    cells = [method, single, f"{means[0]:.3f}", f"{means[1]:.3f}, {left:.0%}", *more, excess]
    return -left, cells, (left, means[0], errors[0] / base[1].mean(), errors[1])


lines = [row(method, sorted(by_seed)[:3]) for method, by_seed in of.items() if method != "base"]
points = {"base": (1.0, base[0].mean(), 0, 0)} | {cells[0]: point for _, cells, point in lines}
lines = sorted(lines)
lines += [row(method, sorted(by_seed)) for method, by_seed in of.items() if len(by_seed) > 3]
heads = ("method", "judge, each training", "mean", "diversity", "among right ones", "sharpness, ×", "CLIP-T", "above the slider")
print(f"untrained: {base[0].mean():.3f}, {base[1].mean():.3f}, {base_right:.3f}, CLIP-T {base[3].mean():.3f}")
print(table(heads, [cells for _, cells, _ in lines]))
for name, draw in (("careful", draw_scene), ("careless", misdrawn_scene)):  # not the model's: the world's own, of these prompts
    random = np.random.default_rng(5)
    drawn = [draw(parse_caption(prompt), random) for prompt in prompts]
    judge = Scenes(strict=True).score(torch.from_numpy(np.stack(drawn)) / 255, prompts)
    diversity, right = varied(drawn, judge)
    print(f"{name} drawings: {np.mean(judge):.3f}, {np.mean(diversity):.3f}, {right:.3f}")
figure = new_figure(7.2, 4.6)
axis = figure.subplots()
for number, (name, methods) in enumerate(LINES.items()):
    x, y, over_x, over_y = np.transpose([points[method] for method in methods if method in points])
    look = {"color": [COLORS[-1], *COLORS][number], "marker": "oDs^v*<"[number]}
    bars = {"xerr": 100 * over_x, "yerr": over_y, "elinewidth": 0.6, "capsize": 1.5}
    axis.errorbar(100 * x, y, **bars, **look, linewidth=1.4, markersize=5, label=name)
axis.set_xlabel("diversity left, % of before training")
axis.set_ylabel("judge: share of right pictures")
axis.grid(alpha=0.25)
axis.spines[["top", "right"]].set_visible(False)
axis.legend(fontsize=7.5, frameon=False, loc="lower left")
figure.savefig(output / "frontier.png", dpi=100)
Image.open(output / "frontier.png").convert("RGB").quantize(64).save(output / "frontier.png", optimize=True)
END
