"""`otca taste fit`: from choices in files to the head of a taste, and how well it predicts choices that it has not seen."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..host.files import read_bytes
from ..host.text import quoted
from ..trainer.opinions import reading, votes
from ..trainer.opinions.fit import Encoder, Fitted
from ..trainer.opinions.pairs import FOLDS, connected, folds
from ..trainer.opinions.utility import preferred
from ..trainer.pictures.media import PICTURES, VIDEOS
from ..trainer.prompts import rows
from ..trainer.rewards.taste import Head, read_features
from .scoring import batches, files_of
from .statistics import clustered, table

OTHERS = 16  # of the other side, that each liked or disliked picture is compared with
BINS = 5  # of the calibration, from 0.5 to 1
_FIX = "correct or remove that line"
_NOTHING_LEFT_OUT = (
    f"held-out accuracy: none, for votes connect nearly all pictures (fewer than {FOLDS} parts have none in common), and no two "
    f"that were compared are in the same of {FOLDS} sets of pictures to leave out. Fix: vote on more pictures"
)


@dataclass(frozen=True)
class Comparison:
    """One vote: pictures, and levels of their numbers, best first."""

    files: tuple[Path, ...]
    order: tuple[tuple[int, ...], ...]

    def picks(self) -> list[list[tuple[Path, Path]]]:
        """For each picture its pairs (better, worse) with those of every lower level, at most OTHERS of a level."""
        generator = random.Random(0)
        levels = [[self.files[number] for number in level] for level in self.order]
        picks = []
        for place, better in enumerate(levels):
            for worse in levels[place + 1 :]:
                if len(worse) <= OTHERS and len(better) <= OTHERS:
                    picks += [[(good, bad) for bad in worse] for good in better]
                    continue
                picks += [[(good, bad) for bad in generator.sample(worse, min(OTHERS, len(worse)))] for good in better]
                picks += [[(good, bad) for good in generator.sample(better, min(OTHERS, len(better)))] for bad in worse]
        return picks

    def pairs(self) -> list[tuple[Path, Path]]:
        return [pair for pick in self.picks() for pair in pick]


# --- sources ----------------------------------------------------------------------------------------------------------


def read_source(source: Path) -> list[Comparison]:
    """Returns the comparisons of a folder of votes or of pairs, of its votes.jsonl, or of another tool's pair file.

    What a row of a pair file says: `sides_of` in `trainer/opinions/reading.py`; pictures are paths from the file's folder.

    Raises:
        FileNotFoundError: the file was not found.
        Damaged, PromptError, PairError: names the file, the line, and what is wrong with it.
    """
    is_voted = any((source / name).is_file() for name in (votes.FILE, votes.LINES))
    path = source / votes.LINES if source.is_dir() else source
    if source.is_dir() and not is_voted and reading.find_list(source):
        folder = reading.read_pairs(source)
        return [Comparison(_pictures(folder.path / reading.FILE, pair.files), ((0,), (1,))) for pair in folder.pairs]
    if not (is_voted or path.is_file()):
        raise FileNotFoundError(f"{path} is not there. Fix: name a folder of votes, its {votes.LINES}, or a pair file")
    table = [] if path.name == votes.LINES else list(rows(read_bytes(path) or b"", path))
    if table and not all(isinstance(row, dict) and "pictures" in row for _, row in table):
        return list(filter(None, (_pair(path, place, row) for place, row in table)))
    every = votes.read(votes.of_folder(source)) if is_voted else votes.read_lines(path)
    standing = [vote for vote in votes.standing(every) if vote.answer.order]
    return [Comparison(_pictures(path, vote.pictures), vote.answer.order) for vote in standing]


def _pair(path: Path, place: str, row: Any) -> Comparison | None:
    """None if both pictures are alike."""
    try:
        sides = reading.sides_of(row if isinstance(row, dict) else {})
        if sides and sides[0][0] == sides[0][1]:
            raise ValueError(f"has the same picture {quoted(sides[0][0])} as chosen and as rejected")
        return Comparison(_pictures(path, sides[0]), ((0,), (1,))) if sides else None
    except ValueError as error:
        raise ValueError(f"{place} {error}. Fix: {_FIX}") from error


def _pictures(path: Path, names: Sequence[object]) -> tuple[Path, ...]:
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"has {quoted(name)} where the path of a picture is needed")
        if Path(name).suffix.lower() in VIDEOS:
            raise ValueError(f"is about the video {name}. A taste is learned from pictures alone")
        if not (path.parent / name).is_file():
            raise ValueError(f"names the picture {quoted(name)}, which is not in {path.parent}")
    return tuple(path.parent / str(name) for name in names)


def of_folders(liked: Path, disliked: Path) -> Comparison:
    """Every picture of one folder above every one of the other.

    Raises:
        ValueError: a folder without pictures.
    """
    levels = []
    for name, folder in (("liked", liked), ("disliked", disliked)):
        files = files_of(folder, PICTURES) if folder.is_dir() else []
        if not files:
            raise ValueError(f"--{name} {folder} has no pictures. Fix: a folder with {', '.join(PICTURES)} files")
        levels.append(files)
    first, second = map(len, levels)
    return Comparison((*levels[0], *levels[1]), (tuple(range(first)), tuple(range(first, first + second))))


# --- fitting ----------------------------------------------------------------------------------------------------------


def fit_taste(comparisons: Sequence[Comparison], encoder: str, device: str = "auto", batch_size: int = 8) -> Head:
    """The head, fitted to all comparisons; `about` has counts, held-out accuracy and calibration.

    Raises:
        FileNotFoundError: the encoder was not found.
        ValueError: nothing was compared, or a picture cannot be read.
    """
    if not comparisons:
        raise ValueError(
            "no vote says that one picture is better than another. Fix: vote first, by Reward: Vote or otca vote"
        )
    reader = Encoder(encoder, device)
    files = list(dict.fromkeys(file for c in comparisons for file in c.files))
    rows = {  # the features of the pictures that can be read
        files[number]: row
        for numbers, images in batches(files, batch_size)
        for number, row in zip(numbers, read_features(reader.network, images), strict=True)
    }
    comparisons = [readable for c in comparisons if (readable := _restricted(c, rows.keys()))]
    if not comparisons:
        raise ValueError("no picture can be compared with another: too few can be read. Fix: name other pictures")
    about = {"votes": len(comparisons), "pictures": len(rows), "pairs": sum(len(c.pairs()) for c in comparisons)}
    head = _fitted(comparisons, rows).head(reader, about | held_out(comparisons, rows))
    return replace(head, encoder=reader.folder.name)


def _fitted(comparisons: Sequence[Comparison], rows: Mapping[Path, np.ndarray]) -> Fitted:
    pairs = [pair for comparison in comparisons for pair in comparison.pairs()]
    return Fitted.to([comparison.files for comparison in comparisons], pairs, rows)


# --- held out ---------------------------------------------------------------------------------------------------------


def held_out(comparisons: Sequence[Comparison], rows: Mapping[Path, np.ndarray]) -> dict:
    """Cross-validation: what heads that were fitted without some pictures say of choices among those.

    No picture is in a fold's training and in its test: votes that share pictures are held out together. If too few parts have
    nothing in common, as with one folder liked and one disliked, pictures are held out, and the choices between a held-out
    picture and another one are not used.

    Returns:
        `accuracy` of pairs in the predicted order, averaged in each vote (or pick, if there is one vote), with its interval;
        `calibration`, for bins of the probability of the predicted answer: mean probability, share that was right, count;
        `calibration_error`: the mean distance of the two, weighted by count. Empty if nothing is left to test.
    """
    parts = connected([comparison.files for comparison in comparisons])
    right: list[float] = []
    predicted: list[tuple[float, float]] = []
    for fold in split_folds(comparisons, parts):
        training = [r for c in comparisons if (r := _restricted(c, rows.keys() - fold))]
        test = [r for c in comparisons if (r := _restricted(c, fold))]
        if not training or not test:
            continue
        fitted = _fitted(training, rows)
        units = [c.pairs() for c in test] if len(parts) >= FOLDS else [pick for c in test for pick in c.picks()]
        for pairs in units:
            better, worse = (fitted.scaling(np.stack([rows[pair[side]] for pair in pairs])) for side in (0, 1))
            probability = preferred(*fitted.utility.of(better - worse))
            right.append(float(((probability > 0.5) + 0.5 * (probability == 0.5)).mean()))
            predicted += [(max(p, 1 - p), float(p > 0.5)) for p in probability]
    return summary_of(right, predicted) if right else {}


def summary_of(right: Sequence[float], predicted: Sequence[tuple[float, float]]) -> dict:
    probability, answer = np.array(predicted).T
    bins = np.minimum(((probability - 0.5) * 2 * BINS).astype(int), BINS - 1)
    bin_rows = [bins == number for number in range(BINS) if (bins == number).any()]
    calibration = [(float(probability[own].mean()), float(answer[own].mean()), int(own.sum())) for own in bin_rows]
    error = sum(abs(mean - share) * count for mean, share, count in calibration) / len(probability)
    return {"accuracy": asdict(clustered(right)), "calibration_error": error, "calibration": calibration}


def split_folds(comparisons: Sequence[Comparison], parts: Sequence[Collection[Path]]) -> list[set[Path]]:
    generator = random.Random(0)
    if len(parts) >= FOLDS:
        order = list(parts)
        generator.shuffle(order)
        return [set().union(*fold) for fold in folds(order)]
    spread: list[set[Path]] = [set() for _ in range(FOLDS)]
    placed: set[Path] = set()
    for comparison in comparisons:
        for level in comparison.order:  # so that every fold has pictures of every level
            files = [comparison.files[number] for number in level if comparison.files[number] not in placed]
            generator.shuffle(files)
            for place, file in enumerate(files, len(placed)):  # goes on where the level before ended
                spread[place % FOLDS].add(file)
            placed.update(files)
    return spread


def _restricted(comparison: Comparison, files: Collection[Path]) -> Comparison | None:
    """The vote on those pictures alone; None if it then prefers no picture to another."""
    levels = [tuple(n for n in level if comparison.files[n] in files) for level in comparison.order]
    levels = tuple(level for level in levels if level)
    if len(levels) < 2:
        return None
    kept = sorted(number for level in levels for number in level)
    again = {number: place for place, number in enumerate(kept)}
    order = tuple(tuple(again[number] for number in level) for level in levels)
    return replace(comparison, files=tuple(comparison.files[number] for number in kept), order=order)


# --- the report -------------------------------------------------------------------------------------------------------


def report(taste: Head) -> str:
    """Markdown: what it was fitted on, and how well it predicts what it has not seen."""
    about = taste.about
    lines = [f"{about['votes']} votes, {about['pairs']} pairs, {about['pictures']} pictures; encoder {taste.encoder}"]
    if "accuracy" not in about:
        return "\n".join([*lines, _NOTHING_LEFT_OUT])
    accuracy = about["accuracy"]
    rows = [(f"{mean:.2f}", f"{share:.2f}", str(count)) for mean, share, count in about["calibration"]]
    lines += [
        f"held-out accuracy: {accuracy['mean']:.3f}, 95 % interval {accuracy['low']:.3f} … {accuracy['high']:.3f}, "
        f"over {accuracy['count']} that were left out",
        f"expected calibration error: {about['calibration_error']:.3f}",
        "",
        *table(["predicted", "right", "pairs"], rows),
    ]
    if not accuracy["low"] > 0.5:
        lines += ["", "This is not surely better than chance. More votes may help, or the votes contradict each other."]
    return "\n".join(lines)
