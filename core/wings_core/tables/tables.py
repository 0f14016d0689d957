"""Commits of topics' segments to their tables: planned in metadata, then made exactly once.

    plan commit n in metadata ─▶ snapshot with wings.commit = n ─▶ confirm: removed files may go

The table's last snapshot has the number of its commit; metadata has the contents of each commit.
After a crash or a lost response, the next node reads whether commit n was made, and makes the same
one if not. If two nodes make it at once, the catalog accepts one, as each names the snapshot that
it is based on. Files stay in the log's store until a commit has removed them.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from wings_core.errors import Unavailable, WingsError
from wings_core.maintain.workers import HeldLease, LeaseKeeper
from wings_core.metadata.interfaces import Metadata, all_topics
from wings_core.metadata.maintenance import TableSegment, TableStates
from wings_core.model import Location, PartitionState, Topic
from wings_core.partitions import Partition
from wings_core.storage.objects import ObjectStore
from wings_core.storage.parquet_file import ParquetFooter, read_footer
from wings_core.storage.table_layout import layout_of
from wings_core.tables.catalog import (
    Catalog,
    ConflictError,
    FileToAdd,
    commit_of,
    directory_of,
    identifier_of,
    paths_of,
    unused_metadata,
)
from wings_core.times import now_us

FILES_PER_COMMIT = 1_000
"""Most files that one commit adds."""

AWAY_SECONDS = 30.0
"""Time for which an unreachable catalog is not tried again; see `Tables.ask_again`."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TableStatus:
    """State of a topic's table."""

    identifier: str
    metadata_location: str | None
    """URL of the table's metadata; None before the first commit, or if the catalog is away."""
    snapshot_id: int | None
    """Id of the current snapshot; None if `metadata_location` is None."""
    rows: int
    lag_rows: int
    """Rows of the log that are not in the table yet."""
    lag_ms: int
    """Age of the oldest such row in milliseconds."""


@dataclass(slots=True)
class _File:
    """A segment of the log that belongs in the table."""

    partition: Partition
    rows: int = 0
    end_offset: int = -1
    schema_version: int = 1


