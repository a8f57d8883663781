"""How many clicks a taste takes, and whether training on it serves the one who clicked: a simulated voter in the embedded world.

    python bench/taste.py [--output runs/taste] [--seeds 10] [--only curve training]

The voter has a utility that it knows exactly, and clicks wrongly in one click of ten. Pictures are sampled by the embedded model,
12 to a prompt; a click picks the best of the pictures of one prompt that are shown. Every result is kept in --output, so that a
stopped study goes on from there. Prints the Markdown of bench/REWARDS.md.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from comfyui_otca.host.terminal import quiet_libraries
from comfyui_otca.study.statistics import mean_interval
from comfyui_otca.trainer import grpo, rollout
from comfyui_otca.trainer.advantages import fuse
from comfyui_otca.trainer.credit import tcd
from comfyui_otca.trainer.flow import load_flow_model
from comfyui_otca.trainer.prompts import read_prompts
from comfyui_otca.trainer.rewards.base import GroupReward, Reward, score_stack
from comfyui_otca.trainer.rewards.shapes import accuracy
from comfyui_otca.trainer.rewards.vote import head
from comfyui_otca.trainer.rewards.vote.learned import TasteReward
from comfyui_otca.trainer.rewards.vote.learning import Learner
from comfyui_otca.trainer.rewards.vote.votes import Answer, bradley_terry
from comfyui_otca.trainer.types import Prompts, SamplerSettings, UpdateSettings

ASSETS = Path(__file__).resolve().parent.parent / "assets"
SETTINGS = SamplerSettings(kind="dance_sde", eta=0.5, steps=8, width=40, height=40, guidance=3.5, shared_noise=False)
GROUP, PROMPTS, OFFERED = (
    12,
    40,
    4,
)  # pictures to a prompt; prompts to click on; groups at a time, as an iteration has them
WRONG = 0.1  # of all clicks
EVERY, CLICKS = 5, 60  # clicks between two looks at the accuracy; clicks in all, but of random pairs
TARGET = 0.85
WAYS = {  # whether the learner asks, pictures that are shown, clicks
    "learn, pairs": (True, 2, CLICKS),
    "learn, best of 4": (True, 4, CLICKS),
    "random pairs": (False, 2, 200),
    "random, best of 4": (False, 4, CLICKS),
}
ITERATIONS, RATE = 12, 1e-3  # of the trainings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/taste"))
    parser.add_argument("--seeds", type=int, default=10, help="of the curves")
    parser.add_argument("--trainings", type=int, default=3, help="seeds of the trainings")
    parser.add_argument("--only", nargs="+", choices=["curve", "training"], default=["curve", "training"])
    options = parser.parse_args()
    quiet_libraries()
    options.output.mkdir(parents=True, exist_ok=True)
    if "curve" in options.only:
        print(curves(options.output, range(options.seeds)))
    if "training" in options.only:
        print(trainings(options.output, range(options.trainings)))


def kept(path: Path, compute: Callable[[], object]):
    """What a file holds, or what is computed and kept there."""
    if not path.exists():
        path.write_text(json.dumps(compute()), encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))


# --- the voter --------------------------------------------------------------------------------------------------------


def redness(images: torch.Tensor) -> torch.Tensor:
    """[B], mean of R - (G + B)/2 over the pixels."""
    return (images[..., 0] - images[..., 1:].mean(-1)).mean((1, 2))


def size(images: torch.Tensor) -> torch.Tensor:
    """[B], share of the pixels that differ from the border's median colour."""
    border = torch.cat([images[:, :2].flatten(1, 2), images[:, -2:].flatten(1, 2)], 1).median(1).values
    return ((images - border[:, None, None]).abs().sum(-1) > 0.3).float().mean((1, 2))


TASTES = {
    "red": (redness,),
    "red and large": (redness, size),
}  # the terms of each, weighed by their spread within prompts


def utility(taste: str, images: torch.Tensor, spreads: dict[str, float]) -> np.ndarray:
    return sum((term(images) / spreads[term.__name__] for term in TASTES[taste]), torch.zeros(len(images))).numpy()


def spreads_of(groups: Sequence[torch.Tensor]) -> dict[str, float]:
    within = {term.__name__: [term(g) - term(g).mean() for g in groups] for term in (redness, size)}
    return {name: float(torch.cat(values).std()) for name, values in within.items()}


def click(utilities: np.ndarray, shown: Sequence[int], random: np.random.Generator) -> Answer:
    best = max(shown, key=lambda number: utilities[number])
    if random.random() < WRONG:
        best = int(random.choice([number for number in shown if number != best]))
    return Answer("order", ((best,), tuple(number for number in shown if number != best)))


