"""How fluid the sidebar stays with many runs and long ones, and how long a newcomer takes to a first curve.

    python bench/page.py fluid [--runs 200] [--iterations 10000] [--rounds 9] [--pack FOLDER]
    python bench/page.py first-curve --comfyui ~/comfy/ComfyUI-0.33 [--front-end FOLDER] [--renderer nodes2] [--first-start]
    python bench/page.py gallery [--pictures 10000] [--opinions 500] [--kills 20]
    python bench/page.py imports --comfyui ~/comfy/ComfyUI-0.33 [--rounds 5]

`fluid` makes run folders as trainings leave them: most of 300 iterations, three of `--iterations`, of which one trains (this
process says it does, and adds a line at every tick). Then it measures in the page: from the click to the frame that shows it, for
opening the sidebar, choosing a long run and comparing two; and the processor time of the page's main thread at a tick, less
what the same page takes in as long a time while no run trains: ComfyUI draws its graph at every frame. Medians over the rounds.
`--pack` measures another checkout of the pack by the same steps.

`first-curve` takes a ComfyUI with its environment, clones this repository into its custom nodes as it was committed last, has pip
install the requirements, starts ComfyUI and opens its page. From there it does what a hand does, by the mouse alone, and counts
the clicks: *Templates*, the pack, the template by its shown name, *Run*, until Training Run shows the curve of the first
iteration. `--first-start` is a ComfyUI that was never opened before: it opens the templates by itself. A click is made as soon
as the page lets it be made, so the seconds are the machine's.

`gallery` makes pictures as ComfyUI saves them, opens the gallery's page without an index and with one, scrolls through all of
it while the browser tells of tasks above 50 ms, and says opinions by the keyboard while ComfyUI's process is killed and started
again. Then it counts those in the file.

`imports` starts ComfyUI `--rounds` times with the pack and with an empty custom node, and gives the seconds that ComfyUI says it
took to import each.

Needs what the tests in tests/comfyui/ need. ComfyUI, Chromium and this script share the machine's processors.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import platform
import random
import re
import signal
import statistics
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch
from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo
from playwright.sync_api import Page, sync_playwright

from comfyui_otca.bench.common import ROOT, spread, table
from comfyui_otca.tests.comfyui import server
from comfyui_otca.tests.comfyui.canvas import BROWSER_OPTIONS, SETTINGS, Canvas, chromium
from comfyui_otca.tools.canvases.templates import TEMPLATES
from comfyui_otca.trainer.opinions.store import FILE, Store
from comfyui_otca.trainer.pictures import grids

REWARDS, HELD_OUT, STEPS, SHORT, EVALUATED_EVERY = ("clip_t", "colorfulness", "sharpness"), ("accuracy",), 7, 300, 50
PROMPTS = [f"a {color} {shape}" for color in ("red", "green", "blue", "white") for shape in ("circle", "square")]
OTHERS = (
    *("loss", "gradient_norm", "ratio/mean", "ratio/drift", "clip/high", "clip/low", "kl/approx", "kl/reference"),
    *("z/zero_fraction", "z/group_mean", "moca/tanh_e", "moca/lambda", "credit/weight_variation", "groups/zero_std"),
    *("groups/masked_samples", "policy/staleness", "policy/skipped_updates", "samples_per_second", "forwards/all"),
)
SECONDS = ("update", "rollout", "reward", "credit", "iteration", *(f"reward/{name}" for name in (*REWARDS, *HELD_OUT)))
TICK = 2.0  # seconds, as the page polls
SETTLE = 1.5  # seconds for a tick's work to be over


def row(iteration: int, noise: random.Random) -> str:
    """A line of metrics.jsonl, with as many figures as `workflows/otca.json` records."""
    rise = 1 - math.exp(-iteration / 3000)
    figures: dict[str, float] = {"iteration": iteration}
    for kind, names in (("reward", REWARDS), ("held_out", HELD_OUT)):
        for name in names:
            figures |= {f"{kind}/{name}/mean": rise + noise.gauss(0, 0.1), f"{kind}/{name}/std": 0.2 + noise.random()}
    figures |= {f"moca/coefficient/{name}": noise.random() for name in REWARDS}
    figures |= {f"credit/step/{step}": 0.5 + noise.random() for step in range(STEPS)}
    figures |= {name: noise.random() for name in OTHERS} | {f"seconds/{name}": noise.random() for name in SECONDS}
    return json.dumps(figures) + "\n"


def make_run(folder: Path, iterations: int, started: float, status: dict, grid) -> None:
    noise = random.Random(folder.name)
    folder.mkdir(parents=True)
    graph = json.loads((ROOT / "workflows" / "api" / "otca.json").read_text(encoding="utf-8"))
    (folder / "workflow.json").write_text(json.dumps(graph, indent=1), encoding="utf-8")
    (folder / "metrics.jsonl").write_text("".join(row(i, noise) for i in range(1, iterations + 1)), encoding="utf-8")
    lines = []
    for iteration in range(0, iterations + 1, EVALUATED_EVERY):
        rewards = {}
        for name in (*REWARDS, *HELD_OUT):
            values = [noise.gauss(iteration / 3000, 1) for _ in PROMPTS * 2]
            figures = {"mean": statistics.mean(values), "std": 1.0, "standard_error": 0.25, "values": values}
            rewards[name] = {**figures, "held_out": name in HELD_OUT}
        lines.append(json.dumps({"iteration": iteration, "prompts": PROMPTS, "rewards": rewards}) + "\n")
    (folder / "evaluation.jsonl").write_text("".join(lines), encoding="utf-8")
    for iteration in range(0, iterations + 1, 10 * EVALUATED_EVERY):
        grids.save(grid, folder / "samples" / f"{iteration:06d}.png")
    for number in (1, 2):
        checkpoint = folder / "checkpoints" / f"{iterations - number:06d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "state.json").write_text("{}", encoding="utf-8")
    (folder / "lora.safetensors").write_bytes(bytes(1000))
    written = {"status": "finished", "place": "headless", "total": iterations, "started": started, **status}
    (folder / "status.json").write_text(json.dumps(written), encoding="utf-8")


def make_runs(folder: Path, count: int, iterations: int) -> Path:
    """Returns the run that trains, which is the newest one, and so is shown first."""
    process, now = psutil.Process(), time.time()
    at_work = {
        "status": "running",
        "pid": process.pid,
        "process_started": process.create_time(),
        "total": 2 * iterations,
    }
    grid = grids.sample_grid(torch.rand(len(PROMPTS) * 2, 40, 40, 3), PROMPTS * 2)
    for number in range(count):
        long = number < 3
        make_run(
            folder / f"run-{number:03d}",
            iterations if long else SHORT,
            now - number,
            at_work if number == 0 else {},
            grid,
        )
    return folder / "run-000"


# --- in the page ------------------------------------------------------------------------------------------------------

# Clicks, and waits for the frame after the one in which the condition holds. Returns milliseconds.
UNTIL = """async ([click, condition]) => {
    const holds = new Function(`return ${condition}`);
    const begun = performance.now();
    document.querySelector(click).click();
    const frame = () => new Promise(done => requestAnimationFrame(done));
    while (!holds()) {
        await frame();
        if (performance.now() - begun > 60000) throw new Error(`never: ${condition}`);
    }
    await frame();
    await new Promise(done => { const { port1, port2 } = new MessageChannel(); port1.onmessage = done; port2.postMessage(0); });
    return performance.now() - begun;
}"""

TAB = ".otca-tab-button"
LISTED = "document.querySelectorAll('.otca-run-entry').length === COUNT"
SHOWN = (
    "document.querySelector('.otca-run-name')?.textContent === 'NAME' && document.querySelector('.otca-run .otca-line')"
)
OVERLAID = "document.querySelectorAll('.otca-compare .otca-line').length >= 2"
SHOWS_ITERATION = (
    """least => Number(/iteration ([0-9]+)/.exec(document.querySelector(".otca-run-head").textContent)?.[1]) >= least"""
)
REFRESH = ".otca-toolbar .otca-icon-button:has(.pi-refresh)"
CLOSED = "!document.querySelector('.otca-sidebar')"


def until(page: Page, click: str, condition: str) -> float:
    return page.evaluate(UNTIL, [click, condition])


def entry(name: str) -> str:
    return f'.otca-run-entry[data-run="{name}"]'


def work(session) -> dict[str, float]:
    """The work of the page's main thread so far, in milliseconds."""
    metrics = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
    return {name: 1000 * metrics[f"{name}Duration"] for name in ("Task", "Script", "Layout", "RecalcStyle")}


