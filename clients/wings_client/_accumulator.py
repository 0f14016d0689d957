"""The accumulator of a producer: collects appended rows into batches that its topic takes.

    append ─▶ accumulator ─▶ a batch after `linger`, or when it is full ─▶ window

A small form of Kafka's RecordAccumulator: a lone row waits a few milliseconds for others, and under
load batches fill before that, so no row waits.

A thread, started by the first row, sends rows when they are due. One lock guards the rare paths and
is never held across a blocking call; adding a row takes no lock.

A row that does not fit is left out, and those around it are sent: it is found by halving.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NoReturn, cast

import pyarrow as pa

from wings_client._arguments import wire_partition
from wings_client._batches import Cut, to_batches
from wings_client._cancellation import LOOK_SECONDS, woken_by_cancellation
from wings_client._errors import client_closed, copy_of
from wings_client._model import Appended, Committed, CommittedRange, PartitionValue, Topic
from wings_client._rows import batch_of_items
from wings_client._threads import Work
from wings_client._window import full
from wings_core.batches import BatchCheck
from wings_core.contracts.messages import shortened
from wings_core.errors import (
    BatchTooLarge,
    Internal,
    InvalidArgument,
    PartitionRequired,
    SchemaMismatch,
    WingsError,
)
from wings_core.limits import Limits
from wings_core.partitions import Partition, partitions_of_keys
from wings_core.times import Deadline

ROW_BYTES_ASSUMED = 16 * 1024
"""Bytes assumed of a row until a batch was measured: the first batches are small ones."""

BATCHES_WAITING = 2
"""Batches that may wait in the accumulator; beyond it `append` blocks."""

BAD_ROWS_NAMED_MAX = 100
"""Rows that did not fit which one error names."""

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
    """Events that the accumulator's thread waits for."""

    NOTHING = 0
    A_ROW = 1
    MORE_ROWS = 2


