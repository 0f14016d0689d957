"""Where the holds of share groups are: in this process, at replicas elsewhere, or nowhere."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from wings_core.errors import InvalidArgument, Unavailable
from wings_core.fetch.fetcher import Cancel
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.partitions import Partition
from wings_core.share.coordinator.coordinator import Coordinator, FindOffset
from wings_core.share.coordinator.watchers import FindGroup
from wings_core.share.interfaces import DeadLetters, ShareCoordinator
from wings_core.share.model import (
    Acknowledgement,
    AcknowledgementResult,
    Acquired,
    AcquireRequest,
    LeasedRange,
    ShareGroup,
    SharePartitionState,
)
from wings_core.share.replica.replica import Replica
from wings_core.share.replica.standby import StandbyReplica
from wings_core.share.replica.store import SqliteHoldStore
from wings_core.times import Deadline

if TYPE_CHECKING:
    from wings_core.share.replica.postgres_store import PostgresHoldStore

OpenCoordinator = Callable[[OffsetRegistry, DeadLetters, FindOffset, FindGroup], ShareCoordinator]
"""Opens what leases the messages of groups; closing that closes all that was opened."""


class EmbeddedCoordinator(Coordinator):
    """A coordinator with one replica in this process, which it closes."""

    _replica: Replica

    @classmethod
    def open(
        cls,
        path: Path,
        registry: OffsetRegistry,
        dead_letters: DeadLetters,
        find_offset: FindOffset,
        find_group: FindGroup,
    ) -> ShareCoordinator:
        """Open the coordinator and its replica.

        Args:
            path: The replica's file, created where it is not there.
            registry: The log's index.
            dead_letters: Writes the dead letters of groups.
            find_offset: Where groups begin that begin at a time.
            find_group: Looks up a group that has watchers.

        Raises:
            Internal: The file cannot be opened.
        """
        replica = Replica(SqliteHoldStore(path))
        opened = cls.embedded(
            replica, registry, dead_letters, find_offset=find_offset, find_group=find_group
        )
        opened._replica = replica
        return opened

    def close(self) -> None:
        """See `ShareCoordinator.close`."""
        super().close()
        self._replica.close()


def open_remote(
    targets: Sequence[str],
    registry: OffsetRegistry,
    dead_letters: DeadLetters,
    find_offset: FindOffset,
    find_group: FindGroup,
) -> ShareCoordinator:
    """Open a coordinator with replicas in other processes; it connects when it is first needed.

    Args:
        targets: `HOST:PORT` of each; the same for all nodes.
        registry: The log's index.
        dead_letters: Writes the dead letters of groups.
        find_offset: Where groups begin that begin at a time.
        find_group: Looks up a group that has watchers.
    """
    from wings_core.share.remote.link import RemoteLink

    links = [RemoteLink(target) for target in targets]
    return Coordinator(
        links, registry, dead_letters, find_offset=find_offset, find_group=find_group
    )


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


class NoCoordinator(ShareCoordinator):
    """Of a node that knows no replicas: two such nodes would lease the same messages."""

    def create(self, group: ShareGroup) -> None:
        """Refuse."""
        self._refuse()

    def delete(self, group: ShareGroup) -> None:
        """Do nothing: there is nothing of the group here."""

    def altered(self, group: ShareGroup) -> None:
        """Do nothing: no call waits here."""

    def acquire(
        self, request: AcquireRequest, deadline: Deadline, cancel: Cancel
    ) -> list[LeasedRange]:
        """Refuse."""
        self._refuse()

    def acquire_now(self, request: AcquireRequest) -> Acquired:
        """Refuse."""
        self._refuse()

    def watch(
        self, group: ShareGroup, partition: Partition | None, callback: Callable[[], None]
    ) -> AbstractContextManager[object]:
        """Refuse."""
        self._refuse()

    def acknowledge(
        self, group: ShareGroup, member: str, entries: Sequence[Acknowledgement]
    ) -> list[AcknowledgementResult]:
        """Refuse."""
        self._refuse()

    def release_undelivered(self, group: ShareGroup, leased: Sequence[LeasedRange]) -> None:
        """Do nothing: nothing was leased."""

    def describe(self, group: ShareGroup) -> list[SharePartitionState]:
        """Refuse."""
        self._refuse()

    def close(self) -> None:
        """Do nothing."""

    def _refuse(self) -> NoReturn:
        raise Unavailable("this node knows no replicas of holds, so it serves no share groups")
