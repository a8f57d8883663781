"""Whatever a widget or a link names: a path is used only inside the folders that workflows may read or write."""

from __future__ import annotations

import inspect
import json
import ntpath
import os
import random
import sys
import types
from pathlib import PureWindowsPath

import pytest

from comfyui_otca.host import paths, search
from comfyui_otca.host.access import folders, opening, permissions
from comfyui_otca.host.access.permissions import NotAllowed
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.page.test_refusals import NAMING
from comfyui_otca.trainer.policy import files as adapters

READ = NAMING  # what names a file or folder that is read; and here what names one that is written
WRITTEN = [
    *(("OTCA_LoadFlowModel", "resume_run"), ("OTCA_MakeTrainable", "resume_run"), ("OTCA_TrainingRun", "run_name")),
    *(("OTCA_SaveLoRA", "filename"), ("OTCA_RewardVote", "votes"), ("OTCA_ScoreImages", "save_as")),
]
# Texts that name no file: prompts, layers, words, addresses, variables, columns of the log, JSON.
NO_PATHS = [
    *"prompt prompts negative_prompt evaluation_prompts questions name clip device lora_targets url token_variable".split(),
    *"scale extra function best_metric wandb_project good bad tag".split(),
]
BY_LINE = ("OTCA_PromptDataset", "prompts")  # whose lines may be prompts, or name files
NEEDED = {  # for the input to be looked at
    "OTCA_RewardVote": {"learn": True},
    "OTCA_TCDWeights": {"proxy": "image_features"},
    "OTCA_ScoreImages": {"input_types": {"reward_1": "OTCA_REWARD"}},
}
FINDS = {
    "a model": lambda name: search.model(name, "model_index.json"),
    "weights": lambda name: search.weights(name, "loras"),
    "a reward model": lambda name: search.reward_file(name, name, "1 GB", "owner/name"),
    "a guide": adapters.find,
    "prompts": lambda name: permissions.open_prompts(name)[0],
    "pairs": lambda name: folders.input_folder(name, permissions.PAIRS),
    "pictures": lambda name: folders.input_folder(name, permissions.PICTURES),
}


def texts():
    """(node, input) of everything that a user, or a stranger's workflow, can write a name into."""
    for node, cls in NODE_CLASS_MAPPINGS.items():
        declared = cls.INPUT_TYPES()
        for name, (type_, _) in {**declared["required"], **declared.get("optional", {})}.items():
            if type_ == "STRING" or name in ("model", "path", "resume_run", "start_from") and isinstance(type_, list):
                yield node, name


def test_each_text_of_each_node_is_known_to_be_a_path_or_none():
    named = {(node, name) for node, name in texts() if name not in NO_PATHS} - {("OTCA_RewardVLMJudge", "model")}
    assert named | {BY_LINE} == {*READ, *WRITTEN}


@pytest.fixture
def world(tmp_path, monkeypatch):
    """known/ is the folder of models and of inputs; outside/ has a secret, and known/link leads there."""
    for name in ("known", "outside", "typed", "known/deep"):
        (tmp_path / name).mkdir()
    for place in ("outside/secret.txt", "outside/model_index.json", "known/mine.txt", "known/deep/model_index.json"):
        (tmp_path / place).write_text("{}")
    (tmp_path / "known" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "known" / "linked.txt").symlink_to(tmp_path / "outside" / "secret.txt")
    monkeypatch.delenv(permissions.FOLDERS)
    for variable in ("OTCA_MODELS", "OTCA_INPUT", permissions.PYTHON):
        monkeypatch.setenv(variable, str(tmp_path / "known"))
    monkeypatch.setenv(permissions.FROM_PAGE, "1")  # else what lies where the command is typed would be readable, too
    monkeypatch.chdir(tmp_path / "typed")
    return tmp_path


