"""The accumulator of a producer: collects appended rows into batches.

    append ─▶ accumulator ─▶ a batch after `linger`, or when it is full ─▶ window

A small form of Kafka's RecordAccumulator: a lone row waits a few milliseconds for others, and under
load batches fill before that, so no row waits.

A thread, started by the first row, sends rows when they are due. One lock guards the rare paths and
is never held across a blocking call; adding a row takes no lock.
"""

import threading
from base64 import b64encode
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import NoReturn

from wings_client._cancellation import woken_by_cancellation
from wings_client._errors import client_closed, copy_of
from wings_client._model import Appended, Committed, CommittedRange
from wings_client._window import full
from wings_core.errors import InvalidArgument, WingsError
from wings_core.times import Deadline

ROW_BYTES_ASSUMED = 128
"""Bytes assumed of a row until a batch was measured."""

BATCHES_WAITING = 2
"""Batches that may wait in the accumulator; beyond it `append` blocks."""

Ack = Future[Appended]


@dataclass(frozen=True, slots=True)
class Acked:
    """A row with a future for its offset."""

    row: object
    ack: Ack


@dataclass(frozen=True, slots=True)
class Taken:
    """Rows that become the next batch."""

    rows: list[object]
    first_row: int
    """The number of the first row, from 0, among all appended to the producer."""
    acks: list[tuple[int, Ack]]
    """Index in `rows`, and the future to resolve once the row is durable."""


class _Waits(IntEnum):
    """What the accumulator's thread waits for."""

    NOTHING = 0
    A_ROW = 1
    MORE_ROWS = 2


class Accumulator:
    """See the module.

    Args:
        drain: Called by the accumulator's thread when rows are due; calls `take` and sends.
        linger_seconds: How long the first row of a batch waits for others.
        batch_bytes: A batch of about this many bytes is full.
        batch_rows: A batch of this many rows is full, whatever its bytes.
        endpoint: For errors.
    """

    def __init__(
        self,
        drain: Callable[[], None],
        *,
        linger_seconds: float,
        batch_bytes: int,
        batch_rows: int,
        endpoint: str,
    ) -> None:
        self._drain = drain
        self._linger_seconds = linger_seconds
        self._batch_bytes = batch_bytes
        self._batch_rows = batch_rows
        self._endpoint = endpoint
        self._full_rows = 0
        """Rows at which a batch is full, by `batch_rows` and the measured row size."""
        self._rows_max = 0
        self.learn_row_bytes(ROW_BYTES_ASSUMED)
        self._rows: deque[object] = deque()
        self._waits = _Waits.A_ROW
        self._first_row = 0
        self._bad_row: WingsError | None = None
        self._failure: WingsError | None = None
        self._closed = False
        self._refusing = False
        """Whether `append` must raise: a bad row, a failure or a close. Read once a row."""
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._due = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)

    def append(self, row: object, timeout: float | None) -> None:
        """Add a row; blocks while `BATCHES_WAITING` batches wait.

        Args:
            row: Or an `Acked` one. Must not be changed after this call.
            timeout: Most seconds to wait for room; None: no bound.

        Raises:
            ResourceExhausted: No room in time.
            SchemaMismatch: An earlier row without an ack did not fit the topic. This one was not
                added.
            WingsError: The error that the producer failed with.
        """
        rows = self._rows
        while self._refusing or len(rows) >= self._rows_max:
            self._wait_for_room(Deadline.never() if timeout is None else Deadline.after(timeout))
        # No lock: it would cost as much as all the rest. The thread sets `_waits` before it
        # reads the rows, and this reads that after adding one, so neither misses the other.
        rows.append(row)
        waits = self._waits
        if waits and (waits is _Waits.A_ROW or len(rows) >= self._full_rows):
            self._wake_thread()
        if self._closed:
            self._take_back(row)

    @property
    def has_rows(self) -> bool:
        """Whether rows wait."""
        return bool(self._rows)

    def take(self) -> Taken | None:
        """Return the waiting rows, None if there are none; called by one thread at a time."""
        with self._lock:
            items = [self._rows.popleft() for _ in range(len(self._rows))]
            if not items:
                return None
            first_row = self._first_row
            self._first_row += len(items)
            self._room.notify_all()
        acks: list[tuple[int, Ack]] = []
        if Acked in set(map(type, items)):
            for index, item in enumerate(items):
                if isinstance(item, Acked):
                    acks.append((index, item.ack))
                    items[index] = item.row
        return Taken(items, first_row, acks)

    def learn_row_bytes(self, row_bytes: float) -> None:
        """Set the bytes assumed of a row."""
        rows = int(self._batch_bytes / max(1.0, row_bytes))
        self._full_rows = max(1, min(rows, self._batch_rows))
        self._rows_max = BATCHES_WAITING * self._full_rows

    def report(self, error: WingsError) -> None:
        """Record the error of a row without an ack; the next call raises it."""
        with self._lock:
            self._bad_row = self._bad_row or error
            self._refusing = True
            self._room.notify_all()

    def fail(self, error: WingsError) -> None:
        """Make all later calls raise `error`."""
        with self._lock:
            self._failure = self._failure or error
            self._refusing = True
            self._room.notify_all()

    def raise_reported(self) -> None:
        """Raise the recorded error of a row, once."""
        with self._lock:
            if self._bad_row is not None:
                self._raise_bad_row()

    def close(self) -> bool:
        """Refuse further rows; returns False if it was closed already."""
        with self._lock:
            was_open = not self._closed
            self._closed = self._refusing = True
            self._due.notify_all()
            self._room.notify_all()
            return was_open

    def _raise(self) -> NoReturn:
        """Raise the reason why no row is accepted; called with the lock held."""
        if self._failure is not None:
            raise copy_of(self._failure)
        if self._bad_row is not None:
            self._raise_bad_row()
        raise InvalidArgument("the producer is closed")

    def _raise_bad_row(self) -> NoReturn:
        error, self._bad_row = self._bad_row, None
        self._refusing = self._closed or self._failure is not None
        assert error is not None
        raise error

    def _wait_for_room(self, deadline: Deadline) -> None:
        with woken_by_cancellation(self._wake) as cancelled, self._lock:
            while True:
                if self._refusing:
                    self._raise()
                if len(self._rows) < self._rows_max:
                    return
                if cancelled():
                    raise client_closed(self._endpoint)
                if deadline.passed:
                    raise full(0)
                self._room.wait(deadline.remaining())

    def _take_back(self, row: object) -> None:
        """Remove a row that was added after the last `take`; others are being sent."""
        with self._lock:
            # Other threads only append, so the indices stay.
            for index in range(len(self._rows)):
                if self._rows[index] is row:
                    del self._rows[index]
                    self._raise()

    def _wake(self) -> None:
        with self._lock:
            self._room.notify_all()

    def _wake_thread(self) -> None:
        """Notify the thread of a first row or a full batch; the first row of all starts it."""
        with self._lock:
            self._due.notify()
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._run, name="wings-accumulator", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while self._wait_until_due():
            self._drain()

    def _wait_until_due(self) -> bool:
        """Wait until rows are due; returns False once closed: `close` sends the remaining rows."""
        with self._lock:
            self._waits = _Waits.A_ROW
            self._due.wait_for(lambda: self._rows or self._closed)
            self._waits = _Waits.MORE_ROWS
            self._due.wait_for(
                lambda: self._closed or not 0 < len(self._rows) < self._full_rows,
                self._linger_seconds,
            )
            self._waits = _Waits.NOTHING
            return not self._closed


