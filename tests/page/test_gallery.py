"""The gallery: what files say of how they were made, what is listed, what is served, and what is said of pictures."""

from __future__ import annotations

import io
import json
import os
import random
import sqlite3
import time
import zlib

import numpy as np
import pytest
from PIL import Image

from comfyui_otca.page.gallery import facts, index
from comfyui_otca.page.gallery.index import Index, id_of
from comfyui_otca.page.gallery.selection import Selection
from comfyui_otca.page.gallery.texts import MOST_TEXT
from comfyui_otca.tests.page.strange_pictures import (
    SCRIPT,
    animated,
    bomb,
    by_exif,
    graph,
    huge,
    png,
    strange,
    with_chunk,
)
from comfyui_otca.trainer.opinions import store as store_module
from comfyui_otca.trainer.opinions import votes
from comfyui_otca.trainer.opinions.identity import picture_id

FEW, MANY = 24, 300


def read_all(gallery, seconds=60.0):
    """Waits until the index has read all that it knows of."""
    deadline = time.monotonic() + seconds
    while (
        (told := gallery.progress())["small"] < told["pictures"]
        or told["read"] < told["pictures"]
        or gallery._wake.is_set()
    ):
        assert time.monotonic() < deadline, told
        time.sleep(0.02)


def read(content):
    return facts.read(io.BytesIO(content))


def of_graph(made):
    return read(png({"prompt": json.dumps(made)}))


# --- what a file says -------------------------------------------------------------------------------------------------


def test_a_graph_says_prompt_seed_model_and_loras():
    found = of_graph(graph("a cat, <b>", seed=2**63 + 5))
    assert (found.prompt, found.negative, found.seed) == ("a cat, <b>", "blurry", str(2**63 + 5))
    assert (found.model, found.loras, found.note) == ("base.safetensors", ("style.safetensors",), "")
    assert (found.width, found.height, found.animated, found.about) == (24, 24, False, "KSampler, 8 nodes")


def test_links_are_followed_through_any_node():
    custom = {
        "3": (
            "SamplerCustomAdvanced",
            {"noise": ["11", 0], "guider": ["12", 0], "latent_image": ["5", 0], "sampler": ["20", 0]},
        ),
        "11": ("RandomNoise", {"noise_seed": 42}),
        "12": ("CFGGuider", {"model": ["10", 0], "positive": ["13", 0], "negative": ["7", 0], "cfg": 3.5}),
        "13": ("FluxGuidance", {"conditioning": ["6", 0], "guidance": 3.5}),
        "6": ("CLIPTextEncodeFlux", {"clip": ["4", 1], "clip_l": ["14", 0], "t5xxl": ["15", 0]}),
        "14": ("PrimitiveString", {"value": "short"}),
        "15": ("SomebodysReroute", {"anything": ["16", 0]}),
        "16": ("TheirText", {"string": "a long text"}),
        "10": (
            "Power Lora Loader",
            {
                "lora_1": {"on": True, "lora": "on.safetensors"},
                "lora_2": {"on": False, "lora": "off.safetensors"},
                "model": ["4", 0],
            },
        ),
        "4": ("UNETLoader", {"unet_name": "flux.safetensors"}),
    }
    found = of_graph(graph(**custom))
    assert (found.prompt, found.negative, found.seed) == ("short, a long text", "blurry", "42")
    assert (found.model, found.loras) == ("flux.safetensors", ("on.safetensors",))


def test_the_negative_prompt_is_that_of_the_negative_side():
    both = {
        "3": ("KSampler", {"seed": 1, "positive": ["20", 0], "negative": ["20", 1], "latent_image": ["20", 2]}),
        "20": ("ControlNetApplyAdvanced", {"positive": ["6", 0], "negative": ["7", 0], "image": ["5", 0]}),
    }
    assert (of_graph(graph(**both)).prompt, of_graph(graph(**both)).negative) == ("a cat", "blurry")
    emptied = {**both, "7": ("ConditioningZeroOut", {"conditioning": ["6", 0]})}
    assert (of_graph(graph(**emptied)).prompt, of_graph(graph(**emptied)).negative) == ("a cat", "")
    three = {
        "3": ("SamplerCustomAdvanced", {"noise": ["11", 0], "guider": ["12", 0], "latent_image": ["5", 0]}),
        "11": ("RandomNoise", {"noise_seed": 42}),
        "12": ("DualCFGGuider", {"model": ["4", 0], "cond1": ["6", 0], "cond2": ["21", 0], "negative": ["7", 0]}),
        "21": ("CLIPTextEncode", {"text": "a hat", "clip": ["4", 1]}),
    }
    assert (of_graph(graph(**three)).prompt, of_graph(graph(**three)).negative) == ("a cat, a hat", "blurry")


