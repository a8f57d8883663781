"""What a bundle takes of a graph: files are copied and named anew, models are expected, and nothing of the machine is left."""

from __future__ import annotations

import json
import shutil

import huggingface_hub
import pytest
from PIL import Image

from comfyui_otca.bundle import packages
from comfyui_otca.bundle.found import MODELS
from comfyui_otca.host import paths
from comfyui_otca.host.foreign_nodes import ForeignNode
from comfyui_otca.inference.guidance import Guide, file_states
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.bundle.conftest import inputs_of, with_reward
from comfyui_otca.trainer.policy.files import PEFT, PEFT_SETTINGS, read_tensors, write_tensors
from comfyui_otca.trainer.workflow import WorkflowError

PROMPTS, LOADER, RUN = "OTCA_PromptDataset", "OTCA_LoadFlowModel", "OTCA_TrainingRun"


def problems(call, *arguments):
    with pytest.raises(WorkflowError) as refused:
        call(*arguments)
    return refused.value.problems


# --- what is copied ---------------------------------------------------------------------------------------------------


def test_a_prompt_file_is_copied_under_its_name_and_that_of_the_pack_is_not(places, small_graph, collected):
    named = str(places.input / "prompts.txt")
    held = collected(small_graph({PROMPTS: {"file": named, "prompts": ""}}))
    assert inputs_of(held.graph, PROMPTS)["file"] == "prompts.txt"
    assert held.copied["inputs/prompts.txt"] == places.input / "prompts.txt"
    own = str(paths.ASSETS / "prompts" / "shapes_train.txt")
    held = collected(small_graph({PROMPTS: {"file": own, "prompts": ""}}))
    assert inputs_of(held.graph, PROMPTS)["file"] == "shapes_train.txt" and not held.copied


def test_a_python_reward_is_copied_where_its_folder_is_allowed_and_only_there(
    places, small_graph, collected, monkeypatch
):
    graph = with_reward(small_graph(), ("OTCA_RewardPython", {"file": str(places.rewards / "mine.py")}))
    held = collected(graph)
    assert held.graph["77"]["inputs"]["file"] == "mine.py"
    assert held.copied == {"rewards/mine.py": places.rewards / "mine.py"}
    monkeypatch.delenv("OTCA_ALLOW_PYTHON_REWARDS")
    (problem,) = problems(collected, graph)
    assert problem.input == "file" and "no folder is allowed" in problem.message


def test_two_files_of_one_name_get_two(places, small_graph, collected):
    other = places.rewards / "other"
    other.mkdir()
    shutil.copyfile(places.rewards / "mine.py", other / "mine.py")
    graph = with_reward(small_graph(), ("OTCA_RewardPython", {"file": "mine.py", "name": "one"}))
    graph["78"] = {"class_type": "OTCA_RewardPython", "inputs": {"coefficient": 1.0, "file": "other/mine.py"}}
    inputs_of(graph, "OTCA_RewardStack")["reward_6"] = ["78", 0]
    held = collected(graph)
    assert {held.graph[node]["inputs"]["file"] for node in ("77", "78")} == {"mine.py", "mine_2.py"}
    assert set(held.copied) == {"rewards/mine.py", "rewards/mine_2.py"}


def test_the_adapter_to_start_from_is_copied_and_that_of_a_run_gets_the_runs_name(
    places, small_graph, collected, finished_run, monkeypatch
):
    monkeypatch.setenv("OTCA_RUNS", str(finished_run.parent))
    held = collected(small_graph({LOADER: {"start_from": finished_run.name}}))
    assert inputs_of(held.graph, LOADER)["start_from"] == "run.safetensors"
    assert held.copied == {"loras/run.safetensors": (finished_run / "lora.safetensors").absolute()}
    resumed = collected(small_graph({LOADER: {"resume_run": finished_run.name}}))
    assert inputs_of(resumed.graph, LOADER)["resume_run"] == ""
    assert inputs_of(resumed.graph, LOADER)["start_from"] == "run.safetensors"
    (problem,) = problems(collected, small_graph({LOADER: {"resume_run": "nobody"}}))
    assert problem.input == "resume_run" and "OTCA_RUNS" in problem.fix


