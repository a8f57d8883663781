"""ComfyUI's page asks for a node's help in the user's language first."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from comfyui_otca.page import middlewares


def get(path: str) -> tuple[int, str]:
    """What a server like ComfyUI's answers: routes first, then the pack's files."""

    async def ask() -> tuple[int, str]:
        routes = web.RouteTableDef()
        middlewares.add_help_route(routes, "ComfyUI-OTCA")
        app = web.Application()
        app.add_routes(routes)
        app.add_routes([web.static("/extensions/ComfyUI-OTCA", middlewares.DOCS.parent)])
        async with TestClient(TestServer(app)) as client, client.get(f"/extensions/ComfyUI-OTCA/docs/{path}") as answer:
            return answer.status, await answer.text()

    return asyncio.run(ask())


@pytest.mark.parametrize("language", ["en", "zh-TW", "de"])
def test_the_english_page_stands_in_for_a_language_that_has_none(language):
    english = (middlewares.DOCS / "OTCA_TCDWeights.md").read_text(encoding="utf-8")
    assert get(f"OTCA_TCDWeights/{language}.md") == (200, english)
    assert get("OTCA_TCDWeights.md") == (200, english)


def test_a_translated_page_is_served(tmp_path, monkeypatch):
    (tmp_path / "OTCA_X").mkdir()
    (tmp_path / "OTCA_X.md").write_text("English")
    (tmp_path / "OTCA_X" / "de.md").write_text("Deutsch")
    monkeypatch.setattr(middlewares, "DOCS", tmp_path)
    assert [get(f"OTCA_X/{language}.md")[1] for language in ("de", "en")] == ["Deutsch", "English"]


@pytest.mark.parametrize("path", ["OTCA_Nothing/en.md", "..%2fOTCA_X/en.md", "OTCA_TCDWeights/..%2f..%2fotca.md"])
def test_nothing_else_is_served(path):
    assert get(path)[0] == 404
