"""The routes of the gallery. A picture is named by an id that does not say where it is; what the user thinks of it is kept by
its content.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from ...host.access import opening
from ...host.paths import ASSETS, votes_folder
from ...host.text import quoted
from ..requests import LARGEST_BODY, Check, Field, Refused, answered, body, count, optional, query, refusing, text, word
from ..requests import NOTHING as NO_FIELDS
from .index import LAST_TIME, File, Index, content
from .opinions import ABOUT, EXPORTED, Opinions
from .selection import Selection
from .taste import SAVE, Taste, score_of

MOST_IDS, LONGEST_ID = 200, 100  # of one request for details
PAGE = ASSETS / "gallery.html"
KINDS = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}
LIST = {
    "words": word(""),
    "model": word(""),
    "since": count(0, LAST_TIME // 10**9),
    "until": count(0, LAST_TIME // 10**9),
    "said": word(""),
    "group": word(""),
    "order": word("newest"),
}
# What a small picture is that cannot be made: one grey dot, of which the page knows the reason.
NOTHING = bytes.fromhex("524946461e000000574542505650384c110000002f000000000750c00216b0ff8188e87f0000")


def list_of_ids(most: int) -> Check:
    """A check for at most so many ids of pictures."""

    an_id = text(LONGEST_ID, "give a picture's id", least=0)

    def check(value: Any) -> list[str]:
        if not isinstance(value, list) or len(value) > most:
            raise ValueError(f"must be a list of ids. Fix: give at most {most}")
        return list(map(an_id, value))

    return check


DETAILS = {"ids": Field(list_of_ids(MOST_IDS), required=True)}
# The lines of a file of opinions. A body of JSON, as everywhere, so that a stranger's page cannot send it.
OPINIONS = {"lines": Field(text(LARGEST_BODY, "take in a part of the lines at a time", least=0), required=True)}
MOST_CHOSEN = 20_000  # pictures of one training
WORKFLOW = {
    "ids": Field(list_of_ids(MOST_CHOSEN), default=[]),
    "model": Field(text(40, "give the name of a template"), default="my_pictures"),
}
SAY = {
    "id": Field(text(32, "give 32 hexadecimal digits"), required=True),
    "kind": Field(text(10, "give thumb, stars, pair, region, tag or undo"), required=True),
    "picture": Field(optional(text(16, "give the picture's id"))),
    "other": Field(text(100, "give what the kind says", least=0), default=""),
    "value": Field(lambda value: value),
}


class Gallery:
    """The gallery that the routes ask. The index is opened when the gallery is, and not when ComfyUI starts.

    Args:
        home: the folder that the index is kept in.
        folders: of pictures.
        pack: the folder of this pack as ComfyUI's page names it.
    """

    def __init__(self, home: Path, folders: Callable[[], Iterable[Path]], opinions: Opinions, pack: str):
        self.opinions, self.pack, self.taste = opinions, pack, Taste(opinions.store)
        self._opening, self._home, self._folders = threading.Lock(), home, folders
        self._index: Index | None = None

    @property
    def index(self) -> Index:
        with self._opening:
            self._index = self._index or Index(self._home, self._folders)
            return self._index

    def close(self) -> None:
        with self._opening:
            if self._index is not None:
                self._index.close()


def workflow(opinions: Opinions, gallery: Index, ids: list[str], model: str) -> dict[str, Any]:
    """The workflow that learns from what was said of these pictures (no ids: of all), and its cost. Raises Refused: 400, 507."""
    from ...trainer.opinions import recipe

    facts = gallery.details(ids) if ids else {}
    with refusing():
        made = recipe.write(opinions.store, (picture["hash"] for picture in facts.values() if picture["hash"]), model)
    return {
        "prompt": made.graph,
        "name": f"my_pictures_{model}" if model != recipe.TEMPLATE else recipe.TEMPLATE,
        **{name: getattr(made, name) for name in ("learn_from", "items", "held_out", "forwards", "memory", "said")},
        "models": [list(model_name) for model_name in recipe.MODELS.items()],
    }


def add_gallery_routes(routes: web.RouteTableDef, gallery: Gallery) -> None:
    """Adds them all."""
    opinions, listing = gallery.opinions, threading.Lock()
    kept: dict[tuple, dict[str, Any]] = {}  # the last list

    def served(function: Callable[..., Any], fields: Mapping[str, Any]) -> Callable:
        """Answers what a function says, in a thread, of these fields of the request's body or query."""

        async def handler(request: web.Request) -> Any:
            values = await body(request, fields) if request.method == "POST" else query(request, fields)
            return await asyncio.to_thread(function, **values)

        return answered(handler)

    def state() -> dict[str, Any]:
        gallery.index.look()
        answer = {"version": gallery.index.version, "opinions": opinions.state(), **gallery.index.progress()}
        return {**answer, "problem": "; ".join(filter(None, [answer["problem"], opinions.problem]))}

    def listed(**asked: Any) -> dict[str, Any]:
        if not gallery.index.rows("1", limit=1):
            gallery.index.look(patience=1.0)
        version, state = gallery.index.version, opinions.state()
        key = (version, gallery.index.looked(), *asked.values())
        with listing:
            if (chosen := kept.pop(key, None)) is None:
                chosen = Selection(**asked).of(gallery.index, opinions, gallery.taste.scores)
            kept.clear()
            if not (asked["words"] or asked["said"]) and asked["order"] == "newest":  # no opinion changes it
                kept[key] = chosen
        gallery.index.look()  # after what is known: a look at ten thousand files would slow it down
        return {"version": version, "opinions": state, **chosen}

    def details(ids: list[str]) -> dict[str, Any]:
        facts = gallery.index.details(ids)
        about = opinions.of(picture["hash"] for picture in facts.values())
        return {"pictures": {id: _shown(picture, about, gallery.taste.scores) for id, picture in facts.items()}}

    async def page(request: web.Request) -> web.Response:
        above = "../" * (request.path.strip("/").count("/"))
        text = (await asyncio.to_thread(PAGE.read_text, encoding="utf-8")).replace(
            "{web}", f"{above}extensions/{gallery.pack}"
        )
        headers = {
            "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; style-src 'self' 'unsafe-inline'"
        }
        return web.Response(text=text, content_type="text/html", headers=headers)

    async def picture(request: web.Request) -> web.Response:
        file, content = await asyncio.to_thread(_opened, gallery.index, request.match_info["name"])
        kind = next((kind for start, kind in KINDS.items() if content.startswith(start)), None)
        if kind is None:
            raise Refused(404, f"{quoted(file.name)} is not a PNG, JPEG or WebP picture. Fix: look at another one")
        return _tagged(request, content, kind, _tag(file))

    async def small(request: web.Request) -> web.Response:
        known_tag = request.headers.get("If-None-Match", "")
        tag, content = await asyncio.to_thread(_small, gallery.index, request.match_info["name"], known_tag)
        return _tagged(request, content, "image/webp", tag)

    async def exported(request: web.Request) -> web.Response:
        headers = {"Content-Disposition": f'attachment; filename="{EXPORTED}"', "X-Content-Type-Options": "nosniff"}
        content = await asyncio.to_thread(opinions.exported)
        return web.Response(body=content, content_type="application/jsonl", headers=headers)

    routes.get("/otca/gallery")(answered(page))
    routes.get("/otca/gallery/state")(served(state, {}))
    routes.get("/otca/gallery/list")(served(listed, LIST))
    routes.get("/otca/gallery/pairs")(
        served(lambda skip: {"pairs": gallery.taste.next_pairs(gallery.index, skip)}, {"skip": count(0)})
    )
    routes.get("/otca/gallery/taste")(
        served(lambda encoder: gallery.taste.told(gallery.index, encoder), {"encoder": word("")})
    )
    routes.get("/otca/gallery/opinions")(answered(exported))
    routes.get("/otca/gallery/pictures/{name}")(answered(picture))
    routes.get("/otca/gallery/small/{name}")(answered(small))
    routes.post("/otca/gallery/details")(served(details, DETAILS))
    routes.post("/otca/gallery/opinions")(served(lambda lines: opinions.take_in(lines.encode()), OPINIONS))
    routes.post("/otca/gallery/votes")(served(lambda: opinions.take_in_votes(votes_folder()), NO_FIELDS))
    routes.post("/otca/gallery/say")(served(lambda **asked: opinions.say(gallery.index, **asked), SAY))
    routes.post("/otca/gallery/workflow")(served(lambda **asked: workflow(opinions, gallery.index, **asked), WORKFLOW))
    routes.post("/otca/gallery/taste")(served(gallery.taste.save, SAVE))


