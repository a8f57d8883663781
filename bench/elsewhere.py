"""A training that moves: a bundle made by a click in a real ComfyUI trains elsewhere, and ComfyUI's sidebar watches it.

    python bench/elsewhere.py --comfyui ~/comfy/ComfyUI-0.33
        [--front-end ~/comfy/front-end-1.58.1] [--iterations 12] [--folder FOLDER]

On the page: the quickstart's template, *Export…*, *Bundle…*, the download; then the same graph by ComfyUI's queue. Elsewhere, an
empty folder with an empty home: the zip is unpacked, `run.sh --venv` makes an environment of its own, then `run.sh --check`, and
`run.sh` with two processes on the CPU, which are killed. *Watch…* by a wrong token and by the right one, *Stop* by a click,
`run.sh` to the end, *Load the LoRA* by a click. Prints seconds of each stage, and how the figures of the two trainings differ.
Ends with exit code 1 where one of these does not happen.

pip looks into its own cache as always; `PIP_CONSTRAINT` can name the torch that this machine takes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch
from playwright.sync_api import sync_playwright
from safetensors.torch import load_file

from comfyui_otca.tests.comfyui.canvas import BROWSER_OPTIONS, Canvas, chromium
from comfyui_otca.tests.comfyui.server import ComfyUI, Installation
from comfyui_otca.tools.canvases.templates import TEMPLATES

PATIENCE = 900  # seconds
HERE, THERE = "quickstart", "elsewhere"  # the run of the canvas, and what the sidebar calls the other one


class Stages:
    def __init__(self):
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str):
        print(f"… {name}", flush=True)
        begun = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - begun


class Elsewhere:
    """The unpacked bundle, as on a machine that has nothing else."""

    def __init__(self, archive: Path, folder: Path):
        home = folder / "home"
        home.mkdir()
        shutil.unpack_archive(archive, folder / "bundle")
        (self.bundle,) = (folder / "bundle").iterdir()
        self.run = self.bundle / "runs" / HERE
        self.log = folder / "run.sh.log"
        kept = ("PATH", "PIP_CONSTRAINT", "PIP_INDEX_URL", "OMP_NUM_THREADS")
        self.environment = {name: os.environ[name] for name in kept if name in os.environ}
        cache = os.environ.get("PIP_CACHE_DIR", Path.home() / ".cache" / "pip")
        self.environment |= {"HOME": str(home), "PIP_CACHE_DIR": str(cache), "GPUS": "2", "DEVICE": "cpu"}
        self.home = home

    def script(self, *arguments: str) -> None:
        with self.log.open("a") as log:
            command = ["bash", str(self.bundle / "run.sh"), *arguments]
            code = subprocess.run(
                command, cwd="/", env=self.environment, stdout=log, stderr=log, check=False
            ).returncode
        expect(code == 0, f"run.sh {' '.join(arguments)} ended with {code}, see {self.log}")

    def start(self) -> subprocess.Popen:
        with self.log.open("a") as log:
            command = ["bash", str(self.bundle / "run.sh")]
            return subprocess.Popen(command, cwd="/", env=self.environment, stdout=log, stderr=log)

    def serve(self, port: int, token: str) -> subprocess.Popen:
        command = [
            self.bundle / "venv/bin/python",
            self.bundle / "ComfyUI-OTCA",
            "serve",
            self.run,
            "--port",
            str(port),
        ]
        return subprocess.Popen(
            command, cwd="/", env={**self.environment, "OTCA_SERVE_TOKEN": token}, stdout=subprocess.DEVNULL
        )

    @property
    def rows(self) -> list[dict]:
        file = self.run / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []

    def wait_for(self, iterations: int, training: subprocess.Popen) -> None:
        deadline = time.monotonic() + PATIENCE
        while len(self.rows) < iterations:
            expect(training.poll() is None, f"it ended with {training.returncode}, see {self.log}")
            expect(time.monotonic() < deadline, f"no iteration {iterations} within {PATIENCE} s, see {self.log}")
            time.sleep(0.2)


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise SystemExit(f"bench/elsewhere.py: {otherwise}")


def killed(process: subprocess.Popen) -> None:
    """The process and all below it, at once, as a machine that is gone."""
    for one in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
        one.kill()
    process.wait()


def bundled(canvas: Canvas, folder: Path) -> Path:
    """The zip that a click downloads."""
    page = canvas.page
    canvas.our_tab().click()
    page.locator(".otca-sidebar").get_by_role("button", name="Export…").click()
    dialog = page.locator("dialog.otca-dialog[open]")
    dialog.get_by_role("button", name="Bundle…").click()
    link = dialog.get_by_role("link", name=re.compile("^Download "))
    link.wait_for(timeout=PATIENCE * 1000)
    with page.expect_download() as download:
        link.click()
    target = folder / download.value.suggested_filename
    download.value.save_as(target)
    page.keyboard.press("Escape")
    return target


def watched(canvas: Canvas, address: str, token: str, wrong: str) -> str:
    """Begins to watch; returns what a wrong token was told before."""
    page = canvas.page
    canvas.expected.append("/otca/watch")
    page.locator(".otca-sidebar").get_by_role("button", name="Watch…").click()
    dialog = page.locator("dialog.otca-dialog[open]")
    dialog.get_by_label("Address").fill(address)
    dialog.get_by_label("Name here").fill(THERE)
    dialog.get_by_label("Token").fill(wrong)
    dialog.get_by_role("button", name="Watch", exact=True).click()
    canvas.wait("() => document.querySelector('dialog.otca-dialog[open] [role=alert]')?.textContent")
    said = dialog.get_by_role("alert").inner_text()
    expect(not (canvas.comfyui.base / "output/otca" / THERE).exists(), "a wrong token has left a run")
    dialog.get_by_label("Token").fill(token)
    dialog.get_by_role("button", name="Watch", exact=True).click()
    dialog.wait_for(state="detached")
    page.locator(f'.otca-sidebar [data-run="{THERE}"]').wait_for()
    return said


def shown(canvas: Canvas, status: str, least: int = 0) -> None:
    """Waits until the head of the watched run says so, and the curve is there."""
    canvas.wait(
        """([run, status, least]) => {
            const head = document.querySelector(".otca-run-head");
            const its = head?.querySelector(".otca-run-name")?.textContent === run;
            const said = its && head.querySelector(".otca-status").textContent.includes(status);
            const at = Number(/iteration ([0-9]+)/.exec(head?.textContent ?? "")?.[1] ?? 0);
            return said && at >= least && document.querySelector(".otca-sidebar figure.otca-chart path");
        }""",
        [THERE, status, least],
        seconds=PATIENCE,
    )


def loaded(canvas: Canvas) -> Path:
    """The adapter's file here, after a click."""
    canvas.page.locator(".otca-sidebar").get_by_role("button", name="Load the LoRA").click()
    name = canvas.wait_for_value(
        "() => app.graph.nodes.find(n => n.type === 'LoraLoaderModelOnly')?.widgets.find(w => w.name === 'lora_name').value"
    )
    return canvas.comfyui.base / "models" / "loras" / name


