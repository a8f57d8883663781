"""What a few changes make of valid files, 100 of each kind and 1,000 by `make test-all`: pictures with bytes cut, doubled,
turned, lines of votes, opinions and pairs, canvases with subgraphs inside themselves. Each is read, or refused in words."""

from __future__ import annotations

import copy
import functools
import io
import itertools
import json
import logging
import struct
import zlib
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from comfyui_otca.host.errors import Expected
from comfyui_otca.page import middlewares
from comfyui_otca.page.gallery import facts
from comfyui_otca.page.gallery.index import Index
from comfyui_otca.tests.page import strange_pictures
from comfyui_otca.trainer.opinions import exchange, plan, reading, votes
from comfyui_otca.trainer.opinions.store import Store
from comfyui_otca.trainer.pictures import media
from comfyui_otca.trainer.workflow import foreign

from .strangers import EXAMPLES, IDS, NUMBERS, TEXTS, deep

FUZZ = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
SEEDS = st.integers(0, 2**32)
RGB = np.random.default_rng(0).integers(0, 256, (13, 17, 3), dtype=np.uint8)
GREY = RGB[..., 0]


# --- pictures -----------------------------------------------------------------------------------------------------------


def interlaced(pixels):
    """A PNG in the seven passes of Adam7, which Pillow reads and does not write."""
    height, width, channels = pixels.shape
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    parts = [pixels[top::down, left::right] for top, left, down, right in passes]
    rows = b"".join(b"\0" + row.tobytes() for part in parts if part.size for row in part)
    head = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2, 4: 6}[channels], 0, 0, 1)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(strange_pictures.chunk(*chunk) for chunk in chunks)


@functools.cache
def valid():
    """{name: content} of a small picture of each kind."""

    def written(kind, pixels=RGB, mode=None, **how):
        image, file = Image.fromarray(pixels), io.BytesIO()
        if how.get("append_images"):
            how["append_images"] = [Image.fromarray(255 - pixels)]
        (image.convert(mode) if mode else image).save(file, kind, **how)
        return file.getvalue()

    exif, graph = Image.Exif(), json.dumps(strange_pictures.graph())
    exif[0x0112], exif[0x0110] = 6, f"prompt:{graph}"
    several = dict(save_all=True, append_images=True)
    made = {f"{mode}.png": written("PNG", mode=mode) for mode in ("RGB", "RGBA", "L", "LA", "P", "1")}
    made |= {f"{mode}.tiff": written("TIFF", mode=mode) for mode in ("RGBA", "CMYK", "F", "LAB")}
    made |= {f"{how}.tiff": written("TIFF", compression=how) for how in ("tiff_lzw", "tiff_deflate", "jpeg")}
    made |= {f"{mode}.bmp": written("BMP", mode=mode) for mode in ("RGB", "P", "1")}
    made |= {f"{mode}.jpg": written("JPEG", mode=mode) for mode in ("L", "CMYK")}
    return made | {
        "deep.png": written("PNG", GREY.astype(np.uint16) * 257),
        "interlaced.png": interlaced(RGB),
        "interlaced grey.png": interlaced(RGB[..., :1]),
        "texts.png": strange_pictures.png({"prompt": graph, "workflow": graph, "parameters": "a\nSteps: 2, Seed: 1"}),
        "packed.png": strange_pictures.with_chunk(b"iTXt", b"prompt\0\1\0\0\0" + zlib.compress(graph.encode())),
        "transparent.png": written("PNG", mode="P", transparency=3),
        "moving.png": written("PNG", **several),
        "moving.webp": written("WEBP", **several),
        "moving.gif": written("GIF", **several),
        "turned.jpg": written("JPEG", exif=exif, progressive=True),
        "turned.webp": written("WEBP", exif=exif),
        "exact.webp": written("WEBP", lossless=True),
        "pages.tiff": written("TIFF", **several),
        "deep.tiff": written("TIFF", GREY.astype(np.uint16) * 257),
        "light.hdr": b"#?RADIANCE\nFORMAT=32-bit_rle_rgbe\n\n-Y 1 +X 2\n" + bytes([128, 0, 0, 128, 128, 128, 128, 130]),
    }