def test_of_a_switch_the_branch_that_is_on_counts():
    def switched(on):
        return of_graph(
            graph(
                **{
                    "3": (
                        "KSampler",
                        {"seed": 1, "model": ["20", 0], "positive": ["6", 0], "negative": ["7", 0], "latent_image": 0},
                    ),
                    "6": ("CLIPTextEncode", {"text": ["22", 0], "clip": ["4", 1]}),
                    "20": ("ComfySwitchNode", {"switch": ["21", 0], "on_false": ["4", 0], "on_true": ["10", 0]}),
                    "21": ("PrimitiveBoolean", {"value": on}),
                    "22": ("ComfySwitchNode", {"switch": on, "on_false": "a cat", "on_true": ["23", 0]}),
                    "23": ("TextGenerate", {"prompt": "a hat", "system_prompt": ["24", 0]}),
                    "24": ("PrimitiveString", {"value": "You write prompts"}),
                }
            )
        )

    assert (switched(False).prompt, switched(False).loras) == ("a cat", ())
    assert (switched(True).prompt, switched(True).loras) == ("a hat", ("style.safetensors",))


def test_texts_that_are_put_together_are_read_in_their_order():
    joined = {
        "6": ("CLIPTextEncode", {"text": ["20", 0], "clip": ["4", 1]}),
        "20": ("StringConcatenate", {"string_a": ["21", 0], "string_b": "on a mat", "delimiter": " "}),
        "21": ("StringReplace", {"string": "a {thing}", "find": "{thing}", "replace": ["22", 0]}),
        "22": ("PrimitiveString", {"value": "cat"}),
    }
    assert of_graph(graph(**joined)).prompt == "cat, a {thing}, on a mat"


def test_the_sampler_is_what_draws_noise_and_the_seed_is_of_the_noise_that_was_drawn():
    sides = {"positive": ["6", 0], "negative": ["7", 0]}
    two = {
        "8": ("VAEDecode", {"samples": ["20", 0], "vae": ["4", 2]}),
        "20": ("LTXVCropGuides", {**sides, "latent": ["21", 0]}),
        "21": ("KSamplerAdvanced", {"add_noise": "disable", "noise_seed": 0, **sides, "latent_image": ["22", 0]}),
        "22": ("SomeLatents", {"video_latent": ["23", 0]}),
        "23": ("KSamplerAdvanced", {"add_noise": "enable", "noise_seed": 42, **sides, "latent_image": ["5", 0]}),
    }
    assert (of_graph(graph(**two)).about, of_graph(graph(**two)).seed) == ("KSamplerAdvanced, 12 nodes", "42")


def test_a_server_that_made_the_picture_was_asked_by_a_node():
    asked = {
        "8": ("TheirImageNode", {"prompt": ["20", 0], "negative_prompt": "fog", "model": "theirs-1", "seed": 9}),
        "20": ("PrimitiveString", {"value": "a hat"}),
        "3": ("Note", {}),
    }
    found = of_graph(graph(**asked))
    assert (found.prompt, found.negative, found.seed, found.model) == ("a hat", "fog", "9", "theirs-1")


def test_of_two_samplers_the_last_one_counts():
    second = {
        "30": (
            "KSampler",
            {"seed": 8, "model": ["4", 0], "positive": ["31", 0], "negative": ["7", 0], "latent_image": ["3", 0]},
        ),
        "31": ("CLIPTextEncode", {"text": "refined", "clip": ["4", 1]}),
        "8": ("VAEDecode", {"samples": ["30", 0], "vae": ["4", 2]}),
    }
    found = of_graph(graph("first", **second))
    assert (found.prompt, found.seed, found.loras) == ("refined", "8", ())


def test_the_same_graph_is_the_same_whatever_its_values_and_numbers():
    one, other = of_graph(graph("a", 1)), of_graph(graph("b", 2))
    assert (
        one.graph == other.graph != "" and one.graph != of_graph(graph(**{"10": ("Other", {"model": ["4", 0]})})).graph
    )


