"""Retention: messages go by whole pages that are too old, too many, or finished by all groups."""

from collections.abc import Callable, Sequence

from wings_core.maintain.worker_pool import MaintenanceReport
from wings_core.metadata.expiry import expired_pages
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.metadata.maintenance import Finished, Maintenance
from wings_core.model import Location, PartitionState, Topic

EXPIRE_PAGES = 1_000
"""Pages dropped in one metadata transaction, so that pushes never wait long for it."""


def is_due(
    registry: OffsetRegistry,
    topic: Topic,
    state: PartitionState,
    now: int,
    finished: Finished | None,
) -> bool:
    """Tell whether a partition's first page may be kept no longer; a look, without any lock.

    Args:
        registry: Where the first page is found.
        topic: With its configuration.
        state: Of the partition.
        now: Microseconds since the epoch, by this node's clock.
        finished: By the topic's groups, where that may go; else None.
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
    """Return how many of a partition's first pages may be kept no longer; see `is_due`."""
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
    """Drop what a partition keeps no longer, a bounded number of pages at a time.

    Args:
        maintenance: Drops them.
        topic: With its configuration.
        state: Of the partition.
        finished: By the topic's groups, where that may go; else None.
        report: What was dropped is counted to it.
        proceed: Asked before each further step.
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
    """Drop the first pages that a partition keeps no longer; return how many; see `retain`."""
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
    report.pages_expired += expired.pages
    report.rows_expired += expired.rows
    report.bytes_expired += expired.bytes
    return expired.pages
