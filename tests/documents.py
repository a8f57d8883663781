"""What a page of documentation claims about this project, and what of that is wrong. `CHECKS` are its functions: each takes a
page and gives a line for everything that does not hold. How to write so that they understand it is in docs/maintaining.md.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from comfyui_otca.__main__ import parser
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.nodes.rewards.base import RewardNode
from comfyui_otca.study.scoring import KINDS

ROOT = Path(__file__).resolve().parent.parent
HELP = ROOT / "web" / "docs"
PUBLISHED = "https://github.com/comfyui-otca/ComfyUI-OTCA/blob/main/"
# Rewards with files of their own, which may do without a page, a translation and a row in the guides.
OF_ONE_FILE = {
    name: node
    for name, node in NODE_CLASS_MAPPINGS.items()
    if issubclass(node, RewardNode) and node.__module__.rpartition(".")[2] not in ("images", "videos", "external")
}
HELPED = {
    name: node
    for name, node in NODE_CLASS_MAPPINGS.items()
    if name not in OF_ONE_FILE or (HELP / f"{name}.md").exists()
}
TITLES = {node.TITLE: node for node in NODE_CLASS_MAPPINGS.values()}
# Options of other programs that the documentation speaks of.
FOREIGN = {"--cpu", "--cuda-device", "--help", "--max_restarts", "--dry-run", "--no-deps", "--port", "--host"}
FOREIGN |= {"--bf16-unet", "--base-directory"}  # ComfyUI's
SUBSTITUTES = {"--allow-folder": ".", "--allow-python": ".", "--allow-host": "score.example.org"}
IGNORED = (".git", ".venv", "node_modules", "runs", "__pycache__")


@dataclass(frozen=True)
class Page:
    """A Markdown file, or a text that is said to lie there."""

    path: Path
    text: str

    @classmethod
    def read(cls, path: Path) -> Page:
        return cls(path, path.read_text(encoding="utf-8"))

    @functools.cached_property
    def parts(self) -> tuple[str, tuple[str, ...]]:
        """The text without blocks of code, and the blocks, fenced or indented."""
        prose, blocks, block, fence, blank = [], [], [], "", True
        for line in [*self.text.splitlines(), ""]:
            mark = re.match(r" *(```+)", line)
            if fence or mark:
                if fence and mark:
                    blocks.append("\n".join(block))
                    block, fence = [], ""
                elif fence:
                    block.append(line)
                else:
                    fence = mark[1]
                blank = False
                continue
            if line.startswith("    ") and (blank or block):
                block.append(line[4:])
                continue
            if block and line:
                blocks.append("\n".join(block))
                block = []
            blank = not line.strip()
            prose.append(line)
        return "\n".join(prose), (*blocks, "\n".join(block))

    @property
    def prose(self) -> str:
        return self.parts[0]

    @functools.cached_property
    def inline(self) -> list[str]:
        return [code.replace("\\|", "|") for code in re.findall(r"`([^`]+)`", self.prose)]

    @functools.cached_property
    def code(self) -> list[str]:
        """Every line of code: of blocks, where a backslash joins two, and what stands in backticks."""
        blocks = "\n".join(self.parts[1]).replace("\\\n", " ")
        return [*map(str.strip, blocks.splitlines()), *self.inline]

    @property
    def is_guide(self) -> bool:
        """Whether bold means a node here: everywhere but on the help pages."""
        return self.path.parent != HELP


def slugs(text: str) -> list[str]:
    """The anchors that GitHub gives the headings of a page; of two alike it numbers the second, which is not done here."""
    headings = re.findall(r"^#+ (.+)$", Page(ROOT, text).prose, re.M)
    plain = (re.sub(r"[`*]|\[|\]\([^)]*\)", "", heading).strip().lower() for heading in headings)
    return [re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain]


def links(page: Page) -> Iterator[str]:
    """Files and anchors of links and pictures exist; addresses on the web have a form that can be one."""
    prose = re.sub(r"`[^`]*`", "", page.prose)
    for target in re.findall(r"\]\(([^)]*)\)", prose):
        if target.startswith(PUBLISHED):
            target = str(ROOT / target.removeprefix(PUBLISHED))
        if re.match(r"[a-z]+:", target):
            parts = urlsplit(target)
            if parts.scheme not in ("http", "https") or "." not in parts.netloc or re.search(r"\s", target):
                yield f"{target} is no address"
            continue
        name, _, anchor = target.partition("#")
        path = page.path.parent / name if name else page.path
        if name and not path.exists():
            yield f"{target} leads nowhere"
        elif anchor and slugs(path.read_text(encoding="utf-8") if name else page.text).count(anchor) != 1:
            yield f"{target}: there is no such heading, or there are two"


def commands(page: Page) -> Iterator[str]:
    """Every `otca …` is one that the real parser takes; nothing is run."""
    for line in page.code:
        for start in (r"^otca ", r"-m comfyui_otca ", r"/ComfyUI-OTCA "):
            if match := re.search(start, line):
                yield from (f"{line}: {wrong}" for wrong in _command(line[match.end() :]))


def _command(text: str) -> Iterator[str]:
    words = shlex.split(text, comments=True)
    if not words or words == ["…"]:
        return
    if len(words) == 1:  # a command that is only named
        words.append("--help")
    if words[1] == "…":
        words[1] = "WORKFLOW.json"
    words = ["2" if re.fullmatch("[A-Z]", word) else word for word in words if word != "…"]
    words = [SUBSTITUTES.get(before, word) for before, word in zip(["", *words], words, strict=False)]
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            options = otca().parse_args(words)
        except SystemExit as error:
            if error.code:
                yield said.getvalue().splitlines()[-1]
            return
    yield from (f"{word} is abbreviated" for word in words if word.startswith("--") and word not in known_options())
    for reward in getattr(options, "reward", None) or ():
        if reward.partition(":")[0] not in KINDS and not reward.isupper():
            yield f"{reward} is no reward"
    graph = _graph(str(getattr(options, "workflow", "")))
    changes = getattr(options, "set", ())
    put_in = [change.partition("=")[2] for change in changes if "." not in change.partition("=")[0]]
    for change in changes:
        yield from _change(change, graph, put_in)


def _graph(workflow: str) -> dict | None:
    path = ROOT / workflow
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _change(change: str, graph: dict | None, put_in: Sequence[str] = ()) -> Iterator[str]:
    """What is wrong with a NODE.INPUT=VALUE or NODE=CLASS; a number alone means a node of a workflow that is known."""
    address, equals, value = change.partition("=")
    node, _, name = address.rpartition(".")
    if address == "NODE.INPUT":
        return
    if equals and not node:
        known = [one["class_type"].removeprefix("OTCA_") for one in (graph or {}).values()]
        if address not in known or f"OTCA_{value}" not in NODE_CLASS_MAPPINGS:
            yield f"{change}: the workflow has no {address}, or there is no node {value}"
    elif not equals:
        yield f"{change} is not NODE.INPUT=VALUE"
    elif graph is not None and not node.isdigit():
        known = {one["class_type"].removeprefix("OTCA_") for one in graph.values()} | set(put_in)
        yield from (
            _input(node, name, value) if node in known | set(TITLES) else [f"{change}: the workflow has no {node}"]
        )
    elif not node.isdigit():
        yield from _input(node, name, value)
    elif graph is not None:
        yield from _input(graph[node]["class_type"], name, value) if node in graph else [f"there is no node {node}"]
    elif not any(name in inputs(node) for node in NODE_CLASS_MAPPINGS.values()):
        yield f"no node has an input {name}"


@functools.cache
def otca() -> argparse.ArgumentParser:
    return parser()


def subcommands() -> dict[str, argparse.ArgumentParser]:
    return next(action.choices for action in otca()._actions if action.choices)


@functools.cache
def known_options() -> set[str]:
    """Options of all commands."""
    return {option for command in subcommands().values() for option in _options_of(command)}


def _options_of(command: argparse.ArgumentParser) -> set[str]:
    """Its own, and those of the commands below it."""
    below = [
        each for action in command._actions if isinstance(action.choices, dict) for each in action.choices.values()
    ]
    return set(command._option_string_actions).union(*map(_options_of, below))


def options(page: Page) -> Iterator[str]:
    """An option that stands by itself in backticks is one of ours, or of a program that we speak of."""
    for code in page.inline:
        if match := re.match(r"(--[\w-]+)", code):
            if match[1] not in known_options() | FOREIGN:
                yield f"{code}: no command has that option"
            elif match[1] == "--set" and " " in code:
                yield from _change(code.split(" ", 1)[1].strip('"'), None)


def make_targets(page: Page) -> Iterator[str]:
    """Every `make …` is a target of the Makefile, and every module that `python -m` runs is there."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    for line in page.code:
        if (match := re.match(r"make ([\w-]+)", line)) and match[1] not in targets:
            yield f"{line}: the Makefile has no {match[1]}"
        if match := re.search(r"python3? -m comfyui_otca((?:\.\w+)+)", line):
            path = ROOT.joinpath(*match[1].strip(".").split("."))
            if not (path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()):
                yield f"{line}: there is no such module"


