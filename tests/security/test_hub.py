"""No command asks the model hub without the user's word, whatever is installed beside us."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading

import pytest

from comfyui_otca.host import paths

ROOT = paths.ASSETS.parent

# What a package may do while it is imported; bitsandbytes 0.50 does, where `kernels` is installed and there is AVX512-BF16.
CURIOUS = """
import atexit

@atexit.register
def ask():
    from huggingface_hub import HfApi
    try:
        HfApi().model_info("kernels-community/quantization-bitsandbytes")
    except Exception as error:
        print(type(error).__name__)
"""


@pytest.fixture
def hub():
    """A stand-in of the hub that has nothing: (its address, the paths that it was asked for)."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802 the name is http.server's
            asked.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()


def otca(hub, folder, *words, **variables):
    """What the command prints, in a process that asks the hub itself when it ends."""
    (folder / "sitecustomize.py").write_text(CURIOUS)
    variables = {"HF_ENDPOINT": hub[0], "HF_HOME": str(folder), "PYTHONPATH": str(folder), **variables}
    known = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    command = [sys.executable, ROOT, *map(str, words)]
    done = subprocess.run(command, env=known | variables, cwd=folder, capture_output=True, text=True, timeout=300)
    return done.stdout + done.stderr


def test_only_a_download_that_the_user_allows_asks_the_hub(hub, tmp_path):
    workflow, mine = ROOT / "workflows" / "api" / "quickstart.json", tmp_path / "mine.json"
    graph = json.loads(workflow.read_text(encoding="utf-8"))
    next(node for node in graph.values() if node["class_type"] == "OTCA_LoadFlowModel")["inputs"]["path"] = "some/model"
    mine.write_text(json.dumps(graph))
    for words in (["validate", workflow], ["train", mine, "--iterations", 1, "--output", "run"]):
        assert "OfflineModeIsEnabled" in otca(hub, tmp_path, *words), words
    assert not hub[1]
    printed = otca(hub, tmp_path, "train", mine, "--iterations", 1, "--output", "run", "--download")
    assert any("some/model" in path for path in hub[1]) and not any("kernels" in path for path in hub[1]), printed
    otca(hub, tmp_path, "validate", workflow, HF_HUB_OFFLINE="0")
    assert any("kernels" in path for path in hub[1]), "the user's own setting stands"