def test_an_adapter_of_pefts_is_copied_with_what_says_its_scale(places, small_graph, collected, finished_run):
    folder, names = places.models / "loras" / "mine", (PEFT, PEFT_SETTINGS)
    folder.mkdir(parents=True)
    tensors = read_tensors(finished_run / "lora.safetensors").items()
    write_tensors(folder / PEFT, {key.replace("transformer.", "base_model.model.", 1): value for key, value in tensors})
    (folder / PEFT_SETTINGS).write_text('{"lora_alpha": 8}')
    held = collected(small_graph({LOADER: {"start_from": "mine"}}))
    assert inputs_of(held.graph, LOADER)["start_from"] == "mine"
    assert held.copied == {f"loras/mine/{name}": folder / name for name in names}
    before = file_states([Guide("mine", ())])
    (folder / PEFT_SETTINGS).write_text('{"lora_alpha": 16}')
    assert file_states([Guide("mine", ())]) != before, "another scale is another adapter"


def test_pairs_are_copied_with_their_pictures_and_a_link_out_of_their_folder_is_refused(places, small_graph, collected):
    pairs, source = places.input / "pairs", paths.ASSETS / "prompts" / "shapes_pairs"
    shutil.copytree(source, pairs)
    graph = small_graph(source="preference_pairs.json")
    inputs_of(graph, "OTCA_MyPictures")["folder"] = "pairs"
    held = collected(graph)
    listed = [json.loads(line) for line in (source / "pairs.jsonl").read_text().splitlines()]
    expected = {f"inputs/pairs/{pair[name]}" for pair in listed for name in ("chosen", "rejected")}
    assert set(held.copied) == {"inputs/pairs/pairs.jsonl", *expected}
    secret = places.home / "secret.png"
    shutil.copyfile(pairs / listed[0]["chosen"], secret)
    (pairs / listed[0]["chosen"]).unlink()
    (pairs / listed[0]["chosen"]).symlink_to(secret)
    (problem,) = problems(collected, graph)
    assert "link" in problem.message


# --- what is expected -------------------------------------------------------------------------------------------------


def test_models_of_the_pack_come_with_it_and_others_are_expected_by_name(places, small_graph, collected):
    """Of a pipeline the copy in one file is not expected."""
    assert collected(small_graph()).models == []
    flux = shutil.copytree(paths.ASSETS / "shapes-flux", places.models / "owner" / "flux")
    (flux / "flux1-dev.safetensors").write_bytes(b"large")
    (flux / ".git").mkdir()
    (flux / ".git" / "config.json").write_text("{}")
    held = collected(small_graph({LOADER: {"path": str(flux)}}))
    (model,) = held.models
    assert (model.name, model.where) == ("flux", MODELS) and inputs_of(held.graph, LOADER)["path"] == "flux"
    names = {name for name, _ in model.files()}
    assert {"flux/model_index.json", "flux/transformer/diffusion_pytorch_model.safetensors"} <= names
    assert not names & {"flux/flux1-dev.safetensors", "flux/.git/config.json"}
    held = collected(small_graph({LOADER: {"path": "owner/flux"}}))
    assert [model.name for model in held.models] == ["owner/flux"] == [inputs_of(held.graph, LOADER)["path"]]


def test_a_rewards_file_in_the_hub_cache_is_found(places, small_graph, collected, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(places.home / "hub"))
    name = "HPS_v2.1_compressed.pt"

    def cached(owner, content):
        file = places.home / "hub" / f"models--{owner}--HPSv2" / "snapshots" / "1a2b" / name
        file.parent.mkdir(parents=True)
        file.write_bytes(content)
        return file

    graph = with_reward(small_graph(), ("OTCA_RewardHPSv2", {"path": name}))
    file = cached("xswu", b"weights")
    assert [(name, file)] in [model.files() for model in collected(graph).models]
    cached("somebody", b"others")
    (model,) = [model for model in collected(graph).models if model.name == name]
    assert model.path is None, "nobody can say which is meant"


# --- what must not leave ----------------------------------------------------------------------------------------------


def test_a_reward_servers_token_is_named_and_its_value_is_nowhere(places, small_graph, bundled, monkeypatch):
    secret = "s3cr3t-value-of-the-token"
    monkeypatch.setenv("OTCA_REWARD_TOKEN_MINE", secret)
    monkeypatch.setenv("OTCA_REWARD_TOKEN_MINE_HOST", "score.example.org")
    monkeypatch.setenv("OTCA_ALLOW_HOSTS", "score.example.org:443")
    monkeypatch.setenv("WANDB_API_KEY", "another-" + secret)
    url = {"url": "https://score.example.org/score", "token_variable": "OTCA_REWARD_TOKEN_MINE"}
    graph = with_reward(small_graph({PROMPTS: {"file": "prompts.txt"}}), ("OTCA_RewardHTTP", url))
    folder = bundled(graph)
    written = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    machine = [secret, str(places.home), str(places.input), str(folder.parent), str(packages.PACK)]
    for path, content in written.items():
        assert not [word for word in machine if word.encode() in content], path
    assert "`OTCA_REWARD_TOKEN_MINE`, `OTCA_REWARD_TOKEN_MINE_HOST`" in (folder / "README.md").read_text()
    assert "ALLOW_HOSTS=(score.example.org:443)" in (folder / "settings.sh").read_text()


