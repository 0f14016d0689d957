"""Group commit: many producers share one flush.

A producer that finds no flush running flushes at once; batches that come during a flush go into the
next. So one producer waits for one sync, and a thousand producers share one. A flush is two
steps: pages go to storage (durable when `write` returns), then one metadata transaction assigns
offsets.
A crash between the two leaves bytes that nothing refers to, and no acknowledgement.

A flush runs on the thread of a producer that waits for its outcome, since passing a small push to
another thread would cost it a fifth of its time. The flusher, a thread of its own, takes what is
left: what was received is committed whatever its producer's client does.
"""

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from wings_core.errors import Internal, ResourceExhausted, Unavailable, WingsError
from wings_core.ingest.pack import Packer
from wings_core.ingest.prepare import PreparedBatch
from wings_core.limits import Limits
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import Accepted, CommitBatch, CommitResult, Rejected
from wings_core.storage.interfaces import FolioStore

ROOM_WAIT_SECONDS_MAX = 30.0
"""How long a push waits for room among the pending bytes before it is refused."""

_logger = logging.getLogger(__name__)


class PushStream:
    """Batches that are committed in order, and none after one that was refused."""

    _numbers = itertools.count()

    def __init__(self) -> None:
        self.number = next(self._numbers)
        self.refused: WingsError | None = None
        """Set by the flush, and by the stream's reader; later batches are refused with it too."""


class Pending:
    """A batch on its way into a flush; its outcome is known once that flush is over."""

    __slots__ = ("_group", "_known", "_result", "batch", "since", "stream")

    def __init__(self, group: "GroupCommit", stream: PushStream, batch: PreparedBatch) -> None:
        self.stream = stream
        self.batch = batch
        self.since = time.monotonic()
        self._group = group
        self._result: CommitResult | None = None
        # Held until the outcome is known; a bare lock is the cheapest thing to wait for.
        self._known = threading.Lock()
        self._known.acquire()

    def outcome(self) -> CommitResult:
        """Return whether the batch was accepted; blocks until it is known.

        Runs the flush on the caller's thread where none is running.
        """
        if self._result is None:
            self._group.flush_now(self)
            with self._known:
                pass
        assert self._result is not None
        return self._result

    def accepted(self) -> Accepted:
        """Return what was committed; blocks as `outcome`.

        Raises:
            WingsError: What the batch was refused with.
        """
        result = self.outcome()
        if isinstance(result, Rejected):
            raise result.error
        assert isinstance(result, Accepted), "a staged batch has an outcome, and no offsets"
        return result

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._result is not None

    def set_result(self, result: CommitResult) -> None:
        """Make the outcome known; the thread that flushes calls it once."""
        self._result = result
        self._known.release()


