"""F1, F2 and F5: what a stranger's workflow may name, and that only the user widens it."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest

from comfyui_otca.__main__ import main
from comfyui_otca.host import comfyui, extras, paths, search
from comfyui_otca.host.access import opening, permissions, remembered
from comfyui_otca.host.access.addresses import host_of
from comfyui_otca.host.access.permissions import POST, READ, NotAllowed, Want
from comfyui_otca.host.access.wants import wants_of
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.trainer.prompts import read_prompts
from comfyui_otca.trainer.workflow.running import Workflow

NODES = NODE_CLASS_MAPPINGS


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A folder that nothing allows, while a command is typed elsewhere."""
    monkeypatch.delenv(permissions.FOLDERS)
    place, typed = tmp_path / "outside", tmp_path / "typed"
    place.mkdir(), typed.mkdir()
    monkeypatch.chdir(typed)
    return place


def secret(folder: Path, name="secret.txt") -> str:
    (folder / name).write_text("s3cret\n")
    return str(folder / name)


def refused(call, *arguments):
    with pytest.raises(NotAllowed, match="Fix: ") as caught:
        call(*arguments)
    return str(caught.value)


# --- files and folders ----------------------------------------------------------------------------------------------


def test_a_prompt_file_outside_is_refused_with_what_allows_it(outside, monkeypatch):
    told = refused(read_prompts, "", secret(outside))
    assert str(outside / "secret.txt") in told and f"OTCA_ALLOW_FOLDERS={outside}" in told
    assert f"--allow-folder {outside}" in told and "click on the page" in told
    said = NODES["OTCA_PromptDataset"].VALIDATE_INPUTS("", secret(outside))
    assert said == f"file: {told}"
    assert refused(NODES["OTCA_PromptDataset"]().take, "", 1, 0, True, 0, secret(outside)) == told, "a linked one too"
    secret(Path.cwd(), "mine.txt")  # what lies where a command was typed is the user's
    assert read_prompts("", "mine.txt") == ["s3cret"]
    monkeypatch.setenv(permissions.FROM_PAGE, "1")
    with pytest.raises(ValueError, match="was not found"):
        read_prompts("", "mine.txt")


def test_the_user_widens_it_by_environment_command_line_or_click(outside, monkeypatch):
    file = secret(outside)
    monkeypatch.setenv(permissions.FOLDERS, os.pathsep.join(["/nowhere", str(outside)]))
    assert read_prompts("", file) == ["s3cret"]
    monkeypatch.setenv(permissions.FOLDERS, "")
    refused(read_prompts, "", file)
    permissions.remember(READ, str(outside))
    assert read_prompts("", file) == ["s3cret"]


