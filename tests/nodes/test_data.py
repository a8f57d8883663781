"""My Pictures on the canvas: whose adapter it trains, when it runs again, and what it gives."""

from __future__ import annotations

import pytest
import torch

from comfyui_otca.canvas import results
from comfyui_otca.host.access import permissions
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.nodes.data import MyPictures
from comfyui_otca.tests.trainer.opinions.conftest import folder_of, graph_of  # noqa: F401
from comfyui_otca.trainer.run.folder import read_lines
from comfyui_otca.trainer.workflow.running import Workflow

NAMES = MyPictures.RETURN_NAMES


def values(folder):
    return [{k: v for k, v in row.items() if "second" not in k} for row in read_lines(folder / "metrics.jsonl")]


@pytest.fixture
def queue(comfyui, monkeypatch, model, folder_of, graph_of):  # noqa: F811
    """queue(run's name, index …): one prompt each; what node 2 gave at each."""
    monkeypatch.setattr(results, "picture", lambda draw: None)
    folder, workflows = folder_of(), {}

    def run(name, *indices):
        if name not in workflows:
            graph = graph_of(folder, {"TrainingRun": {"run_name": name, "evaluate_every": 100}}, reward=False)
            workflows[name] = Workflow(graph, NODE_CLASS_MAPPINGS), {"1": (model,)}
        workflow, given = workflows[name]
        with torch.inference_mode():
            return [workflow.run(overrides={("2", "index"): index}, results=given)["2"] for index in indices]

    run.folder = folder
    return run


def test_it_belongs_to_the_run_that_records_it(queue, comfyui, tmp_path):
    queue("one", 0, 1)
    queue("two", 0)
    queue("one", 2)
    runs = tmp_path / "files" / "otca"
    assert values(runs / "two") == values(runs / "one")[:1] and len(values(runs / "one")) == 3
    owners = [data["data"]["text"] for _, data in comfyui.events if data["kind"] == "owner"]
    assert owners[:2] == ["new run one", "one, iteration 1"] and owners[4:6] == ["new run two", "two, iteration 1"]
    assert owners[6] == "one, iteration 2", "which goes on where it stood"


def test_it_runs_again_for_another_index_and_for_a_changed_folder_alone(queue):
    first, again, other = queue("one", 0, 0, 1)
    assert again[0] is first[0] and other[0] is not first[0]
    with (queue.folder / "pairs.jsonl").open("a") as file:
        file.write('{"prompt": "one more", "chosen": "1a.png", "rejected": "0a.png"}\n')
    [changed] = queue("one", 1)
    assert changed[0] is not other[0] and len(changed[0].groups) == 4


def test_what_it_gives(queue):
    [given] = queue("one", 0)
    taken, advantages, scores, images = (given[NAMES.index(name)] for name in NAMES)
    assert scores is advantages.scores and torch.equal(images, taken.images) and images.shape == (4, 40, 40, 3)
    assert not taken.latents.is_inference(), "an update has to be able to use it"


def test_what_a_stranger_links_into_the_folder_is_judged_too(model, folder_of, monkeypatch, tmp_path):  # noqa: F811
    folder = folder_of()
    monkeypatch.delenv(permissions.FOLDERS)
    (tmp_path / "typed").mkdir()
    monkeypatch.chdir(tmp_path / "typed")
    assert MyPictures.VALIDATE_INPUTS(folder=None) is True, "linked: what comes is known only when the graph runs"
    [want] = MyPictures.WANTS(folder=None)
    assert (want.kind, want.what, want.input) == (permissions.READ, "", "folder")
    options = {"width": 40, "height": 40, "levels": 4, "shift": 0.0, "guidance": 3.5}
    with pytest.raises(permissions.NotAllowed, match="lies in no folder that workflows may read"):
        MyPictures().take(model, "pairs", 2, 0, True, 0, folder=str(folder), **options)
