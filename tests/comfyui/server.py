"""A real ComfyUI with this repository as a custom node, in a process of its own."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = ROOT / "workflows"
PACK = "ComfyUI-OTCA"
START_SECONDS = 180
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
OF_OURS = re.compile(r"otca", re.IGNORECASE)


@dataclass(frozen=True)
class Installation:
    """A ComfyUI checkout and the interpreter that runs it."""

    folder: Path
    python: Path

    @property
    def version(self) -> str:
        text = (self.folder / "comfyui_version.py").read_text(encoding="utf-8")
        return re.search(r'"(.+)"', text)[1]


def installations() -> list[Installation]:
    """What COMFYUI_PATH names, else every ComfyUI* below ~/comfy, where comfy-cli installs."""
    named = os.environ.get("COMFYUI_PATH")
    folders = [Path(part) for part in named.split(os.pathsep)] if named else sorted(Path.home().glob("comfy/ComfyUI*"))
    found = []
    for folder in folders:
        python = Path(os.environ.get("COMFYUI_PYTHON") or folder / ".venv" / "bin" / "python")
        if (folder / "main.py").is_file() and python.exists():
            found.append(Installation(folder.resolve(), python))
    return found


class ComfyUI:
    """One running server; everything that it writes stays below `base`."""

    def __init__(self, installation: Installation, base: Path):
        self.installation = installation
        self.base = base
        self.log_file = base / "comfyui.log"
        self.up_at = 0  # how long the log was when it first answered
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        for folder in ("custom_nodes", "input", "output", "models/loras", "user/default/workflows"):
            (base / folder).mkdir(parents=True)
        (base / "custom_nodes" / PACK).symlink_to(ROOT, target_is_directory=True)
        options = ["--cpu", "--listen", "127.0.0.1", "--port", str(port), "--base-directory", str(base)]
        # In memory, since the default lies in the checkout, which is not ours to write to.
        options += ["--database-url", "sqlite:///:memory:", "--disable-api-nodes"]
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [installation.python, installation.folder / "main.py", *options],
                cwd=base,
                env={**self.environment(), "XDG_DATA_HOME": str(base / "share")},  # with a trash of its own
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @staticmethod
    def environment() -> dict[str, str]:
        """Ours, without what would let this test's own packages into ComfyUI's interpreter."""
        return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.get("/system_stats")
                self.up_at = self.log_file.stat().st_size
                return
            except urllib.error.URLError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"ComfyUI did not start:\n{self.log()[-4000:]}") from None
                time.sleep(0.2)

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def get(self, path: str):
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return json.load(answer)

    @functools.cached_property
    def object_info(self) -> dict:
        """What every node declares, which takes the server long to put together."""
        return self.get("/object_info")

    def post(self, path: str, content) -> bytes:
        request = urllib.request.Request(
            self.url + path, json.dumps(content).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()

    def metrics(self, run_name: str) -> list[dict]:
        """What a training run on the canvas recorded, one object an iteration."""
        lines = (self.base / "output" / "otca" / run_name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def log(self, start: int = 0, end: int | None = None) -> str:
        return COLOURS.sub("", self.log_file.read_bytes()[start:end].decode(errors="replace"))

    def complaints(self, start: int = 0, end: int | None = None) -> list[str]:
        """What the log between two bytes says of errors and warnings that are ours; any traceback counts."""
        lines = self.log(start, end).splitlines()
        found = []
        for number, line in enumerate(lines):
            if "Traceback (most recent call last)" in line:
                found.append("\n".join(lines[number : number + 30]))
            elif OF_OURS.search(line) and re.search(r"error|warning|cannot import|failed", line, re.IGNORECASE):
                found.append(line)
        return found