@pytest.mark.parametrize("where", ["models", "loras", "cache", "output"])
def test_prompts_are_read_from_fewer_folders_than_models(outside, comfyui, monkeypatch, tmp_path, where):
    """As docs/security.md says: what lies beside a model, in the hub's cache or in a run may be anybody's."""
    import huggingface_hub.constants

    folder = tmp_path / where
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("OTCA_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("OTCA_MODELS_LORAS", str(tmp_path / "loras"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(paths, "runs_folder", lambda: tmp_path / "output")
    file = secret(folder)
    assert "lies in no folder that workflows may read" in refused(read_prompts, "", file)
    [want] = wants_of({"1": {"class_type": "OTCA_PromptDataset", "inputs": {"file": file}}}, NODES)
    assert not permissions.allowed(want), "what is told beforehand is what is done"
    assert permissions.allowed(Want(READ, file, "a model"))
    monkeypatch.setenv(permissions.FOLDERS, str(folder))
    assert read_prompts("", file) == ["s3cret"] and permissions.allowed(want)


@pytest.mark.parametrize("where", ["/", "~", "~/.."])
def test_the_home_folder_is_too_much_to_allow_by_being_there(outside, monkeypatch, tmp_path, where):
    monkeypatch.setenv("HOME", str(tmp_path / "people" / "me"))
    (tmp_path / "people" / "me").mkdir(parents=True)
    file = secret(tmp_path / "people" / "me")
    monkeypatch.chdir(os.path.expanduser(where))
    refused(read_prompts, "", file)


def test_on_the_canvas_comfyuis_input_folder_is_what_counts(outside, comfyui, tmp_path):
    (tmp_path / "files").mkdir()
    secret(tmp_path / "files", "mine.txt"), secret(Path.cwd(), "typed.txt")
    assert read_prompts("", "mine.txt") == read_prompts("", str(tmp_path / "files" / "mine.txt")) == ["s3cret"]
    refused(read_prompts, "", str(Path.cwd() / "typed.txt"))


def test_a_share_that_the_user_named_may_be_used(outside, monkeypatch):
    monkeypatch.setattr(os.path, "abspath", lambda path: path)  # as Windows keeps such names
    monkeypatch.setenv(permissions.FOLDERS, "//server/models")
    assert permissions.candidates("//server/models/flux", [], "a model")[0] == Path("//server/models/flux")
    refused(permissions.candidates, "//server/other", [], "a model")


def test_what_is_no_name_at_all(outside):
    for name in ("a\0b.txt", "x" * 300 + ".txt", "\ud800.txt", "a/" * 2000):
        told = refused(read_prompts, "", name)
        assert "cannot be the name of a file" in told and len(told) < 600


def test_windows_devices_and_streams(outside, monkeypatch):
    names = ["NUL", "con.txt", "a/COM1.txt", "file.txt:stream", r"C:\a.txt:b", "CONIN$"]
    for name in names:
        opening.check_name(name)
    monkeypatch.setattr(opening, "WINDOWS", True)
    for name in names:
        with pytest.raises(ValueError, match="device|stream"):
            opening.check_name(name)
    opening.check_name(r"C:\models\flux.safetensors")


# --- hosts, tokens, downloads ---------------------------------------------------------------------------------------


def test_other_hosts_need_permission_and_this_machine_does_not():
    ask = NODES["OTCA_RewardHTTP"].VALIDATE_INPUTS
    for url in ("http://127.0.0.1:8189/s", "http://localhost/s", "https://[::1]:9/s", "http://127.9.9.9/"):
        assert ask(url) is True, url
    names = ["evil.example/s", "127.0.0.1.evil.example/", "2130706433/", "0.0.0.0/", "localhost.evil.example/"]
    for name in [*names, "192.168.0.1/"]:
        told = ask(f"http://{name}")
        assert told.startswith("url: ") and "--allow-host" in told and "OTCA_ALLOW_HOSTS=" in told, name


# Seen before: a graph chose what ComfyUI itself was asked to do, as by http://127.0.0.1:8188/settings?x=/chat/completions.
WITH_MORE = [
    "http://127.0.0.1:9/settings?x=/chat/completions",
    "http://127.0.0.1:9/userdata/a?",
    "http://127.0.0.1:9/#/score",
]


def test_no_graph_posts_to_comfyui_itself(monkeypatch):
    ask = NODES["OTCA_RewardHTTP"].VALIDATE_INPUTS
    monkeypatch.setattr(comfyui, "port", lambda: 8188)
    for name in ("127.0.0.1", "localhost", "[::1]"):
        assert "OTCA_ALLOW_HOSTS=" in ask(f"http://{name}:8188/userdata/workflows%2Fmine.json")
        assert ask(f"http://{name}:8189/score") is True


def test_addresses_that_two_readers_read_differently():
    ends = ["127.0.0.1:99999/", "127.0.0.1:0/", "127.0.0.1\\@evil.example/", "127.0.0.1 /", "ⅼocalhost/", "[::1/"]
    for url in [*(f"http://{end}" for end in ends), "http://127.0.0.1:80:80/", None, 7, *WITH_MORE]:
        with pytest.raises(ValueError, match="Fix: "):
            host_of(url)


@pytest.mark.parametrize("entry", ["score.example.org", "SCORE.example.org:8443"])
def test_the_user_allows_a_host(monkeypatch, entry):
    monkeypatch.setenv(permissions.HOSTS, f"other.example, {entry}")
    assert permissions.allowed(Want(POST, host_of("https://score.example.org:8443/x"), ""))
    assert permissions.allowed(Want(POST, host_of("https://score.example.org/x"), "")) is (":" not in entry)
    assert not permissions.allowed(Want(POST, "sub.score.example.org:443", ""))


def test_a_token_belongs_to_a_host(monkeypatch):
    monkeypatch.setenv(permissions.HOSTS, "evil.example")
    monkeypatch.setenv("OTCA_REWARD_TOKEN", "s3cret")
    ask = NODES["OTCA_RewardHTTP"].VALIDATE_INPUTS
    told = ask("https://evil.example/", "OTCA_REWARD_TOKEN")
    assert told.startswith("token_variable: ") and "OTCA_REWARD_TOKEN_HOST=evil.example:443" in told
    assert "s3cret" not in told
    for host in ("score.example.org", "evil.example:444"):
        monkeypatch.setenv("OTCA_REWARD_TOKEN_HOST", host)
        assert f"is for {host}" in ask("https://evil.example/", "OTCA_REWARD_TOKEN")
    monkeypatch.setenv("OTCA_REWARD_TOKEN_HOST", "evil.example")
    assert ask("https://evil.example/", "OTCA_REWARD_TOKEN") is True


def test_the_workflows_download_switch_is_only_a_wish(monkeypatch, tmp_path):
    import huggingface_hub

    asked = []
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    load = NODES["OTCA_LoadFlowModel"].VALIDATE_INPUTS
    told = load("shapes-flux", "owner/name", download=True)
    assert told.startswith("path: 'owner/name' (a model) may not be downloaded") and "--download" in told
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **how: asked.append(name) or "/there")
    refused(search.download, "owner/other")
    monkeypatch.setenv(permissions.DOWNLOADS, "owner/name")
    assert load("shapes-flux", "owner/name", download=True) is True
    search.download("owner/name")
    refused(search.download, "owner/other")
    assert asked == ["owner/name"]


