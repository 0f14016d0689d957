"""Check a log at rest: every page against metadata, and metadata against itself.

Pages are noted by their byte ranges in files, among which overlaps are searched for.
"""

import sqlite3
import struct
from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import pyarrow as pa

from wings_core.batches import check_batch
from wings_core.check.report import PROBLEMS_MAX, CheckReport, Page, Problem
from wings_core.errors import StorageCorrupt, TopicNotFound, WingsError
from wings_core.metadata.interfaces import Metadata
from wings_core.metadata.maintenance import PageCounts
from wings_core.model import Location, PartitionState, TierState, Topic, UnpublishedStage
from wings_core.names import NamespaceName, TopicName
from wings_core.partitions import Partition, partitions_of_keys
from wings_core.schemas import check_topic_schema
from wings_core.storage.codecs import CODECS
from wings_core.storage.interfaces import FolioStore

_INT64_MAX = (1 << 63) - 1

_NUMBERS = 7
"""Integers per page: position, first row, rows, end, index of its owner, first and last offset."""

_ALL_ROWS = -1
"""First row of a whole page, as opposed to a slice."""

_NO_OFFSET = -1
"""Offset of pages in a stage, which have none."""

_Owner = tuple[Topic, Partition, str | None]
"""The owner of pages: a partition of a topic, or a stage of it."""


class _Extents:
    """Byte ranges and their owners, by file; 56 bytes of memory a page or slice."""

    def __init__(self) -> None:
        self._owners: list[_Owner] = []
        self._indices: dict[tuple[str, Partition, str | None], int] = {}
        self._by_folio: dict[str, array[int]] = {}

    def add(self, page: Page) -> None:
        """Record the byte range and the owner of a page."""
        # Not keyed by the topic: hashing its schema for each page would be slow.
        key = (page.topic.uuid, page.partition, page.stage)
        owner = self._indices.get(key)
        if owner is None:
            owner = self._indices[key] = len(self._owners)
            self._owners.append((page.topic, page.partition, page.stage))
        address = page.address
        extents = self._by_folio.setdefault(address.folio, array("q"))
        extents.extend(
            (
                address.position,
                _ALL_ROWS if page.first_row is None else page.first_row,
                page.rows,
                min(address.position + max(0, address.length), _INT64_MAX),
                owner,
                _NO_OFFSET if page.start_offset is None else page.start_offset,
                _NO_OFFSET if page.end_offset is None else page.end_offset,
            )
        )

    def folios(self) -> set[str]:
        """Return the names of files with pages."""
        return set(self._by_folio)

    def pages_of(self, folio: str) -> tuple[Topic, list[tuple[int, int]]]:
        """Return the topic of a folio's first page, and each page's position and end, in order."""
        extents = self._by_folio[folio]
        pages = {(extents[at], extents[at + 3]) for at in range(0, len(extents), _NUMBERS)}
        return self._owners[extents[4]][0], sorted(pages)

    def overlaps(self) -> Iterator[Problem]:
        """Yield a problem for each page that overlaps the page before it.

        Slices of one page may share its bytes, but not its rows.
        """
        for folio, extents in sorted(self._by_folio.items()):
            reach, reached_by = 0, ""
            page, rows_reach = (_NO_OFFSET, _NO_OFFSET), 0
            for index in sorted(
                range(0, len(extents), _NUMBERS), key=lambda at: (extents[at], extents[at + 1])
            ):
                position, first_row, rows, end, owner, start_offset, end_offset = extents[
                    index : index + _NUMBERS
                ]
                topic, partition, stage = self._owners[owner]
                is_slice = first_row != _ALL_ROWS
                follows = is_slice and page == (position, end) and first_row >= rows_reach
                if position < min(reach, end) and not follows:
                    yield Problem(
                        f"it overlaps {reached_by}",
                        str(topic.name),
                        partition,
                        None if stage is not None else start_offset,
                        None if stage is not None else end_offset,
                        folio,
                        position,
                        stage,
                    )
                if is_slice:
                    rows_reach = max(rows_reach if page == (position, end) else 0, first_row + rows)
                    page = (position, end)
                if end > reach or follows:
                    reach = end
                    place = (
                        f"offsets {start_offset} to {end_offset}"
                        if stage is None
                        else f"of stage {stage}"
                    )
                    reached_by = (
                        f"the page at byte {position}, of {topic.name}, partition "
                        f"{partition}, {place}"
                    )


