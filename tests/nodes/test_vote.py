"""Reward: Vote as a node: what it refuses, what it builds, and that it wants a page to ask on."""

import pytest

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.trainer.checks.preflight import problems
from comfyui_otca.trainer.workflow.running import Workflow

NODE = NODE_CLASS_MAPPINGS["OTCA_RewardVote"]


@pytest.mark.parametrize(
    "inputs, wrong",
    [
        ({"votes": "../elsewhere"}, "votes: must be a plain name"),
        ({"url": "ftp://here"}, "url: 'ftp://here' is not the address"),
        ({"url": "http://votes.example/score"}, "a host that you have not allowed"),
        ({"token_variable": "HF_TOKEN"}, "token_variable: 'HF_TOKEN' does not begin with OTCA_REWARD_TOKEN"),
        ({"learn": True, "encoder": "no-such-encoder"}, "encoder: "),
        ({"learn": True, "encoder": "text-model"}, "encoder: "),
        ({"learn": True, "encoder": "shapes-clip", "url": "http://127.0.0.1:8190/score"}, "otca vote with --learn"),
        ({"clip": "2, 1"}, "clip: "),
    ],
)
def test_a_wrong_input_is_named(inputs, wrong, tmp_path, monkeypatch):
    monkeypatch.setenv("OTCA_MODELS", str(tmp_path))
    (tmp_path / "text-model").mkdir()
    (tmp_path / "text-model" / "config.json").write_text("{}")
    assert wrong in NODE.VALIDATE_INPUTS(**{"votes": "votes", **inputs})


def test_right_and_linked_inputs_are_taken():
    assert NODE.VALIDATE_INPUTS("votes") is True
    assert NODE.VALIDATE_INPUTS("votes", "http://127.0.0.1:8190/score") is True
    assert NODE.VALIDATE_INPUTS("votes", learn=True, encoder="shapes-clip") is True
    assert NODE.VALIDATE_INPUTS(None, None, None, None, None) is True
    assert [want.kind for want in NODE.WANTS(url="http://votes.example/score")] == ["post"]
    assert NODE.WANTS() == []


def test_it_builds_its_reward(tmp_path, monkeypatch):
    monkeypatch.setenv("OTCA_VOTES", str(tmp_path))
    (reward,) = NODE().build(0.5, True, "mine", clip="-1, 1", votes="taste")
    assert (reward.name, reward.coefficient, reward.held_out) == ("mine", 0.5, True)
    assert reward.bounds == (-1.0, 1.0) and reward.folder.folder == tmp_path / "taste" and reward.server is None
    assert NODE.only_of_groups() and NODE.announced() == (("vote", False),)
    (elsewhere,) = NODE().build(1.0, votes="taste", url="http://127.0.0.1:8190/score")
    assert elsewhere.server.server.url == "http://127.0.0.1:8190/score" and elsewhere.for_other_pictures() is None


def test_a_training_without_a_page_names_otca_vote(small_graph):
    graph = small_graph()
    (node,) = [node for node, entry in graph.items() if entry["class_type"] == "OTCA_RewardColorfulness"]
    graph[node] = {"class_type": "OTCA_RewardVote", "inputs": {"votes": "votes", "coefficient": 1.0}}
    (refused,) = problems(Workflow(graph, NODE_CLASS_MAPPINGS))
    assert (refused.node_id, refused.input, refused.severity) == (node, "url", "error") and "otca vote" in refused.fix
    graph[node]["inputs"]["url"] = "http://127.0.0.1:8190/score"
    assert problems(Workflow(graph, NODE_CLASS_MAPPINGS)) == []
