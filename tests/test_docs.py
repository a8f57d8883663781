"""README, CONTRIBUTING, docs/ and the help pages: complete, and true of the code that they speak of."""

from __future__ import annotations

import re

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.documents import CHECKS, HELP, ROOT, Page, slugs, subcommands
from comfyui_otca.trainer.rewards import REWARDS
from comfyui_otca.trainer.run.folder import WRITTEN

GUIDES = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *GUIDES, *sorted(HELP.glob("*.md"))]
SECTIONS = ["When to use it", "Equation", "Inputs", "Outputs", "When something goes wrong", "Reference"]
MOST_BYTES = 300_000
MOST_LINES = 100  # of the README
MARKER = "<!-- one_iteration.py -->\n```python\n"


def named(path):
    return str(path.relative_to(ROOT))


# --- what pages claim ---------------------------------------------------------------------------------------------------


def test_what_pages_say_holds():
    assert not [f"{named(path)}: {line}" for path in PAGES for check in CHECKS for line in check(Page.read(path))]


# A text, and what has to be said against it by the check of that name; without it, nothing by any.
WRONG = [
    ("links", "[a](nowhere.md)", "nowhere.md leads nowhere"),
    ("links", "![a](../assets/pictures/no.png)", "../assets/pictures/no.png leads nowhere"),
    ("links", "[a](method.md#10-more)", "method.md#10-more: there is no such heading"),
    ("links", "# One\n\n[a](#two)", "#two: there is no such heading"),
    ("links", "# One\n\n# One\n\n[a](#one)", "#one: there is no such heading, or there are two"),
    ("links", "[a](https://github)", "https://github is no address"),
    ("links", "[a](https://github.com/comfyui-otca/ComfyUI-OTCA/blob/main/docs/no.md)", "leads nowhere"),
    ("commands", "`otca trian WORKFLOW`", "invalid choice"),
    ("commands", "`otca trian`", "invalid choice"),
    ("commands", "    otca train WORKFLOW.json --speed 3", "unrecognized arguments"),
    ("commands", "    otca train W.json --output runs/a \\\n        --speed 3", "unrecognized arguments"),
    ("commands", "```\notca train --gpus 2\n```", "required: workflow"),
    ("commands", "`otca train WORKFLOW --gpus many`", "is not a whole number above 0"),
    ("commands", "`otca train WORKFLOW --iter 3`", "--iter is abbreviated"),
    ("commands", "`otca score a.png --reward beauty`", "beauty is no reward"),
    ("commands", "`otca train W.json --set 'TCD Weights.w_max=1'`", "TCD Weights has no input 'w_max'"),
    ("commands", "`otca train W.json --set 11.rate=1`", "no node has an input rate"),
    ("commands", "`otca train workflows/api/quickstart.json --set 99.seed=1`", "there is no node 99"),
    ("commands", "`otca train workflows/api/quickstart.json --set 9.eta=1`", "TCD Weights has no input 'eta'"),
    ("commands", "`accelerate launch … -m comfyui_otca trian W`", "invalid choice"),
    ("options", "`--speed 3`", "no command has that option"),
    ("options", "`--set 1.pace=3`", "no node has an input pace"),
    ("make_targets", "    make faster", "the Makefile has no faster"),
    ("make_targets", "`python -m comfyui_otca.assets.nothing`", "there is no such module"),
    ("nodes", "**GRPO Stop**", "**GRPO Stop** is no node's title"),
    ("nodes", "**GRPO Step** `clip`", "GRPO Step has no input 'clip'"),
    ("nodes", "**GRPO Step** `epochs`,\n`clip`", "GRPO Step has no input 'clip'"),
    ("nodes", "**GRPO Step** `epochs` and `clip`", "GRPO Step has no input 'clip'"),
    ("nodes", "**SDE Sampler** `kind=ddpm`", "SDE Sampler kind cannot be ddpm"),
    ("nodes", "**SDE Sampler** `steps = 1`", "SDE Sampler steps cannot be 1"),
    ("nodes", "**SDE Sampler** `steps=many`", "SDE Sampler steps cannot be many"),
    ("nodes", "**SDE Sampler** `shared_noise=maybe`", "SDE Sampler shared_noise cannot be maybe"),
    ("nodes", "`OTCA_GrpoStep`", "there is no node OTCA_GrpoStep"),
    ("nodes", "`OTCA_GRPOStep.clip`", "GRPO Step has no input 'clip'"),
    ("nodes", "GRPO Step's `clip`", "GRPO Step has nothing called 'clip'"),
    ("variables", "`$OTCA_NOTHING`", "nothing reads OTCA_NOTHING"),
    ("paths", "`trainer/nothing.py`", "trainer/nothing.py is not there"),
    ("paths", "    python bench/nothing.py --fast", "bench/nothing.py is not there"),
    ("paths", "`workflows/api/nothing.json`", "workflows/api/nothing.json is not there"),
    ("paths", "`sampler` in `trainer/sde.py`", "trainer/sde.py has no sampler"),
    ("paths", "`nothing` in `trainer/sde.py`", "trainer/sde.py has no nothing"),
]


