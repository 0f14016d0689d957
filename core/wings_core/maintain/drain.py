"""The drain: gathers the inline pages of small flushes into pages of the hot store.

    find inline pages ─▶ read, gather by partition ─▶ write the pages ─▶ swap, one transaction

A small flush is durable in the transaction that assigns its offsets (`InlineFolios`): one sync
instead of two. Within about a second its rows move to the hot store, those of a partition from many
flushes together, with the timestamp of each row. The swap is the only visible step: unreferenced
pages are deleted later. It checks that all pages are unchanged, and the transaction that removes
the last page of a folio deletes its bytes. A drain may therefore stop at any point; an index of
metadata finds the remaining pages, after a crash too.

One node at a time, the holder of a lease, drains the pages of all nodes. The idea is that of a
write-ahead log whose entries move to the tables of a log-structured merge tree (O'Neil et al.
1996).
"""

import logging
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from typing import Any, NamedTuple

import pyarrow as pa

from wings_core.errors import NotFound, ResourceExhausted, StorageCorrupt, WingsError
from wings_core.ingest.prepare import SHARED_PAGE_BYTES, SHARED_PAGE_ROWS
from wings_core.ingest.route import bytes_of_runs
from wings_core.maintain.plan import parts_of_rows
from wings_core.maintain.tiering import joined
from wings_core.metadata.interfaces import Admin, Metadata
from wings_core.metadata.maintenance import Maintenance, MaintenanceLease
from wings_core.model import (
    InlineFolio,
    InlinePage,
    Location,
    PageAddress,
    PageFormat,
    Replacement,
    Topic,
)
from wings_core.partitions import Partition
from wings_core.schema_versions import SchemaVersions
from wings_core.storage.codecs import DRAINS, Wanted, read_pages
from wings_core.storage.inline_folios import InlineFolios
from wings_core.storage.interfaces import EncodedPage, FolioStore
from wings_core.storage.lru import Lru
from wings_core.storage.page import PageEncoder

FLUSH_BYTES_MAX = 64 * 1024
"""Largest inline flush; for larger ones a second sync costs less than writing the bytes twice
(0.82 ms against 2.07 on one disk at this size)."""

LINGERING_FLUSH_BYTES_MAX = 256 * 1024
"""Largest inline flush if storage is an object store, for whose PUT batches are gathered."""

INLINE_ROWS_MAX = SHARED_PAGE_ROWS
"""Most rows of an inline flush."""

DRAIN_BYTES = 1024 * 1024
"""Inline bytes of this process that start a drain."""

IDLE_SECONDS = 10.0
"""Interval of unprompted checks, since another node may have stopped before its drain."""

RETRY_SECONDS = 1.0
"""Pause after a failure of storage or metadata."""

LEASE = "inline folios"
"""Name of the drain's lease."""

LEASE_SECONDS = 15.0

LEASE_SAFE_SECONDS = 5.0
"""Remaining time of the lease below which it is prolonged before a round."""

LEASE_IDLE_SECONDS = 2.0
"""Time that an idle lease is kept for the next drain; acquiring and releasing it each time adds
two synced transactions."""

ROUND_PAGES = 4_096
"""Most pages listed per round."""

ROUND_BYTES = 8 * 1024 * 1024
"""Approximate bytes of pages read per round."""

ROUND_ROWS = 1024 * 1024
"""Approximate rows read per round: each gets a timestamp, and may have no other bytes."""

SWAPPED_PAGES = 1_000
"""Approximate pages replaced per transaction, so that pushes never wait long for it."""

DAMAGED_MAX = 65_536
"""Most damaged pages remembered; they are not moved."""

_logger = logging.getLogger(__name__)


