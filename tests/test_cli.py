"""`otca`: what answers at once, what `validate` says about bad input, `--set`, and `sample`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from comfyui_otca.__main__ import main
from comfyui_otca.host import devices
from comfyui_otca.trainer.policy.files import read_tensors, write_tensors
from comfyui_otca.trainer.run import status

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def written(tmp_path):
    """written(graph): a file with it."""

    def write(graph, name="workflow.json"):
        path = tmp_path / name
        path.write_text(graph if isinstance(graph, str) else json.dumps(graph))
        return path

    return write


def id_of(graph, class_type):
    return next(node_id for node_id, entry in graph.items() if entry["class_type"] == class_type)


def inputs_of(graph, class_type):
    return graph[id_of(graph, class_type)]["inputs"]


# --- what needs no torch --------------------------------------------------------------------------------------------

CHEAP = """
import contextlib, io, sys
from comfyui_otca.__main__ import main
printed = io.StringIO()
with contextlib.redirect_stdout(printed):
    try:
        main(["--help"])
    except SystemExit as end:
        assert end.code == 0, end.code
    assert main(["nodes"]) == 0
heavy = {"torch", "numpy", "diffusers", "transformers", "peft", "PIL", "matplotlib", "scipy"} & set(sys.modules)
assert not heavy, heavy
print(printed.getvalue())
"""


def test_output_that_cannot_be_written_ends_nothing(tmp_path):
    """A page of codes that lacks letters, and a reader that goes away before anything is written."""
    command = [sys.executable, "-m", "comfyui_otca", "nodes"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert rb"\xfc" in done.stdout and b"OTCA_SaveLoRA" in done.stdout and not done.stderr
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert (process.wait(), process.stderr.read()) == (0, b"")


def test_a_place_that_cannot_be_written_is_told_with_what_to_do(otca, finished_run, tmp_path):
    code, _, errors = otca("report", finished_run, "--output", tmp_path)
    assert code == 2 and str(tmp_path) in errors and errors.count("Fix: ") == 1


def test_help_and_nodes_load_nothing_heavy():
    from comfyui_otca import NODE_CLASS_MAPPINGS

    cheap = subprocess.run([sys.executable, "-c", CHEAP], capture_output=True, text=True, check=False)
    assert cheap.returncode == 0, cheap.stderr
    for word in ("train", "validate", "sample", "score", "eval", "compare", "export", "nodes"):
        assert word in cheap.stdout
    for name, node in NODE_CLASS_MAPPINGS.items():
        assert f"{name}  ({node.TITLE}, {node.CATEGORY})" in cheap.stdout
    assert "<- group_size: INT = 12" in cheap.stdout and "-> trajectories: OTCA_TRAJECTORIES" in cheap.stdout


def test_no_command_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2 and "usage: otca" in capsys.readouterr().err


# --- validate -------------------------------------------------------------------------------------------------------


def test_good_workflows(otca, written, small_graph, finished_run):
    names = ("quickstart.json", "otca.json", "six_rewards.json")
    for source in (*(written(small_graph(source=name)) for name in names), finished_run):
        code, printed, errors = otca("validate", source)
        assert (code, errors) == (0, "") and "ready to train" in printed, source


def test_a_truncated_model_is_named(otca, written, small_graph, flux_folder, tmp_path):
    folder = shutil.copytree(flux_folder, tmp_path / "model")
    weights = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    graph = small_graph({"OTCA_LoadFlowModel": {"path": str(folder)}})
    for command in (["validate"], ["train", "--output", tmp_path / "run"]):
        code, _, errors = otca(command[0], written(graph), *command[1:])
        assert code in (1, 2) and str(weights) in errors and "truncated" in errors and "Fix: " in errors


def test_files_that_are_no_workflow(otca, written, tmp_path):
    for command in ("validate", "train"):
        for path, words in (
            (tmp_path / "gone.json", "gone.json: no such file"),
            (written("no"), "not readable as a workflow"),
        ):
            code, _, errors = otca(command, path)
            assert code == 2 and words in errors and "Fix: " in errors and "Export (API)" in errors, errors


def test_gpus_must_be_there(otca, written, small_graph, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    train = ("train", written(small_graph()), "--output", tmp_path / "run")
    for options, words in (
        (["--gpus", 3], ["--gpus 3: ", "has 2 GPUs. Fix: fewer, or --device cpu"]),
        (["--reward-gpus", 1, "--gpus", 2], ["2 here, are 3 GPUs on each machine", "has 2. Fix: "]),
        (["--reward-gpus", 2], ["1 here, are 3 GPUs"]),
        (["--reward-gpus", 1, "--device", "cpu"], ["--device cpu say two things. Fix: "]),
    ):
        code, _, errors = otca(*train, *options)
        assert code == 2 and all(word in errors for word in words), errors
    assert not (tmp_path / "run").exists()
    seen = []
    monkeypatch.setattr(
        "comfyui_otca.trainer.run.loop.train", lambda *_, **__: seen.append(devices.chosen_reward_device("auto")) or 0
    )
    assert otca(*train, "--reward-gpus", 1)[0] == 0 and seen == ["cuda:1"]


def test_the_first_line_says_who_trains_what_and_threads_wait_without_spinning(otca, written, small_graph, tmp_path):
    run = tmp_path / "run"
    code, printed, errors = otca("train", written(small_graph()), "--output", run, "--iterations", 1)
    assert code == 0, errors
    who = "1 process on 1 machine, cpu, float32, 6 samples, shapes-flux, LoRA of "
    line = next(line for line in printed.splitlines() if " … " not in line)
    assert line.startswith(who) and line.endswith(f" parameters; {run}, after iteration 0")
    assert json.loads((run / "status.json").read_text())["who"] + f"; {run}, after iteration 0" == line
    set_first = (
        "import sys; from comfyui_otca.__main__ import main; main(['nodes']); print(os.environ['OMP_WAIT_POLICY'])"
    )
    clean = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, "-c", f"import os; {set_first}"], env=clean, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "PASSIVE"


def test_a_detached_training_goes_on_without_its_shell(written, small_graph, tmp_path):
    run, options = tmp_path / "run", ["--iterations", "6", "--output", str(tmp_path / "run")]
    command = [sys.executable, str(ROOT), "train", str(written(small_graph())), *options, "--detach"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"process {status.read(run).pid} trains; tail -f {run / 'train.log'} shows it" in done.stdout
    deadline = time.monotonic() + 240
    while "done after 6 iterations" not in (run / "train.log").read_text():  # it comes after the status
        assert time.monotonic() < deadline, (run / "train.log").read_text()
        time.sleep(0.1)
    assert status.read(run).status == "finished"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "already holds a run. Fix: " in done.stdout, done.stdout + done.stderr


def test_a_clock_that_was_set_does_not_hide_that_it_trains(otca, written, small_graph, tmp_path, monkeypatch):
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + 5)  # a process's start is told from the moment of booting
    run = tmp_path / "run"
    code, printed, errors = otca("train", written(small_graph()), "--iterations", "1", "--output", run, "--detach")
    assert code == 0 and f"process {status.read(run).pid} trains" in printed, printed + errors
    os.waitpid(status.read(run).pid, 0)


# --- --set ----------------------------------------------------------------------------------------------------------


def test_set(otca, written, small_graph):
    path = written(small_graph({"OTCA_SDESampler": {"group_size": 1}}))
    assert otca("validate", path)[0] == 2
    changes = ["SDESampler.group_size=2", "GRPOStep.learning_rate=1e-5", "PromptDataset.shuffle=false"]
    assert otca("validate", path, *(part for change in changes for part in ("--set", change)))[0] == 0


def test_a_bad_set_is_named(otca, written, small_graph):
    code, _, errors = otca("validate", written(small_graph()), "--set", "SDESampler.group_size")
    assert code == 2 and "no '='" in errors and "Fix: " in errors and "NODE.INPUT=VALUE" in errors, errors


def test_a_node_is_added_where_its_type_is_open(otca, written, small_graph):
    path, sharded = written(small_graph()), ("--add", "Memory=ModelMemory", "--set", "Memory.shard=true")
    assert otca("validate", path, *sharded)[0] == 0
    code, _, errors = otca("validate", path, *sharded, "--gpus", 4)
    assert code == 2 and "4 processes cannot share 6 samples equally" in errors, errors
    for added, words in (
        ("Memory=Memory", "unknown node class 'Memory'"),
        ("1=ModelMemory", "a new node cannot be called '1'"),
        ("More=PromptDataset", "no node has an open socket for what OTCA_PromptDataset gives (OTCA_PROMPTS)"),
    ):
        code, _, errors = otca("validate", path, "--add", added)
        assert code == 2 and words in errors and "Fix: " in errors, errors


# --- sample ---------------------------------------------------------------------------------------------------------


def size(path):
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return picture.size


def test_sample_a_run(otca, finished_run, tmp_path, monkeypatch):
    folder = shutil.copytree(finished_run, tmp_path / "run")
    arguments = ["sample", folder, "--prompt", "a red circle", "--prompt", "a blue square", "--seeds", 2]
    code, printed, errors = otca(*arguments)
    assert code == 0, errors
    assert printed.strip() == str(folder / "samples-1.png")
    width, height = size(folder / "samples-1.png")
    assert width >= 80 and height >= 80
    assert otca(*arguments)[1].strip() == str(folder / "samples-2.png")
    first = (folder / "samples-1.png").read_bytes()
    assert first == (folder / "samples-2.png").read_bytes()
    otca(*arguments, "--seed", 9, "--output", tmp_path / "other.png")
    assert (tmp_path / "other.png").read_bytes() != first
    tensors = read_tensors(folder / "lora.safetensors")
    write_tensors(folder / "lora.safetensors", {key: 30 * tensor for key, tensor in tensors.items()})
    otca(*arguments, "--output", tmp_path / "after.png")
    assert size(tmp_path / "after.png") == (width, height) and (tmp_path / "after.png").read_bytes() != first
    otca(*arguments, "--output", tmp_path / "after.apng")
    with Image.open(tmp_path / "after.apng") as moves:  # the sheet before, and then the one after
        assert moves.n_frames == 2 and (2 * moves.height, moves.width) == (height, width)
    (folder / "lora.safetensors").unlink()
    code, _, errors = otca(*arguments)
    assert code == 2 and "no lora.safetensors yet" in errors and "Fix: " in errors
    monkeypatch.setattr("comfyui_otca.host.extras.installed", lambda name: None)
    code, _, errors = otca(*arguments, "--output", tmp_path / "a.gif")
    assert code == 2 and "a.gif needs imageio" in errors and "pip install" in errors


def test_a_pair_of_pictures_of_a_run(otca, finished_run, tmp_path):
    """What differs is what was trained: with an adapter that does nothing the second picture is the first."""
    folder = shutil.copytree(finished_run, tmp_path / "run")
    tensors = read_tensors(folder / "lora.safetensors")
    metadata = {"otca_iteration": "6"}

    def pair(name, scale):
        changed = {key: scale * tensor if "lora_B" in key else tensor for key, tensor in tensors.items()}
        write_tensors(folder / "lora.safetensors", changed, metadata)
        code, printed, errors = otca("sample", folder, "--prompt=-a red circle", "--seed", 7, "--pair", tmp_path / name)
        assert code == 0, errors
        first, *_, calls, path = printed.split()
        assert path == str(tmp_path / name) and first == f"0/{calls.split('/')[0]}" == f"0/{calls.split('/')[1]}"
        about = json.loads((tmp_path / name / "about.json").read_text())
        assert about == {"prompt": "-a red circle", "seed": 7, "iteration": 6}
        with Image.open(tmp_path / name / "before.png") as before, Image.open(tmp_path / name / "after.png") as after:
            return np.asarray(before), np.asarray(after)

    before, after = pair("nothing", 0.0)
    assert (before == after).all() and before.ndim == 3
    again, changed = pair("loud", 30.0)
    assert (again == before).all() and (changed != before).any()
    code, _, errors = otca("sample", folder, "--prompt", "a", "--pair", tmp_path)
    assert code != 0 and "was not made by a training" in errors


@pytest.mark.parametrize("more", [["--prompt", "b"], ["--steps", 3], ["--guide", "x=1"]])
def test_a_pair_is_of_one_prompt_as_the_run_samples(otca, finished_run, tmp_path, more):
    code, _, errors = otca("sample", finished_run, "--prompt", "a", "--pair", tmp_path / "pair", *more)
    assert code == 2 and f"{more[0]} say two things. Fix: " in errors


def test_sample_with_guides(otca, real_run, tmp_path):
    def pictures(name, *guides):
        options = [part for guide in guides for part in ("--guide", guide)]
        arguments = ["sample", "shapes-flux", "--prompt", "a red circle", "--seeds", 2, "--steps", 3, *options]
        code, printed, errors = otca(*arguments, "--output", tmp_path / name)
        assert code == 0, errors
        with Image.open(tmp_path / name) as picture:
            return np.asarray(picture)

    tensors = read_tensors(real_run / "lora.safetensors")
    file = tmp_path / "loud.safetensors"
    write_tensors(file, {key: 30 * tensor if "lora_B" in key else tensor for key, tensor in tensors.items()})
    plain, zero, one = pictures("plain.png"), pictures("0.png", f"{file}=0"), pictures("1.png", f"{file}=1")
    height = len(plain)
    for picture in (zero, one):
        assert (picture[24 : 24 + height] == plain).all(), "above, under a heading, what there is without guides"
    assert (zero[-height:] == plain).all() and (one[-height:] != plain).any()
    both = pictures("both.png", f"{file}=0:1.5,2:0", f"{real_run}=0.5")
    assert both.shape == one.shape and (both[-height:] != one[-height:]).any()


def test_sample_a_model(otca, flux_folder, tmp_path):
    path = tmp_path / "new" / "a.png"
    options = ["--prompt", "a red circle", "--seeds", 2, "--steps", 3, "--size", "48x40", "--output", path]
    code, printed, errors = otca("sample", flux_folder, *options)
    assert code == 0, errors
    assert printed.strip() == str(path) and size(path)[0] >= 48


BAD_SAMPLES = [
    (["nowhere"], ["'nowhere'", "Fix: "]),
    (["shapes-flux", "--size", "big"], ["--size 'big'", "Fix: "]),
    (["shapes-flux", "--size", "44x40"], ["multiples of 8"]),
]


def test_a_bad_sample_is_named(otca, tmp_path):
    for arguments, words in BAD_SAMPLES:
        code, _, errors = otca("sample", *arguments, "--prompt", "x", "--output", tmp_path / "a.png")
        assert code == 2 and all(word in errors for word in words), errors


@pytest.mark.parametrize("command", [["score", "a.png"], ["eval", "model", "--prompts", "p.txt"]])
def test_rewards_one_by_one_and_all_at_once(command):
    from comfyui_otca.__main__ import parser

    one, all_ = (["--reward", "clip_t", "--reward", "hpsv2"], ["--rewards", "clip_t", "hpsv2"])
    assert parser().parse_args([*command, *one]).reward == parser().parse_args([*command, *all_]).reward
    with pytest.raises(SystemExit):
        parser().parse_args(command)


# --- graphs with ComfyUI's own nodes ------------------------------------------------------------------------------------


@pytest.fixture
def with_primitives(small_graph):
    """A graph whose number of steps comes from a node of ComfyUI's, with a preview that no training needs."""
    graph = small_graph({"OTCA_TrainingRun": {"iterations": 2}})
    steps = inputs_of(graph, "OTCA_SDESampler")["steps"]
    graph["90"] = {"class_type": "PrimitiveInt", "inputs": {"value": steps}}
    graph["91"] = {"class_type": "SaveImage", "inputs": {"images": [id_of(graph, "OTCA_SDESampler"), 1]}}
    inputs_of(graph, "OTCA_SDESampler")["steps"] = ["90", 0]
    return graph


