"""The one module that opens databases: files of SQLite, of this machine, by the standard library."""

from __future__ import annotations

from pathlib import Path
from sqlite3 import Connection, DatabaseError, OperationalError
from sqlite3 import connect as _open

__all__ = ["Connection", "DatabaseError", "OperationalError", "open_database"]


def open_database(file: Path | str, wait: float, shared: bool = False) -> Connection:
    """A connection without transactions of its own, which waits so many seconds for another one that writes. `shared`: several
    threads use it, one after the other. ":memory:" is a database without a file."""
    return _open(file, timeout=wait, isolation_level=None, check_same_thread=not shared)
