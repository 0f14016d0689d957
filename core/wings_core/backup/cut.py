"""Cuts a restored log at a time: each partition ends before its first later message."""

import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from wings_core.data_directory import DataDirectory
from wings_core.fetch.fetcher import Fetcher
from wings_core.limits import Limits
from wings_core.metadata.interfaces import all_topics
from wings_core.metadata.results import Series
from wings_core.metadata.sequences import SequenceDraft
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.model import Location, PageFormat, Topic
from wings_core.partitions import Partition
from wings_core.schema_versions import SchemaVersions
from wings_core.share.replica.sqlite_store import SqliteHoldStore
from wings_core.share.replica.store import PartitionWrite, Row
from wings_core.storage.codecs import Wanted, read_pages
from wings_core.storage.inline_folios import InlineFolios
from wings_core.storage.interfaces import FolioStore
from wings_core.storage.open import open_storage


@dataclass(frozen=True, slots=True)
class _Cut:
    """The point at which one partition is cut."""

    topic_uuid: str
    partition: Partition
    offset: int
    """First offset to remove."""
    last_timestamp: int | None
    """Timestamp of the message before, in microseconds; None if no message is left."""
    messages: int
    """Number of messages to remove."""


def cut_log(directory: DataDirectory, until: int) -> int:
    """Remove the messages after a time from a log that no process has open.

    The offsets of the remaining messages do not change. Consumer offsets beyond the new end become
    the end; the state of share groups beyond it is removed. A producer continues with the sequence
    of its first removed batch, as far as its batches are remembered.

    Args:
        directory: A complete data directory.
        until: Last timestamp to keep (inclusive), in microseconds since the epoch.

    Returns:
        The number of messages removed.

    Raises:
        StorageCorrupt: A page that spans the cut is damaged.
    """
    with closing(SqliteMetadata(directory.metadata)) as metadata:
        inline = InlineFolios(metadata.registry.read_inline)
        with closing(open_storage(directory, Limits(), inline=inline).store) as store:
            cuts = list(_cuts(metadata, store, until))
    _cut_metadata(directory.metadata, cuts, until)
    if directory.holds.exists():
        _cut_holds(directory.holds, cuts)
    return sum(each.messages for each in cuts)


def _cuts(metadata: SqliteMetadata, store: FolioStore, until: int) -> Iterable[_Cut]:
    fetcher = Fetcher(store, metadata.registry, Limits(), SchemaVersions(metadata.admin))
    for topic in all_topics(metadata.admin):
        for state in metadata.registry.partition_states(topic.uuid):
            offset = fetcher.offset_for_timestamp(topic, state.partition, until + 1)
            if offset >= state.next_offset:
                continue
            last: int | None = None
            if offset > state.log_start_offset:
                located = metadata.registry.locate(topic.uuid, state.partition, offset - 1, 1)
                last = _timestamp(store, topic, located.locations[0], offset - 1)
            yield _Cut(topic.uuid, state.partition, offset, last, state.next_offset - offset)


def _timestamp(store: FolioStore, topic: Topic, page: Location, offset: int) -> int:
    """Return the timestamp of one message of a page."""
    wanted = Wanted((), offset, offset + 1, timestamps=True)
    (rows,) = read_pages(store, topic, [page], wanted)
    if isinstance(rows.timestamps, int):
        return rows.timestamps
    return int(rows.timestamps.cast(pa.int64())[0].as_py())


def _cut_metadata(path: Path, cuts: Iterable[_Cut], until: int) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        ends: dict[int, dict[str, int]] = {}
        for cut in cuts:
            topic_id, partition_id, last_timestamp = connection.execute(
                "SELECT topics.id, partitions.id, last_timestamp FROM partitions "
                "JOIN topics ON topics.id = topic_id WHERE uuid = ? AND value = ?",
                (cut.topic_uuid, cut.partition),
            ).fetchone()
            ends.setdefault(topic_id, {})[cut.partition] = cut.offset
            _cut_pages(connection, partition_id, cut)
            if cut.last_timestamp is not None:
                last_timestamp = cut.last_timestamp
            _count(connection, partition_id, cut.offset, min(last_timestamp, until))
            connection.execute(
                "UPDATE consumer_offsets SET offset = ? "
                "WHERE topic_id = ? AND partition = ? AND offset > ?",
                (cut.offset, topic_id, cut.partition, cut.offset),
            )
        for topic_id, offsets in ends.items():
            _cut_producers(connection, topic_id, offsets)
            _cut_sequences(connection, topic_id, offsets)
        connection.execute("COMMIT")


