"""The page's pure functions, by node's own test runner."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.skipif(shutil.which("node") is None, reason="node is missing: the page's functions are not tested")
def test_functions_of_the_page():
    files = sorted(str(file) for file in HERE.glob("*.test.mjs"))
    ran = subprocess.run(["node", "--test", *files], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
