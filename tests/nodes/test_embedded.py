"""The node Embedded Model where there is no ComfyUI, and wrong names; what it gives is tested in tests/comfyui/."""

from __future__ import annotations

import pytest

from comfyui_otca.nodes.embedded import EmbeddedModel


def test_without_comfyui_it_says_what_to_do():
    message = EmbeddedModel.VALIDATE_INPUTS("shapes-flux")
    assert "ComfyUI is not here" in message and "Fix: " in message and "--comfyui" in message
    with pytest.raises(ValueError, match="ComfyUI is not here"):
        EmbeddedModel().load("shapes-flux")


@pytest.mark.parametrize("name", ["shapes-clip", "../shapes-flux"])
def test_no_other_folder_is_read(name):
    assert "is no embedded model" in EmbeddedModel.VALIDATE_INPUTS(name)
    with pytest.raises(ValueError, match="Fix: choose shapes-flux or scenes-flux"):
        EmbeddedModel().load(name)


def test_a_linked_name_is_judged_when_the_graph_runs():
    assert EmbeddedModel.VALIDATE_INPUTS(None) is True
