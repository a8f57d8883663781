"""Pictures a second of a stack of rewards: batched with a shared backbone, against one picture a call.

    python bench/rewards.py [--pictures 24] [--batch 0] [--rounds 5] [--threads N] [--device auto]

CLIP-T, aesthetic (on CLIP-T's checkpoint), PickScore, HPSv2.1 and ImageReward, with random weights of a modest size. Three ways
take turns, so that whatever else the machine does weighs on all alike; medians, and ratios within this run, are shown:

- one by one: each reward has a network of its own and is asked for one picture at a time, encoding its prompt again, as the
  reference packages are (the reloading that some of them do at every call is left out);
- batched: the same, but all pictures at once and each prompt once;
- stack: as here, where CLIP-T and aesthetic also share a forward pass.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from comfyui_otca.host.access import permissions
from comfyui_otca.host.terminal import quiet_libraries
from comfyui_otca.tests.tiny import rewards as tiny_rewards
from comfyui_otca.trainer.networks import network
from comfyui_otca.trainer.rewards import reward_class
from comfyui_otca.trainer.rewards.base import score

PROMPTS = ("a red circle on a blue background", "a green square", "a blue circle", "a red square on a green background")
WIDE: dict[str, Any] = dict(text=(256, 4, 4), vision=(384, 6, 6), patch=16, image=224)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=24)
    parser.add_argument("--batch", type=int, default=0, help="pictures to one forward; 0: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    quiet_libraries()
    if options.threads:
        torch.set_num_threads(options.threads)
    ways, about = throughput(options.pictures, options.batch, options.rounds, options.device)
    print(about + "\n")
    print("| | seconds | pictures a second | ÷ one by one | largest difference of a score |")
    print("|---|---|---|---|---|")
    slowest = ways["one by one"][0]
    for way, (median, difference) in ways.items():
        print(f"| {way} | {median:.2f} | {options.pictures / median:.1f} | {slowest / median:.2f} | {difference:.0e} |")


def throughput(
    count: int, batch: int, rounds: int, device: str, side: int = 512, tiny: bool = False
) -> tuple[dict[str, tuple[float, float]], str]:
    """Median seconds of each way, and how far its scores are from those of the first; and what was measured, in words."""
    pictures = torch.rand(count, side, side, 3, generator=torch.Generator().manual_seed(0))
    prompts = [PROMPTS[number * len(PROMPTS) // count] for number in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        os.environ[permissions.FOLDERS] = folder  # no workflow named it: we did
        settings = _made(Path(folder), tiny)
        use = {"batch_size": batch, "device": device}
        together = [reward_class(kind)(**own, **use) for kind, own in settings.items()]
        apart = []
        for kind, own in settings.items():
            network._loaded.clear()  # so that none finds another's network
            apart.append(reward_class(kind)(**own, **use))
        ways = {
            "one by one": lambda: _one_by_one(apart, pictures, prompts),
            "batched": lambda: _batched(apart, pictures, prompts),
            "stack": lambda: _batched(together, pictures, prompts),
        }
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        scores = {}
        for number in range(rounds + 1):  # the first round warms up
            for way, run in ways.items():
                started = time.perf_counter()
                scores[way] = run()
                if number:
                    seconds[way].append(time.perf_counter() - started)
    found = {
        way: (statistics.median(times), (scores[way] - scores["one by one"]).abs().max().item())
        for way, times in seconds.items()
    }
    return (
        found,
        f"{count} pictures, {len(set(prompts))} prompts, {len(settings)} rewards, on {together[0].network.device}",
    )


def _one_by_one(rewards, pictures, prompts) -> torch.Tensor:
    rows = []
    for number, prompt in enumerate(prompts):
        _forget(rewards)
        rows.append(score(rewards, pictures[number : number + 1], [prompt]))
    return torch.cat(rows)


def _batched(rewards, pictures, prompts) -> torch.Tensor:
    _forget(rewards)
    return score(rewards, pictures.clone(), prompts)  # a copy, of which nothing is known yet


def _forget(rewards) -> None:
    for reward in rewards:
        getattr(reward.network, "_texts", {}).clear()


def _made(folder: Path, tiny: bool) -> dict[str, dict[str, str]]:
    deep: dict[str, int] = {} if tiny else dict(width=384, layers=6, text_layers=4, patch=16, image=224)
    wide = {} if tiny else WIDE
    clip = str(tiny_rewards.clip(folder / "clip", **wide))
    blip = tiny_rewards.image_reward(folder / "image_reward", **deep)
    hps = tiny_rewards.hps(folder / "hps.pt", **(deep and {**deep, "text_width": 256}))
    return {
        "clip_t": {"model": clip},
        "aesthetic": {"model": clip, "path": str(tiny_rewards.aesthetic(folder / "head.pth"))},
        "pickscore": {"path": str(tiny_rewards.pickscore(folder / "pickscore", **wide)), "processor": clip},
        "hpsv2": {"path": str(hps), "tokenizer": clip},
        "image_reward": {
            "path": str(blip / "ImageReward.pt"),
            "config": str(blip / "med_config.json"),
            "tokenizer": str(blip / "bert-base-uncased"),
        },
    }


if __name__ == "__main__":
    main()
