"""What the integration tests share: the embedded model, small sampler settings and a small workflow of OTCA."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import json
import os
import re
import shutil
import sys
import types
from dataclasses import replace
from pathlib import Path

import hypothesis
import psutil
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from comfyui_otca.__main__ import main
from comfyui_otca.canvas import ownership
from comfyui_otca.host import devices, paths, stopping
from comfyui_otca.host.access import permissions, remembered
from comfyui_otca.inference import loading as _has_the_real_one  # noqa: F401 it may not meet the toy at its import
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests import processes
from comfyui_otca.tests.device import pretend
from comfyui_otca.tests.tiny import models as tiny
from comfyui_otca.tests.tiny import toy
from comfyui_otca.trainer import rollout
from comfyui_otca.trainer.flow import load_flow_model
from comfyui_otca.trainer.run import record
from comfyui_otca.trainer.types import Prompts, SamplerSettings
from comfyui_otca.trainer.workflow.running import Workflow

ROOT = Path(__file__).resolve().parent.parent
API = ROOT / "workflows" / "api"

GROWTH = 300 * 2**20  # bytes after which the garbage collector looks at all objects again

# The workflow otca with few samples: `class: {input: value}`.
SMALL = {
    "OTCA_LoadFlowModel": {"lora_rank": 4, "lora_alpha": 4.0},
    "OTCA_PromptDataset": {"prompts_per_iteration": 2},
    "OTCA_SDESampler": {"group_size": 3, "steps": 4},
    "OTCA_GRPOStep": {"learning_rate": 1e-3, "ema_decay": 0.5},
    "OTCA_TrainingRun": {
        "iterations": 6,
        "checkpoint_every": 2,
        "evaluate_every": 6,
        "evaluation_prompts": "a red circle on a blue background\na green square on a white background",
        "evaluation_seeds": 2,
    },
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Of two workers (`make test`), each takes all that is done with one ComfyUI, and then whole files."""
    from xdist.scheduler import LoadScopeScheduling

    class ByComfyUIAndFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            comfyui = re.search(r"\[(comfyui-[\d.]+(?:-page-[\d.]+)?)", nodeid)
            return comfyui[1] if comfyui else nodeid.split("::")[0]

    return ByComfyUIAndFile(config, log)


# The layers of the tests, see `layer`.
LAYERS = ("lint", "test", "train", "comfyui")
LINT = ("test_house.py", "test_locales.py")  # what `make lint` runs
# Places where every test computes with a family's networks, or where our own code starts processes.
TRAINING = ("bundle/test_templates.py", "device/", "trainer/families/", "page/test_jobs.py", "host/test_processes.py")
RUNS = ("page/test_proof.py", "study/test_compare.py", "trainer/policy/test_merging.py", "trainer/run/")  # of the toy
SMOKE = ("test_one_iteration.py", "test_smoke.py")  # three real trainings, which are tried first nevertheless


def layer(item) -> str:
    """The layer of a test, by where it is and what it asks for. Each has a command: make lint, test, test-train, test-comfyui."""
    place = place_of(item)
    if place.startswith("comfyui/"):
        return "comfyui"
    if place in LINT or place in SMOKE:
        return "lint" if place in LINT else "test"
    asked = [definitions[-1].func for name, definitions in item._fixtureinfo.name2fixturedefs.items()]
    slow = place.startswith((*TRAINING, *RUNS)) or {"real_model", "real_run"} & set(item.fixturenames)
    return "train" if slow or any(starts_processes(function) for function in [item.function, *asked]) else "test"


def place_of(item) -> str:
    return item.path.relative_to(ROOT / "tests").as_posix()


@functools.cache
def starts_processes(function) -> bool:
    """Whether a function, or a function of its file that it names, starts other processes of Python. Two may name each other."""
    found, left = set(), [inspect.unwrap(function)]
    while left:
        function = left.pop()
        found.add(function)
        names, codes = set(), [function.__code__]
        while codes:
            code = codes.pop()
            names |= {*code.co_names, *code.co_freevars}
            codes += [constant for constant in code.co_consts if inspect.iscode(constant)]
        if names & {"Popen", "subprocess", "create_subprocess_exec"} and "executable" in names:
            return True
        others = [inspect.unwrap(other) for other in map(function.__globals__.get, names) if inspect.isfunction(other)]
        if any(other.__module__ == processes.__name__ for other in others):
            return True
        left += [other for other in others if other.__module__ == function.__module__ and other not in found]
    return False


def pytest_addoption(parser):
    parser.addoption("--layer", choices=LAYERS, help="only the tests of that layer")
    parser.addoption("--everything", action="store_true", help="the long forms of tests that have one: make test-all")
    parser.addoption(
        "--device", help="run the tests marked `anywhere`, and only them, on this device: pretend:0, cuda:0"
    )


