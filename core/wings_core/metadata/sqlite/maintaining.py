"""Maintenance in SQLite: each method is one transaction, done by the module of its verb."""

from collections.abc import Callable, Sequence

from wings_core.metadata.maintenance import Lease, Maintenance, check_replacement
from wings_core.metadata.sqlite import leases
from wings_core.metadata.sqlite.connections import Connections
from wings_core.metadata.sqlite.expire import expire
from wings_core.metadata.sqlite.replace import replace, tier_states
from wings_core.model import Expired, Location, TierState
from wings_core.partitions import Partition


class SqliteMaintenance(Maintenance):
    """See `Maintenance`.

    Args:
        connections: To the database.
        clock: Microseconds since the epoch.
    """

    def __init__(self, connections: Connections, clock: Callable[[], int]) -> None:
        self._connections = connections
        self._clock = clock

    def acquire_lease(self, name: str, holder: str, seconds: float) -> int | None:
        """Take or prolong a lease; see `Maintenance.acquire_lease`."""
        with self._connections.writing() as connection:
            length = round(seconds * 1_000_000)
            return leases.acquire(connection, name, holder, length, self._clock())

    def release_lease(self, name: str, holder: str) -> None:
        """Give a lease back; see `Maintenance.release_lease`."""
        with self._connections.writing() as connection:
            leases.release(connection, name, holder, self._clock())

    def expire(
        self,
        topic_uuid: str,
        partition: Partition,
        *,
        age_us: int | None,
        bytes_kept: int | None,
        pages_max: int,
    ) -> Expired:
        """Drop the oldest pages of a partition; see `Maintenance.expire`."""
        before = None if age_us is None else self._clock() - age_us
        with self._connections.writing() as connection:
            return expire(connection, topic_uuid, partition, before, bytes_kept, pages_max)

    def replace(
        self,
        topic_uuid: str,
        partition: Partition,
        old: Sequence[Location],
        new: Sequence[Location],
        lease: Lease,
    ) -> bool:
        """Put merged pages into the place of others; see `Maintenance.replace`."""
        check_replacement(old, new)
        with self._connections.writing() as connection:
            if not leases.is_held(connection, lease, self._clock()):
                return False
            return replace(connection, topic_uuid, partition, old, new)

    def tier_states(
        self,
        topic_uuid: str,
        *,
        after: Partition | None = None,
        partitions_max: int | None = None,
    ) -> list[TierState]:
        """Return what the partitions have in each tier; see `Maintenance.tier_states`."""
        with self._connections.reading() as connection:
            return tier_states(connection, topic_uuid, after, partitions_max)