def _shown(found: dict[str, Any], said: Mapping[str, dict], scores: Mapping[str, float]) -> dict[str, Any]:
    """Without the folder's path, which the page need not know."""
    names = "name size width height prompt negative seed model loras about note".split()
    return {
        **{name: found[name] for name in names},
        "folder": Path(found["folder"]).name,
        "changed": found["changed"] / 1e9,
        "animated": bool(found["animated"]),
        "said": said.get(found["hash"]) or ABOUT(),
        "taste": score_of(scores, found["hash"]),
    }


def _known(gallery: Index, name: str) -> File:
    files = gallery.files([name])
    if name not in files:
        raise Refused(404, f"picture {quoted(name)} is not in the gallery any more. Fix: reload the page")
    return files[name]


def _opened(gallery: Index, name: str) -> tuple[File, bytes]:
    file = _known(gallery, name)
    try:
        return file, content(file)
    except (OSError, opening.Refused) as error:
        raise Refused(
            404,
            f"the picture cannot be read ({getattr(error, 'strerror', None) or error}). Fix: put the file back, or reload the "
            "page",
        ) from error


def _tag(file: File) -> str:
    """Another one for each content of a file."""
    return f'"{file.id}-{file.changed:x}-{file.size:x}"'


def _small(gallery: Index, name: str, given: str) -> tuple[str, bytes]:
    """The tag of a small picture, and its content unless the browser has that."""
    tag = _tag(_known(gallery, name))
    return tag, b"" if tag in given else gallery.small(name) or NOTHING


def _tagged(request: web.Request, content: bytes, kind: str, tag: str) -> web.Response:
    """The picture, or that the browser's is still the same."""
    headers = {"ETag": tag, "X-Content-Type-Options": "nosniff", "Content-Security-Policy": "default-src 'none'"}
    if tag in request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    return web.Response(body=content, content_type=kind, headers=headers)
