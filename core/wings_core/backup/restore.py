"""Restore: creates a data directory from a backup.

    databases ─▶ the chosen topics ─▶ local names of the files ─▶ files with messages
              ─▶ cut at a time ─▶ FORMAT, last

Until the file FORMAT exists no server opens the directory. An aborted restore leaves the file
RESTORING in it; the next one starts over in that directory. The cut ends each partition before its
first later message.
"""

import hashlib
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from wings_core.backup.repository import Manifest, Repository, StoredFile
from wings_core.contracts.tickets import HOLDS_FILE, METADATA_FILE
from wings_core.data_directory import FORMAT_VERSION, RESTORING, DataDirectory
from wings_core.errors import InvalidArgument, StorageCorrupt, TopicNotFound, Unavailable
from wings_core.fetch.fetcher import Fetcher
from wings_core.limits import Limits
from wings_core.metadata.interfaces import all_topics
from wings_core.metadata.repeats import SequenceDraft, Series
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.metadata.sqlite.commit import write_results
from wings_core.metadata.sqlite.schema import VERSIONS
from wings_core.model import INLINE_SUFFIX, Location, PageFormat, Topic
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_core.schema_versions import SchemaVersions
from wings_core.share.replica.sqlite_store import SqliteHoldStore
from wings_core.share.replica.store import PartitionWrite, Row
from wings_core.storage.codecs import Wanted, read_pages
from wings_core.storage.files import sync_directory
from wings_core.storage.folio_stores import (
    FOLIO_SUFFIX,
    HOT_SEGMENT_SUFFIX,
    LOCAL_SEGMENT_SUFFIX,
    SEGMENT_SUFFIX,
    store_suffix,
)
from wings_core.storage.inline_folios import InlineFolios
from wings_core.storage.interfaces import FolioStore
from wings_core.storage.open import open_storage
from wings_core.storage.parquet_file import PARQUET_SUFFIX

_TIME_DIGITS = 16


def local_name(folio: str) -> str:
    """Return the name that a folio has in a directory; folios of object stores are renamed.

    A folio that was an object becomes a segment, named by the time it was begun; names are unique.
    """
    suffix = store_suffix(folio)
    if suffix == FOLIO_SUFFIX:
        stem = folio.rpartition("/")[2].removesuffix(FOLIO_SUFFIX)
        number = hashlib.sha256(folio.encode()).hexdigest()[:8]
        return f"{stem[:_TIME_DIGITS]}-{number}.segment"
    if suffix in {SEGMENT_SUFFIX, HOT_SEGMENT_SUFFIX}:
        parquet = PARQUET_SUFFIX if folio.endswith(PARQUET_SUFFIX) else ""
        return folio.removesuffix(parquet).removesuffix(suffix) + LOCAL_SEGMENT_SUFFIX + parquet
    return folio


PURGE_PAGES = 10_000
"""Pages of excluded topics that one transaction deletes."""

_OF_NODES = (
    *("nodes", "leases", "topic_tables", "table_segments"),
    *("consumer_groups", "consumer_group_members"),
)
"""Tables that only apply to the original log: its nodes, leases, Iceberg tables and the
members of consumer groups, which join anew."""

