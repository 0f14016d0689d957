"""The embedded metadata: one SQLite database, of one process at a time.

Locks, in the order in which they may be taken:

    1. the writer (`SqliteConnections.acquire_writer`): commits, changes of topics, purges
    2. the lock of the topic cache: nothing is called while it is held

A reader, and the lock of the waiters, are each taken alone: with none of the others held, and none
is taken while they are. So callbacks of waiters run with no lock held, and only a caller who waits
for a pool's turn waits on another.
"""

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from wings_core.errors import Internal, StorageCorrupt, WingsError
from wings_core.metadata.sqlite import locate
from wings_core.metadata.sqlite.commit import SqliteCommits
from wings_core.metadata.sqlite.connections import SqliteConnections
from wings_core.metadata.sqlite.database import SqliteDatabase
from wings_core.metadata.sqlite.files import copying
from wings_core.metadata.sqlite.notes import Notes
from wings_core.metadata.sqlite.schema import check_tables, migrate
from wings_core.metadata.store import DatabaseMetadata
from wings_core.metadata.store.topics import TOPICS_CACHED_MAX, TopicCache
from wings_core.metadata.waiting import Waiters
from wings_core.times import now_us


class SqliteMetadata(DatabaseMetadata):
    """Topics and the log's index in one SQLite file; may be used in a `with` statement.

    The caller makes sure that one process at a time opens it for writing.

    Args:
        path: The database; created, with the default namespace, if it is not there. Its directory
            must be.
        clock: Microseconds since the epoch.
        read_only: Read beside a server, or a database at rest, and write nothing. One at rest is
            read without locks: start no server on it meanwhile. Nothing wakes waiters.
        connection_type: The class of the connections, for tests that inject faults.
        notes: The file of notes for a repair; None, or `read_only`: none are written.

    Raises:
        Internal: It cannot be opened, is newer than this code, or is not metadata of Wings;
            with `read_only`, also if it is not there or older.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], int] = now_us,
        read_only: bool = False,
        connection_type: type[sqlite3.Connection] = sqlite3.Connection,
        notes: Path | None = None,
    ) -> None:
        if read_only and not path.exists():
            raise Internal(f"there is no metadata at {path}")
        self._connections = SqliteConnections(
            path, read_only=read_only, connection_type=connection_type
        )
        try:
            if read_only:
                check_tables(self._connections)
            else:
                migrate(self._connections, clock)
        except BaseException:
            with suppress(WingsError):  # It follows from what failed, which is told.
                self._connections.close()
            raise
        self._path = path
        self._notes: Notes | None = None
        if notes is not None and not read_only:
            self._notes = Notes(notes, self._connections)
        waiters = Waiters()
        self._database = SqliteDatabase(self._connections, waiters, clock)
        topics = TopicCache(0 if read_only else TOPICS_CACHED_MAX)
        commits = SqliteCommits(self._database)
        super().__init__(self._database, locate, commits, waiters, topics)

    @property
    def store_id(self) -> str:
        """The identity of this metadata, which no other has.

        Raises:
            StorageCorrupt: It is lost.
        """
        row = self._database.read(
            lambda connection: connection.execute("SELECT id FROM identity").fetchone()
        )
        if row is None:
            raise StorageCorrupt("the metadata has lost its identity")
        return row[0]

    def copying(self) -> AbstractContextManager[Callable[[Path], None]]:
        """Fix the state of the file at one moment; see `Metadata.copying`."""
        return copying(self._path, "metadata")

    def end_retries(self) -> None:
        """Do nothing: a file is tried once; see `Metadata.end_retries`."""

    def close(self) -> None:
        """Close the database, once calls under way have ended; later calls raise `Unavailable`."""
        if self._notes is not None:
            self._notes.close()
        self._connections.close()