# --- the curve --------------------------------------------------------------------------------------------------------


@functools.cache
def sampled(file: str, count: int, seed: int) -> tuple[list[torch.Tensor], list[np.ndarray]]:
    """Groups of pictures of that many prompts by the untrained model, and their features."""
    model = load_flow_model(ASSETS / "shapes-flux", lora_rank=4, lora_alpha=4.0, device="cpu")
    lines = read_prompts("", str(ASSETS / "prompts" / file))
    chosen = np.random.default_rng(seed).permutation(len(lines))[:count].tolist()
    groups = []
    for number in chosen:
        prompts = Prompts((lines[number],), (number,))
        groups.append(rollout.sample(model, prompts, SETTINGS, group_size=GROUP, seed=seed).images)
    network = Learner().network
    return groups, [head.read(network, group) for group in groups]


def curves(folder: Path, seeds: range) -> str:
    clicked, rows = sampled("shapes_train.txt", PROMPTS, 0)
    unseen, unseen_rows = sampled("shapes_eval.txt", 32, 1)
    spreads = spreads_of(clicked)
    text = []
    for taste in TASTES:
        true = [utility(taste, group, spreads) for group in clicked]
        unseen_true = [utility(taste, group, spreads) for group in unseen]

        def judge(learner: Learner, unseen_true=unseen_true) -> tuple[float, float]:
            return pair_accuracy(learner, unseen_rows, unseen_true)

        results = {}
        for way, settings in WAYS.items():
            name = f"{taste}, {way}".replace(", ", "-").replace(" ", "-")
            results[way] = [
                kept(
                    folder / f"curve-{name}-{seed}.json",
                    lambda settings=settings, seed=seed, true=true, judge=judge: curve(
                        rows, true, judge, *settings, seed
                    ),
                )
                for seed in seeds
            ]
        text.append(curve_table(taste, results))
    return "\n\n".join(text)


def curve(
    rows: Sequence[np.ndarray], true: Sequence[np.ndarray], judge, learns: bool, shown: int, most: int, seed: int
) -> list:
    """(any two, of one prompt) accuracy every EVERY clicks."""
    random, learner, found = np.random.default_rng(seed), Learner(), []
    for clicks in range(1, most + 1):
        offered = random.choice(len(rows), OFFERED, replace=False).tolist()
        if learns:
            question = learner.question_of_features([rows[number] for number in offered], shown)
            group, pictures = offered[question.group], question.pictures
        else:
            group, pictures = offered[0], tuple(random.choice(GROUP, shown, replace=False).tolist())
        learner.add_features(rows[group], click(true[group], pictures, random).order)
        if clicks % EVERY == 0:
            found.append(judge(learner))
    return found


def pair_accuracy(learner: Learner, rows: Sequence[np.ndarray], true: Sequence[np.ndarray]) -> tuple[float, float]:
    """Against the true preference, on prompts that were never clicked: of any two pictures, and of two of one prompt."""
    learned = learner.head()
    scores = [learned.scores(group) for group in rows]

    def share(ours: np.ndarray, theirs: np.ndarray) -> float:
        first, second = np.triu_indices(len(ours), 1)
        return float(((ours[first] > ours[second]) == (theirs[first] > theirs[second])).mean())

    within = np.mean([share(ours, theirs) for ours, theirs in zip(scores, true, strict=True)])
    return share(np.concatenate(scores), np.concatenate(true)), float(within)


