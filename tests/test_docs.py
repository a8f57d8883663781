"""README, CONTRIBUTING, docs/ and the help pages: complete, and true of the code that they speak of."""

from __future__ import annotations

import re
import runpy
import subprocess

import pytest

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.documents import CHECKS, HELP, HELPED, OF_ONE_FILE, ROOT, Page, subcommands
from comfyui_otca.trainer.rewards import REWARDS
from comfyui_otca.trainer.run.folder import WRITTEN
from comfyui_otca.trainer.types import GONE

GUIDES = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *GUIDES, *sorted(HELP.glob("*.md"))]
SECTIONS = ["When to use it", "Equation", "Inputs", "Outputs", "When something goes wrong", "Reference"]
MOST_BYTES = 300_000
MARKER = "<!-- one_iteration.py -->\n```python\n"


def test_what_pages_say_holds():
    assert not [f"{path.name}: {line}" for path in PAGES for check in CHECKS for line in check(Page.read(path))]


def test_the_readme_leads_to_every_guide():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not [path.name for path in GUIDES if f"](docs/{path.name})" not in text]


def test_every_node_stands_in_the_list_of_nodes():
    text = (ROOT / "docs" / "nodes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[([^\]]+)\]\(\.\./web/docs/(\w+)\.md\) \| .+ \|$", text, re.M)
    assert sorted(rows) == sorted((NODE_CLASS_MAPPINGS[name].TITLE, name) for name in HELPED)


def test_every_file_of_a_run_is_explained():
    explained = Page.read(ROOT / "docs" / "training.md").inline
    assert not [name for name in WRITTEN if name not in explained and f"{name}/" not in explained]


def test_every_command_is_explained():
    text = "".join((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("training", "studies"))
    assert not [name for name in subcommands() if f"otca {name}" not in text]


def test_every_input_that_is_gone_is_named():
    inline = Page.read(ROOT / "docs" / "earlier.md").inline
    assert not [name for name in GONE if name not in inline and f"{re.sub('_[a-z0-9]+$', '', name)}_…" not in inline]


def test_every_reward_of_the_command_line_is_named():
    assert {*REWARDS} - {node.KIND for node in OF_ONE_FILE.values()} <= set(
        Page.read(ROOT / "docs" / "studies.md").inline
    )


def test_commits_that_benchmarks_name_are_in_the_history():
    if not (ROOT / ".git").is_dir() or (ROOT / ".git" / "shallow").exists():
        pytest.skip("the history is not here")
    text = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "bench").glob("*.md"))
    commits = "\n".join(re.findall(r"\bcommit ([0-9a-f]{7,40})\b", text))
    command = ["git", "cat-file", "--batch-check"]
    kinds = subprocess.run(command, input=commits, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert commits and not [line for line in kinds.splitlines() if " commit " not in line]


def test_sections_of_the_method_that_code_cites_are_there():
    headings = re.findall(r"^## (\d+)\. ", (ROOT / "docs" / "method.md").read_text(encoding="utf-8"), re.M)
    cited = {
        number
        for folder in ("trainer", "study", "nodes", "tests")
        for path in (ROOT / folder).rglob("*.py")
        for list_ in re.findall(r"method\.md ((?:§\d+(?:, | and )?)+)", path.read_text(encoding="utf-8"))
        for number in re.findall(r"\d+", list_)
    }
    assert {"2", "3", "4", "5", "6", "7"} <= cited <= set(headings)


def test_one_iteration_is_shown_as_it_is():
    file, page = ROOT / "docs" / "one_iteration.py", ROOT / "docs" / "architecture.md"
    shown = page.read_text(encoding="utf-8").split(MARKER)[1].split("```\n")[0]
    assert shown == file.read_text(encoding="utf-8"), f"copy {file.name} below its marker in {page.name}"


def test_a_runs_figures_are_read_with_pandas_as_the_page_says(finished_run, tmp_path):
    pandas = pytest.importorskip("pandas")
    shown = (ROOT / "docs" / "training.md").read_text(encoding="utf-8").split("```python\n")[1].split("```\n")[0]
    (tmp_path / "shown.py").write_text(shown.replace("runs/mine", finished_run.as_posix()), encoding="utf-8")
    read = runpy.run_path(str(tmp_path / "shown.py"))
    assert [*read["metrics"].index] == [1, 2, 3, 4, 5, 6] and "reward/clip_t/mean" in read["means"]
    assert [*read["values"].index] == [0, 6] and read["values"]["accuracy"].between(0, 1).all()
    assert isinstance(read["values"], pandas.DataFrame)


def page(node):
    return (HELP / f"{node}.md").read_text(encoding="utf-8")


def table(text, section):
    """The names in the first column of that section's table."""
    part = text.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    return [name for row in re.findall(r"^\| (`.*?`) \|", part, re.M) for name in re.findall(r"`(\w+)`", row)]


def test_a_help_page_has_its_title_all_sections_and_every_input_and_output():
    for name, node in HELPED.items():
        text, declared = page(name), node.INPUT_TYPES()
        assert text.startswith(f"# {node.TITLE}\n"), name
        assert re.findall(r"^## (.*)", text, re.M) == SECTIONS, name
        assert table(text, "Inputs") == [*declared["required"], *declared.get("optional", {})], name
        assert table(text, "Outputs") == list(getattr(node, "RETURN_NAMES", ())), name


def test_pictures_are_there_described_and_small():
    shown = set()
    for node in HELPED:
        for description, path in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page(node)):
            # The panel puts the pack's own address before a relative path, and before nothing else.
            assert description and path.startswith("pictures/") and (HELP / path).is_file(), (node, path)
            assert (HELP / path).stat().st_size <= MOST_BYTES, (node, path)
            shown.add(path)
    assert {f"pictures/{place.name}" for place in (HELP / "pictures").iterdir()} == shown, "and none is left over"


def test_there_is_no_page_of_an_unknown_node():
    assert {place.stem for place in HELP.glob("*.md")} == set(HELPED)
