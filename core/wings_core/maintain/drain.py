"""The drain: what small flushes left in metadata is gathered into pages of the hot store.

    find what is inline ─▶ read, gather by partition ─▶ write the pages ─▶ swap, one transaction

A small flush is durable in the transaction that assigns its offsets (`InlineFolios`): one sync, not
two. Within about a second its rows move to where all others are, those of a partition from many
flushes together, with the timestamp of each row. Until the swap nothing has happened: pages that
nothing refers to are deleted some time. The swap looks whether all pages are still there just as
they were, and the transaction that takes the last page out of a folio deletes its bytes. So it may
end anywhere; what is left is found again, after a crash too, by an index of metadata.

One node at a time drains, the holder of a lease, and drains what all nodes left. The idea is that
of a write-ahead log that is moved into tables of a log-structured merge tree (O'Neil et al. 1996).
"""

import logging
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa

from wings_core.errors import NotFound, ResourceExhausted, StorageCorrupt, WingsError
from wings_core.ingest.prepare import SHARED_PAGE_BYTES, SHARED_PAGE_ROWS
from wings_core.maintain.plan import parts_of_rows
from wings_core.maintain.tiering import joined
from wings_core.metadata.interfaces import Admin, Metadata
from wings_core.metadata.maintenance import Lease, Maintenance
from wings_core.model import (
    InlineFolio,
    InlinePage,
    Location,
    PageAddress,
    Replacement,
    Topic,
)
from wings_core.partitions import Partition
from wings_core.schema_versions import SchemaVersions
from wings_core.storage.codecs import (
    DRAINED_FORMAT,
    DRAINS,
    PageRows,
    PushEncoder,
    Wanted,
    read_pages,
)
from wings_core.storage.inline_folios import InlineFolios
from wings_core.storage.interfaces import EncodedPage, FolioStore
from wings_core.storage.lru import Lru

FLUSH_BYTES_MAX = 64 * 1024
"""A flush of more bytes goes to storage, where a second sync costs less than to write them twice
(0.82 ms against 2.07 of one disk at this size)."""

LINGERING_FLUSH_BYTES_MAX = 256 * 1024
"""The same where storage is an object store, whose PUT gathers batches for a while."""

INLINE_ROWS_MAX = SHARED_PAGE_ROWS
"""A flush of more rows goes to storage too."""

DRAIN_BYTES = 1024 * 1024
"""Inline bytes of this process at which a drain begins."""

DRAIN_SECONDS = 0.75
"""How long after a flush one begins at the latest, so that it is over within a second."""

IDLE_SECONDS = 10.0
"""How often it looks without being told: another node may have ended before its drain."""

RETRY_SECONDS = 1.0
"""Between two tries where storage or metadata cannot be used."""

LEASE = "inline folios"
"""The name of the lease of the node that drains."""

LEASE_SECONDS = 15.0

LEASE_SAFE_SECONDS = 5.0
"""A drain begins with at least so much of its lease left, and prolongs it before."""

LEASE_IDLE_SECONDS = 2.0
"""How long the lease is kept for the next drain: to take and release it for each would be two
transactions more, each of them synced."""

ROUND_PAGES = 4_096
"""Pages that are looked for at a time."""

ROUND_BYTES = 8 * 1024 * 1024
"""Bytes of them that are read at a time, about."""

ROUND_ROWS = 1024 * 1024
"""Rows of them, about: each gets a timestamp, and may have no bytes else."""

SWAPPED_PAGES = 1_000
"""Pages whose place is taken in one transaction, about, so that pushes never wait long for it."""

DAMAGED_MAX = 65_536
"""Damaged pages that are remembered, and stay where they are."""

_logger = logging.getLogger(__name__)


