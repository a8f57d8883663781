"""Finds phrases in our texts that a non-native reader has to read twice. `make lint` runs it: `python tools/english.py`.

It reads all strings and docstrings of Python files outside tests, the help pages of nodes and the notes of templates.
Prints each finding with its file and line, and a better form. Exits with 1 if there is one.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START = r"(?:\A|[.!?:]\s+|\n\s*\n\s*)"  # of a sentence
RULES = {
    r"(?<![Tt]here )\b(?:is|are|was|were) no (?!longer\b|more\b|less\b)\w+": 'write "is not a …" or "has no …"',
    START
    + r"Of (?!course\b)\w+": 'begin the sentence with its subject: "Of two runs the newer wins" -> "The newer of two runs wins"',
    r"\bnone of\b|\b(?:is|are|was|were) none\b": 'write "not any of", "no X has …", or "there is no …"',
    r"(?i)\b(?:nobody|somebody|whoever|anybody)\b": 'name who it is: "the user", "a caller", "another process"',
}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of all strings of a Python file, or of the paragraphs of another one."""
    content = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from ((number, line) for number, line in enumerate(content.splitlines(), 1))
        return
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def findings(path: Path) -> Iterator[str]:
    for line, text in texts(path):
        for rule, better in RULES.items():
            for found in re.finditer(rule, text):
                where = line + text[: found.start()].count("\n")
                yield f"{path.relative_to(ROOT)}:{where}: {' '.join(found[0].split())!r}: {better}"


def main(places: list[str]) -> int:
    patterns = ["*.py", "web/docs/*.md", "tools/notes/*"]
    command = ["git", "-C", str(ROOT), "ls-files", *(places or patterns)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    chosen = [ROOT / name for name in listed if not name.startswith("tests/") and name != "tools/english.py"]
    found = [
        line for path in chosen if path.suffix in (".py", ".md", ".txt") and path.exists() for line in findings(path)
    ]
    print(*found, sep="\n")
    print(f"{len(found)} phrases to mend")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
