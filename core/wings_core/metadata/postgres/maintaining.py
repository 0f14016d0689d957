"""Maintenance in PostgreSQL: each method is one transaction, done by the module of its verb."""

from collections.abc import Callable

from wings_core.metadata.maintenance import Maintenance
from wings_core.metadata.postgres import leases
from wings_core.metadata.postgres.database import Database
from wings_core.metadata.postgres.expire import expire
from wings_core.model import Expired
from wings_core.partitions import Partition


class PostgresMaintenance(Maintenance):
    """See `Maintenance`.

    Args:
        database: Where the pages are indexed.
        clock: Microseconds since the epoch.
    """

    def __init__(self, database: Database, clock: Callable[[], int]) -> None:
        self._database = database
        self._clock = clock

    def acquire_lease(self, name: str, holder: str, seconds: float) -> int | None:
        """Take or prolong a lease; see `Maintenance.acquire_lease`."""
        length = round(seconds * 1_000_000)
        return self._database.write(
            lambda connection: leases.acquire(connection, name, holder, length, self._clock())
        )

    def release_lease(self, name: str, holder: str) -> None:
        """Give a lease back; see `Maintenance.release_lease`."""
        self._database.write(
            lambda connection: leases.release(connection, name, holder, self._clock())
        )

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
        return self._database.write(
            lambda connection: expire(
                connection, topic_uuid, partition, before, bytes_kept, pages_max
            )
        )
