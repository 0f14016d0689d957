"""Retention: deletes whole pages that are too old, too many, or finished by all share groups."""

from collections.abc import Callable, Iterator, Sequence

from wings_core.maintain.worker_pool import MaintenanceReport
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.metadata.maintenance import Finished, Maintenance, expired_pages
from wings_core.model import Expired, Location, PartitionState, Topic
from wings_core.partitions import Partition

EXPIRE_PAGES = 1_000
"""Most pages deleted per metadata transaction, so that pushes never wait long for it."""


def is_due(
    registry: OffsetRegistry,
    topic: Topic,
    state: PartitionState,
    now: int,
    finished: Finished | None,
) -> bool:
    """Return whether a partition's first page has expired; takes no lock.

    Args:
        registry: Locates the first page.
        topic: The topic with its configuration.
        state: State of the partition.
        now: This node's time in microseconds since the epoch.
        finished: Messages finished by all groups, if the topic's configuration deletes them; None
            otherwise.
    """
    config = topic.config
    if state.log_start_offset == state.next_offset:
        return False
    may_be_too_many = config.retention_bytes is not None and state.bytes > config.retention_bytes
    finished_before = 0 if finished is None else finished.before
    may_be_finished = finished_before > state.log_start_offset
    if config.retention_ms is None and not may_be_too_many and not may_be_finished:
        return False
    located = registry.locate(topic.uuid, state.partition, state.log_start_offset, 1)
    return due_pages(topic, state, located.locations[:1], now, finished) > 0


def due_pages(
    topic: Topic,
    state: PartitionState,
    pages: Sequence[Location],
    now: int,
    finished: Finished | None,
) -> int:
    """Return the number of a partition's first pages that have expired; see `is_due`."""
    config = topic.config
    return expired_pages(
        [(page.timestamp, page.end_offset, page.bytes) for page in pages],
        state.bytes,
        None if config.retention_ms is None else now - config.retention_ms * 1_000,
        config.retention_bytes,
        0 if finished is None else finished.before,
    )


def retain(
    maintenance: Maintenance,
    topic: Topic,
    state: PartitionState,
    finished: Finished | None,
    report: MaintenanceReport,
    proceed: Callable[[], bool],
) -> None:
    """Delete the expired pages of a partition, a bounded number at a time.

    Args:
        maintenance: Deletes the pages.
        topic: The topic with its configuration.
        state: State of the partition.
        finished: Messages finished by all groups, if the topic's configuration deletes them; None
            otherwise.
        report: Receives the counts of deletions.
        proceed: Returns whether to continue; called before each further step.
    """
    while expire(maintenance, topic, state, finished, report, EXPIRE_PAGES) == EXPIRE_PAGES:
        if not proceed():
            return


def expire(
    maintenance: Maintenance,
    topic: Topic,
    state: PartitionState,
    finished: Finished | None,
    report: MaintenanceReport,
    pages_max: int,
) -> int:
    """Delete up to `pages_max` expired pages; returns how many were deleted. See `retain`."""
    age_ms = topic.config.retention_ms
    expired = maintenance.expire(
        topic.uuid,
        state.partition,
        age_us=None if age_ms is None else age_ms * 1_000,
        bytes_kept=topic.config.retention_bytes,
        finished=finished,
        outside_tables=topic.config.table is not None,
        pages_max=pages_max,
    )
    report.add_expired(expired)
    return expired.pages


def delete_before(
    maintenance: Maintenance, topic: Topic, partition: Partition, offset: int
) -> Iterator[Expired]:
    """Delete a partition's messages before an offset, a bounded number of pages at a time.

    Yields:
        Counts of each step, and where the log starts after it.
    """
    while True:
        expired = maintenance.expire(
            topic.uuid,
            partition,
            age_us=None,
            bytes_kept=None,
            outside_tables=True,
            before_offset=offset,
            pages_max=EXPIRE_PAGES,
        )
        yield expired
        if expired.pages < EXPIRE_PAGES:
            return
