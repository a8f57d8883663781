"""What the Comfy Registry reads, and what it hands out: versions that agree, and an archive that has all that the pack needs."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from PIL import Image

import comfyui_otca
from comfyui_otca.host import extras
from comfyui_otca.host.headless_comfyui import OLDEST
from comfyui_otca.tests.test_clone import NOT_INSTALLED, python

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = {".ci", ".github", "bench", "findings", "tests", "tools", "CITATION.cff", "Makefile", "constraints.txt"}
OF_ASSETS = {"assets/pictures"}
# What both ComfyUI 0.3.64 and 0.33 install: by their requirements.txt, and by torch's and transformers' own.
OF_COMFYUI = set(
    "torch numpy einops transformers tokenizers sentencepiece safetensors aiohttp yarl pyyaml pillow scipy tqdm".split()
)
OF_COMFYUI |= set(
    "psutil alembic SQLAlchemy av kornia spandrel pydantic huggingface_hub packaging filelock jinja2".split()
)
MOST_BYTES = 200_000  # of a picture
MOST_BYTES_OF_ARCHIVE = 16_000_000  # three tiny models are 11 of them
# What the registry's scanner looks for, in any file and in prose too, as publishers learned it from its answers (the addresses
# are below github.com). Each word is what was matched, or a little more; that nobody has met a rule does not say there is none.
NETWORK = (
    r"\.(connect|bind|send|sendall|sendto|recv\w*|create_connection)\s*\(|ClientSession|socket\.socket|urllib\.request"
)
RULES = {
    # Comfy-Org/registry-backend issues 193 and 245
    "python_environment_manipulation": r"\bos\.(environ|getenv|putenv|unsetenv)|from os import[^\n]*(environ|getenv)",
    # …/192, 223: any use, at each place
    "python_command_injection_risk": r"\bsubprocess\b|\bos\.(system|popen|exec|spawn|startfile)|shell\s*=\s*True",
    # …/208, 215; artokun/comfyui-mcp-panel issue 1854; Comfy-Org/ComfyUI-Manager issue 3059: JavaScript as well
    "python_network_operations": rf"{NETWORK}|urlopen|http\.client|\brequests\.(get|post|put|patch|delete|head)\b|gettempdir",
    # …/183, 242, 243; also a network's own method of that name, and a regular expression's in JavaScript
    "python_dynamic_execution": r"\b(exec|eval)\s*\(|exec_module|pickle",
    "python_bytecode_manipulation": r"__import__|importlib\.import_module|\bmarshal\b|(?<![\w.])compile\s*\(",
    "python_url_command_execution": r"\bcmd\s*=\s*\[|\b(ffmpeg|ffprobe|curl|wget)\s+-",
    "python_sensitive_file_access": r"\.read_bytes\(\)|/etc/(passwd|shadow)|id_rsa",
    "python_privilege_escalation": r"\b(sudo|pkexec|setuid)\b",
    "windows_process_manipulation": r"kernel32|OpenProcess|\bctypes\b",
    "python_database_connections": r"\bsqlite3\b",
    # …/92; the last also in a comment of requirements.txt
    "contains_blacklisted_url": r"raw\.githubusercontent\.com|pastebin\.com|transfer\.sh|ngrok|discord(app)?\.com",
    "contains_custom_url_dependency": r"\bgit\+|@ https?://|\.whl\b",
    "imports_cryptography_py": r"\b(import|from) cryptography\b",
    "contains_rm_rf": r"\brm -rf\b",
    "SUSP_SVG_Onload_Onerror": r"(?is)svg.*\bon(load|error)|\bon(load|error).*svg",
    "prohibited-string": r"auth_token_comfy_org",
}
BASELINE = Path(__file__).parent / "registry_baseline.txt"


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
    assert set(needed) <= OF_COMFYUI, (
        "nothing that ComfyUI would not bring, and no version that could raise what is there"
    )
    optional = project["optional-dependencies"]
    assert {name: tuple(packages) for name, packages in optional.items() if name != "dev"} == extras.EXTRAS
    assert optional["dev"][0] == f"otca[{','.join(name for name in extras.EXTRAS if name != 'wandb')}]"


ACCELERATORS = [
    "GPU :: NVIDIA CUDA",
    "GPU :: AMD ROCm",
    "GPU :: Intel Arc",
    "NPU :: Huawei Ascend",
    "GPU :: Apple Metal",
]
A_VERSION = r"(==|>=|<=|!=|~=|>|<|<>|=)?\s*\d+\.\d+\.\d+(-[a-zA-Z0-9]+)?"


def test_comfy_node_validate_has_nothing_to_warn_of(pyproject):
    """What comfy-cli 1.23 looks at, of which everything else makes it leave a field of the registry empty."""
    project, comfy = pyproject["project"], pyproject["tool"]["comfy"]
    systems, others = set(), set()
    for classifier in project["classifiers"]:
        kind, _, value = classifier.partition(" :: ")
        systems |= {value.split(" :: ")[0]} if kind == "Operating System" else set()
        others |= {value} if kind.startswith("Environment") else set()
    assert systems <= {"Microsoft", "POSIX", "MacOS", "OS Independent"} and others <= set(ACCELERATORS)
    (front_end,) = (name for name in project["dependencies"] if name.startswith("comfyui-frontend-package"))
    for versions in (comfy["requires-comfyui"], front_end.removeprefix("comfyui-frontend-package")):
        assert all(re.fullmatch(A_VERSION, version.strip()) for version in versions.split(","))
    assert isinstance(project["license"], str) and isinstance(project["version"], str) and "dynamic" not in project
    rules = ["--isolated", "--select", "S102,S307,E702"]  # what runs or evaluates text, and two statements in a line
    asked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", *rules, "."], cwd=ROOT, capture_output=True, text=True
    )
    assert asked.returncode == 0, asked.stdout + asked.stderr


@pytest.mark.parametrize(("name", "shape", "largest"), [("Icon", 1, (800, 400)), ("Banner", 21 / 9, (2100, 900))])
def test_its_pictures_are_where_it_says(pyproject, name, shape, largest):
    before, path = pyproject["tool"]["comfy"][name].split("/main/")
    assert before == pyproject["project"]["urls"]["Repository"] + "/raw"
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


# --- its scanner ------------------------------------------------------------------------------------------------------


def findings(files, root=ROOT):
    """(rule, file) wherever one of RULES matches; the scanner reads text alone."""
    for file in sorted(files):
        content = (root / file).read_bytes()
        if b"\0" not in content:
            text = content.decode("utf-8")
            yield from ((rule, file) for rule, pattern in RULES.items() if re.search(pattern, text))


def baseline():
    """{(rule, file): reason}"""
    lines = [line for line in BASELINE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    rows = [[part.strip() for part in line.split("|")] for line in lines]
    return {(rule, file): reason for rule, file, reason in rows}


def test_the_scanner_finds_what_the_baseline_gives_reasons_for(archived):
    """A word in a new place is said otherwise, or is in the one module for it; a reason for nothing goes."""
    known = baseline()
    assert set(findings(archived)) == known.keys()
    assert len(known) <= 4 and all(len(reason.split()) > 8 for reason in known.values())


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("new.py", "port = os.environ['PORT']", "python_environment_manipulation"),
        ("new.py", "# subprocess is not used here", "python_command_injection_risk"),
        ("new.js", "const call = api.queuePrompt.bind (api);", "python_network_operations"),
        ("new.md", "We no longer call `requests.get(`.", "python_network_operations"),
        ("new.json", '{"note": "node.connect(0, other, 1)"}', "python_network_operations"),
        ("new.py", "network.eval()", "python_dynamic_execution"),
        ("new.js", "/a/.exec(text)", "python_dynamic_execution"),
        ("new.py", "code = compile(text, path, 'exec')", "python_bytecode_manipulation"),
        ("requirements.txt", "own @ git+https://github.com/one/own", "contains_custom_url_dependency"),
        ("new.html", "<svg></svg> <img onerror=x>", "SUSP_SVG_Onload_Onerror"),
    ],
)
def test_the_scanner_finds_a_word_in_any_file(tmp_path, name, text, rule):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert set(findings([name], tmp_path)) == {(rule, name)}


def test_what_the_scanner_lets_pass(tmp_path):
    text = "re.compile('a'); evaluate(x); files.read_bytes(path); panel.send_sync(x); requests that wait. environs\n"
    (tmp_path / "plain.py").write_text(text, encoding="utf-8")
    (tmp_path / "weights.bin").write_bytes(b"\0 exec(")
    assert not list(findings(["plain.py", "weights.bin"], tmp_path))


def test_the_archive_is_small(archived, tmp_path):
    with zipfile.ZipFile(tmp_path / "node.zip", "w", zipfile.ZIP_DEFLATED) as packed:  # as comfy-cli packs it
        for path in sorted(archived):
            packed.write(ROOT / path, path)
    assert (tmp_path / "node.zip").stat().st_size <= MOST_BYTES_OF_ARCHIVE


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