def pytest_configure(config):
    if (config.getoption("--device") or "").startswith(pretend.NAME):
        pretend.register()
    if config.getoption("--everything"):  # ten times as many made-up cases, where a test does not say how many
        hypothesis.settings.register_profile("everything", max_examples=1000)
        hypothesis.settings.load_profile("everything")


def pytest_collection_modifyitems(config, items):
    chosen, wanted = items, config.getoption("--layer")
    if config.getoption("--device"):
        chosen = [item for item in items if item.get_closest_marker("anywhere") and not item.get_closest_marker("host")]
    elif wanted:
        chosen = [item for item in items if layer(item) == wanted]
    if left := set(items).difference(chosen):
        config.hook.pytest_deselected(items=list(left))
        items[:] = chosen


def pytest_fixture_setup():
    """What draws from torch's own generator draws the same, whichever tests the worker ran before."""
    torch.default_generator.manual_seed(0)


def pytest_runtest_call():
    torch.default_generator.manual_seed(0)


@pytest.fixture(scope="session")
def everything(request):
    return request.config.getoption("--everything")


@pytest.fixture(scope="session", autouse=True)
def device(request):
    """Where the models of the tests are: on the CPU, unless --device says otherwise."""
    name = request.config.getoption("--device") or "cpu"
    if not name.startswith(pretend.NAME):
        yield name
        return
    if not pretend.is_registered():
        pytest.skip(pretend.MISSING)
    with pretend.active():
        yield name


@pytest.fixture(scope="session", autouse=True)
def _toy(device):
    """What a graph trains is the toy, unless the test asks for `real_model`."""
    with toy.loaded_instead() if device == "cpu" else contextlib.nullcontext():
        yield


@pytest.fixture(autouse=True)
def _no_toy_among_families(request):
    with toy.real_one() if place_of(request.node).startswith(TRAINING) else contextlib.nullcontext():
        yield


@pytest.fixture
def real_model():
    """Within the test a graph trains the model that its folder holds."""
    with toy.real_one():
        yield


@pytest.fixture(scope="session", autouse=True)
def _nothing_waits_for_the_disk():
    """A test's files need not outlive a power cut."""

    def fsync(descriptor):
        pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield


def _in_use(path) -> bool:
    """Whether this process has a file open, or mapped into its memory."""
    real = os.path.realpath(path)
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that listdir had
            if os.readlink(f"/proc/self/fd/{descriptor}") == real:
                return True
    if not re.search(r"\.(safetensors|pth?|bin|ckpt)\b", real):  # no other is mapped, and the list is long
        return False
    return f" {real}\n" in Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")


@pytest.fixture(scope="session", autouse=True)
def _files_in_use_stay():
    """As on Windows, no file is replaced, renamed or removed that this process still has open or mapped."""

    def hook(event, arguments):
        if event in ("os.rename", "os.remove"):
            for path in arguments[: 2 if event == "os.rename" else 1]:
                if isinstance(path, (str, os.PathLike)) and os.path.isfile(path) and _in_use(path):
                    raise PermissionError(13, "in use, which Windows refuses", str(path))

    if os.path.exists("/proc/self/maps"):
        sys.addaudithook(hook)


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def memory_of_all():
    """What the process had when the garbage collector last looked at all objects, as [bytes]."""
    return [psutil.Process().memory_info().rss]


@pytest.fixture(scope="module", autouse=True)
def _only_new_objects_are_looked_at(memory_of_all):
    """Loading a model collects garbage, each time through all that torch, diffusers and transformers ever made.

    Models that were still in use when they were frozen may be garbage since: memory that has grown says so.
    """
    grown = psutil.Process().memory_info().rss > memory_of_all[0] + GROWTH
    if grown:
        gc.unfreeze()
    gc.collect()
    gc.freeze()
    if grown:
        memory_of_all[0] = psutil.Process().memory_info().rss


@pytest.fixture(autouse=True)
def _unpainted(request, monkeypatch):
    """Figures are composed, but matplotlib paints only those of tests marked so: it takes longer than a small training."""
    if "painted" not in request.keywords:
        monkeypatch.setattr(FigureCanvasAgg, "draw", lambda canvas: setattr(canvas, "renderer", canvas.get_renderer()))


@pytest.fixture(autouse=True)
def _clean_process():
    """What a command line would leave behind in its process: stop flag, folders, open runs."""
    yield
    stopping.request.signal = None
    devices.choose(None)
    permissions.user_allows()
    forget()


def forget():
    """What is gone when a process ends: all but the files."""
    record.open_runs.clear()
    ownership.forget()


