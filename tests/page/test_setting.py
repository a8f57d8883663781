"""What the user of a page has set in ComfyUI, of which there may be several, or none that is known."""

from __future__ import annotations

import types

import pytest
from aiohttp import web

from comfyui_otca import page


def setting(answer):
    def get_settings(request):
        if isinstance(answer, Exception):
            raise answer
        return answer

    settings = types.SimpleNamespace(get_settings=get_settings)
    manager = types.SimpleNamespace(settings=settings)
    return page._trainings_setting(types.SimpleNamespace(user_manager=manager), None)


def test_a_number_of_trainings():
    assert setting({"OTCA.Trainings": 3}) == 3


@pytest.mark.parametrize("value", [0, -1, True, "2", None, 1.5])
def test_what_is_no_number_of_trainings(value):
    assert setting({"OTCA.Trainings": value}) is None


@pytest.mark.parametrize("answer", [KeyError("Unknown user: default"), web.HTTPUnauthorized(), [], {}])
def test_nobody_who_is_known(answer):
    assert setting(answer) is None