def refusal(node, name, value):
    """What a node says of a value that was typed into it."""
    cls = NODE_CLASS_MAPPINGS[node]
    declared = cls.INPUT_TYPES()
    inputs = {**declared["required"], **declared.get("optional", {})}
    given = {each: options["default"] for each, (_, options) in inputs.items() if "default" in options}
    given |= {each: "" for each, (type_, _) in inputs.items() if isinstance(type_, list) and each not in given}
    given |= {"input_types": {"trajectories": "OTCA_TRAJECTORIES", "model": "OTCA_MODEL"}} | NEEDED.get(node, {})
    given[name] = (
        json.dumps({"file": value}) if (node, name) == BY_LINE else f"{value} = 1" if name == "guides" else value
    )
    if name == "model" and "path" in given and node != "OTCA_RewardAesthetic":
        given["path"] = ""
    taken = inspect.getfullargspec(cls.VALIDATE_INPUTS).args
    return cls.VALIDATE_INPUTS(**{each: given[each] for each in taken if each in given})


def hostile(world):
    outside = world / "outside"
    return [
        *(str(outside), str(outside / "secret.txt"), f"{world}/known/../outside/secret.txt", "../outside/secret.txt"),
        *("deep/../../outside/secret.txt", "~/.ssh/id_rsa", "~root/x", "/proc/self/environ", "/etc/passwd", "/"),
        *("//server/share/x.txt", "\\\\server\\share\\x.txt", "\\\\?\\C:\\x.txt", "\\\\.\\PhysicalDrive0", "..", "../"),
        *("\0", "a\0.txt", "\ud800", "x" * 300, "a/" * 900),
    ]


OPENS = [("os", "open"), ("os", "scandir"), ("os", "listdir"), ("builtins", "open")]


@pytest.mark.parametrize(("node", "name"), READ)
def test_what_a_widget_names_outside_is_refused_before_it_is_opened(world, monkeypatch, node, name):
    opened = []
    for module, function in OPENS:
        real = getattr(sys.modules[module], function)
        noted = lambda path=".", *a, real=real, **k: (opened.append(str(path)), real(path, *a, **k))[1]  # noqa: E731
        monkeypatch.setattr(sys.modules[module], function, noted)
    for value in hostile(world):
        said = refusal(node, name, value)
        assert isinstance(said, str) and "Fix: " in said, (value, said)
        assert len(said) < 2500 and "s3cret" not in said
    touched = {os.path.normpath(path) for path in opened if isinstance(path, str)}
    assert not {path for path in touched if opening.inside(path, str(world / "outside")) or "server" in path}


@pytest.mark.parametrize(("node", "name"), WRITTEN)
def test_what_is_written_has_a_plain_name(world, node, name):
    names = ("a/b", "a\\b", "C:", "C:x", "C:\\x", "NUL", "com1.txt", ".hidden", "x.", "x ", "-rf")
    for value in (*hostile(world), *names):
        said = refusal(node, name, value)
        assert isinstance(said, str) and "Fix: " in said, (value, said)


def test_a_refusal_says_the_path_the_folders_that_are_allowed_and_how_to_allow_one(world):
    for why, find in FINDS.items():
        with pytest.raises(NotAllowed) as caught:
            find(str(world / "outside" / "secret.txt"))
        told = str(caught.value)
        assert told.startswith(
            f"'{world / 'outside' / 'secret.txt'}' ({why}) lies in no folder that workflows may read. Fix: "
        )
        assert f"OTCA_ALLOW_FOLDERS={world / 'outside'} where ComfyUI or otca is started. They may read " in told
        assert str(world / "known") in told


def test_a_link_out_of_the_input_folder_is_refused_and_among_models_it_is_the_users(world):
    for find in (FINDS["prompts"], lambda name: FINDS["pairs"](name.removesuffix("ed.txt"))):
        with pytest.raises(NotAllowed, match="is a link out of its folder, to .*outside"):
            find("linked.txt")
    assert FINDS["a model"]("link") == world / "known" / "link", "a workflow cannot make a link"


# --- names by chance --------------------------------------------------------------------------------------------------

PARTS = [
    *[*".. . known deep link outside secret.txt mine.txt model_index.json ~ x C: D:".split(), ""],
    *["NUL", "a ", "b.", "..%2f", "\uff0e\uff0e", "..\u2215", "$HOME", "%USERPROFILE%", "\\", "server", "?", "."],
]


def names(count, roots, seed=0):
    """Hostile names: parts in any order, with either slash, behind any root."""
    chance = random.Random(seed)
    for _ in range(count):
        parts = chance.choices(PARTS, k=chance.randint(1, 6))
        yield (
            chance.choice(roots) + "".join(part + chance.choice("/\\/") for part in parts)[: chance.choice([-1, None])]
        )