def difference(here: list[dict], there: list[dict]) -> str:
    """How far apart the figures of two trainings are, timings apart."""
    equal, apart = 0, {}
    for one, other in zip(here, there, strict=True):
        expect(one.keys() - other.keys() <= {"samples_per_second"}, f"only here: {one.keys() - other.keys()}")
        for name in (one.keys() & other.keys()) - {"time"}:
            if name.startswith(("seconds/", "samples_per_second")) or not isinstance(one[name], int | float):
                continue
            if one[name] == other[name] or all(map(math.isnan, (one[name], other[name]))):
                equal += 1
            else:
                apart[one["iteration"], name] = abs(one[name] - other[name]) / max(abs(one[name]), 1e-3)
    most = sorted(apart.items(), key=lambda item: -item[1])[:3]
    lines = [f"figures equal to the bit: {equal}, others: {len(apart)}; the largest relative differences:"]
    return "\n".join(lines + [f"  iteration {at[0]}, {at[1]}: {value:.1e}" for at, value in most])


def work(canvas: Canvas, folder: Path, iterations: int, stages: Stages) -> None:
    canvas.load(TEMPLATES["quickstart"].canvas)
    canvas.set({"12.iterations": iterations, "12.checkpoint_every": 1, "12.evaluate_every": iterations})
    with stages("Export…, Bundle…, Download"):
        archive = bundled(canvas, folder)
    with stages(f"the canvas: {iterations} iterations"):
        canvas.run_and_wait(iterations)
    there = Elsewhere(archive, folder)
    with stages("run.sh --venv"):
        there.script("--venv")
    with stages("run.sh --check"):
        there.script("--check")
    token, port = secrets.token_urlsafe(24), free_port()
    with stages("run.sh, two processes, until it is killed at iteration 3"):
        training = there.start()
        there.wait_for(3, training)
        killed(training)
    serving = there.serve(port, token)
    try:
        with stages("Watch…: refused, and then shown as interrupted"):
            wait_until_open(port)
            said = watched(canvas, f"http://127.0.0.1:{port}", token, "wrong")
            shown(canvas, "interrupted", 2)
        print(f"a wrong token: {said}")
        with stages("run.sh again, until a click on Stop has ended it"):
            training = there.start()
            shown(canvas, "running", 4)
            canvas.page.locator(".otca-sidebar").get_by_role("button", name="Stop", exact=True).click()
            expect(
                training.wait(PATIENCE) == 0, f"a stopped training ended with {training.returncode}, see {there.log}"
            )
            shown(canvas, "stopped", 4)
        stopped = len(there.rows)
        expect(4 <= stopped < iterations, f"it was stopped at {stopped}. Fix: more --iterations")
        with stages("run.sh once more, to the end"):
            training = there.start()
            expect(training.wait(PATIENCE) == 0, f"it ended with {training.returncode}, see {there.log}")
            shown(canvas, "finished", iterations)
        with stages("Load the LoRA"):
            adapter = loaded(canvas)
    finally:
        killed(serving)
    expect(adapter.read_bytes() == (there.run / "lora.safetensors").read_bytes(), f"{adapter} is another adapter")
    here = canvas.comfyui.metrics(HERE)
    print(f"stopped at iteration {stopped} of {iterations}; {difference(here, there.rows)}")
    ours = load_file(next((canvas.comfyui.base / "models/loras").glob("quickstart_lora*.safetensors")))
    theirs = load_file(adapter)
    apart = torch.cat([(theirs[name] - value).abs().flatten() for name, value in ours.items()])
    print(f"adapters: the largest of {len(apart)} differences {apart.max():.1e}, their mean {apart.mean():.1e}")
    left = [str(path.relative_to(there.home)) for path in there.home.rglob("*") if path.is_file()]
    print(f"files in the empty home afterwards: {left or 'none'}")
    expect(not canvas.unexpected(canvas.complaints), f"the page complains: {canvas.complaints}")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait_until_open(port: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with socket.socket() as asked:
            if asked.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comfyui", type=Path, required=True)
    parser.add_argument("--front-end", type=Path)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--folder", type=Path, help="an empty one; else a new one, which stays")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="otca-elsewhere-"))
    python = options.comfyui / ".venv/bin/python"
    stages, installation = Stages(), Installation(options.comfyui, python, options.front_end)
    comfyui = ComfyUI(installation, folder / "comfyui")
    try:
        with stages("ComfyUI starts"):
            comfyui.wait_until_up()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=BROWSER_OPTIONS)
            page = browser.new_page(viewport={"width": 1600, "height": 900})
            work(Canvas(page, comfyui, "classic"), folder, options.iterations, stages)
    finally:
        comfyui.stop()
    print(
        f"\nComfyUI {installation.name}, Python {platform.python_version()}, {os.cpu_count()} cores, {sys.platform}\n"
    )
    print("| stage | seconds |", "|---|---|", sep="\n")
    for name, seconds in stages.seconds.items():
        print(f"| {name} | {seconds:.0f} |")


if __name__ == "__main__":
    main()
