"""The connections to one SQLite database: one that writes and a few that read.

Thousands of threads call in. They wait for a connection in the order in which they came, and no
longer than a named bound. A reader sees what was committed when its statement began, and neither
waits for the writer nor holds it up.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from wings_core.errors import Internal
from wings_core.metadata.pool import FairPool
from wings_core.metadata.sqlite.commit_cache import CommitCache
from wings_core.metadata.sqlite.writer import (
    FOREIGN_LOCK_SECONDS_MAX,
    SqliteWriter,
    discard,
    translated,
)

WRITER_WAIT_SECONDS_MAX = 30.0
"""How long a call waits for the writer before it is refused with `Unavailable`."""

READER_WAIT_SECONDS_MAX = 30.0
"""How long a call waits for a reader before it is refused with `Unavailable`."""

READERS_MAX = 4
"""Connections that read; each is opened at its first use."""

READER_CACHE_KIB = 4 * 1024
"""Pages of the database that each reader keeps in memory."""


T = TypeVar("T")


class _SqliteReader:
    """A connection that reads, or the place for one."""

    __slots__ = ("connection",)

    def __init__(self) -> None:
        self.connection: sqlite3.Connection | None = None


class SqliteConnections:
    """Lends the connections to one database.

    Args:
        path: The database; created by the first write, unless `read_only`.
        read_only: Never write. A database that no process has open is then read without any
            trace; beside a running server only SQLite's index of its log is shared.
        connection_type: The class of the connections, for tests that inject faults.
    """

    def __init__(
        self,
        path: Path,
        *,
        read_only: bool = False,
        connection_type: type[sqlite3.Connection] = sqlite3.Connection,
    ) -> None:
        self.commit_cache = CommitCache()
        """Touched only by the thread that has the writer, but for its `tail`."""
        self._read_only = read_only
        self._connection_type = connection_type
        self._reader_uri = f"{path.absolute().as_uri()}?mode=ro"
        if read_only and not path.with_name(f"{path.name}-wal").exists():
            # No process has it open: SQLite need not create the files that processes share.
            self._reader_uri += "&immutable=1"
        self._writers = FairPool(
            "the writer of metadata", [SqliteWriter(path, connection_type)], WRITER_WAIT_SECONDS_MAX
        )
        self._readers = FairPool(
            "a reader of metadata",
            [_SqliteReader() for _ in range(READERS_MAX)],
            READER_WAIT_SECONDS_MAX,
        )

    def acquire_writer(self) -> SqliteWriter:
        """Return the writer, which the caller must release; blocks while another thread has it.

        Raises:
            Unavailable: The writer did not come free in time, or closed.
            Internal: Opened for reading only.
        """
        if self._read_only:
            raise Internal("metadata was opened for reading only")
        return self._writers.acquire()

    def release_writer(self, writer: SqliteWriter) -> None:
        """Pass the writer to the caller that has waited longest."""
        self._writers.release(writer)

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run statements on a connection that reads; cursors must be closed or run to their end.

        Raises:
            Unavailable: None came free in time, or closed.
            Internal: SQLite failed.
        """
        reader = self._readers.acquire()
        try:
            if reader.connection is None:
                reader.connection = self._open_reader()
            return work(reader.connection)
        except BaseException as error:
            in_transaction = reader.connection is not None and reader.connection.in_transaction
            if in_transaction or isinstance(error, sqlite3.Error):
                # Whatever its state: the next borrower opens another.
                discard(reader.connection)
                reader.connection = None
            if isinstance(error, sqlite3.Error):
                raise translated(error) from error
            raise
        finally:
            self._readers.release(reader)

    def close(self) -> None:
        """Close all connections, waiting for those in use for the usual time."""
        for reader in self._readers.close():
            discard(reader.connection)
        for writer in self._writers.close():
            writer.close()

    def _open_reader(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._reader_uri,
            uri=True,
            timeout=FOREIGN_LOCK_SECONDS_MAX,
            isolation_level=None,
            check_same_thread=False,
            factory=self._connection_type,
        )
        connection.execute(f"PRAGMA cache_size=-{READER_CACHE_KIB}")
        return connection
