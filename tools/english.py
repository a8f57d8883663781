"""Finds words in our texts and code that a non-native reader has to read twice. `make lint` runs it: `python tools/english.py`.

It reads all strings and docstrings of Python files outside tests, the help pages of nodes and the notes of templates.
Prints each finding with its file and line, and a better form. Exits with 1 if there is one.

It also counts local names that are no nouns, and docstrings that begin with no main clause: more than MOST is an error, and fewer
lowers MOST. `python tools/english.py names docstrings` lists them.
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

# A name says what a value is, and these say only that it is one; a docstring's first sentence is a main clause or a noun.
NO_NOUNS = set("asked each found given known meant mine one ours said seen taken theirs told".split())
NO_CLAUSE = {"As", "Of", "That", "Those", "What"}
MOST = {"names": 16, "docstrings": 13}


def voice(path: Path) -> Iterator[tuple[str, int, str]]:
    """(a key of MOST, line, word) of the local names and docstrings of a Python file that do not say what they are."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in NO_NOUNS:
            yield "names", node.lineno, node.id
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = re.match(r"\w+", ast.get_docstring(node) or "")
            if first and first[0] in NO_CLAUSE:
                yield "docstrings", node.body[0].lineno, first[0]


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
            for match in re.finditer(rule, text):
                where = line + text[: match.start()].count("\n")
                yield f"{path.relative_to(ROOT)}:{where}: {' '.join(match[0].split())!r}: {better}"


def main(arguments: list[str]) -> int:
    command = ["git", "-C", str(ROOT), "ls-files", "*.py", "web/docs/*.md", "tools/notes/*.md"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    names = [name for name in listed if not name.startswith("tests/") and name != "tools/english.py"]
    paths = [ROOT / name for name in names if (ROOT / name).exists()]
    problems = [line for path in paths for line in findings(path)]
    words = [(path, *word) for path in paths if path.suffix == ".py" for word in voice(path)]
    for kind, most in MOST.items():
        lines = [f"{path.relative_to(ROOT)}:{line}: {word}" for path, name, line, word in words if name == kind]
        print(
            f"{len(lines)} {kind} that do not say what they are, at most {most}", *lines * (kind in arguments), sep="\n"
        )
        if len(lines) > most:
            problems.append(f"{kind}: {len(lines)}, and MOST has {most}. Fix: reword what is new")
    print(*problems, f"{len(problems)} phrases to mend", sep="\n")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
