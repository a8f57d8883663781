"""Pictures from files that anybody may have written, fitted to a size."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageSequence

from comfyui_otca.trainer.pictures import media


def content(pixels, kind="PNG", **options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def stripes(width, height):
    """A vertical stripe of its own colour every 10 pixels."""
    columns = np.arange(width) // 10
    return np.stack([columns * 20, columns * 0, 255 - columns * 20], -1).astype(np.uint8)[None].repeat(height, 0)


def test_a_picture_of_that_size_stays_as_it_is():
    pixels = np.random.default_rng(0).integers(0, 256, (24, 40, 3), np.uint8)
    for kind, options in (("PNG", {}), ("BMP", {}), ("WEBP", {"lossless": True})):
        assert np.array_equal(media.fitted(content(pixels, kind, **options), 40, 24), pixels)
    assert (media.fitted(content(np.full((8, 8), 77, np.uint8)), 8, 8) == 77).all(), "grey becomes RGB"
    # 80 x 40 to 40 x 40: the middle half, columns 20 to 59.
    assert np.array_equal(media.fitted(content(stripes(80, 40)), 40, 40), stripes(80, 40)[:, 20:60])
    assert media.fitted(content(stripes(20, 10)), 40, 40).shape == (40, 40, 3), "a small one is enlarged"


def test_a_larger_picture_is_scaled_until_it_just_covers():
    """160 x 60 to 40 x 30: scaled by a half to 80 x 30, of which the columns 20 to 59 stay, so 40 to 119 of the original."""
    pixels = stripes(160, 60)
    expected = np.asarray(Image.fromarray(pixels[:, 40:120]).resize((40, 30), Image.Resampling.LANCZOS))
    found = media.fitted(content(pixels), 40, 30)
    # at its edges the filter looks at what lies beside them, too
    assert found.shape == expected.shape and np.abs(found.astype(int) - expected).max() <= 1


COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "skin": (200, 120, 40)}


@pytest.mark.parametrize("size", [(832, 480), (1280, 720)])
def test_a_video_says_its_colours_and_rate(tmp_path, size):
    """Chromium takes H.264 that says no matrix for BT.601 up to 719 lines, and for BT.709 above."""
    import av

    for name, colour in COLOURS.items():
        file = tmp_path / f"{name}.mp4"
        file.write_bytes(media.mp4(np.full((3, size[1], size[0], 3), colour, np.uint8), 24.0))
        with av.open(str(file)) as container:
            context = container.streams.video[0].codec_context
            assert (context.colorspace, context.color_primaries, context.color_trc, context.color_range) == (1, 1, 1, 1)
            luma = next(container.decode(video=0)).to_ndarray()[0, 0]  # its first plane
        weights = np.array([0.2126, 0.7152, 0.0722])  # of ITU-R BT.709
        assert luma == pytest.approx(16 + 219 * weights @ colour / 255, abs=1.5)
        assert np.abs(media.read(file)[1].astype(int) - colour).max() <= 3
        assert media.frame_rate(file) == 24.0


@pytest.mark.parametrize(("orientation", "red_is"), [(1, "left"), (3, "right"), (6, "top"), (8, "bottom")])
def test_a_photo_is_upright_as_it_is_shown(orientation, red_is):
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[:, :8, 0] = 255
    exif = Image.Exif()
    exif[0x112] = orientation
    found = media.fitted(content(pixels, exif=exif), 16, 16)
    half = {"left": found[:, :8], "right": found[:, 8:], "top": found[:8], "bottom": found[8:]}[red_is]
    assert (half == (255, 0, 0)).all() and found[..., 0].mean() == pytest.approx(127.5)


def test_exif_that_makes_no_sense_is_passed_over():
    exif = Image.Exif()
    exif[0x112] = 6
    whole = content(stripes(16, 16), "JPEG", exif=exif)
    tag = whole.index(b"\x01\x12\x00\x03") + 3  # its type: whole numbers of 16 bits …
    for wrong in (2, 5, 7, 12, 255):  # … and now text, fractions, bytes, floats, nothing known
        damaged = whole[:tag] + bytes([wrong]) + whole[tag + 1 :]
        assert media.fitted(damaged, 16, 16).shape == (16, 16, 3)


@pytest.mark.parametrize("kind", media.ANIMATIONS)
def test_frames_move_in_a_file_to_share(kind):
    pytest.importorskip("imageio")
    frames = np.repeat(np.uint8([0, 99, 200]), 6 * 8 * 3).reshape(3, 6, 8, 3)
    with Image.open(io.BytesIO(media.animation(frames, 16.0, kind))) as file:
        shown = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(file)]
    assert np.array_equal(shown, frames) and file.info["loop"] == 0


@pytest.mark.parametrize("kind", media.ANIMATIONS)
def test_frames_move_as_fast_as_the_video(kind):
    """GIF knows hundredths of a second: 24 frames of 24 a second would take 0.96 s, were each cut off to four of them."""
    pytest.importorskip("imageio")
    frames = np.random.default_rng(0).integers(0, 256, (24, 4, 4, 3), dtype=np.uint8)
    with Image.open(io.BytesIO(media.animation(frames, 24.0, kind))) as file:
        taken = [frame.load() and frame.info["duration"] for frame in ImageSequence.Iterator(file)]
    assert len(taken) == 24 and sum(taken) == 1000


# Each has a red left half, and of what is clear the colours below it are random.
HALF = np.zeros((8, 16), bool)
HALF[:, 8:] = True
CLEAR = np.where(HALF[..., None], np.random.default_rng(0).integers(0, 256, (8, 16, 4)), (255, 0, 0, 255)).astype(
    np.uint8
)
CLEAR[HALF, 3] = 0


def palette(clear=None) -> bytes:
    picture = Image.fromarray(HALF.astype(np.uint8), "P")
    picture.putpalette([255, 0, 0, 255, 255, 255] if clear is None else [255, 0, 0, 9, 99, 199])
    file = io.BytesIO()
    picture.save(file, "PNG", **({} if clear is None else {"transparency": clear}))
    return file.getvalue()


def frames(kind) -> bytes:
    """The first frame is red and clear, the second one blue."""
    file = io.BytesIO()
    Image.fromarray(CLEAR).save(
        file, kind, save_all=True, append_images=[Image.new("RGBA", (16, 8), "blue")], lossless=True
    )
    return file.getvalue()


ON_WHITE = {
    "RGBA": content(CLEAR),
    "WebP with alpha": content(CLEAR, "WEBP", lossless=True, exact=True),
    "palette": palette(),
    "palette, one clear colour": palette(1),
    "palette, alpha of each colour": palette(b"\xff\x00"),
    "RGB, one clear colour": content(
        np.where(HALF[..., None], (1, 2, 3), (255, 0, 0)).astype(np.uint8), transparency=(1, 2, 3)
    ),
    "animated PNG": frames("PNG"),
    "animated WebP": frames("WEBP"),
}


@pytest.mark.parametrize("kind", ON_WHITE)
def test_what_is_clear_lies_on_white(kind):
    expected = np.where(HALF[..., None], 255, (255, 0, 0))
    assert np.array_equal(np.asarray(media.upright(ON_WHITE[kind])), expected)


@pytest.mark.parametrize(
    ("values", "shown"),
    [(np.uint16([[0, 25700, 65535]]), [0, 100, 255]), (np.float32([[-1, 0.4, np.nan]]), [0, 102, 0])],
)
def test_many_bits_keep_their_brightness(tmp_path, values, shown):
    for name in ("a.tif", "a.png")[: values.itemsize == 4 or 2]:
        Image.fromarray(values).save(tmp_path / name)
        assert media.read(tmp_path / name).tolist() == [[[level] * 3 for level in shown]]


# A pixel of 0.5 in red and one of 2: mantissas of 8 bits and one exponent, 128 more than it is.
HDR = b"#?RADIANCE\nFORMAT=32-bit_rle_rgbe\n\n-Y 1 +X 2\n" + bytes([128, 0, 0, 128, 128, 128, 128, 130])


def test_light_is_shown_as_srgb_with_imageio_and_named_without(tmp_path, monkeypatch):
    (tmp_path / "a.hdr").write_bytes(HDR)
    with monkeypatch.context() as patched:
        patched.setattr("comfyui_otca.host.extras.installed", lambda name: None)
        with pytest.raises(ValueError, match=r"a\.hdr .*is of the kind HDR, which needs imageio.*Fix: .*pip install"):
            media.read(tmp_path / "a.hdr")
    pytest.importorskip("imageio")
    assert media.read(tmp_path / "a.hdr").tolist() == [[[188, 0, 0], [255, 255, 255]]]
    (tmp_path / "a.hdr").write_bytes(HDR[:-30])
    with pytest.raises(ValueError, match=r"a\.hdr cannot be read: it is damaged"):
        media.read(tmp_path / "a.hdr")
    monkeypatch.setattr(media, "MOST_PIXELS", 1)
    (tmp_path / "a.hdr").write_bytes(HDR)
    with pytest.raises(media.TooLarge, match="has 2 x 1 pixels"):
        media.upright(HDR)


def test_half_clear_is_half_white_in_colour_and_grey():
    """Straight alpha of 51 / 255 = 0.2: 0.2 · 100 + 0.8 · 255 = 224."""
    assert (
        np.asarray(media.upright(content(np.full((4, 4, 4), (100, 100, 100, 51), np.uint8))))[0, 0].tolist()
        == [224] * 3
    )
    grey = np.stack([np.full((4, 4), 100), np.full((4, 4), 51)], -1).astype(np.uint8)
    assert np.asarray(media.upright(content(grey)))[0, 0].tolist() == [224] * 3
    deep = io.BytesIO()
    Image.fromarray(np.array([[0, 257 * 100]], np.uint16)).save(deep, "PNG", transparency=0)
    assert np.asarray(media.upright(deep.getvalue()))[0, :, 0].tolist() == [255, 100]


def test_ink_on_paper_is_red_green_and_blue():
    """CMYK: no ink is white, all cyan has no red."""
    inks = Image.fromarray(np.array([[[0, 0, 0, 0], [255, 0, 0, 0]]], np.uint8).repeat(16, 0).repeat(16, 1), "CMYK")
    file = io.BytesIO()
    inks.save(file, "JPEG", quality=100)
    seen = np.asarray(media.upright(file.getvalue())).astype(int)
    assert np.abs(seen[8, 4] - 255).max() <= 2 and np.abs(seen[8, 28] - (0, 255, 255)).max() <= 2


def test_the_first_of_several_is_taken_and_that_is_said(tmp_path, caplog):
    (tmp_path / "moves.webp").write_bytes(frames("WEBP"))
    media.read(tmp_path / "moves.webp")
    assert f"{tmp_path / 'moves.webp'} has 2 pictures, of which the first is taken" in caplog.text


def test_whatever_a_decoder_raises_is_damage(monkeypatch):
    """Pillow raises a TypeError of an interlaced PNG that is cut short, which its documentation does not name."""
    for error in (TypeError("unsupported"), KeyError("x"), RuntimeError("y"), AssertionError()):
        monkeypatch.setattr(Image.Image, "getexif", lambda self: {})
        monkeypatch.setattr(Image.Image, "convert", lambda *_, error=error, **__: (_ for _ in ()).throw(error))
        with pytest.raises(ValueError, match="^is damaged"):
            media.upright(content(stripes(8, 8)))


def test_a_video_is_turned_as_its_file_says(tmp_path):
    """A display matrix as telephones write it; the stored picture is wider than high."""
    import av

    stored = np.zeros((2, 32, 64, 3), np.uint8)
    stored[:, :, :32, 0] = 255  # red on the left
    for degrees, shape, red in ((90, (2, 64, 32, 3), np.s_[:, 32:]), (180, (2, 32, 64, 3), np.s_[:, :, 32:])):
        file = tmp_path / f"{degrees}.mp4"
        with av.open(io.BytesIO(media.mp4(stored, 8.0))) as source, av.open(str(file), "w") as target:
            stream = target.add_stream_from_template(source.streams.video[0])
            stream.set_display_rotation(degrees)
            for packet in source.demux(video=0):
                if packet.dts is not None:
                    packet.stream = stream
                    target.mux(packet)
        turned = media.read(file)
        assert turned.shape == shape and turned[red][..., 0].mean() > 240


def header(width, height) -> bytes:
    """A PNG of that size without pixels."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(13, chunk), (0, b"IDAT")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", size) + part + struct.pack(">I", zlib.crc32(part)) for size, part in parts
    )


