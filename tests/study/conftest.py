"""Two workflows that may be compared."""

from __future__ import annotations

import pytest


@pytest.fixture
def both(small_workflow):
    """both({"OTCA_Class": {input: value}}): OTCA's small workflow, and its uniform sibling with these changes."""

    def workflows(changes=None):
        return {"otca": small_workflow(), "uniform": small_workflow(changes, source="uniform.json")}

    return workflows
