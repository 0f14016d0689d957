"""Metadata in PostgreSQL, shared by any number of nodes.

Locks of one process, none of which is held while another is taken: the pool's and the watchdog's
(see `connections`), the waiters'. Callbacks of waiters run with none of them held. What the
transactions of all nodes lock in the database, and in which order, is written down in
`metadata.store.database.Lock`.
"""

import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal
from uuid import UUID

from wings_core.errors import InvalidArgument
from wings_core.metadata.postgres import locate
from wings_core.metadata.postgres.commit import PostgresCommits
from wings_core.metadata.postgres.connections import (
    BOUNDS,
    Connection,
    PostgresBounds,
    PostgresConnections,
)
from wings_core.metadata.postgres.database import RETRY_SECONDS_MAX, PostgresDatabase
from wings_core.metadata.postgres.export import exporting
from wings_core.metadata.postgres.listener import Listener
from wings_core.metadata.postgres.schema import check_tables, migrate
from wings_core.metadata.store import DatabaseMetadata
from wings_core.metadata.store.database import Notification
from wings_core.metadata.store.topics import TopicCache
from wings_core.metadata.waiting import Waiters
from wings_core.model import STORE_MESSAGES, StoreRole

SCHEMA = "wings"
"""The schema that holds the tables, and the channel of notifications."""


OF_SERVICES = UUID(int=0)
"""Stands for a data directory where metadata is served to nodes, which have theirs."""

OF_NODES = UUID(int=1)
"""Stands for a data directory where nodes have none."""


