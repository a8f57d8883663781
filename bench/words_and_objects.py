"""Does Reward: Text read what is there, and how fast are Text and Objects?

    python bench/words_and_objects.py [--pictures 4] [--rounds 3] [--skip-words] [--device auto]

Words: 50 of them, written by Pillow in five fonts on plain, shaded and noisy ground, each at four sizes, and read back by the
real OCR models. Each picture is read once and scored twice: by its own word, and by the same word with one letter changed, where
1 - 1 / length is right.

Throughput: Text, Objects with OWLv2 and with Grounding DINO, and CLIP-T to compare with, take turns on the same pictures;
medians, and ratios within this run. Text runs with its real models; the networks of the others have random weights and a modest
size, and see pictures as large as the published ones do.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

from comfyui_otca.host.access.permissions import user_named
from comfyui_otca.host.terminal import quiet_libraries
from comfyui_otca.tests.tiny import detectors as tiny_detectors
from comfyui_otca.tests.tiny import rewards as tiny_rewards
from comfyui_otca.trainer.networks import ocr
from comfyui_otca.trainer.networks.preprocess import pil
from comfyui_otca.trainer.rewards import reward_class
from comfyui_otca.trainer.rewards.base import score
from comfyui_otca.trainer.rewards.text import likeness
from comfyui_otca.trainer.types import Prompt

WORDS = (
    "open closed bakery coffee market library station museum garden harbor welcome danger exit sale fresh "
    "summer winter sunset midnight tomorrow freedom justice courage wisdom silence Amsterdam Berlin Chicago "
    "Dublin Edinburgh 2026 No.7 B52 24h 50% café naïve façade jalapeño über "
    "rock&roll don't mother-in-law e-mail A+ imagination refrigerator xylophone quartz zigzag"
).split()
FONTS = ("DejaVu Sans", "DejaVu Serif", "DejaVu Sans Mono", "DejaVu Sans:bold", "DejaVu Sans:italic")
SIZES = (8, 12, 24, 48)  # pixels from line to line, in a picture of SIDE
SIDE = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip-words", action="store_true")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    quiet_libraries()
    if not options.skip_words:
        words()
    throughput(options.pictures, options.rounds, options.device)


def words() -> None:
    reader = ocr.reader()
    print(f"{len(WORDS)} words, {len(FONTS)} fonts, pictures of {SIDE} × {SIDE}\n")
    print(
        "| size of the font | read to the letter | mean score | the same, asked with one letter changed | all read: |"
    )
    print("|---|---|---|---|---|")
    for size in SIZES:
        pictures = [written(word, size, number) for number, word in enumerate(WORDS)]
        own, changed = [], []
        for picture, word in zip(pictures, WORDS, strict=True):
            read = "".join(reader.lines(pil(picture)[0]))
            own.append(likeness(read, [word]))
            changed.append(likeness(read, [with_one_changed(word)]))
        right = statistics.mean(1 - 1 / len(word) for word in WORDS)
        missed = [word for word, value in zip(WORDS, own, strict=True) if value < 1]
        print(
            f"| {size} px | {sum(value == 1 for value in own)} of {len(own)} | {statistics.mean(own):.3f} "
            f"| {statistics.mean(changed):.3f} | {right:.3f} |"
        )
        print(f"<!-- not read: {', '.join(missed) or 'none'} -->")


def with_one_changed(word: str) -> str:
    """The middle letter becomes the one in the alphabet after it, or what is no letter a z."""
    place = len(word) // 2
    letter = word[place].lower()
    other = chr(ord(letter) + 1) if "a" <= letter < "z" else "z" if letter != "z" else "a"
    return word[:place] + other + word[place + 1 :]


def written(word: str, size: int, number: int) -> torch.Tensor:
    """[1, SIDE, SIDE, 3]: the word somewhere on a ground of some color, both picked by its number."""
    random = np.random.default_rng(number)
    ground = random.uniform(20, 235, 3)
    shade = np.linspace(-20, 20, SIDE)[None, :, None] * (number % 3 == 1)
    noise = random.normal(0, 12, (SIDE, SIDE, 1)) * (number % 3 == 2)
    picture = Image.fromarray(np.clip(np.ones((SIDE, SIDE, 1)) * ground + shade + noise, 0, 255).astype(np.uint8))
    font = ImageFont.truetype(font_manager.findfont(FONTS[number % len(FONTS)]), size)
    pen = ImageDraw.Draw(picture)
    left, top, right, bottom = pen.textbbox((0, 0), word, font=font)
    x, y = random.uniform(8, max(SIDE - right - 8, 9)), random.uniform(8, SIDE - bottom - 8)
    pen.text((x, y), word, font=font, fill="white" if ground.mean() < 128 else "black")
    return torch.from_numpy(np.asarray(picture).copy())[None] / 255


def throughput(count: int, rounds: int, device: str) -> None:
    pictures = torch.cat([written(WORDS[number], 64, number) for number in range(count)])
    prompts = [
        Prompt(word, {"text": word, "include": [{"class": "cup", "count": 2}, {"class": "dog", "count": 1}]})
        for word in WORDS[:count]
    ]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        user_named(folder)
        tiny_rewards.clip(folder / "clip", text=(256, 4, 4), vision=(384, 6, 6), patch=16, image=224)
        tiny_detectors.owlv2(folder / "owlv2", width=384, layers=6, patch=16, image=960)
        tiny_detectors.grounding_dino(folder / "dino", width=256, layers=6, image=800, backbone=48, queries=900)
        objects = {"clip_model": "", "device": device, "batch_size": 1}
        rewards = {
            "clip_t": reward_class("clip_t")(model=str(folder / "clip"), device=device),
            "text": reward_class("text")(),
            "objects, OWLv2": reward_class("objects")(path=str(folder / "owlv2"), **objects),
            "objects, Grounding DINO": reward_class("objects")(path=str(folder / "dino"), **objects),
        }
        seconds: dict[str, list[float]] = {name: [] for name in rewards}
        for number in range(rounds + 1):  # the first round warms up
            for name, reward in rewards.items():
                started = time.perf_counter()
                score([reward], pictures.clone(), prompts)  # a copy, of which nothing is known yet
                if number:
                    seconds[name].append(time.perf_counter() - started)
    base = statistics.median(seconds["clip_t"])
    print(f"\n{count} pictures of {SIDE} × {SIDE}, two names each for Objects\n")
    print("| reward | seconds a picture | pictures a second | time ÷ CLIP-T's |")
    print("|---|---|---|---|")
    for name, times in seconds.items():
        median = statistics.median(times)
        print(f"| {name} | {median / count:.2f} | {count / median:.2f} | {median / base:.1f} |")


if __name__ == "__main__":
    main()
