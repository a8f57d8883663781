"""`python -m comfyui_otca.tools.doc_pictures`: draws the pictures of the help pages (web/docs), and the pack's icon and
banner, again.

Everything shown is computed: samples of the embedded model, short trainings of the workflow otca, and curves of the project's own
formulas. `--only NAME …` draws some of them. All take a few minutes on two cores, and 20 more the two named native, which need a
ComfyUI.

`sources.py` has what several pictures are made of, `drawing.py` what several figures share. Each other file has the pictures of
some nodes, one function a picture.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np
from PIL import Image

from . import credit, data, fusion, guidance, model, native, registry, reward_rules, rewards, sampling, training
from .sources import ROOT

PICTURES, REGISTRY = ROOT / "web" / "docs" / "pictures", ROOT / "assets" / "pictures"
FOR_THE_REGISTRY = ("icon", "banner")
MOST_BYTES = 60_000

# Each picture by its name, which is that of its file: in the order of the nodes that it explains.
DRAWINGS: dict[str, Callable[[], np.ndarray]] = {
    "embedded_model": model.embedded_model,
    "model_memory": model.model_memory,
    "model_files": model.model_files,
    "native_layers": native.native_layers,
    "native_before_after": native.native_before_after,
    "prompt_order": data.prompt_order,
    "preference_pairs": data.preference_pairs,
    "sampler_noise": sampling.sampler_noise,
    "window_places": sampling.window_places,
    "sampler_group": sampling.sampler_group,
    "reward_clip_t": partial(rewards.from_low_to_high, "clip_t"),
    "reward_colorfulness": partial(rewards.from_low_to_high, "colorfulness"),
    "reward_sharpness": partial(rewards.from_low_to_high, "sharpness"),
    "reward_jpeg_compressibility": partial(rewards.from_low_to_high, "jpeg_compressibility"),
    "reward_jpeg_incompressibility": partial(rewards.from_low_to_high, "jpeg_incompressibility"),
    "reward_accuracy": partial(rewards.from_low_to_high, "accuracy"),
    "reward_my_taste": rewards.reward_my_taste,
    "reward_http": rewards.reward_http,
    "reward_python": rewards.reward_python,
    "reward_scenes": rewards.reward_scenes,
    "reward_text": rewards.reward_text,
    "reward_vote": rewards.reward_vote,
    "reward_table": rewards.reward_table,
    "score_images": rewards.score_images,
    "reward_views": reward_rules.reward_views,
    "reward_judge": reward_rules.reward_judge,
    "object_places": reward_rules.object_places,
    "video_align_frames": reward_rules.video_align_frames,
    "video_score_frames": reward_rules.video_score_frames,
    "tcd_floors": credit.tcd_floors,
    "tcd_heatmap": credit.tcd_heatmap,
    "uniform_heatmap": credit.uniform_heatmap,
    "combined_heatmap": credit.combined_heatmap,
    "learned_heatmap": credit.learned_heatmap,
    "step_pull": credit.step_pull,
    "credit_places": credit.credit_places,
    "moca_z": fusion.moca_z,
    "moca_heatmap": fusion.moca_heatmap,
    "best_of_n": fusion.best_of_n,
    "fusion_agreement": fusion.fusion_agreement,
    "stepwise_gain": fusion.stepwise_gain,
    "clipped_loss": training.clipped_loss,
    "old_policy": training.old_policy,
    "reward_curves": training.reward_curves,
    "before_after": training.before_after,
    "guidance": guidance.by_two_adapters,
    "icon": registry.icon,
    "banner": registry.banner,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m comfyui_otca.tools.doc_pictures", description=__doc__)
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


if __name__ == "__main__":
    main()