class Training:
    """The run that trains, a line at a time."""

    def __init__(self, folder: Path, iterations: int):
        self.file, self.iteration, self.noise = folder / "metrics.jsonl", iterations, random.Random(0)

    def mark(self, status: str) -> None:
        path = self.file.with_name("status.json")
        path.write_text(
            json.dumps({**json.loads(path.read_text(encoding="utf-8")), "status": status}), encoding="utf-8"
        )

    def tick(self) -> None:
        self.iteration += 1
        with self.file.open("a", encoding="utf-8") as file:
            file.write(row(self.iteration, self.noise))


def tick_work(page: Page, session, training: Training, rounds: int, seen: bool) -> list[dict[str, float]]:
    """The main thread's work while one line comes and is shown, for each round."""
    work_of = []
    for _ in range(rounds):
        before = work(session)
        training.tick()
        page.wait_for_timeout(1000 * (TICK + SETTLE))
        if seen:  # a busy machine may be one behind
            page.wait_for_function(SHOWS_ITERATION, arg=training.iteration - 1, timeout=1000 * TICK)
        after = work(session)
        work_of.append({name: after[name] - before[name] for name in after})
    return work_of


def measure(page: Page, session, training: Training, count: int, rounds: int) -> dict[str, list[float]]:
    listed, first, other = LISTED.replace("COUNT", str(count)), "run-000", "run-001"
    shown = {name: SHOWN.replace("NAME", name) for name in (first, other)}
    times: dict[str, list[float]] = {"opening, the first time since ComfyUI was started": [until(page, TAB, listed)]}
    page.wait_for_function(f"() => {shown[first]}")
    for name in ("opening: the list", "opening: until the curves", "choosing a long run"):
        times[name] = []
    for _ in range(rounds):
        until(page, TAB, CLOSED)
        page.wait_for_timeout(500)
        times["opening: the list"].append(until(page, TAB, listed))
        page.wait_for_timeout(3000)
        until(page, TAB, CLOSED)
        page.wait_for_timeout(500)
        times["opening: until the curves"].append(until(page, TAB, f"{listed} && {shown[first]}"))
        page.wait_for_timeout(2000)
        times["choosing a long run"].append(until(page, entry(other), shown[other]))
        page.wait_for_timeout(2000)
        until(page, entry(first), shown[first])
        page.wait_for_timeout(1000)
    for name, ticks in _ticks(page, session, training, rounds, listed).items():
        times[name] = ticks
    if page.locator(".otca-choose").count():
        times["comparing two long runs"] = []
        for name in ("run-001", "run-002"):
            page.locator("li", has=page.locator(entry(name))).locator(".otca-choose").check()
        for _ in range(rounds):
            times["comparing two long runs"].append(until(page, ".otca-compare-bar .otca-primary", OVERLAID))
            page.keyboard.press("Escape")
            page.wait_for_timeout(500)
    return times


