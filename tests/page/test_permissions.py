"""What the page is told of a workflow's wants, and what its click may allow."""

from __future__ import annotations

import json
import os

import pytest

from comfyui_otca.host.access import permissions, remembered


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Where clicks are remembered; nothing is allowed otherwise."""
    monkeypatch.setenv(remembered.FILE, str(tmp_path / "deep" / "permissions.json"))
    monkeypatch.delenv(permissions.FOLDERS)
    return tmp_path / "deep" / "permissions.json"


def wants(site, graph):
    answer = site.post("/otca/permissions/wants", {"prompt": graph})
    assert answer.status == 200
    return answer.json["wants"]


@pytest.fixture
def graph(small_graph, tmp_path):
    graph = small_graph()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "mine.txt").write_text("one\n")
    graph["2"]["inputs"]["file"] = str(tmp_path / "texts" / "mine.txt")
    graph["70"] = {"class_type": "OTCA_RewardHTTP", "inputs": {"url": "https://score.example.org/s"}}
    graph["71"] = {"class_type": "OTCA_RewardPython", "inputs": {"file": "mine.py"}}
    graph["72"] = {"class_type": "OTCA_RewardHTTP", "inputs": {"url": ["9", 0]}}
    graph["73"] = {"class_type": "OTCA_LoadFlowModel", "inputs": {"path": "owner/name", "download": True}}
    return graph


def test_each_want_and_what_a_click_would_remember(site, file, graph, tmp_path):
    told = {want["node"]: want for want in wants(site, graph)}
    assert told["2"] == {
        "kind": "read",
        "what": str(tmp_path / "texts" / "mine.txt"),
        "why": "prompts",
        "node": "2",
        "input": "file",
        "allowed": False,
        "rememberable": True,
        "remember": str(tmp_path / "texts"),
        "text": f"read {tmp_path / 'texts' / 'mine.txt'} (prompts)",
        "fix": told["2"]["fix"],
    }
    assert "--allow-folder" in told["2"]["fix"]
    assert (told["70"]["what"], told["70"]["remember"]) == ("score.example.org:443",) * 2
    assert (told["71"]["allowed"], told["71"]["rememberable"], told["71"]["remember"]) == (False, False, None)
    assert (told["72"]["allowed"], told["72"]["rememberable"]) == (None, False)
    assert told["72"]["what"] == "what node '9' hands over"
    assert (told["73"]["kind"], told["73"]["remember"]) == ("download", "owner/name")


def test_a_click_is_remembered(site, file, graph):
    for want in wants(site, graph):
        if want["rememberable"]:
            answer = site.post("/otca/permissions/allow", {"kind": want["kind"], "what": want["remember"]})
            assert answer.status == 200 and answer.json == {"kind": want["kind"], "what": want["remember"]}
    assert {want["node"]: want["allowed"] for want in wants(site, graph)} == {
        "2": True,
        "70": True,
        "71": False,
        "72": None,
        "73": True,
    }
    folder = os.path.dirname(graph["2"]["inputs"]["file"])
    assert json.loads(file.read_text()) == {
        "folders": [folder],
        "hosts": ["score.example.org:443"],
        "downloads": ["owner/name"],
    }


NO_CLICKS = [
    *[("run", "/tmp"), ("all", "x"), ("read", "/"), ("read", os.path.expanduser("~")), ("read", "//server/share")],
    *[("read", "/nowhere"), ("read", "relative"), ("read", ""), ("read", "x" * 1001), ("read", 7), ("post", "*")],
    *[("post", "score.example.org"), ("post", "https://evil.example:443"), ("post", "evil.example:99999")],
    *[("download", "1"), ("download", "../x")],
]


def test_what_no_click_allows(site, file, tmp_path, monkeypatch):
    monkeypatch.setattr(os.path, "ismount", lambda path: str(path) == str(tmp_path))
    assert site.post("/otca/permissions/allow", {"kind": "read", "what": str(tmp_path)}).status == 400, "a whole disk"
    for kind, what in NO_CLICKS:
        answer = site.post("/otca/permissions/allow", {"kind": kind, "what": what})
        assert answer.status == 400 and "Fix: " in answer.error, (kind, what)
        assert not file.exists()


def test_what_cannot_be_remembered(site, file, monkeypatch):
    host = {"kind": "post", "what": "score.example.org:443"}
    file.parent.write_text("no folder")
    answer = site.post("/otca/permissions/allow", host)
    assert answer.status == 507 and "cannot be remembered" in answer.error
    monkeypatch.setenv(remembered.FILE, "none")  # as an administrator says it
    answer = site.post("/otca/permissions/allow", host)
    assert answer.status == 400 and "OTCA_PERMISSIONS=none" in answer.error


def test_a_training_that_the_page_starts_is_no_word_of_the_users(site, made):
    made("mine")
    assert site.jobs.variables(site.runs.run("mine"))[permissions.FROM_PAGE] == "1"


def test_what_was_allowed_is_listed_and_taken_back(site, file, monkeypatch, tmp_path):
    monkeypatch.setenv(permissions.HOSTS, "by.environment.org")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        assert site.post("/otca/permissions/allow", {"kind": "read", "what": str(tmp_path / name)}).status == 200
    given = [(each["kind"], each["what"], each["by"]) for each in site.get("/otca/permissions").json["given"]]
    clicked = [("read", str(tmp_path / "one"), ""), ("read", str(tmp_path / "two"), "")]
    assert given == [*clicked, ("post", "by.environment.org", "OTCA_ALLOW_HOSTS")]
    mine = permissions.Want("read", str(tmp_path / "one" / "a.txt"), "prompts")
    assert permissions.allowed(mine)

    taken = {"kind": "read", "what": str(tmp_path / "one")}
    assert site.post("/otca/permissions/take_back", taken).status == 200
    assert not permissions.allowed(mine)
    assert json.loads(file.read_text())["folders"] == [str(tmp_path / "two")]
    assert site.post("/otca/permissions/take_back", taken).status == 200, "in another tab it was taken back already"


def test_taking_back_what_no_click_gave(site, file):
    answer = site.post("/otca/permissions/take_back", {"kind": "run", "what": "/scripts"})
    assert answer.status == 400 and "must be one of read, post, download. Fix: " in answer.error
    host = {"kind": "post", "what": "a.org:443"}
    assert site.post("/otca/permissions/take_back", host).status == 200
    assert not file.exists()
    file.parent.mkdir()
    file.write_text("{,")  # damaged, and not written over
    answer = site.post("/otca/permissions/take_back", host)
    assert answer.status == 409 and "mend it" in answer.error and file.read_text() == "{,"
