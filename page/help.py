"""Help pages of the nodes in the user's language.

ComfyUI's page asks for docs/<Node>/<language>.md first, and for docs/<Node>.md only when the server has refused that. The routes
of the server come before its files, so that the first question has an answer already.
"""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

DOCS = Path(__file__).parent.parent / "web" / "docs"


def add_help_route(routes: web.RouteTableDef, pack: str) -> None:
    """Adds the route to a server on which the pack's folder has that name."""
    pages = {path.stem: path for path in DOCS.glob("*.md")}

    async def page(request: web.Request) -> web.StreamResponse:
        node, language = request.match_info["node"], request.match_info["language"]
        if node not in pages:
            raise web.HTTPNotFound
        translated = DOCS / node / f"{language}.md"
        return web.FileResponse(translated if translated.is_file() else pages[node])

    routes.get(f"/extensions/{pack}/docs/{{node}}/{{language:[A-Za-z-]+}}.md")(page)
