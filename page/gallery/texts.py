"""The texts that a picture's file carries, EXIF among them, read by hand: a header at a time, so that of ten thousand files only
a few kB each are read, and nothing that a stranger wrote into one is unpacked beyond a size.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import BinaryIO

from PIL import Image

MOST_TEXT = 4 * 1024**2  # bytes of one text; a large graph with its canvas is a few hundred kB
MOST_PARTS = 4096  # chunks or segments of one file that are looked at
KEYS = ("prompt", "workflow", "parameters")  # ComfyUI's two, and that of other programs
PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8"
_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})  # segments of a JPEG that say its size
_IMAGE_DESCRIPTION, _MAKE, _MODEL, _EXIF, _COMMENT = 0x010E, 0x010F, 0x0110, 0x8769, 0x9286


@dataclass
class Carried:
    """The content of a file's header: its size in pixels, its texts by their names, and what was left out, a sentence each."""

    width: int = 0
    height: int = 0
    animated: bool = False
    texts: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def add(self, key: str, text: str) -> None:
        self.texts.setdefault(key, text)


def carried(file: BinaryIO) -> Carried:
    """Reads the texts of a PNG, JPEG or WebP file.

    Raises:
        ValueError: it is another kind of file, or ends too early.
    """
    start = file.read(12)
    content = Carried()
    try:
        if start[:8] == PNG:
            file.seek(8)
            _png(file, content)
        elif start[:2] == JPEG:
            file.seek(2)
            _jpeg(file, content)
        elif start[:4] == b"RIFF" and start[8:] == b"WEBP":
            _webp(file, content)
        else:
            raise ValueError("is empty" if not start else "is not a PNG, JPEG or WebP picture")
    except struct.error as error:
        raise ValueError("is damaged: it ends too early") from error
    if not (content.width and content.height):
        raise ValueError("is damaged: it does not say how large it is")
    return content


def _png(file: BinaryIO, found: Carried) -> None:
    readers: dict[bytes, Callable[[bytes, Carried], None]] = {
        b"tEXt": _plain,
        b"zTXt": _packed,
        b"iTXt": _international,
    }
    for _ in range(MOST_PARTS):
        head = file.read(8)
        if len(head) < 8:  # cut short: what came before it stands
            return found.left_out.append("the file ends too early")
        length, kind = struct.unpack(">I4s", head)
        if kind == b"IEND":
            return None
        if kind == b"IHDR":
            found.width, found.height = struct.unpack(">II", file.read(8))
            length -= 8
        elif kind == b"acTL":
            found.animated = True
        elif kind in readers:
            if length <= MOST_TEXT:
                readers[kind](file.read(length), found)
                length = 0
            else:
                found.left_out.append(_too_long(length))
        file.seek(length + 4, 1)
    return found.left_out.append(f"it has more than {MOST_PARTS} parts")


def _too_long(length: int) -> str:
    return f"a text of {length / 1024**2:.0f} MB is not read: {MOST_TEXT // 1024**2} MB are the most"


def _plain(chunk: bytes, found: Carried) -> None:
    key, _, text = chunk.partition(b"\0")
    if _name(key) in KEYS:
        found.add(_name(key), text.decode("latin-1"))


def _packed(chunk: bytes, found: Carried) -> None:
    key, _, rest = chunk.partition(b"\0")
    if _name(key) in KEYS and (text := _unpacked(rest[1:], found)) is not None:
        found.add(_name(key), text.decode("latin-1"))


def _international(chunk: bytes, found: Carried) -> None:
    key, _, rest = chunk.partition(b"\0")
    parts = rest[2:].split(b"\0", 2)
    if _name(key) not in KEYS or len(parts) < 3:
        return
    text = _unpacked(parts[2], found) if rest[:1] == b"\1" else parts[2]
    if text is not None:
        found.add(_name(key), text.decode("utf-8", "replace"))


def _name(key: bytes) -> str:
    return key.decode("latin-1").lower()


def _unpacked(packed: bytes, found: Carried) -> bytes | None:
    try:
        text = zlib.decompressobj().decompress(packed, MOST_TEXT + 1)
    except zlib.error as error:
        found.left_out.append(f"a text cannot be unpacked ({error})")
        return None
    if len(text) > MOST_TEXT:
        found.left_out.append(f"a packed text of more than {MOST_TEXT // 1024**2} MB is not read")
        return None
    return text


def _jpeg(file: BinaryIO, found: Carried) -> None:
    for _ in range(MOST_PARTS):
        head = file.read(2)
        if head == b"\xff\xff":  # a fill byte before a marker
            file.seek(-1, 1)
            continue
        marker = head[1] if len(head) == 2 and head[0] == 0xFF else 0xDA
        if marker in (0xDA, 0xD9):  # pixels begin here
            return
        (length,) = struct.unpack(">H", file.read(2))
        segment = file.read(max(0, length - 2))
        if marker in _FRAMES:
            found.height, found.width = struct.unpack(">HH", segment[1:5])
        elif marker == 0xE1 and segment[:6] == b"Exif\0\0":
            _exif(segment[6:], found)


def _webp(file: BinaryIO, found: Carried) -> None:
    for _ in range(MOST_PARTS):
        head = file.read(8)
        if len(head) < 8:
            return
        kind, length = struct.unpack("<4sI", head)
        after = file.tell() + length + length % 2
        if kind == b"VP8X":
            flags, *size = struct.unpack("<B3x3s3s", file.read(10))
            found.animated = bool(flags & 2)
            found.width, found.height = (int.from_bytes(side, "little") + 1 for side in size)
        elif kind == b"VP8 " and not found.width:
            width, height = struct.unpack("<6x2H", file.read(10))
            found.width, found.height = width & 0x3FFF, height & 0x3FFF
        elif kind == b"VP8L" and not found.width:
            (bits,) = struct.unpack("<xI", file.read(5))
            found.width, found.height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        elif kind == b"EXIF":
            if length <= MOST_TEXT:
                _exif(file.read(length).removeprefix(b"Exif\0\0"), found)
            else:
                found.left_out.append(_too_long(length))
        file.seek(after)


def _exif(content: bytes, found: Carried) -> None:
    """ComfyUI writes `prompt:{…}` and `workflow:{…}` as the camera's model and make, others as the picture's description; more
    programs write their parameters as the user's comment."""
    exif = Image.Exif()
    try:
        exif.load(content)
        tags = {**exif, **exif.get_ifd(_EXIF)}
    except Exception:  # of its decoder, the documented and the other
        return found.left_out.append("its EXIF is damaged")
    for tag in (_MODEL, _MAKE, _IMAGE_DESCRIPTION, _COMMENT):
        raw = tags.get(tag)
        if isinstance(raw, str):
            raw = raw.encode("latin-1", "replace")  # as Pillow has read it
        if not isinstance(raw, bytes):
            continue
        text = (_comment(raw) if tag == _COMMENT else raw.decode("utf-8", "replace")).rstrip("\0")
        key, colon, rest = text.partition(":")
        if colon and key.lower() in KEYS and rest.lstrip().startswith("{"):
            found.add(key.lower(), rest)
        elif text.lstrip().startswith("{"):
            found.add("prompt", text)
        elif "Steps: " in text:
            found.add("parameters", text)


def _comment(content: bytes) -> str:
    code, text = content[:8], content[8:]
    if code.startswith(b"UNICODE"):
        return text.decode("utf-16-be" if text[:1] == b"\0" else "utf-16-le", "replace")
    return (text if code.startswith(b"ASCII") or code == bytes(8) else content).decode("utf-8", "replace")
