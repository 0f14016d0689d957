"""Group commit: many producers share one flush.

A producer that finds no flush running flushes at once; batches that come during a flush go into the
next. So one producer waits for one sync, and a thousand producers share one. See `flush` for what
each does.

A flush runs on the thread of a producer that waits for its outcome, since passing a small push to
another thread would cost it a fifth of its time. What comes to a stream during a small flush of it
is left to the thread that answers the stream: it returns once it has, and more has come by then.
The flusher, a thread of its own, takes what is left, also by a thread that is late: what was
received is committed whatever its producer's client does.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from wings_core import tracing
from wings_core.errors import Internal, ResourceExhausted, Unavailable, WingsError
from wings_core.ingest.flush import FlushWriter, InlineWriter
from wings_core.ingest.pending import Pending, PushStream
from wings_core.ingest.prepare import PENDING_BYTES, PreparedBatch
from wings_core.latest import Latest
from wings_core.limits import Limits
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import Accepted, CommitResult, Rejected
from wings_core.partitions import Partition
from wings_core.storage.interfaces import FolioStore

ROOM_WAIT_SECONDS_MAX = 30.0
"""How long a push waits for room among the pending bytes before it is refused."""

RETURNING_BYTES_MAX = 256 * 1024
"""After a flush of more bytes the flusher begins the next at once: what threads that answer would
save by coming back for it, a few switches, is nothing beside it."""

LATE_SECONDS = 0.01
"""How long a batch waits for the thread that answers its stream: one whose client does not read is
held up, and the flusher takes the batch."""

_logger = logging.getLogger(__name__)


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class FlushReport:
    """What one flush did, for metrics."""

    batches: int
    bytes: int
    seconds: float
    failed: bool


class GroupCommit:
    """Takes prepared batches and commits them in flushes, one flush at a time.

    Args:
        store: Where pages go.
        registry: Where offsets come from.
        limits: Bounds on pending bytes and on the size of a flush.
        on_flush: Called after each flush, on the thread that ran it.
        lingers: Whether each flush costs so much that batches are gathered for it, as long as
            `limits.object_flush_seconds` and as many as `limits.object_flush_bytes`. The flusher
            runs all of them then. Not those that are kept inline.
        inline: Says which flushes are kept by metadata; None: none are.
        check_room: Raises `ResourceExhausted` while pushes are refused; None: none are.
        on_room: Called after each flush, once less is pending.
        latest: Is given the rows of small commits to partitions that are followed.
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
        latest: Latest | None = None,
    ) -> None:
        self._check_room = check_room
        self._on_room = on_room
        self._linger_seconds = limits.object_flush_seconds if lingers else 0.0
        self._writer = FlushWriter(store, registry, inline, latest or Latest())
        self._inline = inline
        self._limits = limits
        self._on_flush = on_flush
        self.recent = tracing.RecentPushes()
        """Which spans the last messages were pushed in, while traces are on."""
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        """The flusher waits for it."""
        self._room = threading.Condition(self._lock)
        self._pending: deque[Pending] = deque()
        self._pending_bytes = 0
        self._waiting_for_room = 0
        """How many callers are."""
        self._flushing = False
        self._flushing_bytes = 0
        """Those of `_pending_bytes` that are in the flush that is running."""
        self._left = False
        """Whether what is pending is left to the flusher."""
        self._watches = False
        """Whether the flusher looks from time to time whether a thread that answers is late."""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="wings-flusher", daemon=True)
        self._thread.start()

    @property
    def pending_bytes(self) -> int:
        """Bytes received and not yet committed or refused."""
        return self._pending_bytes

    def submit(
        self,
        stream: PushStream,
        batch: PreparedBatch,
        *,
        awaited: bool,
        uses_reserve: bool = False,
    ) -> Pending:
        """Put a batch into the next flush, joined with the last of its stream where that can be.

        Blocks while the pending bytes are at their bound, at most `ROOM_WAIT_SECONDS_MAX`, so that
        a fast producer is slowed to the disk's speed.

        Args:
            stream: The batch's stream.
            batch: Ready to be written.
            awaited: Whether the caller calls `Pending.outcome` right now, whatever else happens; if
                not, the flusher is told.
            uses_reserve: Whether it is taken also while pushes are refused.

        Returns:
            What it is part of: where it was joined, the same that the last call returned.

        Raises:
            ResourceExhausted: No room came free in time, or the disk has none.
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
                stream.last = last = Pending(self, stream, batch)
                self._pending.append(last)
            # By two steps between which nothing is called: an interrupt finds none or both.
            self._pending_bytes += size
            last.bytes += size
            if not awaited:  # Else `flush_now` sees to it, right now.
                # Of one that was joined, the thread that will flush it was told before.
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
        """Join rows with the last batch of their stream, from which they differ in nothing else.

        The rows are those of the next batch; what `submit` does for it otherwise, at less cost.

        Args:
            stream: Theirs.
            rows: They have been checked, and are small.
            size: Of them, in bytes.
            partition: Theirs.
            timestamp: Theirs, as in `PreparedBatch`,
            number: and so the number in their sequence; all else that their producer says about
                them is what it said about all of the stream.

        Returns:
            What they are part of; None where they must be submitted: a flush has taken the last
            batch, it takes no more, or there is no room.
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
                    # It is in the flush that is running, or in the one after it, which the thread
                    # of this one leaves to the flusher.
                    return
                if self._linger_seconds and self._lingers():
                    self._leave()  # It may not have been lingered for when it was submitted.
                    return
                flush = self._begin()
            self._finish(flush)

    def close(self) -> None:
        """Commit what is pending, then stop; blocks until done. Later pushes are refused."""
        with self._lock:
            self._closing = True
            self._work.notify_all()
            self._room.notify_all()
        self._thread.join()

    def _has_room(self, batch_bytes: int) -> bool:
        # One batch larger than the whole bound may still go alone.
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
                f"{self._limits.pending_bytes_max}; no room came free in "
                f"{ROOM_WAIT_SECONDS_MAX:.0f} s"
            )

    def _watch(self) -> None:
        """Have the flusher look whether a thread that answers is late; with the lock held."""
        if not self._watches:
            self._watches = True
            self._work.notify()

    def _leave(self) -> None:
        """Leave what is pending to the flusher; with the lock held."""
        self._left = True
        if not self._flushing:
            self._work.notify()

    def _run(self) -> None:
        """Flush what is left to the flusher, and everything once the log is closing."""
        while True:
            with self._lock:
                self._await_work()
                self._linger()
                if self._flushing:
                    continue  # A producer's thread began meanwhile.
                if not self._pending:
                    if self._closing:
                        return
                    continue  # And has ended.
                flush = self._begin()
            try:
                self._finish(flush)
            except BaseException:  # No other thread flushes what is left to it.
                _logger.exception("a flush ended with a fault of ours")

    def _await_work(self) -> None:
        """Wait until there is a flush for the flusher, or the log closes; with the lock held."""
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
        """Tell whether batches are gathered for the next flush; with the lock held."""
        if not self._linger_seconds:
            return False
        return self._inline is None or not self._inline.has_room(self._pending_bytes)

    def _linger(self) -> None:
        """Wait until a flush is due; with the lock held, released while it waits."""
        while self._lingers() and self._pending and not self._closing:
            left = self._pending[0].since + self._linger_seconds - time.monotonic()
            if left <= 0 or self._pending_bytes >= self._limits.object_flush_bytes:
                return
            self._work.wait(left)

    def _begin(self) -> list[Pending]:
        """Begin a flush of the oldest pending batches, at least one; with the lock held."""
        self._flushing = True
        flush: list[Pending] = []
        size = 0
        while self._pending:
            taken = self._pending[0]
            if flush and size + taken.bytes > self._limits.flush_bytes_max:
                break
            self._pending.popleft()
            if taken.stream.last is taken:
                taken.stream.last = None  # Nothing is joined with it from here on.
            flush.append(taken)
            size += taken.bytes
        self._flushing_bytes = size
        return flush

    def _finish(self, flush: list[Pending]) -> None:
        """Run a flush that was begun; what came meanwhile is left to the flusher.

        Or to the threads that answer its streams, where that is true of all of it.
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
        late: list[Pending] = []  # Of streams refused in an earlier flush.
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
        except BaseException as error:  # noqa: BLE001 - a panic of Rust code is no `Exception`
            failure = Rejected(Internal(f"the flush failed: {error!r:.200}"))
            results = [(failure,)] * len(live)
        failed = False
        count = size = 0
        # All streams are marked before any producer hears: none can slip a later batch in between.
        for pending, each in zip(live, results, strict=True):
            count += len(pending.batch.parts)
            size += pending.batch.bytes
            last = each[-1]  # If any of them is refused, all after it are.
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
        """Make the outcomes known, and keep for a while in which spans the batches were pushed.

        Args:
            live: The batches.
            results: Of each, as of `Pending.outcomes`.
            returning: Whether what comes meanwhile may be left to threads that answer them.
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
    """Reject what has no outcome, where a flush was interrupted, so that no producer waits on."""
    unknown = [pending for pending in flush if not pending.done]
    for pending in unknown:
        if pending.stream.refused is None:
            pending.stream.refused = Unavailable("the flush was interrupted", in_doubt=True)
    for pending in unknown:
        pending.set_results((Rejected(_refusal(pending.stream)),))


def _refusal(stream: PushStream) -> WingsError:
    assert stream.refused is not None
    return stream.refused
