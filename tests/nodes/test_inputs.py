"""The lines that inputs are said in, and the option tuples that they show."""

from __future__ import annotations

import inspect

import pytest
import torch

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS, inputs
from comfyui_otca.nodes.run import TrainingRun
from comfyui_otca.trainer import advantages, sde, types
from comfyui_otca.trainer.policy.adapters import Adapter
from comfyui_otca.trainer.updates import losses


def test_one_line_an_input():
    assert inputs.integer(1, 0, 9).tip("a")[:2] == ("INT", {"default": 1, "min": 0, "max": 9, "tooltip": "a"})
    assert inputs.integer(8, 8, 64, step=8)[1]["step"] == 8
    coarse, fine = (inputs.number(1, 0, 2, step=0.5, fine=fine)[1] for fine in (False, True))
    assert coarse == {"default": 1.0, "min": 0.0, "max": 2.0, "step": 0.5}
    assert fine == coarse | {"round": False} and all(type(coarse[name]) is float for name in ("default", "min", "max"))
    assert inputs.choice(("a", "b")).tip("c")[:2] == (["a", "b"], {"default": "a", "tooltip": "c"})
    assert inputs.choice(("a", "b"), "b")[1]["default"] == "b"
    assert [inputs.seed(advances=moves)[1]["control_after_generate"] for moves in (False, True)] == [False, True]
    assert inputs.counter()[1]["control_after_generate"] is True
    assert inputs.socket("OTCA_MODEL").tip("a")[:2] == ("OTCA_MODEL", {"tooltip": "a"})
    assert inputs.socket("OTCA_MODEL")[1]["tooltip"].startswith("The model that is trained")


def test_how_an_input_is_shown():
    box = inputs.text(label="address", hint="this page asks", advanced=True).tip("Where it asks.")
    shown = {"display_name": "address", "placeholder": "this page asks", "advanced": True}
    assert box[:2] == ("STRING", {"default": "", "tooltip": "Where it asks.", **shown})
    assert box.named("the_url")[1] == {**box[1], "tooltip": "Where it asks. In files and messages: the_url."}
    plain = inputs.switch().tip("a")
    assert plain.named("held_out")[1] == {**plain[1], "display_name": "held out"}
    assert plain.advanced() == inputs.switch(advanced=True).tip("a")


def test_names_that_are_said_without_torch_are_those_of_the_functions():
    assert types.SamplerSettings.kind in sde.KINDS
    assert all(isinstance(getattr(torch, name), torch.dtype) for name in types.DTYPES)
    assert types.UpdateSettings.objective in types.LOSS_NAMES
    assert set(types.WEIGHTED_FUSIONS) < set(advantages.METHODS)
    assert set(types.LOSS_NAMES) == set(losses.LOSSES)


def test_a_wrong_link_is_named():
    node = NODE_CLASS_MAPPINGS["OTCA_TCDWeights"]
    said = inputs.miswired(node.INPUT_TYPES(), {"trajectories": "OTCA_TRAJECTORIES", "scores": "OTCA_MODEL"})
    assert (
        said == "scores receives OTCA_MODEL where OTCA_SCORES is needed. Fix: connect a node that outputs OTCA_SCORES"
    )
    assert inputs.miswired(node.INPUT_TYPES(), {"trajectories": "*", "w_min": "FLOAT", "floor": "STRING"}) is None


@pytest.mark.parametrize(
    "error", [ValueError("no"), PermissionError("no"), FileNotFoundError("no")], ids=lambda error: type(error).__name__
)
def test_what_a_check_says_is_said_of_the_input(error):
    def check(value):
        raise error

    assert inputs.complaint("path", check, "a") == "path: no"
    assert inputs.complaint("path", check, None) is None, "linked: known when the graph runs"


def test_an_evaluation_prompt_that_is_no_object_is_named():
    assert (
        TrainingRun.VALIDATE_INPUTS("a-run", evaluation_prompts='a fox\n{"prompt": "a sign", "text": "OPEN"}') is True
    )
    told = TrainingRun.VALIDATE_INPUTS("a-run", evaluation_prompts='a fox\n{"prompt": "a sign", "text"')
    assert told.startswith("evaluation_prompts: ") and "Fix: " in told


@pytest.mark.parametrize("name", ["OTCA_LoadFlowModel", "OTCA_MakeTrainable"])
@pytest.mark.parametrize("targets", [",", " , ,", ",,,"])
def test_commas_alone_are_no_layers(name, targets):
    """Seen before: they were taken for the default."""
    node = NODE_CLASS_MAPPINGS[name]
    given = {"model": "shapes-flux"} if name == "OTCA_LoadFlowModel" else {}
    said = node.VALIDATE_INPUTS(lora_targets=targets, **given)
    assert isinstance(said, str) and said.startswith(f'lora_targets = "{targets}" names no layer. Fix: leave it empty')
    assert node.VALIDATE_INPUTS(lora_targets="", **given) is True
    with pytest.raises(ValueError, match="lora_targets .* names no layer. Fix: leave it empty, or use to_q"):
        Adapter(4, 4.0, targets).ends(("to_q",))


def test_what_an_input_is_checked_by_is_there():
    checks = {
        (name, key): entry.check
        for name, node in NODE_CLASS_MAPPINGS.items()
        for table in node.inputs()
        for key, entry in table.items()
        if entry.check
    }
    assert len(checks) > 30
    for place, check in checks.items():
        assert callable(check.named_function()), place
        assert set(check.beside) <= {key for table in NODE_CLASS_MAPPINGS[place[0]].inputs() for key in table}, place


class Checked(inputs.Node):
    TITLE = "Checked"
    REQUIRED = {
        "size": inputs.text("1").tip("").checked(int, 10),
        "most": inputs.text("2").tip("").checked("tests.nodes.test_inputs:at_most", beside=("size",)),
        "free": inputs.text().tip("").checked(int, or_empty=True),
        "side": inputs.integer(3, 1, 9).tip("").checked(lambda side: None),
    }


def at_most(most: str, size: str) -> None:
    if int(size) > int(most):
        raise ValueError(f"{size} is more than {most}")


def test_an_input_brings_its_own_check():
    taken = inspect.getfullargspec(Checked.VALIDATE_INPUTS).args
    assert taken == ["cls", "size", "most", "free", "side"], "ComfyUI leaves the others' ranges to itself"
    validate = Checked.VALIDATE_INPUTS
    assert validate(size="1", most="2", free="") is True and validate(size="7", most=None) is True, "linked"
    assert validate(size="a", most="2").startswith("size: invalid literal for int() with base 10")
    assert validate(size="3", most="2") == "most: 3 is more than 2"
    assert validate(free="x").startswith("free: ")
    assert validate(side=9) is True and validate(side=11) == "side: 11 is not from 1 to 9. Fix: a number of that range"
    assert not hasattr(inputs.Node, "VALIDATE_INPUTS"), "nothing to check"
