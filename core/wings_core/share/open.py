"""Where the holds of share groups are: in this process, at replicas elsewhere, or nowhere."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

from wings_core.errors import (
    InvalidArgument,
    StorageCorrupt,
    TopicNotFound,
    Unavailable,
)
from wings_core.metadata.interfaces import Admin, Groups, OffsetRegistry, all_topics
from wings_core.metadata.sqlite.integrity import is_empty
from wings_core.model import ShareGroup
from wings_core.share.coordinator.coordinator import Coordinator
from wings_core.share.coordinator.starts import FindOffsets
from wings_core.share.coordinator.watchers import FindGroup
from wings_core.share.counts import ShareCounts
from wings_core.share.interfaces import DeadLetters, ShareCoordinator
from wings_core.share.replica.copies import PostgresCopies
from wings_core.share.replica.sqlite_store import SqliteHoldStore, damaged
from wings_core.share.replica.standby import StandbyReplica

if TYPE_CHECKING:
    from wings_core.security.peers import PeerAccess
    from wings_core.share.replica.postgres_store import PostgresHoldStore

OpenCoordinator = Callable[[OffsetRegistry, DeadLetters, FindOffsets, FindGroup], ShareCoordinator]
"""Opens what leases the messages of groups; closing that closes all that was opened."""


class EmbeddedCoordinator(Coordinator):
    """A coordinator with one replica in this process, which it closes."""

    _replica: StandbyReplica

    @classmethod
    def open(
        cls,
        path: Path,
        groups: Callable[[], Sequence[ShareGroup]],
        registry: OffsetRegistry,
        dead_letters: DeadLetters,
        find_offsets: FindOffsets,
        find_group: FindGroup,
    ) -> ShareCoordinator:
        """Open the coordinator and its replica; one that is damaged refuses every call.

        Args:
            path: The replica's file, created where it is not there.
            groups: Returns all groups there are.
            registry: The log's index.
            dead_letters: Writes the dead letters of groups.
            find_offsets: Where groups begin that begin at a time.
            find_group: Looks up a group that has watchers.
        """
        replica = open_replica(path, groups)
        opened = cls.embedded(
            replica, registry, dead_letters, find_offsets=find_offsets, find_group=find_group
        )
        opened._replica = replica
        return opened

    @property
    def damage(self) -> StorageCorrupt | None:
        """See `ShareCoordinator.damage`."""
        return self._replica.damage

    def close(self) -> None:
        """See `ShareCoordinator.close`."""
        super().close()
        self._replica.close()


def open_replica(path: Path, groups: Callable[[], Sequence[ShareGroup]]) -> StandbyReplica:
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

    return StandbyReplica(open_store)


def all_groups(admin: Admin, groups: Groups) -> list[ShareGroup]:
    """Return the groups of all topics there are."""
    found: list[ShareGroup] = []
    for topic in all_topics(admin):
        with suppress(TopicNotFound):  # Deleted meanwhile.
            found += groups.of_topic(topic)
    return found


def open_remote(
    targets: Sequence[str],
    access: "PeerAccess | None",
    registry: OffsetRegistry,
    dead_letters: DeadLetters,
    find_offsets: FindOffsets,
    find_group: FindGroup,
) -> ShareCoordinator:
    """Open a coordinator with replicas in other processes; it connects when it is first needed.

    Args:
        targets: `HOST:PORT` of each; the same for all nodes.
        access: What is presented to them.
        registry: The log's index.
        dead_letters: Writes the dead letters of groups.
        find_offsets: Where groups begin that begin at a time.
        find_group: Looks up a group that has watchers.
    """
    from wings_core.share.remote.link import RemoteLink

    links = [RemoteLink(target, access) for target in targets]
    return Coordinator(
        links, registry, dead_letters, find_offsets=find_offsets, find_group=find_group
    )


class SharedHolds:
    """The replica of nodes that share PostgreSQL, as one of them has it; `serve`, then `close`.

    Args:
        url: PostgreSQL's.
        access: What is presented to the node that serves the replica.

    Raises:
        InvalidArgument: The URL cannot be read, or this installation cannot use PostgreSQL.
    """

    def __init__(self, url: str, access: "PeerAccess") -> None:
        store = _postgres_store()
        from wings_core.metadata.postgres.connections import Connections
        from wings_core.share.replica.postgres_lease import OwnerLookup
        from wings_core.share.replica.postgres_store import SCHEMA

        self._access = access
        self._address = ""
        self.replica = StandbyReplica(
            lambda: store(url, claim_seconds=0, address=self._address), waits=True
        )
        """To be served to the other nodes."""
        self._connections = Connections(url, SCHEMA)
        self._owner = OwnerLookup(self._connections)
        self.copies = PostgresCopies(self._connections)
        """Of its durable state, whichever node has it."""

    def open_coordinator(self, address: str) -> OpenCoordinator:
        """Return what opens the coordinator of a node.

        Args:
            address: Where the other nodes reach the replica, while this one has it.
        """
        from wings_core.share.remote.shared import SharedLink

        self._address = address
        link = SharedLink(self.replica, address, self._owner.address, self._access)

        def open_shared(
            registry: OffsetRegistry,
            dead_letters: DeadLetters,
            find_offsets: FindOffsets,
            find_group: FindGroup,
        ) -> ShareCoordinator:
            return Coordinator(
                [link], registry, dead_letters, find_offsets=find_offsets, find_group=find_group
            )

        return open_shared

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


def open_standby(url: str) -> StandbyReplica:
    """Open a replica in PostgreSQL that refuses while another process serves it; never waits.

    Raises:
        InvalidArgument: The URL cannot be read, or this installation cannot use PostgreSQL.
    """
    store = _postgres_store()
    return StandbyReplica(lambda: store(url, claim_seconds=0))


def _postgres_store() -> "type[PostgresHoldStore]":
    try:
        from wings_core.share.replica.postgres_store import PostgresHoldStore
    except ImportError as error:
        raise InvalidArgument(
            f"holds in PostgreSQL need psycopg: pip install 'wings-flight[postgres]' ({error})"
        ) from None
    return PostgresHoldStore


class _NoCoordinator:
    """Of a node that knows no replicas, as two such nodes would lease the same messages."""

    damage = None
    is_local = False
    counts = ShareCounts()

    def delete(self, group: ShareGroup) -> None:
        """Do nothing: there is nothing of the group here."""

    def altered(self, group: ShareGroup) -> None:
        """Do nothing: no call waits here."""

    def wake_another(self, group: ShareGroup) -> None:
        """Do nothing: no call waits here."""

    def close(self) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        """Return a method that refuses, as all others do."""

        def refuse(*_: object) -> NoReturn:
            raise Unavailable("this node knows no replicas of holds, so it serves no share groups")

        return refuse


def no_coordinator() -> ShareCoordinator:
    """Return the coordinator of a node that knows no replicas, which refuses all that needs one."""
    return cast("ShareCoordinator", _NoCoordinator())
