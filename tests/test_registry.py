"""What the Comfy Registry reads, and what it hands out: versions that agree, and an archive that has all that the pack needs."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import comfyui_otca
from comfyui_otca.host.headless_comfyui import OLDEST
from comfyui_otca.tests.test_clone import NOT_INSTALLED, python

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = {".ci", ".github", "bench", "tests", "tools", "Makefile", "constraints.txt"}
OF_ASSETS = {"assets/pictures"}
MOST_BYTES = 200_000  # of a picture


@pytest.fixture(scope="module")
def pyproject():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tracked():
    """tracked(*options): paths of git's files, as far as they are there."""
    if not (ROOT / ".git").exists():
        pytest.skip("only a checkout says which files are published")

    def listed(*options):
        command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", *options]
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return {path for path in answer.split("\0") if (ROOT / path).is_file()}

    return listed


@pytest.fixture(scope="module")
def archived(tracked):
    """Paths of the files that `comfy node publish` packs: all but those of .comfyignore, whose patterns git reads too."""
    return tracked() - tracked("--ignored", "--exclude-from=.comfyignore")


def test_pyproject_the_package_and_the_changelog_name_one_version(pyproject):
    version = pyproject["project"]["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version) and comfyui_otca.__version__ == version
    (first, *_) = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert first == version
    answer = python(ROOT, "--version", cwd=ROOT)
    assert (answer.returncode, answer.stdout) == (0, f"otca {version}\n")


def test_the_registry_can_read_it(pyproject):
    project, comfy = pyproject["project"], pyproject["tool"]["comfy"]
    assert re.fullmatch("[a-z]+([-._][a-z]+)*", project["name"]) and "comfyui" not in project["name"]
    assert (
        comfy["PublisherId"] and comfy["DisplayName"] and "Operating System :: OS Independent" in project["classifiers"]
    )
    assert comfy["requires-comfyui"] == ">=" + ".".join(map(str, OLDEST)), "the same as the trainer takes"
    needed = (ROOT / "requirements.txt").read_text(encoding="utf-8").split()
    front_end = [name for name in project["dependencies"] if name not in needed]
    assert [name for name in project["dependencies"] if name in needed] == needed
    assert len(front_end) == 1 and re.fullmatch(r"comfyui-frontend-package>=\d+\.\d+\.\d+", front_end[0])
    assert "torch>=2.7" in needed


@pytest.mark.parametrize(("name", "shape", "largest"), [("Icon", 1, (800, 400)), ("Banner", 21 / 9, (2100, 900))])
def test_its_pictures_are_where_it_says(pyproject, name, shape, largest):
    address = pyproject["tool"]["comfy"][name]
    before, path = address.split("/main/")
    assert before == pyproject["project"]["urls"]["Repository"].replace("github.com", "raw.githubusercontent.com")
    assert (ROOT / path).stat().st_size <= MOST_BYTES
    with Image.open(ROOT / path) as picture:
        assert picture.width / picture.height == pytest.approx(shape, rel=0.01)
        assert picture.width <= largest[0] and picture.height <= largest[1]


def test_nothing_is_published_that_is_not_validated():
    workflow = (ROOT / ".github" / "workflows" / "publish.yml").read_text(encoding="utf-8")
    assert 0 < workflow.index("node validate") < workflow.index("publish-node-action")


def test_an_installed_package_is_whole(pyproject):
    """Every folder of code is a package of it, and every folder that the code reads is among its data."""
    setuptools = pyproject["tool"]["setuptools"]
    folders = {file.parent.relative_to(ROOT) for file in ROOT.rglob("__init__.py") if ".venv" not in file.parts}
    names = {".".join(("comfyui_otca", *folder.parts)) for folder in folders if "tests" not in folder.parts}
    assert set(setuptools["packages"]) == names
    assert {"assets/**", "subgraphs/**", "web/**", "workflows/**"} <= set(setuptools["package-data"]["comfyui_otca"])


def test_the_archive_leaves_out_what_no_run_needs(tracked, archived):
    left_out = tracked() - archived
    assert {path.split("/")[0] for path in left_out} == {*LEFT_OUT, "assets"}
    assert {"/".join(path.split("/")[:2]) for path in left_out if path.startswith("assets/")} == OF_ASSETS
    still_read = {"tools/reference_rewards.py"}  # by the study of published rewards
    assert {path for path in archived if path.split("/")[0] in LEFT_OUT} <= still_read


def test_what_is_archived_imports_nothing_that_is_left_out(archived):
    found = set()
    for path in sorted(path for path in archived if path.endswith(".py")):
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = (ROOT / path).parents[node.level - 1].joinpath(*(node.module or "").split("."))
                modules = [base, *(base / name.name for name in node.names)]
                files = [file for module in modules for file in (module.with_suffix(".py"), module / "__init__.py")]
                found |= {file.relative_to(ROOT).as_posix() for file in files if file.is_file()}
    assert len(found) > 100 and found <= archived


def test_the_archive_is_a_pack(archived, tmp_path):
    """It is unpacked as `custom_nodes/otca`, and trains from there; that ComfyUI takes it is in tests/comfyui/."""
    pack = tmp_path / "custom_nodes" / "otca"
    for path in archived:
        (pack / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, pack / path)
    script = NOT_INSTALLED + "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    workflow = pack / "workflows" / "api" / "otca.json"
    small = [
        f"--set={name}" for name in ("SDESampler.group_size=2", "SDESampler.steps=2", "TrainingRun.evaluation_seeds=1")
    ]
    answer = python(
        "-c", script, pack, "train", workflow, "--iterations", 1, "--output", tmp_path / "run", *small, cwd=tmp_path
    )
    assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "run" / "lora.safetensors").is_file()