class Walk:
    """A pass over a partition that checks offsets, timestamps and bytes page by page."""

    def __init__(self, topic: Topic, state: PartitionState) -> None:
        self._topic = topic
        self._state = state
        self.next_offset = state.log_start_offset
        """Expected first offset of the next page."""
        self.is_sound = True
        """Whether no problem was found so far."""
        self._last_timestamp: int | None = None
        self._counts = PageCounts()

    @property
    def partition(self) -> Partition:
        """The partition."""
        return self._state.partition

    @property
    def tiers(self) -> list[TierState]:
        """Totals of each tier with pages, the hot tier first."""
        return self._counts.tiers(self.partition)

    def step(self, location: Location) -> Iterator[Problem]:
        """Yield the problems of the next page's location."""

        def wrong(message: str) -> Problem:
            self.is_sound = False
            return Page.of_location(self._topic, self._state.partition, location).problem(message)

        expected, start, end = self.next_offset, location.start_offset, location.end_offset
        first = self._last_timestamp is None
        if start > expected:
            yield self.problem("no page has these offsets", expected, start - 1)
        elif start < expected and not (first and end >= expected):
            yield wrong(f"its offsets repeat those before {expected}")
        if end < start:
            yield wrong("its last offset is before its first")
        if end >= self._state.next_offset:
            yield wrong(f"its offsets reach past the log's end, {self._state.next_offset}")
        first_of_page = location.earliest_timestamp
        if self._last_timestamp is not None and first_of_page < self._last_timestamp:
            yield wrong(
                f"its timestamp {first_of_page} is before {self._last_timestamp}, "
                "that of the page before"
            )
        if location.timestamp < first_of_page:
            yield wrong(f"its timestamps begin at {first_of_page} and end at {location.timestamp}")
        self._last_timestamp = location.timestamp
        self._counts += PageCounts.of_locations([location])
        self.next_offset = max(expected, end + 1)

    def finish(self) -> Iterator[Problem]:
        """Yield the problems of the partition as a whole, after its last page."""
        state = self._state
        if not 0 <= state.log_start_offset <= state.next_offset:
            yield self.problem(
                f"the log cannot start at {state.log_start_offset} and end at {state.next_offset}"
            )
        if self.next_offset < state.next_offset:
            yield self.problem("no page has these offsets", self.next_offset, state.next_offset - 1)
        if self._counts.bytes != state.bytes:
            yield self.problem(f"the pages have {self._counts.bytes} bytes, not {state.bytes}")
        if self._last_timestamp is not None and self._last_timestamp != state.last_timestamp:
            yield self.problem(
                f"the last timestamp is {self._last_timestamp}, not {state.last_timestamp}"
            )

    def problem(
        self, message: str, start_offset: int | None = None, end_offset: int | None = None
    ) -> Problem:
        """Return a problem of this partition."""
        self.is_sound = False
        topic, partition = str(self._topic.name), self._state.partition
        return Problem(message, topic, partition, start_offset, end_offset)


FAULTS = (
    *(WingsError, pa.ArrowException, OSError),
    *(ValueError, TypeError, LookupError, ArithmeticError, sqlite3.Error, struct.error),
)
"""Errors that damaged pages or metadata can raise; damaged metadata can hold any value."""

_Tiers = dict[Partition, list[TierState]]
"""Totals of each tier with pages by partition, the hot tier first."""

PAGES_LISTED = 1_000
"""Pages of a stage per request."""


def check_log(
    metadata: Metadata, store: FolioStore, progress: Callable[[int], None] | None = None
) -> CheckReport:
    """Read every page of a log and compare it with metadata.

    In each partition, offsets must have no gaps from the log's start to the next offset, timestamps
    must not decrease, and the totals of each tier must match. In each page, all checksums must
    match; the rows must be as many as its offsets, valid for the topic's schema, and of the
    partition's key; and no other page may overlap it. Pages in stages are checked alike. Damage is
    reported, never raised.

    Blocks while the whole log is read. Memory: 56 bytes a page, and the tiers' totals of one
    topic's partitions. Nothing is written. Pages that a running server drains, merges, moves or
    deletes meanwhile are looked up again.

    Args:
        metadata: The log's metadata; may be read-only.
        store: The store of the pages.
        progress: Called after each page with the number of pages done.
    """
    return _Check(metadata, store, progress).run()


