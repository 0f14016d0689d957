"""Producer: an open stream of batches, pipelined, each written to the log exactly once.

    append ─▶ accumulator ─▶ a batch, after a few milliseconds or when it is full
                               │
    send ──────────────────────┴▶ window (bounded) ─▶ writer's thread ─▶ DoPut
                                       ▲                                   │
            removes the oldest, ────── └──── answers' thread ◀── PutResult ┘
            resolves its send

While the writer has nothing to do and little is unanswered, a sender's thread writes its batch
itself: a thread less between a message and the wire, which a message that comes alone would feel.

Each batch has a sequence, counted up by the producer. When a connection breaks, the writer opens
another stream that begins with the oldest unanswered batch, under its old sequence: for a batch
that is committed already the server returns its first result. It remembers the last 64 results of
a producer, so a window holds at most that many.
"""

import atexit
import logging
import threading
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Literal, overload
from uuid import uuid4

import pyarrow as pa

from wings_client._accumulator import Accumulator, Acked, RowConverter, Taken, resolve_acks
from wings_client._arguments import TimeValue, build, check_of, checked, wire_partition, wire_time
from wings_client._batches import BATCH_ROWS, Cut, Data, to_batches
from wings_client._errors import client_closed, is_passing, lost, timed_out
from wings_client._forks import inherited_error, living
from wings_client._model import Appended, Committed, CommittedRange, PartitionValue, Topic
from wings_client._retry import Backoff
from wings_client._rows import snapshot, values_getter
from wings_client._stream import PutStream
from wings_client._threads import Work
from wings_client._transport import Closing, Transport
from wings_client._window import Send, Window, full
from wings_client.arrow import RecordBatch
from wings_core import tracing
from wings_core.contracts.put import BatchMetadata, PutCommand
from wings_core.errors import Internal, InvalidArgument, ResourceExhausted, Unavailable, WingsError
from wings_core.partitions import Partition, partition_of
from wings_core.times import Deadline

WINDOW_BATCHES_MAX = 64
"""Most batches without an answer; the server remembers so many results of a producer."""

WINDOW_BYTES = 32 * 1024 * 1024
"""Bytes without an answer; one batch may exceed it."""

LINGER_MS = 5.0
"""How long a row that was appended waits for others, in milliseconds."""

LINGER_MS_MAX = 60_000.0

APPENDED_BYTES = 1024 * 1024
"""Bytes at which a batch of appended rows is sent at once."""

JOIN_SECONDS = 1.0
"""How long `close` waits for the stream to end, once everything is durable."""

EXIT_SECONDS = 5.0
"""How long the end of the process waits for all producers that were left open."""

WARNING_FAILURES = 3
"""Failures in a row, within half a second by default, from which waiting pushes are logged."""

_logger = logging.getLogger("wings_client")

CHECK_TIMEOUT = check_of("append", "timeout")
"""Made once: `append` takes little longer than to make it."""