def _ticks(page: Page, session, training: Training, rounds: int, listed: str) -> dict[str, list[float]]:
    """A tick, less the median of as long with the same sidebar open while no run trains; and what that is above a closed one."""
    cases = {}
    until(page, TAB, CLOSED)
    page.wait_for_timeout(1000)
    cases["closed"] = tick_work(page, session, training, rounds, seen=False)
    training.mark("finished")
    until(page, TAB, listed)
    page.wait_for_timeout(5000)
    cases["open"] = tick_work(page, session, training, rounds, seen=False)
    training.mark("running")
    page.locator(REFRESH).click()
    page.wait_for_timeout(5000)
    cases["trains"] = tick_work(page, session, training, rounds, seen=True)
    quiet = {
        case: {name: statistics.median(row[name] for row in rows) for name in rows[0]} for case, rows in cases.items()
    }
    polls = (TICK + SETTLE) / TICK  # a poll each TICK: so many fall into the time that a line was given
    rows = {
        f"a tick: {name}": [(row[name] - quiet["open"][name]) / polls for row in cases["trains"]]
        for name in quiet["open"]
    }
    seconds = TICK + SETTLE
    rows["a second of the open sidebar: Task"] = [
        (row["Task"] - quiet["closed"]["Task"]) / seconds for row in cases["open"]
    ]
    return rows


