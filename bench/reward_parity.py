"""Scores of the image rewards against those of a reference implementation, as a Markdown table.

    python bench/reward_parity.py                                        tiny random weights, in seconds
    python bench/reward_parity.py --weights full --only hpsv2            random weights of the published sizes
    python bench/reward_parity.py --weights published --pictures *.png --prompt "a red circle"

Random weights are written in the published layouts and loaded as published ones are. The references are those of
study/reward_references.py; with `--weights published` also the packages `hpsv2` and `ImageReward`, where they can be imported.

`--weights published` takes what is in the model folders and in the local hub cache, and says what is not.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from comfyui_otca.host.access.permissions import user_named
from comfyui_otca.host.terminal import quiet_libraries
from comfyui_otca.study.reward_references import reference
from comfyui_otca.tests.tiny import rewards as tiny_rewards
from comfyui_otca.trainer.networks import clip, preprocess
from comfyui_otca.trainer.rewards import aesthetic, hps, image_reward, reward_class

KINDS = ("clip_t", "aesthetic", "pickscore", "hpsv2", "image_reward")
PROMPTS = ("a red circle", "a blue square on a green background")
SHAPES = ((256, 256), (300, 457))

VIT_L = dict(text=(768, 12, 12), vision=(1024, 24, 16), patch=14, image=224, vocabulary=49408, projection=768)
VIT_H = dict(text=(1024, 24, 16), vision=(1280, 32, 16), patch=14, image=224, vocabulary=49408, projection=1024)
FULL = {
    "clip_t": VIT_L,
    "aesthetic": VIT_L,
    "pickscore": VIT_H,
    "hpsv2": dict(
        width=1280, text_width=1024, layers=32, text_layers=24, projection=1024, patch=14, image=224, vocabulary=49408
    ),
    "image_reward": dict(width=1024, layers=24, text_layers=12, inner=3072, patch=16, image=224, vocabulary=30522),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", choices=["tiny", "full", "published"], default="tiny")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--pictures", nargs="+", type=Path, help="instead of noise")
    parser.add_argument("--prompt", action="append", help="one, or one for each picture")
    options = parser.parse_args()
    quiet_libraries()
    batches = list(_batches(options.pictures, options.prompt))
    print("| reward | weights | reference | scores | reference's range | largest difference |")
    print("|---|---|---|---|---|---|")
    missing = []
    for kind in options.only:
        with tempfile.TemporaryDirectory() as folder:
            try:
                _compare(kind, options.weights, Path(folder), batches)
            except FileNotFoundError as error:
                missing.append(f"{kind}: {error}")
    for line in missing:
        print(f"\n{line}")


def _compare(kind: str, weights: str, folder: Path, batches) -> None:
    if weights == "published":
        settings = {"model": clip.VIT_L.source} if kind == "clip_t" else {}
    else:
        user_named(folder)
        settings = _made(kind, folder, FULL[kind] if weights == "full" else {})
    reward = reward_class(kind)(**settings)
    ours = torch.cat([reward.score(images, prompts).cpu() for images, prompts in batches])
    for name, implementation in _references(kind, reward.network, settings, weights):
        with torch.no_grad():
            theirs = torch.cat([implementation(preprocess.pil(images), prompts) for images, prompts in batches])
        print(
            f"| {kind} | {weights} | {name} | {len(ours)} | {theirs.min():.4f} to {theirs.max():.4f} | "
            f"{(ours - theirs).abs().max():.1e} |",
            flush=True,
        )


def _made(kind: str, folder: Path, size: dict) -> dict[str, str]:
    """Random weights of that size; the settings of a reward that reads them."""
    if kind == "clip_t":
        return {"model": str(tiny_rewards.clip(folder / "clip", **size))}
    if kind == "aesthetic":
        model = tiny_rewards.clip(folder / "clip", **size)
        return {"path": str(tiny_rewards.aesthetic(folder / "head.pth")), "model": str(model)}
    if kind == "pickscore":
        return {"path": str(tiny_rewards.pickscore(folder / "pickscore", **{**size, "processor": True}))}
    if kind == "hpsv2":
        tokenizer = tiny_rewards.clip_tokenizer(folder / "tokenizer", size.get("vocabulary"))
        return {"path": str(tiny_rewards.hps(folder / "hps.pt", **size)), "tokenizer": str(tokenizer)}
    made = tiny_rewards.image_reward(folder / "image_reward", **size)
    files = {"path": "ImageReward.pt", "config": "med_config.json", "tokenizer": "bert-base-uncased"}
    return {name: str(made / file) for name, file in files.items()}


def _references(kind: str, network, settings: dict, weights: str) -> Iterator[tuple]:
    """(name, function of PIL pictures and prompts) of every reference implementation there is."""
    head = aesthetic.FILE.find(settings.get("path", "")) if kind == "aesthetic" else None
    yield reference(kind, network, head)
    if weights != "published":
        return
    if kind == "hpsv2" and importlib.util.find_spec("hpsv2"):
        package = hps.HPSv2(provider="hpsv2")
        yield "package hpsv2", lambda pictures, prompts: package.score(_tensor(pictures), prompts)
    if kind == "image_reward" and importlib.util.find_spec("ImageReward"):
        yield "package ImageReward", _image_reward_package(network.path, image_reward.CONFIG.find())


def _image_reward_package(path: Path, config: Path):
    import ImageReward

    model = ImageReward.load(str(path), device="cpu", med_config=str(config))

    def scores(pictures, prompts):
        return torch.tensor([model.score(prompt, picture) for picture, prompt in zip(pictures, prompts, strict=True)])

    return scores


def _batches(pictures: list[Path] | None, prompts: list[str] | None) -> Iterator[tuple[torch.Tensor, list[str]]]:
    """Pictures of one size each, and their prompts."""
    if pictures is None:
        for height, width in SHAPES:
            coarse = torch.rand(4, 3, 9, 9, generator=torch.Generator().manual_seed(height + width))
            smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic").clamp(0, 1)
            yield smooth.permute(0, 2, 3, 1), [*(prompts or PROMPTS)] * (4 // len(prompts or PROMPTS))
        return
    texts = prompts or [PROMPTS[0]]
    for number, path in enumerate(pictures):
        yield _tensor([Image.open(path).convert("RGB")]), [texts[number if len(texts) > 1 else 0]]


def _tensor(pictures: list[Image.Image]) -> torch.Tensor:
    return torch.stack([torch.from_numpy(np.array(picture)) / 255 for picture in pictures])


if __name__ == "__main__":
    main()
