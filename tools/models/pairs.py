"""`python -m comfyui_otca.tools.models.pairs`: assets/prompts/shapes_pairs, the pairs of preference_pairs and my_pictures.

The embedded model draws each of some training prompts several times. Only pictures that show what the prompt asks for are used:
the most colourful one is chosen and the least colourful one rejected. That is a taste that is seen at once, and that pairs alone
can teach.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

from ...trainer import rollout
from ...trainer.flow import load_flow_model
from ...trainer.opinions.reading import CHOSEN, FILE, REJECTED
from ...trainer.pictures import grids, media
from ...trainer.prompts import choose, read_prompts
from ...trainer.rewards import reward_class
from ...trainer.rewards.base import score
from ...trainer.types import SamplerSettings

ASSETS = Path(__file__).resolve().parents[2] / "assets"
TARGET = ASSETS / "prompts" / "shapes_pairs"
COUNT, DRAWN, SEED = 32, 12, 0
MOST_BYTES = 300_000
# As the workflow otca draws, but by the deterministic sampler.
SETTINGS = SamplerSettings(
    kind="ode", eta=0.0, steps=8, width=40, height=40, shift=0.0, guidance=3.5, shared_noise=False
)


def main() -> None:
    model = load_flow_model(ASSETS / "shapes-flux", device="cpu")
    judges = [reward_class("accuracy")(), reward_class("colorfulness")()]
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir()
    lines, index = [], 0
    while len(lines) < COUNT:
        prompts = choose(read_prompts("", "shapes_train.txt"), 4, index, SEED)
        own = rollout.sample(model, prompts, SETTINGS, group_size=DRAWN, seed=index)
        accuracy, colorfulness = score(judges, own.images, own.texts).numpy().T
        for group, prompt in enumerate(prompts.texts):
            rows = np.flatnonzero((own.groups.numpy() == group) & (accuracy == 1))
            if len(rows) > 1 and len(lines) < COUNT:
                ranked = rows[colorfulness[rows].argsort()]
                names = {kind: f"{len(lines):02d}_{kind}.png" for kind in (CHOSEN, REJECTED)}
                for kind, row in ((CHOSEN, ranked[-1]), (REJECTED, ranked[0])):
                    grids.save(media.eight_bits(own.images[row]).numpy(), TARGET / names[kind])
                lines.append(json.dumps({"prompt": str(prompt), **names}))
        index += 1
    (TARGET / FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")
    size = sum(file.stat().st_size for file in TARGET.iterdir())
    print(f"{TARGET}: {len(lines)} pairs, {size} bytes")
    if size > MOST_BYTES:
        raise SystemExit(f"{TARGET} is larger than {MOST_BYTES} bytes")


if __name__ == "__main__":
    main()