class Producer(Closing):
    """A producer over one open stream; made by `Client.producer`, safe from many threads.

    Attributes:
        topic: The topic it writes to.
        producer_id: The name under which the server counts its sequences.
    """

    def __init__(
        self,
        transport: Transport,
        topic: Topic,
        *,
        producer_id: str | None = None,
        sequence: int = 0,
        partition: PartitionValue = None,
        batch_rows: int = BATCH_ROWS,
        window_batches: int = WINDOW_BATCHES_MAX,
        window_bytes: int = WINDOW_BYTES,
        linger_ms: float = LINGER_MS,
        batch_bytes: int = APPENDED_BYTES,
    ) -> None:
        if not 1 <= window_batches <= WINDOW_BATCHES_MAX:
            raise InvalidArgument(
                f"window_batches must be from 1 to {WINDOW_BATCHES_MAX}; got {window_batches}"
            )
        if window_bytes < 1 or batch_rows < 1:
            raise InvalidArgument("window_bytes and batch_rows must be at least 1")
        if not 0 <= linger_ms <= LINGER_MS_MAX or batch_bytes < 1:
            raise InvalidArgument(
                f"linger_ms must be from 0 to {LINGER_MS_MAX:,}, batch_bytes at least 1; got "
                f"{linger_ms} and {batch_bytes}"
            )
        self.topic = topic
        self.producer_id = uuid4().hex if producer_id is None else producer_id
        self._transport = transport
        self._command = build(
            PutCommand,
            "producer",
            topic=topic.name,
            partition=wire_partition(partition),
            producer_id=self.producer_id,
            sequence=sequence,
        )
        self._cut = Cut.of(topic, batch_rows, routed=partition is None)
        self._window = Window(
            topic.schema, sequence, window_batches, window_bytes, transport.endpoint
        )
        # One send at a time, so that its batches lie together. Comes before the window's lock.
        self._sending = threading.Lock()
        self._width = len(topic.schema)
        self._values_of = values_getter(topic.schema.names)
        named = _partition_of(topic, self._command.partition)
        self._converter = RowConverter(topic, self._cut, named)
        self._accumulator = Accumulator(
            self._send_appended,
            self._fail,
            linger_seconds=linger_ms / 1e3,
            batch_bytes=batch_bytes,
            batch_rows=batch_rows,
            endpoint=transport.endpoint,
        )
        self._writing: Work | None = None
        self._stream: PutStream | None = None
        """The present one; of the writer's thread, or of a sender whom the window lets write."""
        self._refusal: WingsError | None = None
        """The error of a batch that the present stream refused; published by joining the thread."""

    @property
    def next_sequence(self) -> int:
        """The sequence of the next batch to be sent."""
        return self._window.next_sequence

    @property
    def rows_committed(self) -> int:
        """How many rows were committed since the producer was opened."""
        return self._window.rows

    @property
    def batches_committed(self) -> int:
        """How many batches were committed since the producer was opened."""
        return self._window.answers

    @property
    def rows_waiting(self) -> int:
        """How many rows were appended or sent and are not committed yet, as far as is known."""
        return self._accumulator.rows_waiting + self._window.rows_waiting

    @property
    def rows_in_doubt(self) -> int:
        """How many rows may be committed without a response; 0 until the producer has failed.

        They follow those of `rows_committed`; the committed ones among them come first.
        """
        return self._window.rows_in_doubt

    @overload
    def append(
        self, row: object, *, ack: Literal[False] = False, timeout: float | None = None
    ) -> None: ...

    @overload
    def append(
        self, row: object, *, ack: Literal[True], timeout: float | None = None
    ) -> "Future[Appended]": ...

    @overload
    def append(
        self, row: object, *, ack: bool, timeout: float | None = None
    ) -> "Future[Appended] | None": ...

    def append(
        self, row: object, *, ack: bool = False, timeout: float | None = None
    ) -> "Future[Appended] | None":
        """Add one row to the next batch and return at once, or as soon as there is room for it.

        The batch is sent `linger_ms` after its first row, or when it has `batch_bytes`, in one
        order with what is sent. Until a row's ack, or a `flush` or `close` after it, has succeeded,
        the row may be lost with this process.

        Args:
            row: A mapping by column name (copied; an absent key is null), a dataclass, a pydantic
                model, or a sequence with a value for each column.
            ack: Whether to return a future of the row's offset.
            timeout: Seconds to wait for room at most; None: for as long as the server goes on
                answering.

        Returns:
            With `ack`, a future, resolved once the row is durable or refused. Its callbacks
            run on a thread of the producer and must not block.

        Raises:
            SchemaMismatch: An earlier row that was appended without `ack` does not fit the topic;
                fact `row` is its number, from 0, among all appended to this producer. That row was
                left out, those around it are sent, and this row was not added.
            ResourceExhausted: No room in time.
            WingsError: What an earlier batch was refused with.
        """
        if self._transport.is_inherited:
            raise inherited_error()
        if timeout is not None:
            CHECK_TIMEOUT(timeout)  # `checked` would take as long as all the rest.
        # The caller may reuse the same mapping, or list, for the next row.
        if type(row) is dict and len(row) == self._width:
            try:
                row = self._values_of(row)
            except KeyError:  # Another key, which is no column.
                row = row.copy()
        elif type(row) is not tuple:
            row = snapshot(row)
        if not ack:
            self._accumulator.append(row, timeout)
            return None
        future = Future[Appended]()
        future.set_running_or_notify_cancel()
        self._accumulator.append(Acked(row, future), timeout)
        return future

    @checked
    def extend(self, rows: Iterable[object], *, timeout: float | None = None) -> None:
        """Append rows one after another; see `append`.

        Args:
            rows: Each as for `append`.
            timeout: Seconds to wait for room at most, for each of them.

        Raises:
            WingsError: As `append`; the rows before the one that was next were added.
        """
        for row in rows:
            self.append(row, timeout=timeout)

    @checked
    def send(
        self,
        data: Data,
        *,
        timestamp: TimeValue | None = None,
        expected_offset: int | None = None,
        timeout: float | None = None,
    ) -> "Future[Committed]":
        """Send data and return at once, or as soon as the window has room for it.

        Args:
            data: Data, as for `Client.push`.
            timestamp: The timestamp of its rows; None: the time of commit.
            expected_offset: Commit only if this is the partition's next offset; of data that is
                cut into several batches, the first one's.
            timeout: Seconds to wait for room at most; None: for as long as the server goes on
                answering (and within the bounds of `Retry` where it does not).

        Returns:
            Ranges that were committed, once it is durable, or the error it was refused with, whose
            facts `rows_committed` and `batches_committed` count what was committed before. Its
            callbacks run on a thread of the producer and must not block.

        Raises:
            SchemaMismatch: The data does not fit the topic; batches before the one that does not
                were sent.
            ResourceExhausted: No room in time; fact `batches_sent` is how many were sent.
            WingsError: What an earlier batch was refused with.
        """
        self._transport.check_process()
        deadline = Deadline.never() if timeout is None else Deadline.after(timeout)
        stamp = None if timestamp is None else wire_time(timestamp)
        self._accumulator.drain(deadline)
        if not self._sending.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            raise full(0)
        try:
            if self._accumulator.closed:
                raise InvalidArgument("the producer is closed")
            send = self._window.begin()
            for batch in self.batches(data):
                self._put(send, batch, _metadata(stamp, expected_offset), deadline)
                expected_offset = None
        finally:
            self._sending.release()
        return self._window.complete(send)

    def batches(self, data: Data) -> Iterator[RecordBatch]:
        """Yield data as the batches that `send` would send, and send nothing.

        Raises:
            SchemaMismatch: The data does not fit the topic; when its batch is asked for.
        """
        return to_batches(data, self.topic.schema, self._cut)

    @checked
    def flush(self, timeout: float | None = None) -> None:
        """Send what was appended, and wait until all that was sent before is durable.

        Args:
            timeout: Seconds; None: for as long as the server goes on answering (and within the
                bounds of `Retry` where it does not).

        Raises:
            Unavailable: Not in time; unanswered batches stay in the window.
            SchemaMismatch: A row that was appended does not fit; see `append`. All others are
                durable.
            WingsError: What a batch was refused with.
        """
        self._transport.check_process()
        self._flush(timeout)
        self._accumulator.raise_reported()

    def _flush(self, timeout: float | None) -> None:
        deadline = Deadline.never() if timeout is None else Deadline.after(timeout)
        try:
            self._accumulator.drain(deadline)
        except ResourceExhausted:
            raise timed_out(f"not flushed after {timeout} s", self._transport.endpoint) from None
        self._window.wait_empty(deadline.remaining())

    @checked
    def close(self, timeout: float | None = None) -> None:
        """Flush and close; idempotent. In a forked child it does nothing.

        Args:
            timeout: Seconds, as for `flush`.

        Raises:
            WingsError: As `flush`. The producer is closed all the same; unanswered batches fail.
        """
        if self._transport.is_inherited or not self._accumulator.close():
            return
        try:
            self._flush(timeout)
        except Unavailable as error:
            self._fail(error)
            raise
        finally:
            self._window.close()
        if self._writing is not None:
            self._writing.join(JOIN_SECONDS)
        self._accumulator.raise_reported()

    def cancel(self) -> None:
        """Send nothing more and fail all unanswered batches; does not block.

        Batches that were sent may have been committed.
        """
        if self._transport.is_inherited:
            return
        self._accumulator.close()
        self._window.close()
        self._fail(client_closed(self._transport.endpoint))

    def __repr__(self) -> str:
        """Return its topic and its id."""
        return f"Producer({self.topic.name!r}, producer_id={self.producer_id!r})"

    def _send_appended(self, taken: Taken) -> None:
        """Put rows that were appended into the window, on the accumulator's thread."""
        batches, bad = self._converter.convert(taken)
        acks = dict(taken.acks)
        for row, error in bad.items():
            ack = acks.get(row - taken.first_row)
            if ack is None:
                self._accumulator.report(row, error)
            else:
                ack.set_exception(error)
        with self._sending:
            for batch in batches:
                rows = batch.rows
                self._accumulator.learn_row_bytes(rows.nbytes / rows.num_rows)
                send = self._window.begin()
                self._put(send, rows, None, Deadline.never())
                resolve = None
                if batch.acks:
                    keys = rows.column(self._cut.key).to_pylist() if self._cut.key else None
                    resolve = partial(resolve_acks, batch.acks, keys)
                self._window.complete(send, resolve)

    def _fail(self, error: WingsError) -> None:
        """Fail what is in the window and what would come."""
        # In this order: a caller to whom `flush` raised must find that `append` raises too.
        self._accumulator.fail(error)
        self._window.fail(error)

    def _put(
        self, send: Send, batch: pa.RecordBatch, metadata: bytes | None, deadline: Deadline
    ) -> None:
        """Put a batch into the window, and write it where that is this thread's."""
        if self._writing is None:
            # Its streams belong to the span in which the first batch is sent.
            self._writing = Work(tracing.bound(self._run), "wings-producer")
        self._writing.start()
        succeeded = False
        try:
            if self._window.put(send, batch, metadata, deadline):
                assert self._stream is not None, "a writer waits at an open stream"
                succeeded = self._stream.write(batch, metadata)
        finally:
            # Ctrl-C may come when it is this thread's already, and `put` has not returned.
            self._window.written(succeeded)

    # The writer's thread.

    def _run(self) -> None:
        try:
            self._write_all()
        except BaseException as error:  # noqa: BLE001 - all who send would wait for it.
            self._fail(Internal(f"the producer's thread has failed: {error!r:.200}"))

    def _write_all(self) -> None:
        """Write what comes into the window, stream after stream, until it is closed or failed."""
        retry = self._transport.retry
        backoff = Backoff(retry)
        failing = Deadline.never()
        answers = 0
        while self._window.wait_for_work():
            error = self._one_stream()
            if error is None or self._window.answers > answers:
                backoff.reset()
                answers = self._window.answers
            if error is None:
                continue
            if backoff.failures == 0:
                failing = Deadline.after(retry.reconnect_seconds)
            if not is_passing(error, repeatable=True) or failing.passed:
                self._fail(error)
                return
            self._transport.closed.wait(backoff.next_delay())
            if backoff.failures == WARNING_FAILURES:
                _logger.warning(
                    "pushes to %s wait, and are tried again for up to %g s: %s",
                    self.topic.name,
                    retry.reconnect_seconds,
                    error.message,
                )

    def _one_stream(self) -> WingsError | None:
        """Write batches of the window until the stream breaks or reaches its age limit.

        Returns:
            The error that broke the stream or refused a batch; None at the age limit or the end.
        """
        sequence = self._window.begin_stream()
        if sequence is None:
            return None
        # A stream has a gRPC deadline, as nothing else frees a thread from a silent server; it
        # ends well before that, and another one continues.
        lifetime = self._transport.timeout
        self._refusal = None
        try:
            stream = PutStream(
                self._transport,
                self._command.model_copy(update={"sequence": sequence}),
                self.topic,
                lifetime + self._transport.timeout,
            )
        except WingsError as error:
            return error
        answers = threading.Thread(
            target=self._read_answers, args=(stream,), name="wings-answers", daemon=True
        )
        answers.start()
        self._stream = stream
        expiry = time.monotonic() + lifetime
        while (entry := self._window.next_to_write(expiry)) is not None:
            if not stream.write(entry.batch, entry.metadata):
                break
        stream.finish()
        answers.join()
        self._stream = None  # It keeps the connection, and may be in a cycle.
        ended = stream.close()
        error = self._refusal or ended
        if error is None and self._window.unanswered:
            return lost("a stream ended before its answers", stream.endpoint)
        return error

    # The answers' thread.

    def _read_answers(self, stream: PutStream) -> None:
        try:
            while (answer := stream.read()) is not None:
                self._window.answered([CommittedRange.from_json(at) for at in answer["committed"]])
        except WingsError as error:
            self._refusal = error
        finally:
            self._window.end_stream()