@pytest.fixture
def otca(capsys):
    """otca("train", …) -> exit code, what it printed, what it complained about; as if the process were a new one."""

    def run(*arguments):
        record.open_runs.clear()
        stopping.request.signal = None
        code = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def copied(finished_run, tmp_path):
    """A copy of the finished run, which a test may change."""
    return shutil.copytree(finished_run, tmp_path / "run")


@pytest.fixture
def writes_to():
    """writes_to(folder): from now on the test's runs are there, as in a training of that folder."""
    with contextlib.ExitStack() as stack:
        yield lambda folder: stack.enter_context(paths.writing_to(folder))


@pytest.fixture(scope="session", autouse=True)
def _own_permissions(tmp_path_factory):
    """Tests may name what they wrote; what the person at this machine has allowed does not count."""
    os.environ[remembered.FILE] = str(tmp_path_factory.mktemp("permissions") / "permissions.json")
    os.environ[permissions.FOLDERS] = str(tmp_path_factory.getbasetemp())


@pytest.fixture(autouse=True)
def _nothing_stays_allowed(monkeypatch):
    """What a command line allows, it allows by the environment."""
    for variable in (permissions.FOLDERS, permissions.HOSTS, permissions.DOWNLOADS, permissions.PYTHON):
        monkeypatch.setenv(variable, os.environ.get(variable, ""))


@pytest.fixture(scope="session")
def flux_folder():
    return ROOT / "assets" / "shapes-flux"


@pytest.fixture(scope="session")
def tiny_folder(flux_folder, tmp_path_factory):
    """tiny_folder(family): a checkpoint of it with random weights, or of "flux" the embedded one; made once, only to be read."""
    place = tmp_path_factory.mktemp("checkpoints")

    def of(family):
        if family == "flux":
            return flux_folder
        return place / family if (place / family).is_dir() else tiny.make(family, place / family)

    return of


@pytest.fixture(scope="session")
def load_model(flux_folder, device):
    """load_model(path=…, lora_rank=…): a handle of its own, in float32."""

    def load(path=flux_folder, **options):
        return load_flow_model(
            path, **{"lora_rank": 4, "lora_alpha": 4.0, "device": device, "dtype": "float32", **options}
        )

    return load


@pytest.fixture(scope="session")
def load_toy(flux_folder, device):
    """load_toy(lora_rank=…): a handle of two linear layers, in place of `load_model` where it does not matter what is trained."""
    return lambda **options: toy.load(flux_folder, **{"lora_rank": 4, "lora_alpha": 4.0, "device": device, **options})


@pytest.fixture
def model(load_model):
    """A fresh model that the test may change."""
    return load_model()


@pytest.fixture(scope="session")
def perturb():
    """perturb(model): moves the adapter away from zero, so that it matters and all of it has a gradient."""

    def move(model, seed=0, scale=0.1):
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.policy.trainable_parameters():
            parameter.data += (scale * torch.randn(parameter.shape, generator=generator)).to(parameter.device)
        return model

    return move


@pytest.fixture(scope="session")
def still_model(load_model, perturb):
    """One model with a visible adapter for all tests that only look at it."""
    return perturb(load_model())


@pytest.fixture(scope="session")
def small_settings():
    """small_settings(kind=…): 4 steps of 40 x 40 pixels."""

    def settings(**changes):
        values = dict(kind="dance_sde", eta=0.5, steps=4, width=40, height=40, shift=0.0, guidance=3.5)
        return SamplerSettings(**{**values, **changes})

    return settings


@pytest.fixture(scope="session")
def sample(small_settings):
    """sample(model, …): two prompts with groups of three."""

    def take(
        model, settings=None, prompts=("a red circle", "a blue square"), positions=(0, 1), batch_size=0, **options
    ):
        options = {"group_size": 3, "seed": 7, **options}
        settings = replace(settings or small_settings(), batch_size=batch_size)
        return rollout.sample(model, Prompts(prompts, positions), settings, **options)

    return take


def uniform() -> dict:
    """OTCA's graph without OTCA: the baseline of comparisons, as docs/recipes.md makes it."""
    workflow = Workflow.load(API / "otca.json", NODE_CLASS_MAPPINGS)
    workflow.exchange("TCDWeights", "StepCredit")
    workflow.exchange("MOCAFuse", "WeightedFuse")
    graph = workflow.graph
    for entry in graph.values():
        entry.setdefault("_meta", {"title": NODE_CLASS_MAPPINGS[entry["class_type"]].TITLE})
        for name in ("run_name", "filename"):
            if name in entry["inputs"]:
                entry["inputs"][name] = entry["inputs"][name].replace("otca", "uniform")
    return graph