def fluid(options: argparse.Namespace) -> None:
    server.ROOT = options.pack.resolve()
    with tempfile.TemporaryDirectory() as base, sync_playwright() as driver:
        comfyui = server.ComfyUI(server.installations()[-1], Path(base) / "comfyui")
        try:
            trains = make_runs(comfyui.base / "output" / "otca", options.runs, options.iterations)
            comfyui.wait_until_up()
            browser = driver.chromium.launch(executable_path=chromium(), args=BROWSER_OPTIONS)
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            Canvas(page, comfyui, "nodes2")
            page.evaluate("app.graph.clear()")
            session = page.context.new_cdp_session(page)
            session.send(
                "Performance.enable", {"timeDomain": "threadTicks"}
            )  # not the time in which others had the processor
            page.wait_for_timeout(3000)
            training = Training(trains, options.iterations)
            times = measure(page, session, training, options.runs, options.rounds)
            browser.close()
        finally:
            comfyui.stop()
    size = f"{options.runs} runs, {options.iterations} iterations, {os.cpu_count()} processors"
    print(f"ComfyUI {comfyui.installation.version}, {size}")
    print(table(("what", "ms"), [(name, spread(values, 0)) for name, values in times.items()]))


# --- the first curve --------------------------------------------------------------------------------------------------

GOAL = 4
PATIENCE = 120_000  # ms
OPEN = "() => window.app?.extensionManager && app.graph?.nodes && LiteGraph.registered_node_types.OTCA_TrainingRun"
CURVE = """() => {
    const plot = document.querySelector(".otca-curves-line");
    return plot?.querySelector("path.otca-point")?.getAttribute("d") && plot.getBoundingClientRect().width > 0;
}"""


class Stages:
    """Seconds of each stage, and clicks since the page was opened."""

    def __init__(self):
        self.seconds: dict[str, float] = {}
        self.clicks: list[str] = []

    @contextmanager
    def stage(self, name: str):
        begun = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - begun

    def click(self, name: str, target) -> None:
        target.click(timeout=PATIENCE)
        self.clicks.append(name)


def install(folder: Path, python: Path, stages: Stages) -> None:
    """Puts the pack there as a user would."""
    with stages.stage("git clone, of a local folder"):
        subprocess.run(["git", "clone", "--quiet", "--no-local", ROOT, folder], check=True)
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "-r", folder / "requirements.txt"]
    with stages.stage("pip install -r requirements.txt"):
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    new = [line for line in done.stdout.splitlines() if line.startswith("Successfully installed")]
    print(*(new or ["All requirements were satisfied already."]), sep="\n")


def first_curve(options: argparse.Namespace) -> None:
    python = Path(os.environ.get("COMFYUI_PYTHON") or options.comfyui / ".venv" / "bin" / "python")
    stages, installation = Stages(), server.Installation(options.comfyui, python, options.front_end)
    put = functools.partial(install, python=installation.python, stages=stages)
    comfyui = server.ComfyUI(installation, Path(tempfile.mkdtemp(prefix="otca-first-curve-")), put)
    try:
        with stages.stage("ComfyUI starts"):
            comfyui.wait_until_up()
        settings = {} if options.first_start else {"Comfy.TutorialCompleted": SETTINGS["Comfy.TutorialCompleted"]}
        if options.renderer:
            settings["Comfy.VueNodes.Enabled"] = options.renderer == "nodes2"
        comfyui.post("/api/settings", settings)
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium(), args=BROWSER_OPTIONS)
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            try:
                walk(page, comfyui.url, options, stages)
            finally:  # also of a page where nothing more happened
                if options.screenshot:
                    page.screenshot(path=options.screenshot)
            browser.close()
    finally:
        comfyui.stop()
    report(stages, installation, options)


