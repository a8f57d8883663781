"""Measures rewards. What it prints stands in bench/REWARDS.md.

    python bench/rewards.py stack [--pictures 24] [--batch 0] [--rounds 5]
    python bench/rewards.py published [--only hpsv2 …] [--pictures *.png] [--prompt "a red circle"]
    python bench/rewards.py overlap [WORKFLOW] [--set NODE.INPUT=VALUE …] [--share S …] [--rounds 5]

- stack: pictures a second of CLIP-T, Aesthetic (on the same checkpoint), PickScore, HPSv2.1 and ImageReward, with random weights
  of a modest size. *One by one*: each reward has a network of its own and is asked for one picture at a time, encoding its prompt
  again, as the reference packages are. *Batched*: the same, but all pictures at once and each prompt once. *Stack*: as a Reward
  Stack does it, where CLIP-T and Aesthetic also share a forward pass.
- published: scores by the published weights that are on this machine against a second implementation on the same weights, and
  against the authors' packages `hpsv2` and `ImageReward` if they can be imported.
- overlap: seconds of an iteration whose rewards score after sampling, and while it samples. One reward more is connected, which
  waits as for a server, S times as long as the rollout takes.

Ways that are compared take turns, so that whatever else the machine does weighs on all alike.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from comfyui_otca.bench.common import PHASES, WORKFLOW, table, take_turns
from comfyui_otca.commands.options import quiet_libraries
from comfyui_otca.host.access.permissions import user_named
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.tiny import reference_rewards
from comfyui_otca.tests.tiny import rewards as tiny_rewards
from comfyui_otca.trainer.networks import features, network, preprocess
from comfyui_otca.trainer.rewards import clip, hps, image_reward, reward_class
from comfyui_otca.trainer.rewards.base import Reward, score
from comfyui_otca.trainer.run.loop import only
from comfyui_otca.trainer.types import STACK_NODE, STEP_NODES
from comfyui_otca.trainer.workflow.running import Workflow

PROMPTS = ("a red circle on a blue background", "a green square", "a blue circle", "a red square on a green background")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["stack", "published", "overlap"])
    parser.add_argument("workflow", nargs="?", type=Path, default=WORKFLOW, help="of overlap")
    parser.add_argument("--pictures", nargs="+", help="how many; files of published (default: noise)")
    parser.add_argument("--prompt", action="append", help="of published: one, or one for each picture")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS, help="of published")
    parser.add_argument("--batch", type=int, default=0, help="of stack: pictures to one forward pass; 0: all")
    parser.add_argument("--set", action="append", default=[], metavar="NODE.INPUT=VALUE", help="of overlap")
    parser.add_argument("--share", type=float, nargs="+", default=[0.0, 0.5, 1.0], metavar="S", help="of overlap")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's own)")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    quiet_libraries()
    if options.threads:
        torch.set_num_threads(options.threads)
    globals()[options.what](options)


# --- a stack against one by one ---------------------------------------------------------------------------------------


def stack(options: argparse.Namespace) -> None:
    count = int(options.pictures[0]) if options.pictures else 24
    ways, about = throughput(count, options.batch, options.rounds, options.device)
    print(about + "\n")
    slowest = ways["one by one"][0]
    rows = [
        (way, f"{median:.2f}", f"{count / median:.1f}", f"{slowest / median:.2f}", f"{difference:.0e}")
        for way, (median, difference) in ways.items()
    ]
    print(table(("", "seconds", "pictures a second", "÷ one by one", "largest difference of a score"), rows))


def throughput(
    count: int, batch: int, rounds: int, device: str, side: int = 512, tiny: bool = False
) -> tuple[dict[str, tuple[float, float]], str]:
    """Median seconds of each way, and how far its scores are from those of the first; and what was measured, in words."""
    pictures = torch.rand(count, side, side, 3, generator=torch.Generator().manual_seed(0))
    prompts = [PROMPTS[number * len(PROMPTS) // count] for number in range(count)]

    def forget(rewards) -> None:
        for reward in rewards:
            getattr(reward.network, "_texts", {}).clear()

    def one_by_one() -> torch.Tensor:
        rows = []
        for number, prompt in enumerate(prompts):
            forget(apart)
            rows.append(score(apart, pictures[number : number + 1], [prompt]))
        return torch.cat(rows)

    def batched(rewards) -> torch.Tensor:
        forget(rewards)
        return score(rewards, pictures.clone(), prompts)  # a copy, of which nothing is known yet

    with tempfile.TemporaryDirectory() as folder:
        user_named(folder)
        settings = _made(Path(folder), tiny)
        use = {"batch_size": batch, "device": device}
        together = [reward_class(kind)(**own, **use) for kind, own in settings.items()]
        apart = []
        for kind, own in settings.items():
            network._loaded.clear()  # so that each loads a network of its own
            apart.append(reward_class(kind)(**own, **use))
        ways = {"one by one": one_by_one, "batched": lambda: batched(apart), "stack": lambda: batched(together)}
        medians, scores = take_turns(ways, rounds)
    differences = {way: (scores[way] - scores["one by one"]).abs().max().item() for way in ways}
    about = f"{count} pictures, {len(set(prompts))} prompts, {len(settings)} rewards, on {together[0].network.device}"
    return {way: (medians[way], differences[way]) for way in ways}, about


def _made(folder: Path, tiny: bool) -> dict[str, dict[str, str]]:
    """The settings of each reward, with random weights in its published layout."""
    wide: dict[str, Any] = {} if tiny else dict(text=(256, 4, 4), vision=(384, 6, 6), patch=16, image=224)
    deep: dict[str, int] = {} if tiny else dict(width=384, layers=6, text_layers=4, patch=16, image=224)
    model = str(tiny_rewards.clip(folder / "clip", **wide))
    blip = tiny_rewards.image_reward(folder / "image_reward", **deep)
    open_clip = tiny_rewards.hps(folder / "hps.pt", **(deep and {**deep, "text_width": 256}))
    files = {"path": "ImageReward.pt", "config": "med_config.json", "tokenizer": "bert-base-uncased"}
    return {
        "clip_t": {"model": model},
        "aesthetic": {"model": model, "path": str(tiny_rewards.aesthetic(folder / "head.pth"))},
        "pickscore": {"path": str(tiny_rewards.pickscore(folder / "pickscore", **wide)), "processor": model},
        "hpsv2": {"path": str(open_clip), "tokenizer": model},
        "image_reward": {name: str(blip / file) for name, file in files.items()},
    }


# --- published weights against a second implementation ----------------------------------------------------------------

KINDS = ("clip_t", "aesthetic", "pickscore", "hpsv2", "image_reward")


def published(options: argparse.Namespace) -> None:
    prompts = options.prompt or ["a red circle", "a blue square on a green background"]
    pictures = [Image.open(file).convert("RGB") for file in options.pictures or ()]
    for side in () if pictures else (256, 457):
        coarse = torch.rand(4, 3, 9, 9, generator=torch.Generator().manual_seed(side))
        smooth = torch.nn.functional.interpolate(coarse, (300, side), mode="bicubic").clamp(0, 1)
        pictures += preprocess.pil(smooth.permute(0, 2, 3, 1))
    texts = [prompts[number % len(prompts)] for number in range(len(pictures))]
    print(table(("reward", "reference", "scores", "reference's range", "largest difference"), []))
    missing = []
    for kind in options.only:
        try:
            reward = reward_class(kind)(**({"model": features.VIT_L.source} if kind == "clip_t" else {}))
        except FileNotFoundError as error:
            missing.append(f"{kind}: {error}")
            continue
        scores = _each(reward, pictures, texts)
        for name, implementation in _references(kind, reward):
            with torch.no_grad():
                reference = torch.stack([implementation(*pair) for pair in zip(pictures, texts, strict=True)])
            apart = (scores - reference).abs().max()
            print(
                f"| {kind} | {name} | {len(scores)} | {reference.min():.4f} to {reference.max():.4f} | {apart:.1e} |",
                flush=True,
            )
    for line in missing:
        print(f"\n{line}")


def _each(reward: Reward, pictures: Sequence[Image.Image], texts: Sequence[str]) -> torch.Tensor:
    """[B] scores of B pictures of any sizes."""
    tensors = [torch.from_numpy(np.array(picture))[None] / 255 for picture in pictures]
    return torch.cat([score([reward], *pair)[:, 0] for pair in zip(tensors, [[text] for text in texts], strict=True)])


def _references(kind: str, reward: Any) -> Iterator[tuple[str, Callable[[Image.Image, str], torch.Tensor]]]:
    """(name, score of one picture and prompt) of every reference implementation that there is, in float32 on the CPU."""
    own = reward.network
    if kind == "hpsv2":
        state = {name: tensor.float() for name, tensor in hps.read_checkpoint(own.path).items()}

        def open_clip(picture, prompt):
            tokens = own.tokenizer([hps.clean(prompt)], truncation=True, max_length=77).input_ids
            pixels = reference_rewards.letterbox(picture, own.model.config.vision_config.image_size)[None]
            return torch.cosine_similarity(*reference_rewards.open_clip(state, pixels, tokens))[0]

        yield "open_clip, written out", open_clip
        if importlib.util.find_spec("hpsv2"):
            package = hps.HPSv2(provider="hpsv2")
            yield "package hpsv2", lambda picture, prompt: _each(package, [picture], [prompt])[0]
    elif kind == "image_reward":
        state = image_reward.FILE.read(own.path)

        def blip(picture, prompt):
            pixels = reference_rewards.centre_crop(picture, own.vision.config.image_size)[None]
            tokens = own.tokenizer([prompt], truncation=True, max_length=image_reward.TOKENS).input_ids
            heads = own.text.config.num_attention_heads
            return reference_rewards.image_reward(state, pixels, tokens, heads)[0]

        yield "BLIP, written out", blip
        if importlib.util.find_spec("ImageReward"):
            import ImageReward

            model = ImageReward.load(str(own.path), device="cpu", med_config=str(image_reward.CONFIG.find()))
            yield "package ImageReward", lambda picture, prompt: torch.tensor(model.score(prompt, picture))
    else:
        from transformers import CLIPModel

        model = CLIPModel.from_pretrained(own.path, dtype=torch.float32, local_files_only=True).eval()
        head = clip.AESTHETIC.read(clip.AESTHETIC.find()) if kind == "aesthetic" else {}

        def clip_model(picture, prompt):
            tokens = own.tokenizer(prompt, truncation=True, max_length=77, return_tensors="pt")
            out = model(**own.processor(picture, return_tensors="pt"), **tokens)
            if kind == "aesthetic":
                return reference_rewards.head(head, out.image_embeds)[0]
            cosine = (out.text_embeds @ out.image_embeds.T)[0, 0]
            return model.logit_scale.exp() * cosine if kind == "pickscore" else cosine

        yield "CLIPModel", clip_model


# --- scoring while it samples -----------------------------------------------------------------------------------------


class Server(Reward):
    """Waits so many seconds for every picture."""

    seconds = 0.0

    def score(self, images, prompts):
        time.sleep(self.seconds * len(images))
        return images.mean((1, 2, 3))


class Slow:
    RETURN_TYPES, FUNCTION, CATEGORY = ("OTCA_REWARD",), "build", "bench"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    def build(self):
        return (Server("server"),)


def overlap(options: argparse.Namespace) -> None:
    ways = {"after": _workflow(options, False), "while sampling": _workflow(options, True)}
    for number in range(3):  # the stack asks for scores at its first run, and gets them from the second one on
        reports = {way: _run(workflow, number) for way, workflow in ways.items()}
    count = len(reports["after"].trajectories.groups)
    rollout = reports["after"].metrics["seconds/rollout"]
    batch = reports["after"].trajectories.settings.batch_size
    print(
        f"B = {count} samples, {batch} at a time, {torch.get_num_threads()} CPU threads, {options.rounds} rounds, medians\n"
    )
    heads = ("server s", "rewards score", *(f"{phase} s" for phase in PHASES), "iteration s", "÷ after")
    print(table(heads, []), flush=True)
    for share in options.share:
        Server.seconds = share * rollout / count
        metrics_of = {way: [] for way in ways}
        for number in range(3, 3 + options.rounds):
            for way, workflow in ways.items():
                started = time.perf_counter()
                metrics = _run(workflow, number).metrics
                metrics_of[way].append({**metrics, "whole": time.perf_counter() - started})
        for way, rows in metrics_of.items():
            server = statistics.median(row["seconds/reward/server"] for row in rows)
            phases = " | ".join(f"{statistics.median(row[f'seconds/{phase}'] for row in rows):.3f}" for phase in PHASES)
            whole = statistics.median(row["whole"] for row in rows)
            pairs = zip(rows, metrics_of["after"], strict=True)
            ratio = statistics.median(row["whole"] / after["whole"] for row, after in pairs)
            print(f"| {server:.3f} | {way} | {phases} | {whole:.3f} | {ratio:.2f} |")


def _workflow(options: argparse.Namespace, at_once: bool) -> Workflow:
    classes = {**NODE_CLASS_MAPPINGS, "OTCA_BenchSlow": Slow}
    graph = Workflow.load(options.workflow, classes).graph
    graph["slow"] = {"class_type": "OTCA_BenchSlow", "inputs": {}}
    workflow = Workflow(graph, classes)
    graph[only(workflow, STACK_NODE)]["inputs"] |= {"reward_8": ["slow", 0], "overlap": at_once}
    workflow = Workflow(graph, classes)
    for change in options.set:
        workflow.set(*change.split("=", 1))
    return workflow


def _run(workflow: Workflow, number: int):
    overrides = {(node, name): value + number for node, name, value in workflow.advancing()}
    step = only(workflow, *STEP_NODES)
    return workflow.run(overrides=overrides, targets=[step])[step][1]


if __name__ == "__main__":
    main()