class PostgresMetadata(DatabaseMetadata):
    """Topics and the log's index in PostgreSQL; may be used in a `with` statement.

    Args:
        url: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`, or any connection string of libpq. It
            is never repeated in an error or a log.
        schema: Created, with the default namespace, if it is not there.
        clock: Microseconds since the epoch, for all. None: the server's; see `PostgresDatabase`.
        read_only: Write nothing, and do not listen: nothing wakes waiters.
        retry_seconds: How long a call is tried again while the server cannot be reached.
        bounds: How long each thing at the server may take.

    Raises:
        InvalidArgument: The URL cannot be read, or the database is not in UTF-8.
        Unavailable: The server cannot be reached.
        Internal: The schema is newer than this code, or not metadata of Wings; with `read_only`,
            also if it is not there or older.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = SCHEMA,
        clock: Callable[[], int] | None = None,
        read_only: bool = False,
        retry_seconds: float = RETRY_SECONDS_MAX,
        bounds: PostgresBounds = BOUNDS,
    ) -> None:
        waiters = Waiters()
        self._listener: Listener | None = None

        def notify(notification: Notification, transaction: str) -> None:
            notification.wake(waiters)
            listener = self._listener
            if listener is not None and listener.outbox.add(notification, transaction):
                listener.wake()

        self._connections = PostgresConnections(url, schema, read_only=read_only, bounds=bounds)
        self._database = PostgresDatabase(self._connections, notify, retry_seconds, clock)
        try:
            if read_only:
                self._database.read(lambda connection: check_tables(connection, schema))
            else:
                migrate(self._database, schema, self._database.now)
                self._database.read(self._database.lease_now)  # Its clock is ours from here on.
                self._listener = Listener(
                    self._connections,
                    self._database.node,
                    lambda notification: notification.wake(waiters),
                )
        except BaseException:
            self.close()
            raise
        # Topics are not cached: another node may change them at any time.
        commits = PostgresCommits(self._database)
        super().__init__(self._database, locate, commits, waiters, TopicCache(0))

    def claim_for_service(self) -> str:
        """Take this metadata for metadata services, whose nodes know it by the id returned.

        Raises:
            InvalidArgument: It belongs to a data directory of an embedded server, or to nodes that
                use it themselves.
        """
        return str(self.claim(OF_SERVICES, None))

    def claim_for_nodes(self) -> str:
        """Take this metadata for nodes without data directories, which know it by the id returned.

        Raises:
            InvalidArgument: It belongs to a data directory, or to metadata services.
        """
        return str(self.claim(OF_NODES, None))

    def object_store(self, role: StoreRole, wanted: str | None) -> str | None:
        """Return the object store that nodes without a data directory have for a role.

        Args:
            role: Which messages it has.
            wanted: Its URL; None for that of before.

        Raises:
            InvalidArgument: Nodes used another one before.
        """
        row = self._database.read(
            lambda connection: connection.execute(
                "SELECT url FROM object_stores WHERE role = %s", (role,)
            ).fetchone()
        )
        before = None if row is None else str(row[0])
        if wanted is not None and before is not None and wanted != before:
            raise InvalidArgument(
                f"the nodes of this metadata have their {STORE_MESSAGES[role]} messages at "
                f"{before}, and cannot have them at {wanted}"
            )
        return wanted or before

    def keep_object_store(self, role: StoreRole, url: str) -> None:
        """Note the object store of a role, durably, for all nodes.

        Raises:
            InvalidArgument: Another node has just noted another one.
        """
        self._database.write(
            lambda connection: connection.execute(
                "INSERT INTO object_stores (role, url) VALUES (%s, %s) ON CONFLICT DO NOTHING",
                (role, url),
            )
        )
        self.object_store(role, url)

    def node_token(self) -> str:
        """Return what nodes that use this metadata present to each other; the first makes it."""
        made = secrets.token_hex(32)

        def work(connection: Connection) -> str:
            row = connection.execute(
                "UPDATE store SET node_token = coalesce(node_token, %s) RETURNING node_token",
                (made,),
            ).fetchone()
            assert row is not None
            return str(row[0])

        return self._database.write(work)

    @property
    def store_id(self) -> str:
        """Id of this metadata, unlike any other's."""
        return str(self._database.read(lambda connection: _binding(connection, ""))[0])

    def claim(self, directory: UUID, metadata: UUID | None) -> UUID:
        """Bind this metadata to a data directory, or make sure that it is.

        Args:
            directory: The id of the data directory.
            metadata: The id of the metadata that the directory is bound to; None for a new one.

        Returns:
            The id of this metadata.

        Raises:
            InvalidArgument: Either is bound to another one.
        """

        def work(connection: Connection) -> UUID:
            found, claimed = _binding(connection, " FOR UPDATE")
            _check_binding(directory, metadata, found, claimed or directory)
            connection.execute("UPDATE store SET directory = %s", (directory,))
            return found

        return self._database.write(work)

    def check_claim(self, directory: UUID, metadata: UUID | None) -> None:
        """Make sure that this metadata is bound to a data directory; see `claim`."""
        found, claimed = self._database.read(lambda connection: _binding(connection, ""))
        _check_binding(directory, metadata or found, found, claimed)

    def check_claim_for_nodes(self) -> None:
        """Make sure that this metadata is of nodes without data directories.

        Raises:
            InvalidArgument: It belongs to something else, or to no server yet.
        """
        self.check_claim(OF_NODES, None)

    def copying(self) -> AbstractContextManager[Callable[[Path], None]]:
        """Fix the state of the tables at one moment; see `Metadata.copying`."""
        schema = self._connections.schema
        return exporting(self._connections, lambda connection: check_tables(connection, schema))

    def end_retries(self) -> None:
        """Try no call again; see `Metadata.end_retries`."""
        self._database.end_retries()

    def close(self) -> None:
        """Close the connections, once calls under way have ended; later calls raise `Unavailable`.

        Calls that are being tried again end with `Unavailable`.
        """
        self.end_retries()
        if self._listener is not None:
            self._listener.close()
        self._connections.close()


def _binding(connection: Connection, lock: Literal["", " FOR UPDATE"]) -> tuple[UUID, UUID | None]:
    row = connection.execute(f"SELECT id, directory FROM store{lock}").fetchone()
    assert row is not None
    return row[0], row[1]


def _check_binding(
    directory: UUID, metadata: UUID | None, found: UUID, claimed: UUID | None
) -> None:
    if metadata is not None and found != metadata:
        raise InvalidArgument(
            f"the data directory belongs to the metadata with the id {metadata}; this is {found}"
        )
    if claimed == directory:
        return
    if claimed is None:
        raise InvalidArgument("no server has used this metadata yet")
    if claimed == OF_SERVICES:
        raise InvalidArgument(
            "this metadata is served to nodes by `wings metadata serve`: give its address, with "
            "--metadata"
        )
    if claimed == OF_NODES:
        raise InvalidArgument(
            "this metadata is of nodes without a data directory: start this one as they are, with "
            "--hot, without --data-dir, and not as a service"
        )
    if directory in {OF_SERVICES, OF_NODES}:
        raise InvalidArgument(
            f"this metadata belongs to the embedded server of the data directory with the id "
            f"{claimed}: name that with --data-dir, or give a database of its own"
        )
    raise InvalidArgument(
        f"this metadata belongs to the data directory with the id {claimed}, not to {directory}"
    )