def test_what_looks_like_a_key_is_refused_and_not_repeated(places, small_graph, collected):
    judge = {"url": "http://127.0.0.1:8000/v1", "questions": "good: Is it good?", "extra": '{"api_key": "abc"}'}
    for kind, inputs, name, said in (
        ("HTTP", {"url": "http://127.0.0.1:8189/score?api_key=abc"}, "url", "query"),
        ("VLMJudge", judge, "extra", "key"),
    ):
        (problem,) = problems(collected, with_reward(small_graph(), (f"OTCA_Reward{kind}", inputs)))
        assert problem.input == name and said in problem.message and "abc" not in str(problem)
    graph = small_graph({RUN: {"evaluation_prompts": f"a picture as in {places.home}/mine.png"}})
    (problem,) = problems(collected, graph)
    assert "home folder" in problem.message


def test_nodes_that_train_nothing_stay_here(places, small_graph, collected):
    graph = small_graph()
    graph["90"] = {"class_type": "SaveImage", "inputs": {"images": ["3", 1], "filename_prefix": "/home/me/secret"}}
    assert "90" not in collected(graph).graph


def test_a_name_of_a_run_that_is_none(places, small_graph, collected):
    for name in ("../out", "a/b", "-rf", "two\nlines", "", "x" * 101):
        graph = small_graph({RUN: {"run_name": name}}) if not name else small_graph()
        with pytest.raises(ValueError, match="Fix: for example my_run"):
            collected(graph, name or None)


def test_not_allowed_is_said_of_the_input(places, small_graph, collected, tmp_path):
    (tmp_path / "else.txt").write_text("a circle")
    found = problems(collected, small_graph({PROMPTS: {"file": str(tmp_path / "else.txt")}}))
    assert all(problem.input == "file" for problem in found) and "workflows may read" in found[0].message


def test_a_folder_of_pairs_becomes_a_list(places, small_graph, collected):
    folder = places.input / "edits"
    (folder / "more").mkdir(parents=True)
    for name in ("one", "more/two"):
        Image.new("RGB", (8, 8), "red").save(folder / f"{name}.jpg")
        (folder / f"{name}.txt").write_text("make it blue")
    held = collected(small_graph({PROMPTS: {"file": "edits", "prompts": ""}}))
    assert inputs_of(held.graph, PROMPTS)["file"] == "edits.jsonl"
    rows = [json.loads(line) for line in held.copied["inputs/edits.jsonl"].decode().split("\n")]
    assert rows == [{"prompt": "make it blue", "image": name} for name in ("two.jpg", "one.jpg")]
    for name in ("one.jpg", "more/two.jpg"):
        assert held.copied[f"inputs/{name.rpartition('/')[2]}"] == (folder / name).read_bytes()
    outside = places.input.parent / "secret.jpg"
    Image.new("RGB", (8, 8)).save(outside)
    (folder / "one.jpg").unlink()
    (folder / "one.jpg").symlink_to(outside)
    [problem] = problems(collected, small_graph({PROMPTS: {"file": "edits", "prompts": ""}}))
    assert problem.input == "file" and "link out of its folder" in problem.message


