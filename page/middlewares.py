"""Changes of ComfyUI's own server while the pack is there.

* Our models make room on the accelerator when ComfyUI is asked to free memory, and for prompts without our nodes: ComfyUI moves
  its own models in and out by itself but knows nothing of ours.
* A value that a node of ours refuses is one error, on the input that it is about. ComfyUI repeats what a
  VALIDATE_INPUTS says on every input that this function takes: a missing file would be five errors, four of them on inputs that
  have nothing to do with it. The page that queued the prompt is told of the inputs, by an event. A node that is not listed,
  since the user has not allowed it, is named as that.
* A graph of ours that lacks a package is refused before anything of it runs.
* Our templates are listed by their names, and not as the disk has them.

Each is a middleware of aiohttp's or a handler that ComfyUI calls for a queued prompt; nothing of ComfyUI's is replaced.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aiohttp import web

from ..host.comfyui import canvas_of, has_our_nodes
from ..nodes import NODE_CLASS_MAPPINGS, WITHHELD
from ..trainer.workflow import lineage
from ..trainer.workflow.checking import input_of
from ..trainer.workflow.foreign import kind_at
from ..trainer.workflow.graph import constants
from ..trainer.workflow.reading import api_graph, renewed

logger = logging.getLogger(__name__)

PATIENCE = 0.2  # seconds between two looks whether our prompt has ended
KIND = "custom_validation_failed"  # ComfyUI's name for what VALIDATE_INPUTS refuses
SEARCHED = r", (?:neither as a path nor in|looked for as) "  # how messages begin the list of folders that were searched


def make_room_when_asked(prompt_server, release: Callable[[], int], busy: type[Exception]) -> None:
    """Follows ComfyUI's "Unload models" and every queued prompt.

    `release`: sends our models to main memory; raises `busy` while a prompt of ours is running.
    """
    tasks: set[asyncio.Task] = set()  # a task that nobody holds may be collected before it ran

    async def release_when_idle() -> None:
        while True:
            try:
                await asyncio.to_thread(release)
                return
            except busy:
                await asyncio.sleep(PATIENCE)

    def soon() -> None:
        task = prompt_server.loop.create_task(release_when_idle())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    @web.middleware
    async def after_free(request: web.Request, handler: Callable) -> web.StreamResponse:
        response = await handler(request)
        if request.method == "POST" and request.path in ("/free", "/api/free") and response.status == 200:
            wish = json.loads(await request.text() or "{}")
            if wish.get("unload_models") or wish.get("free_memory"):
                soon()
        return response

    def before_others(data: dict) -> dict:
        prompt = data.get("prompt") if isinstance(data, dict) else None
        if isinstance(prompt, dict) and not has_our_nodes(prompt):
            soon()
        return data

    prompt_server.app.middlewares.append(after_free)
    prompt_server.add_on_prompt_handler(before_others)


def name_queued(prompt_server) -> None:
    """Gives queued nodes of ours their classes: the one of today to those of before, and to one that is not listed its own,
    which ComfyUI's page leaves out, so that the answer says what is missing and how to allow it."""

    def before(data: dict) -> dict:
        if not isinstance(data, dict):  # which ComfyUI then refuses
            return data
        extra, prompt = data.get("extra_data"), data.get("prompt")
        if not isinstance(prompt, dict):
            return data
        canvas = canvas_of(extra.get("extra_pnginfo")) if isinstance(extra, dict) else None
        prompt = prompt if canvas is None else with_classes(prompt, canvas)
        return {**data, "prompt": {name: renewed(entry) for name, entry in prompt.items()}}

    prompt_server.add_on_prompt_handler(before)


def with_classes(prompt: dict[str, Any], canvas: Mapping) -> dict[str, Any]:
    """A queued graph with the classes of those of WITHHELD, by where they stand in the canvas."""
    lacking = [name for name, entry in prompt.items() if isinstance(entry, dict) and "class_type" not in entry]
    kinds = {name: kind_at(canvas, name) for name in lacking}
    return prompt | {name: {**prompt[name], "class_type": kind} for name, kind in kinds.items() if kind in WITHHELD}


def sort_templates(prompt_server, pack: str) -> None:
    """Puts the templates of the pack in that folder into the order of their names, where ComfyUI lists those of all packs."""

    @web.middleware
    async def after_listing(request: web.Request, handler: Callable) -> web.StreamResponse:
        response = await handler(request)
        if request.path in ("/workflow_templates", "/api/workflow_templates") and isinstance(response, web.Response):
            listed = json.loads(response.text or "null")
            if isinstance(listed, dict) and isinstance(listed.get(pack), list):
                response.text = json.dumps({**listed, pack: sorted(listed[pack])})
        return response

    prompt_server.app.middlewares.append(after_listing)


def say_refusals_once(prompt_server) -> None:
    """Puts ComfyUI's answers to queued prompts right from now on, and tells the page of the inputs that were refused.

    A graph whose nodes lack a package is refused here: of one that is partly wrong ComfyUI would run the rest.
    """

    @web.middleware
    async def around_prompt(request: web.Request, handler: Callable) -> web.StreamResponse:
        if request.method != "POST" or request.path not in ("/prompt", "/api/prompt"):
            return await handler(request)
        queued, refusal, packages = await asyncio.to_thread(looked_at, await request.text())
        response = web.json_response(refusal, status=400) if refusal else await handler(request)
        if isinstance(response, web.Response) and response.content_type == "application/json":
            answer = json.loads(response.text or "null")
            if isinstance(answer, dict) and (answer.get("node_errors") or answer.get("error")):
                answer = refusal or put_right(answer)
                response.text = json.dumps(answer)
                page, inputs = queued.get("client_id"), _refused(answer)
                if inputs and isinstance(page, str):  # a script's has none, and nobody is told
                    prompt_server.send_sync("otca.refused", {"inputs": inputs, "packages": packages}, page)
        return response

    prompt_server.app.middlewares.append(around_prompt)


