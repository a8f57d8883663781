"""What a prompt's line may say of pictures, folders of pairs, and what is wrong with either: said with the line and the limit."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from comfyui_otca.host.access.permissions import NotAllowed
from comfyui_otca.host.recent import Recent
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.study import scoring
from comfyui_otca.tests.processes import together
from comfyui_otca.tests.training import rows, train, whole_and_resumed
from comfyui_otca.trainer.checks import preflight
from comfyui_otca.trainer.families import given
from comfyui_otca.trainer.pictures import media
from comfyui_otca.trainer.prompts import PromptError, file_state, read_prompts
from comfyui_otca.trainer.rewards import folder as ranked
from comfyui_otca.trainer.types import Prompt, metadata_of
from comfyui_otca.trainer.workflow.running import Workflow


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An input folder with two pictures of different size."""
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    monkeypatch.setenv("OTCA_INPUT", str(inputs))
    random = np.random.default_rng(1)
    for name, size in {"a.png": (24, 50), "b.png": (40, 20)}.items():
        Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8)).save(inputs / name)
    return inputs


def lines(folder, *entries):
    (folder / "edits.jsonl").write_text(
        "\n\n".join(entry if isinstance(entry, str) else json.dumps(entry) for entry in entries)
    )
    return read_prompts("", "edits.jsonl")


def test_sources_are_the_files_pictures_in_their_order(folder):
    one, both, none = lines(
        folder, {"prompt": "x", "image": "b.png"}, {"prompt": "x", "images": ["b.png", "a.png"]}, {"prompt": "y"}
    )
    assert [each.shape for each in given.sources(both)] == [(40, 20, 3), (24, 50, 3)]
    [picture] = given.sources(one)
    assert picture.dtype == torch.uint8 and np.array_equal(picture.numpy(), np.asarray(Image.open(folder / "b.png")))
    assert given.sources(one)[0] is picture, "decoded once"
    assert given.sources(none) == () == given.sources("plain text")
    before = given.pictures(one)
    shutil.copy(folder / "a.png", folder / "b.png")
    assert given.sources(one)[0].shape == (24, 50, 3) and given.pictures(one) != before, "the file has changed"
    assert given.pictures(one) == given.pictures(Prompt("z", {"image": "a.png"})), "equal by content"


# One picture, black beside white, as people's files have it; what is clear has other colours below it.
SEEN = np.repeat(np.repeat(np.uint8([[0, 255]]), 3, axis=1), 4, axis=0)[..., None].repeat(3, axis=-1)  # [4, 6, 3]
CLEAR = np.dstack([np.where(SEEN == 255, 77, SEEN), 255 - SEEN[..., 0]])  # [4, 6, 4]
TURNED = Image.Exif()
TURNED[0x112] = 6
KINDS = {
    "turned.png": (np.rot90(SEEN), {"exif": TURNED}),
    "clear.png": (CLEAR, {}),
    "clear.webp": (CLEAR, {"lossless": True, "exact": True}),
    "animated.webp": (SEEN, {"lossless": True, "save_all": True, "append_images": [Image.new("RGB", (6, 4), "blue")]}),
    "sixteen.png": (SEEN[..., 0].astype(np.uint16) * 257, {}),
    "sixteen.tif": (SEEN[..., 0].astype(np.uint16) * 257, {}),
    "ink.tiff": (Image.fromarray(SEEN).convert("CMYK"), {}),
}
PLACES = {
    "otca score": lambda file: (next(scoring.batches([file], 1))[1][0] * 255).round().byte().numpy(),
    "an edit": lambda file: given.sources(Prompt("x", {"image": file.name}))[0].numpy(),
    "pairs": lambda file: media.fitted(file.read_bytes(), 6, 4),
    "a folder that a reward ranks": lambda file: np.asarray(ranked.read(file.parent, file.name)),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_picture_is_the_same_pixels_everywhere(folder, kind, place):
    picture, options = KINDS[kind]
    picture = picture if isinstance(picture, Image.Image) else Image.fromarray(np.ascontiguousarray(picture))
    picture.save(folder / kind, **options)
    assert np.array_equal(PLACES[place](folder / kind), SEEN)


def test_decoded_pictures_take_a_bounded_memory(folder, monkeypatch):
    monkeypatch.setattr(given, "_known", Recent(24 * 50 * 3, lambda picture: picture.pixels.nbytes))
    for name in ("a.png", "b.png", "a.png"):
        given.sources(Prompt("x", {"image": name}))
        assert len(given._known) == 1


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"image": 5}, "5 for its image, which is not the name of a picture"),
        ({"image": ""}, "'' for its image"),
        ({"images": "a.png"}, "'a.png' for its images, which is not a list of names"),
        ({"images": ["a.png", 3]}, "which is not a list of names"),
        ({"images": []}, "an empty list for its images"),
        ({"images": ["a.png"] * 11}, "11 pictures for its images, and 10 may be given"),
        ({"image": "a.png", "images": ["b.png"]}, "both image and images"),
    ],
)
def test_what_a_line_says_wrongly_is_told_with_its_number(folder, entry, told):
    with pytest.raises(PromptError, match=r"edits.jsonl, line 3 .*Fix: ") as caught:
        lines(folder, {"prompt": "x", "image": "a.png"}, {"prompt": "y", **entry})
    assert told in str(caught.value)