class Tables:
    """Commits to the tables of topics. Thread-safe.

    Args:
        metadata: The log's metadata.
        catalog: The catalog of the tables.
        objects: The store of segments.
    """

    def __init__(self, metadata: Metadata, catalog: Catalog, objects: ObjectStore) -> None:
        self._registry = metadata.registry
        self._admin = metadata.admin
        self._states: TableStates = metadata.tables
        self.catalog = catalog
        self._objects = objects
        self._leases = LeaseKeeper(metadata.maintenance)
        self._committed_at: dict[str, float] = {}
        """Monotonic time of this process's last commit to each topic's table."""
        self._latest: dict[str, TableStatus] = {}
        """States at this process's last check for work, by table identifier."""
        self._away_until = 0.0
        """Monotonic time before which the catalog is not tried; see `AWAY_SECONDS`."""
        self._leaving: dict[str, Counter[str]] = {}
        """Segments that callers of `release` are waiting for, by topic."""
        self._lock = threading.Lock()
        """Guards the four attributes above; a leaf lock."""
        self._turn = threading.Lock()
        """Held during commits; only `_lock` is taken under it."""

    def close(self) -> None:
        """Wait for commits in progress, and close the catalog."""
        self._leases.close()
        self.catalog.close()

    def is_due(self, topic: Topic) -> bool:
        """Return whether this process's last commit is at least `table_commit_ms` old."""
        with self._lock:
            last = self._committed_at.get(topic.uuid)
        return last is None or time.monotonic() - last >= topic.config.table_commit_ms / 1_000

    def commit(self, topic: Topic, *, at_once: bool = True) -> bool:
        """Commit the log's segments of a topic to its table.

        Blocks during commits of other threads of this process.

        Args:
            topic: The topic, as read from metadata.
            at_once: Commit even if the last snapshot, of any node, is younger than
                `table_commit_ms`.

        Returns:
            False if another node holds the lease, the lease was lost, or the topic was replaced.

        Raises:
            Unavailable: The catalog or storage cannot be reached.
        """
        with self._turn:
            return self._commit_leased(topic, at_once=at_once)

    def ask_again(self) -> None:
        """Try the catalog again on the next call, even if it was unreachable a moment ago."""
        with self._lock:
            self._away_until = 0.0

    def _commit_leased(self, topic: Topic, *, at_once: bool) -> bool:
        self._check_catalog()
        try:
            with self._leases.hold(f"{topic.uuid} table") as held:
                return held is not None and self._commit(topic, held, at_once=at_once)
        except Unavailable as error:
            self._note(error)
            raise
        finally:
            self._look(topic)

    def _commit(self, topic: Topic, held: HeldLease, *, at_once: bool) -> bool:
        with self._lock:
            self._committed_at[topic.uuid] = time.monotonic()
        # Read afresh: files may have the latest schema version already.
        uuid, topic = topic.uuid, self._admin.get_topic(topic.name, fresh=True)
        if topic.uuid != uuid:
            return False  # Deleted and created again; the lease is for the earlier topic.
        try:
            if not at_once and self._is_fresh(topic):
                return True
            while self._step(topic, held):
                if not held.proceed():
                    return False
        except ConflictError as error:
            _logger.info("another node committed to the table of %s: %s", topic.name, error)
            return False
        return True

    def _look(self, topic: Topic) -> None:
        """Record the state of a table, whether or not a commit was made, and by any node."""
        with suppress(WingsError):
            status = self.status(topic)
            with self._lock:
                self._latest[status.identifier] = status

    def _is_fresh(self, topic: Topic) -> bool:
        """Return whether the last snapshot is younger than `table_commit_ms`."""
        table = self.catalog.find(topic)
        snapshot = None if table is None else table.current_snapshot()
        if snapshot is None:
            return False
        # A snapshot from the future comes from a node with a wrong clock.
        return 0 <= now_us() // 1_000 - snapshot.timestamp_ms < topic.config.table_commit_ms

    def latest(self) -> list[TableStatus]:
        """Return the states of tables at this process's last check for work."""
        with self._lock:
            return list(self._latest.values())

    def release(self, topic: Topic, folios: Collection[str]) -> bool:
        """Remove segments from a table before retention deletes them; returns whether all are gone.

        One commit removes the segments of all waiting threads.

        Raises:
            Unavailable: The catalog or storage cannot be reached.
        """
        if not self._holds(topic, folios):
            return True
        with self._lock:
            self._leaving.setdefault(topic.uuid, Counter()).update(folios)
        try:
            with self._turn:
                if self._holds(topic, folios):
                    self._commit_leased(topic, at_once=True)
            return not self._holds(topic, folios)
        finally:
            with self._lock:
                left = self._leaving[topic.uuid] - Counter(folios)
                if left:
                    self._leaving[topic.uuid] = left
                else:
                    del self._leaving[topic.uuid]

    def forget_deleted(self) -> None:
        """Drop the tables of topics that were deleted or no longer have a table.

        Raises:
            Unavailable: The catalog cannot be reached.
        """
        known = dict(self._states.tables())
        with self._lock:
            for identifier in self._latest.keys() - set(known.values()):
                del self._latest[identifier]  # Another node dropped it.
        for topic in all_topics(self._admin) if known else ():
            if topic.config.table is not None:
                known.pop(topic.uuid, None)
        problems: list[Unavailable] = []
        for uuid, identifier in known.items():
            try:
                self._forget(uuid, identifier)
            except Unavailable as error:  # The other tables are dropped all the same.
                self._note(error)
                problems.append(error)
        if problems:
            raise problems[0]

    def _forget(self, topic_uuid: str, identifier: str) -> None:
        self._check_catalog()
        with self._leases.hold(f"{topic_uuid} table") as held:
            if held is None:
                return
            self.catalog.drop(identifier, topic_uuid)
            for each in self._objects.list(directory_of(topic_uuid)):
                self._objects.delete(each.name)
            self._states.forget(topic_uuid)
            with self._lock:
                self._latest.pop(identifier, None)

    def status(self, topic: Topic) -> TableStatus:
        """Return the state of a topic's table; from metadata alone if the catalog is away.

        Raises:
            Unavailable: Metadata cannot be reached.
        """
        segments = self._states.segments(topic.uuid)
        table, number = self._found(topic) if segments else (None, 0)
        inside = [each for each in segments if _is_inside(each, number)]
        rows = sum(each.rows for each in inside)
        ends: dict[Partition, int] = {}
        for each in inside:
            ends[each.partition] = max(ends.get(each.partition, -1), each.end_offset)
        total, oldest = 0, now_us()
        for state in self._registry.partition_states(topic.uuid):
            total += state.next_offset - state.log_start_offset
            offset = max(ends.get(state.partition, -1) + 1, state.log_start_offset)
            if offset < state.next_offset:
                found = self._registry.locate(topic.uuid, state.partition, offset, 1).locations
                oldest = min([oldest, *(location.earliest_timestamp for location in found)])
        snapshot = None if table is None else table.current_snapshot()
        return TableStatus(
            identifier=".".join(identifier_of(topic)),
            metadata_location=None if table is None else table.metadata_location,
            snapshot_id=None if snapshot is None else snapshot.snapshot_id,
            rows=rows,
            lag_rows=max(0, total - rows),
            lag_ms=max(0, now_us() - oldest) // 1_000 if total > rows else 0,
        )

    def _found(self, topic: Topic) -> tuple[Any, int]:
        """Return the table and its last commit; None and the confirmed one if it is away."""
        if not self._is_away():
            try:
                table = self.catalog.find(topic)
                return table, 0 if table is None else commit_of(table)
            except Unavailable as error:
                _logger.warning("the table of %s cannot be loaded: %s", topic.name, error)
                self._note(error)
        return None, self._states.begin(topic.uuid, ".".join(identifier_of(topic)))

    def _is_away(self) -> bool:
        with self._lock:
            return time.monotonic() < self._away_until

    def _check_catalog(self) -> None:
        if self._is_away():
            raise Unavailable("the catalog of the tables could not be reached a moment ago")

    def _note(self, error: Unavailable) -> None:
        if error.facts.get("away"):
            with self._lock:
                self._away_until = time.monotonic() + AWAY_SECONDS

    def _holds(self, topic: Topic, folios: Collection[str]) -> bool:
        return any(each.folio in folios for each in self._states.segments(topic.uuid))

    def _step(self, topic: Topic, held: HeldLease) -> bool:
        """Make the planned commit, or plan the next; returns False if there is nothing to do."""
        with self._lock:
            leaving = set(self._leaving.get(topic.uuid, ()))
        table = self.catalog.table(topic)
        committed = self._states.begin(topic.uuid, ".".join(identifier_of(topic)))
        number = commit_of(table)
        segments = self._states.segments(topic.uuid)
        planned_of = {each.added for each in segments} | {each.removed for each in segments}
        is_known = number == committed or (number == committed + 1 and number in planned_of)
        if not is_known:
            # The table and metadata disagree: one of them is a restored or repaired copy.
            segments = self._adopted(table, topic, number, segments, held)
        elif number + 1 in planned_of:
            self._make(table, topic, number + 1, segments)
            return True
        elif number > committed:
            self._states.confirm(topic.uuid, number)
            segments = [each for each in segments if _is_inside(each, number)]
        known = {each.folio for each in segments if each.removed is None}
        wanted = self._wanted(topic)
        add = [folio for folio in wanted if folio not in known and folio not in leaving]
        remove = [folio for folio in known if folio not in wanted or folio in leaving]
        planned: list[TableSegment] = []
        for folio in add[:FILES_PER_COMMIT]:
            file = wanted[folio]
            if self._footer(folio).metadata.num_rows == file.rows:
                segment = TableSegment(
                    folio, file.partition, file.end_offset, file.rows, number + 1
                )
                planned.append(segment)
            else:
                _logger.warning("only a part of %s belongs to the log: it is not added", folio)
        if not planned and not remove:
            if self.catalog.expire(table):
                for name in unused_metadata(table, topic, self._objects):
                    self._objects.delete(name)
            return False
        return self._states.plan(topic.uuid, number + 1, planned, remove, held.lease)

    def _make(
        self, table: object, topic: Topic, number: int, segments: Sequence[TableSegment]
    ) -> None:
        """Make a planned commit."""
        add = [self._file_to_add(topic, each.folio) for each in segments if each.added == number]
        remove = [self._url(each.folio) for each in segments if each.removed == number]
        self.catalog.commit(table, number, add, remove)

    def _adopted(
        self,
        table: object,
        topic: Topic,
        number: int,
        segments: Sequence[TableSegment],
        held: HeldLease,
    ) -> list[TableSegment]:
        """Adopt the table's files into metadata, and return its segments."""
        _logger.warning("the table of %s has different files from metadata", topic.name)
        base = f"{self._objects.url.rstrip('/')}/"
        wanted = self._wanted(topic)
        before = {each.folio: each for each in segments}
        found: list[TableSegment] = []
        for path in sorted(paths_of(table)):
            folio = path.removeprefix(base)
            file = wanted.get(folio)
            earlier = before.get(folio)
            found.append(
                TableSegment(
                    folio,
                    file.partition if file else earlier.partition if earlier else Partition("null"),
                    file.end_offset if file else -1,
                    file.rows if file else 0,
                    number,
                )
            )
        if not self._states.adopt(topic.uuid, number, found, held.lease):
            raise Unavailable("the lease of the table was lost")
        return found

    def _wanted(self, topic: Topic) -> Mapping[str, _File]:
        """Return the segments of a topic that belong in its table, by name."""
        found: dict[str, _File] = {}
        layout = layout_of(topic)
        for state in self._registry.partition_states(topic.uuid):
            for location in self._locations(topic, state):
                folio = location.address.folio
                if layout is not None and layout.has(folio):
                    file = found.setdefault(folio, _File(state.partition))
                    file.rows += location.rows
                    file.end_offset = location.end_offset
                    file.schema_version = location.schema_version
        return found

    def _locations(self, topic: Topic, state: PartitionState) -> Iterator[Location]:
        offset = state.log_start_offset
        while offset < state.next_offset:
            located = self._registry.locate(
                topic.uuid, state.partition, offset, state.next_offset - offset
            )
            if not located.locations:
                return
            yield from located.locations
            offset = located.locations[-1].end_offset + 1

    def _file_to_add(self, topic: Topic, folio: str) -> FileToAdd:
        footer = self._footer(folio)
        version = int((footer.metadata.metadata or {}).get(b"wings.schema_version", b"1"))
        return FileToAdd(self._url(folio), footer.size, footer.metadata, topic.at(version))

    def _footer(self, folio: str) -> ParquetFooter:
        def read(start: int, end: int) -> pa.Buffer:
            return self._objects.read(folio, [(start, end)])[0]

        return read_footer(read, self._objects.size(folio))

    def _url(self, folio: str) -> str:
        return f"{self._objects.url.rstrip('/')}/{folio}"


def _is_inside(segment: TableSegment, number: int) -> bool:
    return segment.added <= number and (segment.removed is None or segment.removed > number)