@functools.cache
def inputs(node: type) -> dict[str, tuple]:
    declared = node.INPUT_TYPES()
    return {**declared.get("required", {}), **declared.get("optional", {})}


def _input(node: str, name: str, value: str = "") -> Iterator[str]:
    """What is wrong with an input of a node, which is named by id or title, and with a value for it."""
    found = NODE_CLASS_MAPPINGS.get(node) or NODE_CLASS_MAPPINGS.get(f"OTCA_{node}") or TITLES.get(node)
    if found is None:
        yield f"there is no node {node!r}"
    elif name not in inputs(found):
        yield f"{found.TITLE} has no input {name!r}"
    elif value and not _fits(value, *inputs(found)[name]):
        yield f"{found.TITLE} {name} cannot be {value}"


def _fits(value: str, kind, details=None) -> bool:
    details = details or {}
    if kind in ("INT", "FLOAT"):
        try:
            number = {"INT": int, "FLOAT": float}[kind](value)
        except ValueError:
            return False
        return details.get("min", number) <= number <= details.get("max", number)
    if kind == "BOOLEAN":
        return value in ("true", "false")
    return kind == "STRING" or (not isinstance(kind, str) and value in kind)


_CODES = r"((?:(?:,|;| and)? `[^`]+`)+)"


def nodes(page: Page) -> Iterator[str]:
    """Nodes exist, and so do the inputs that stand behind them, and their values."""
    prose = " ".join(page.prose.split())
    if page.is_guide:
        for title in re.findall(r"\*\*(.+?)\*\*", re.sub(r"`[^`]*`", "", prose)):
            if title not in TITLES:
                yield f"**{title}** is no node's title"
    for title, codes in re.findall(rf"\*\*([^*]+)\*\*{_CODES}", prose):
        if title in TITLES:
            for code in re.findall(r"`([^`]+)`", codes):
                name, _, value = code.partition("=")
                yield from _input(title, name.strip(), value.strip())
    for node, name in re.findall(r"\b(OTCA_[A-Z]+[a-z]\w*)(?:\.([a-z]\w*))?(?!\w)", page.text):
        if node not in NODE_CLASS_MAPPINGS:
            yield f"there is no node {node}"
        elif name and name not in ("md", "json"):
            yield from _input(node, name)
    for title, node in TITLES.items():
        for name in re.findall(rf"\b{re.escape(title)}(?:'s|') `(\w+)`", prose):
            chosen = {str(choice) for kind, *_ in inputs(node).values() if not isinstance(kind, str) for choice in kind}
            if name not in {*inputs(node), *getattr(node, "RETURN_NAMES", ()), *chosen}:
                yield f"{title} has nothing called {name!r}"


