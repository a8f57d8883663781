"""`otca eval`: a model as it is and by its adapters, on the same prompts and seeds, judged by any rewards.

Its folder holds table.md, table.csv, plot.png, scores.jsonl (a line a picture), pictures/<method>/ (which `otca score` reads too)
and settings.json, by which a later call continues what is there.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..host import stopping
from ..host.extras import MissingPackage
from ..host.files import sha256, write_text
from ..host.json_files import OBJECTS, TEXT, TEXTS, WHOLE, check, maybe, read_json
from ..host.text import named_path, plain_name
from ..inference import guidance, loading
from ..inference.guidance import Guide
from ..trainer import rollout
from ..trainer.families import given
from ..trainer.families.base import FlowModel
from ..trainer.pictures import grids
from ..trainer.pictures.media import eight_bits, mp4
from ..trainer.policy import lora, saved
from ..trainer.policy.files import ADAPTER, adapter_at, all_of, find
from ..trainer.prompts import IMAGES, LISTS, distinct, identity, key, picture_names
from ..trainer.rewards.base import Reward, score
from ..trainer.rewards.python import PythonReward
from ..trainer.run.evaluation import NOISE
from ..trainer.run.folder import RunError, json_line, read_lines
from ..trainer.types import Prompt, SamplerSettings, metadata_of
from . import plots
from .scoring import check_names
from .statistics import Cell, as_csv, bracketed, clustered, table

BASE = "base"
SCORES, SETTINGS, PICTURES = "scores.jsonl", "settings.json", "pictures"
TABLE, SHEET, PLOT = "table.md", "table.csv", "plot.png"

Pair = tuple[str, int]  # a prompt and a seed


@dataclass(frozen=True)
class Method:
    """One way to sample.

    Attributes:
        name: in tables, and of its folder.
        adapter: that the model wears; None: the model as it was loaded.
        guides: of a composition of several, in place of one adapter.
    """

    name: str
    adapter: Path | None = None
    guides: tuple[Guide, ...] = ()


def parse_lora(text: str) -> Method:
    """`FILE` or `NAME=FILE` to a method; of a run's folder its adapter.

    Raises:
        ValueError: the name is not a plain one.
    """
    name, path = named_path(text, "--lora")
    return Method(name, adapter_at(path))


def parse_guides(texts: Sequence[str]) -> list[Method]:
    """`[NAME=]RUN=γ` each: a method a name, which composes all guides of that name; without one it is `guided`.

    Raises:
        ValueError: the name is not a plain one, or as `guidance.parse`.
    """
    guides: dict[str, list[Guide]] = {}
    for text in texts:
        guide = guidance.parse(text)
        name, equals, source = guide.source.partition("=")
        name, source = (name, source) if equals else ("guided", name)
        try:
            plain_name(name)
        except ValueError as error:
            raise ValueError(
                f"--guide {text!r}: the name {name!r} {error}; --guide NAME=RUN=γ gives another"
            ) from error
        guides.setdefault(name, []).append(replace(guide, source=source))
    return [Method(name, guides=tuple(some)) for name, some in guides.items()]


def evaluate(
    source: str,
    others: Sequence[Method],
    prompts: Sequence[str],
    seeds: Sequence[int],
    rewards: Mapping[str, Reward],
    folder: Path,
    node_classes: Mapping[str, type],
    *,
    size: str | None = None,
    batch_size: int = 8,
    **settings: float | None,
) -> str:
    """Samples, scores and compares; returns the tables, as Markdown.

    `source`: a run's folder, whose weights are then a method; or a model's folder or name.
    `others`: methods beside it and the base.
    `rewards`: by what was asked for, as in `clip_t:model=…`.
    `folder`: where all of it goes. Pictures that it holds with all their scores are not made again.
    `size`, `settings`: as of `loading.load`.

    Raises:
        host.Stopped: what is done is in the folder.
        RunError: the folder holds another evaluation.
        ValueError, FileNotFoundError: a model, adapter, size or prompt that cannot be used.
    """
    prompts = distinct(prompts)
    names = [reward.name for reward in rewards.values()]
    check_names(names)
    model, chosen = loading.load(source, node_classes, size=size, batch_size=batch_size, **settings)
    methods = [Method(BASE), *others]
    if loading.is_run(source):
        run = Path(source).expanduser().resolve()
        methods.insert(1, Method(run.name, run / ADAPTER if model.policy.is_adapted else None))
    _check_methods(model, methods, chosen.steps)
    pairs = [(prompt, seed) for prompt in prompts for seed in seeds]
    digests = {
        f"picture.{name}": picture.digest
        for prompt in prompts
        for name, picture in zip(picture_names(prompt), given.pictures(prompt), strict=True)
    }
    record = _Record(folder, _identity(source, model, chosen, methods, rewards) | digests, prompts)
    for method in methods:
        waiting = [pair for pair in pairs if not record.has(method.name, pair, names)]
        if waiting:
            _sample(model, chosen, method, waiting, len(pairs), list(rewards.values()), record)
    values = {method.name: record.values(method.name, prompts, seeds, names) for method in methods}
    cells = {method: compare(scores, values[BASE], method == BASE) for method, scores in values.items()}
    text = markdown(cells, names, len(prompts), len(seeds))
    write_text(folder / TABLE, text)
    write_text(folder / SHEET, sheet(cells, names, len(pairs)))
    panels = {name: {method: row[k] for method, row in cells.items()} for k, name in enumerate(names)}
    try:
        grids.save(plots.evaluation(panels), folder / PLOT)
    except MissingPackage as missing:  # ComfyUI's own Python, which a judge needs, may have no matplotlib
        return f"{text}\nThere is no {PLOT}: {missing}\n"
    return text


def compare(scores: np.ndarray, base: np.ndarray, is_base: bool = False) -> list[Cell]:
    """A cell a reward, from scores [P, S, K] of P prompts with S seeds each; NaN for those that are missing."""
    prompts = np.repeat(np.arange(len(scores)), scores.shape[1])  # noise is each picture's own
    means = [clustered(column.ravel(), prompts) for column in np.moveaxis(scores, 2, 0)]
    paired = [clustered(column.ravel(), prompts) for column in np.moveaxis(scores - base, 2, 0)]
    differences = [None] * len(means) if is_base else paired
    return [Cell(*pair) for pair in zip(means, differences, strict=True)]


def markdown(cells: Mapping[str, Sequence[Cell]], names: Sequence[str], prompts: int, seeds: int) -> str:
    """Means by method and reward and, if there is more than one method, their differences to the base."""
    total = prompts * seeds
    means = [[method, *(bracketed(cell.mean, ".4g", "–") for cell in row)] for method, row in cells.items()]
    lines = [
        *table(["method", *names], means),
        "",
        f"{total} pictures a method (prompts: {prompts}, seeds of each: {seeds}), the same for all; in brackets the 95 % "
        f"interval, clustered by {'prompt' if prompts > 1 else 'seed'}.",
    ]
    lines += [
        f"{method}: {name} could score {cell.mean.count} of {total}."
        for method, row in cells.items()
        for name, cell in zip(names, row, strict=True)
        if cell.mean.count < total
    ]
    others = [
        [method, *(bracketed(cell.difference, "+.3g", "–") for cell in row if cell.difference is not None)]
        for method, row in cells.items()
        if method != BASE
    ]
    if others:
        lines += [
            "",
            "Differences to the base, picture by picture; bold if the interval is without 0:",
            "",
            *table(["method", *names], others),
        ]
    return "\n".join(lines) + "\n"


def sheet(cells: Mapping[str, Sequence[Cell]], names: Sequence[str], total: int) -> str:
    """CSV: a line for each method and reward, in full precision."""
    head = ["method", "reward", *(f"{kind}{end}" for kind in ("mean", "difference") for end in ("", "_low", "_high"))]
    body = []
    for method, row in cells.items():
        for name, cell in zip(names, row, strict=True):
            bounds = [
                interval and getattr(interval, figure)
                for interval in (cell.mean, cell.difference)
                for figure in ("mean", "low", "high")
            ]
            body.append([method, name, *bounds, cell.mean.count, total])
    return as_csv([*head, "scored", "pictures"], body)


def _check_methods(model: FlowModel, methods: Sequence[Method], steps: int) -> None:
    """All adapters are tried before anything is sampled."""
    names = [method.name for method in methods]
    if len(set(names)) < len(names):
        raise ValueError(f"two methods share a name: {', '.join(names)}. Fix: --lora NAME=FILE")
    for method in methods:
        if method.adapter is not None:
            if not model.policy.is_adapted:
                raise ValueError(
                    f"--lora {method.name} needs a model with an adapter, and all weights of this run were trained. "
                    "Fix: give the model instead of the run"
                )
            lora.put_on(model, method.adapter)
        if method.guides:
            with guidance.composed(model, method.guides, steps):
                pass


def _identity(
    source: str, model: FlowModel, settings: SamplerSettings, methods: Sequence[Method], rewards: Mapping[str, Reward]
) -> dict:
    """The settings that must not change between two calls that share a folder."""
    sampler = {name: value for name, value in asdict(settings).items() if name != "batch_size"}
    return {
        "model": model.source,
        "dtype": str(model.dtype),
        "noise": NOISE,
        **{f"sampler.{name}": value for name, value in sampler.items()},
        **{f"method.{method.name}": _made_of(source, model, method) for method in methods if method.name != BASE},
        **{
            f"reward.{reward.name}": [spec, sha256(reward.path)] if isinstance(reward, PythonReward) else [spec]
            for spec, reward in rewards.items()
        },
    }


def _made_of(source: str, model: FlowModel, method: Method) -> list[str]:
    """The hashes of its files, and of guides how much of each."""
    adapters = [find(guide.source) for guide in method.guides] or ([method.adapter] if method.adapter else [])
    files = [file for adapter in adapters for file in all_of(adapter)]
    hashes = [sha256(file) for file in files or saved.files(model, Path(source).expanduser())]
    return [*hashes, *(str(guide.gammas) for guide in method.guides)]


@contextlib.contextmanager
def _wearing(model: FlowModel, method: Method, steps: int) -> Iterator[guidance.Composition | None]:
    if method.name == BASE:
        with model.policy.reference():
            yield
        return
    if method.guides:
        with guidance.composed(model, method.guides, steps) as compose:
            yield compose
        return
    if method.adapter is not None:
        lora.put_on(model, method.adapter)
    yield


def _sample(
    model: FlowModel,
    settings: SamplerSettings,
    method: Method,
    pairs: Sequence[Pair],
    total: int,
    rewards: Sequence[Reward],
    record: _Record,
) -> None:
    from tqdm import tqdm

    size = settings.batch_size
    bar = tqdm(total=total, initial=total - len(pairs), desc=method.name, unit="picture", disable=None)
    try:
        with bar, _wearing(model, method, settings.steps) as compose:
            for start in range(0, len(pairs), size):
                part = pairs[start : start + size]
                texts, seeds = [text for text, _ in part], [seed for _, seed in part]
                images = eight_bits(rollout.generate(model, texts, settings, seeds, stopping.check_stop, compose))
                record.add(method.name, part, images, rewards, score(rewards, images.float() / 255, texts))
                bar.update(len(part))
    finally:
        record.describe(method.name)


def _check_scores(row: dict) -> None:
    check(row, dict, {"method": TEXT, "prompt": TEXT, "seed": WHOLE, "file": TEXT, IMAGES: maybe(TEXTS)})
    check(row.get("scores"), dict, {})


def _prompt_of(row: Mapping[str, Any]) -> str:
    """`identity` of the prompt whose picture a row is about."""
    return identity(Prompt(row["prompt"], {IMAGES: row[IMAGES]} if row.get(IMAGES) else None))


class _Record:
    """The folder: its settings, and the scores of every picture.

    Raises:
        RunError: it was begun with other settings.
        Damaged: one of its files is.
    """

    def __init__(self, folder: Path, fixed: dict, prompts: Sequence[str]):
        self.folder = folder
        fix = "put the file back, or choose another --output"
        fields = {"prompts": TEXTS, "metadata": maybe(OBJECTS)}
        kept = read_json(folder / SETTINGS, fields=fields, fix=fix)
        before: dict[str, Any] = {"noise": "seed"} | kept if kept else {"prompts": []}  # an older one names no noise
        for name, value in fixed.items():
            if before.get(name, value) != value:
                raise RunError(
                    f"{folder} holds an evaluation whose {name} is {before[name]}, and now it is {value}. Fix: choose another "
                    "--output, or another name where a method or reward has changed"
                )
        named = {identity(prompt): prompt for prompt in prompts}
        self.prompts = list(dict.fromkeys([*before["prompts"], *named]))  # numbered as they came
        rows, metadata = read_lines(folder / SCORES, _check_scores), before.get("metadata") or {}
        scored = set(map(_prompt_of, rows))
        if other := [p for name, p in named.items() if name in scored and key(p) != key(Prompt(p, metadata.get(name)))]:
            raise RunError(
                f"{folder} holds scores of {', '.join(map(repr, other[:3]))} with other metadata. Fix: choose another --output"
            )
        self.metadata = metadata | {
            name: dict(metadata_of(prompt)) for name, prompt in named.items() if metadata_of(prompt)
        }
        folder.mkdir(parents=True, exist_ok=True)
        settings = {**before, **fixed, "prompts": self.prompts, "metadata": self.metadata}
        write_text(folder / SETTINGS, json.dumps(settings, indent=1))
        write_text(folder / SCORES, "".join(map(json_line, rows)))  # without a line that a kill cut short
        self.rows = {(row["method"], _prompt_of(row), row["seed"]): row for row in rows}

    def has(self, method: str, pair: Pair, names: Sequence[str]) -> bool:
        prompt, seed = pair
        return set(names) <= self.rows.get((method, identity(prompt), seed), {"scores": {}})["scores"].keys()

    def add(
        self, method: str, pairs: Sequence[Pair], images: Tensor, rewards: Sequence[Reward], scores: Tensor
    ) -> None:
        """Pictures uint8 [B, H, W, 3] or videos [B, F, H, W, 3], and their scores [B, K]."""
        with open(self.folder / SCORES, "a", encoding="utf-8") as file:
            for (prompt, seed), image, values in zip(pairs, images.numpy(), scores.tolist(), strict=True):
                name, shown = identity(prompt), picture_names(prompt)
                number = self.prompts.index(name) + 1
                path = self.folder / PICTURES / method / f"{number:04d}-{seed}.{'mp4' if image.ndim == 4 else 'png'}"
                if image.ndim == 4:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(mp4(image, grids.FRAMES_PER_SECOND))
                else:
                    grids.save(image, path)
                before = self.rows.get((method, name, seed), {"scores": {}})["scores"]  # of the same picture
                all_scores = before | {reward.name: value for reward, value in zip(rewards, values, strict=True)}
                row = {"method": method, "prompt": prompt, "seed": seed, "scores": all_scores, "file": path.name}
                row |= {IMAGES: list(shown)} if shown else {}
                file.write(json_line(row))
                self.rows[method, name, seed] = row

    def describe(self, method: str) -> None:
        """Says beside the pictures whose prompt is whose, for `otca score` and others."""
        rows = sorted(
            (row["file"], _prompt_of(row), row["prompt"]) for row in self.rows.values() if row["method"] == method
        )
        if rows:
            lines = [
                json_line({**self.metadata.get(name, {}), "file_name": file, "prompt": prompt})
                for file, name, prompt in rows
            ]
            write_text(self.folder / PICTURES / method / LISTS[0], "".join(lines))

    def values(self, method: str, prompts: Sequence[str], seeds: Sequence[int], names: Sequence[str]) -> np.ndarray:
        """Scores [P, S, K], NaN for those that are missing."""
        scores = [
            [[self.rows[method, identity(prompt), seed]["scores"][name] for name in names] for seed in seeds]
            for prompt in prompts
        ]
        return np.array(scores, dtype=float)