def _cut_pages(connection: sqlite3.Connection, partition_id: int, cut: _Cut) -> None:
    """Delete the pages from the cut on; a page that spans it keeps its first rows."""
    gone = connection.execute(
        "SELECT folio_id FROM pages WHERE partition_id = ? AND start_offset >= ?",
        (partition_id, cut.offset),
    ).fetchall()
    connection.execute(
        "DELETE FROM pages WHERE partition_id = ? AND start_offset >= ?",
        (partition_id, cut.offset),
    )
    for folio_id, count in Counter(folio_id for (folio_id,) in gone).items():
        connection.execute("UPDATE folios SET pages = pages - ? WHERE id = ?", (count, folio_id))
        connection.execute("DELETE FROM folios WHERE id = ? AND pages = 0", (folio_id,))
    connection.execute(
        "UPDATE pages SET end_offset = :end, timestamp = :timestamp, "
        "first_row = ifnull(first_row, 0), slice_bytes = max(1, ifnull(slice_bytes, length) "
        "* (:end + 1 - start_offset) / (end_offset + 1 - start_offset)) "
        "WHERE partition_id = :partition AND end_offset > :end",
        {"end": cut.offset - 1, "timestamp": cut.last_timestamp, "partition": partition_id},
    )


def _count(connection: sqlite3.Connection, partition_id: int, end: int, timestamp: int) -> None:
    merged = ", ".join(str(int(each)) for each in PageFormat if each.is_merged)
    connection.execute(
        f"""
        UPDATE partitions SET next_offset = :end, last_timestamp = :timestamp,
            (bytes, pages, merged_pages, merged_rows, merged_bytes) = (
                SELECT ifnull(sum(ifnull(slice_bytes, length)), 0), count(*),
                    count(*) FILTER (WHERE format IN ({merged})),
                    ifnull(sum(end_offset - start_offset + 1)
                        FILTER (WHERE format IN ({merged})), 0),
                    ifnull(sum(ifnull(slice_bytes, length))
                        FILTER (WHERE format IN ({merged})), 0)
                FROM pages WHERE partition_id = partitions.id
            )
        WHERE id = :id
        """,
        {"end": end, "timestamp": timestamp, "id": partition_id},
    )


def _cut_producers(connection: sqlite3.Connection, topic_id: int, ends: dict[str, int]) -> None:
    """Set producers back to their first removed batch."""
    rows = connection.execute(
        "SELECT producer_id, sequence, committed FROM producer_results WHERE topic_id = ?",
        (topic_id,),
    ).fetchall()
    gone: dict[str, int] = {}
    for producer, last, committed in rows:
        series = Series.from_json(last, committed)
        # All its parts have one timestamp, so all are removed.
        if any(
            each.end_offset >= ends.get(each.partition, each.end_offset + 1)
            for each in series.committed
        ):
            gone[producer] = min(series.first, gone.get(producer, series.first))
    for producer, sequence in gone.items():
        connection.execute(
            "UPDATE producers SET next_sequence = ? WHERE topic_id = ? AND producer_id = ?",
            (sequence, topic_id, producer),
        )
        connection.execute(
            "DELETE FROM producer_results WHERE topic_id = ? AND producer_id = ? AND sequence >= ?",
            (topic_id, producer, sequence),
        )


def _cut_sequences(connection: sqlite3.Connection, topic_id: int, ends: dict[str, int]) -> None:
    """Set numbers of rows back to the first removed batch; those of staged batches stay."""
    rows = connection.execute(
        "SELECT partition, producer_id, state FROM partition_sequences WHERE topic_id = ?",
        (topic_id,),
    ).fetchall()
    for partition, producer, state in rows:
        draft = SequenceDraft.from_json(state)
        end = ends.get(partition)
        kept = [
            batch
            for batch in draft.batches
            if end is None or batch.start_offset is None or batch.start_offset < end
        ]
        if len(kept) == len(draft.batches):
            continue
        draft.batches = kept
        connection.execute(
            "UPDATE partition_sequences SET state = ? "
            "WHERE topic_id = ? AND partition = ? AND producer_id = ?",
            (draft.to_json(), topic_id, partition, producer),
        )


def _cut_holds(path: Path, cuts: Iterable[_Cut]) -> None:
    ends = {(cut.topic_uuid, cut.partition): cut.offset for cut in cuts}
    with closing(SqliteHoldStore(path)) as holds:
        writes: list[PartitionWrite] = []
        for stored in holds.load():
            end = ends.get((stored.key.topic_uuid, stored.key.partition))
            if end is None:
                continue
            finished, finished_added = _beyond(stored.finished, end)
            counts, counts_added = _beyond(stored.counts, end)
            writes.append(
                PartitionWrite(
                    stored.key,
                    min(stored.start_offset, end),
                    finished,
                    finished_added,
                    counts,
                    counts_added,
                )
            )
        holds.write(writes, {})


def _beyond(rows: Iterable[Row], end: int) -> tuple[list[int], list[Row]]:
    """Return the first offsets of ranges that reach beyond `end`, and their parts before it."""
    over = [row for row in rows if row[1] >= end]
    left = [(first, end - 1, count) for first, _, count in over if first < end]
    return [row[0] for row in over], left
