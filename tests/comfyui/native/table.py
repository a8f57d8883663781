"""`python -m comfyui_otca.tests.comfyui.native.table`: tries every family in every ComfyUI that is here, and writes the table of
docs/models.md between its markers. Half a minute for ten families of one ComfyUI, where nothing else runs.

`--only FAMILY …` prints some rows and writes nothing.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from comfyui_otca.tests.comfyui.native.asking import Inside
from comfyui_otca.tests.comfyui.server import ROOT, Installation, installations

PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- families: begin -->", "<!-- families: end -->"
COLUMNS = ("velocity", "gradient", "KSampler", "LoRA", "checkpointing", "video")
FRONT_FAMILIES = ("Flux", "SD3", "ZImage", "WAN21_T2V", "QwenImage")
LIMITS = {"velocity": 1e-5, "gradient": 5e-3, "KSampler": 1e-5, "LoRA": 1e-5, "checkpointing": 5e-3}

# What cannot be tried, or does not hold, and why: of a family, or of a family and one check.
GAPS: dict[str | tuple[str, str], str] = {
    "MiniMaxH3": "refused: its network takes the video only together with its sound",
    ("ZImagePixelSpace", "fp8"): "ComfyUI's network computes positions in the type of its weights, which float8 cannot",
}

# What a row does not show.
NOTES: dict[str, str] = {
    "LTXAV": "its video alone is sampled and trained, without sound",
    "HiDream": "its router sends a token to one expert or another, so differences are taken between two such jumps",
}

INTRODUCTION = """Every flow-matching class in ComfyUI's supported models was built tiny, with random weights, and trained
on a CPU in float32. A number is the largest relative error in all ComfyUI versions that are named. In brackets is what it may be:

- velocity (1e-5): ours against ComfyUI's own sampling functions. Also, the ratio on-policy is 1 to the bit.
- gradient (5e-3): numbers of A and B against central differences.
- KSampler (1e-5): our deterministic sampler against KSampler (`euler`, `simple`), with guidance, and behind a ModelSampling node.
- LoRA (1e-5): the saved file in the stock loader, with every key taken, and **Tuned Model**.
- checkpointing (5e-3): as gradient, with blocks computed again and with shared cast buffers, as with little GPU memory.
- video: frames, height and width of what was sampled.