@dataclass(frozen=True, slots=True)
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
            runs all of them then.
    """

    def __init__(
        self,
        store: FolioStore,
        registry: OffsetRegistry,
        limits: Limits,
        on_flush: Callable[[FlushReport], None] | None = None,
        *,
        lingers: bool = False,
    ) -> None:
        self._linger_seconds = limits.object_flush_seconds if lingers else 0.0
        self._store = store
        self._registry = registry
        self._limits = limits
        self._on_flush = on_flush
        self._packer = Packer()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        """The flusher waits for it."""
        self._room = threading.Condition(self._lock)
        self._pending: deque[Pending] = deque()
        self._pending_bytes = 0
        self._flushing = False
        self._left = False
        """Whether what is pending is left to the flusher."""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="wings-flusher", daemon=True)
        self._thread.start()

    @property
    def pending_bytes(self) -> int:
        """Bytes received and not yet committed or refused."""
        return self._pending_bytes

    def submit(self, stream: PushStream, batch: PreparedBatch, *, awaited: bool) -> Pending:
        """Put a batch into the next flush.

        Blocks while the pending bytes are at their bound, at most `ROOM_WAIT_SECONDS_MAX`, so that
        a fast producer is slowed to the disk's speed.

        Args:
            stream: The batch's stream.
            batch: Ready to be written.
            awaited: Whether the caller calls `Pending.outcome` right now, whatever else happens; if
                not, the flusher is told.

        Raises:
            ResourceExhausted: No room came free in time.
            Unavailable: The log is closing.
        """
        pending = Pending(self, stream, batch)
        with self._lock:
            if not self._has_room(batch.pending_bytes):
                self._wait_for_room(batch.pending_bytes)
            if self._closing:
                raise Unavailable("the server is stopping")
            self._pending.append(pending)
            self._pending_bytes += batch.pending_bytes
            if not awaited or self._linger_seconds:
                self._leave()
        return pending

    def flush_now(self, wanted: Pending) -> None:
        """Flush until the batch's outcome is known, unless a flush is running already."""
        while not wanted.done and not self._linger_seconds:
            with self._lock:
                if self._flushing or not self._pending:
                    # It is in the flush that is running, or in the one after it, which the thread
                    # of this one leaves to the flusher.
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
        if not self._room.wait_for(lambda: self._has_room(batch_bytes), ROOM_WAIT_SECONDS_MAX):
            raise ResourceExhausted(
                f"{self._pending_bytes} bytes wait to be committed, the limit is "
                f"{self._limits.pending_bytes_max}; no room came free in "
                f"{ROOM_WAIT_SECONDS_MAX:.0f} s"
            )

    def _leave(self) -> None:
        """Leave what is pending to the flusher; with the lock held."""
        self._left = True
        if not self._flushing:
            self._work.notify()

    def _run(self) -> None:
        """Flush what is left to the flusher, and everything once the log is closing."""
        while True:
            with self._lock:
                self._work.wait_for(
                    lambda: not self._flushing and (self._closing or (self._left and self._pending))
                )
                self._linger()
                if not self._pending:
                    return
                flush = self._begin()
            try:
                self._finish(flush)
            except BaseException:  # No other thread flushes what is left to it.
                _logger.exception("a flush ended with a fault of ours")

    def _linger(self) -> None:
        """Wait until a flush is due; with the lock held, released while it waits."""
        while self._linger_seconds and self._pending and not self._closing:
            left = self._pending[0].since + self._linger_seconds - time.monotonic()
            if left <= 0 or self._pending_bytes >= self._limits.object_flush_bytes:
                return
            self._work.wait(left)

    def _begin(self) -> list[Pending]:
        """Begin a flush; with the lock held."""
        self._flushing = True
        return self._take()

    def _finish(self, flush: list[Pending]) -> None:
        """Run a flush that was begun, and leave what came meanwhile to the flusher."""
        try:
            self._flush(flush)
        finally:
            _reject_unresolved(flush)
            with self._lock:
                self._flushing = False
                self._pending_bytes -= sum(pending.batch.pending_bytes for pending in flush)
                self._room.notify_all()
                self._left = bool(self._pending)
                if self._left or self._closing:
                    self._work.notify()

    def _take(self) -> list[Pending]:
        """Take the oldest pending batches, as many as one flush may hold, at least one."""
        flush = [self._pending.popleft()]
        size = flush[0].batch.pending_bytes
        while self._pending:
            size += self._pending[0].batch.pending_bytes
            if size > self._limits.flush_bytes_max:
                break
            flush.append(self._pending.popleft())
        return flush

    def _flush(self, flush: list[Pending]) -> None:
        started = time.monotonic()
        live: list[Pending] = []
        late: list[Pending] = []  # Of streams refused in an earlier flush.
        for pending in flush:
            (live if pending.stream.refused is None else late).append(pending)
        for pending in late:
            pending.set_result(Rejected(_refusal(pending.stream)))
        try:
            results = self._commit(live)
        except WingsError as error:
            results = [Rejected(error)] * len(live)
        except (KeyboardInterrupt, SystemExit):
            raise  # On a producer's thread; `_finish` rejects the other batches.
        except BaseException as error:  # noqa: BLE001 - a panic of Rust code is no `Exception`
            results = [Rejected(Internal(f"the flush failed: {error!r:.200}"))] * len(live)
        # All streams are marked before any producer hears: none can slip a later batch in between.
        for pending, result in zip(live, results, strict=True):
            if isinstance(result, Rejected) and pending.stream.refused is None:
                pending.stream.refused = result.error
        for pending, result in zip(live, results, strict=True):
            pending.set_result(result)
        if self._on_flush is not None:
            failed = any(isinstance(result, Rejected) for result in results)
            size = sum(pending.batch.bytes for pending in live)
            self._on_flush(FlushReport(len(live), size, time.monotonic() - started, failed))

    def _commit(self, live: list[Pending]) -> list[CommitResult]:
        """Write the pages, then commit them; returns once both are durable."""
        if not live:
            return []
        packed = self._packer.pack([pending.batch for pending in live])
        addresses = self._store.write(packed.pages) if packed.pages else []
        return self._registry.commit(
            [
                CommitBatch(
                    stream=pending.stream.number,
                    topic_uuid=pending.batch.topic.uuid,
                    pages=pages,
                    sequence=pending.batch.sequence,
                    expected=pending.batch.expected,
                    timestamp=pending.batch.timestamp,
                    stage=pending.batch.stage,
                )
                for pending, pages in zip(live, packed.stored(addresses), strict=True)
            ]
        )


def _reject_unresolved(flush: list[Pending]) -> None:
    """Reject what has no outcome, where a flush was interrupted, so that no producer waits on."""
    unknown = [pending for pending in flush if not pending.done]
    for pending in unknown:
        if pending.stream.refused is None:
            pending.stream.refused = Unavailable("the flush was interrupted", in_doubt=True)
    for pending in unknown:
        pending.set_result(Rejected(_refusal(pending.stream)))


def _refusal(stream: PushStream) -> WingsError:
    assert stream.refused is not None
    return stream.refused
