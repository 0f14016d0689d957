"""Group commit: many producers share one flush.

A producer flushes at once if no flush is running; batches submitted during a flush go into the
next. So a single producer waits for one sync, and a thousand producers share one.

A flush writes pages to storage, then assigns their offsets in one metadata transaction. Pages are
durable when `FolioStore.write` returns. A crash between the two steps leaves unreferenced bytes,
and no acknowledgement. The pages of a small flush are stored in that transaction itself, until they
are drained.

A flush runs on the thread of a producer that waits for its outcome, since handing a small push to
another thread would add a fifth to its time. Batches that a stream submits during a small flush of
its own are left to the thread that answers the stream, which returns for them with more gathered.
The flusher, a thread of its own, takes all other batches, and those whose answering thread is late:
received batches are committed whatever the producer's client does.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from wings_core import tracing
from wings_core.errors import Internal, ResourceExhausted, Unavailable, WingsError
from wings_core.ingest.pack import Packer
from wings_core.ingest.pending import Pending, PushStream
from wings_core.ingest.prepare import PENDING_BYTES, PreparedBatch
from wings_core.limits import Limits
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import (
    Accepted,
    CommitBatch,
    CommitResult,
    InlineFolio,
    PageAddress,
    Rejected,
    SeriesResults,
    StoredPage,
)
from wings_core.partitions import Partition
from wings_core.storage.interfaces import EncodedPage, FolioStore

ROOM_WAIT_SECONDS_MAX = 30.0
"""Longest time that a push waits for room among the pending bytes before it is rejected."""

RETURNING_BYTES_MAX = 256 * 1024
"""Largest flush after which answering threads take the next one. After a larger flush the flusher
starts at once, as saving a few thread switches is insignificant then."""

LATE_SECONDS = 0.01
"""Longest time that a batch waits for the thread that answers its stream, which a client that does
not read can block; then the flusher takes the batch."""

_logger = logging.getLogger(__name__)


@dataclass(slots=True)  # Not frozen: construction would take three times as long.
class FlushReport:
    """Figures of one flush, for metrics."""

    batches: int
    bytes: int
    seconds: float
    failed: bool


class InlineWriter(Protocol):
    """Chooses the flushes whose pages are stored in metadata; see `maintain.drain.Drain`."""

    def has_room(self, size: int) -> bool:
        """Return whether a flush of `size` bytes may be stored inline."""
        ...

    def begin(self, pages: Sequence[EncodedPage]) -> tuple[InlineFolio, list[PageAddress]] | None:
        """Return an inline folio of a flush's pages, and their addresses; None to use storage.

        Raises:
            ResourceExhausted: Neither metadata nor storage accepts them.
        """
        ...

    def note(self, inline: InlineFolio) -> None:
        """Record that a folio was committed."""
        ...

    def forget(self, inline: InlineFolio) -> None:
        """Record that the commit of a folio failed."""
        ...


class GroupCommit:
    """The queue of prepared batches, committed in one flush at a time.

    Args:
        store: Store of the pages.
        registry: Assigns offsets.
        limits: Bounds on pending bytes and on the size of a flush.
        on_flush: Called after each flush, on the thread that ran it.
        lingers: Whether flushes are costly, so that batches are gathered for up to
            `limits.object_flush_seconds` or `limits.object_flush_bytes`. The flusher then runs all
            flushes but those stored inline.
        inline: Chooses the flushes that metadata stores; None for none.
        check_room: Raises `ResourceExhausted` while pushes are rejected; None if they never are.
        on_room: Called after each flush, when fewer bytes are pending.
    """

    def __init__(
        self,
        store: FolioStore,
        registry: OffsetRegistry,
        limits: Limits,
        on_flush: Callable[[FlushReport], None] | None = None,
        *,
        lingers: bool = False,
        inline: InlineWriter | None = None,
        check_room: Callable[[], None] | None = None,
        on_room: Callable[[], None] = lambda: None,
    ) -> None:
        self._check_room = check_room
        self._on_room = on_room
        self._linger_seconds = limits.object_flush_seconds if lingers else 0.0
        self._writer = FlushWriter(store, registry, inline)
        self._inline = inline
        self._limits = limits
        self._on_flush = on_flush
        self.recent = tracing.RecentPushes()
        """Spans of recent pushes, while tracing is on."""
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        """Condition that the flusher waits for."""
        self._room = threading.Condition(self._lock)
        self._pending: deque[Pending] = deque()
        self._pending_bytes = 0
        self._waiting_for_room = 0
        """Number of callers waiting for room."""
        self._flushing = False
        self._flushing_bytes = 0
        """Bytes of `_pending_bytes` in the running flush."""
        self._left = False
        """Whether the pending batches are left to the flusher."""
        self._watches = False
        """Whether the flusher checks repeatedly for late answering threads."""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="wings-flusher", daemon=True)
        self._thread.start()

    @property
    def pending_bytes(self) -> int:
        """Bytes received and not yet committed or rejected."""
        return self._pending_bytes

    def submit(
        self,
        stream: PushStream,
        batch: PreparedBatch,
        *,
        awaited: bool,
        uses_reserve: bool = False,
    ) -> Pending:
        """Queue a batch for the next flush, joined with the last one of its stream if possible.

        Blocks while the pending bytes are at their bound, for at most `ROOM_WAIT_SECONDS_MAX`, so
        that a fast producer is slowed to the disk's speed.

        Args:
            stream: The batch's stream.
            batch: The batch, ready to be written.
            awaited: Whether the caller calls `Pending.outcome` immediately in any case; if not, the
                flusher is notified.
            uses_reserve: Whether to accept it even while pushes are rejected for lack of disk
                space.

        Returns:
            The pending batch that it is part of; if it was joined, the one that the last call
            returned.

        Raises:
            ResourceExhausted: No room became free in time, or the disk is full.
            Unavailable: The log is closing.
        """
        if self._check_room is not None and not uses_reserve:
            self._check_room()
        size = batch.pending_bytes
        with self._lock:
            if not self._has_room(size):
                self._wait_for_room(size)
            if self._closing:
                raise Unavailable("the server is stopping")
            last = stream.last
            joined = last is not None and last.batch.join(batch)
            if last is None or not joined:
                stream.last = last = Pending(self.flush_now, stream, batch)
                self._pending.append(last)
            # No call in between, so that an interrupt finds neither or both steps done.
            self._pending_bytes += size
            last.bytes += size
            if not awaited:  # Otherwise the caller runs `flush_now`.
                # If it was joined, the thread that will flush it was notified before.
                if not (joined or stream.answers) or (self._linger_seconds and self._lingers()):
                    self._leave()
                else:
                    self._watch()
        return last

    def join(
        self,
        stream: PushStream,
        rows: pa.RecordBatch,
        size: int,
        partition: Partition,
        timestamp: int | None,
        number: int | None,
    ) -> Pending | None:
        """Join rows with the last batch of their stream, which must match in all other respects.

        A cheaper `submit` for the next batch of a stream.

        Args:
            stream: The rows' stream.
            rows: Checked rows of a small batch.
            size: Size of the rows in bytes.
            partition: Partition of the rows.
            timestamp: Timestamp of the rows, as in `PreparedBatch`.
            number: Number of their sequence, as in `PreparedBatch`.

        Returns:
            The pending batch that they are part of; None if they must be submitted, because a flush
            has taken the last batch, it cannot take more, or there is no room.
        """
        size_pending = size + PENDING_BYTES
        with self._lock:
            last = stream.last
            if last is None or self._closing or not self._has_room(size_pending):
                return None
            if not last.batch.take(rows, size, partition, timestamp, number):
                return None
            self._pending_bytes += size_pending
            last.bytes += size_pending
            if self._linger_seconds and self._lingers():
                self._leave()
        return last

    def flush_now(self, wanted: Pending) -> None:
        """Flush until the batch's outcome is known, unless a flush is running already."""
        stream = wanted.stream
        while not wanted.results:
            with self._lock:
                stream.answers = False
                stream.waits = stream.returns
                if self._flushing or not self._pending:
                    # In the running flush, or in the next one, which the thread of the running
                    # one leaves to the flusher.
                    return
                if self._linger_seconds and self._lingers():
                    self._leave()  # The flusher may not have lingered for it when it was submitted.
                    return
                flush = self._begin()
            self._finish(flush)

    def close(self) -> None:
        """Commit the pending batches, then stop; blocks until done. Later pushes are rejected."""
        with self._lock:
            self._closing = True
            self._work.notify_all()
            self._room.notify_all()
        self._thread.join()

    def _has_room(self, batch_bytes: int) -> bool:
        # A single batch larger than the bound is still accepted alone.
        fits = self._pending_bytes + batch_bytes <= self._limits.pending_bytes_max
        return fits or self._pending_bytes == 0 or self._closing

    def _wait_for_room(self, batch_bytes: int) -> None:
        self._leave()
        self._waiting_for_room += 1
        try:
            came_free = self._room.wait_for(
                lambda: self._has_room(batch_bytes), ROOM_WAIT_SECONDS_MAX
            )
        finally:
            self._waiting_for_room -= 1
        if not came_free:
            raise ResourceExhausted(
                f"{self._pending_bytes} bytes wait to be committed, the limit is "
                f"{self._limits.pending_bytes_max}; no room became free in "
                f"{ROOM_WAIT_SECONDS_MAX:.0f} s"
            )

    def _watch(self) -> None:
        """Have the flusher watch for late answering threads; called with the lock held."""
        if not self._watches:
            self._watches = True
            self._work.notify()

    def _leave(self) -> None:
        """Leave the pending batches to the flusher; called with the lock held."""
        self._left = True
        if not self._flushing:
            self._work.notify()

    def _run(self) -> None:
        """Flush the batches left to the flusher, and all batches once the log is closing."""
        while True:
            with self._lock:
                self._await_work()
                self._linger()
                if self._flushing:
                    continue  # A producer's thread started a flush meanwhile.
                if not self._pending:
                    if self._closing:
                        return
                    continue  # A producer's thread flushed them meanwhile.
                flush = self._begin()
            try:
                self._finish(flush)
            except BaseException:  # No other thread would flush its batches.
                _logger.exception("a flush failed unexpectedly")

    def _await_work(self) -> None:
        """Wait for a flush to run, or the log's close; called with the lock held."""
        while self._flushing or not (self._closing or (self._left and self._pending)):
            if self._work.wait(LATE_SECONDS if self._watches else None):
                continue
            if not self._pending:
                self._watches = False
            elif self._pending[0].since < time.monotonic() - LATE_SECONDS:
                for pending in self._pending:
                    pending.stream.answers = False
                self._left = True

    def _lingers(self) -> bool:
        """Return whether batches are gathered for the next flush; called with the lock held."""
        if not self._linger_seconds:
            return False
        return self._inline is None or not self._inline.has_room(self._pending_bytes)

    def _linger(self) -> None:
        """Wait until a flush is due; called with the lock held, which is released while waiting."""
        while self._lingers() and self._pending and not self._closing:
            left = self._pending[0].since + self._linger_seconds - time.monotonic()
            if left <= 0 or self._pending_bytes >= self._limits.object_flush_bytes:
                return
            self._work.wait(left)

    def _begin(self) -> list[Pending]:
        """Begin a flush of the oldest pending batches, at least one; called with the lock held."""
        self._flushing = True
        flush: list[Pending] = []
        size = 0
        while self._pending:
            taken = self._pending[0]
            if flush and size + taken.bytes > self._limits.flush_bytes_max:
                break
            self._pending.popleft()
            if taken.stream.last is taken:
                taken.stream.last = None  # No batch is joined with it from here on.
            flush.append(taken)
            size += taken.bytes
        self._flushing_bytes = size
        return flush

    def _finish(self, flush: list[Pending]) -> None:
        """Run a flush that was begun, then leave batches submitted meanwhile to the flusher.

        If all of them belong to streams with an answering thread, they are left to those threads.
        """
        try:
            self._flush(flush)
        except BaseException:
            _reject_unresolved(flush)
            raise
        finally:
            with self._lock:
                self._flushing = False
                self._pending_bytes -= self._flushing_bytes
                if self._waiting_for_room:
                    self._room.notify_all()
                pending = self._pending
                self._left = bool(pending) and not all(each.stream.answers for each in pending)
                if self._left or self._closing:
                    self._work.notify()
                elif pending:
                    self._watch()
            self._on_room()

    def _flush(self, flush: list[Pending]) -> None:
        started = time.monotonic()
        live: list[Pending] = []
        late: list[Pending] = []  # Batches of streams rejected in an earlier flush.
        for pending in flush:
            (live if pending.stream.refused is None else late).append(pending)
        for pending in late:
            pending.set_results((Rejected(_refusal(pending.stream)),))
        try:
            results = self._write_in_span(live) if tracing.is_on() else self._writer.write(live)
        except WingsError as error:
            results = [(Rejected(error),)] * len(live)
        except (KeyboardInterrupt, SystemExit):
            raise  # On a producer's thread; `_finish` rejects the other batches.
        except BaseException as error:  # noqa: BLE001 - a panic in Rust is not an `Exception`
            failure = Rejected(Internal(f"the flush failed: {error!r:.200}"))
            results = [(failure,)] * len(live)
        failed = False
        count = size = 0
        # All streams are marked before any producer is answered, so that none can commit a later
        # batch.
        for pending, each in zip(live, results, strict=True):
            count += len(pending.batch.parts)
            size += pending.batch.bytes
            last = each[-1]  # After a rejected one, all later ones are rejected.
            if isinstance(last, Rejected):
                failed = True
                if pending.stream.refused is None:
                    pending.stream.refused = last.error
        self._tell(live, results, returning=size <= RETURNING_BYTES_MAX)
        if self._on_flush is not None:
            self._on_flush(FlushReport(count, size, time.monotonic() - started, failed))

    def _write_in_span(self, live: list[Pending]) -> list[tuple[CommitResult, ...]]:
        with tracing.shared_span("flush", (pending.span for pending in live)):
            return self._writer.write(live)

    def _tell(
        self, live: list[Pending], results: Sequence[tuple[CommitResult, ...]], *, returning: bool
    ) -> None:
        """Set the outcomes of batches, and record the spans of their pushes.

        Args:
            live: The batches.
            results: Results of each batch, as in `Pending.outcomes`.
            returning: Whether batches submitted meanwhile may be left to answering threads.
        """
        for pending, each in zip(live, results, strict=True):
            if pending.span is not None:
                topic = pending.batch.topic.uuid
                for result in each:
                    if isinstance(result, Accepted):
                        self.recent.note(topic, result.committed, tracing.headers(pending.span))
            stream = pending.stream
            if stream.waits:
                stream.waits, stream.answers = False, returning
            pending.set_results(each)


