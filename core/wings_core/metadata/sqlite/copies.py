"""Copies of SQLite files that are in use, as they are at one moment."""

import os
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from wings_core.metadata.sqlite.writer import translated

LOCK_SECONDS_MAX = 10.0
"""How long a lock of another connection is waited for."""


@contextmanager
def copying(path: Path, what: str) -> Generator[Callable[[Path], None]]:
    """Fix the state of a file at one moment; yields what copies that into a new file.

    No writer waits for it.

    Args:
        path: The file, which this process may have open.
        what: Names it in errors.

    Raises:
        ResourceExhausted: There is no room for the copy.
        WingsError: SQLite failed.
    """
    with told_of(what), closing(_reader(path)) as reader:
        reader.execute("BEGIN")
        # SQLite fixes what a transaction sees when it first reads.
        reader.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        yield partial(_copy, reader)


@contextmanager
def locked(path: Path, what: str) -> Generator[None]:
    """Keep others from writing to a file.

    Raises:
        WingsError: Its writer did not let go of its lock in time.
    """
    with told_of(what), closing(sqlite3.connect(path, LOCK_SECONDS_MAX, 0, None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            writer.execute("ROLLBACK")


@contextmanager
def told_of(what: str) -> Generator[None]:
    """Raise SQLite's errors as ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise translated(error, what) from error


@contextmanager
def new_copy(path: Path) -> Generator[sqlite3.Connection]:
    """Make a file that a crash may leave damaged, and that only this user reads."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with closing(sqlite3.connect(path, isolation_level=None)) as copy:
        copy.execute("PRAGMA synchronous=OFF")
        yield copy


def _reader(path: Path) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, timeout=LOCK_SECONDS_MAX, isolation_level=None)


def _copy(reader: sqlite3.Connection, into: Path) -> None:
    """Copy what a reader's transaction sees, page by page."""
    with new_copy(into) as copy:
        reader.backup(copy)