Tiny random weights show that the arithmetic is right. They say nothing about how well a real model learns, nor about memory."""


def errors(inside: Inside, family: str) -> dict[str, float | str]:
    """By column a figure, or why there is none."""
    if family in GAPS:
        return {**dict.fromkeys(COLUMNS, GAPS[family]), "video": ""}
    found: dict[str, float | str] = {}
    questions = {
        "ratio": {"iterations": 2},
        "tuned_model": {},
        "gradients": {"forms": ["plain", "low checkpointing"]},
        "sampler": {"forms": ["guidance", "patched"]},
    }
    answers = {}
    for question, options in questions.items():
        try:
            answers[question] = inside.ask(question, family, **options)
        except AssertionError as error:
            found |= dict.fromkeys(ASKED[question], str(error).splitlines()[0])
    if "ratio" in answers and max(answers["ratio"]["difference"], answers["ratio"]["drift"]) > 0:
        found["velocity"] = f"the ratio differs from 1: {answers['ratio']}"
    if tuned := answers.get("tuned_model"):
        found.setdefault("velocity", tuned["base"])
        left = tuned["keys"] - 2 * tuned["patches"]
        found["LoRA"] = (
            f"the loader leaves {left} of {tuned['keys']} keys" if left else max(tuned["file"], tuned["tuned"])
        )
    if gradients := answers.get("gradients"):
        found["gradient"], found["checkpointing"] = gradients["plain"], gradients["low checkpointing"]
    if sampler := answers.get("sampler"):
        found["KSampler"] = max(sampler[form] for form in questions["sampler"]["forms"])
    if taken := answers.get("ratio"):
        found["video"] = " × ".join(map(str, taken["shape"])) if len(taken["shape"]) == 3 else ""
    return found | {key[1]: reason for key, reason in GAPS.items() if key[0] == family and key[1] in COLUMNS}


ASKED = {
    "ratio": ["velocity", "video"],
    "tuned_model": ["LoRA", "velocity"],
    "gradients": ["gradient", "checkpointing"],
    "sampler": ["KSampler"],
}


def rows(found: dict[str, dict[str, dict[str, float | str]]]) -> Iterator[str]:
    """Lines of the table; `found` is {family: {ComfyUI's version: errors}}."""
    yield f"| family | ComfyUI | {' | '.join(COLUMNS)} |"
    yield "|---|---|" + "---|" * len(COLUMNS)
    gaps = {}
    for family, versions in found.items():
        cells = []
        for column in COLUMNS:
            values = {version: each.get(column, "not asked") for version, each in versions.items()}
            numbers = [value for value in values.values() if isinstance(value, float)]
            for version, value in values.items():
                if column != "video" and (isinstance(value, str) or value > LIMITS[column]):
                    gaps.setdefault((family, str(value)), []).append((column, version))
            if column == "video":
                cells.append(next(iter(values.values())) if all(isinstance(v, str) for v in values.values()) else "")
            else:
                cells.append(short(max(numbers)) if len(numbers) == len(values) else "–")
        yield f"| {family} | {', '.join(versions)} | {' | '.join(cells)} |"
    yield ""
    for (family, reason), places in gaps.items():
        where = ", ".join(dict.fromkeys(column for column, _ in places))
        yield f"- {family}, {where}: {reason}."
    for family in [each for each in NOTES if each in found]:
        yield f"- {family}: {NOTES[family]}."
    for family in [each for each in found if (each, "fp8") in GAPS]:
        yield f"- {family}, with weights stored in fp8: {GAPS[family, 'fp8']}."


def short(number: float) -> str:
    return f"{number:.0e}".replace("e-0", "e-") if number else "0"


def left_out(reasons: dict[str, str]) -> Iterator[str]:
    yield "Not flows of pictures or videos; **Make Trainable** refuses them, saying why:"
    yield ""
    for reason in dict.fromkeys(reasons.values()):
        yield f"- {reason}: {', '.join(name for name, each in reasons.items() if each == reason)}."


def text(found: dict, reasons: dict[str, str]) -> str:
    return "\n".join([BEGIN, INTRODUCTION, "", *rows(found), "", *left_out(reasons), END])


def in_front(found: dict[str, dict[str, str]]) -> str:
    """The table of nodes in front of Make Trainable; `found` is {family: {node: how its answer begins}}. Equal rows are one."""
    rows: dict[tuple, list[str]] = {}
    for node in found[FRONT_FAMILIES[0]]:
        row = (found[family][node].partition(":")[0].replace("not for it", "–") for family in found)
        rows.setdefault(tuple(row), []).append(node)
    nothing = rows.pop(("–",) * len(found), [])
    lines = [
        f"| nodes | {' | '.join(found)} |",
        "|---|" + "---|" * len(found),
        *[f"| {', '.join(rows[row])} | {' | '.join(row)} |" for row in sorted(rows, key=lambda r: (r.count("–"), r))],
        "",
        f"None of these families: {', '.join(nothing)}.",
    ]
    return "\n".join(["<!-- in front: begin -->", *lines, "<!-- in front: end -->"])


def write(section: str) -> None:
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(before + section + rest.split(END)[1], encoding="utf-8")


def ask_all(only: Sequence[str] = ()) -> tuple[dict, dict[str, str]]:
    """All answers, of all ComfyUIs at a time; and the classes that are left out, with the reason."""
    found, reasons = {}, {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as threads:
        tries = [threads.submit(ask_one, each, Path(folder) / each.version, only) for each in installations()]
        for each in tries:
            version, known, of_families = each.result()
            reasons |= known["not"]
            for family, figures in of_families.items():
                found.setdefault(family, {})[version] = figures
    return found, reasons


def ask_one(installation: Installation, log: Path, only: Sequence[str]) -> tuple[str, dict, dict]:
    inside, found = Inside(installation, log), {}
    known = inside.ask("families")
    for family in known["families"]:
        if not only or family in only:
            found[family] = errors(inside, family)
            print(family, installation.version, found[family], flush=True)
    inside.close()
    return installation.version, known, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=())
    only = parser.parse_args().only
    found, reasons = ask_all(only)
    if only:
        print("\n".join(rows(found)))
    else:
        write(text(found, reasons))


if __name__ == "__main__":
    main()
