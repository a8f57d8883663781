"""Our models make room on the accelerator: when ComfyUI is asked to free memory, and for prompts without our nodes.

ComfyUI moves its own models in and out by itself but knows nothing of ours.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from aiohttp import web

from ..host.comfyui import has_our_nodes

PATIENCE = 0.2  # seconds between two looks whether our prompt has ended


def watch(prompt_server, release: Callable[[], int], busy: type[Exception]) -> None:
    """Follows ComfyUI's "Unload models" and every queued prompt.

    Args:
        release: sends our models to main memory; raises `busy` while a prompt of ours is running.
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
            asked = json.loads(await request.text() or "{}")
            if asked.get("unload_models") or asked.get("free_memory"):
                soon()
        return response

    def before_others(data: dict) -> dict:
        prompt = data.get("prompt")
        if isinstance(prompt, dict) and not has_our_nodes(prompt):
            soon()
        return data

    prompt_server.app.middlewares.append(after_free)
    prompt_server.add_on_prompt_handler(before_others)