class Drain:
    """The background drain, on a thread of its own, and the admission of inline flushes.

    Args:
        metadata: The log's metadata, which stores inline folios.
        folios: Reads inline folios.
        store: Store that pages are written to and read from.
        backlog_bytes_max: Most inline bytes; 0 disables inline flushes.
        flush_bytes_max: Largest inline flush in bytes.
        delay_seconds: Longest delay from a flush to its drain.
        holder: Holder of the lease; unique among the processes that share the metadata.
    """

    def __init__(
        self,
        metadata: Metadata,
        folios: InlineFolios,
        store: FolioStore,
        backlog_bytes_max: int,
        flush_bytes_max: int,
        delay_seconds: float,
        holder: str | None = None,
    ) -> None:
        self._admin: Admin = metadata.admin
        self._versions = SchemaVersions(metadata.admin)
        self._maintenance: Maintenance = metadata.maintenance
        self._folios = folios
        self._store = store
        self._backlog_bytes_max = backlog_bytes_max
        self.flush_bytes_max = flush_bytes_max
        self._delay_seconds = delay_seconds
        self._holder = holder or uuid.uuid4().hex
        self._lock = threading.Lock()
        """Guards the fields below; a leaf lock."""
        self._changed = threading.Condition(self._lock)
        self._noted_bytes = 0
        """Bytes flushed since the last listing."""
        self._noted_at: float | None = time.monotonic()
        """Monotonic time of the first of them; initially the start, for pages left by a crash."""
        self._known_bytes = 0
        """Bytes at the last listing, minus those moved since."""
        self.failure: WingsError | None = None
        """Error of the last drain, or None."""
        self.pages_drained = 0
        """Pages drained since the start."""
        self._closing = False
        self._lease: MaintenanceLease | None = None
        """The lease, kept between drains."""
        self._leased_at = 0.0
        """Monotonic time of its last prolongation."""
        self._damaged: Lru[PageAddress, bool] = Lru(DAMAGED_MAX)
        self._draining = threading.Lock()
        """Held during a drain; always taken first."""
        self._thread = threading.Thread(target=self._run, name="wings-drain", daemon=True)
        self._thread.start()

    @property
    def backlog_bytes(self) -> int:
        """Approximate bytes in inline folios; those of other nodes as of the last listing."""
        return self._known_bytes + self._noted_bytes

    def has_room(self, size: int) -> bool:
        """Return whether a flush of `size` bytes may be stored inline."""
        backlog = self._known_bytes + self._noted_bytes
        return size <= self.flush_bytes_max and backlog + size <= self._backlog_bytes_max

    def begin(self, pages: Sequence[EncodedPage]) -> tuple[InlineFolio, list[PageAddress]] | None:
        """Begin an inline folio; the caller ends it with `note` or `forget`.

        Args:
            pages: Pages of a flush, at least one.

        Returns:
            The folio and the address of each page; None if they go to storage.

        Raises:
            ResourceExhausted: The backlog is full, and draining to storage fails.
        """
        rows = size = 0
        for page in pages:
            rows += page.rows
            size += page.length
        if rows > INLINE_ROWS_MAX:
            return None
        if self.has_room(size):
            return self._folios.begin(pages)
        failure = self.failure
        if failure is not None and self._backlog_bytes_max and size <= self.flush_bytes_max:
            raise ResourceExhausted(
                f"{self.backlog_bytes} bytes of small pushes in metadata wait to be moved to "
                f"storage, the limit is {self._backlog_bytes_max}; storage fails: "
                f"{failure.message}"
            ) from failure
        return None

    def note(self, inline: InlineFolio) -> None:
        """Record that a folio was committed."""
        with self._lock:  # Faster than entering the condition, which takes two Python calls.
            self._noted_bytes += len(inline.data)
            if self._noted_at is None:
                self._noted_at = time.monotonic()
                self._changed.notify()
            elif self._noted_bytes >= DRAIN_BYTES:
                self._changed.notify()

    def forget(self, inline: InlineFolio) -> None:
        """Record that the commit of a folio failed."""
        self._folios.forget(inline.name)

    def run(self) -> bool:
        """Drain all pages that are inline and visible at the call; blocks until done.

        Returns:
            False if another node drains, or some pages changed meanwhile.

        Raises:
            WingsError: Storage or metadata fails; the remaining pages are drained later.
        """
        with self._draining:
            return self._drain()

    def close(self) -> None:
        """Stop after the current step; remaining pages are drained after the next start."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._release()

    def _run(self) -> None:
        pause = 0.0
        while self._wait(pause):
            pause = 0.0
            try:
                if not self.run():
                    pause = RETRY_SECONDS
                self.failure = None
            except WingsError as error:
                if self.failure is None:
                    _logger.warning("could not move small pushes to storage: %s", error)
                self.failure = error
                pause = RETRY_SECONDS
            except BaseException:  # Any fault, even a panic in Rust, only costs this round.
                _logger.exception("could not move small pushes to storage")
                pause = RETRY_SECONDS

    def _wait(self, pause: float) -> bool:
        """Wait until a drain is due; returns False if the log closes.

        Args:
            pause: Seconds to wait before retrying an unfinished drain.
        """
        began = time.monotonic()
        with self._changed:
            while not self._closing:
                due = began + (pause or (LEASE_IDLE_SECONDS if self._lease else IDLE_SECONDS))
                if not pause and self._noted_at is not None:
                    due = self._noted_at + self._delay_seconds
                    if self._noted_bytes >= DRAIN_BYTES:
                        break
                left = due - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            return not self._closing

    def _drain(self) -> bool:
        while not self._closing:
            with self._changed:
                noted, self._noted_bytes, self._noted_at = self._noted_bytes, 0, None
                self._known_bytes += noted
            backlog = self._maintenance.inline_backlog(ROUND_PAGES)
            self._known_bytes = backlog.bytes
            sound = [page for page in backlog.pages if self._is_sound(page)]
            pages = list(_first_bytes(sound))
            if not pages:
                self._release()
                return True
            lease = self._take_lease()
            if lease is None:
                return False
            done = False
            try:
                done = self._move(pages, lease)
            finally:
                if not done:
                    self._release()  # Another node may be able to.
            if not done:
                return False
            self._known_bytes -= sum(page.location.bytes for page in pages)
            if len(pages) == len(sound) and len(backlog.pages) < ROUND_PAGES:
                return True  # Later flushes are gathered for the next drain.
        return False

    def _take_lease(self) -> MaintenanceLease | None:
        """Return the lease with enough time for a round; None if another node holds it."""
        now = time.monotonic()
        if self._lease is None or now > self._leased_at + LEASE_SECONDS - LEASE_SAFE_SECONDS:
            self._lease = None
            token = self._maintenance.acquire_lease(LEASE, self._holder, LEASE_SECONDS)
            if token is None:
                return None
            self._lease, self._leased_at = MaintenanceLease(LEASE, self._holder, token), now
            with self._changed:
                self._changed.notify()  # To release it once idle, as others wait for it.
        return self._lease

    def _release(self) -> None:
        """Release the lease."""
        if self._lease is not None:
            self._lease = None
            try:
                self._maintenance.release_lease(LEASE, self._holder)
            except WingsError as error:  # It will expire.
                _logger.info("could not release the lease of the drain: %s", error)

    def _is_sound(self, page: InlinePage) -> bool:
        return page.location.address not in self._damaged

    def _move(self, pages: Sequence[InlinePage], lease: MaintenanceLease) -> bool:
        """Move pages to storage; returns whether all sound ones were moved."""
        runs: list[_Run] = []
        gathered: list[_Gathered] = []
        # Pages are listed by partition, and those of several topics may have been made in turn.
        by_topic = sorted(pages, key=lambda page: page.topic_uuid)
        for _, some in groupby(by_topic, lambda page: page.topic_uuid):
            of_topic = list(some)
            topic = self._topic(of_topic[0])
            if topic is not None:
                topic = self._versions.newest(topic, (page.location for page in of_topic))
                of_topic, parts = self._read(topic, of_topic)
                if of_topic:
                    rows = joined(parts, DRAINS.schema(topic))
                    own = list(_runs(topic, of_topic))
                    gathered += _pages_of(own, rows, DRAINS.encoder(topic))
                    runs += own
        if not gathered:
            return False  # The next listing may return the same pages: retry later.
        addresses = self._store.write([page.encoded for page in gathered])
        for page, address in zip(gathered, addresses, strict=True):
            page.place(address)
        done = True
        for replacements in _transactions(runs):
            replaced = self._maintenance.replace_all(replacements, lease)
            done = done and all(replaced)
            gone = [
                location
                for each, was in zip(replacements, replaced, strict=True)
                if was
                for location in each.old
            ]
            self.pages_drained += len(gone)
            for folio in {location.address.folio for location in gone}:
                self._folios.forget(folio)  # Metadata has its other pages, if any.
        return done

    def _topic(self, page: InlinePage) -> Topic | None:
        """Return the topic of a page; None if it was deleted meanwhile."""
        try:
            topic = self._admin.get_topic(page.topic)
        except NotFound:
            return None
        return topic if topic.uuid == page.topic_uuid else None

    def _read(
        self, topic: Topic, pages: Sequence[InlinePage]
    ) -> tuple[list[InlinePage], list[tuple[pa.RecordBatch, "int | pa.Array[Any]"]]]:
        """Return the pages that can be read, with their rows and timestamps.

        Others are skipped and remembered.
        """
        # A page of a folio has slices of many partitions, and is read once.
        order = sorted(range(len(pages)), key=lambda index: pages[index].location.address)
        locations = [pages[index].location for index in order]
        wanted = Wanted(timestamps=True)
        try:
            found = dict(zip(order, read_pages(self._store, topic, locations, wanted), strict=True))
        except StorageCorrupt:
            found = {}
            for index, location in zip(order, locations, strict=True):
                try:
                    (found[index],) = read_pages(self._store, topic, [location], wanted)
                except StorageCorrupt as error:
                    if not error.facts.get("missing"):  # Otherwise it was deleted or drained.
                        self._damaged.put(location.address, True)
                        _logger.warning("a page of %s stays in metadata: %s", topic.name, error)
        return [pages[index] for index in sorted(found)], [
            (found[index].rows, found[index].timestamps) for index in sorted(found)
        ]


@dataclass(frozen=True, slots=True)
class _Run:
    """Rows of consecutive pages of a partition."""

    topic_uuid: str
    partition: Partition
    old: tuple[Location, ...]
    first: int
    """Index of the first row in the rows of the topic."""
    schema_version: int
    new: list[Location] = field(default_factory=list[Location])
    """Their locations in storage."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.old[-1].end_offset + 1 - self.old[0].start_offset


