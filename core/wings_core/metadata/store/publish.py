"""The publish of stages: fenced by writer and batch, and answered again with its first result."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import LiteralString

from pydantic import TypeAdapter

from wings_core.errors import InvalidArgument
from wings_core.metadata.stages import (
    PUBLISH_RESULTS_KEPT_MAX,
    PUBLISH_RESULTS_KEPT_US,
    WRITERS_KEPT_US,
    check_batch,
)
from wings_core.metadata.store.database import C, Connection, Database, Dialect
from wings_core.metadata.store.locks import Lock
from wings_core.model import Published, PublishedRange, ShardProgress
from wings_core.names import TopicName
from wings_core.partitions import Partition

_RANGES = TypeAdapter(list[tuple[str, Partition, int, int]])
"""The form in which results are stored: topic's name, partition, first and last offset."""

_OLD_RESULTS = """
WITH old AS MATERIALIZED (
    SELECT writer, batch FROM publishes
    WHERE succeeded_at <= %s::bigint LIMIT %s::bigint FOR UPDATE SKIP LOCKED
)
DELETE FROM publishes WHERE (writer, batch) IN (SELECT writer, batch FROM old) RETURNING batch
"""

_LAST_RESULTS = """
WITH old AS MATERIALIZED (
    SELECT writer, batch FROM publishes
    WHERE succeeded_at IS NULL AND published_at <= %s::bigint
    LIMIT %s::bigint FOR UPDATE SKIP LOCKED
)
DELETE FROM publishes WHERE (writer, batch) IN (SELECT writer, batch FROM old) RETURNING batch
"""


@dataclass(frozen=True, slots=True)
class PublishOutcome:
    """What a publish did."""

    published: Published
    ends: dict[tuple[str, Partition], int]
    """The next offset of each partition that was written to, by topic UUID and partition."""


def publish(
    database: Database[C],
    dialect: Dialect[C],
    connection: C,
    writer: str,
    batch: int,
    stages: Sequence[str],
    shards: Sequence[ShardProgress],
) -> PublishOutcome:
    """Publish within the transaction of `connection`; see `Stages.publish`."""
    now = database.now()
    connection.take_lock(Lock.WRITERS, (writer,))
    first = _find_result(connection, writer, batch, now)
    if first is not None:
        return PublishOutcome(Published(first, replayed=True), {})
    row = connection.execute(
        "SELECT max(batch) FROM publishes WHERE writer = %s", (writer,)
    ).fetchone()
    assert row is not None
    check_batch(writer, batch, row[0])
    if len(set(stages)) < len(stages):
        raise InvalidArgument("a stage is named twice")
    if shards:
        dialect.write_progress(connection, shards, lambda: database.lease_now(connection))
    moved = dialect.move_stages(connection, stages, now)
    _remember(connection, writer, batch, moved.ranges, now)
    return PublishOutcome(Published(moved.ranges), moved.ends)


def was_published(connection: Connection, writer: str, batch: int) -> bool | None:
    """Tell whether a batch was published; None for one too old to be remembered.

    Waits for a publish of the writer that is under way.
    """
    connection.take_lock(Lock.WRITERS, (writer,))
    row = connection.execute(
        "SELECT count(*) FILTER (WHERE batch = %s::bigint), max(batch) FROM publishes "
        "WHERE writer = %s",
        (batch, writer),
    ).fetchone()
    assert row is not None
    remembered, last_batch = row
    if remembered:
        return True
    return None if last_batch is not None and batch < last_batch else False


def purge_results(connection: Connection, rows_max: int, now: int) -> int:
    """Delete up to so many results that are out of date; return how many.

    The last of a writer goes after those before it: they are older.
    """
    left = rows_max
    old: tuple[tuple[LiteralString, int], ...] = (
        (_OLD_RESULTS, PUBLISH_RESULTS_KEPT_US),
        (_LAST_RESULTS, WRITERS_KEPT_US),
    )
    for statement, kept_us in old:
        left -= len(connection.execute(statement, (now - kept_us, max(0, left))).fetchall())
    return rows_max - left


def _find_result(
    connection: Connection, writer: str, batch: int, now: int
) -> tuple[PublishedRange, ...] | None:
    """Return what a batch got when it was published, None if it was not or is not remembered."""
    row = connection.execute(
        "SELECT committed FROM publishes WHERE writer = %s AND batch = %s::bigint "
        "AND (succeeded_at IS NULL OR succeeded_at > %s::bigint)",
        (writer, batch, now - PUBLISH_RESULTS_KEPT_US),
    ).fetchone()
    if row is None:
        return None
    return tuple(
        PublishedRange(TopicName.parse(topic), partition, start_offset, end_offset)
        for topic, partition, start_offset, end_offset in _RANGES.validate_json(row[0])
    )


def _remember(
    connection: Connection,
    writer: str,
    batch: int,
    committed: tuple[PublishedRange, ...],
    now: int,
) -> None:
    connection.execute(
        "UPDATE publishes SET succeeded_at = %s WHERE writer = %s AND succeeded_at IS NULL",
        (now, writer),
    )
    ranges = [
        (str(found.topic), found.partition, found.start_offset, found.end_offset)
        for found in committed
    ]
    connection.execute(
        "INSERT INTO publishes (writer, batch, committed, published_at) VALUES (%s, %s, %s, %s)",
        (writer, batch, _RANGES.dump_json(ranges).decode(), now),
    )
    connection.execute(
        "DELETE FROM publishes WHERE writer = %s AND batch <= "
        "(SELECT batch FROM publishes WHERE writer = %s ORDER BY batch DESC LIMIT 1 OFFSET %s)",
        (writer, writer, PUBLISH_RESULTS_KEPT_MAX),
    )