def spoilt(content, random):
    """Bytes with one to four changes, most of them near the beginning, where a file says what it is."""
    content = bytearray(content)
    for _ in range(random.randint(1, 4)):
        length = len(content)
        begin = random.randrange(min(length, random.choice([64, 256, length + 1])) + 1)
        end = min(length, begin + random.choice([1, 2, 4, 8, 50]))
        match random.randrange(6):
            case 0:
                del content[begin + 8 if random.random() < 0.5 else begin :]
            case 1:
                del content[begin:end]
            case 2:
                content[begin:begin] = content[begin:end] * random.choice([1, 1, 3, 200])
            case 3 if end > begin:
                content[begin] ^= 1 << random.randrange(8)
            case 4:
                content[begin:end] = random.choice([b"\0", b"\xff", b"\x80"]) * (end - begin)
            case 5:
                content[begin:end] = random.randbytes(end - begin)
    return bytes(content)


def spoilt_picture(seed):
    """(kind, content)."""
    random = Random(seed)
    name = random.choice(sorted(valid()))
    return name, spoilt(valid()[name], random) if random.random() < 0.95 else valid()[name]


def look_at_picture(content):
    """Every reader of pictures gives a picture that can be kept and sent, or says in a ValueError what is wrong."""
    for read in (media.upright, lambda content: media.stored_size(io.BytesIO(content))):
        try:
            image = read(content)
            assert isinstance(image, tuple) or (image.mode == "RGB" and np.asarray(image).ndim == 3)
        except ValueError as error:
            assert str(error).strip()
    try:
        json.dumps(vars(facts.read(io.BytesIO(content))), ensure_ascii=False).encode()
    except ValueError as error:
        assert str(error).strip() and not isinstance(error, UnicodeError)


def test_every_kind_of_picture_is_read_as_it_is():
    for name, content in valid().items():
        look_at_picture(content)
        assert name.endswith(".gif") or media.upright(content).size in ((17, 13), (13, 17), (24, 24), (2, 1)), name
    for channels in (1, 3):
        assert np.array_equal(
            np.asarray(media.upright(interlaced(RGB[..., :channels])))[..., :channels], RGB[..., :channels]
        )


@FUZZ
@given(SEEDS)
def test_a_spoilt_picture_is_read_or_refused(seed):
    look_at_picture(spoilt_picture(seed)[1])


