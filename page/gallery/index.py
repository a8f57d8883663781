"""The index of all pictures: which there are, what their files say, and small pictures of them; kept on disk, since reading ten
thousand files takes a minute. It can be made again from the pictures, so a damaged one is thrown away.

Three kinds of threads: one a folder that looks for files, since a network drive may hang; one that reads what is new, the newest
first; and the page's requests, which do not wait for them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ...host import paths
from ...host.access import opening
from ...host.access.folders import OURS
from ...host.database import Connection, DatabaseError, OperationalError, open_database
from ...host.files import Damaged, read_bytes, trim, write_bytes
from ...trainer.opinions.identity import pixels_id
from ...trainer.pictures.media import upright
from . import facts

logger = logging.getLogger(__name__)

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
MOST_PICTURES = 100_000  # names in one folder and all below it
MOST_BYTES = 64 * 1024**2  # of one picture's file
SMALL = 256  # pixels of a small picture's longer side
MOST_SMALL_BYTES = 1024**3  # of all small pictures together
AGAIN = 2.0  # seconds after which a folder is looked at again, if somebody asks
LATER = 60.0  # seconds after which is tried again what could not be done
BATCH = 64  # pictures that are asked of the index at a time
LAST_TIME = 2**63 - 1  # in nanoseconds since 1970 that the index can keep: in the year 2262
EACH = "select value from json_each(?)"  # of a list in JSON: SQLite takes only so many values by themselves
DONE, FAILED = 1, 2  # what stands in `read` and `small` of a picture: whether that was done, or is tried again later
VERSION = 2  # of the tables and of what is read of a file; an index of another one is made anew
TABLES = """
create table if not exists pictures (
    id text primary key, folder text, name text, changed integer, size integer,
    read integer default 0, hash text default '', small integer default 0,
    width integer default 0, height integer default 0, animated integer default 0,
    prompt text default '', negative text default '', seed text default '', model text default '', loras text default '[]',
    graph text default '', about text default '', note text default ''
) without rowid;
create index if not exists by_time on pictures (changed desc, id);
create index if not exists by_hash on pictures (hash);
"""


@dataclass(frozen=True)
class File:
    """A picture's file, as a folder lists it. `changed` in nanoseconds since 1970."""

    id: str
    folder: str
    name: str
    changed: int
    size: int

    @property
    def path(self) -> Path:
        return Path(self.folder, self.name)


def id_of(folder: str, name: str) -> str:
    """By what the page names a picture: it says nothing of where that is."""
    return hashlib.sha256(f"{folder}\0{name}".encode(errors="surrogateescape")).hexdigest()[:16]


def files_in(folder: str) -> Iterator[File]:
    """The pictures of a folder and of those below it. Hidden ones are left out, links, and what the pack has put there."""
    left = MOST_PICTURES
    for path, below, _ in os.walk(folder):
        below[:] = sorted(name for name in below if not name.startswith((".", OURS)))
        with contextlib.suppress(OSError), os.scandir(path) as entries:
            for entry in entries:
                left -= 1
                if left < 0:
                    return
                is_picture = entry.name.lower().endswith(SUFFIXES) and entry.is_file(follow_symlinks=False)
                if entry.name[0] == "." or not is_picture:
                    continue
                with contextlib.suppress(OSError):  # it has just been removed
                    state = entry.stat(follow_symlinks=False)
                    name = os.path.relpath(entry.path, folder)
                    changed = max(-LAST_TIME, min(state.st_mtime_ns, LAST_TIME))
                    if name.isprintable() and len(name) < opening.LONGEST_NAME:
                        yield File(id_of(folder, name), folder, name, changed, state.st_size)