def test_figures_go_out_only_where_the_user_says_so(monkeypatch, tmp_path):
    from comfyui_otca.trainer.run.trackers import Trackers

    validate = NODES["OTCA_TrainingRun"].VALIDATE_INPUTS
    monkeypatch.setattr(extras, "installed", lambda name: "1")
    told = validate("run", "mine")
    assert told.startswith("wandb_project: 'api.wandb.ai:443'") and "Fix: " in told
    refused(Trackers, tmp_path, "mine", 0, {})
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert validate("run", "mine") is True
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.mine.example")
    assert validate("run", "mine") is True


# --- what is remembered ---------------------------------------------------------------------------------------------


NOT_PERMISSIONS = ["", "[", "[]", '{"folders": 7}', "[" * 100_000, '{"folders": [7, null]}', "\ufeff"]


def test_a_damaged_file_allows_nothing_and_is_said(monkeypatch, tmp_path, caplog):
    file = tmp_path / "permissions.json"
    monkeypatch.setenv(remembered.FILE, str(file))
    for content in [*NOT_PERMISSIONS, '{"folders": ["/data",]}']:
        permissions.remember(POST, "score.example.org:443")
        assert permissions.allowed(Want(POST, "score.example.org:443", ""))
        caplog.clear()
        file.write_text(content)
        assert not permissions.allowed(Want(POST, "score.example.org:443", "")), content
        assert str(file) in caplog.text and "Fix: mend it" in caplog.text
        # What it held is not lost by the next click: it may be a long list with a comma too many.
        with pytest.raises(ValueError, match="permissions.json .*Fix: mend it"):
            permissions.remember(POST, "score.example.org:443")
        assert file.read_text() == content
        file.unlink()
        permissions.remember(POST, "score.example.org:443")
        assert json.loads(file.read_text())["hosts"] == ["score.example.org:443"]


# --- what a workflow asks for ---------------------------------------------------------------------------------------


STRANGE = [
    *[{"cls": "/x", "self": 1, "url": 7}, {"url": []}, {"url": [[["deep"]], 0]}, {"url": ["x" * 10**5, 0]}],
    *[{"url": {"__value__": ["http://x/"]}}, {"url": "http://[::1"}],
]


def test_no_graph_is_too_strange_to_ask():
    for inputs, name in itertools.product(STRANGE, NODES):
        found = wants_of({"1": {"class_type": name, "inputs": inputs}, "2": {"class_type": name}}, NODES)
        assert all(len(permissions.in_words(want)) < 400 for want in found), (name, inputs)


def test_what_is_told_is_text_and_no_commands_to_the_terminal(small_graph):
    told = permissions.in_words(Want(READ, "\x1b[2Ja\n(allowed)", "prompts"))
    assert told.isprintable() and "\\x1b" in told
    assert [(want.kind, want.what) for want in wants_of(small_graph(), NODES)] == [(READ, "shapes_train.txt")]


# --- the command line -----------------------------------------------------------------------------------------------


@pytest.fixture
def workflow_file(small_graph, tmp_path):
    def write(changes):
        path = tmp_path / "typed" / "workflow.json"
        path.write_text(json.dumps(small_graph(changes)))
        return str(path)

    return write


def test_validate_says_what_the_workflow_wants(outside, workflow_file, capsys):
    file = secret(outside)
    path = workflow_file({"OTCA_PromptDataset": {"file": file}})
    assert main(["validate", path]) == 2
    out, err = capsys.readouterr()
    assert f"this workflow wants: read {file} (prompts) (not allowed: " in err and not out
    assert "node 2" in err and "input file" in err
    assert main(["validate", path, "--allow-folder", str(outside)]) == 0
    assert f"this workflow wants: read {file} (prompts) (allowed)" in capsys.readouterr().out


def test_what_the_user_types_is_his_word(outside, workflow_file, capsys):
    path = workflow_file({})
    assert main(["validate", path, "--set", f"PromptDataset.file={secret(outside)}"]) == 0
    assert os.environ[permissions.FOLDERS].split(os.pathsep)[-1] == str(outside / "secret.txt")
    refused(read_prompts, "", secret(outside, "another.txt"))
    capsys.readouterr()
    assert main(["sample", str(outside), "--prompt", "x"]) == 2, "there is no model, and nothing else is wrong"
    assert "Fix: " in capsys.readouterr().err


def test_a_linked_prompt_file_is_judged_when_it_comes(outside, small_graph):
    class Text:
        RETURN_TYPES, FUNCTION = ("STRING",), "give"

        @classmethod
        def INPUT_TYPES(cls):
            return {"required": {}}

        def give(self):
            return (secret(outside),)

    graph = small_graph()
    dataset = next(node for node, entry in graph.items() if entry["class_type"] == "OTCA_PromptDataset")
    graph["70"] = {"class_type": "Text", "inputs": {}}
    graph[dataset]["inputs"]["file"] = ["70", 0]
    workflow = Workflow(graph, {**NODES, "Text": Text})
    assert not [problem for problem in workflow.validate() if problem.node_id == dataset]
    with pytest.raises(Exception, match="NotAllowed: .*secret.txt"):
        workflow.run(targets=[dataset])
