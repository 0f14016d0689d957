"""Maintenance in PostgreSQL: each method is one transaction, done by the module of its verb."""

from collections.abc import Callable, Sequence

from wings_core.metadata.maintenance import Lease, Maintenance, check_replacement
from wings_core.metadata.postgres import leases
from wings_core.metadata.postgres.connections import Connection
from wings_core.metadata.postgres.database import Database
from wings_core.metadata.postgres.expire import expire
from wings_core.metadata.postgres.lease_clock import LeaseClock
from wings_core.metadata.postgres.replace import replace, tier_states
from wings_core.model import Expired, Location, TierState
from wings_core.partitions import Partition


class PostgresMaintenance(Maintenance):
    """See `Maintenance`.

    Args:
        database: Where the pages are indexed.
        clock: Microseconds since the epoch.
        lease_clock: Leases count by it.
    """

    def __init__(
        self, database: Database, clock: Callable[[], int], lease_clock: LeaseClock
    ) -> None:
        self._database = database
        self._clock = clock
        self._lease_clock = lease_clock

    def acquire_lease(self, name: str, holder: str, seconds: float) -> int | None:
        """Take or prolong a lease; see `Maintenance.acquire_lease`."""
        length = round(seconds * 1_000_000)
        return self._database.write(
            lambda connection: leases.acquire(
                connection, name, holder, length, self._lease_clock(connection)
            )
        )

    def release_lease(self, name: str, holder: str) -> None:
        """Give a lease back; see `Maintenance.release_lease`."""
        self._database.write(
            lambda connection: leases.release(
                connection, name, holder, self._lease_clock(connection)
            )
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

        def work(connection: Connection) -> bool:
            replaced = replace(connection, topic_uuid, partition, old, new)
            if replaced and not leases.is_held(connection, lease, self._lease_clock(connection)):
                raise _LeaseLostError
            return replaced

        try:
            return self._database.write(work)
        except _LeaseLostError:
            return False

    def tier_states(
        self,
        topic_uuid: str,
        *,
        after: Partition | None = None,
        partitions_max: int | None = None,
    ) -> list[TierState]:
        """Return what the partitions have in each tier; see `Maintenance.tier_states`."""
        return self._database.read(
            lambda connection: tier_states(connection, topic_uuid, after, partitions_max)
        )


class _LeaseLostError(Exception):
    """Undoes the transaction."""
