"""The page's modules: their pure functions by node's own test runner, their types by TypeScript's checker."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WEB = HERE.parents[1] / "web"


@pytest.mark.skipif(shutil.which("node") is None, reason="node is missing: the page's functions are not tested")
def test_functions_of_the_page():
    files = sorted(str(file) for file in HERE.glob("*.test.mjs"))
    ran = subprocess.run(["node", "--test", *files], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_module_asks_for_the_check_of_its_types():
    files = sorted(WEB.rglob("*.js"))
    assert files and [file.name for file in files if not file.read_text().startswith("// @ts-check\n")] == []


def test_types_of_the_page():
    tsc = _type_checker()
    if tsc is None:
        pytest.skip("tsc is missing: the types of the page's modules are not checked (npm install --global typescript)")
    ran = subprocess.run([*tsc, "--project", WEB / "jsconfig.json"], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def _type_checker() -> list[str] | None:
    """The `tsc` of the path, or one that npm has installed here or globally; npm is told to download nothing."""
    if found := shutil.which("tsc"):
        return [found]
    npx = shutil.which("npx")
    if npx is None:
        return None
    command = [npx, "--no-install", "tsc"]
    offline = {**os.environ, "npm_config_offline": "true", "npm_config_update_notifier": "false"}
    asked = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, env=offline)
    return command if asked.returncode == 0 and asked.stdout.startswith("Version") else None
