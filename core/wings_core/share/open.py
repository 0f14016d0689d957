"""Where the holds of share groups are: in this process, at replicas elsewhere, or nowhere."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from wings_core.errors import InvalidArgument, StorageCorrupt, TopicNotFound, Unavailable
from wings_core.metadata.interfaces import Admin, Groups, all_topics
from wings_core.metadata.sqlite.files import is_empty
from wings_core.model import ShareGroup
from wings_core.share.coordinator.coordinator import Replicas
from wings_core.share.replica.copies import PostgresCopies
from wings_core.share.replica.replica import Replica
from wings_core.share.replica.sqlite_store import SqliteHoldStore, damaged

if TYPE_CHECKING:
    from wings_core.security.tokens import PeerAccess
    from wings_core.share.replica.postgres_store import PostgresHoldStore

OpenReplicas = Callable[[], Replicas]
"""Opens the replicas of a coordinator, which closes them."""

_logger = logging.getLogger(__name__)


def open_replica(path: Path, groups: Callable[[], Sequence[ShareGroup]]) -> Replica:
    """Open a replica in a file, created where it is not there and no group is.

    Never raises: while the file cannot be used, the replica refuses, and what is damaged it refuses
    until the next start.

    Args:
        path: The file.
        groups: Returns all groups that must be in it.
    """

    def open_store() -> SqliteHoldStore:
        if is_empty(path) and groups():
            raise damaged(path, "it is missing or empty, and there are share groups")
        return SqliteHoldStore(path)

    return _tried(Replica(open_store))


def all_groups(admin: Admin, groups: Groups) -> list[ShareGroup]:
    """Return the groups of all topics there are."""
    found: list[ShareGroup] = []
    for topic in all_topics(admin):
        with suppress(TopicNotFound):  # Deleted meanwhile.
            found += groups.of_topic(topic)
    return found


def open_remote(targets: Sequence[str], access: "PeerAccess | None") -> Replicas:
    """Open links to replicas in other processes; they connect when they are first needed.

    Args:
        targets: `HOST:PORT` of each; the same for all nodes.
        access: The credentials presented to them.
    """
    from wings_core.share.remote.link import RemoteLink

    return Replicas([RemoteLink(target, access) for target in targets])


class SharedHolds:
    """The replica of nodes that share PostgreSQL, as one of them has it; `serve`, then `close`.

    Args:
        url: PostgreSQL's.
        access: Credentials presented to the node that serves the replica.

    Raises:
        InvalidArgument: The URL cannot be read, or this installation cannot use PostgreSQL.
    """

    def __init__(self, url: str, access: "PeerAccess") -> None:
        store = _postgres_store()
        from wings_core.metadata.postgres.connections import PostgresConnections
        from wings_core.share.replica.postgres_lease import OwnerLookup
        from wings_core.share.replica.postgres_store import SCHEMA

        self._access = access
        self._address = ""
        self.replica = Replica(lambda: store(url, claim_seconds=0, address=self._address))
        """To be served to the other nodes."""
        self._connections = PostgresConnections(url, SCHEMA)
        self._owner = OwnerLookup(self._connections)
        self.copies = PostgresCopies(self._connections)
        """Copies of its durable state, whichever node has it."""

    def open_link(self, address: str) -> Replicas:
        """Open the link of a node to the replica.

        Args:
            address: Where the other nodes reach the replica, while this one has it.
        """
        from wings_core.share.remote.link import SharedLink

        self._address = address
        return Replicas([SharedLink(self.replica, address, self._owner.address, self._access)])

    def close(self) -> None:
        """Let another node take over."""
        self.replica.close()
        self._owner.close()
        self._connections.close()


def open_postgres_store(url: str, schema: str) -> "PostgresHoldStore":
    """Open what a replica keeps in PostgreSQL; waits for the lease of a process that is gone.

    Raises:
        InvalidArgument: The URL cannot be read, or this installation cannot use PostgreSQL.
        Unavailable: It cannot be reached, or another process owns the schema.
        Internal: What is there is something else, or of a newer version.
    """
    return _postgres_store()(url, schema)


def open_standby(url: str) -> Replica:
    """Open a replica in PostgreSQL that refuses while another process serves it; never waits.

    Raises:
        InvalidArgument: The URL cannot be read, or this installation cannot use PostgreSQL.
    """
    store = _postgres_store()
    return _tried(Replica(lambda: store(url, claim_seconds=0)))


def _tried(replica: Replica) -> Replica:
    """Open the store of a replica, if that is possible by now; it is tried again later."""
    try:
        replica.open()
    except StorageCorrupt as error:
        _logger.error("%s", error.message)
    except Unavailable as error:
        _logger.warning("share groups are refused for now: %s", error.message)
    return replica


def _postgres_store() -> "type[PostgresHoldStore]":
    try:
        from wings_core.share.replica.postgres_store import PostgresHoldStore
    except ImportError as error:
        raise InvalidArgument(
            f"holds in PostgreSQL need psycopg: pip install 'wings-flight[postgres]' ({error})"
        ) from None
    return PostgresHoldStore
