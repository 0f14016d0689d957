"""Maintenance in a database: each method is one transaction, done by the module of its verb."""

import logging
from collections.abc import Sequence
from typing import Generic

from wings_core.errors import WingsError
from wings_core.metadata.judge import check_text
from wings_core.metadata.maintenance import (
    Finished,
    Lease,
    Maintenance,
    check_replacements,
)
from wings_core.metadata.store import leases
from wings_core.metadata.store.database import C, Database, Dialect
from wings_core.metadata.store.expire import expire
from wings_core.metadata.store.inline import find_inline
from wings_core.metadata.store.partitions import largest_topics, tier_states, topic_state
from wings_core.metadata.store.replace import replace_all
from wings_core.metadata.store.tables import has_segments
from wings_core.model import (
    Expired,
    InlineBacklog,
    LargestTopics,
    Replacement,
    TierState,
    TopicState,
)
from wings_core.partitions import Partition

_logger = logging.getLogger(__name__)


class DatabaseMaintenance(Maintenance, Generic[C]):
    """See `Maintenance`.

    Args:
        database: Where the pages are indexed.
        dialect: Its statements.
    """

    def __init__(self, database: Database[C], dialect: Dialect[C]) -> None:
        self._database = database
        self._dialect = dialect

    def acquire_lease(self, name: str, holder: str, seconds: float) -> int | None:
        """Acquire or renew a lease; see `Maintenance.acquire_lease`."""
        check_text("a lease", name)
        check_text("a lease", holder)
        length = round(seconds * 1_000_000)
        return self._database.write(
            lambda connection: leases.acquire(
                connection, name, holder, length, self._database.lease_now(connection)
            )
        )

    def drop_leases(self) -> None:
        """Drop the leases, and the nodes, of all processes before this one, which have ended.

        Where that fails, as on a full disk, they end by themselves.
        """
        try:
            self._database.write(
                lambda connection: leases.drop_all(connection, self._database.lease_now(connection))
            )
        except WingsError as error:
            _logger.warning("could not drop the leases of processes that ended: %s", error)

    def release_lease(self, name: str, holder: str) -> None:
        """Release a lease; see `Maintenance.release_lease`."""
        check_text("a lease", name)
        check_text("a lease", holder)
        self._database.write(
            lambda connection: leases.release(
                connection, name, holder, self._database.lease_now(connection)
            )
        )

    def expire(
        self,
        topic_uuid: str,
        partition: Partition,
        *,
        age_us: int | None,
        bytes_kept: int | None,
        finished: Finished | None = None,
        outside_tables: bool = False,
        pages_max: int,
    ) -> Expired:
        """Drop the oldest pages of a partition; see `Maintenance.expire`."""
        before = None if age_us is None else self._database.now() - age_us

        def work(connection: C) -> Expired:
            expired = expire(
                self._dialect,
                connection,
                topic_uuid,
                partition,
                before,
                bytes_kept,
                finished,
                pages_max,
            )
            first = expired.log_start_offset - expired.rows
            if outside_tables and has_segments(
                connection, topic_uuid, partition, first, expired.log_start_offset
            ):
                raise _InTableError(first)
            return expired

        try:
            return self._database.write(work)
        except _InTableError as error:
            return Expired(error.log_start_offset, 0, 0, 0)

    def replace_all(self, replacements: Sequence[Replacement], lease: Lease) -> list[bool]:
        """Put pages into the place of others; see `Maintenance.replace_all`."""
        check_replacements(replacements)

        def work(connection: C) -> list[bool]:
            replaced = replace_all(self._dialect, connection, replacements)
            if any(replaced) and not leases.is_held(
                connection, lease, self._database.lease_now(connection)
            ):
                raise _LeaseLostError
            return replaced

        try:
            return self._database.write(work)
        except _LeaseLostError:
            return [False] * len(replacements)

    def inline_backlog(self, pages_max: int) -> InlineBacklog:
        """Return what metadata keeps inline; see `Maintenance.inline_backlog`."""
        return self._database.read(lambda connection: find_inline(connection, pages_max))

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

    def topic_state(self, topic_uuid: str) -> TopicState:
        """Return the sums over a topic's partitions; see `Maintenance.topic_state`."""
        return self._database.read(lambda connection: topic_state(connection, topic_uuid))

    def largest_topics(self, topics_max: int, grouped_max: int) -> LargestTopics:
        """Return the topics with most bytes; see `Maintenance.largest_topics`."""
        return self._database.read(
            lambda connection: largest_topics(connection, topics_max, grouped_max)
        )


class _LeaseLostError(Exception):
    """Undoes the transaction."""


class _InTableError(Exception):
    """Undoes the transaction."""

    def __init__(self, log_start_offset: int) -> None:
        super().__init__()
        self.log_start_offset = log_start_offset