def looked_at(text: str) -> tuple[dict, dict | None, list[dict[str, str]]]:
    """The graph that was queued, and its `_refusal`; anything but a graph is refused by ComfyUI."""
    queued: dict = {}
    try:
        queued = json.loads(text)
        return queued, *_refusal(api_graph(queued["prompt"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return queued if isinstance(queued, dict) else {}, None, []


def _refused(answer: dict) -> dict[str, list[str]]:
    """{node: its inputs that are refused}."""
    return {
        node: [
            error["extra_info"]["input_name"]
            for error in entry["errors"]
            if "input_name" in error.get("extra_info", {})
        ]
        for node, entry in answer["node_errors"].items()
    }


def _refusal(graph: Mapping[str, Mapping]) -> tuple[dict | None, list[dict[str, str]]]:
    """(answer, what the page is told) to a graph of which output nodes of ours need nodes that lack packages; else (None, [])."""
    classes = {node: NODE_CLASS_MAPPINGS.get(entry["class_type"]) for node, entry in graph.items()}
    outputs = [node for node, cls in classes.items() if getattr(cls, "OUTPUT_NODE", False)]
    errors, packages, lines = {}, [], []
    for node in dict.fromkeys(node for output in outputs for node in lineage.above(graph, output)):
        if not (cls := classes[node]) or not (lacks := cls.lacks(**constants(graph[node]))):
            continue
        name, lack = lacks
        error = {"type": KIND, "message": name, "details": str(lack), "extra_info": {"input_name": name}}
        errors[node] = {"errors": [error], "dependent_outputs": [], "class_type": graph[node]["class_type"]}
        packages.append({"node": node, "text": lack.message, "command": lack.command})
        lines.append(f"{name}: {lack}")
        logger.warning("%s", lack)
    summary = {"message": "Prompt outputs failed validation", "details": "\n".join(lines), "extra_info": {}}
    error = {"type": "prompt_outputs_failed_validation", **summary}
    return {"error": error, "node_errors": errors} if errors else None, packages


def put_right(answer: dict) -> dict:
    """ComfyUI's answer to a prompt, {error, node_errors: {id: {errors, class_type, …}}}, with each refusal of ours said once."""
    lines: dict[str, str] = {}  # what stood in the summary: what stands there now
    nodes = {}
    for node_id, node in (answer.get("node_errors") or {}).items():
        if node.get("class_type") in NODE_CLASS_MAPPINGS:
            node = {**node, "errors": list(_said_once(node["class_type"], node["errors"], lines))}
        nodes[node_id] = node
    error = answer.get("error")
    if isinstance(error, dict) and isinstance(error.get("details"), str):
        written: list[str] = error["details"].split("\n")
        summary = dict.fromkeys(lines.get(line, line) for line in written)
        error = {**error, "details": "\n".join(summary)}
        # Why ComfyUI does not know a node of ours that a graph holds; "" if it is about another one. ComfyUI 0.3.64
        # names the class in its message alone.
        extra = error.get("extra_info")
        named = [extra.get("class_type")] if isinstance(extra, dict) else []
        named += re.findall(r"OTCA_\w+", str(error.get("message")))
        if why := next((WITHHELD[name] for name in named if name in WITHHELD), ""):
            error = {**error, "message": why}
    return {**answer, **({"error": error} if error else {}), "node_errors": nodes}


def _said_once(class_type: str, errors: Iterable[dict], lines: dict[str, str]) -> Iterable[dict]:
    refused: dict[str, list[dict]] = {}  # by what was said
    for error in errors:
        if error.get("type") == KIND:
            name = f"{error['extra_info']['input_name']} - "  # which ComfyUI writes before what was said
            refused.setdefault(error["details"].removeprefix(name), []).append(error)
        else:
            yield error
    for message, repeated in refused.items():
        about = _about(class_type, message, [error["extra_info"]["input_name"] for error in repeated])
        message = searched_last(message.removeprefix(f"{about}: "))
        once = {**repeated[0], "message": about or NODE_CLASS_MAPPINGS[class_type].TITLE, "details": message}
        once["extra_info"] = {name: value for name, value in repeated[0]["extra_info"].items() if name != "input_name"}
        if about is not None:  # else the node as a whole is marked
            once["extra_info"]["input_name"] = about
        lines |= {
            f"{error['message']}: {error['details']}": f"{once['message']}: {once['details']}" for error in repeated
        }
        yield once


def _about(class_type: str, said: str, names: list[str]) -> str | None:
    """The input that a refusal begins with, be it one that VALIDATE_INPUTS does not take; else the one of `names` in it."""
    inputs = NODE_CLASS_MAPPINGS[class_type].INPUT_TYPES()
    first = re.match(r"\w*", said)
    if first and any(first[0] in inputs.get(section, {}) for section in ("required", "optional")):
        return first[0]
    return input_of(said, [name for name in names if name != "input_types"], guess=False)


def searched_last(message: str) -> str:
    """The problem, the fix, and only then the folders that were searched, since they may fill the page."""
    parts = re.fullmatch(rf"(.*){SEARCHED}(.*) Fix: (.*)", re.sub(r"\s+", " ", message))
    if parts is None:
        return message
    problem, searched, fix = parts.groups()
    return f"{problem}. Fix: {fix.rstrip('. ')}. Searched: {searched}"
