"""The page's bundle: written into ComfyUI's output folder, and handed to the browser from there alone."""

from __future__ import annotations

import io
import json
import zipfile

from comfyui_otca.bundle import making
from comfyui_otca.host.paths import BUNDLES
from comfyui_otca.tests.page.strange_pictures import png
from comfyui_otca.trainer.checks import preflight

GRAPH = {"OTCA_TrainingRun": {"run_name": "from the graph"}}


def test_it_is_written_and_downloaded(site, small_graph):
    answer = site.post("/otca/bundle", {"prompt": small_graph(GRAPH), "hashes": False}).json
    file = site.output / BUNDLES / "from the graph.zip"
    assert answer["name"] == file.name and answer["path"] == str(file) and answer["bytes"] == file.stat().st_size
    assert answer["models"] == [] and answer["notes"] and len(answer["estimate"]) == 2
    downloaded = site.get("/otca/bundles/from%20the%20graph.zip")
    assert downloaded.headers["Content-Disposition"] == 'attachment; filename="from the graph.zip"'
    with zipfile.ZipFile(io.BytesIO(downloaded.content)) as archive:
        assert "from the graph/run.sh" in archive.namelist()
    again = site.post("/otca/bundle", {"prompt": small_graph(GRAPH), "name": "from the graph"}).json
    assert again["name"] == "from the graph_2.zip", "none is written over"


def test_it_says_how_much_of_the_models_it_has_read(site, small_graph, monkeypatch):
    make, seen = making.make, []

    def reading(*arguments, progress, **options):
        for count in (400, 300):
            progress(count)
            seen.append(site.get("/otca/bundle").json)
        return make(*arguments, progress=progress, **options)

    monkeypatch.setattr(making, "make", reading)
    monkeypatch.setattr(making, "bytes_to_hash", lambda held: 1000)
    assert site.post("/otca/bundle", {"prompt": small_graph(GRAPH)}).status == 200
    assert seen == [{"read": 400, "total": 1000}, {"read": 700, "total": 1000}]
    assert site.get("/otca/bundle").json == {"read": 0, "total": 0}


def test_a_graph_with_problems_is_refused_with_them(site, small_graph):
    answer = site.post("/otca/bundle", {"prompt": small_graph({"OTCA_SDESampler": {"group_size": -1}})})
    assert answer.status == 400 and answer.json["problems"][0]["input"] == "group_size"
    assert not (site.output / BUNDLES).exists()


def test_bad_requests(site):
    for content, said in (({"name": "../x"}, "plain name"), ({"hashes": 1}, "true or")):
        answer = site.post("/otca/bundle", {"prompt": {}, **content})
        assert answer.status == 400 and said in answer.error


def test_nothing_else_is_downloaded(site):
    folder = site.output / BUNDLES
    folder.mkdir()
    for place in (site.output / "secret.zip", folder / "secret.txt", folder / ".hidden.zip"):
        place.write_text("secret")
    (folder / "link.zip").symlink_to(site.output / "secret.zip")
    for name in ("..%2Fsecret.zip", "secret.txt", "link.zip", "nothing.zip", ".hidden.zip"):
        answer = site.get(f"/otca/bundles/{name}")
        assert answer.status in (400, 404) and answer.error, name


def test_pictures_are_named_and_asked_for_before_they_are_in_it(site, small_graph, monkeypatch):
    monkeypatch.setenv("OTCA_INPUT", str(site.input))
    (site.input / "mine.png").write_bytes(png())
    (site.input / "p.jsonl").write_text(json.dumps({"prompt": "a", "image": "mine.png"}))
    asked = {"prompt": small_graph({**GRAPH, "OTCA_PromptDataset": {"file": "p.jsonl"}}), "hashes": False}
    monkeypatch.setattr(preflight, "problems", lambda workflow: [])  # whether it takes pictures is not the question
    refused = site.post("/otca/bundle", asked)
    assert (refused.status, refused.json["pictures"]) == (
        409,
        ["inputs/mine.png"],
    ) and "1 of your pictures" in refused.error
    assert not (site.output / BUNDLES).exists()
    assert site.post("/otca/bundle", {**asked, "with_pictures": True}).status == 200
    with zipfile.ZipFile(site.output / BUNDLES / "from the graph.zip") as archive:
        assert "from the graph/inputs/mine.png" in archive.namelist()
