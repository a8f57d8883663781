"""ComfyUI's node classes, V1 and V3, in our executor."""

from __future__ import annotations

import pytest

from comfyui_otca.host import headless_comfyui
from comfyui_otca.host.access import permissions
from comfyui_otca.host.access.wants import wants_of
from comfyui_otca.host.foreign_nodes import NodeClasses
from comfyui_otca.trainer.checks import preflight
from comfyui_otca.trainer.workflow.problem import errors
from comfyui_otca.trainer.workflow.running import NodeError, Workflow


class Ours:
    """An output node of ours that notes what it is given, and whether it runs in inference mode."""

    RETURN_TYPES, FUNCTION, OUTPUT_NODE = (), "show", True
    given: list

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"value": ("INT,MODEL", {}), "file": ("STRING", {"default": ""})}}

    def show(self, value, file=""):
        import torch

        self.given.append((value, torch.is_inference_mode_enabled()))
        return ()


@pytest.fixture
def run(fake_comfyui):
    """run(class, inputs, other nodes): what our node is given of such a node, and the workflow."""
    folder = fake_comfyui()
    (folder / "models" / "diffusion_models" / "here.safetensors").touch()
    loaded = headless_comfyui.load(folder, "cpu", ["good"])
    Ours.given = []

    def made(class_type, inputs, more=None, addresses=None):
        graph = {
            "3": {"class_type": class_type, "inputs": inputs},
            "4": {"class_type": "OTCA_Ours", "inputs": {"value": ["3", 0], "file": ""}},
            **(more or {}),
        }
        return Workflow(graph, NodeClasses({"OTCA_Ours": Ours}, loaded.classes), addresses=addresses)

    return made


@pytest.mark.parametrize(("class_type", "inputs", "given"), [("Mode", {"seed": 0}, 1), ("Three", {}, 3)])
def test_a_v1_node_runs_in_inference_mode_and_ours_do_not(run, class_type, inputs, given):
    workflow = run(class_type, inputs)
    assert workflow.validate() == []
    workflow.run()
    assert Ours.given == [(given, False)]
    assert workflow.node_class("3").PACK == ("good" if class_type == "Three" else None), "a custom pack that was named"


def test_a_v3_node_with_hidden_inputs_and_its_cache(run):
    workflow = run("WhoAmI", {"more": 4})
    assert workflow.validate() == []
    workflow.run()
    ran = []
    workflow.run(on_node=lambda node, cached: ran.append((node, cached)))
    assert Ours.given == [(7, False)] and ran == [("3", True), ("4", True)]
    workflow.run(overrides={("3", "more"): 5})
    assert Ours.given[-1] == (8, False)


def test_what_ours_do_not_need_is_not_run(run):
    """A KSampler and a preview stand beside the training on many canvases; SaveImage here would fail."""
    beside = {
        "8": {"class_type": "SaveImage", "inputs": {"images": ["9", 0]}},
        "9": {"class_type": "Lost", "inputs": {}},
    }
    workflow = run("PrimitiveInt", {"value": 2}, beside)
    [left_out] = workflow.validate()
    assert (left_out.node_id, left_out.severity) == ("9", "warning") and workflow.output_nodes() == ("4",)
    workflow.run()
    assert Ours.given == [(2, False)]


@pytest.mark.parametrize(("class_type", "why"), [("SaveImage", "saves or shows something"), ("Split", "gives a list")])
def test_what_cannot_run_here_is_refused_where_ours_need_it(run, class_type, why):
    workflow = run(class_type, {"images": ["3", 0]} if class_type == "SaveImage" else {})
    assert any(why in str(problem) and problem.node_id == "3" for problem in errors(workflow.validate()))


def test_an_expanding_node_is_refused_when_it_does(run):
    with pytest.raises(NodeError, match="Expands expands into other nodes, which ComfyUI alone can run. Fix:"):
        run("Expands", {}).run()


def test_a_missing_file_is_named_with_its_folder_and_where_it_can_be_had(run, tmp_path):
    address = "https://huggingface.co/Comfy-Org/z_image/resolve/main/z.safetensors"
    workflow = run("UNETLoader", {"unet_name": "z.safetensors"}, addresses={"z.safetensors": address})
    [problem] = workflow.validate()
    text = str(problem)
    assert "UNETLoader.unet_name = 'z.safetensors' is not in models/diffusion_models. Fix: put it into" in text
    assert str(tmp_path / "ComfyUI" / "models" / "diffusion_models") in text and address in text
    assert "use one of: here.safetensors" in text
    assert "can be had" not in str(run("UNETLoader", {"unet_name": "z.safetensors"}).validate()[0])
    workflow.set("3.unet_name", "here.safetensors")
    assert workflow.validate() == []
    workflow.run()
    assert Ours.given == [("here.safetensors", False)]


@pytest.mark.parametrize("name", ["/etc/hostname.png", "../../secret.png", "~/secret.png", r"\\server\share\a.png"])
def test_a_chosen_file_elsewhere_needs_the_users_word(run, name, tmp_path, monkeypatch):
    """The class takes any path, as LoadImage of old versions does."""
    monkeypatch.chdir(tmp_path)
    workflow = run("LoadImage", {"image": name})
    assert [want.what for want in wants_of(workflow.graph, workflow.node_classes)] == [name]
    with pytest.raises(NodeError, match="Fix:") as error:
        workflow.run()
    assert isinstance(error.value.__cause__, permissions.NotAllowed) and Ours.given == []


def test_a_chosen_file_where_the_user_allows_it(run, tmp_path):
    (tmp_path / "mine").mkdir()
    permissions.user_allows(folders=[str(tmp_path / "mine")])
    run("LoadImage", {"image": str(tmp_path / "mine" / "a.png")}).run()
    run("LoadImage", {"image": "seen.png"}).run()
    run("LoadImage", {"image": "below/unseen.png"}).run()
    assert Ours.given == [(4, False)] * 3


def test_numbers_of_its_nodes_do_not_advance(run):
    """Whether a canvas advances them is not in the API format; a width would grow with every iteration."""
    assert run("PrimitiveInt", {"value": 40}).advancing() == []


def test_ours_win_over_classes_of_the_same_name():
    theirs = {"OTCA_Ours": object, "Another": Ours}
    classes = NodeClasses({"OTCA_Ours": Ours}, theirs)
    assert classes["OTCA_Ours"] is Ours and classes["Another"] is classes["Another"]
    assert set(classes) == {"OTCA_Ours", "Another"} and len(classes) == 2 and "Third" not in classes
    theirs["Third"] = Ours
    assert "Third" in classes, "ComfyUI's server loads other packs after ours"


def test_a_file_of_a_download_that_broke_off_is_named(run):
    """It looks like any other until it is loaded."""
    graph = preflight.CheckedGraph(run("UNETLoader", {"unet_name": "here.safetensors"}), 1)
    [problem] = preflight.theirs(graph)
    assert (
        (problem.node_id, problem.input) == ("3", "unet_name") and "here.safetensors" in problem.message and problem.fix
    )
