"""What rewards look at, and the rules by which they score."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import numpy as np
import torch
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch, Rectangle

from ...trainer.networks import preprocess
from ...trainer.pictures.figures import new_figure, rendered
from ...trainer.rewards import geneval
from ...trainer.rewards.chat import Reply
from ...trainer.rewards.judge import probability_of_yes
from ...trainer.rewards.video_align import sampled_frames
from ...trainer.rewards.video_score import spread_frames
from .drawing import COLORS
from .sources import GROUP_SIZE, trajectories


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


def reward_judge() -> np.ndarray:
    """One token of an answer as a server lists it: what counts as yes, as no, and as neither."""
    listed = {"Yes": 0.6, "No": 0.2, " yes": 0.1, "yes": 0.05, "The": 0.03}
    reply = Reply("Yes", False, [[(token, float(np.log(p))) for token, p in listed.items()]])
    colors = {"yes": COLORS[0], "no": COLORS[1], "neither": "#BBBBBB"}
    meant = {token: next((word for word in ("yes", "no") if word in token.lower()), "neither") for token in listed}
    yes, no = (sum(p for token, p in listed.items() if meant[token] == word) for word in ("yes", "no"))
    figure = new_figure(5.4, 2.2)
    axis = figure.subplots()
    axis.barh([repr(token) for token in listed], [*listed.values()], color=[colors[meant[token]] for token in listed])
    axis.invert_yaxis()
    axis.set_xlim(0, 1)
    axis.set_xlabel("probability of the answer's first token")
    axis.legend(handles=[Patch(color=color, label=name) for name, color in colors.items()], loc="lower right")
    axis.set_title(f"score {yes:.2f} / {yes + no:.2f} = {probability_of_yes(reply):.3f}", fontsize=10)
    return rendered(figure)


def object_places() -> np.ndarray:
    """Where a second square counts as left of, right of, above or below the first."""
    side, middle, both = 20, 50, len(geneval.POSITIONS)
    first = (middle - side / 2, middle - side / 2, middle + side / 2, middle + side / 2)
    figure = new_figure(4.2, 3.9)
    axis = figure.subplots()
    ways = np.full((101, 101), np.nan)
    for y, x in np.ndindex(ways.shape):
        names = geneval.relations((x - side / 2, y - side / 2, x + side / 2, y + side / 2), first)
        if names:
            ways[y, x] = geneval.POSITIONS.index(min(names)) if len(names) == 1 else both
    axis.imshow(ways, cmap=ListedColormap((*COLORS[:4], "#bbbbbb")), vmin=-0.5, vmax=4.5, interpolation="nearest")
    axis.add_patch(Rectangle(first[:2], side, side, fill=False, edgecolor="black", linewidth=1.5))
    for name, place in zip(geneval.POSITIONS, ((12, 50), (88, 50), (50, 12), (50, 88)), strict=True):
        axis.text(*place, name, ha="center", va="center", color="white", fontsize=10, weight="bold")
    for place in ((15, 15), (85, 15), (15, 85), (85, 85)):
        axis.text(*place, "both", ha="center", va="center", fontsize=9)
    axis.text(50, 50, "neither", ha="center", va="center", fontsize=8)
    axis.set_axis_off()
    axis.set_title("Centre of the second square, and how it stands to the first", fontsize=9)
    return rendered(figure)


def video_align_frames() -> np.ndarray:
    return _frames_seen(lambda total, fps: sampled_frames(total, fps, 2.0))


def video_score_frames() -> np.ndarray:
    return _frames_seen(lambda total, fps: spread_frames(total, 48))


def _frames_seen(choose: Callable[[int, int], list[int]]) -> np.ndarray:
    """Which frames of some videos a video reward looks at: a row a video, a dot a frame, filled where it is seen."""
    videos = ((33, 16), (49, 16), (81, 16), (121, 24))
    figure = new_figure(5.6, 2.4)
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
    return rendered(figure)