def walk(page, url: str, options: argparse.Namespace, stages: Stages) -> None:
    """From the address to the first point."""
    with stages.stage("the page opens"):
        page.goto(url, timeout=PATIENCE)
        page.wait_for_function(OPEN, timeout=PATIENCE)
        if not options.first_start:
            page.locator(".templates-tab-button").wait_for(timeout=PATIENCE)
    dialog = page.get_by_role("dialog").filter(has=page.get_by_text(server.PACK, exact=True))
    with stages.stage("the template is found and opened"):
        if options.first_start:
            dialog.wait_for(timeout=PATIENCE)  # ComfyUI opens it by itself
        else:
            stages.click("Templates", page.locator(".templates-tab-button"))
        stages.click(server.PACK, dialog.get_by_text(server.PACK, exact=True))
        shown = TEMPLATES[options.template].title
        stages.click(shown, dialog.locator("h3").get_by_text(shown, exact=True))
        page.wait_for_function("() => app.graph.nodes.some(node => node.type === 'OTCA_TrainingRun')", timeout=PATIENCE)
        dialog.wait_for(state="detached", timeout=PATIENCE)
    with stages.stage("Run, until the curve has its first point"):
        stages.click("Run", page.get_by_role("button", name="Run", exact=True).first)
        page.wait_for_function(CURVE, timeout=PATIENCE)


def report(stages: Stages, installation: server.Installation, options: argparse.Namespace) -> None:
    print(
        f"\nComfyUI {installation.name}, {platform.processor() or platform.machine()}, {os.cpu_count()} cores", end=""
    )
    print(f", load {psutil.getloadavg()[0]:.1f} in the last minute\n")
    print(table(("stage", "seconds"), [(name, f"{seconds:.1f}") for name, seconds in stages.seconds.items()]))
    print(f"\n{len(stages.clicks)} clicks from the page to the curve (the goal is {GOAL}): {', '.join(stages.clicks)}")


def imports(options: argparse.Namespace) -> None:
    """ComfyUI's own seconds of importing the pack and an empty custom node, of `--rounds` starts."""

    def put(folder: Path) -> None:
        server.link(folder)
        (folder.parent / "empty").mkdir()
        (folder.parent / "empty" / "__init__.py").write_text("NODE_CLASS_MAPPINGS = {}\n", encoding="utf-8")

    python = Path(os.environ.get("COMFYUI_PYTHON") or options.comfyui / ".venv" / "bin" / "python")
    seconds: dict[str, list[float]] = {server.PACK: [], "empty": []}
    for _ in range(options.rounds):
        base = Path(tempfile.mkdtemp(prefix="otca-imports-"))
        comfyui = server.ComfyUI(server.Installation(options.comfyui, python), base, put)
        try:
            comfyui.wait_until_up()
        finally:
            comfyui.stop()
        lines = re.findall(r"([\d.]+) seconds(?: \([^)]*\))?: .*[/\\](\S+)$", comfyui.log(), re.MULTILINE)
        for spent, name in lines:
            if name in seconds:
                seconds[name].append(float(spent))
    print(f"load {psutil.getloadavg()[0]:.1f} in the last minute\n")
    print(table(("custom node", "seconds"), [(name, spread(spent)) for name, spent in seconds.items()]))


# --- the gallery ------------------------------------------------------------------------------------------------------

WORDS, THINGS = ("red", "green", "golden", "tiny", "old"), ("cat", "castle", "forest", "robot", "boat")
FIRST_VIEW = """() => {
    const shown = [...document.querySelectorAll(".otca-gallery-tile:not([hidden]) img")].filter(
        img => img.getBoundingClientRect().top < innerHeight);
    return shown.length > 3 && shown.every(img => img.complete && img.naturalWidth > 1);
}"""
WATCH = """() => {
    window.longest = [];
    const seen = list => longest.push(...list.getEntries().map(entry => entry.duration));
    new PerformanceObserver(seen).observe({ type: "longtask" });
}"""
SCROLL = """async () => {
    const list = document.querySelector(".otca-gallery-list");
    let frames = 0;
    const isAtEnd = () => list.scrollTop + list.clientHeight >= list.scrollHeight - 1;
    for (const [step, most] of [[120, 150], [700, Infinity]]) {
        for (let at = 0; at < most && !isAtEnd(); at++) {
            list.scrollTop += step;
            await new Promise(done => requestAnimationFrame(done));
            frames += 1;
        }
    }
    const seen = (list.scrollTop + list.clientHeight) / list.scrollHeight;
    return [frames, seen, document.querySelectorAll(".otca-gallery-tile").length];
}"""
NOTHING_WAITS = "() => JSON.parse(sessionStorage.getItem('otca.gallery.waiting') ?? '[]').length === 0"