def test_webp_and_jpeg_say_it_by_exif():
    for format, tag in (("WEBP", 0x0110), ("JPEG", 0x0110), ("WEBP", 0x010E)):
        found = read(by_exif(format, {tag: "prompt:" + json.dumps(graph("by exif"))}))
        assert (found.prompt, found.width, found.height) == ("by exif", 16, 16)
    comment = b"UNICODE\0" + "a dog\nSteps: 20, Seed: 3".encode("utf-16-be")
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0x9286] = comment
    written = io.BytesIO()
    Image.new("RGB", (16, 16)).save(written, "JPEG", exif=exif)
    assert (read(written.getvalue()).prompt, read(written.getvalue()).seed) == ("a dog", "3")


def test_the_text_of_other_programs():
    said = "a dog <lora:fur:0.8>,\nsitting\nNegative prompt: ugly\n"
    said += "Steps: 20, Sampler: Euler a, Seed: 123, Model hash: ab, Model: v1-5, Size: 8x8"
    found = read(png({"parameters": said}))
    assert (found.prompt, found.negative, found.seed) == ("a dog <lora:fur:0.8>,\nsitting", "ugly", "123")
    assert (found.model, found.loras, found.graph) == ("v1-5", ("fur",), "")


def test_packed_texts_are_read_and_bombs_are_not():
    text = b"prompt\0\0" + zlib.compress(json.dumps(graph("packed")).encode())
    assert read(with_chunk(b"zTXt", text)).prompt == "packed"
    for kind in (b"zTXt", b"iTXt"):
        assert "more than 4 MB is not read" in read(bomb(kind)).note
    long = with_chunk(b"tEXt", b"prompt\0" + b" " * (MOST_TEXT + 1))
    assert "a text of 4 MB is not read" in read(long).note
    assert "nested deeper" in of_graph([[]]).note or "not an object" in of_graph([[]]).note
    assert "nested deeper" in read(png({"prompt": "[" * 100_000})).note


def test_what_is_not_a_picture_is_refused():
    for content, why in (
        (b"", "empty"),
        (b"GIF89a", "not a PNG"),
        (b"\x89PNG\r\n\x1a\n", "how large"),
        (b"\xff\xd8\xff", "how large"),
    ):
        with pytest.raises(ValueError, match=why):
            read(content)


# --- the index --------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pictures").mkdir()
    return tmp_path / "pictures"


@pytest.fixture
def opened(tmp_path, folder):
    """opened(): the index of the folder once all is read."""
    made = []

    def open_index():
        made.append(Index(tmp_path / "index", lambda: [folder]))
        made[-1].look(5)
        read_all(made[-1])
        return made[-1]

    yield open_index
    for each in made:
        each.close()


def names(gallery):
    return [name for (name,) in gallery.rows("name")]


def test_the_newest_come_first_and_what_is_removed_goes(folder, opened, monkeypatch):
    monkeypatch.setattr(index, "AGAIN", 0.0)
    for number, name in enumerate(("a.png", "b.png", "c.png")):
        (folder / name).write_bytes(png(seed=number))
        os.utime(folder / name, (1000 + number, 1000 + number))
    gallery = opened()
    assert names(gallery) == ["c.png", "b.png", "a.png"]
    before = gallery.version
    (folder / "b.png").unlink()
    (folder / "a.png").write_bytes(png({"prompt": json.dumps(graph("changed"))}, seed=9))
    gallery.look(5)
    read_all(gallery)
    assert names(gallery) == ["a.png", "c.png"] and gallery.version > before
    assert gallery.details([id_of(str(folder), "a.png")]).popitem()[1]["prompt"] == "changed"


