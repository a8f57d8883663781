"""The page's modules: their pure functions by node's own test runner, their types by TypeScript's checker."""

import os
import re
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


# An object of ComfyUI's page, a member of it, and what is assigned to it; or what does the same by another way.
OF_COMFYUI = r"\b(?:api|app(?:\.\w+)*|window\.\w+|LiteGraph|LGraph\w*|ComfyApp|ComfyApi)(?:\.prototype)?"
REPLACES = re.compile(
    rf"{OF_COMFYUI}(?:\.\w+|\[[^\]]+\])\s*=(?![=>])|(?:assign|defineProperty|defineProperties|setPrototypeOf)\(\s*{OF_COMFYUI}\s*,"
)
# The view, which every script moves by these, and no methods.
VALUES = re.compile(r"app\.canvas\.ds\.(?:scale|offset\[\d\]) =")


def replaced(code: str) -> list[str]:
    return [found[0] for found in REPLACES.finditer(code) if not VALUES.match(found[0])]


def test_nothing_of_comfyuis_page_is_replaced():
    found = {file.name: replaced(file.read_text(encoding="utf-8")) for file in WEB.rglob("*.js")}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_what_replaces_a_method_is_found():
    for code in (
        "api.queuePrompt = f;",
        "app.graphToPrompt=f",
        "window.LGraphCanvas.prototype.draw = f",
        'app["x"] = f',
    ):
        assert replaced(code), code
    for code in ("Object.assign(app, { f })", "Object.defineProperty(app.canvas, 'draw', { value })"):
        assert replaced(code), code
    for code in (
        "const graph = app.graph;",
        "app.graph === other",
        "const f = (app) => app.x",
        "app.canvas.ds.scale = 1;",
    ):
        assert not replaced(code), code


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