class Drain:
    """Drains in the background, on a thread of its own, and says what may still come inline.

    Args:
        metadata: Where the folios are.
        folios: Reads them.
        store: Where pages go, and all are read.
        backlog_bytes_max: Inline bytes beyond which nothing more is taken; 0: nothing is.
        flush_bytes_max: The largest flush that is kept inline.
        holder: Of the lease; unique among the processes that share the metadata.
    """

    def __init__(
        self,
        metadata: Metadata,
        folios: InlineFolios,
        store: FolioStore,
        backlog_bytes_max: int,
        flush_bytes_max: int,
        holder: str | None = None,
    ) -> None:
        self._admin: Admin = metadata.admin
        self._versions = SchemaVersions(metadata.admin)
        self._maintenance: Maintenance = metadata.maintenance
        self._folios = folios
        self._store = store
        self._backlog_bytes_max = backlog_bytes_max
        self.flush_bytes_max = flush_bytes_max
        self._holder = holder or uuid.uuid4().hex
        self._lock = threading.Lock()
        """Guards the fields below; nothing else is locked under it."""
        self._changed = threading.Condition(self._lock)
        self._noted_bytes = 0
        """Bytes flushed since the last look."""
        self._noted_at: float | None = time.monotonic()
        """When the first of them came; at the start what a crash left may be there."""
        self._known_bytes = 0
        """Bytes at the last look, less those moved since."""
        self.failure: WingsError | None = None
        """Why the last drain failed; None: it did not."""
        self.pages_drained = 0
        """Since the start."""
        self._closing = False
        self._lease: Lease | None = None
        """Kept from one drain to the next,"""
        self._leased_at = 0.0
        """and when it was last prolonged."""
        self._damaged: Lru[PageAddress, bool] = Lru(DAMAGED_MAX)
        self._draining = threading.Lock()
        """Nothing else is locked before it."""
        self._thread = threading.Thread(target=self._run, name="wings-drain", daemon=True)
        self._thread.start()

    @property
    def backlog_bytes(self) -> int:
        """Bytes in inline folios, about: those of other nodes as of the last look."""
        return self._known_bytes + self._noted_bytes

    def has_room(self, size: int) -> bool:
        """Tell whether a flush of so many bytes may be kept inline."""
        backlog = self._known_bytes + self._noted_bytes
        return size <= self.flush_bytes_max and backlog + size <= self._backlog_bytes_max

    def begin(self, pages: Sequence[EncodedPage]) -> tuple[InlineFolio, list[PageAddress]] | None:
        """Begin an inline folio; `note` or `forget` ends it.

        Args:
            pages: Of a flush, one at least.

        Returns:
            The folio and where each page lies in it; None where they go to storage.

        Raises:
            ResourceExhausted: There is no room, and storage does not take what is drained.
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
                f"{self.backlog_bytes} bytes of small pushes wait in metadata to be moved to "
                f"storage, the limit is {self._backlog_bytes_max}; storage does not take them: "
                f"{failure.message}"
            ) from failure
        return None

    def note(self, inline: InlineFolio) -> None:
        """Say that a folio was committed."""
        with self._lock:  # Entered by C alone, where the condition takes two steps of Python.
            self._noted_bytes += len(inline.data)
            if self._noted_at is None:
                self._noted_at = time.monotonic()
                self._changed.notify()
            elif self._noted_bytes >= DRAIN_BYTES:
                self._changed.notify()

    def forget(self, inline: InlineFolio) -> None:
        """Say that the commit of a folio failed."""
        self._folios.forget(inline.name)

    def run(self) -> bool:
        """Drain all that is inline and visible when it is called; blocks until done.

        Returns:
            False where another node drains, or some pages were changed meanwhile.

        Raises:
            WingsError: Storage or metadata cannot be used; what is left is done later.
        """
        with self._draining:
            return self._drain()

    def close(self) -> None:
        """Stop after the step under way; what is left is done at the next start."""
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
            except BaseException:  # Of any fault, a panic of Rust code too, only the round is lost.
                _logger.exception("could not move small pushes to storage")
                pause = RETRY_SECONDS

    def _wait(self, pause: float) -> bool:
        """Wait until a drain is due; False: the log closes.

        Args:
            pause: It was not done the last time, and is tried again after so many seconds.
        """
        began = time.monotonic()
        with self._changed:
            while not self._closing:
                due = began + (pause or (LEASE_IDLE_SECONDS if self._lease else IDLE_SECONDS))
                if not pause and self._noted_at is not None:
                    due = self._noted_at + DRAIN_SECONDS
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
                return True  # What came since is gathered for the next drain.
        return False

    def _take_lease(self) -> Lease | None:
        """Return the lease, with enough of it left for a round; None where another node has it."""
        now = time.monotonic()
        if self._lease is None or now > self._leased_at + LEASE_SECONDS - LEASE_SAFE_SECONDS:
            self._lease = None
            token = self._maintenance.acquire_lease(LEASE, self._holder, LEASE_SECONDS)
            if token is None:
                return None
            self._lease, self._leased_at = Lease(LEASE, self._holder, token), now
            with self._changed:
                self._changed.notify()  # To release it, should it be idle: others wait for it.
        return self._lease

    def _release(self) -> None:
        """Let another node drain."""
        if self._lease is not None:
            self._lease = None
            try:
                self._maintenance.release_lease(LEASE, self._holder)
            except WingsError as error:  # It ends by itself.
                _logger.info("could not release the lease of the drain: %s", error)

    def _is_sound(self, page: InlinePage) -> bool:
        return page.location.address not in self._damaged

    def _move(self, pages: Sequence[InlinePage], lease: Lease) -> bool:
        """Move pages to storage; tell whether all of those that are sound were."""
        runs: list[_Run] = []
        gathered: list[_Gathered] = []
        for _, some in groupby(pages, lambda page: page.topic_uuid):
            of_topic = list(some)
            topic = self._topic(of_topic[0])
            if topic is not None:
                topic = self._versions.newest(topic, (page.location for page in of_topic))
                first = len(runs)
                runs += self._runs(topic, of_topic)
                gathered += _pages_of(runs[first:], DRAINS.encoder(topic))
        if not gathered:
            return False  # The next look may find the same pages: not at once.
        addresses = self._store.write([page.encoded for page in gathered])
        for page, address in zip(gathered, addresses, strict=True):
            page.place(address)
        done = True
        for replacements in _transactions(runs):
            replaced = self._maintenance.replace_all(replacements, lease)
            done = done and all(replaced)
            self.pages_drained += sum(
                len(each.old) for each, was in zip(replacements, replaced, strict=True) if was
            )
        return done

    def _topic(self, page: InlinePage) -> Topic | None:
        """Return the topic of a page, None where it was deleted meanwhile."""
        try:
            topic = self._admin.get_topic(page.topic)
        except NotFound:
            return None
        return topic if topic.uuid == page.topic_uuid else None

    def _runs(self, topic: Topic, pages: Sequence[InlinePage]) -> "Iterator[_Run]":
        """Yield the rows of pages that follow one another in a partition."""
        for partition, some in groupby(pages, lambda page: page.partition):
            run: list[tuple[Location, PageRows]] = []
            for location, rows in self._read(topic, [page.location for page in some]):
                if run and run[-1][0].end_offset + 1 != location.start_offset:
                    yield _run(topic, partition, run)
                    run = []
                run.append((location, rows))
            if run:
                yield _run(topic, partition, run)

    def _read(
        self, topic: Topic, locations: Sequence[Location]
    ) -> Iterator[tuple[Location, PageRows]]:
        """Yield the rows of pages; those that cannot be read are left out, and remembered."""
        wanted = Wanted(timestamps=True)
        try:
            rows = list(read_pages(self._store, topic, locations, wanted))
        except StorageCorrupt:
            for location in locations:
                try:
                    (alone,) = read_pages(self._store, topic, [location], wanted)
                except StorageCorrupt as error:
                    if not error.facts.get("missing"):  # Else it was deleted, or drained.
                        self._damaged.put(location.address, True)
                        _logger.warning("a page of %s stays in metadata: %s", topic.name, error)
                else:
                    yield location, alone
        else:
            yield from zip(locations, rows, strict=True)


@dataclass(frozen=True, slots=True)
class _Run:
    """Rows of neighbouring pages of a partition, with their timestamps."""

    topic_uuid: str
    partition: Partition
    old: tuple[Location, ...]
    rows: pa.RecordBatch
    """Rows by `TimedCodec.schema`."""
    schema_version: int
    new: list[Location] = field(default_factory=list[Location])
    """Where they are in storage."""


def _run(topic: Topic, partition: Partition, pages: Sequence[tuple[Location, PageRows]]) -> _Run:
    rows = joined([(rows, timestamps) for _, (rows, timestamps, _) in pages], DRAINS.schema(topic))
    old = tuple(location for location, _ in pages)
    return _Run(topic.uuid, partition, old, rows, topic.schema_version)


class _Part(NamedTuple):
    """Rows of a run that are in one page."""

    run: _Run
    first: int
    """Index in the run of its first row."""
    rows: pa.RecordBatch
    size: int
    """In bytes, decoded."""


@dataclass(frozen=True, slots=True)
class _Gathered:
    """A page to be written, and whose rows it has."""

    encoded: EncodedPage
    parts: Sequence[_Part]

    @classmethod
    def of(cls, encoder: PushEncoder, parts: Sequence[_Part]) -> "_Gathered":
        """Encode rows as a page."""
        rows = [part.rows for part in parts]
        merged = rows[0] if len(rows) == 1 else pa.concat_batches(rows)  # pyright: ignore[reportAttributeAccessIssue] - not in the stubs
        return cls(encoder.encode(merged), parts)

    def place(self, address: PageAddress) -> None:
        """Tell each run where its rows are, now that the page has a place."""
        alone = len(self.parts) == 1
        first_row = start = 0
        total = sum(part.size for part in self.parts) or 1
        for run, first, rows, size in self.parts:
            end = start + size
            # By where it begins and ends, so that the slices of a page add up to it.
            share = address.length * end // total - address.length * start // total
            times = rows.column(rows.num_columns - 1).cast(pa.int64())
            start_offset = run.old[0].start_offset + first
            run.new.append(
                Location(
                    start_offset,
                    start_offset + rows.num_rows - 1,
                    times[-1].as_py(),
                    address,
                    times[0].as_py(),
                    DRAINED_FORMAT,
                    None if alone else first_row,
                    None if alone else share,
                    run.schema_version,
                )
            )
            first_row += rows.num_rows
            start = end


def _pages_of(runs: Iterable[_Run], encoder: PushEncoder) -> Iterator[_Gathered]:
    """Yield the pages that runs of one topic become: of its own for a large one, else shared."""
    shared: list[_Part] = []
    shared_bytes = 0
    for run in runs:
        size = run.rows.nbytes
        if size >= SHARED_PAGE_BYTES:
            for first, count in parts_of_rows(run.rows.num_rows, size):
                part = _Part(run, first, run.rows.slice(first, count), size)
                yield _Gathered.of(encoder, [part])
            continue
        if shared and shared_bytes + size > SHARED_PAGE_BYTES:
            yield _Gathered.of(encoder, shared)
            shared, shared_bytes = [], 0
        shared.append(_Part(run, 0, run.rows, size))
        shared_bytes += size
    if shared:
        yield _Gathered.of(encoder, shared)


def _first_bytes(pages: Iterable[InlinePage]) -> Iterator[InlinePage]:
    """Yield the first pages, of `ROUND_BYTES` or `ROUND_ROWS` together and at least one."""
    size = rows = 0
    for page in pages:
        yield page
        size += page.location.bytes
        rows += page.location.rows
        if size >= ROUND_BYTES or rows >= ROUND_ROWS:
            return


def _transactions(runs: Iterable[_Run]) -> Iterator[list[Replacement]]:
    """Yield what is replaced in one transaction: `SWAPPED_PAGES`, or one run of more."""
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