class Index:
    """The pictures of these folders.

    Attributes:
        version: counts the changes of what is listed or known.
        problem: why the index is not kept on disk, a sentence; "" if it is.
    """

    def __init__(self, home: Path, folders: Callable[[], Iterable[Path]]):
        self.home, self.folders = home, folders
        self.version, self.problem = 0, ""
        self._lock, self._wake = threading.RLock(), threading.Event()
        self._scans: dict[str, tuple[threading.Thread, float]] = {}  # of each folder, and when it began
        self._scanned: dict[str, float] = {}  # when that ended
        self._worker: threading.Thread | None = None
        self._failed: dict[str, str] = {}  # why, of each thing that could not be done in the background
        self._ended, self._trimmed, self._tried = False, False, -LATER
        self._base = self._opened()

    # --- the table --------------------------------------------------------------------------------------------------

    def _opened(self) -> Connection:
        file = self.home / "index.sqlite"
        for attempt in range(2):
            base = None
            try:
                self.home.mkdir(parents=True, exist_ok=True)
                base = open_database(file, 10, shared=True)
                if base.execute("pragma user_version").fetchone()[0] not in (0, VERSION):
                    raise DatabaseError("it is of another version")
                base.execute("pragma journal_mode = wal")
                base.execute("pragma synchronous = normal")
                base.executescript(f"pragma user_version = {VERSION}; {TABLES}")
                base.execute("select count(*), max(note) from pictures").fetchone()
                return base
            except (OSError, DatabaseError) as error:
                if base is not None:
                    base.close()
                if attempt or not _is_damage(error):
                    return self._in_memory(error)
                logger.warning("the gallery's index is made anew, for %s: %s", file, error)
                self._remove(file)
        raise AssertionError

    @staticmethod
    def _remove(file: Path) -> None:
        for ending in ("", "-wal", "-shm", "-journal"):
            with contextlib.suppress(OSError):
                os.unlink(f"{file}{ending}")

    def _in_memory(self, error: Exception) -> Connection:
        self.problem = (
            f"the gallery's index cannot be kept ({error}). Fix: make room in {self.home}, or make it writable"
        )
        logger.warning("%s", self.problem)
        base = open_database(":memory:", 10, shared=True)
        base.executescript(TABLES)
        return base

    def _execute(self, text: str, values: Sequence = ()) -> list[tuple]:
        """Rows of a statement. If the index is damaged or the disk is full, a new index gives them."""
        with self._lock:
            for _ in range(3):
                try:
                    return self._base.execute(text, values).fetchall()
                except DatabaseError as error:
                    if self._ended:  # by `close`, and the file is in order
                        raise
                    self._base.close()
                    damaged = _is_damage(error)
                    if damaged:
                        self._remove(self.home / "index.sqlite")
                    self._base = self._opened() if damaged else self._in_memory(error)
                    self._scanned.clear()
            raise AssertionError

    # --- who asks ---------------------------------------------------------------------------------------------------

    def look(self, patience: float = 0.0) -> None:
        """Has the folders looked at again, unless that was just done. Waits for it for at most `patience` seconds."""
        now = time.monotonic()
        with self._lock:
            for folder in map(str, self.folders()):
                thread, _ = self._scans.get(folder, (None, 0.0))
                rested = now - self._scanned.get(folder, -AGAIN) >= AGAIN
                if rested and (thread is None or not thread.is_alive()):
                    scan = partial(self._tried_on, f"the folder {Path(folder).name}", self._scan, folder)
                    thread = threading.Thread(target=scan, name="otca gallery looks", daemon=True)
                    self._scans[folder] = thread, now
                    thread.start()
            scans = [thread for thread, _ in self._scans.values()]
            if self._worker is None or not self._worker.is_alive():
                self._worker = threading.Thread(target=self._work, name="otca gallery reads", daemon=True)
                self._worker.start()
        for thread in scans:
            thread.join(max(0.0, patience - (time.monotonic() - now)))
        self._wake.set()

    def progress(self) -> dict[str, Any]:
        """{pictures, read, small: how many; slow: names of folders that take long to answer; problem}."""
        query = "select count(*), total(read != 0), total(small != 0), total(max(read, small) = ?) from pictures"
        (count, read, small, failed), *_ = self._execute(query, [FAILED])
        problems = [self.problem, *self._failed.values()]
        problems += [
            f"{failed:.0f} pictures could not be read, and are tried again later: {name}, {note}"
            for name, note in self.rows("name, note", "max(read, small) = ?", [FAILED], 1)
        ]
        problem = "; ".join(filter(None, problems))
        late = time.monotonic() - 3
        slow = [Path(name).name for name, (scan, since) in self._scans.items() if scan.is_alive() and since < late]
        return {"pictures": count, "read": int(read), "small": int(small), "slow": slow, "problem": problem}

    def rows(self, columns: str = "*", where: str = "1", values: Sequence = (), limit: int = -1) -> list[tuple]:
        """Rows of pictures, the newest first; -1: all of them."""
        return self._execute(
            f"select {columns} from pictures where {where} order by changed desc, id limit {limit}", values
        )

    def models(self, most: int) -> list[tuple[str, int]]:
        """Models' files and how many pictures are of each, the most frequent first."""
        return self._execute(
            "select model, count(*) from pictures where model != '' group by model order by 2 desc, 1 limit ?", [most]
        )

    def files(self, ids: Iterable[str]) -> dict[str, File]:
        """The files of pictures that are known."""
        return {row[0]: File(*row) for row in self._rows_of(ids, "id, folder, name, changed, size")}

    def _rows_of(self, ids: Iterable[str], columns: str) -> list[tuple]:
        return self._execute(f"select {columns} from pictures where id in ({EACH})", [json.dumps(list(ids))])

    def details(self, ids: list[str]) -> dict[str, dict[str, Any]]:
        """The facts of pictures; a picture that was not read yet is read now."""
        if unread := {row[0] for row in self._rows_of(ids, "id, read") if not row[1]}:
            self._read_facts(self.files(unread).values())
        columns = "folder name changed size hash width height animated".split()
        columns += "prompt negative seed model loras graph about note".split()
        facts = {}
        for id, *row in self._rows_of(ids, ", ".join(["id", *columns])):
            facts[id] = dict(zip(columns, row, strict=True))
            facts[id]["loras"] = json.loads(facts[id]["loras"])
        return facts

    def hash_of(self, id: str) -> str:
        """The digits by which opinions know a picture, of its pixels; "" if it cannot be shown."""
        rows = self._rows_of([id], "hash")
        if rows and not rows[0][0]:
            for file in self.files([id]).values():
                self._make_small(file)
            rows = self._rows_of([id], "hash")
        return rows[0][0] if rows else ""

    def small(self, id: str) -> bytes | None:
        """A small picture as WebP; None if the file cannot be shown: `note` then says why. Raises KeyError."""
        file = self.files([id])[id]
        with contextlib.suppress(Damaged):
            if kept := read_bytes(self._place(file)):
                return kept
        return self._make_small(file)

    def looked(self) -> bool:
        """Whether every folder was looked through once."""
        return all(str(folder) in self._scanned for folder in self.folders())

    def close(self) -> None:
        self._ended = True
        self._wake.set()
        if self._worker is not None:
            self._worker.join(opening.SECONDS)
        with self._lock:
            self._base.close()

    # --- in the background ------------------------------------------------------------------------------------------

    def _scan(self, folder: str) -> None:
        there = {file.id: file for file in files_in(folder)}
        before = {
            row[0]: row[1:]
            for row in self._execute("select id, changed, size from pictures where folder = ?", [folder])
        }
        if self._ended:
            return
        new = [vars(file) for file in there.values() if before.get(file.id) != (file.changed, file.size)]
        gone = [name for name in before if name not in there]
        columns = "id, folder, name, changed, size"
        values = ", ".join(f"json_extract(value, '$.{name}')" for name in columns.split(", "))
        self._execute(
            f"insert or replace into pictures ({columns}) select {values} from json_each(?)", [json.dumps(new)]
        )
        self._execute(f"delete from pictures where id in ({EACH})", [json.dumps(gone)])
        self._scanned[folder] = time.monotonic()
        if new or gone:
            self.version += 1
            self._wake.set()

    def _tried_on(self, name: str, work: Callable[..., object], *arguments: Any) -> None:
        """Does what a thread is for. Whatever that raises is said on the page, and ends neither the thread nor the next look."""
        try:
            work(*arguments)
            self._failed.pop(name, None)
        except Exception as error:
            if self._ended:
                return
            if name not in self._failed:
                logger.exception("the gallery could not read %s, and tries again", name)
            self._failed[name] = f"{name} could not be read, and is tried again: {_why(error)}"

    def _work(self) -> None:
        while not self._ended:
            self._wake.wait()
            self._wake.clear()
            self._tried_on("the list of pictures", self._read_new)

    def _read_new(self) -> None:
        if time.monotonic() - self._tried >= LATER:
            self._execute("update pictures set read = 0, small = 0, note = '' where max(read, small) = ?", [FAILED])
            self._tried = time.monotonic()
        query = "select id, folder, name, changed, size from pictures where not {} order by changed desc limit {}"
        while not self._ended and (rows := self._execute(query.format("read", BATCH))):
            self._read_facts(File(*row) for row in rows)
        while not self._ended and (rows := self._execute(query.format("small", 8))):
            for row in rows:
                if not self._ended:
                    self._make_small(File(*row))
        if self.looked() and not self._trimmed:
            self._trimmed = True
            small = itertools.takewhile(lambda _: not self._ended, (self.home / "small").glob("*/*"))
            trim(small, MOST_SMALL_BYTES)

    def _write(self, file: File, **known: Any) -> None:
        """Writes down what is known of a picture, unless its file is another one by now."""
        setters = ", ".join(f"{name} = ?" for name in known)
        values = [*known.values(), file.id, file.changed, file.size]
        self._execute(f"update pictures set {setters} where id = ? and changed = ? and size = ?", values)

    def _read_facts(self, files: Iterable[File]) -> None:
        for file in files:
            try:
                made = vars(facts_of(file))
                self._write(file, **made | {"read": DONE, "loras": json.dumps(made["loras"])})
            except Exception as error:
                self._write(file, read=_stands(file, error), note=_why(error))
        self.version += 1

    def _make_small(self, file: File) -> bytes | None:
        """Writes down the small picture and the hash of its pixels, or why there cannot be any."""
        made = None
        try:
            picture = upright(content(file))
            digest = pixels_id(np.asarray(picture))
            picture.thumbnail((SMALL, SMALL), Image.Resampling.BOX, reducing_gap=2.0)
            written = io.BytesIO()
            picture.save(written, "WEBP", quality=75, method=1)
            made = written.getvalue()
            with contextlib.suppress(OSError):  # it is made again when it is asked for
                self._place(file).parent.mkdir(parents=True, exist_ok=True)
                write_bytes(self._place(file), made)
            self._write(file, small=DONE, hash=digest)
        except Exception as error:
            why = f"cannot be shown: {_why(error)}"
            notes = [note.removesuffix(why).rstrip("; ") for (note,) in self._rows_of([file.id], "note")]
            self._write(file, small=_stands(file, error), note="; ".join(filter(None, [*notes, why])))
            self.version += 1
        return made

    def _place(self, file: File) -> Path:
        name = hashlib.sha256(f"{file.id} {file.changed} {file.size}".encode()).hexdigest()[:32]
        return self.home / "small" / name[:2] / f"{name}.webp"


