"""The page's routes on ComfyUI's server: runs, training headless, export, the nodes' last results.

Thin handlers over plain files and one child process a training; nothing here imports torch. ComfyUI has no
authentication, so requests name things by id and never by path, and change things only by POST with JSON from the same site.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import ModuleType


def settle_in() -> None:
    """Makes the pack at home in ComfyUI: a folder for reward models, the routes, and manners on the accelerator."""
    import folder_paths
    from server import PromptServer  # ComfyUI's module of that name

    from ..canvas import results
    from ..host.headless_comfyui import add_reward_folder
    from . import middlewares

    add_reward_folder(folder_paths)
    register(PromptServer.instance, folder_paths)
    middlewares.make_room_when_asked(PromptServer.instance, results.release, results.Busy)
    middlewares.say_refusals_once(PromptServer.instance)
    middlewares.sort_templates(PromptServer.instance, Path(__file__).absolute().parents[1].name)
    middlewares.name_queued(PromptServer.instance)


def register(prompt_server, folder_paths: ModuleType) -> None:
    """Adds the routes to ComfyUI's server, which mirrors them under /api. Called once, while ComfyUI loads the pack."""
    import nodes  # ComfyUI's

    from ..canvas import results
    from ..host import headless_comfyui, paths
    from ..host.access import permissions
    from ..host.foreign_nodes import NodeClasses
    from ..nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
    from ..trainer.opinions.store import FILE, Store
    from .gallery.index import folders as picture_folders
    from .gallery.opinions import Opinions
    from .gallery.routes import Gallery
    from .jobs import Jobs
    from .routes import add_routes
    from .runs import Runs
    from .settings import Word, of_comfyui

    user = Path(folder_paths.get_user_directory())
    runs = Runs(lambda: paths.runs_of(folder_paths), results.run_at_work)
    add_routes(
        prompt_server.routes,
        runs=runs,
        jobs=Jobs(
            runs,
            NodeClasses(NODE_CLASS_MAPPINGS, nodes.NODE_CLASS_MAPPINGS),
            NODE_DISPLAY_NAME_MAPPINGS,
            input_folder=lambda: Path(folder_paths.get_input_directory()),
            make_room=results.make_room_for_others,
        ),
        live=results,
        loras_folder=lambda: Path(folder_paths.get_folder_paths("loras")[0]),
        trainings=Word(permissions.trainings_allowed(user), user, headless_comfyui.folder_of_server()),
        gallery=Gallery(
            paths.gallery_folder(),
            picture_folders,
            Opinions(Store(paths.opinions_folder() / FILE)),
            Path(__file__).absolute().parents[1].name,
        ),
        folders=lambda: of_comfyui(folder_paths),
        setting=lambda request: trainings_setting(prompt_server, request),
    )
    # What is read of hundreds of runs is remembered, so that the sidebar opens quickly the first time, too.
    threading.Thread(target=runs.summaries, name="otca runs", daemon=True).start()


def trainings_setting(prompt_server, request) -> int | None:
    """How many trainings at a time the user of this page has chosen in ComfyUI's settings; None if that is not known.

    If ComfyUI has several users, a request with an unknown user's name, or without a name, has no settings.
    """
    from aiohttp import web

    try:
        settings = prompt_server.user_manager.settings.get_settings(request)
    except (KeyError, web.HTTPUnauthorized):
        return None
    value = settings.get("OTCA.Trainings") if isinstance(settings, dict) else None  # the file may hold anything
    return value if type(value) is int and value > 0 else None