def broken(folder):
    (folder / "broken.png").write_bytes(b"no picture")
    (folder / "cut.png").write_bytes((folder / "a.png").read_bytes()[:30])
    Image.new("1", (9000, 9000)).save(folder / "large.png")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nowhere.png", "was not found"),
        ("broken.png", "is not one of PNG, JPEG, WEBP, BMP"),
        ("cut.png", ""),
        ("large.png", "has 9000 x 9000 pixels, and a picture may have 64,000,000"),
        ("notes.txt", "is not .png or .jpg"),
        ("/etc/passwd.png", "lies in no folder that workflows may read"),
        ("../up.png", "lies in no folder that workflows may read"),
    ],
)
def test_a_picture_that_cannot_be_used_is_told_with_its_line_and_file(folder, name, told):
    broken(folder)
    prompts = lines(folder, {"prompt": "x", "image": "a.png"}, {"prompt": "y", "images": ["b.png", name]})
    given.check(prompts[:1])
    asks = (given.check, lambda prompts: given.sources(prompts[1]))
    for ask in asks[1:] if name == "cut.png" else asks:  # a file that is cut off shows only when it is decoded
        with pytest.raises((PromptError, NotAllowed), match=r"edits.jsonl, line 3: .*Fix: ") as caught:
            ask(prompts)
        assert told in str(caught.value) and repr(name) in str(caught.value)


def test_a_file_of_too_many_bytes(folder, monkeypatch):
    monkeypatch.setattr(given.permissions, "MOST_PICTURE_BYTES", 100)
    with pytest.raises(PromptError, match=r"line 1: image 'a.png' of a prompt: .*bytes, and 100 may be read"):
        given.check(lines(folder, {"prompt": "x", "image": "a.png"}))


def test_the_second_picture_in_a_telephones_jpeg_is_no_animation(folder):
    first, second = (Image.new("RGB", (16, 16), color) for color in ("red", "blue"))
    first.save(folder / "phone.jpg", format="MPO", save_all=True, append_images=[second])
    with open(folder / "phone.jpg", "rb") as file:
        assert media.stored_size(file) == (16, 16)


# -- a folder of pairs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def pairs(folder):
    place = folder / "edits"
    (place / "more").mkdir(parents=True)
    shutil.copy(folder / "a.png", place / "one.png")
    shutil.copy(folder / "b.png", place / "more" / "two.png")
    (place / "one.txt").write_text("make it blue\n")
    (place / "more" / "two.txt").write_text("make it blue")
    return place


@pytest.mark.parametrize("whole", [False, True])
def test_a_folder_of_pairs(pairs, whole):
    name = str(pairs) if whole else "edits"
    state, found = file_state(name), read_prompts("", name)
    assert found == ["make it blue"] * 2
    assert [metadata_of(prompt) for prompt in found] == [
        {"image": f"{name}/more/two.png"},
        {"image": f"{name}/one.png"},
    ]
    assert [given.sources(prompt)[0].shape[:2] for prompt in found] == [(40, 20), (24, 50)]
    (pairs / "one.txt").write_text("make it red")
    assert file_state(name) != state and read_prompts("", f"{name}/")[1] == "make it red"


def test_what_is_wrong_with_a_folder_of_pairs(pairs, tmp_path):
    def refused(told, name="edits"):
        with pytest.raises((PromptError, NotAllowed), match=told):
            read_prompts("", name)

    (pairs / "three.txt").write_text("x")
    refused(r"three.txt has no picture beside it \(1 such files\). Fix: ")
    shutil.copy(pairs / "one.png", pairs / "three.png")
    shutil.copy(pairs / "one.png", pairs / "three.webp")
    refused("three.png and three.webp belong to one text. Fix: ")
    (pairs / "three.webp").unlink()
    (pairs / "three.txt").write_text(" ")
    refused("three.txt is empty. Fix: write the prompt of its picture into it")
    (pairs / "three.txt").write_bytes(b"\xff\xfe\xff")
    refused("three.txt, line 1 is not text in UTF-8")
    (pairs / "three.txt").unlink()
    refused("three.png has no three.txt beside it")
    (pairs / "three.png").unlink()
    secret = tmp_path / "secret.txt"
    secret.write_text("x")
    (pairs / "one.txt").unlink()
    (pairs / "one.txt").symlink_to(secret)
    refused("link out of its folder|leads out")
    (pairs.parent / "empty").mkdir()
    refused("no prompts in .*empty. Fix: ", "empty")
    refused("was not found|is not .txt or .jsonl", "nowhere")
    refused("lies in no folder that workflows may read", "/etc")


