"""The embedded metadata: one SQLite database, of one process at a time.

Locks, in the order in which they may be taken:

    1. the writer (`Connections.exclusive`): commits, changes of topics, purges
    2. the lock of the topic cache: nothing is called while it is held

A reader, and the lock of the waiters, are each taken alone: with none of the others held, and none
is taken while they are. So callbacks of waiters run with no lock held, and only a caller who waits
for a pool's turn waits on another.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Self

from wings_core.errors import Internal
from wings_core.metadata.interfaces import Metadata
from wings_core.metadata.sqlite.admin import SqliteAdmin
from wings_core.metadata.sqlite.connections import Connections
from wings_core.metadata.sqlite.groups import SqliteGroups
from wings_core.metadata.sqlite.maintaining import SqliteMaintenance
from wings_core.metadata.sqlite.migrations import check_version, migrate
from wings_core.metadata.sqlite.nodes import SqliteNodes
from wings_core.metadata.sqlite.registry import SqliteRegistry
from wings_core.metadata.sqlite.shards import SqliteShards
from wings_core.metadata.sqlite.staging import SqliteStages
from wings_core.metadata.sqlite.topics import TOPICS_CACHED_MAX, TopicCache
from wings_core.metadata.waiters import Waiters
from wings_core.times import now_us


class SqliteMetadata(Metadata):
    """Topics and the log's index in one SQLite file; may be used in a `with` statement.

    The caller makes sure that one process at a time opens it for writing.

    Args:
        path: The database; created, with the default namespace, if it is not there. Its directory
            must be.
        clock: Microseconds since the epoch.
        read_only: Read beside a server, or a database at rest, and write nothing. One at rest is
            read without locks: start no server on it meanwhile. Nothing wakes waiters.
        connection_type: The class of the connections, for tests that inject faults.

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
    ) -> None:
        if read_only and not path.exists():
            raise Internal(f"there is no metadata at {path}")
        self._connections = Connections(path, read_only=read_only, connection_type=connection_type)
        try:
            if read_only:
                check_version(self._connections)
            else:
                migrate(self._connections, clock)
        except BaseException:
            self._connections.close()
            raise
        waiters = Waiters()
        topics = TopicCache(0 if read_only else TOPICS_CACHED_MAX)
        self._admin = SqliteAdmin(self._connections, topics, waiters, clock)
        self._registry = SqliteRegistry(self._connections, waiters, clock)
        self._stages = SqliteStages(self._connections, waiters, clock)
        self._maintenance = SqliteMaintenance(self._connections, clock)
        self._groups = SqliteGroups(self._connections, clock)
        self._shards = SqliteShards(self._connections, clock)
        self._nodes = SqliteNodes(self._connections, clock)

    @property
    def store_id(self) -> str:
        """What tells this metadata from any other."""
        with self._connections.reading() as connection:
            ((store_id,),) = connection.execute("SELECT id FROM identity").fetchall()
        return store_id

    @property
    def admin(self) -> SqliteAdmin:
        """Namespaces and topics."""
        return self._admin

    @property
    def registry(self) -> SqliteRegistry:
        """The log's index."""
        return self._registry

    @property
    def stages(self) -> SqliteStages:
        """What was staged."""
        return self._stages

    @property
    def maintenance(self) -> SqliteMaintenance:
        """What moves old pages."""
        return self._maintenance

    @property
    def groups(self) -> SqliteGroups:
        """Share groups."""
        return self._groups

    @property
    def shards(self) -> SqliteShards:
        """What is read into the log once."""
        return self._shards

    @property
    def nodes(self) -> SqliteNodes:
        """The Flight nodes that are there."""
        return self._nodes

    def close(self) -> None:
        """Close the database, once calls under way have ended; later calls raise `Unavailable`."""
        self._connections.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()
