"""`python -m comfyui_otca.tools.models`: trains the embedded models again, from nothing but this folder.

On two CPU cores the shapes world takes about half an hour, the scenes world longer; its flow goes on where it was stopped.
`--only clip|flux` makes one of its models, `--check` samples from what is there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from .worlds import WORLDS

ASSETS = Path(__file__).resolve().parents[2] / "assets"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m comfyui_otca.tools.models", description=__doc__)
    parser.add_argument("--world", choices=list(WORLDS), default="shapes", help="the world whose models are made")
    parser.add_argument("--only", choices=["clip", "flux"], help="make just one of the two models")
    parser.add_argument(
        "--check", action="store_true", help="make nothing: sample every caption and judge the pictures"
    )
    parser.add_argument("--output", type=Path, default=ASSETS, help="folder that receives WORLD-clip and WORLD-flux")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=float, default=1.0, help="factor on every number of training steps")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.check:
        from .check import check

        check(WORLDS[args.world], args.output)
        return
    from .clip import train as train_clip
    from .data import drawings
    from .flux import train_flow, train_vae

    torch.manual_seed(0)
    world = WORLDS[args.world]
    data = drawings(world, per_caption=96, seed=0)
    clip, flux = args.output / f"{world.name}-clip", args.output / f"{world.name}-flux"
    if args.only != "flux":
        train_clip(data, clip, steps=round(1500 * args.steps))
    if args.only != "clip":
        vae = train_vae(data, steps=round(2500 * args.steps))
        careless = drawings(world, per_caption=96, seed=1, careless=True) if world.careless else None
        train_flow(data, careless, vae, clip, flux, steps=round(world.steps * args.steps))


if __name__ == "__main__":
    main()
