"""Samples with the scores that rewards give them."""

from __future__ import annotations

import os
import textwrap

import numpy as np
import torch
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

from ...assets.examples import reward_server as example_server
from ...host.access.permissions import PYTHON
from ...trainer.groups import per_group
from ...trainer.pictures import grids, heatmaps
from ...trainer.rewards import ranking, scenes
from ...trainer.rewards.base import score
from ...trainer.rewards.vote import head as vote_head
from ...trainer.rewards.vote import votes
from ...trainer.rewards.vote.learning import Learner
from ..models.draw_scenes import draw_scene
from ..models.worlds import misheard
from .drawing import COLORS
from .sources import CAPTIONS, GROUP_SIZE, ROOT, reward, scores, trajectories, workplace


def from_low_to_high(kind: str) -> np.ndarray:
    """Pictures from the lowest to the highest score by one reward, with the score beneath."""
    own = trajectories(4)
    asks_the_prompt = kind in ("clip_t", "accuracy")
    return _from_low_to_high(score([reward(kind)], own.images, own.texts)[:, 0], asks_the_prompt)


def _from_low_to_high(values: torch.Tensor, prompts: bool = False) -> np.ndarray:
    """The same of any scores; with prompts where what was asked for matters."""
    own = trajectories(4)
    order = values.argsort(stable=True)[torch.linspace(0, len(values) - 1, 8).round().long()]
    captions = [f"{values[row]:.3g}" for row in order]
    if prompts:
        captions = [f"{value}: {own.texts[row]}" for value, row in zip(captions, order.tolist(), strict=True)]
    return grids.sample_grid(own.images[order], captions, columns=4)


def reward_my_taste() -> np.ndarray:
    """Pictures by a taste for warm colours, learned from one pick for each of four prompts."""
    own, learner = trajectories(4), Learner("shapes-clip")
    red = (own.images[..., 0] - own.images[..., 1:].mean(-1)).mean((1, 2))
    rows = vote_head.read(learner.network, own.images)
    for members in per_group(own.groups):
        places = members.nonzero()[:, 0]
        best = int(red[places].argmax())
        learner.add_features(rows[places], ((best,), tuple(n for n in range(len(places)) if n != best)))
    return _from_low_to_high(torch.from_numpy(learner.head().scores(rows)))


def reward_http() -> np.ndarray:
    """By the example server's own function."""
    own = trajectories(4)
    pictures = (own.images * 255).round().byte().numpy()
    return _from_low_to_high(torch.tensor(example_server.score(list(pictures), own.texts, [{}] * len(own.texts))))


def reward_python() -> np.ndarray:
    """By the function on the node's page."""
    page = (ROOT / "web" / "docs" / "OTCA_RewardPython.md").read_text(encoding="utf-8")
    file, own = workplace() / "by_hand.py", trajectories(4)
    file.write_text(textwrap.dedent(page[page.index("    def score(") :].split("\n\n")[0]), encoding="utf-8")
    os.environ[PYTHON] = str(file.parent)
    return _from_low_to_high(score([reward("python", file=str(file))], own.images, own.texts)[:, 0])


def reward_scenes() -> np.ndarray:
    """Drawn scenes, each with a careless caption: the grade, whether the judge agrees, and what was asked."""
    random = np.random.default_rng(11)
    drawn = [scene for scene in scenes.scenes() if scene.relation in ("left of", "above")][::17][:8]
    asked = [misheard(misheard(scene, random), random).caption for scene in drawn]  # twice, so that more go wrong
    pictures = np.stack([draw_scene(scene, random) / 255 for scene in drawn]).astype(np.float32)
    captions = [
        f"{scenes.grade(picture, text):.2f}, {'right' if scenes.judge(picture, text) else 'wrong'}: {text}"
        for picture, text in zip(pictures, asked, strict=True)
    ]
    return grids.sample_grid(torch.from_numpy(pictures), captions, columns=4)


def reward_text() -> np.ndarray:
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


def reward_vote() -> np.ndarray:
    """Three groups of six: the reddest picture of each is the best, the least red one the worst."""
    own, captions, shown = trajectories(4), [], []
    red = (own.images[..., 0] - own.images[..., 1:].amax(-1)).mean((1, 2))
    for first in range(0, 3 * GROUP_SIZE, GROUP_SIZE):
        group = red[first : first + 6]
        best, worst = int(group.argmax()), int(group.argmin())
        others = tuple(number for number in range(6) if number not in (best, worst))
        strengths = votes.bradley_terry(votes.Answer("order", ((best,), others, (worst,))).pairs, 6)
        said = {best: "best: ", worst: "worst: "}
        captions += [
            f"{said.get(number, '')}{strength if abs(strength) > 0.005 else 0:.2f}"  # no -0.00
            for number, strength in enumerate(strengths)
        ]
        shown.append(own.images[first : first + 6])
    return grids.sample_grid(torch.cat(shown), captions, columns=6)


def reward_table() -> np.ndarray:
    return heatmaps.reward_table(scores(2), trajectories(2).images)


def score_images() -> np.ndarray:
    """Eight samples of one prompt, ranked by two rewards."""
    images = trajectories(1).images[:8]
    ranked = ranking.rank([reward("clip_t"), reward("colorfulness")], images, [CAPTIONS[0]] * len(images))
    captions = [f"{place}.  {ranked.totals[sample]:+.2f}" for place, sample in enumerate(ranked.order.tolist(), 1)]
    return grids.sample_grid(images[ranked.order], captions, columns=4)