def curve_table(taste: str, results: dict[str, list]) -> str:
    marks = [10, 20, 30, 40, 60, 100, 150, 200]
    head_row = f"| asked | {' | '.join(map(str, marks))} | clicks to {TARGET} |"
    lines = [f"**The voter likes {taste}**; accuracy of any two pictures, mean ± half the 95 % interval over seeds\n"]
    lines += [head_row, "|---" * (len(marks) + 2) + "|"]
    for which, label in ((0, ""), (1, ", two pictures of one prompt")):
        for way, runs in results.items():
            values = np.array(runs)[:, :, which]
            cells = [_cell(values[:, mark // EVERY - 1]) if mark // EVERY <= values.shape[1] else "" for mark in marks]
            mean = values.mean(0)
            there = [EVERY * (place + 1) for place in range(len(mean)) if (mean[place:] >= TARGET).all()]
            needed = str(there[0]) if there else f"not in {EVERY * len(mean)}"
            lines.append(f"| {way}{label} | {' | '.join(cells)} | {needed} |")
    return "\n".join(lines)


def _cell(values: np.ndarray) -> str:
    interval = mean_interval(values.tolist())
    return f"{interval.mean:.3f} ± {interval.mean - interval.low:.3f}"


# --- the trainings ----------------------------------------------------------------------------------------------------


class SimulatedVote(GroupReward):
    """The voter picks the best and the worst of every group; their Bradley-Terry scores are the reward."""

    def __init__(self, seed: int):
        super().__init__("vote")
        self.random, self.clicks = np.random.default_rng(seed), 0

    def score_groups(self, samples, prompts, groups):
        scores = np.zeros(len(samples))
        for group in sorted(set(groups)):
            rows = [row for row, number in enumerate(groups) if number == group]
            utilities = redness(samples[rows]).numpy()
            best = click(utilities, range(len(rows)), self.random).order[0]
            worst = click(-utilities, [n for n in range(len(rows)) if n not in best], self.random).order[0]
            others = tuple(number for number in range(len(rows)) if number not in best + worst)
            scores[rows] = bradley_terry(Answer("order", (best, others, worst)).pairs, len(rows))
            self.clicks += 2
        return scores.tolist()


def trainings(folder: Path, seeds: range) -> str:
    lines = [
        f"**Training**, {ITERATIONS} iterations of 4 prompts × {GROUP} pictures; means ± half the 95 % interval over seeds\n",
        "| reward | clicks | redness before | after | rise | shapes accuracy before | after |",
        "|---|---|---|---|---|---|---|",
    ]
    for way in ("direct vote", "head of 60 clicks"):
        runs = [
            kept(folder / f"training-{way.replace(' ', '-')}-{seed}.json", lambda way=way, seed=seed: train(way, seed))
            for seed in seeds
        ]
        columns = np.array([[r["before"], r["after"], r["after"] - r["before"]] for r in runs])
        right = np.array([[r["right_before"], r["right_after"]] for r in runs])
        before, after, rise = (_cell(column) for column in columns.T)
        cells = [str(runs[0]["clicks"]), before, after, rise, f"{right[:, 0].mean():.3f}", _cell(right[:, 1])]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


def train(way: str, seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    model = load_flow_model(ASSETS / "shapes-flux", lora_rank=16, lora_alpha=16.0, seed=seed, device="cpu")
    before = evaluated(model)
    reward = SimulatedVote(seed) if way == "direct vote" else taste_of(seed)
    lines = read_prompts("", str(ASSETS / "prompts" / "shapes_train.txt"))
    order = np.random.default_rng(seed).permutation(len(lines)).tolist()
    for iteration in range(ITERATIONS):
        numbers = [order[(4 * iteration + place) % len(order)] for place in range(4)]
        prompts = Prompts(tuple(lines[number] for number in numbers), tuple(range(4 * iteration, 4 * iteration + 4)))
        trajectories = rollout.sample(model, prompts, SETTINGS, group_size=GROUP, seed=seed)
        scores = score_stack([reward], trajectories.images, trajectories.texts, trajectories.groups)
        credit = tcd(trajectories.latents, trajectories.final, trajectories.trained, w_min=0.5)
        grpo.update(model, trajectories, fuse(scores, credit, "moca"), UpdateSettings(learning_rate=RATE))
    after = evaluated(model)
    clicks = reward.clicks if isinstance(reward, SimulatedVote) else CLICKS
    return {
        "clicks": clicks,
        "before": before[0],
        "after": after[0],
        "right_before": before[1],
        "right_after": after[1],
    }


def taste_of(seed: int) -> Reward:
    """Learned by CLICKS clicks, best of 4, on pictures of the untrained model."""
    groups, rows = sampled("shapes_train.txt", PROMPTS, 0)
    random, learner = np.random.default_rng(seed), Learner()
    for _ in range(CLICKS):
        offered = random.choice(len(rows), OFFERED, replace=False).tolist()
        question = learner.question_of_features([rows[number] for number in offered], 4)
        group = offered[question.group]
        learner.add_features(rows[group], click(redness(groups[group]).numpy(), question.pictures, random).order)
    return TasteReward("my_taste", learner.head())


def evaluated(model) -> tuple[float, float]:
    """Mean redness and shapes accuracy on the evaluation prompts, two pictures each, always of the same noise."""
    texts = [text for text in read_prompts("", str(ASSETS / "prompts" / "shapes_eval.txt")) for _ in range(2)]
    images = rollout.generate(model, texts, SETTINGS, list(range(len(texts))))
    right = [accuracy(image, text) for image, text in zip(images.numpy(), texts, strict=True)]
    return float(redness(images).mean()), float(np.mean([value for value in right if value is not None]))


if __name__ == "__main__":
    main()