def _runs(topic: Topic, pages: Sequence[InlinePage]) -> Iterator[_Run]:
    """Yield the runs of pages of a topic, which are in the order of partitions and offsets."""
    old: list[Location] = []
    first = 0
    for page, following in zip_longest(pages, pages[1:]):
        old.append(page.location)
        if (
            following is None
            or following.partition != page.partition
            or following.location.start_offset != page.location.end_offset + 1
        ):
            run = _Run(topic.uuid, page.partition, tuple(old), first, topic.schema_version)
            yield run
            first += run.rows
            old = []


class _Part(NamedTuple):
    """Rows of a run in one page."""

    run: _Run
    first: int
    """Index of the first row in the rows of the topic."""
    rows: int
    first_timestamp: int
    timestamp: int
    """Timestamp of the last row."""
    size: int
    """Approximate decoded size of the run in bytes."""


@dataclass(frozen=True, slots=True)
class _Gathered:
    """A page to write, and the parts of runs in it, in order."""

    encoded: EncodedPage
    parts: Sequence[_Part]

    def place(self, address: PageAddress) -> None:
        """Add the locations of each run's rows, given the page's address."""
        alone = len(self.parts) == 1
        first_row = start = 0
        total = sum(part.size for part in self.parts)
        for run, first, rows, first_timestamp, timestamp, size in self.parts:
            end = start + size
            # From the rounded start and end, so that the slices add up to the page.
            share = address.length * end // total - address.length * start // total
            start_offset = run.old[0].start_offset + first - run.first
            run.new.append(
                Location(
                    start_offset,
                    start_offset + rows - 1,
                    timestamp,
                    address,
                    first_timestamp,
                    PageFormat.DRAINED,
                    None if alone else first_row,
                    None if alone else share,
                    run.schema_version,
                )
            )
            first_row += rows
            start = end