def test_the_gallery_goes_on_past_spoilt_pictures(tmp_path, everything, caplog):
    """And counts none of them as one that may go better later, which it would try again for ever."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for seed in range(1000 if everything else 40):
        name, content = spoilt_picture(seed)
        (folder / f"{seed} {name.rpartition('.')[0]}{['.png', '.jpg', '.webp'][seed % 3]}").write_bytes(content)
    look_at_gallery(Index(tmp_path / "home", lambda: [folder]), folder)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def look_at_gallery(gallery, folder):
    try:
        gallery._scan(str(folder))
        gallery._read_new()
        progress = gallery.progress()
        assert progress["problem"] == "" and progress["pictures"] == progress["read"] == progress["small"] > 0, progress
        json.dumps(gallery.details([row[0] for row in gallery.rows("id")]), allow_nan=False).encode()
    finally:
        gallery.close()


# --- lines --------------------------------------------------------------------------------------------------------------

ONE, TWO, OWN = "a" * 64, "b" * 64, "c" * 32
VOTE = {"version": 1, "id": "d" * 32, "time": 1.7e9, "prompt": "p", "replaces": None}
VOTE["pictures"] = [f"votes/{'a' * 16}.png", f"votes/{'b' * 64}.png"]
ANSWERS = [{"kind": "order", "order": [[1], [0]]}, {"kind": "pair", "winner": 0, "loser": 1}, {"kind": "alike"}]
SAID = [
    *[("thumb", -1, ""), ("stars", 5, ""), ("pair", True, TWO), ("tag", True, "mine")],
    *[("region", {"like": True, "box": [0, 0, 0.5, 1]}, OWN)],
    *[("region", {"like": False, "mask": {"width": 2, "height": 2, "runs": [1, 2, 1]}}, "")],
]
PICTURE = {"id": ONE, "prompt": "p", "path": "a.png", "models": ["m"], "width": 8, "height": 8}
OPINIONS = [
    {"kind": kind, "picture": ONE, "value": value, "other": other, "id": f"{number:032x}", "time": 1.7e9}
    for number, (kind, value, other) in enumerate(SAID)
]
PICTURES = [{"picture": PICTURE}, {"picture": PICTURE | {"id": TWO}}]
LINES = {
    votes.LINES: [VOTE | {"answer": answer} for answer in ANSWERS],
    plan.FILE: [*PICTURES, *({"opinion": opinion} for opinion in OPINIONS)],
    reading.FILE: [{"prompt": "p", "chosen": "a.png", "rejected": "b.png", "tag": {"deep": [1]}}] * 2,
}
DEEP = "so deep that no text could be made of it"
VALUES = [
    *[*NUMBERS, *TEXTS, None, True, False, [], {}, [[]], [1], ["1", 0], [None, 0], deep(8), deep(40), [1] * 10_000],
    *[ONE, TWO, OWN, -1.7e9, 1.7e308, 10**400, 2**31, DEEP],
]
NASTY = ["\ud800", 2**63, -1, 10**400, None, [], {}, "x" * 100_001]  # what has been taken for good before


def text_of(value):
    return json.dumps(value).replace(f'"{DEEP}"', "[" * 20_000 + "]" * 20_000)


def change(value, random, options=VALUES):
    """Something within a value, at any depth, is changed in place."""
    while True:
        key = random.choice([*value] if isinstance(value, dict) else range(len(value)))
        if not (isinstance(value[key], dict | list) and value[key]) or random.random() < 0.3:
            break
        value = value[key]
    if random.random() < 0.2:
        del value[key]
    else:
        value[random.choice([key] * 9 + ["kind"]) if isinstance(value, dict) else key] = copy.deepcopy(
            random.choice(options)
        )


def spoilt_lines(seed):
    """(name, content) of a list of which a row or two are odd, or bytes are changed."""
    random = Random(seed)
    name = random.choice(sorted(LINES))
    rows = json.loads(json.dumps(LINES[name]))
    for _ in range(random.choice([0, 1, 1, 1, 2])):
        change(random.choice([row for row in rows if row]), random)
    content = "".join(text_of(row) + "\n" for row in rows).encode()
    return name, content if random.random() < 0.7 else spoilt(content, random)


def with_one_odd():
    """(name, content) of each list with each value in it, at any depth, as each of NASTY."""

    def changed(value):
        yield from NASTY
        parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, part in parts:
            for odd in changed(part):
                yield {**value, key: odd} if isinstance(value, dict) else [*value[:key], odd, *value[key + 1 :]]

    for name, rows in LINES.items():
        for odd in changed(rows):
            if isinstance(odd, list) and odd:
                yield name, "".join(text_of(row) + "\n" for row in odd).encode()


def look_at_lines(folder, name, content):
    """All readers of a list take what they read, or name it in words; what was taken in can be given out, and taken in again."""
    for file in folder.glob("*"):
        file.unlink()
    (folder / name).write_bytes(content)
    (folder / "a.png").write_bytes(valid()["L.png"])
    (folder / "b.png").write_bytes(valid()["RGB.png"])
    readers = {
        votes.LINES: [lambda: exchange.import_votes(store, folder)],
        plan.FILE: [
            lambda: exchange.import_lines(store, folder / name),
            lambda: plan._listed(folder, str(hash(content))),
        ],
        reading.FILE: [lambda: reading.read_pairs(folder).as_lines().encode()],
    }
    store = Store(folder / "opinions.sqlite")
    for read in readers[name]:
        try:
            read()
        except (Expected, ValueError) as error:
            assert isinstance(error, Expected) or name == plan.FILE, f"{type(error).__name__}: {error}"
            assert 0 < len(str(error)) < 2000 + 2 * len(str(folder)) and not isinstance(error, UnicodeError), error
    taken = "".join(f"{line}\n" for line in exchange.export_lines(store))
    (folder / "again").write_text(taken, encoding="utf-8")
    assert exchange.import_lines(store, folder / "again").new == 0


@pytest.fixture(scope="module")
def list_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("lists")


def test_each_value_of_a_line_may_be_odd(list_folder, everything):
    for name, content in itertools.islice(with_one_odd(), 0, None, 1 if everything else 7):
        look_at_lines(list_folder, name, content)


@FUZZ
@given(seed=SEEDS)
def test_spoilt_lines_are_read_or_named(list_folder, seed):
    look_at_lines(list_folder, *spoilt_lines(seed))


# --- canvases -------------------------------------------------------------------------------------------------------------


def canvas(seed):
    """A canvas of ComfyUI's page: subgraphs shared, twice in each other, in a ring, inside themselves, deep and wide."""
    random = Random(seed)
    names = [f"{number:08x}-aaaa" for number in range(random.choice([0, 1, 2, 14, 40]))]

    def node(number):
        kind = random.choice([*names, *names, "OTCA_TrainingRun", "KSampler", *random.choices(VALUES, k=2)])
        models = [{"name": "m", "url": "https://x/m", "directory": "loras"}]
        made = {"id": number, "type": kind, "inputs": [{"name": "a", "link": number}], "outputs": [], "mode": 4}
        return made | {"properties": {"models": models}, "widgets_values": [1, deep(3)]}

    def graph(id):
        count = random.choice([1, 2, 2, 3, 100])
        links = [[n, n, 0, random.randrange(count), 0, "X"] for n in range(count)]
        return {"id": id, "nodes": [node(number) for number in range(count)], "links": links, "name": "x"}

    made = graph("main") | {"definitions": {"subgraphs": [graph(name) for name in [*names, *names[:1]]]}}
    for _ in range(random.choice([0, 1, 3])):
        change(made, random, [*VALUES, *IDS])
    return made


def ring(random):
    """A graph in API form whose links go round, and into nodes that several share."""
    graph = json.loads(json.dumps(random.choice(EXAMPLES)))
    links = [entry["inputs"] for entry in graph.values()]
    for _ in range(random.choice([1, 2, 20])):
        random.choice(links)[random.choice(["model", "x", "samples", "positive"])] = [random.choice([*graph]), 0]
    return graph


def look_at_canvas(drawn, graph):
    assert len(foreign.addresses(drawn)) <= foreign.MOST_ADDRESSES
    foreign.headless(graph)
    prompt = {**graph, "9:3": {"inputs": {}}}
    _, refusal, packages = middlewares.looked_at(text_of({"prompt": prompt, "extra_data": {"workflow": drawn}}))
    json.dumps([refusal, packages])
    middlewares.with_classes(prompt, drawn if isinstance(drawn, dict) else {})
    picture = strange_pictures.png({"prompt": json.dumps(graph), "workflow": text_of(drawn)})
    json.dumps(vars(facts.read(io.BytesIO(picture)))).encode()


@FUZZ
@given(SEEDS)
def test_a_canvas_of_subgraphs_within_each_other_is_read(seed):
    look_at_canvas(canvas(seed), ring(Random(seed)))