def make_pictures(folder: Path, count: int, side: int = 256) -> None:
    """PNGs as ComfyUI saves them: shapes on a ground, each with a graph of seven nodes and a canvas in it."""
    noise = random.Random(0)
    canvas = json.dumps({"nodes": [{"id": each, "widgets_values": ["value" * 10]} for each in range(30)], "links": []})
    for number in range(count):
        picture = Image.new("RGB", (side, side), tuple(noise.randrange(256) for _ in range(3)))
        draw = ImageDraw.Draw(picture)
        for _ in range(12):
            left, top, size = noise.randrange(side), noise.randrange(side), noise.randrange(8, side // 3)
            box = (left, top, left + size, top + size)
            draw.ellipse(box, tuple(noise.randrange(256) for _ in range(3)))
        prompt = f"a {noise.choice(WORDS)} {noise.choice(THINGS)}, number {number // 8}"
        graph = {
            "3": (
                "KSampler",
                {
                    "seed": number,
                    "model": ["4", 0],
                    "positive": ["6", 0],
                    "negative": ["7", 0],
                    "latent_image": ["5", 0],
                },
            ),
            "4": ("CheckpointLoaderSimple", {"ckpt_name": noise.choice(("one.safetensors", "two.safetensors"))}),
            "5": ("EmptyLatentImage", {"width": side, "height": side, "batch_size": 1}),
            "6": ("CLIPTextEncode", {"text": prompt, "clip": ["4", 1]}),
            "7": ("CLIPTextEncode", {"text": "blurry", "clip": ["4", 1]}),
            "8": ("VAEDecode", {"samples": ["3", 0], "vae": ["4", 2]}),
            "9": ("SaveImage", {"filename_prefix": "ComfyUI", "images": ["8", 0]}),
        }
        texts = PngInfo()
        texts.add_text(
            "prompt",
            json.dumps({name: {"class_type": kind, "inputs": inputs} for name, (kind, inputs) in graph.items()}),
        )
        texts.add_text("workflow", canvas)
        picture.save(folder / f"ComfyUI_{number:05d}_.png", pnginfo=texts, compress_level=1)


def first_view(page: Page, url: str) -> float:
    """Seconds from the request of the page until all pictures that it shows are there."""
    begun = time.monotonic()
    page.goto(f"{url}/otca/gallery")
    page.wait_for_function(FIRST_VIEW, timeout=PATIENCE)
    return time.monotonic() - begun


def indexed(comfyui) -> float:
    """Seconds until all pictures are read."""
    begun = time.monotonic()
    while (state := comfyui.get("/otca/gallery/state"))["small"] < state["pictures"] or not state["pictures"]:
        time.sleep(1)
    return time.monotonic() - begun


def say(page: Page, comfyui, count: int, kills: int) -> None:
    """Gives so many opinions by the keyboard; meanwhile ComfyUI's process is killed and started again `kills` times."""
    every = count // kills if kills else count + 1
    for number in range(count):
        page.keyboard.press("ArrowUp" if number % 3 else "12345"[number % 5])
        page.keyboard.press("j")
        if number % every == every - 1 and number // every < kills:
            os.killpg(comfyui.process.pid, signal.SIGKILL)  # pyright: ignore[reportAttributeAccessIssue] not on Windows
            comfyui.process.wait()
            comfyui.start()
            comfyui.wait_until_up()
            if number // every % 2:
                page.reload()
                page.wait_for_function(FIRST_VIEW, timeout=PATIENCE)
                page.keyboard.press("Home")
                for _ in range(number + 1):
                    page.keyboard.press("j")
    comfyui.wait_until_up()
    page.wait_for_function(NOTHING_WAITS, timeout=PATIENCE)


def gallery(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as base, sync_playwright() as driver:
        newest = max(server.installations(), key=lambda one: one.age)
        comfyui = server.ComfyUI(newest, Path(base) / "comfyui")
        try:
            make_pictures(comfyui.base / "output", options.pictures)
            comfyui.wait_until_up()
            browser = driver.chromium.launch(executable_path=chromium(), args=BROWSER_OPTIONS)
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            errors: list[str] = []
            page.on("pageerror", lambda error: errors.append(str(error)))
            times = {"first view, s, no index": first_view(page, comfyui.url), "all read, s": indexed(comfyui)}
            for place in range(3):
                comfyui.stop()
                comfyui.start()
                comfyui.wait_until_up()
                page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
                page.on("pageerror", lambda error: errors.append(str(error)))
                page.add_init_script(f"({WATCH})()")
                times[f"first view, s, server just started, {place + 1}"] = first_view(page, comfyui.url)
            page.wait_for_timeout(3000)
            before = page.evaluate("longest")
            page.evaluate("() => { longest.length = 0 }")
            frames, share, tiles = page.evaluate(SCROLL)
            page.wait_for_timeout(500)
            scrolling = page.evaluate("longest")
            times |= {
                "longest task while it opens, ms": max(before, default=0),
                "longest task while it scrolls, ms": max(scrolling, default=0),
            }
            times |= {"frames scrolled": frames, "share of the list scrolled": share, "tiles in the page": tiles}
            page.keyboard.press("Home")
            page.locator(".otca-gallery-list").focus()
            page.keyboard.press("Home")
            say(page, comfyui, options.opinions, options.kills)
            store = Store(next(comfyui.base.rglob(FILE)))
            times["opinions by keyboard"], times["opinions kept"] = options.opinions, len(store.standing())
            times["killed meanwhile"], times["errors in the page"] = options.kills, len(errors)
            browser.close()
        finally:
            comfyui.stop()
    size = f"{options.pictures} pictures, {os.cpu_count()} processors, load {psutil.getloadavg()[0]:.1f} in the last minute"
    print(f"ComfyUI {comfyui.installation.version}, {size}")
    print(table(("what", "value"), [(name, f"{value:.4g}") for name, value in times.items()]))
    print(*errors, sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    command = parts.add_parser("fluid")
    command.add_argument("--runs", type=int, default=200)
    command.add_argument("--iterations", type=int, default=10_000)
    command.add_argument("--rounds", type=int, default=9)
    command.add_argument("--pack", type=Path, default=ROOT, help="the checkout of the pack that is measured")
    command.set_defaults(work=fluid)
    other = parts.add_parser("first-curve")
    other.add_argument("template", nargs="?", choices=TEMPLATES, default="quickstart", metavar="TEMPLATE")
    other.add_argument("--comfyui", type=Path, required=True, help="a ComfyUI with its environment in .venv")
    other.add_argument("--front-end", type=Path, help="a folder with comfyui-frontend-package, in place of its own")
    other.add_argument("--renderer", choices=["classic", "nodes2"], help="how nodes are drawn; default: ComfyUI's own")
    other.add_argument("--first-start", action="store_true", help="a ComfyUI that was never opened before")
    other.add_argument("--screenshot", type=Path, help="where to put a picture of the page at the end")
    other.set_defaults(work=first_curve)
    third = parts.add_parser("imports")
    third.add_argument("--comfyui", type=Path, required=True, help="a ComfyUI with its environment in .venv")
    third.add_argument("--rounds", type=int, default=5)
    third.set_defaults(work=imports)
    fourth = parts.add_parser("gallery")
    fourth.add_argument("--pictures", type=int, default=10_000)
    fourth.add_argument("--opinions", type=int, default=500)
    fourth.add_argument("--kills", type=int, default=20)
    fourth.set_defaults(work=gallery)
    options = parser.parse_args()
    options.work(options)


if __name__ == "__main__":
    main()