_left_open: weakref.WeakKeyDictionary[Producer, None] = weakref.WeakKeyDictionary()


def close_at_exit(producer: Producer) -> None:
    """Close a producer at the end of the process, if that was not done before."""
    _left_open[producer] = None
    atexit.unregister(_close_left_open)  # Before the end of servers that run in this process.
    atexit.register(_close_left_open)


def _close_left_open() -> None:
    deadline = Deadline.after(EXIT_SECONDS)
    for producer in living(_left_open):
        rows = producer.rows_committed + producer.rows_waiting
        try:
            producer.close(deadline.remaining())
        except WingsError as error:
            lost_rows = rows - producer.rows_committed
            message = f"{lost_rows} rows of {producer!r} have no answer as the process ends: "
            warnings.warn(message + error.message, ResourceWarning, stacklevel=2)


def _partition_of(topic: Topic, partition: object) -> Partition | None:
    """Return the partition that all rows must be of; None where the server has to tell."""
    try:
        return None if partition is None else partition_of(partition, topic.key_type)
    except WingsError:
        return None


def _metadata(timestamp: str | None, expected_offset: int | None) -> bytes | None:
    if timestamp is None and expected_offset is None:
        return None
    return build(
        BatchMetadata, "batch", timestamp=timestamp, expected_offset=expected_offset
    ).to_bytes()