# -- before Run, and a whole training -----------------------------------------------------------------------------------------


def graph_of(small_graph, model, folder, *entries, **changes):
    (folder / "edits.jsonl").write_text("\n".join(map(json.dumps, entries)))
    return small_graph(
        {
            "OTCA_LoadFlowModel": {"path": str(model)},
            "OTCA_PromptDataset": {"file": "edits.jsonl", "prompts": ""},
            "OTCA_SDESampler": {"width": 32, "height": 32, "guidance": 3.5, "steps": 4, "group_size": 3},
            "OTCA_TrainingRun": {"iterations": 2, "checkpoint_every": 1, "evaluate_every": 2, "evaluation_seeds": 1},
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("family", "entry", "told"),
    [
        ("flux-dev", {"image": "a.png"}, "line 2 has 1 pictures, and this model takes none"),
        ("flux-kontext", {"images": ["a.png", "b.png"]}, "line 2 has 2 pictures, and this model takes 1"),
        ("flux-kontext", {"image": "nowhere.png"}, "line 2: image 'nowhere.png'"),
        ("flux-kontext", {}, None),
        ("qwen-image-edit", {}, "line 2 has no image, and this model edits pictures"),
    ],
)
def test_it_is_said_before_run(small_graph, tiny_folder, folder, family, entry, told):
    first = {} if family == "flux-dev" else {"image": "a.png"}
    graph = graph_of(small_graph, tiny_folder(family), folder, {"prompt": "x", **first}, {"prompt": "y", **entry})
    graph["3"]["inputs"]["guidance"] = 3.5
    problems = [each for each in preflight.problems(Workflow(graph, NODE_CLASS_MAPPINGS)) if each.input == "file"]
    assert [told in each.message and bool(each.fix) for each in problems] == ([True] if told else [])


ENTRIES = [{"prompt": "make it blue", "image": name} for name in ("a.png", "b.png")]
RUN = {
    **{"iterations": 2, "checkpoint_every": 1, "evaluate_every": 2, "evaluation_seeds": 1},
    "evaluation_prompts": "\n".join(map(json.dumps, ENTRIES)),
}


def test_it_trains_on_pictures_evaluates_with_them_and_resumes_to_the_bit(small_graph, tiny_folder, folder, tmp_path):
    graph = graph_of(small_graph, tiny_folder("flux-kontext"), folder, *ENTRIES, OTCA_TrainingRun=RUN)
    workflow = tmp_path / "workflow.json"
    workflow.write_text(json.dumps(graph))
    assert all(row["gradient_norm"] > 0 for row in whole_and_resumed(workflow, tmp_path))
    rows = [json.loads(line) for line in (tmp_path / "whole" / "evaluation.jsonl").read_text().splitlines()]
    assert [[entry["image"] for entry in row["metadata"]] for row in rows] == [["a.png", "b.png"]] * len(rows) != []
    first, second = (rows[0]["rewards"][name]["values"] for name in list(rows[0]["rewards"])[:1] for _ in range(2))
    assert first[0] != second[1], "equal texts, different pictures"


def test_several_processes_train_and_evaluate_on_pictures_as_one_does(small_graph, tiny_folder, folder, tmp_path):
    """Equal texts, each with its own source, and a reward that compares with it. Of three processes each has parts of groups."""
    sampler = {"width": 32, "height": 32, "guidance": 3.5, "steps": 4, "group_size": 3, "batch_size": 1}
    changes = {"OTCA_TrainingRun": RUN, "OTCA_SDESampler": sampler}
    graph = graph_of(small_graph, tiny_folder("flux-kontext"), folder, *ENTRIES, **changes)
    graph["kept"] = {"class_type": "OTCA_RewardKept", "inputs": {"coefficient": 1.0}}
    [stack] = [entry["inputs"] for entry in graph.values() if entry["class_type"] == "OTCA_RewardStack"]
    stack["reward_8"] = ["kept", 0]
    made = [Workflow(graph, NODE_CLASS_MAPPINGS) for _ in range(2)]
    assert train(made[0], tmp_path / "one") == 0
    assert together(3, train, made[1], tmp_path / "many") == [0] * 3
    for before, after in zip(rows(tmp_path / "one"), rows(tmp_path / "many"), strict=True):
        for name in ("loss", "reward/kept/mean", "reward/kept/std"):
            assert after[name] == pytest.approx(before[name], abs=1e-5), name
        assert after["gradient_norm"] == pytest.approx(before["gradient_norm"], rel=1e-3)
    judged = [rows(tmp_path / name, "evaluation.jsonl") for name in ("one", "many")]
    for before, after in zip(*judged, strict=True):
        assert after["metadata"] == before["metadata"] == [{"image": "a.png"}, {"image": "b.png"}]
        values = [row["rewards"]["kept"]["values"] for row in (before, after)]
        assert values[1] == pytest.approx(values[0], abs=1e-5) and abs(values[0][0] - values[0][1]) > 1e-3