@functools.cache
def sources() -> str:
    """All code of the project, without its tests."""
    own = [ROOT / name for name in folders() - {"tests"}]
    files = [path for folder in own for kind in ("*.py", "*.js") for path in folder.rglob(kind)]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def variables(page: Page) -> Iterator[str]:
    """Environment variables are read somewhere."""
    for name in sorted(set(re.findall(r"\bOTCA_[A-Z]+(?:_[A-Z]+)*\b", page.text))):
        if name not in sources() and not name.startswith("OTCA_REWARD_TOKEN_"):
            yield f"nothing reads {name}"


@functools.cache
def folders() -> set[str]:
    return {path.name for path in ROOT.iterdir() if path.is_dir() and path.name not in IGNORED}


def paths(page: Page) -> Iterator[str]:
    """Files and folders of this repository are there, and hold the names that are said to be in them."""
    for line in page.code:
        for word in line.split():
            if not re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", word) or "/" not in word:
                continue
            ours = word.split("/")[0] in folders() or word.endswith(".py")
            if ours and not (ROOT / word).exists():
                yield f"{word} is not there"
    for name, file in re.findall(r"`(\w+)`(?:,? in | of | \()`([\w/]+\.py)`", " ".join(page.prose.split())):
        path = ROOT / file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if not re.search(rf"^ *(?:def |class |\")?{name}\b\"? *[(:=]", text, re.M):
            yield f"{file} has no {name}"


CHECKS = (links, commands, options, make_targets, nodes, variables, paths)