def test_no_name_by_chance_leads_out(world):
    roots = ["", "/", "//", f"{world}/", f"{world}/known/", f"{world}/known/../", "./", "~/"]
    found = 0
    for name in names(3000, roots):
        for why, find in FINDS.items():
            try:
                path = find(name)
            except (OSError, ValueError):
                continue
            found += 1
            inside = os.path.normpath(os.path.join(world, path))
            assert opening.inside(inside, str(world / "known")) or opening.inside(inside, str(paths.ASSETS)), (
                name,
                why,
            )
            if why in ("prompts", "pairs"):
                real = os.path.realpath(path)
                assert opening.inside(real, str(world / "known")) or opening.inside(real, str(paths.ASSETS)), (
                    name,
                    why,
                )
    assert found > 50, "some lead in"


@pytest.fixture
def windows(monkeypatch):
    """The policy with the system's functions for paths replaced by those of Windows; what is known is on two drives."""
    known = ["C:\\ComfyUI\\models", "D:\\more models"]
    system = types.SimpleNamespace(**{name: getattr(os, name) for name in dir(os) if not name.startswith("__")})
    system.path, system.sep, system.pathsep, system.name = ntpath, "\\", ";", "nt"
    for module in (permissions, opening):
        monkeypatch.setattr(module, "os", system)
    monkeypatch.setattr(opening, "WINDOWS", True)
    monkeypatch.setattr(os, "getcwd", lambda: "C:\\typed")
    monkeypatch.setattr(
        ntpath, "expanduser", lambda path: path.replace("~", "C:\\Users\\me", 1) if path[:1] == "~" else path
    )
    monkeypatch.setattr(permissions, "Path", str)
    monkeypatch.setattr(permissions, "folders", lambda why: known)
    return known


ON_WINDOWS = [
    *["", "/", "\\", "//", "\\\\", "\\\\server\\share\\", "\\\\?\\C:\\", "\\\\.\\", "C:", "C:\\", "D:/", "Z:\\"],
    *["c:/comfyui/models/", "C:\\ComfyUI\\models\\", "C:\\ComfyUI\\models\\..\\", "C:/ComfyUI/models/../../"],
    *["D:\\more models\\", "C:..\\"],
]


def test_on_windows_no_drive_share_or_step_upwards_leads_out(windows):
    """Tried with Python's own functions for paths of Windows, and judged by its PureWindowsPath."""
    roots, found = [PureWindowsPath(folder) for folder in windows], 0
    for name in names(20_000, ON_WINDOWS):
        try:
            meant = permissions.candidates(name, windows, "a model")
        except NotAllowed as refusal:
            assert "Fix: " in str(refusal)
            continue
        for path in meant:
            found += 1
            pure = PureWindowsPath(path)
            assert ".." not in pure.parts and any(pure.is_relative_to(root) for root in roots), (name, path)
    assert found > 500, "some lead in"


@pytest.mark.parametrize(
    "name",
    [
        *(
            "C:\\Windows\\win.ini",
            "c:/windows/win.ini",
            "C:\\ComfyUI\\models\\..\\..\\Windows\\win.ini",
            "C:..\\secret.txt",
        ),
        *(
            "\\\\server\\share\\a.safetensors",
            "//server/share/a",
            "\\\\?\\C:\\ComfyUI\\models\\a",
            "\\\\.\\pipe\\a",
            "\\Windows",
        ),
        *(
            "C:\\ComfyUI\\models2\\a.safetensors",
            "C:\\ComfyUI\\models\\NUL",
            "C:\\ComfyUI\\models\\a.safetensors:b",
            "D:\\more",
        ),
    ],
)
def test_on_windows_each_of_these_is_refused(windows, name):
    with pytest.raises(NotAllowed, match="Fix: "):
        permissions.candidates(name, windows, "a model")


def test_on_windows_what_lies_inside_is_found_whatever_its_letters(windows):
    for name in (
        "flux.safetensors",
        "deep/flux",
        "C:\\ComfyUI\\models\\flux",
        "c:/comfyui/MODELS/flux",
        "D:\\more models\\flux",
    ):
        assert permissions.candidates(name, windows, "a model"), name
