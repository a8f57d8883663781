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
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from comfyui_otca.tests import training

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = ROOT / "workflows"
PACK = "ComfyUI-OTCA"
STATIC = Path("comfyui_frontend_package", "static")  # what the front end's package serves
START_SECONDS, RUN_SECONDS = 180, 300
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
OF_OURS = re.compile(r"otca", re.IGNORECASE)


@dataclass(frozen=True)
class Installation:
    """A ComfyUI checkout, the interpreter that runs it, and the front end that it serves in place of its own, if any."""

    folder: Path
    python: Path
    front_end: Path | None = None

    @property
    def version(self) -> str:
        text = (self.folder / "comfyui_version.py").read_text(encoding="utf-8")
        return re.search(r'"(.+)"', text)[1]

    @property
    def name(self) -> str:
        """What the tests' ids call it: 0.33, or 0.33-page-1.58.1 with another front end than its own."""
        return self.version if self.front_end is None else f"{self.version}-page-{front_end_version(self.front_end)}"

    @property
    def age(self) -> list[Version]:
        """Sorts the newest to the end: by its own version, then by the front end's, which is taken to be newer than its own."""
        return [Version(self.version), Version("0" if self.front_end is None else front_end_version(self.front_end))]


def front_end_version(folder: Path) -> str:
    (information,) = folder.glob("comfyui_frontend_package-*.dist-info")
    return information.name.removeprefix("comfyui_frontend_package-").removesuffix(".dist-info")


def named_or(variable: str, pattern: str) -> list[Path]:
    """The folders that the environment names, else those below the home folder."""
    named = os.environ.get(variable)
    return [Path(part) for part in named.split(os.pathsep)] if named else sorted(Path.home().glob(pattern))


def installations() -> list[Installation]:
    """What COMFYUI_PATH names, else every ComfyUI* below ~/comfy, where comfy-cli installs; the oldest first, whatever its
    folder is called. Each with its own front end."""
    found = []
    for folder in named_or("COMFYUI_PATH", "comfy/ComfyUI*"):
        python = Path(os.environ.get("COMFYUI_PYTHON") or folder / ".venv" / "bin" / "python")
        if (folder / "main.py").is_file() and python.exists():
            found.append(Installation(folder.resolve(), python))
    return sorted(found, key=lambda each: each.age)


def fresh() -> list[Installation]:
    """The same checkouts with what their own requirements.txt installs and nothing else: in environments that COMFYUI_FRESH
    names, else every fresh-* below ~/envs, each called fresh-<version>."""
    found = {place.name.removeprefix("fresh-"): place for place in named_or("COMFYUI_FRESH", "envs/fresh-*")}
    folders = [folder for folder in named_or("COMFYUI_PATH", "comfy/ComfyUI*") if (folder / "main.py").is_file()]
    each = (Installation(folder.resolve(), folder) for folder in folders)
    return [replace(one, python=found[one.version] / "bin" / "python") for one in each if one.version in found]


def front_ends() -> list[Path]:
    """What COMFYUI_FRONT_END names, else every front-end-* below ~/comfy; none for a ComfyUI that is named without one."""
    if os.environ.get("COMFYUI_PATH") and not os.environ.get("COMFYUI_FRONT_END"):
        return []
    folders = named_or("COMFYUI_FRONT_END", "comfy/front-end-*")
    return [folder.resolve() for folder in folders if (folder / STATIC / "index.html").is_file()]


def targets() -> list[Installation]:
    """The installations, and the newest of them once more with the newest front end that is there."""
    found = installations()
    newest = found[-1] if found else None
    front_end = max(front_ends(), key=lambda folder: Version(front_end_version(folder)), default=None)
    return found + ([replace(newest, front_end=front_end)] if newest and front_end else [])


def link(folder: Path) -> None:
    """Puts the pack there: this very one."""
    folder.symlink_to(ROOT, target_is_directory=True)


class ComfyUI:
    """One running server; everything that it writes stays below `base`. With the user's `word` its page may start trainings, and
    Reward: Python is listed, for files of `base`/rewards."""

    def __init__(
        self, installation: Installation, base: Path, install: Callable[[Path], None] = link, word: bool = True
    ):
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
        install(base / "custom_nodes" / PACK)
        options = ["--cpu", "--listen", "127.0.0.1", "--port", str(port), "--base-directory", str(base)]
        # In memory, since the default lies in the checkout, which is not ours to write to.
        options += ["--database-url", "sqlite:///:memory:", "--disable-api-nodes"]
        if installation.front_end:
            options += ["--front-end-root", str(installation.front_end / STATIC)]
        self.command = [installation.python, installation.folder / "main.py", *options]
        self.variables = self.environment() | self.word(base / "rewards" if word else None)
        self.start()

    def start(self) -> None:
        """Starts it, or starts it again with all that it has written."""
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.base,
                env=self.variables,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @staticmethod
    def environment() -> dict[str, str]:
        """Ours, without what would let this test's own packages into ComfyUI's interpreter."""
        return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}

    @staticmethod
    def word(rewards: Path | None) -> dict[str, str]:
        return {"OTCA_ALLOW_TRAININGS": "1" if rewards else "", "OTCA_ALLOW_PYTHON_REWARDS": str(rewards or "")}

    def __enter__(self) -> ComfyUI:
        try:
            self.wait_until_up()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error) -> None:
        self.stop()

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

    def run(self, graph: dict) -> dict:
        """Queues a graph, waits for its end, and returns what ComfyUI says of it by the kind of message."""
        number = json.loads(self.post("/prompt", {"prompt": graph}))["prompt_id"]
        deadline = time.monotonic() + RUN_SECONDS
        while not (history := self.get(f"/history/{number}")):
            assert time.monotonic() < deadline, self.log()[-2000:]
            time.sleep(0.2)
        return dict(map(tuple, history[number]["status"]["messages"]))

    def metrics(self, run_name: str) -> list[dict]:
        """What a training run on the canvas recorded, one object an iteration."""
        return training.rows(self.run_folder(run_name))

    def run_folder(self, run_name: str) -> Path:
        return self.base / "output" / "otca" / run_name

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
