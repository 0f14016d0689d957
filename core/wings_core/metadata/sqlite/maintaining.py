"""Maintenance in SQLite: each method is one transaction, done by the module of its verb."""

from collections.abc import Callable

from wings_core.metadata.maintenance import Maintenance
from wings_core.metadata.sqlite import leases
from wings_core.metadata.sqlite.connections import Connections
from wings_core.metadata.sqlite.expire import expire
from wings_core.model import Expired
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