def rewards(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name.startswith("reward/")} for row in rows]


def test_a_graph_with_its_nodes_says_what_it_needs(otca, written, with_primitives, tmp_path):
    for command in (["validate"], ["train", "--output", tmp_path / "run"]):
        code, _, err = otca(command[0], written(with_primitives), *command[1:])
        assert code == 2
        assert "error: workflow: needs ComfyUI for PrimitiveInt (node 90). Fix: add --comfyui PATH" in err
        assert "SaveImage (" not in err, "no node of ours needs it"


def test_it_trains_with_its_nodes_and_resumes_only_with_them(
    otca, written, with_primitives, small_graph, fake_comfyui, tmp_path, monkeypatch
):
    folder = fake_comfyui()
    graph, run = written(with_primitives), tmp_path / "run"
    code, out, _ = otca("validate", graph, "--comfyui", folder)
    assert code == 0 and "ready to train" in out
    assert otca("train", graph, "--comfyui", folder, "--output", run, "--device", "cpu")[0] == 0
    plain = written(small_graph({"OTCA_TrainingRun": {"iterations": 2}}), "plain.json")
    assert otca("train", plain, "--output", tmp_path / "plain")[0] == 0
    assert rewards(run) == rewards(tmp_path / "plain") and len(rewards(run)) == 2, "as with the number typed in"
    more = ("train", run, "--resume", "--iterations", "3")
    assert otca(*more, "--comfyui", folder)[0] == 0 and len(rewards(run)) == 3
    assert otca("sample", run, "--prompt", "a", "--seeds", "1", "--steps", "1", "--output", tmp_path / "a.png")[0] == 0
    monkeypatch.setenv("COMFYUI_PATH", "")
    monkeypatch.setattr("comfyui_otca.trainer.workflow.checking.comfy_loaded", lambda: False)  # as in a new process
    for command in (more, ("sample", run, "--prompt", "a")):
        code, _, err = otca(*command)
        assert code == 2 and "needs ComfyUI for PrimitiveInt (node 90). Fix: add --comfyui PATH" in err