def _pages_of(
    runs: Sequence[_Run], rows: pa.RecordBatch, encoder: PageEncoder
) -> Iterator[_Gathered]:
    """Yield the pages of one topic's runs: large runs get their own, small ones share.

    Args:
        runs: The runs, in order.
        rows: The rows of all of them, in the schema `DrainedCodec.schema`.
        encoder: Encoder of such rows.
    """
    shared: list[_Part] = []
    shared_bytes = 0
    for part in _parts(runs, rows):
        if shared and shared_bytes + part.size > SHARED_PAGE_BYTES:
            yield _gathered(shared, rows, encoder)
            shared, shared_bytes = [], 0
        shared.append(part)
        shared_bytes += part.size
    yield _gathered(shared, rows, encoder)


def _parts(runs: Sequence[_Run], rows: pa.RecordBatch) -> Iterator[_Part]:
    """Yield the parts of runs, in order; none is larger than a page should be."""
    times = rows.column(rows.num_columns - 1).cast(pa.int64())
    sizes = bytes_of_runs(rows, [(run.partition, run.rows) for run in runs])
    for run, size in zip(runs, sizes, strict=True):
        for first, count in parts_of_rows(run.rows, size):
            first += run.first
            last = first + count - 1
            yield _Part(run, first, count, times[first].as_py(), times[last].as_py(), size)


def _gathered(parts: Sequence[_Part], rows: pa.RecordBatch, encoder: PageEncoder) -> _Gathered:
    first = parts[0].first
    end = parts[-1].first + parts[-1].rows
    return _Gathered(encoder.encode(rows.slice(first, end - first)), parts)


def _first_bytes(pages: Iterable[InlinePage]) -> Iterator[InlinePage]:
    """Yield the first pages, up to `ROUND_BYTES` or `ROUND_ROWS`, at least one."""
    size = rows = 0
    for page in pages:
        yield page
        size += page.location.bytes
        rows += page.location.rows
        if size >= ROUND_BYTES or rows >= ROUND_ROWS:
            return


def _transactions(runs: Iterable[_Run]) -> Iterator[list[Replacement]]:
    """Yield the replacements of each transaction: up to `SWAPPED_PAGES`, or one longer run."""
    some: list[Replacement] = []
    pages = 0
    for run in runs:
        if some and pages + len(run.old) > SWAPPED_PAGES:
            yield some
            some, pages = [], 0
        some.append(Replacement(run.topic_uuid, run.partition, run.old, tuple(run.new)))
        pages += len(run.old)
    if some:
        yield some
