"""What a workflow asks for, for the page's dialog, and the click that allows it, which is remembered on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from aiohttp import web

from ..host.access import given, permissions
from ..host.access.remembered import FILE
from ..host.access.wants import wants_of
from ..host.files import Damaged
from ..trainer.workflow.foreign import headless
from ..trainer.workflow.running import Workflow, WorkflowError
from .checks import Field, Refused, body, json_object

LONGEST = 1000  # characters of a name


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST:
        raise ValueError(f"must be text of 1 to {LONGEST} characters. Fix: give what /otca/permissions/wants says")
    return value


WANTS = {"prompt": Field(json_object, required=True)}
ALLOW = {"kind": Field(_text, required=True), "what": Field(_text, required=True)}


def add_permission_routes(get: Callable, post: Callable[[str], Callable], node_classes: Mapping[str, type]) -> None:
    """Adds the routes by `get` and `post`, which refuse other sites as they do for all."""

    async def all_given(request: web.Request) -> dict:
        listed = await asyncio.to_thread(given.given)
        return {"given": [asdict(each) for each in listed]}

    async def take_back(request: web.Request) -> dict:
        asked = await body(request, ALLOW)
        try:
            await asyncio.to_thread(given.take_back, asked["kind"], asked["what"])
        except Damaged as error:
            raise Refused(409, str(error)) from error
        except ValueError as error:
            raise Refused(400, f"{asked['kind']} {asked['what']!r}: {error}") from error
        except OSError as error:
            raise Refused(500, f"it cannot be taken back ({error}). Fix: make {FILE}'s file writable") from error
        return {}

    async def wants(request: web.Request) -> dict:
        asked = await body(request, WANTS)
        return {"wants": await asyncio.to_thread(_wants, asked["prompt"], node_classes)}

    async def allow(request: web.Request) -> dict:
        asked = await body(request, ALLOW)
        try:
            what = await asyncio.to_thread(permissions.remember, asked["kind"], asked["what"])
        except ValueError as error:
            raise Refused(400, f"{asked['kind']} {asked['what']!r}: {error}") from error
        except OSError as error:
            message = f"it cannot be remembered ({error}). Fix: set {FILE} to a file that can be written"
            raise Refused(500, message) from error
        return {"kind": asked["kind"], "what": what}

    get("/otca/permissions")(all_given)
    for name, handler in {"wants": wants, "allow": allow, "take_back": take_back}.items():
        post(f"/otca/permissions/{name}")(handler)


def _wants(prompt: dict, node_classes: Mapping[str, type]) -> list[dict[str, Any]]:
    try:
        graph = Workflow(prompt, node_classes).graph
    except WorkflowError as error:
        raise Refused(400, str(error)) from error
    return [_as_json(want) for want in wants_of(headless(graph), node_classes)]


def _as_json(want: permissions.Want) -> dict[str, Any]:
    may = None if want.linked else permissions.allowed(want)
    remember = permissions.remembers(want) if may is False else None
    return {
        "kind": want.kind,
        "what": want.what[:LONGEST],
        "why": want.why,
        "node": want.node,
        "input": want.input,
        "allowed": may,  # null: known only when the graph runs
        "rememberable": remember is not None,
        "remember": remember,  # what to post as `what` to allow it
        "text": permissions.in_words(want),
        "fix": permissions.fix(want) if may is False else "",
    }