def test_a_wrong_page_is_seen_to_be_wrong():
    checks = {check.__name__: check for check in CHECKS}
    for check, text, complaint in WRONG:
        said = list(checks[check](Page(ROOT / "docs" / "made_up.md", text)))
        assert [complaint in line for line in said] == [True], (text, said)


RIGHT = """# Made up

A [link](method.md#2-one-stochastic-transition), a [place here](#made-up), `otca …`, `otca train`, *emphasis*.

    otca train WORKFLOW --gpus N --allow-folder FOLDER   # comments and places to fill in
    otca train workflows/api/quickstart.json --set "TCD Weights.w_min=0.2" --set 11.learning_rate=5e-4
    otca score pictures/ --reward clip_t:model=x --rewards-of=none

**SDE Sampler** `kind=cps`, `steps=8` and `shared_noise=false`; **GRPO Step** `learning_rate`: lower it. Weighted Fuse's
`weighted_sum` of `runs/mine`. `$OTCA_MODELS`, `OTCA_REWARD_TOKEN_MINE`, `--cpu`, `transition` in `trainer/sde.py`.
""".replace(" --rewards-of=none", "")


def test_nothing_is_said_against_a_page_that_is_right():
    assert not [line for check in CHECKS for line in check(Page(ROOT / "docs" / "made_up.md", RIGHT))]


def test_code_is_told_from_prose():
    page = Page(ROOT, "a `b`\n\n    c \\\n      d\n\n1. e\n\n   ```python\n   f\n   ```\n\ng\n    h")
    assert page.inline == ["b"]
    assert [line for line in page.code if line] == ["c    d", "f", "b"]
    assert "g\n    h" in page.prose


def test_anchors_are_those_of_github():
    assert slugs("# A b\n\n## 7. Is ΔS `x` a *good* proxy?\n\n    # no\n") == ["a-b", "7-is-δs-x-a-good-proxy"]


# --- what pages must have -----------------------------------------------------------------------------------------------


def test_the_readme_points_and_does_not_explain():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def test_the_readme_leads_to_every_guide():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not [path.name for path in GUIDES if f"](docs/{path.name})" not in text]


def test_a_guide_begins_with_its_use_and_ends_with_a_way_on():
    for path in GUIDES:
        text = path.read_text(encoding="utf-8")
        assert text.split("\n\n")[1].startswith("You "), path
        assert re.findall(r"^## (.+)$", text, re.M)[-1] == "Where to go next", path


def test_every_node_stands_in_the_list_of_nodes():
    text = (ROOT / "docs" / "nodes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[([^\]]+)\]\(\.\./web/docs/(\w+)\.md\) \| .+ \|$", text, re.M)
    assert sorted(rows) == sorted((node.TITLE, name) for name, node in NODE_CLASS_MAPPINGS.items())


def test_every_file_of_a_run_is_explained():
    explained = Page.read(ROOT / "docs" / "training.md").inline
    assert not [name for name in WRITTEN if name not in explained and f"{name}/" not in explained]


def test_every_command_is_explained():
    text = "".join((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("training", "studies"))
    assert not [name for name in subcommands() if f"otca {name}" not in text]


def test_every_reward_of_the_command_line_is_named():
    assert set(REWARDS) <= set(Page.read(ROOT / "docs" / "studies.md").inline)


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
    assert shown == file.read_text(encoding="utf-8"), (
        f"copy {named(file)} into the block below its marker in {named(page)}"
    )


# --- help pages ---------------------------------------------------------------------------------------------------------


def page(node):
    return (HELP / f"{node}.md").read_text(encoding="utf-8")


def table(text, section):
    """The names in the first column of that section's table."""
    part = text.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    return [name for row in re.findall(r"^\| (`.*?`) \|", part, re.M) for name in re.findall(r"`(\w+)`", row)]


def pictures(text):
    return re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", text)


def test_a_help_page_has_its_title_all_sections_and_every_input_and_output():
    for name, node in NODE_CLASS_MAPPINGS.items():
        text, declared = page(name), node.INPUT_TYPES()
        assert text.startswith(f"# {node.TITLE}\n"), name
        assert re.findall(r"^## (.*)", text, re.M) == SECTIONS, name
        assert table(text, "Inputs") == [*declared["required"], *declared.get("optional", {})], name
        assert table(text, "Outputs") == list(getattr(node, "RETURN_NAMES", ())), name


def test_pictures_are_there_described_and_small():
    for node in NODE_CLASS_MAPPINGS:
        for description, path in pictures(page(node)):
            # The panel puts the pack's own address before a relative path, and before nothing else.
            assert description and path.startswith("pictures/") and (HELP / path).is_file(), (node, path)
            assert (HELP / path).stat().st_size <= MOST_BYTES, (node, path)


def test_there_is_no_page_of_an_unknown_node():
    assert {place.stem for place in HELP.glob("*.md")} == set(NODE_CLASS_MAPPINGS)


def test_no_picture_is_left_over():
    shown = {path for node in NODE_CLASS_MAPPINGS for _, path in pictures(page(node))}
    assert {f"pictures/{place.name}" for place in (HELP / "pictures").iterdir()} == shown
