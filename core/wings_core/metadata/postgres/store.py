"""Metadata in PostgreSQL, shared by any number of nodes.

Locks of one process, none of which is held while another is taken: the pool's and the watchdog's
(see `connections`), the waiters'. Callbacks of waiters run with none of them held. What the
transactions of all nodes lock in the database, and in which order, is written down in `locks`.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, Self
from uuid import UUID

from wings_core.errors import InvalidArgument
from wings_core.metadata.interfaces import Metadata
from wings_core.metadata.postgres.admin import PostgresAdmin
from wings_core.metadata.postgres.connections import Connection, Connections
from wings_core.metadata.postgres.database import RETRY_SECONDS_MAX, Database
from wings_core.metadata.postgres.groups import PostgresGroups
from wings_core.metadata.postgres.lease_clock import LeaseClock, server_clock
from wings_core.metadata.postgres.listener import Listener
from wings_core.metadata.postgres.maintaining import PostgresMaintenance
from wings_core.metadata.postgres.migrations import check_version, migrate
from wings_core.metadata.postgres.nodes import PostgresNodes
from wings_core.metadata.postgres.notices import Notice, decode_notice
from wings_core.metadata.postgres.registry import PostgresRegistry
from wings_core.metadata.postgres.shards import PostgresShards
from wings_core.metadata.postgres.staging import PostgresStages
from wings_core.metadata.waiters import Waiters
from wings_core.times import now_us

SCHEMA = "wings"
"""The schema that holds the tables, and the channel of notices."""


OF_SERVICES = UUID(int=0)
"""Stands for a data directory where metadata is served to nodes, which have theirs."""


class PostgresMetadata(Metadata):
    """Topics and the log's index in PostgreSQL; may be used in a `with` statement.

    Args:
        url: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`, or any connection string of libpq. It
            is never repeated in an error or a log.
        schema: Created, with the default namespace, if it is not there.
        clock: Microseconds since the epoch, for all. None: that of this machine, and the
            server's for leases, owners of shards, and what is out of date.
        read_only: Write nothing, and hear of nothing: nothing wakes waiters.
        retry_seconds: How long a call is tried again while the server cannot be reached.

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
    ) -> None:
        lease_clock: LeaseClock = server_clock
        if clock is None:
            clock = now_us
        else:
            lease_clock = partial(_told, clock)
        self._waiters = Waiters()
        self._connections = Connections(url, schema, read_only=read_only)
        self._database = Database(self._connections, self._tell, retry_seconds)
        self._listener: Listener | None = None
        try:
            if read_only:
                check_version(self._database, schema)
            else:
                migrate(self._database, schema, clock)
                self._listener = Listener(self._connections, self._hear, self._waiters.notify_all)
        except BaseException:
            self.close()
            raise
        self._admin = PostgresAdmin(self._database, clock)
        self._registry = PostgresRegistry(self._database, self._waiters, clock, lease_clock)
        self._stages = PostgresStages(self._database, clock, lease_clock)
        self._maintenance = PostgresMaintenance(self._database, clock, lease_clock)
        self._groups = PostgresGroups(self._database, clock)
        self._shards = PostgresShards(self._database, lease_clock)
        self._nodes = PostgresNodes(self._database, lease_clock)

    @property
    def admin(self) -> PostgresAdmin:
        """Namespaces and topics."""
        return self._admin

    @property
    def registry(self) -> PostgresRegistry:
        """The log's index."""
        return self._registry

    @property
    def stages(self) -> PostgresStages:
        """What was staged."""
        return self._stages

    @property
    def maintenance(self) -> PostgresMaintenance:
        """What moves old pages."""
        return self._maintenance

    @property
    def groups(self) -> PostgresGroups:
        """Share groups."""
        return self._groups

    @property
    def shards(self) -> PostgresShards:
        """What is read into the log once."""
        return self._shards

    @property
    def nodes(self) -> PostgresNodes:
        """The Flight nodes that are there."""
        return self._nodes

    def claim_for_service(self) -> str:
        """Take this metadata for metadata services, whose nodes know it by the id returned.

        Raises:
            InvalidArgument: It belongs to a data directory of an embedded server.
        """
        return str(self.claim(OF_SERVICES, None))

    @property
    def store_id(self) -> str:
        """What tells this metadata from any other."""
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

    def close(self) -> None:
        """Close the connections, once calls under way have ended; later calls raise `Unavailable`.

        Calls that are being tried again end with `Unavailable`.
        """
        self._database.close()
        if self._listener is not None:
            self._listener.close()
        self._connections.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _tell(self, notice: Notice) -> None:
        notice.wake(self._waiters)

    def _hear(self, payload: str) -> None:
        node, transaction, notice = decode_notice(payload)
        if not self._database.knows_of(node, transaction):
            notice.wake(self._waiters)


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
    if claimed != directory and claimed == OF_SERVICES:
        raise InvalidArgument(
            "this metadata is served to nodes by `wings metadata serve`: give its address, with "
            "--metadata"
        )
    if claimed != directory and directory == OF_SERVICES:
        raise InvalidArgument(
            f"this metadata belongs to the embedded server of the data directory with the id "
            f"{claimed}: give a database of its own"
        )
    if claimed != directory:
        raise InvalidArgument(
            f"this metadata belongs to the data directory with the id {claimed}, not to {directory}"
        )


def _told(clock: Callable[[], int], _: Connection) -> int:
    return clock()
