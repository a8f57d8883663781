"""The estimate of memory against what tensors are given on the device while our own code trains, phase by phase."""

from __future__ import annotations

import pytest

from comfyui_otca.tests.device import heavy, pretend

pytestmark = pytest.mark.anywhere


@pytest.mark.parametrize("family", heavy.SIZES)
@pytest.mark.parametrize("case", heavy.CASES)
def test_the_estimate_is_what_is_allocated(family, case, everything, tmp_path):
    if not pretend.is_registered():
        pytest.skip(f"in a process of its own: pytest --device {pretend.NAME}:0 ({pretend.MISSING})")
    if not everything and (family, case) not in (("qwen-image", "checkpointing"), ("flux", "streaming")):
        pytest.skip("the long form: --everything")
    folder = heavy.make(family, tmp_path / family)
    assert sum(file.stat().st_size for file in folder.rglob("*.safetensors")) > 50e6
    training = heavy.Training(family, **heavy.CASES[case])
    with pretend.active():
        estimated, counted = heavy.estimated(folder, training), heavy.counted(folder, training)
    for phase in heavy.PHASES:
        assert estimated[phase] == pytest.approx(counted[phase], rel=0.15), phase


@pytest.mark.parametrize("family", ["sd3", "flux", "wan"])
@pytest.mark.parametrize("case", heavy.PULLS)
def test_so_it_is_along_the_rewards_gradient(family, case, everything, tmp_path):
    if not pretend.is_registered():
        pytest.skip(f"in a process of its own: pytest --device {pretend.NAME}:0 ({pretend.MISSING})")
    if not everything and (family, case) != ("sd3", "last_steps, batch 1"):
        pytest.skip("the long form: --everything")
    folder = heavy.make(family, tmp_path / family, decoder=32)
    training = heavy.Training(family, pull=heavy.PULLS[case])
    with pretend.active():
        estimated, counted = heavy.estimated(folder, training), heavy.counted(folder, training)
    for phase in heavy.PULLED:
        assert estimated[phase] == pytest.approx(counted[phase], rel=0.1), phase