def fail_acks(acks: Sequence[tuple[int, Ack]], error: WingsError) -> None:
    """Fail the futures of rows, but for those that are done."""
    for _, ack in acks:
        with suppress(InvalidStateError):
            ack.set_exception(copy_of(error))


def resolve_acks(
    acks: Sequence[tuple[int, Ack]], keys: Sequence[object] | None, sent: Future[Committed]
) -> None:
    """Resolve the future of each row of a batch that is durable or refused.

    Args:
        acks: Index in the batch, ascending, and the future.
        keys: The partition key of each row; None where all are of one partition.
        sent: The batch's future, done.
    """
    error = sent.exception()
    if error is not None:
        assert isinstance(error, WingsError), "a send fails with nothing else"
        fail_acks(acks, error)
        return
    ranges: dict[object, deque[CommittedRange]] = defaultdict(deque)
    for found in sent.result().committed:
        ranges[found.partition if keys is not None else None].append(found)
    passed: dict[object, int] = defaultdict(int)  # Rows already counted of each key's first range.
    row = 0
    for index, ack in acks:
        while True:
            key = None if keys is None else _json_key(keys[row])
            found = ranges[key][0]
            offset = found.start_offset + passed[key]
            passed[key] += 1
            if offset == found.end_offset:
                ranges[key].popleft()
                passed[key] = 0
            row += 1
            if row > index:
                break
        ack.set_result(Appended(found.partition, offset, found.timestamp))


def _json_key(value: object) -> object:
    """Return a partition key as results have it: bytes as base64."""
    return b64encode(value).decode("ascii") if isinstance(value, bytes) else value
