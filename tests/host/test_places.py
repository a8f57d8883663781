"""Where the pack writes: a ComfyUI with the pack trains and answers, and all that it wrote lies where `otca where` says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import comfyui_otca
from comfyui_otca.__main__ import main
from comfyui_otca.host import places
from comfyui_otca.tests.host import fake_comfyui

# In the ComfyUI of this folder: the pack is loaded, a prompt is queued, its page asks. Each file that Python opens to write, and
# each folder, is noted from the first import on.
SESSION = """
import json, os, sys
sys.dont_write_bytecode = True
written = set()

def heard(event, arguments):
    if event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        paths = arguments[:1]
    elif event in ("os.rename", "os.link", "os.symlink"):
        paths = arguments[1:2]
    elif event in ("os.mkdir", "os.truncate"):
        paths = arguments[:1]
    else:
        return
    written.update(os.path.abspath(os.fsdecode(path)) for path in paths if isinstance(path, (str, bytes, os.PathLike)))

sys.addaudithook(heard)
import asyncio, types
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

sys.path.insert(0, sys.argv[1])
import folder_paths, comfy.model_management, nodes
server = sys.modules["server"] = types.ModuleType("server")
instance = types.SimpleNamespace(
    app=web.Application(), routes=web.RouteTableDef(), loop=None, send_sync=lambda *event: None,
    add_on_prompt_handler=lambda handler: None, prompt_queue=types.SimpleNamespace(currently_running={}),
    user_manager=types.SimpleNamespace(settings=types.SimpleNamespace(get_settings=lambda request: {})),
)
server.PromptServer = types.SimpleNamespace(instance=instance)
comfy.model_management.throw_exception_if_processing_interrupted = lambda: None
comfy.model_management.InterruptProcessingException = KeyboardInterrupt
comfy.utils = sys.modules["comfy.utils"] = types.ModuleType("comfy.utils")
comfy.utils.ProgressBar = lambda total: types.SimpleNamespace(update=lambda amount: None)
import comfyui_otca  # which settles in
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.trainer.workflow.running import Workflow

Workflow(json.loads(open(sys.argv[2]).read()), NODE_CLASS_MAPPINGS).run()

async def ask():
    instance.app.add_routes(instance.routes)
    async with TestClient(TestServer(instance.app)) as client:
        for path in ("", "/quickstart", "/quickstart/metrics", "/quickstart/removal"):
            assert (await client.get("/otca/runs" + path)).status == 200, path
        for path, content in {
            "runs/quickstart/lora": {}, "runs/quickstart/note": {"notes": "mine"}, "release": {},
            "permissions/allow": {"kind": "post", "what": "score.example.org:443"},
        }.items():
            answer = await client.post("/otca/" + path, json=content)
            assert answer.status == 200, (path, await answer.text())
        for path in ("folders", "machine", "suggestions?kind=runs", "votes"):
            assert (await client.get("/otca/" + path)).status == 200, path

asyncio.run(ask())
from comfyui_otca.host import places, search
from comfyui_otca.page.remote import kept_tokens
from comfyui_otca.trainer.pictures import figures
print("TOLD", json.dumps({"written": sorted(written), "places": places.listed(folder_paths)}))
"""

SMALL = {
    "OTCA_PromptDataset": {"prompts_per_iteration": 1},
    "OTCA_SDESampler": {"group_size": 2, "steps": 2},
    "OTCA_TrainingRun": {"evaluate_every": 1, "evaluation_prompts": "a blue circle", "evaluation_seeds": 1},
}


def files_below(folder):
    return {str(path) for path in folder.rglob("*") if "__pycache__" not in path.parts}


def test_nothing_is_written_elsewhere_and_nothing_stays_but_what_the_user_made(tmp_path):
    comfyui, home, here, scratch = (tmp_path / name for name in ("ComfyUI", "home", "here", "scratch"))
    for folder in (home, here, scratch):
        folder.mkdir()
    fake_comfyui.make(comfyui)
    for folder in ("models/loras", "input", "output", "user/default"):
        (comfyui / folder).mkdir(parents=True, exist_ok=True)
    graph = json.loads((Path(comfyui_otca.__file__).parent / "workflows" / "api" / "quickstart.json").read_text())
    for entry in graph.values():
        entry["inputs"].update(SMALL.get(entry["class_type"], {}))
    (tmp_path / "quickstart.json").write_text(json.dumps(graph))
    before = files_below(tmp_path)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OTCA_", "XDG_", "MPL", "HF_", "TORCH"))
    }
    environment = {**kept, "HOME": str(home), "TMPDIR": str(scratch), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SESSION, str(comfyui), str(tmp_path / "quickstart.json")]
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.rpartition("TOLD ")[2])

    allowed = [one["path"] for one in told["places"] if one["written"]]

    def is_declared(path):
        # A folder on the way to a place, a file aside that takes a place's name, and what is gone again are no other place.
        return any(path == place or path.startswith((f"{place}/", f"{os.path.dirname(place)}/.")) for place in allowed)

    elsewhere = [path for path in told["written"] if not is_declared(path) and not path.startswith(("/dev/", "/proc/"))]
    elsewhere = [
        path for path in elsewhere if os.path.exists(path) and not any(place.startswith(path) for place in allowed)
    ]
    assert not elsewhere
    new = files_below(tmp_path) - before
    assert not [path for path in new if os.path.isfile(path) and not is_declared(path)], "by a library, without Python"
    assert not files_below(here)

    # Whoever removes the pack has in ComfyUI's folders the run, its adapter, and what ComfyUI empties.
    names = {one["path"]: one["name"] for one in told["places"]}
    left = {
        name for path in new for place, name in names.items() if os.path.isfile(path) and path.startswith(f"{place}/")
    }
    inside = {name for path, name in names.items() if path.startswith(str(comfyui)) and name in left}
    assert inside - {"models"} == {"runs", "adapters"} or inside - {"models"} == {"runs", "adapters", "previews"}
    assert "permissions" in [one["name"] for one in told["places"] if one["exists"]]
    sizes = {one["name"]: one["bytes"] for one in told["places"] if one["path"].startswith(str(comfyui))}
    assert sizes["runs"] > 100_000 and sizes["adapters"] > 100_000


def test_where_lists_each_place_with_what_it_is(tmp_path, fake_comfyui, monkeypatch, capsys):
    folder = fake_comfyui()
    monkeypatch.setenv("OTCA_PERMISSIONS", str(tmp_path / "permissions.json"))
    (tmp_path / "permissions.json").write_text("{}")
    assert main(["where", "--comfyui", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert main(["where", "--comfyui", str(folder), "--json"]) == 0
    listed = {one["path"]: one for one in json.loads(capsys.readouterr().out)}
    runs, permissions = listed[str(folder / "output" / "otca")], listed[str(tmp_path / "permissions.json")]
    assert (runs["exists"], runs["bytes"], runs["loses"]) == (False, 0, "what was trained")
    assert (permissions["exists"], permissions["bytes"], permissions["files"]) == (True, 2, 1)
    for path, one in listed.items():
        assert path in shown and one["use"] in shown and one["loses"] in shown


def test_a_place_is_counted_without_what_its_links_lead_to(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("12345")
    (tmp_path / "big").write_text("x" * 1000)
    (tmp_path / "a" / "link").symlink_to(tmp_path / "big")
    (tmp_path / "a" / "loop").symlink_to(tmp_path / "a")
    assert sorted(places.sizes_of(tmp_path / "a"))[0] == 5 and sum(places.sizes_of(tmp_path / "a")) < 1000
    assert places.sizes_of(tmp_path / "nothing") == []
