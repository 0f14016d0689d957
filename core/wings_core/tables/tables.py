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
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from wings_core.errors import Unavailable, WingsError
from wings_core.maintain import leases
from wings_core.maintain.leases import HeldLease, LeaseKeeper
from wings_core.metadata.interfaces import Metadata, all_topics
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
    directory_of,
    identifier_of,
    paths_of,
    unused_metadata,
)
from wings_core.times import now_us

FILES_PER_COMMIT = 1_000
"""Files that one commit adds, at most."""

AWAY_SECONDS = 30.0
"""How long descriptions and commits do without a catalog that was away; see `Tables.ask_again`."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TableStatus:
    """Where the table of a topic stands."""

    identifier: str
    metadata_location: str | None
    """None: no commit was made yet, or the catalog cannot be reached."""
    snapshot_id: int | None
    """None where `metadata_location` is."""
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
        catalog: Has the tables.
        objects: Where segments are.
    """

    def __init__(self, metadata: Metadata, catalog: Catalog, objects: ObjectStore) -> None:
        self._registry = metadata.registry
        self._admin = metadata.admin
        self._states: TableStates = metadata.tables
        self.catalog = catalog
        self._objects = objects
        self._leases = LeaseKeeper(metadata.maintenance, leases.LEASE_SECONDS)
        self._committed_at: dict[str, float] = {}
        """The last commit of this process to each topic's table, by the monotonic clock."""
        self._latest: dict[str, TableStatus] = {}
        """Statuses when this process last looked whether to commit, by identifier."""
        self._away_until = 0.0
        """The catalog is not asked before, by the monotonic clock; see `AWAY_SECONDS`."""
        self._leaving: dict[str, Counter[str]] = {}
        """Segments that callers of `release` wait for, by topic."""
        self._lock = threading.Lock()
        """Guards these four; nothing else is locked under it."""
        self._turn = threading.Lock()
        """Held during commits; `_lock` alone is locked under it."""

    def close(self) -> None:
        """Let commits under way end, and close the catalog."""
        self._leases.close()
        self.catalog.close()

    def is_due(self, topic: Topic) -> bool:
        """Tell whether the last commit of this process is long enough ago."""
        with self._lock:
            last = self._committed_at.get(topic.uuid)
        return last is None or time.monotonic() - last >= topic.config.table_commit_ms / 1_000

    def commit(self, topic: Topic, *, at_once: bool = True) -> bool:
        """Bring the table of a topic to what the log has in segments.

        Waits for what other threads of this process commit.

        Args:
            topic: As metadata has it.
            at_once: Also where the last snapshot, of any node, is younger than `table_commit_ms`.

        Returns:
            False where another node is at it, or it has lost its lease, or the topic is another.

        Raises:
            Unavailable: The catalog, or storage, cannot be reached.
        """
        with self._turn:
            return self._commit_leased(topic, at_once=at_once)

    def ask_again(self) -> None:
        """Ask the catalog again, though it could not be reached a moment ago."""
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
        # The last version of its schema, of which files may be already.
        uuid, topic = topic.uuid, self._admin.get_topic(topic.name, fresh=True)
        if topic.uuid != uuid:
            return False  # Deleted and created again, while the lease is of the one before.
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
        """Note where a table stands, whichever node committed to it, and also if none could."""
        with suppress(WingsError):
            status = self.status(topic)
            with self._lock:
                self._latest[status.identifier] = status

    def _is_fresh(self, topic: Topic) -> bool:
        """Tell whether the last snapshot is younger than `table_commit_ms`."""
        table = self.catalog.find(topic)
        snapshot = None if table is None else table.current_snapshot()
        if snapshot is None:
            return False
        # One of the future is of a node whose clock is off.
        return 0 <= now_us() // 1_000 - snapshot.timestamp_ms < topic.config.table_commit_ms

    def latest(self) -> list[TableStatus]:
        """Return where tables stood when this process last looked whether to commit to them."""
        with self._lock:
            return list(self._latest.values())

    def release(self, topic: Topic, folios: Collection[str]) -> bool:
        """Take segments out of a table, before retention drops them; tell whether they are out.

        One commit takes out those of all threads that wait for another.

        Raises:
            Unavailable: The catalog, or storage, cannot be reached.
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
        """Drop the tables of topics that were deleted, or are tables no longer.

        Raises:
            Unavailable: The catalog cannot be reached.
        """
        known = dict(self._states.tables())
        with self._lock:
            for identifier in self._latest.keys() - set(known.values()):
                del self._latest[identifier]  # Dropped by another node.
        for topic in all_topics(self._admin) if known else ():
            if topic.config.table is not None:
                known.pop(topic.uuid, None)
        problems: list[Unavailable] = []
        for uuid, identifier in known.items():
            try:
                self._forget(uuid, identifier)
            except Unavailable as error:  # Which keeps no other from it.
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
        """Return where a topic's table stands; by metadata alone where its catalog is away.

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
        """Return a table and its last commit; without a catalog None, and the last confirmed."""
        if not self._is_away():
            try:
                table = self.catalog.find(topic)
                return table, 0 if table is None else commit_of(table)
            except Unavailable as error:
                _logger.warning("the table of %s is not found now: %s", topic.name, error)
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
        """Make the commit that is planned, or plan the next; False where nothing is to do."""
        with self._lock:
            leaving = set(self._leaving.get(topic.uuid, ()))
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
            if self.catalog.expire(table):
                for name in unused_metadata(table, topic, self._objects):
                    self._objects.delete(name)
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
