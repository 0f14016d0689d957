"""Group commit: many producers share one flush.

Whoever finds no flush running is flushed at once; whoever comes during a flush goes into the next.
So one producer waits for one sync, and a thousand producers share one. A flush is two steps: the
pages go to storage (durable when `write` returns), then one metadata transaction assigns offsets.
A crash between the two leaves bytes that nothing refers to, and no acknowledgement.
"""

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from wings_core.errors import Internal, ResourceExhausted, Unavailable, WingsError
from wings_core.ingest.prepare import PreparedBatch
from wings_core.limits import Limits
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import Accepted, CommitBatch, CommitResult, Rejected, StoredPage
from wings_core.storage.interfaces import FolioStore

ROOM_WAIT_SECONDS_MAX = 30.0
"""How long a push waits for room among the pending bytes before it is refused."""


class PushStream:
    """Batches that are committed in order, and none after one that was refused."""

    _numbers = itertools.count()

    def __init__(self) -> None:
        self.number = next(self._numbers)
        self.refused: WingsError | None = None
        """Set by the flusher, and by whoever reads the stream; later batches get it as well."""


@dataclass(frozen=True, slots=True)
class _Pending:
    stream: PushStream
    batch: PreparedBatch
    done: Future[Accepted]


@dataclass(frozen=True, slots=True)
class FlushReport:
    """What one flush did, for metrics."""

    batches: int
    bytes: int
    seconds: float
    failed: bool


class GroupCommit:
    """Takes prepared batches and commits them in flushes, on one thread of its own.

    Args:
        store: Where pages go.
        registry: Where offsets come from.
        limits: Bounds on pending bytes and on the size of a flush.
        on_flush: Called after each flush, on the flusher's thread.
    """

    def __init__(
        self,
        store: FolioStore,
        registry: OffsetRegistry,
        limits: Limits,
        on_flush: Callable[[FlushReport], None] | None = None,
    ) -> None:
        self._store = store
        self._registry = registry
        self._limits = limits
        self._on_flush = on_flush
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._pending: deque[_Pending] = deque()
        self._pending_bytes = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="wings-flusher", daemon=True)
        self._thread.start()

    @property
    def pending_bytes(self) -> int:
        """Bytes received and not yet committed or refused."""
        return self._pending_bytes

    def submit(self, stream: PushStream, batch: PreparedBatch) -> Future[Accepted]:
        """Hand a batch to the next flush.

        Blocks while the pending bytes are at their bound, at most `ROOM_WAIT_SECONDS_MAX`, so that
        a fast producer is slowed to the disk's speed.

        Returns:
            The outcome: `Accepted`, or the error that the batch was refused with.

        Raises:
            ResourceExhausted: No room came free in time.
            Unavailable: The log is closing.
        """
        pending = _Pending(stream, batch, Future())
        with self._lock:
            if not self._room.wait_for(lambda: self._has_room(batch.bytes), ROOM_WAIT_SECONDS_MAX):
                raise ResourceExhausted(
                    f"{self._pending_bytes} bytes wait to be committed, the limit is "
                    f"{self._limits.pending_bytes_max}; no room came free in "
                    f"{ROOM_WAIT_SECONDS_MAX:.0f} s"
                )
            if self._closing:
                raise Unavailable("the server is stopping")
            self._pending.append(pending)
            self._pending_bytes += batch.bytes
            self._arrived.notify()
        return pending.done

    def close(self) -> None:
        """Commit what is pending, then stop; blocks until that is done. Later pushes are refused."""
        with self._lock:
            self._closing = True
            self._arrived.notify_all()
            self._room.notify_all()
        self._thread.join()

    def _has_room(self, batch_bytes: int) -> bool:
        # One batch larger than the whole bound may still go alone.
        fits = self._pending_bytes + batch_bytes <= self._limits.pending_bytes_max
        return fits or self._pending_bytes == 0 or self._closing

    def _run(self) -> None:
        while True:
            with self._lock:
                self._arrived.wait_for(lambda: self._pending or self._closing)
                if not self._pending:
                    return
                flush = self._take()
            self._flush(flush)
            with self._lock:
                self._pending_bytes -= sum(pending.batch.bytes for pending in flush)
                self._room.notify_all()

    def _take(self) -> list[_Pending]:
        """Take the oldest pending batches, as many as one flush may hold, at least one."""
        flush = [self._pending.popleft()]
        size = flush[0].batch.bytes
        while self._pending:
            size += self._pending[0].batch.bytes
            if size > self._limits.flush_bytes_max:
                break
            flush.append(self._pending.popleft())
        return flush

    def _flush(self, flush: list[_Pending]) -> None:
        started = time.monotonic()
        live: list[_Pending] = []
        late: list[_Pending] = []  # Of streams refused in an earlier flush.
        for pending in flush:
            (live if pending.stream.refused is None else late).append(pending)
        for pending in late:
            pending.done.set_exception(_refusal(pending.stream))
        try:
            results = self._commit(live)
        except WingsError as error:
            results = [Rejected(error)] * len(live)
        except Exception as error:  # noqa: BLE001 - the flusher must outlive any fault
            results = [Rejected(Internal(f"the flush failed: {error!r:.200}"))] * len(live)
        # All streams are marked before any producer hears: none can slip a later batch in between.
        for pending, result in zip(live, results, strict=True):
            if isinstance(result, Rejected) and pending.stream.refused is None:
                pending.stream.refused = result.error
        for pending, result in zip(live, results, strict=True):
            if isinstance(result, Accepted):
                pending.done.set_result(result)
            else:
                pending.done.set_exception(result.error)
        if self._on_flush is not None:
            failed = any(isinstance(result, Rejected) for result in results)
            size = sum(pending.batch.bytes for pending in live)
            self._on_flush(FlushReport(len(live), size, time.monotonic() - started, failed))

    def _commit(self, live: list[_Pending]) -> list[CommitResult]:
        """Write the pages, then commit them; returns once both are durable."""
        if not live:
            return []
        encoded = [page for pending in live for _, page in pending.batch.pages]
        addresses = iter(self._store.write(encoded) if encoded else [])
        return self._registry.commit(
            [
                CommitBatch(
                    stream=pending.stream.number,
                    topic_uuid=pending.batch.topic.uuid,
                    pages=tuple(
                        StoredPage(partition, page.rows, next(addresses))
                        for partition, page in pending.batch.pages
                    ),
                    sequence=pending.batch.sequence,
                    expected=pending.batch.expected,
                    timestamp=pending.batch.timestamp,
                )
                for pending in live
            ]
        )


def _refusal(stream: PushStream) -> WingsError:
    assert stream.refused is not None
    return stream.refused