def _is_damage(error: Exception) -> bool:
    """Whether a database is not one any more, and not only locked, full or unwritable."""
    return isinstance(error, DatabaseError) and not isinstance(error, OperationalError)


def _opened(file: File) -> int:
    return opening.opened(file.path, [file.folder], MOST_BYTES)


def content(file: File) -> bytes:
    """A picture's file as it is now.

    Raises:
        OSError, opening.Refused: it is gone, not a plain file in its folder, or too large; or does not come in time.
    """
    return opening.in_time(lambda: opening.read(_opened(file), MOST_BYTES))


def facts_of(file: File) -> facts.Facts:
    def read() -> facts.Facts:
        with os.fdopen(_opened(file), "rb") as stream:
            return facts.read(stream)

    return opening.in_time(read)


def _stands(file: File, error: Exception) -> int:
    """Returns DONE where an error is about the picture itself, and FAILED where it may go better later."""
    if isinstance(error, ValueError | opening.Refused):
        return DONE
    logger.warning("%s could not be read: %s: %s", file.path, type(error).__name__, error)
    return FAILED


def _why(error: Exception) -> str:
    """Without the path, which the page need not know."""
    return facts.shown(getattr(error, "strerror", None) or str(error), facts.LONGEST_NAME)


def folders() -> list[Path]:
    """ComfyUI's output folder and its input folders, and not what the pack brings."""
    return [folder for folder in paths.picture_folders() if paths.ASSETS not in (folder, *folder.parents)]