@pytest.mark.parametrize(
    ("file", "told"),
    [
        (b"", "is not one of PNG, JPEG"),
        (b"<svg/>", "is not one of"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", "is not one of"),
        (content(stripes(40, 40), "GIF"), "is not one of"),
        (content(stripes(40, 40))[:90], "is damaged"),
        (header(9000, 9000), "9000 x 9000 pixels"),
        (header(40000, 40000), "is damaged"),  # PIL's own limit
        (header(0, 0), "is not one of|is damaged"),
    ],
    ids=["empty", "svg", "eps", "gif", "cut short", "large", "bomb", "nothing"],
)
def test_what_is_no_picture(file, told):
    with pytest.raises(ValueError, match=told):
        media.fitted(file, 40, 40)


def test_a_decoder_that_works_on_is_ended(monkeypatch):
    """Seen before: a JPEG of 63 MB of fill bytes held the gallery's thread up."""
    monkeypatch.setattr(media, "MOST_SECONDS", 0.02)
    whole = content(stripes(40, 40), "JPEG")
    assert media.upright(whole).size == (40, 40)
    with pytest.raises(media.TooLarge, match="takes longer than 0.02 s to decode"):
        media.upright(whole[:2] + b"\xff" * 2_000_000 + whole[2:])


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP"])
def test_damaged_files_raise_nothing_else(kind):
    whole, random = content(stripes(40, 40), kind), np.random.default_rng(1)
    read = 0
    for _ in range(300):
        damaged = bytearray(whole)
        for place in random.integers(0, len(whole), 3):
            damaged[place] = random.integers(0, 256)
        try:
            read += media.fitted(bytes(damaged[: random.integers(8, len(whole) + 1)]), 16, 16).shape == (16, 16, 3)
        except ValueError:
            pass
    assert read < 300


PLAYLIST = """<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" mediaPresentationDuration="PT1S"><Period><AdaptationSet
mimeType="video/mp4"><Representation id="1" bandwidth="1" width="16" height="16"><BaseURL>{}</BaseURL></Representation>
</AdaptationSet></Period></MPD>"""


def test_what_a_stranger_sends_names_no_file_of_ours(tmp_path):
    ours = tmp_path / "ours.mp4"
    ours.write_bytes(media.mp4(np.full((4, 16, 16, 3), 90, np.uint8), 8.0))
    (frames,) = media.sent("mp4", [ours.read_bytes()])
    assert frames.shape == (4, 16, 16, 3) and abs(frames.astype(int) - 90).max() <= 2
    picture = io.BytesIO()
    Image.new("RGB", (8, 8)).save(picture, "PNG")
    songs = f"ffconcat version 1.0\nfile {ours}\n", f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{ours}\n"
    for text in (PLAYLIST.format(ours), *songs, f"....ftyp{PLAYLIST.format(ours)}"):
        with pytest.raises(ValueError, match="sample 0 cannot be read as mp4: it"):
            list(media.sent("mp4", [text.encode()]))
    for kind, content in (("mp4", picture.getvalue()), ("png", ours.read_bytes())):
        with pytest.raises(ValueError, match=f"it does not begin as a {kind} file does"):
            list(media.sent(kind, [content]))


def test_what_a_stranger_sends_is_measured_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr(media, "MOST_PIXELS", 40 * 40)
    monkeypatch.setattr(media, "MOST_TOGETHER", 5 * 32 * 32)
    clip = media.mp4(np.zeros((3, 32, 32, 3), np.uint8), 8.0)
    assert [clip.shape for clip in media.sent("mp4", [clip])] == [(3, 32, 32, 3)]
    with pytest.raises(ValueError, match="sample 1 .*all pictures and frames of one request may have 5,120 pixels"):
        list(media.sent("mp4", [clip, clip]))
    wide = io.BytesIO()
    Image.new("RGB", (48, 48)).save(wide, "PNG")
    with pytest.raises(ValueError, match="48 x 48 pixels, and a picture may have 1,600"):
        list(media.sent("png", [wide.getvalue()]))
    with pytest.raises(ValueError, match="48 x 48 pixels, and a frame may have 1,600"):
        list(media.sent("mp4", [media.mp4(np.zeros((1, 48, 48, 3), np.uint8), 8.0)]))


def test_a_file_of_the_users_own_has_no_bound_and_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(media, "MOST_TOGETHER", 2 * 16 * 16)
    file = tmp_path / "long.mp4"
    file.write_bytes(media.mp4(np.zeros((4, 16, 16, 3), np.uint8), 8.0))
    assert media.read(file).shape == (4, 16, 16, 3)
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"long\.mp4 cannot be read: it is damaged"):
        media.read(file)