class Accumulator:
    """See the module.

    Args:
        send: Called by the accumulator's thread with the rows that are due; puts them into the
            window, blocking while that is full. What it raises fails the producer.
        fail: Called once with the error that `send` raised.
        linger_seconds: How long the first row of a batch waits for others.
        batch_bytes: A batch of about this many bytes is full.
        batch_rows: A batch of this many rows is full, whatever its bytes.
        endpoint: For errors.
    """

    def __init__(
        self,
        send: Callable[[Taken], None],
        fail: Callable[[WingsError], None],
        *,
        linger_seconds: float,
        batch_bytes: int,
        batch_rows: int,
        endpoint: str,
    ) -> None:
        self._send = send
        self._fail = fail
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
        self._taken = 0
        """Rows that the thread took so far."""
        self._sent = 0
        """Rows of these that are in the window, or were left out."""
        self._wanted = 0
        """Rows before this number do not linger."""
        self._bad_rows: list[tuple[int, WingsError]] = []
        self._failure: WingsError | None = None
        self._closed = False
        self._refusing = False
        """Whether `append` must raise: a bad row, a failure or a close. Read once a row."""
        self._sending = Work(self._run, "wings-accumulator")
        self._lock = threading.Lock()
        self._due = threading.Condition(self._lock)
        self._changed = threading.Condition(self._lock)
        """Notified when there may be room, and when rows were sent."""

    def append(self, row: object, timeout: float | None) -> None:
        """Add a row; blocks while `BATCHES_WAITING` batches wait.

        Args:
            row: A row, or an `Acked` one. Must not be changed after this call.
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
            try:
                self._wake_thread()
            except RuntimeError:  # It does not start.
                if self._take_back(row):
                    raise
        if (self._closed or self._failure is not None) and self._take_back(row):
            with self._lock:
                self._raise()

    def drain(self, deadline: Deadline) -> None:
        """Wait until all rows added before this call are in the window, or the producer failed.

        The thread sends them at once; an error or Ctrl-C that ends this wait changes nothing.

        Raises:
            ResourceExhausted: Not before the deadline.
            Unavailable: The call was cancelled.
        """
        if self._rows:
            self._sending.start()  # Ctrl-C may have come before it was.
        elif not self._sending.is_started:
            return
        with woken_by_cancellation(self._wake) as cancelled, self._lock:
            wanted = self._taken + len(self._rows)
            if self._sent < wanted > self._wanted:
                self._wanted = wanted
                self._due.notify()
            while self._sent < wanted and self._failure is None:
                if cancelled():
                    raise client_closed(self._endpoint)
                if deadline.passed:
                    raise full(0)
                self._changed.wait(min(LOOK_SECONDS, deadline.remaining() or LOOK_SECONDS))

    @property
    def rows_waiting(self) -> int:
        """How many rows are not in the window yet, and were not left out."""
        return self._taken + len(self._rows) - self._sent

    def learn_row_bytes(self, row_bytes: float) -> None:
        """Set the bytes assumed of a row."""
        rows = int(self._batch_bytes / max(1.0, row_bytes))
        self._full_rows = max(1, min(rows, self._batch_rows))
        self._rows_max = BATCHES_WAITING * self._full_rows

    def report(self, row: int, error: WingsError) -> None:
        """Record the error of a row without an ack, by its number; the next call raises it."""
        with self._lock:
            self._bad_rows.append((row, error))
            self._refusing = True
            self._changed.notify_all()

    def fail(self, error: WingsError) -> None:
        """Make all later calls raise `error`, and fail the rows that wait."""
        with self._lock:
            self._failure = self._failure or error
            self._refusing = True
            rows = self._take()
            self._due.notify_all()
            self._changed.notify_all()
        _fail_acks(rows.acks, error)

    def raise_reported(self) -> None:
        """Raise the errors that were recorded, as one; once."""
        with self._lock:
            if self._bad_rows:
                self._raise_bad_rows()

    @property
    def closed(self) -> bool:
        """Whether no more rows are taken."""
        return self._closed

    def close(self) -> bool:
        """Refuse further rows; returns False if it was closed already. The others are sent."""
        with self._lock:
            was_open = not self._closed
            self._closed = self._refusing = True
            self._due.notify_all()
            self._changed.notify_all()
            return was_open

    def _raise(self) -> NoReturn:
        """Raise the reason why no row is accepted; called with the lock held."""
        if self._failure is not None:
            raise copy_of(self._failure)
        if self._bad_rows:
            self._raise_bad_rows()
        raise InvalidArgument("the producer is closed")

    def _raise_bad_rows(self) -> NoReturn:
        bad, self._bad_rows = self._bad_rows, []
        self._refusing = self._closed or self._failure is not None
        _, error = bad[0]
        message = error.message
        if len(bad) > 1:
            message = f"{message}; and {len(bad) - 1} more rows do not fit"
        error = type(error)(message, **error.facts)
        error.facts["rows"] = [row for row, _ in bad[:BAD_ROWS_NAMED_MAX]]
        raise error

    def _wait_for_room(self, deadline: Deadline) -> None:
        with woken_by_cancellation(self._wake) as cancelled, self._lock:
            while True:
                if cancelled():
                    raise client_closed(self._endpoint)
                if self._refusing:
                    self._raise()
                if len(self._rows) < self._rows_max:
                    return
                if deadline.passed:
                    raise full(0)
                self._changed.wait(min(LOOK_SECONDS, deadline.remaining() or LOOK_SECONDS))

    def _take_back(self, row: object) -> bool:
        """Remove a row that was added after the last ones were taken; False: it is being sent."""
        with self._lock:
            # Other threads only append, so the indices stay.
            for index in range(len(self._rows)):
                if self._rows[index] is row:
                    del self._rows[index]
                    return True
        return False

    def _wake(self) -> None:
        with self._lock:
            self._changed.notify_all()

    def _wake_thread(self) -> None:
        """Notify the thread of a first row or a full batch; the first row of all starts it."""
        with self._lock:
            self._due.notify()
            if self._failure is None:
                self._sending.start()

    def _run(self) -> None:
        """Send what is due, until it is closed and empty, or a send failed."""
        while (rows := self._wait_until_due()) is not None:
            try:
                self._send(rows)
            except BaseException as error:  # noqa: BLE001 - rows that are nowhere fail the producer.
                told = (
                    error
                    if isinstance(error, WingsError)
                    else Internal(f"appended rows could not be sent: {error!r:.200}")
                )
                _fail_acks(rows.acks, told)
                self._fail(told)
            with self._lock:
                self._sent += len(rows.rows)
                self._changed.notify_all()

    def _wait_until_due(self) -> Taken | None:
        """Wait for rows, then until they are due; None where none will come."""
        with self._lock:
            self._waits = _Waits.A_ROW
            self._due.wait_for(lambda: self._rows or self._closed or self._failure is not None)
            self._waits = _Waits.MORE_ROWS
            self._due.wait_for(self._is_due, self._linger_seconds)
            self._waits = _Waits.NOTHING
            rows = self._take()
            if not rows.rows:  # `fail` takes them too.
                return None
            self._changed.notify_all()
            return rows

    def _is_due(self) -> bool:
        full_or_none = not 0 < len(self._rows) < self._full_rows
        return full_or_none or self._closed or self._taken < self._wanted

    def _take(self) -> Taken:
        """Take all rows; called with the lock held."""
        items = [self._rows.popleft() for _ in range(len(self._rows))]
        taken = Taken(items, self._taken, [])
        self._taken += len(items)
        if Acked in set(map(type, items)):
            for index, item in enumerate(items):
                if isinstance(item, Acked):
                    taken.acks.append((index, item.ack))
                    items[index] = item.row
        return taken


def _fail_acks(acks: Sequence[tuple[int, Ack]], error: WingsError) -> None:
    """Fail the futures of rows, but for those that are done."""
    for _, ack in acks:
        with suppress(InvalidStateError):
            ack.set_exception(copy_of(error))


@dataclass(frozen=True, slots=True)
class _AppendedBatch:
    """A batch of rows that fit, and the acks of some of them."""

    rows: pa.RecordBatch
    acks: list[tuple[int, Ack]] = field(default_factory=list[tuple[int, Ack]])
    """Index among `rows`, ascending."""


class RowConverter:
    """Turns appended rows into batches, for one thread.

    Args:
        topic: Where they go.
        cut: How large a batch may be.
        partition: Partition of all rows; None: by the key column, row by row.
    """

    def __init__(self, topic: Topic, cut: Cut, partition: Partition | None) -> None:
        self._schema = topic.schema
        self._key = topic.partition_key
        self._cut = cut
        self._partition = partition
        self._check = BatchCheck(topic.schema)
        configured = topic.config.get("batch_bytes_max")
        default: int = Limits.model_fields["batch_bytes_max"].default
        self._row_bytes_max = configured if isinstance(configured, int) else default

    def convert(self, taken: Taken) -> tuple[list[_AppendedBatch], dict[int, WingsError]]:
        """Return the rows that fit as batches, in order, and the errors of the others.

        Returns:
            The batches; and by the row's number among all appended, why it was left out.
        """
        bad: dict[int, WingsError] = {}
        parts = list(self._fitting(taken.rows, taken.first_row, bad))
        if not parts:
            return [], bad
        whole = parts[0] if len(parts) == 1 else cast("Any", pa).concat_batches(parts)
        acks = dict(taken.acks)
        numbers = [index for index in range(len(taken.rows)) if taken.first_row + index not in bad]
        batches: list[_AppendedBatch] = []
        first = 0
        for piece in to_batches(whole, self._schema, self._cut):
            own = numbers[first : first + piece.num_rows]
            first += piece.num_rows
            if piece.num_rows == 1 and piece.nbytes > self._row_bytes_max:
                row = taken.first_row + own[0]
                bad[row] = BatchTooLarge(
                    f"row {row} has {piece.nbytes} bytes, the limit is {self._row_bytes_max}",
                    bytes=piece.nbytes,
                    bytes_max=self._row_bytes_max,
                    row=row,
                )
                continue
            batches.append(
                _AppendedBatch(
                    piece,
                    [(at, acks[index]) for at, index in enumerate(own) if index in acks]
                    if acks
                    else [],
                )
            )
        return batches, bad

    def _fitting(
        self, rows: Sequence[object], first_row: int, bad: dict[int, WingsError]
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows as batches; those that do not fit are found by halving and put into `bad`."""
        try:
            batch = batch_of_items(rows, self._schema, first_row)
            self._check_rows(batch)
        except Exception as error:  # noqa: BLE001 - values of any class raise what they like.
            if len(rows) == 1:
                bad[first_row] = _error_of_row(error, first_row)
                return
        else:
            yield batch
            return
        half = len(rows) // 2
        yield from self._fitting(rows[:half], first_row, bad)
        yield from self._fitting(rows[half:], first_row + half, bad)

    def _check_rows(self, batch: pa.RecordBatch) -> None:
        """Refuse what a server refuses, which would refuse all rows of the batch.

        Raises:
            SchemaMismatch: A null where none may be.
            PartitionRequired: A null in the key column.
            InvalidArgument: A row of another partition than the producer's.
        """
        self._check.check(batch)
        if self._key is None:
            return
        keys = batch.column(self._key)
        if keys.null_count:
            raise PartitionRequired(f"the partition key {self._key!r} is null", column=self._key)
        found = partitions_of_keys(keys.unique())
        if self._partition is not None and found != [self._partition]:
            raise InvalidArgument(
                f"the producer is for partition {self._partition:.80}, the row's key is another",
                column=self._key,
            )


def _error_of_row(error: Exception, row: int) -> WingsError:
    if isinstance(error, WingsError):
        if error.facts.get("row") == row:
            return error
        return type(error)(shortened(f"row {row}: {error.message}"), **{**error.facts, "row": row})
    try:
        shown = f"{type(error).__name__}: {error!s:.200}"
    except Exception:  # noqa: BLE001 - the message of an error of any class.
        shown = type(error).__name__
    return SchemaMismatch(shortened(f"row {row} cannot be converted: {shown}"), row=row)


def resolve_acks(
    acks: Sequence[tuple[int, Ack]], keys: Sequence[PartitionValue] | None, sent: Future[Committed]
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
        _fail_acks(acks, error)
        return
    ranges: dict[object, deque[CommittedRange]] = defaultdict(deque)
    for found in sent.result().committed:
        ranges[found.partition if keys is not None else None].append(found)
    passed: dict[object, int] = defaultdict(int)  # Rows already counted of each key's first range.
    row = 0
    for index, ack in acks:
        while True:
            key = None if keys is None else wire_partition(keys[row])
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