_HARMLESS = {"lost+found"}


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of a restore."""

    topics: int
    files: int
    """Files with messages."""
    bytes: int
    """Bytes of these files and of the databases."""
    cut_messages: int
    """Messages left out as later than `until`."""


def restore(
    repository: Repository,
    manifest: Manifest,
    path: Path,
    topics: Sequence[str] = (),
    until: int | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> Restored:
    """Create a data directory from a backup; blocks until it is complete and durable.

    Args:
        repository: The repository of the backup.
        manifest: The backup's manifest.
        path: The directory: absent, empty, or left by an aborted restore.
        topics: Topics to restore, by full name or by id in the default namespace; empty for all.
        until: Last timestamp to restore, in microseconds since the epoch. Each partition ends
            before its first later message. None restores all messages.
        progress: Called with the name of the step, and the bytes done.

    Raises:
        InvalidArgument: The directory is not empty, or the backup needs a later version of Wings.
        TopicNotFound: The backup has no such topic.
        StorageCorrupt: The backup is damaged; the message names the object.
        WingsError: The repository cannot be read, or the directory not written.
    """
    _check_versions(manifest)
    names = [TopicName.parse(name) for name in topics]
    path = path.absolute()
    try:
        _claim(path)
        return _Restore(repository, manifest, path, progress).run(names, until)
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror or error}") from error


class _Restore:
    def __init__(
        self,
        repository: Repository,
        manifest: Manifest,
        path: Path,
        progress: Callable[[str, int], None] | None,
    ) -> None:
        self._repository = repository
        self._manifest = manifest
        self._directory = DataDirectory(path)
        self._progress = progress
        self._bytes = 0

    def run(self, topics: Sequence[TopicName], until: int | None) -> Restored:
        directory = self._directory
        for file in self._manifest.databases:
            self._write(file, {METADATA_FILE: directory.metadata, HOLDS_FILE: directory.holds})
        cut = 0
        _make_own(directory.metadata)
        with closing(SqliteMetadata(directory.metadata)) as metadata:
            left_out = _leave_out(metadata, topics)
            kept = metadata.registry.live_folios()
        self._free_holds(left_out)
        _rename(directory.metadata, kept)
        files = self._write_folios(kept)
        if until is not None:
            cut = cut_log(directory, until)
        with closing(SqliteMetadata(directory.metadata)) as metadata:
            count = sum(1 for _ in all_topics(metadata.admin))
        _finish(directory)
        return Restored(count, files, self._bytes, cut)

    def _write_folios(self, kept: set[str]) -> int:
        known = {file.name: file for file in self._manifest.folios}
        wanted = sorted(name for name in kept if not name.endswith(INLINE_SUFFIX))
        for name in wanted:
            file = known.get(name)
            if file is None:
                raise StorageCorrupt(
                    f"backup {self._manifest.backup} lacks the file {name}", file=name
                )
            local = local_name(name)
            is_merged = store_suffix(local) == LOCAL_SEGMENT_SUFFIX
            parent = self._directory.merged if is_merged else self._directory.segments
            self._write(file, {name: parent / local})
        return len(wanted)

    def _write(self, file: StoredFile, places: dict[str, Path]) -> None:
        """Write a file durably, and verify the checksum of each part."""
        place = places.get(file.name)
        if place is None:
            raise StorageCorrupt(
                f"the backup has a file {file.name}, which does not belong to a log"
            )
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            for part in file.parts:
                out.write(self._repository.read_part(file, part))
                self._bytes += part.size
                if self._progress is not None:
                    self._progress(file.name, self._bytes)
            out.flush()
            os.fsync(out.fileno())

    def _free_holds(self, left_out: Sequence[Topic]) -> None:
        """Delete the share groups of excluded topics, and the leases of the original log."""
        if not self._directory.holds.exists():
            return
        uuids = {topic.uuid for topic in left_out}
        with closing(SqliteHoldStore(self._directory.holds)) as holds:
            stored = holds.load()
            holds.write([], dict.fromkeys(holds.marks()))
            for group in {each.key.group_uuid for each in stored if each.key.topic_uuid in uuids}:
                holds.forget(group)


def _check_versions(manifest: Manifest) -> None:
    for what, found, known in (
        ("a data directory of format", manifest.format, FORMAT_VERSION),
        ("metadata of version", manifest.metadata_version, VERSIONS.newest),
    ):
        if found > known:
            raise InvalidArgument(
                f"backup {manifest.backup} has {what} {found}, and this version of Wings reads "
                f"up to {known}: restore it with Wings {manifest.wings}, which took it, or "
                "later"
            )


def _claim(path: Path) -> None:
    """Claim a new or empty directory, or one left by an aborted restore."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = {entry.name for entry in path.iterdir()} - _HARMLESS
    if RESTORING in names and "FORMAT" not in names:
        for name in sorted(
            names - {RESTORING}
        ):  # The marker goes last, so an abort can repeat this.
            entry = path / name
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    elif names:
        raise InvalidArgument(
            f"{path} is not empty: it holds {sorted(names)[0]}; restore into a new directory"
        )
    (path / RESTORING).touch(mode=0o600)
    sync_directory(path)


def _leave_out(metadata: SqliteMetadata, topics: Sequence[TopicName]) -> list[Topic]:
    """Delete all topics except `topics`, unless it is empty; returns the deleted ones."""
    if not topics:
        return []
    there = list(all_topics(metadata.admin))
    missing = set(topics) - {topic.name for topic in there}
    for name in sorted(missing, key=str):
        raise TopicNotFound(f"the backup has no topic {name}", topic=str(name))
    left_out = [topic for topic in there if topic.name not in set(topics)]
    for topic in left_out:
        metadata.admin.delete_topic(topic.name)
    while metadata.registry.purge(PURGE_PAGES):
        pass
    return left_out


def _make_own(path: Path) -> None:
    """Give metadata an identity of its own, and drop the state of the original log's processes."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        # A different log from here on: neither may take the other's files for its own.
        connection.execute("UPDATE identity SET id = lower(hex(randomblob(16)))")
        for table in _OF_NODES:
            connection.execute(f"DELETE FROM {table}")
        connection.execute("COMMIT")


def _rename(path: Path, folios: set[str]) -> None:
    """Rename folios to their local names in metadata."""
    renamed = [(local_name(name), name) for name in folios if local_name(name) != name]
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("UPDATE folios SET name = ? WHERE name = ?", renamed)
        connection.execute("COMMIT")


def _finish(directory: DataDirectory) -> None:
    for parent in (directory.segments, directory.merged):
        for folder, _, _ in os.walk(parent):
            sync_directory(Path(folder))
    sync_directory(directory.path)
    DataDirectory.complete(directory.path)
    (directory.path / RESTORING).unlink()
    sync_directory(directory.path)


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
        "SELECT producer_id, sequence, committed, committed_at FROM producer_results "
        "WHERE topic_id = ?",
        (topic_id,),
    )
    results = [
        (producer, Series.from_json(last, committed), committed_at)
        for producer, last, committed, committed_at in rows
    ]
    gone: dict[str, int] = {}
    for producer, series, _ in results:
        for sequence, ranges in series.batches():
            # Any part: others may stay, as a partition raises timestamps that are before its last.
            if any(
                each.end_offset >= ends.get(each.partition, each.end_offset + 1) for each in ranges
            ):
                gone[producer] = min(sequence, gone.get(producer, sequence))
    for producer, sequence in gone.items():
        connection.execute(
            "UPDATE producers SET next_sequence = ? WHERE topic_id = ? AND producer_id = ?",
            (sequence, topic_id, producer),
        )
        connection.execute(
            "DELETE FROM producer_results WHERE topic_id = ? AND producer_id = ? AND sequence >= ?",
            (topic_id, producer, sequence),
        )
    write_results(
        connection,
        [
            (topic_id, producer, kept, committed_at)
            for producer, series, committed_at in results
            if producer in gone and (kept := series.before(gone[producer])) is not None
        ],
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
