"""The one file of opinions: SQLite, each opinion a transaction of its own that is on disk before the answer. Imports no torch.

A rollback journal, not write-ahead logging: that needs memory which processes share, and network drives have none. Each call
opens the file, waits for another one that writes, and closes it again, so that two pages, two processes and a training can use it
together. What a kill leaves half written is rolled back by the next call. No row is ever deleted: taking back is a mark.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ...host.database import Connection, DatabaseError, OperationalError, open_database
from ...host.errors import Expected
from ...host.files import Damaged
from .kinds import PAIR, Opinion, Picture, opinion_of, picture_of

FILE = "opinions.sqlite"
SCHEMA = 1  # raised when the tables change; a newer one is refused
WAIT = 20.0  # seconds for who writes at the moment
_EACH = "SELECT value FROM json_each(?)"  # of a list in JSON: SQLite takes only so many values by themselves
_TABLES = (
    "CREATE TABLE pictures (id TEXT PRIMARY KEY, prompt TEXT NOT NULL, path TEXT NOT NULL, models TEXT NOT NULL, "
    "width INTEGER NOT NULL, height INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE opinions (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, time REAL NOT NULL, "
    "kind TEXT NOT NULL, about TEXT NOT NULL, picture TEXT NOT NULL, other TEXT NOT NULL, value TEXT NOT NULL, taken_back REAL)",
    "CREATE INDEX opinions_about ON opinions (kind, about)",
    "CREATE INDEX opinions_picture ON opinions (picture)",
    "CREATE INDEX opinions_other ON opinions (other)",
    f"PRAGMA user_version = {SCHEMA}",
)
_COLUMNS = "kind, picture, value, other, id, time"
# The last one about a thing that was not taken back; a value of null says nothing.
_STANDING = (
    f"SELECT {_COLUMNS} FROM opinions AS one WHERE taken_back IS NULL AND value != 'null' AND NOT EXISTS (SELECT 1 FROM opinions "
    "AS later WHERE later.kind = one.kind AND later.about = one.about AND later.number > one.number AND later.taken_back IS NULL)"
)


class Unwritable(Expected, OSError, status=507):
    """An opinion could not be kept, and nothing of it was."""


class Store:
    """The opinions in one file, which the first one makes.

    Raises, in each method:
        Damaged: the file is not one of opinions, or of a newer version.
        Unwritable: the disk is full, the folder may not be written, or another process wrote for WAIT seconds.
    """

    def __init__(self, file: Path):
        self.file = file

    # --- saying ---------------------------------------------------------------------------------------------------

    def give(self, rows: Iterable[Any], pictures: Iterable[Any] = ()) -> list[Opinion]:
        """Keeps opinions, all of them or none, and what is known of pictures; returns those that are new once the disk has them.

        Args:
            rows: opinions, or each as `opinion_of` reads it; one that is kept already, by its id, is left as it is.
            pictures: as `picture_of` reads them. What they leave empty stays as it was known.

        Raises:
            ValueError: one of them is wrong, says what; or a pair of pictures of different prompts.
        """
        opinions = [row if isinstance(row, Opinion) else opinion_of(row) for row in rows]
        records, new = [picture_of(row) for row in pictures], []
        with self._writing() as open_file:
            self._remember(open_file, records)
            for opinion in opinions:
                if opinion.kind == PAIR and opinion.value:
                    _check_prompts(self._pictures(open_file, opinion.pictures), opinion)
                value = json.dumps(opinion.value, allow_nan=False)
                cursor = open_file.execute(
                    "INSERT OR IGNORE INTO opinions (id, time, kind, about, picture, other, value) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (opinion.id, opinion.time, opinion.kind, opinion.about, opinion.picture, opinion.other, value),
                )
                new += [opinion] if cursor.rowcount else []
        return new

    def take_back(self, name: str | None = None) -> Opinion | None:
        """Undoes an opinion by its id; without one the last that stands. What it had replaced counts again.

        Returns:
            It; None if that id is not there, or was taken back before.
        """
        which = "id = ?" if name is not None else "number = (SELECT max(number) FROM opinions WHERE taken_back IS NULL)"
        names = () if name is None else (name,)
        with self._writing() as open_file:
            rows = open_file.execute(
                f"SELECT {_COLUMNS} FROM opinions WHERE taken_back IS NULL AND {which}", names
            ).fetchall()
            for row in rows:
                open_file.execute("UPDATE opinions SET taken_back = ? WHERE id = ?", (time.time(), row[4]))
        return _opinion(rows[0]) if rows else None

    # --- asking ---------------------------------------------------------------------------------------------------

    def of(self, pictures: Iterable[str]) -> dict[str, list[Opinion]]:
        """The standing opinions about each of these pictures, the earliest first; a pair is about both of its pictures."""
        lists: dict[str, list[Opinion]] = {name: [] for name in pictures}
        with self._reading() as open_file:
            query = f"{_STANDING} AND (one.picture IN ({_EACH}) OR one.other IN ({_EACH})) ORDER BY one.number"
            rows = open_file.execute(query, [json.dumps(list(lists))] * 2).fetchall() if open_file and lists else []
        for opinion in map(_opinion, rows):
            for name in lists.keys() & opinion.pictures:
                lists[name].append(opinion)
        return lists

    def standing(self, kind: str | None = None) -> list[Opinion]:
        """All opinions that stand, the earliest first; of one kind, if one is given."""
        which, values = (" AND one.kind = ?", (kind,)) if kind else ("", ())
        with self._reading() as open_file:
            rows = open_file.execute(f"{_STANDING}{which} ORDER BY one.number", values).fetchall() if open_file else []
        return list(map(_opinion, rows))

    def pictures(self, names: Iterable[str] | None = None) -> dict[str, Picture]:
        """The records of these pictures by their ids, without those that are not known; None: of all."""
        with self._reading() as open_file:
            if open_file is None:
                return {}
            return self._pictures(open_file, None if names is None else list(dict.fromkeys(names)))

    def count(self) -> int:
        """How many opinions were ever given, also those that count no more."""
        return self._state()[0]

    def state(self) -> str:
        """Another one with every opinion that is given or taken back."""
        return ":".join(map(str, self._state()))

    def _state(self) -> tuple[int, int]:
        with self._reading() as open_file:
            query = "SELECT count(*), count(taken_back) FROM opinions"
            return open_file.execute(query).fetchone() if open_file else (0, 0)

    # --- the file -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection]:
        """One transaction: all of it is on disk afterwards, or nothing."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(str(error)) from error
        with self._opened() as open_file:
            open_file.execute("BEGIN IMMEDIATE")
            try:
                self._check(open_file)
                yield open_file
                open_file.execute("COMMIT")
            except BaseException:
                if open_file.in_transaction:  # not after an error that rolled it back already
                    open_file.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Connection | None]:
        """None before the first opinion."""
        if not self.file.exists() or not self.file.stat().st_size:
            yield None
            return
        with self._opened() as open_file:
            open_file.execute("BEGIN")
            try:
                yield open_file if self._check(open_file, make=False) else None
            finally:
                if open_file.in_transaction:
                    open_file.execute("ROLLBACK")

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Connection]:
        try:
            with contextlib.closing(open_database(self.file, WAIT)) as open_file:
                # EXTRA: the folder is flushed too once the journal is gone, so that power may fail right after.
                open_file.execute("PRAGMA synchronous = EXTRA")
                yield open_file
        except OperationalError as error:
            raise self._unwritable(str(error)) from error
        except DatabaseError as error:
            raise Damaged(
                self.file, f"is not a file of opinions ({error})", "move it away, or put the file back"
            ) from error

    def _check(self, open_file: Connection, make: bool = True) -> bool:
        """Whether there are tables; makes them in a new file."""
        (version,) = open_file.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA:
            raise Damaged(self.file, f"is of version {version}, and {SCHEMA} is read here", "update ComfyUI-OTCA")
        if not version and make:
            if open_file.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
                raise Damaged(self.file, "is a database of another program", "move it away")
            for statement in _TABLES:
                open_file.execute(statement)
        return bool(version) or make

    def _unwritable(self, wrong: str) -> Unwritable:
        return Unwritable(
            f"opinions cannot be kept or read now, and all before are safe: {self.file} cannot be used ({wrong}). Fix: make "
            "room on that disk, or make the folder writable, and click again"
        )

    def _remember(self, open_file: Connection, pictures: Sequence[Picture]) -> None:
        before = self._pictures(open_file, [picture.id for picture in pictures])
        for picture in pictures:
            stored = before.get(picture.id, picture)
            new = {name: value or getattr(stored, name) for name, value in vars(picture).items()}
            before[picture.id] = Picture(**new)
            row = {**new, "models": json.dumps(list(new["models"]), ensure_ascii=False)}
            open_file.execute(
                "INSERT OR REPLACE INTO pictures VALUES (:id, :prompt, :path, :models, :width, :height)", row
            )

    def _pictures(self, open_file: Connection, names: Sequence[str] | None) -> dict[str, Picture]:
        query = "SELECT id, prompt, path, models, width, height FROM pictures"
        which, values = ("", []) if names is None else (f" WHERE id IN ({_EACH})", [json.dumps(list(names))])
        return {
            name: Picture(name, prompt, path, tuple(json.loads(models)), *size)
            for name, prompt, path, models, *size in open_file.execute(query + which, values)
        }


def _check_prompts(known: dict[str, Picture], pair: Opinion) -> None:
    chosen, rejected = (known.get(name, Picture(name)).prompt for name in pair.pictures)
    if chosen != rejected:
        raise ValueError(
            "is a pair of pictures of different prompts, of which nothing can be learned. Fix: choose between pictures of one "
            "prompt"
        )


def _opinion(row: Sequence[Any]) -> Opinion:
    kind, picture, value, *rest = row
    return Opinion(kind, picture, json.loads(value), *rest)