def test_a_graph_without_its_nodes_does_not_load_it(
    otca, written, small_graph, with_primitives, fake_comfyui, monkeypatch, tmp_path
):
    monkeypatch.setenv("COMFYUI_PATH", str(tmp_path / "nowhere"))
    assert otca("validate", written(small_graph()))[0] == 0
    code, _, err = otca("validate", written(small_graph()), "--comfyui", tmp_path / "nowhere")
    assert code == 2 and "that folder is missing. Fix:" in err, "what was typed is looked at"
    monkeypatch.setenv("COMFYUI_PATH", str(fake_comfyui()))
    assert otca("validate", written(with_primitives))[0] == 0


def test_the_launcher_takes_no_memory_of_a_gpu(otca, written, with_primitives, fake_comfyui, monkeypatch, tmp_path):
    folder, asked = fake_comfyui(), []
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr("comfyui_otca.host.headless_comfyui.choose_accelerator", asked.append)
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    monkeypatch.setattr("comfyui_otca.host.distributed.check_gpus", lambda *_: None)
    launched = []
    monkeypatch.setattr("comfyui_otca.host.processes.launch", lambda *given: launched.append(given) or 0)
    arguments = ["train", written(with_primitives), "--comfyui", folder, "--gpus", "2", "--output", tmp_path / "run"]
    assert otca(*arguments)[0] == 0
    assert asked == ["cpu"] and launched[0][0] == 2 and str(folder) in launched[0][2]


def test_the_word_for_trainings_is_given_and_taken_back_in_a_terminal(tmp_path, capsys, monkeypatch):
    from comfyui_otca.host.access import permissions

    for variable in (permissions.TRAININGS, "COMFYUI_PATH"):
        monkeypatch.delenv(variable, raising=False)
    assert not permissions.trainings_allowed(tmp_path)
    typed = ["allow", "trainings", "--user-folder", str(tmp_path)]
    assert main(typed) == main(typed) == 0 and permissions.trainings_allowed(tmp_path)
    assert "is there. Restart ComfyUI" in capsys.readouterr().out
    assert main([*typed, "--take-back"]) == 0 and not permissions.trainings_allowed(tmp_path)
    (tmp_path / permissions.TRAININGS_FILE).mkdir()
    assert not permissions.trainings_allowed(tmp_path), "a folder of that name is not a word"
    for value, given in (("1", True), ("0", False), ("", False), ("yes", False)):
        monkeypatch.setenv(permissions.TRAININGS, value)
        assert permissions.trainings_allowed(tmp_path) is given, value
    assert main(["allow", "trainings"]) == 2 and "Fix: --user-folder" in capsys.readouterr().err