@pytest.fixture(scope="session")
def small_graph():
    """small_graph({"OTCA_Class": {input: value}}, source): OTCA's graph with few samples."""

    def graph(changes=None, source="otca.json"):
        content = uniform() if source == "uniform.json" else json.loads((API / source).read_text(encoding="utf-8"))
        for table in (SMALL, changes or {}):
            for entry in content.values():
                entry["inputs"].update(table.get(entry["class_type"], {}))
        return content

    return graph


@pytest.fixture(scope="session")
def small_workflow(small_graph):
    """small_workflow(changes, extra node classes): the same as a Workflow."""

    def workflow(changes=None, classes=None, source="otca.json"):
        return Workflow(small_graph(changes, source), {**NODE_CLASS_MAPPINGS, **(classes or {})})

    return workflow


@pytest.fixture(scope="session")
def finished_run(small_graph, tmp_path_factory):
    """The folder of one uninterrupted small training of the toy by the command line. Only to be looked at."""
    return finished(small_graph, tmp_path_factory.mktemp("finished"))


@pytest.fixture(scope="session")
def real_run(small_graph, tmp_path_factory):
    """`finished_run` of the tiny FLUX."""
    with toy.real_one():
        return finished(small_graph, tmp_path_factory.mktemp("real"))


def finished(small_graph, folder):
    from comfyui_otca.__main__ import main

    workflow = folder / "workflow.json"
    workflow.write_text(json.dumps(small_graph()))
    assert main(["train", str(workflow), "--output", str(folder / "run")]) == 0
    return folder / "run"


@pytest.fixture
def comfyui(monkeypatch, tmp_path):
    """The parts of ComfyUI that the trainer talks to."""

    class Interrupt(BaseException):
        pass

    state = types.SimpleNamespace(interrupt_after=None, checks=0, bars=[], unloaded=0, loaded=[], Interrupt=Interrupt)
    state.events, state.running, state.device, state.flags = [], {}, torch.device("cpu"), []
    names = ("comfy.model_management", "comfy.utils", "folder_paths", "server")
    management, utils, paths, server = map(types.ModuleType, names)

    def throw():
        state.checks += 1
        if state.checks == state.interrupt_after:
            raise Interrupt

    def unload():
        state.unloaded += 1
        state.loaded.clear()

    class ProgressBar:
        def __init__(self, total):
            self.total, self.value = total, 0
            state.bars.append(self)

        def update(self, amount):
            self.value += amount

    management.throw_exception_if_processing_interrupted = throw
    management.InterruptProcessingException = Interrupt
    management.unload_all_models, management.soft_empty_cache = unload, lambda: None
    management.current_loaded_models = state.loaded
    management.get_torch_device = lambda: state.device
    utils.ProgressBar = ProgressBar
    paths.get_output_directory = paths.get_input_directory = paths.get_user_directory = lambda: str(tmp_path / "files")
    paths.get_folder_paths = lambda kind: [str(tmp_path / kind)]
    paths.get_filename_list = lambda kind: [
        str(file.relative_to(tmp_path / kind)) for file in sorted((tmp_path / kind).rglob("*.*"))
    ]
    paths.get_temp_directory = lambda: str(tmp_path / "temporary")
    paths.folder_names_and_paths = dict.fromkeys(("diffusion_models", "text_encoders", "vae", "loras"))
    queue = types.SimpleNamespace(currently_running=state.running, set_flag=lambda *flag: state.flags.append(flag))
    instance = types.SimpleNamespace(prompt_queue=queue, send_sync=lambda *event: state.events.append(event))
    server.PromptServer = types.SimpleNamespace(instance=instance)
    package = types.ModuleType("comfy")
    package.model_management, package.utils = management, utils
    management.unet_dtype = lambda device=None, weight_dtype=None: weight_dtype
    modules = {"comfy": package, "comfy.model_management": management, "comfy.utils": utils, "folder_paths": paths}
    modules["server"] = server
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return state


@pytest.fixture
def fake_comfyui(monkeypatch, tmp_path):
    """fake_comfyui(changes): a folder that can be imported as ComfyUI's, and is forgotten after the test."""
    from comfyui_otca.host import headless_comfyui
    from comfyui_otca.tests.host.fake_comfyui import make

    folder = tmp_path / "ComfyUI"
    before, path = set(sys.modules), list(sys.path)
    for variable in (headless_comfyui.PATH, headless_comfyui.ARGUMENTS, headless_comfyui.PACKS):
        monkeypatch.setenv(variable, "")  # so that what a command sets is taken back
    monkeypatch.setattr(headless_comfyui, "_added", set())
    yield lambda changes=None: make(folder, changes)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
    sys.path[:] = path
