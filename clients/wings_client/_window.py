"""The window of a producer: its unanswered batches, in order, and the sends they belong to.

Senders put batches in while there is room, the writer's thread writes them to its stream, and the
answers' thread removes the oldest. A sender may be told to write its batch itself; the stream does
not end before it has. The batches of a stream that breaks stay in the window and are
written to the next.

One lock guards all of it, and is never held across a blocking call; futures are resolved without
it.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

from wings_client._cancellation import current_cancellation, woken_by_cancellation
from wings_client._errors import client_closed, copy_of, timed_out
from wings_client._model import Committed, CommittedRange
from wings_core.arrow_types import children
from wings_core.batches import empty_batch
from wings_core.errors import (
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    WingsError,
)
from wings_core.times import Deadline

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowField

_SENT_AT_ONCE_BYTES = 32 * 1024
"""Unanswered bytes that gRPC takes without the server's reading: half of HTTP/2's first window."""

_COUNTED_WHOLE_BYTES = _SENT_AT_ONCE_BYTES // 2
"""A batch that finds the window empty counts with all of its buffers, if these are not larger.

Nor larger than its share of the window. Buffers that columns have in common count once, but are
written for each: what is compared is their bytes times the columns."""

_MESSAGE_BYTES = 256
"""About what Flight's and gRPC's framing add to a message of Arrow's."""


class JoinedRanges:
    """Committed ranges; those of a partition that follow on each other are joined."""

    def __init__(self) -> None:
        self._ranges: list[CommittedRange] = []
        self._last: dict[object, int] = {}
        """Where each partition's last range lies."""

    def add(self, found: Sequence[CommittedRange]) -> None:
        """Add the ranges of the next batch."""
        for each in found:
            key = (type(each.partition), each.partition)  # True equals 1.
            index = self._last.get(key)
            if index is not None and self._ranges[index].end_offset + 1 == each.start_offset:
                start_offset = self._ranges[index].start_offset
                self._ranges[index] = CommittedRange(
                    each.partition, start_offset, each.end_offset, each.timestamp
                )
                continue
            self._last[key] = len(self._ranges)
            self._ranges.append(each)

    def joined(self) -> tuple[CommittedRange, ...]:
        """Return all ranges."""
        return tuple(self._ranges)


@dataclass(slots=True)
class Send:
    """One call of `Producer.send`: one batch or several."""

    sequence: int
    """Sequence of its first batch."""
    next_sequence: int
    """One more than its last batch's so far."""
    future: Future[Committed] | None = None
    """None until all its batches were put in."""
    failure: WingsError | None = None
    """Error that its batches failed with."""
    ranges: Sequence[CommittedRange] = ()
    """Ranges of the first batch, until there is another."""
    joined: JoinedRanges | None = None
    """Ranges of all batches, where they are of several batches."""
    rows: int = 0
    """Committed."""
    batches: int = 0
    """Committed."""
    unanswered: int = 0

    def add(self, rows: int, ranges: Sequence[CommittedRange]) -> None:
        """Count a batch that was committed."""
        if self.batches == 0:
            self.ranges = ranges
        else:
            if self.joined is None:
                self.joined = JoinedRanges()
                self.joined.add(self.ranges)
            self.joined.add(ranges)
        self.rows += rows
        self.batches += 1
        self.unanswered -= 1

    def succeed(self) -> None:
        """Resolve the future with all that was committed."""
        assert self.future is not None
        self.future.set_result(
            Committed(
                committed=tuple(self.ranges) if self.joined is None else self.joined.joined(),
                rows=self.rows,
                batches=self.batches,
                sequence=self.sequence,
                next_sequence=self.next_sequence,
            )
        )

    def fail(self, error: WingsError) -> None:
        """Fail the future with an error whose facts count what was committed before."""
        assert self.future is not None
        own = copy_of(error)
        own.facts.update(rows_committed=self.rows, batches_committed=self.batches)
        self.future.set_exception(own)