def _reject_unresolved(flush: list[Pending]) -> None:
    """Reject batches without an outcome after an interrupted flush, so that no producer hangs."""
    unknown = [pending for pending in flush if not pending.done]
    for pending in unknown:
        if pending.stream.refused is None:
            pending.stream.refused = Unavailable("the flush was interrupted", in_doubt=True)
    for pending in unknown:
        pending.set_results((Rejected(_refusal(pending.stream)),))


def _refusal(stream: PushStream) -> WingsError:
    assert stream.refused is not None
    return stream.refused


@dataclass(frozen=True, slots=True, eq=False)
class FlushWriter:
    """A writer of flushes, used by one thread at a time.

    Args:
        store: Store of the pages.
        registry: Assigns offsets.
        inline: Chooses the flushes that metadata stores; None for none.
    """

    _store: FolioStore
    _registry: OffsetRegistry
    _inline: InlineWriter | None
    _packer: Packer = field(init=False, default_factory=Packer)

    def write(self, live: Sequence[Pending]) -> list[tuple[CommitResult, ...]]:
        """Write the pages and commit them; blocks until both are durable.

        Returns:
            The results of each batch; see `Pending.outcomes`.

        Raises:
            WingsError: Nothing was committed, or the outcome is unknown.
        """
        if not live:
            return []
        first = live[0].batch
        stored: Iterable[tuple[StoredPage, ...]]
        if len(live) == 1 and (page := self._packer.only_page(first)) is not None:
            # One page of one partition, the usual case.
            inline, (address,) = self._place((page,))
            ((partition, rows),) = first.runs
            version = first.topic.schema_version
            stored = [(StoredPage(partition, rows, address, None, None, version),)]
        else:
            packed = self._packer.pack([pending.batch for pending in live])
            inline, addresses = self._place(packed.pages)
            stored = packed.stored(addresses)
        batches = [
            pending.batch.to_commit(pending.stream.number, pages)
            for pending, pages in zip(live, stored, strict=True)
        ]
        results = self._commit(batches, inline)
        return [each.each if isinstance(each, SeriesResults) else (each,) for each in results]

    def _place(self, pages: Sequence[EncodedPage]) -> tuple[InlineFolio | None, list[PageAddress]]:
        """Place pages inline or in storage; returns the inline folio, if any, and the addresses."""
        if not pages:
            return None, []
        begun = None if self._inline is None else self._inline.begin(pages)
        if begun is not None:
            return begun
        with tracing.span("storage.write", {"wings.pages": len(pages)}):
            return None, self._store.write(pages)

    def _commit(self, batches: list[CommitBatch], inline: InlineFolio | None) -> list[CommitResult]:
        commit = self._commit_in_span if tracing.is_on() else self._registry.commit
        if inline is None or self._inline is None:
            return commit(batches)
        try:
            results = commit(batches, inline=inline)
        except BaseException:
            self._inline.forget(inline)
            raise
        self._inline.note(inline)
        return results

    def _commit_in_span(
        self, batches: list[CommitBatch], inline: InlineFolio | None = None
    ) -> list[CommitResult]:
        with tracing.span("metadata.commit", {"messaging.batch.message_count": len(batches)}):
            return self._registry.commit(batches, inline=inline)