def test_each_file_that_the_text_box_names_comes_along(places, small_graph, collected):
    """Under a name of its own, with its weight and its judges; two have the same name here, and one comes with the pack."""
    (places.input / "more").mkdir()
    for name in ("signs.txt", "more/signs.txt"):
        (places.input / name).write_text(f"a sign of {name}")
    Image.new("RGB", (8, 8), "red").save(places.input / "a.png")
    (places.input / "edits.jsonl").write_text('{"prompt": "make it blue", "image": "a.png"}')
    named = ["more/signs.txt", "signs.txt", "edits.jsonl", "shapes_train.txt"]
    rows = [{"file": name, "weight": 1 + number, "judged_by": ["text"]} for number, name in enumerate(named)]
    held = collected(small_graph({PROMPTS: {"file": "", "prompts": "# mine\n" + "\n".join(map(json.dumps, rows))}}))
    written = [json.loads(line) for line in inputs_of(held.graph, PROMPTS)["prompts"].splitlines()]
    there = ["signs.txt", "signs_2.txt", "edits.jsonl", "shapes_train.txt"]
    assert written == [{**row, "file": name} for row, name in zip(rows, there, strict=True)]
    assert set(held.copied) == {f"inputs/{name}" for name in (*there[:3], "a.png")}
    for name, source in (("signs.txt", "more/signs.txt"), ("signs_2.txt", "signs.txt")):
        assert held.copied[f"inputs/{name}"].samefile(places.input / source)
    (places.input / "more" / "signs.txt").unlink()
    (places.input / "more" / "signs.txt").symlink_to("/etc/hostname")
    refused = problems(collected, small_graph({PROMPTS: {"file": "", "prompts": json.dumps(rows[0])}}))
    assert refused and {problem.input for problem in refused} == {"prompts"}


def test_pictures_of_lines_in_the_text_box_come_along(places, small_graph, collected):
    """Seen before: the bundle's graph named a picture that was not in it."""
    Image.new("RGB", (8, 8), "red").save(places.input / "a.png")
    line = '{"prompt": "make it blue", "image": "a.png"}'
    held = collected(small_graph({PROMPTS: {"file": "", "prompts": line}}))
    assert inputs_of(held.graph, PROMPTS)["prompts"] == line and set(held.copied) == {"inputs/a.png"}


class LoadImage(ForeignNode):
    """A view of ComfyUI's own, as `host/foreign_nodes.py` makes it."""

    PACK, RETURN_TYPES, folder = None, ("INT",), staticmethod(lambda name: None)

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"image": (["first.png"], {"image_upload": True})}}


def test_pictures_of_the_input_folder_are_copied(places, small_graph, collected, monkeypatch):
    """Of a node of ComfyUI's, of a prompt file's lines and of evaluation prompts, under one name each."""
    monkeypatch.setitem(NODE_CLASS_MAPPINGS, "LoadImage", LoadImage)
    (places.input / "below").mkdir()
    for name, colour in (("first.png", "red"), ("below/first.png", "blue"), ("other.png", "green")):
        Image.new("RGB", (8, 8), colour).save(places.input / name)
    lines = ['{"prompt": "a", "image": "below/first.png", "n": 1}', '{"prompt": "ö"}']
    (places.input / "mine.jsonl").write_text("\n".join(lines), encoding="utf-8")
    evaluated = '{"prompt": "c", "image": "other.png"}\nplain'
    graph = small_graph({PROMPTS: {"file": "mine.jsonl", "prompts": ""}, RUN: {"evaluation_prompts": evaluated}})
    graph["90"] = {"class_type": "LoadImage", "inputs": {"image": "first.png [input]"}}
    inputs_of(graph, "OTCA_SDESampler")["steps"] = ["90", 0]
    held = collected(graph)
    named, (first, second) = held.graph["90"]["inputs"]["image"], held.copied["inputs/mine.jsonl"].decode().split("\n")
    line = json.loads(first)
    assert {named, line["image"]} == {"first.png", "first_2.png"} and line["n"] == 1 and second == lines[1]
    assert inputs_of(held.graph, RUN)["evaluation_prompts"] == evaluated
    pictures = {named: "first.png", line["image"]: "below/first.png", "other.png": "other.png"}
    assert set(held.copied) == {"inputs/mine.jsonl", *(f"inputs/{name}" for name in pictures)}
    for name, source in pictures.items():
        assert held.copied[f"inputs/{name}"] == (places.input / source).read_bytes()
    several = json.dumps({"prompt": "a", "images": ["other.png", "below/first.png"]})
    (places.input / "mine.jsonl").write_text(several, encoding="utf-8")
    held = collected(graph)
    names = json.loads(held.copied["inputs/mine.jsonl"])["images"]
    assert [held.copied[f"inputs/{name}"] for name in names] == [
        (places.input / name).read_bytes() for name in ("other.png", "below/first.png")
    ]
    graph["90"]["inputs"]["image"] = "made.png [output]"
    (places.input / "other.png").unlink()
    found = {problem.input: str(problem) for problem in problems(collected, graph)}
    assert "put the picture into the input folder" in found["image"]
    assert "was not found" in found["evaluation_prompts"]