@dataclass(slots=True)  # Not frozen, which would take twice as long to make.
class Entry:
    """An unanswered batch."""

    sequence: int
    batch: pa.RecordBatch
    metadata: bytes | None
    bytes: int
    send: Send


class Window:
    """See the module.

    Args:
        schema: Schema of the batches.
        sequence: Sequence of the first batch.
        batches_max: Most batches in it.
        bytes_max: Most bytes in it; one batch may exceed it.
        endpoint: For errors.

    Attributes:
        answers: How many batches were committed so far.
        rows: How many rows were committed so far.
        rows_in_doubt: How many rows failed without a response, and may be committed.
    """

    def __init__(
        self, schema: pa.Schema, sequence: int, batches_max: int, bytes_max: int, endpoint: str
    ) -> None:
        self.answers = 0
        self.rows = 0
        self.rows_in_doubt = 0
        self._batches_max = batches_max
        self._bytes_max = bytes_max
        self._endpoint = endpoint
        self._framing_bytes = _framing_bytes(schema)
        share = bytes_max // batches_max
        self._counted_whole_bytes = min(_COUNTED_WHOLE_BYTES, share) // max(1, _columns(schema))
        self._next_sequence = sequence
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        self._written = 0
        """How many of the entries were written to the present stream."""
        self._ever_written = 0
        """How many of the entries were written to any stream."""
        self._lost = 0
        """How many of the entries were written to a stream before the present one."""
        self._stream_ended = False
        self._writer_waits = False
        """Whether the writer's thread has written all there is to an open stream."""
        self._sender_writes = False
        self._waiting = 0
        """How many threads wait for room, or for an empty window."""
        self._failure: WingsError | None = None
        self._closing = False
        lock = threading.Lock()
        self._lock = lock
        self._room = threading.Condition(lock)
        self._work = threading.Condition(lock)
        self._empty = threading.Condition(lock)

    # The senders' threads.

    @property
    def next_sequence(self) -> int:
        """The sequence of the next batch put in."""
        with self._lock:
            return self._next_sequence

    @property
    def rows_waiting(self) -> int:
        """How many rows have no answer."""
        with self._lock:
            return sum(entry.batch.num_rows for entry in self._entries)

    def begin(self) -> Send:
        """Begin a send; for one thread at a time."""
        return Send(self._next_sequence, self._next_sequence)

    def put(
        self, send: Send, batch: pa.RecordBatch, metadata: bytes | None, deadline: Deadline
    ) -> bool:
        """Put in a batch; blocks while there is no room for it.

        Returns:
            Whether the caller has to write the batch to the present stream, and to call `written`
            then. It may where the writer's thread has nothing to do and the server will take the
            batch without a wait: that saves waking the writer.

        Raises:
            ResourceExhausted: No room before the deadline.
            InvalidArgument: The window was closed.
            Unavailable: The call was cancelled.
            WingsError: What an earlier batch failed with.
        """
        # Whole buffers are counted faster than the part of them that a batch refers to.
        size = 0 if self._entries else batch.get_total_buffer_size()
        if not 0 < size <= self._counted_whole_bytes:
            size = batch.nbytes
        if current_cancellation() is None:
            with self._lock:
                self._check_open()
                if self._has_room(size):
                    return self._append(send, batch, metadata, size)
        with woken_by_cancellation(self._wake) as cancelled, self._lock:
            self._waiting += 1
            try:
                while True:
                    self._check_open()
                    if cancelled():
                        raise client_closed(self._endpoint)
                    if self._has_room(size):
                        return self._append(send, batch, metadata, size)
                    if not self._room.wait(deadline.remaining()) and not self._has_room(size):
                        raise full(send.batches + send.unanswered)
            finally:
                self._waiting -= 1

    def _append(self, send: Send, batch: pa.RecordBatch, metadata: bytes | None, size: int) -> bool:
        """Put in a batch that there is room for; returns what `put` does."""
        entry = Entry(self._next_sequence, batch, metadata, size, send)
        # Nothing is called until all of it is done: a signal handler may raise after each call.
        self._bytes += size
        self._next_sequence += 1
        send.next_sequence = self._next_sequence
        send.unanswered += 1
        try:
            self._entries.append(entry)
            if (
                self._writer_waits
                and self._written == len(self._entries) - 1
                and not self._stream_ended
                and self._bytes + len(self._entries) * self._framing_bytes <= _SENT_AT_ONCE_BYTES
            ):
                self._sender_writes = True
                self._take_next()
                return True
            self._work.notify()
        except BaseException:  # Ctrl-C: the batch is in the window.
            self._work.notify()
            raise
        return False

    def written(self, succeeded: bool) -> None:
        """Tell that the caller has written its batch, or that the stream has ended.

        Does nothing where no batch is the caller's to write.
        """
        if not self._sender_writes:
            return
        with self._lock:
            self._sender_writes = False
            self._stream_ended = self._stream_ended or not succeeded
            if not (succeeded and self._writer_waits):
                self._work.notify()  # It waits for this, or is to end the stream.

    def complete(
        self, send: Send, then: Callable[[Future[Committed]], None] | None = None
    ) -> Future[Committed]:
        """Return the future of a send, all of whose batches are in the window; called once.

        Args:
            send: From `begin`.
            then: A callback of the future.
        """
        # Made when the batches are on their way, as it takes longer than to put one in.
        future = Future[Committed]()
        future.set_running_or_notify_cancel()
        if then is not None:
            future.add_done_callback(then)
        with self._lock:
            send.future = future
            failure, done = send.failure, send.unanswered == 0
        if failure is not None:
            send.fail(failure)
        elif done:
            send.succeed()
        return future

    def wait_empty(self, timeout: float | None) -> None:
        """Wait until every batch put in so far is committed.

        Raises:
            Unavailable: Not within `timeout` seconds.
            WingsError: What a batch failed with.
        """
        with woken_by_cancellation(self._wake) as cancelled, self._lock:
            self._waiting += 1
            try:
                self._empty.wait_for(
                    lambda: not self._entries or self._failure or cancelled(), timeout
                )
            finally:
                self._waiting -= 1
            if self._failure is not None:
                raise copy_of(self._failure)
            if self._entries:
                raise timed_out(
                    f"{len(self._entries)} batches are not answered after {timeout} s",
                    self._endpoint,
                )

    def _wake(self) -> None:
        """Wake the waits for room and for an empty window."""
        with self._lock:
            self._room.notify_all()
            self._empty.notify_all()

    def close(self) -> bool:
        """Refuse further batches; returns False if it was closed already."""
        with self._lock:
            was_open = not self._closing
            self._closing = True
            self._room.notify_all()
            self._work.notify_all()
            return was_open

    def fail(self, error: WingsError) -> None:
        """Fail every batch in the window, and all later calls."""
        with self._lock:
            self._failure = self._failure or copy_of(error)
            sends = {id(entry.send): entry.send for entry in self._entries}.values()
            for send in sends:
                send.failure = error
            # Of the others `complete` finds it.
            failed = [send for send in sends if send.future is not None]
            in_doubt = islice(self._entries, self._in_doubt(error))
            self.rows_in_doubt += sum(entry.batch.num_rows for entry in in_doubt)
            self._entries.clear()
            self._bytes = 0
            self._written = 0
            self._ever_written = 0
            self._lost = 0
            self._room.notify_all()
            self._work.notify_all()
            self._empty.notify_all()
        for send in failed:
            send.fail(error)

    def _in_doubt(self, error: WingsError) -> int:
        """Return how many of the oldest batches may be committed, though unanswered."""
        if isinstance(error, (Unavailable, Internal)):
            return self._ever_written
        if isinstance(error, (ResourceExhausted, NotFound, PermissionDenied, Unauthenticated)):
            return self._lost  # The stream was refused, not the batch.
        # The oldest batch was refused. Committed before, it would have been recognised by its
        # sequence; without it no later one is committed.
        return 0

    # The writer's thread.

    def wait_for_work(self) -> bool:
        """Wait for a batch; returns False if none will follow."""
        with self._lock:
            self._work.wait_for(lambda: self._entries or self._closing or self._failure)
            return bool(self._entries)

    def begin_stream(self) -> int | None:
        """Begin to write from the oldest batch on; return its sequence, None without a batch."""
        with self._lock:
            self._written = 0
            self._lost = self._ever_written
            self._stream_ended = False
            return self._entries[0].sequence if self._entries else None

    def next_to_write(self, expiry: float) -> Entry | None:
        """Return the next batch to write; blocks until there is one. None ends the stream.

        Args:
            expiry: When the stream shall end at the latest, on the monotonic clock.
        """
        with self._lock:
            while not self._stream_ended and self._failure is None:
                left = expiry - time.monotonic()
                if left <= 0:
                    break
                if self._written < len(self._entries):
                    return self._take_next()
                if self._closing:
                    break
                self._writer_waits = True
                self._work.wait(left)
                self._writer_waits = False
            while self._sender_writes:  # Its stream must not end under it.
                self._work.wait()
            return None

    def _take_next(self) -> Entry:
        """Return the oldest batch that was not written, as one that is."""
        self._written += 1
        self._ever_written = max(self._ever_written, self._written)
        return self._entries[self._written - 1]

    @property
    def unanswered(self) -> bool:
        """Whether a batch that was written to the present stream has no answer."""
        with self._lock:
            return self._written > 0

    # The answers' thread.

    def answered(self, ranges: Sequence[CommittedRange]) -> None:
        """Remove the oldest batch, which was committed."""
        with self._lock:
            if self._written == 0:
                return  # All have failed meanwhile.
            entry = self._entries.popleft()
            self._bytes -= entry.bytes
            self._written -= 1
            self._ever_written -= 1
            self._lost = max(0, self._lost - 1)
            self.answers += 1
            rows = entry.batch.num_rows
            self.rows += rows
            send = entry.send
            send.add(rows, ranges)
            done = send.future is not None and send.unanswered == 0
            if self._waiting:
                self._room.notify()
                if not self._entries:
                    self._empty.notify_all()
        if done:
            send.succeed()

    def end_stream(self) -> None:
        """Record that the present stream has ended: unanswered batches are written to the next."""
        with self._lock:
            self._stream_ended = True
            self._work.notify()

    def _has_room(self, size: int) -> bool:
        if not self._entries:
            return True
        return len(self._entries) < self._batches_max and self._bytes + size <= self._bytes_max

    def _check_open(self) -> None:
        if self._failure is not None:
            raise copy_of(self._failure)
        if self._closing:
            raise InvalidArgument("the producer is closed")


def _framing_bytes(schema: pa.Schema) -> int:
    """Return about what a batch takes on the wire at most beside its buffers.

    Arrow names each column's length and each buffer's place, so a wide batch of one row is little
    else; and it rounds each buffer up, by less than half of what it takes to name its place.
    """
    named = pa.ipc.get_record_batch_size(empty_batch(schema))
    return _MESSAGE_BYTES + named + named // 2


def _columns(fields: "Iterable[ArrowField]") -> int:
    """Return how many columns there are, with those inside of nested ones."""
    return sum(1 + _columns(children(field.type)) for field in fields)


def full(batches_sent: int) -> ResourceExhausted:
    """Return the error of a send that found no room before its deadline."""
    return ResourceExhausted(
        f"the producer's window was full for too long; {batches_sent} batches of this were sent",
        batches_sent=batches_sent,
    )