class _Check:
    """One run of the check, and its findings so far."""

    def __init__(
        self, metadata: Metadata, store: FolioStore, progress: Callable[[int], None] | None
    ) -> None:
        self._admin = metadata.admin
        self._registry = metadata.registry
        self._stages = metadata.stages
        self._maintenance = metadata.maintenance
        self._store = store
        self._progress = progress
        self._problems: list[Problem] = []
        self._problems_total = 0
        self._topics = self._partitions = self._pages = self._rows = self._bytes = 0
        self._stages_checked = 0
        self._extents = _Extents()

    def run(self) -> CheckReport:
        for namespace in self._namespaces():
            for topic in self._topics_of(namespace):
                self._topics += 1
                self._check_topic(topic)
        for problem in self._extents.overlaps():
            self._report(problem)
        self._check_rests()
        unreferenced = self._unreferenced()
        return CheckReport(
            topics=self._topics,
            partitions=self._partitions,
            pages=self._pages,
            rows=self._rows,
            bytes=self._bytes,
            stages=self._stages_checked,
            problems=tuple(self._problems),
            problems_total=self._problems_total,
            unreferenced_folios=tuple(sorted(unreferenced)),
        )

    def _report(self, problem: Problem) -> None:
        self._problems_total += 1
        if len(self._problems) < PROBLEMS_MAX:
            self._problems.append(problem)

    @contextmanager
    def _reported(
        self, failed: str, topic: TopicName | NamespaceName | None = None
    ) -> Generator[None]:
        """Report a fault within the block as a problem; `failed` describes the step."""
        try:
            yield
        except FAULTS as error:
            message = f"{failed}: {_reason(error)}" if failed else _reason(error)
            self._report(Problem(message, topic=None if topic is None else str(topic)))

    def _namespaces(self) -> list[NamespaceName]:
        with self._reported("the namespaces cannot be listed"):
            return [namespace.name for namespace in self._admin.list_namespaces()]
        return []

    def _topics_of(self, namespace: NamespaceName) -> list[Topic]:
        with self._reported("the topics cannot be listed", namespace):
            return self._admin.list_topics(namespace)
        return []

    def _check_topic(self, topic: Topic) -> None:
        with self._reported("", topic.name):
            for schema in topic.schemas:
                check_topic_schema(schema, topic.partition_key)
        tiers = self._tiers(topic)
        states: Sequence[PartitionState] | None = None
        with self._reported("the partitions cannot be listed", topic.name), suppress(TopicNotFound):
            states = self._registry.partition_states(topic.uuid)
        if states is None:
            return  # It may have been deleted since it was listed.
        differing: list[Walk] = []
        for state in states:
            self._partitions += 1
            walk = Walk(topic, state)
            self._check_partition(topic, state, walk)
            if walk.is_sound and tiers is not None and walk.tiers != tiers.get(state.partition, []):
                differing.append(walk)
        if tiers is not None and differing:
            self._report_tiers(topic, differing, tiers)
        # After the partitions, so that stages published meanwhile are not found twice.
        self._check_stages(topic)

    def _tiers(self, topic: Topic) -> _Tiers | None:
        """Return the recorded totals of the topic's tiers; None if they cannot be read."""
        tiers: _Tiers = {}
        with self._reported("its tiers cannot be listed", topic.name), suppress(TopicNotFound):
            for tier in self._maintenance.tier_states(topic.uuid):
                tiers.setdefault(tier.partition, []).append(tier)
            return tiers
        return None  # It may have been deleted since it was listed.

    def _report_tiers(self, topic: Topic, walks: Sequence[Walk], counted: _Tiers) -> None:
        """Report partitions whose pages do not match the recorded totals of their tiers."""
        again = self._tiers(topic)
        if again is None:
            return
        for walk in walks:
            tiers = counted.get(walk.partition, [])
            # Read again: a running server may have changed them.
            if again.get(walk.partition, []) == tiers:
                message = f"its tiers have {_shown(walk.tiers)}, not {_shown(tiers)}"
                self._report(walk.problem(message))

    def _check_partition(self, topic: Topic, state: PartitionState, walk: Walk) -> None:
        try:
            for location in self._locations(topic, state):
                for problem in walk.step(location):
                    self._report(problem)
                self._check_page(Page.of_location(topic, state.partition, location))
        except FAULTS as error:
            message = f"the pages from offset {walk.next_offset} on cannot be found: "
            self._report(walk.problem(message + _reason(error)))
            return
        for problem in walk.finish():
            self._report(problem)

    def _locations(self, topic: Topic, state: PartitionState) -> Iterator[Location]:
        """Yield the locations of the partition's pages, one `locate` at a time."""
        offset, end = state.log_start_offset, state.next_offset
        while offset < end:
            located = self._registry.locate(topic.uuid, state.partition, offset, end - offset)
            # A server may have appended since the state was read.
            pages = [page for page in located.locations if page.start_offset < end]
            yield from pages
            if not pages or pages[-1].end_offset < offset:
                return
            offset = pages[-1].end_offset + 1

    def _check_stages(self, topic: Topic) -> None:
        stages: Sequence[UnpublishedStage] = ()
        with self._reported("the stages cannot be listed", topic.name):
            stages = self._stages.of_topic(topic.uuid)
        for stage in stages:
            self._stages_checked += 1
            self._check_stage(topic, stage)

    def _check_stage(self, topic: Topic, stage: UnpublishedStage) -> None:
        pages = rows = size = 0
        message = None
        try:
            # A server may have added to it since it was listed, or have published it.
            while pages < stage.pages:
                wanted = min(PAGES_LISTED, stage.pages - pages)
                found = self._stages.pages(stage.stage, pages, wanted)
                for page in found:
                    rows += page.rows
                    size += page.bytes
                    self._check_page(Page.staged(topic, stage.stage, page))
                pages += len(found)
                if len(found) < wanted:
                    break
        except FAULTS as error:
            message = f"its pages from number {pages} on cannot be found: {_reason(error)}"
        else:
            if (pages, rows, size) != (stage.pages, stage.rows, stage.bytes):
                message = (
                    f"there are {pages} pages with {rows} rows and {size} bytes, not "
                    f"{stage.pages}, {stage.rows} and {stage.bytes}"
                )
        if message is not None and self._is_there(topic, stage):
            self._report(Problem(message, topic=str(topic.name), stage=stage.stage))

    def _is_there(self, topic: Topic, stage: UnpublishedStage) -> bool:
        """Return whether a stage still exists: servers may publish or delete it meanwhile."""
        try:
            return any(each.stage == stage.stage for each in self._stages.of_topic(topic.uuid))
        except FAULTS:
            return True

    def _check_page(self, page: Page) -> None:
        self._extents.add(page)
        self._pages += 1
        self._bytes += page.bytes
        message = self._read(page)
        if message is not None and page.stage is None:
            message = self._read_moved(page, message)
        if message is not None:
            self._report(page.problem(message))
        if self._progress is not None:
            self._progress(self._pages)

    def _read(self, page: Page) -> str | None:
        """Read a page; returns its problem, or None."""
        try:
            batch = CODECS[page.format].check(self._store, page.written, page.address)
            if page.first_row is not None:
                batch = batch.slice(page.first_row, page.rows)
            self._rows += batch.num_rows
            return problem_of(batch, page)
        except FAULTS as error:
            return _reason(error)

    def _read_moved(self, page: Page, message: str) -> str | None:
        """Read an unreadable page again at its current location, if a server has moved it.

        Args:
            page: A page of the log.
            message: The problem at the first location.

        Returns:
            The problem at the current location; None if there is none, or the page was deleted.
        """
        assert page.start_offset is not None
        assert page.end_offset is not None
        try:
            found = self._registry.locate(
                page.topic.uuid, page.partition, page.start_offset, page.rows
            )
        except TopicNotFound:
            return None
        except FAULTS:
            return message
        if found.log_start_offset > page.end_offset:
            return None
        if not found.locations or any(each.address == page.address for each in found.locations):
            return message
        moved = (Page.of_location(page.topic, page.partition, each) for each in found.locations)
        return next((fault for each in moved if (fault := self._read(each)) is not None), None)

    def _check_rests(self) -> None:
        """Check the parts of files outside of pages."""
        for folio in sorted(self._extents.folios()):
            topic, pages = self._extents.pages_of(folio)
            try:
                found = list(self._store.check_rest(folio, pages))
            except FAULTS as error:
                if isinstance(error, StorageCorrupt) and error.facts.get("missing"):
                    continue  # Reported with its pages.
                found = [_reason(error)]
            for message in found:
                self._report(Problem(message, topic=str(topic.name), folio=folio))

    def _unreferenced(self) -> set[str]:
        with self._reported("the files cannot be compared"):
            # References are read last: no page is committed later to a file listed here.
            folios = self._store.folios()
            return folios - self._registry.live_folios() - self._extents.folios()
        return set()


def problem_of(batch: pa.RecordBatch, page: Page) -> str | None:
    """Return the problem of a page's rows, or None."""
    if batch.num_rows != page.rows:
        counted = "offsets for" if page.stage is None else "counts"
        return f"it has {batch.num_rows} rows, and {counted} {page.rows}"
    check_batch(page.written.schema, batch, stored=True)
    if page.topic.partition_key is not None:
        keys = cast("pa.Array[Any]", batch.column(page.topic.partition_key))
        for partition in partitions_of_keys(keys.unique()):
            if partition != page.partition:
                return f"it has rows of partition {partition:.80}"
    return None


def _shown(tiers: list[TierState]) -> str:
    shown = [
        f"{tier.pages} pages with {tier.rows} rows and {tier.bytes} bytes "
        f"{'merged' if tier.remote else 'as written'}"
        for tier in tiers
    ]
    return " and ".join(shown) or "no pages"


def _reason(error: BaseException) -> str:
    """Return an error's message, without the location that the problem names already."""
    if isinstance(error, StorageCorrupt) and isinstance(error.__cause__, StorageCorrupt):
        error = error.__cause__
    return error.message if isinstance(error, WingsError) else str(error)
