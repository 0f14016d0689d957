"""Commits of topics' segments to their tables: planned in metadata first, then made, once each.

    plan commit n in metadata ─▶ snapshot with wings.commit = n ─▶ confirm: what it removed may go

The table's last snapshot says which commit it has; metadata says what each is of. So after a
crash, or where an answer was lost, the next node sees whether commit n was made: if not, it makes
the same one. Of two nodes that make it at once, the catalog takes one, as each says which snapshot
it begins from. Files stay in the log's store until a commit took them out.
"""

import logging
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from wings_core.errors import NotFound, Unavailable
from wings_core.maintain.leases import LEASE_SECONDS, HeldLease, LeaseKeeper
from wings_core.metadata.interfaces import Metadata
from wings_core.metadata.tables import TableSegment, TableStates
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
    identifier_of,
    paths_of,
)
from wings_core.times import now_us

FILES_PER_COMMIT = 1_000
"""Files that one commit adds, at most."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TableStatus:
    """Where the table of a topic stands."""

    identifier: str
    metadata_location: str | None
    """None: no commit was made yet."""
    snapshot_id: int | None
    rows: int
    lag_rows: int
    """Rows of the log that are not in the table."""
    lag_ms: int
    """The age of the oldest of them."""


@dataclass(slots=True)
class _File:
    """A segment of the log that belongs into the table."""

    partition: Partition
    rows: int = 0
    end_offset: int = -1
    schema_version: int = 1


class Tables:
    """Commits to the tables of topics; all methods may be called from any thread.

    Args:
        metadata: Of the log.
        states: Remembers commits.
        catalog: Has the tables.
        objects: Where segments are.
    """

    def __init__(
        self, metadata: Metadata, states: TableStates, catalog: Catalog, objects: ObjectStore
    ) -> None:
        self._registry = metadata.registry
        self._admin = metadata.admin
        self._states = states
        self.catalog = catalog
        self._objects = objects
        self._leases = LeaseKeeper(metadata.maintenance, LEASE_SECONDS)
        self._committed_at: dict[str, float] = {}
        """By topic, of this process, by the monotonic clock."""
        self._latest: dict[str, TableStatus] = {}
        """After the last commit of this process, by identifier."""
        self._lock = threading.Lock()
        """Of the two; nothing else is locked under it."""

    def close(self) -> None:
        """Let commits under way end, and close the catalog."""
        self._leases.close()
        self.catalog.close()

    def is_due(self, topic: Topic) -> bool:
        """Tell whether the last commit of this process is long enough ago."""
        with self._lock:
            last = self._committed_at.get(topic.uuid)
        return last is None or time.monotonic() - last >= topic.config.table_commit_ms / 1_000

    def commit(self, topic: Topic, leaving: Collection[str] = (), *, at_once: bool = True) -> bool:
        """Bring the table of a topic to what the log has in segments.

        Args:
            topic: As metadata has it.
            leaving: Segments that are about to go: they are taken out.
            at_once: Also where the last snapshot, of any node, is younger than `table_commit_ms`.

        Returns:
            False where another node is at it, or it has lost its lease, or the topic is another.

        Raises:
            Unavailable: The catalog, or storage, cannot be reached.
        """
        with self._leases.hold(f"{topic.uuid} table") as held:
            if held is None:
                return False
            with self._lock:
                self._committed_at[topic.uuid] = time.monotonic()
            # The last version of its schema, of which files may be already.
            uuid, topic = topic.uuid, self._admin.get_topic(topic.name, fresh=True)
            if topic.uuid != uuid:
                return False  # Deleted and created again, while the lease is of the one before.
            try:
                if not at_once and self._is_fresh(topic):
                    return True
                while self._step(topic, leaving, held):
                    if not held.proceed():
                        return False
            except ConflictError as error:
                _logger.info("another node committed to the table of %s: %s", topic.name, error)
                return False
            status = self.status(topic)
            with self._lock:
                self._latest[status.identifier] = status
            return True

    def _is_fresh(self, topic: Topic) -> bool:
        """Tell whether the last snapshot is younger than `table_commit_ms`."""
        table = self.catalog.find(topic)
        snapshot = None if table is None else table.current_snapshot()
        if snapshot is None:
            return False
        # One of the future is of a node whose clock is off.
        return 0 <= now_us() // 1_000 - snapshot.timestamp_ms < topic.config.table_commit_ms

    def latest(self) -> list[TableStatus]:
        """Return where tables stood after the last commits of this process."""
        with self._lock:
            return list(self._latest.values())

    def release(self, topic: Topic, folios: Collection[str]) -> bool:
        """Take segments out of a table, before retention drops them; tell whether they are out."""
        if not self._holds(topic, folios):
            return True
        return self.commit(topic, folios) and not self._holds(topic, folios)

    def forget_deleted(self) -> None:
        """Drop the tables of topics that were deleted, or are tables no longer.

        Raises:
            Unavailable: The catalog cannot be reached.
        """
        known = dict(self._states.tables())
        for topic in self._topics() if known else ():
            if topic.config.table is not None:
                known.pop(topic.uuid, None)
        for uuid, identifier in known.items():
            with self._leases.hold(f"{uuid} table") as held:
                if held is not None:
                    self.catalog.drop(identifier, uuid)
                    self._states.forget(uuid)
                    with self._lock:
                        self._latest.pop(identifier, None)

    def status(self, topic: Topic) -> TableStatus:
        """Return where a topic's table stands.

        Raises:
            Unavailable: The catalog cannot be reached.
        """
        segments = self._states.segments(topic.uuid)
        table = self.catalog.find(topic) if segments else None
        number = 0 if table is None else commit_of(table)
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

    def _holds(self, topic: Topic, folios: Collection[str]) -> bool:
        return any(each.folio in folios for each in self._states.segments(topic.uuid))

    def _topics(self) -> Iterator[Topic]:
        for namespace in self._admin.list_namespaces():
            try:
                yield from self._admin.list_topics(namespace.name)
            except NotFound:
                continue

    def _step(self, topic: Topic, leaving: Collection[str], held: HeldLease) -> bool:
        """Make the commit that is planned, or plan the next; False where nothing is to do."""
        table = self.catalog.table(topic)
        committed = self._states.begin(topic.uuid, ".".join(identifier_of(topic)))
        number = commit_of(table)
        segments = self._states.segments(topic.uuid)
        planned_of = {each.added for each in segments} | {each.removed for each in segments}
        is_known = number == committed or (number == committed + 1 and number in planned_of)
        if not is_known:
            # It is another table than metadata knows, by a restored or repaired copy of either.
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
                _logger.warning("only a part of %s is the log's: it is not added", folio)
        if not planned and not remove:
            self.catalog.expire(table)
            return False
        return self._states.plan(topic.uuid, number + 1, planned, remove, held.lease)

    def _make(
        self, table: object, topic: Topic, number: int, segments: Sequence[TableSegment]
    ) -> None:
        """Make a commit that was planned."""
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
        """Take over what a table has, and return it."""
        _logger.warning("the table of %s has other files than metadata knows", topic.name)
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
        """Return the segments of a topic that belong into its table, by name."""
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