def test_links_hidden_files_and_the_packs_own_folders_are_left_out(folder, opened, tmp_path):
    (tmp_path / "secret.png").write_bytes(png())
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "away").symlink_to(tmp_path)
    for name in (".hidden.png", "otca_votes/a.png", "below/花 <b>.png", "notes.txt", "pipe.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        if name == "pipe.png":
            os.mkfifo(folder / name)
        else:
            (folder / name).write_bytes(png())
    assert names(opened()) == [os.path.join("below", "花 <b>.png")]


def test_the_index_is_kept_and_a_damaged_one_is_made_anew(folder, opened, tmp_path, monkeypatch):
    (folder / "a.png").write_bytes(png({"prompt": json.dumps(graph("kept"))}))
    opened().close()
    with monkeypatch.context() as patch:
        patch.setattr(facts, "read", None)  # nothing is read again
        again = opened()
        assert again.rows("prompt") == [("kept",)]
        again.close()
    file = tmp_path / "index" / "index.sqlite"
    for damage in (b"no database" * 1000, file.read_bytes()[:5000]):
        for ending in ("-wal", "-shm"):
            file.with_name(file.name + ending).unlink(missing_ok=True)
        file.write_bytes(damage)
        gallery = opened()
        assert gallery.rows("prompt") == [("kept",)] and gallery.problem == ""
        gallery.close()


def test_where_nothing_can_be_written_the_index_is_in_memory(folder, tmp_path):
    (folder / "a.png").write_bytes(png({"prompt": json.dumps(graph("seen"))}))
    (tmp_path / "index").write_text("a file where the folder should be")
    gallery = Index(tmp_path / "index", lambda: [folder])
    gallery.look(5)
    read_all(gallery)
    assert gallery.rows("prompt") == [("seen",)] and "Fix: make room" in gallery.progress()["problem"]
    gallery.close()


def test_a_folder_that_does_not_answer_holds_nothing_up(folder, tmp_path, monkeypatch):
    (folder / "a.png").write_bytes(png())
    real, hangs = index.files_in, []

    def slow(name):
        if name.endswith("slow"):
            hangs.append(name)
            time.sleep(3600)
        return real(name)

    monkeypatch.setattr(index, "files_in", slow)
    gallery = Index(tmp_path / "index", lambda: [tmp_path / "slow", folder])
    gallery.look(0.5)
    gallery.look(0.0)
    assert names(gallery) == ["a.png"] and len(hangs) == 1 and not gallery.looked()
    gallery.close()


def test_a_picture_is_known_by_its_pixels(folder, opened):
    (folder / "a.png").write_bytes(png({"prompt": "{}"}, seed=3))
    (folder / "moved.png").write_bytes(png(seed=3))
    hashes = {hash for (hash,) in opened().rows("hash")}
    assert hashes == {picture_id(png(seed=3))}


# --- the routes -------------------------------------------------------------------------------------------------------


@pytest.fixture
def shown(site):
    """shown(name, content, …): the id of a picture in the output folder, which was read."""

    def put(name="a.png", content=None, folder=None):
        folder = folder or site.output
        (folder / name).write_bytes(png() if content is None else content)
        site.gallery.index._scanned.clear()
        site.gallery.index.look(5)
        read_all(site.gallery.index)
        return id_of(str(folder), name)

    return put


def listed(site, **asked):
    return site.get("/otca/gallery/list?" + "&".join(f"{name}={value}" for name, value in asked.items())).json


def say(site, picture, kind, value=None, other="", id=None):
    row = {
        "id": id or f"{random.getrandbits(128):032x}",
        "kind": kind,
        "picture": picture,
        "value": value,
        "other": other,
    }
    return site.post("/otca/gallery/say", row)


def test_what_is_listed_and_what_is_not(site, shown, tmp_path):
    cat = shown("cat.png", png({"prompt": json.dumps(graph("a cat"))}, 1))
    dog = shown(
        "dog.png", png({"prompt": json.dumps(graph("a DOG", **{"4": ("UNETLoader", {"unet_name": "flux"})}))}, 2)
    )
    other = shown("b.png", png(seed=3), site.input)
    for number, path in enumerate((site.output / "cat.png", site.output / "dog.png", site.input / "b.png")):
        os.utime(path, (1000 + number, 1000 + number))
    shown("cat2.png", png({"prompt": json.dumps(graph("a cat"))}, 4))
    everything = listed(site)
    assert everything["total"] == 4 and everything["ids"][1:] == [other, dog, cat] and everything["complete"]
    assert listed(site, words="dog")["ids"] == [dog] and listed(site, model="flux")["ids"] == [dog]
    assert listed(site, until=1001)["ids"] == [cat] and listed(site, since=1001, until=1002)["ids"] == [dog]
    groups = listed(site, group="prompt")["groups"]
    assert [(label, count) for _, label, count in groups] == [("a cat", 2), ("", 1), ("a DOG", 1)]
    assert len(listed(site, group="graph")["groups"]) == 3
    assert listed(site)["models"] == [["base.safetensors", 2], ["flux", 1]]
    assert site.get("/otca/gallery/list?said=all").status == 400
    state = site.get("/otca/gallery/state").json
    assert state["pictures"] == state["small"] == 4 and state["slow"] == []
    told = site.post("/otca/gallery/details", {"ids": [dog, "nothing"]}).content.decode()
    assert str(tmp_path) not in told and '"folder": "output"' in told


def test_the_list_that_opens_a_page_is_made_once(site, shown, monkeypatch):
    """Seen before: of 200 pages that opened at once, with 10,000 pictures, each waited for 36 s."""
    made, real = [], Selection.of
    monkeypatch.setattr(Selection, "of", lambda *asked: made.append(asked) or real(*asked))
    first = shown("a.png")
    assert [listed(site)["ids"] for _ in range(3)] == [[first]] * 3 and len(made) == 1
    assert {*listed(site, group="prompt")["ids"], shown("b.png", png(seed=1))} == {*listed(site)["ids"]} and len(
        made
    ) == 3
    for _ in range(2):
        listed(site, said="nothing")  # which an opinion changes
    assert len(made) == 5


def test_pictures_are_named_by_ids_alone(site, shown, tmp_path):
    picture = shown("a.png")
    assert site.get(f"/otca/gallery/pictures/{picture}").content == png()
    small = site.get(f"/otca/gallery/small/{picture}")
    assert (
        Image.open(io.BytesIO(small.content)).size == (24, 24) and small.headers["X-Content-Type-Options"] == "nosniff"
    )
    for route in ("pictures", "small"):
        again = site.get(f"/otca/gallery/{route}/{picture}", **{"If-None-Match": small.headers["ETag"]})
        assert (again.status, again.content) == (304, b"")
        for name in ("a.png", "..%2fa.png", str(site.output / "a.png").replace("/", "%2f"), "0" * 16):
            assert site.get(f"/otca/gallery/{route}/{name}").status == 404
    # A link that takes the file's place is not followed.
    (tmp_path / "secret.png").write_bytes(png(seed=5))
    (site.output / "a.png").unlink()
    (site.output / "a.png").symlink_to(tmp_path / "secret.png")
    assert "is a link out of its folder" in site.get(f"/otca/gallery/pictures/{picture}").error
    (site.output / "a.png").unlink()
    assert site.get(f"/otca/gallery/pictures/{picture}").status == 404


def test_the_page_allows_no_script_but_its_own(site):
    answer = site.get("/otca/gallery")
    assert b'src="../extensions/pack/gallery/page.js"' in answer.content
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'self'; ")
    assert "script" not in answer.headers["Content-Security-Policy"]


def test_an_opinion_is_kept_once(site, shown):
    picture, name = shown("a.png", png({"prompt": json.dumps(graph("a cat"))})), "0" * 31 + "1"
    for _ in range(2):
        assert say(site, picture, "thumb", 1, id=name).status == 200
    (opinion,) = site.gallery.opinions.store.standing()
    assert (opinion.id, opinion.picture, opinion.value) == (name, picture_id(png()), 1)
    kept = site.gallery.opinions.store.pictures()[opinion.picture]
    assert (kept.prompt, kept.models) == ("a cat", ("base.safetensors", "style.safetensors"))
    # It stays with the pixels when the file gets another name.
    (site.output / "a.png").rename(site.output / "b.png")
    moved = shown("b.png", (site.output / "b.png").read_bytes())
    assert site.post("/otca/gallery/details", {"ids": [moved]}).json["pictures"][moved]["said"]["thumb"] == 1
    assert listed(site, said="liked")["ids"] == [moved] and listed(site, said="nothing")["ids"] == []
    for _ in range(2):
        assert say(site, None, "undo", other=name).status == 200
    assert site.gallery.opinions.store.standing() == []


def test_all_kinds_of_opinions_are_told_again(site, shown):
    one, two, other = (
        shown(f"{n}.png", png({"prompt": json.dumps(graph(text))}, n)) for n, text in ((1, "a"), (2, "a"), (3, "b"))
    )
    region = {"like": False, "box": [0.1, 0.2, 0.5, 0.6]}
    for kind, value, about in (
        ("stars", 4, ""),
        ("tag", True, "hands"),
        ("region", region, "f" * 32),
        ("pair", True, two),
    ):
        assert say(site, one, kind, value, about).status == 200
    said = site.post("/otca/gallery/details", {"ids": [one, two]}).json["pictures"]
    assert said[one]["said"] == {
        "thumb": 0,
        "stars": 4,
        "tags": ["hands"],
        "regions": {"f" * 32: region},
        "better": 1,
        "worse": 0,
    }
    assert said[two]["said"]["worse"] == 1 and listed(site, words="hands")["ids"] == [one]
    assert listed(site, order="stars")["ids"][0] == one and listed(site, said="stars4")["ids"] == [one]
    assert say(site, one, "pair", True, other).status == 400  # of other prompts
    assert say(site, one, "stars", 6).status == 400 and say(site, one, "love", 1).status == 400
    assert say(site, "0" * 16, "thumb", 1).status == 404


def test_doubles_share_what_is_said_and_a_deleted_picture_keeps_it(site, shown):
    one, two = (shown(name, png({"prompt": json.dumps(graph("a cat"))}, 1)) for name in ("one.png", "two.png"))
    assert say(site, one, "stars", 5).status == 200
    said = site.post("/otca/gallery/details", {"ids": [one, two]}).json["pictures"]
    assert said[one]["said"]["stars"] == said[two]["said"]["stars"] == 5
    assert listed(site, said="stars5")["ids"] == listed(site)["ids"] and len(listed(site)["ids"]) == 2
    assert say(site, one, "pair", True, two).status == 400  # the same picture
    for name in ("one.png", "two.png"):
        (site.output / name).unlink()
    last = shown("other.png", png(seed=2))
    assert listed(site)["ids"] == [last]
    assert site.get("/otca/gallery/opinions").content.count(b'"stars"') == 1
    again = shown("back.png", png(seed=1))
    assert site.post("/otca/gallery/details", {"ids": [again]}).json["pictures"][again]["said"]["stars"] == 5


def test_an_animated_picture_is_its_first_frame_and_a_huge_one_a_note(site, shown):
    moves, large = shown("moves.png", animated()), shown("huge.png", huge())
    found = site.post("/otca/gallery/details", {"ids": [moves, large]}).json["pictures"]
    assert found[moves]["animated"] and not found[moves]["note"] and say(site, moves, "thumb", 1).status == 200
    assert "cannot be shown" in found[large]["note"] and say(site, large, "thumb", 1).status == 404


def test_pairs_are_of_one_prompt_and_asked_once(site, shown):
    ids = {
        n: shown(f"{n}.png", png({"prompt": json.dumps(graph(text))}, n)) for n, text in ((1, "a"), (2, "a"), (3, "b"))
    }
    (asked,) = site.get("/otca/gallery/pairs").json["pairs"]
    assert set(asked["pair"]) == {ids[1], ids[2]} and asked["prompt"] == "a"
    assert say(site, ids[1], "pair", True, ids[2]).status == 200
    assert site.get("/otca/gallery/pairs").json["pairs"] == []


def test_strange_files_are_told_of_in_a_line(site, everything):
    count = MANY if everything else FEW
    for number in range(count):
        name, content = strange(number)
        (site.output / name).write_bytes(content)
    (site.output / "huge.png").write_bytes(huge())
    site.gallery.index.look(5)
    read_all(site.gallery.index, 300)
    ids = listed(site, group="prompt")["ids"]
    # One name in five is left out: it turns the direction of writing.
    assert len(ids) == count + 1 - sum(number % 5 == 3 for number in range(count))
    noted = 0
    for begin in range(0, len(ids), 100):
        answer = site.post("/otca/gallery/details", {"ids": ids[begin : begin + 100]})
        assert answer.status == 200 and len(answer.content) < 4 * 1024**2
        noted += sum(bool(found["note"]) for found in answer.json["pictures"].values())
    assert noted > count // 3
    for id in ids[:: max(1, len(ids) // 40)]:
        assert site.get(f"/otca/gallery/small/{id}").status == 200
        assert site.get(f"/otca/gallery/pictures/{id}").status in (200, 404)
    assert (
        SCRIPT
        in site.post("/otca/gallery/details", {"ids": [id_of(str(site.output), "1 花 'x'.png")]})
        .json["pictures"]
        .popitem()[1]["prompt"]
    )


def test_a_damaged_or_full_store_is_a_line_and_its_pictures_are_shown(site, shown, monkeypatch):
    """Seen before: with a damaged one no picture could be seen, and each poll was a trace."""
    picture = shown()
    store = site.gallery.opinions.store
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "open_database", _full)
        answer = say(site, picture, "thumb", 1)
    assert answer.status == 507 and "cannot be kept" in answer.error and say(site, picture, "thumb", 1).status == 200
    store.file.rename(store.file.with_name("kept"))
    store.file.write_bytes(b"no database" * 1000)
    assert say(site, picture, "thumb", 1).status == site.get("/otca/gallery/pairs").status == 409
    assert (
        listed(site)["ids"] == [picture]
        and picture in site.post("/otca/gallery/details", {"ids": [picture]}).json["pictures"]
    )
    assert "is not a file of opinions" in site.get("/otca/gallery/state").json["problem"]
    store.file.with_name("kept").replace(store.file)
    assert site.get("/otca/gallery/state").json["problem"] == "" and listed(site, said="liked")["ids"] == [picture]


def _full(*_, **__):
    raise sqlite3.OperationalError("database or disk is full")


def test_odd_values_of_a_request_are_refused(site):
    """Seen before: each was 500."""
    assert site.get("/otca/gallery/list?since=9223372037").status == 400
    assert site.post("/otca/gallery/details", {"ids": ["\ud800"]}).status == 400


def test_no_picture_ends_the_thread_and_what_may_go_better_is_tried_again(folder, opened, monkeypatch, caplog):
    """Seen before: a picture dated after 2262 ended the look at its folder, what its decoder raised the reading of all, and a
    good one that came late once stayed unreadable for good."""
    monkeypatch.setattr(index, "AGAIN", 0.0)
    for number, name in enumerate(("odd.png", "slow.png", "good.png", "late.png")):
        (folder / name).write_bytes(png({"prompt": json.dumps(graph("seen"))}, number))
    os.utime(folder / "late.png", ns=(0, 2**63 + 10**9))
    read, make, troubles = index.facts_of, index.upright, ["all", "no disk"]

    def facts_of(file):
        if file.name == "slow.png" and troubles:
            raise TimeoutError("could not be read within 0.5 s")
        return read(file)

    def decoded(content):
        if content == (folder / "odd.png").read_bytes() and troubles:
            raise MemoryError("none left")
        return make(content)

    def files_of(folder):
        if len(troubles) > 1:
            raise RuntimeError(troubles.pop())
        return listed_files(folder)

    listed_files = index.files_in
    monkeypatch.setattr(index, "files_in", files_of)
    monkeypatch.setattr(index, "facts_of", facts_of)
    monkeypatch.setattr(index, "upright", decoded)
    assert opened().progress()["problem"] == "the folder pictures could not be read, and is tried again: no disk"
    gallery = opened()
    assert sorted(names(gallery)) == ["good.png", "late.png", "odd.png", "slow.png"]
    problem = gallery.progress()["problem"]
    assert (
        problem.startswith("2 pictures could not be read, and are tried again later: ")
        and "slow.png could not be" in caplog.text
    )
    troubles.clear()
    monkeypatch.setattr(index, "LATER", 0.0)
    gallery.look(5)
    while gallery.progress()["problem"]:  # until they are tried again
        time.sleep(0.02)
    read_all(gallery)
    assert len(gallery.rows("1", "prompt = 'seen' and note = ''")) == 4


def test_opinions_go_out_and_come_in(site, shown):
    one, two = (shown(f"{n}.png", png({"prompt": json.dumps(graph("a cat"))}, n)) for n in (1, 2))
    assert say(site, one, "stars", 4).status == say(site, one, "pair", True, two).status == 200
    gone = site.get("/otca/gallery/opinions")
    lines = [json.loads(line) for line in gone.content.decode().splitlines()]
    assert [next(iter(line)) for line in lines] == ["picture", "picture", "opinion", "opinion"]
    assert gone.headers["Content-Disposition"] == 'attachment; filename="opinions.jsonl"'
    assert site.post("/otca/gallery/opinions", {"lines": gone.content.decode()}).json == {
        "new": 0,
        "known": 2,
        "unread": 0,
    }
    site.gallery.opinions.store.file.unlink()
    wrong = site.post("/otca/gallery/opinions", {"lines": gone.content.decode() + '{"opinion": {}}\n'})
    assert wrong.status == 400 and wrong.error.startswith("opinions.jsonl is damaged: line 5")
    assert site.gallery.opinions.store.standing() == []  # all or none
    assert site.post("/otca/gallery/opinions", {"lines": gone.content.decode()}).json == {
        "new": 2,
        "known": 0,
        "unread": 0,
    }
    said = site.post("/otca/gallery/details", {"ids": [one]}).json["pictures"][one]["said"]
    assert (said["stars"], said["better"]) == (4, 1)


def test_votes_come_in_once(site, monkeypatch, tmp_path):
    monkeypatch.setenv("OTCA_VOTES", str(tmp_path))
    assert site.post("/otca/gallery/votes", {}).json == {"new": 0, "known": 0, "unread": 0}
    names = tuple(f"votes/{number:016x}.png" for number in (1, 2))
    (tmp_path / "hands" / "votes").mkdir(parents=True)
    for number, name in enumerate(names, 1):
        (tmp_path / "hands" / name).write_bytes(png(seed=number))
    answer = votes.Answer("pair", ((1,), (0,)))
    votes.append(votes.of_folder(tmp_path / "hands"), votes.Vote("a cat", names, answer))
    for told in ({"new": 1, "known": 0, "unread": 0}, {"new": 0, "known": 1, "unread": 0}):
        assert site.post("/otca/gallery/votes", {}).json == told
    (opinion,) = site.gallery.opinions.store.standing()
    assert opinion.pictures == (picture_id(png(seed=2)), picture_id(png(seed=1)))
    (tmp_path / "hands" / votes.LINES).write_text("[]\n")
    answer = site.post("/otca/gallery/votes", {})
    assert answer.status == 409 and "line 1" in answer.error and "Fix: " in answer.error


def test_a_taste_is_learned_shown_and_saved(site, shown, until, monkeypatch, tmp_path):
    monkeypatch.setenv("OTCA_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("OTCA_OPINIONS", str(tmp_path))
    text = {"prompt": json.dumps(graph("a cat"))}
    red, blue = (np.full((24, 24, 3), color, np.uint8) for color in ((220, 30, 30), (30, 30, 220)))
    ids = []
    for number in range(12):
        noise = np.random.default_rng(number).integers(0, 20, (24, 24, 3), dtype=np.uint8)
        (site.output / f"{number}.png").write_bytes(png(text, pixels=(red, blue)[number % 2] + noise))
        ids.append(id_of(str(site.output), f"{number}.png"))
    shown("last.png")
    told = site.get("/otca/gallery/taste").json
    assert told["encoders"][-1] == "shapes-clip"
    assert until(lambda: not site.get("/otca/gallery/taste").json["works"]) and told["agreement"] is None
    assert [site.get("/otca/gallery/taste").json[name] for name in ("pairs", "least")] == [0, 4]
    assert site.post("/otca/gallery/taste", {"name": "mine"}).status == 409
    for number in range(8):  # red is liked
        assert say(site, ids[number], "thumb", 1 if number % 2 == 0 else -1).status == 200
    told = until(lambda: (answer := site.get("/otca/gallery/taste").json)["scored"] == 13 and answer)
    mean, _, pairs = told["agreement"]
    assert mean > 0.9 and pairs == told["pairs"] == 4  # each liked one with a disliked one
    found = site.post("/otca/gallery/details", {"ids": ids}).json["pictures"]
    scores = [found[id]["taste"] for id in ids[8:]]  # of pictures that nothing was said about
    assert min(scores[0::2]) > 0.5 > max(scores[1::2])
    first = listed(site, order="taste")["ids"]
    assert [ids.index(id) % 2 for id in first if id in ids] == [0] * 6 + [1] * 6
    assert len(site.get("/otca/gallery/pairs").json["pairs"]) == 1  # the one that tells most of that prompt
    assert len(site.get("/otca/gallery/pairs?skip=1").json["pairs"]) > 1  # it was passed over: any others
    assert [site.post("/otca/gallery/taste", {"name": "mine"}).json["file"] for _ in range(2)] == [
        "mine.safetensors",
        "mine-2.safetensors",
    ]
    assert (
        site.get("/otca/gallery/taste?encoder=..%2fetc").status == 400
        and site.post("/otca/gallery/taste", {"name": "../x"}).status == 400
    )


def test_train_on_these_is_a_workflow_with_its_cost(site, shown, monkeypatch, tmp_path):
    monkeypatch.setenv("OTCA_OPINIONS", str(tmp_path))
    text = {"prompt": json.dumps(graph("a cat"))}
    ids = [shown(f"{number}.png", png(text, number)) for number in range(6)]
    asked = site.post("/otca/gallery/workflow", {})
    assert asked.status == 409 and "has no opinion. Fix: " in asked.error
    for number, id in enumerate(ids):
        assert say(site, id, "thumb", 1 if number % 2 else -1).status == 200
    made = site.post("/otca/gallery/workflow", {}).json
    assert "error" not in made, made
    assert made["items"] > 0 and made["forwards"] > 0 and made["said"] and made["models"][0][0] == "my_pictures"
    kinds = {entry["class_type"] for entry in made["prompt"].values()}
    assert {"OTCA_MyPictures", "OTCA_MatchingStep", "OTCA_TrainingRun", "OTCA_SaveLoRA"} <= kinds
    assert site.post("/otca/gallery/workflow", {"ids": ids}).status == 200
    tagged = [opinion for opinion in site.gallery.opinions.store.standing("tag") if opinion.other == "train"]
    assert len(tagged) == 6
    assert site.post("/otca/gallery/workflow", {"model": "sd1"}).status == 400
