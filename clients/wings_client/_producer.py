"""Producer: an open stream of batches, pipelined, each written to the log exactly once.

    send ─▶ window (bounded) ─▶ writer's thread ─▶ DoPut
                 ▲                                   │
                 └──── answers' thread ◀── PutResult ┘   takes off the oldest, resolves its send

Each batch has a sequence, counted up by the producer. When a connection breaks, the writer opens
another stream that begins with the oldest batch without an answer, under its old sequence: what the
server has committed already it answers with its first result, and commits the rest. It remembers
the last 64 results, so a window holds no more than that.
"""

import threading
import time
from concurrent.futures import Future
from types import TracebackType
from typing import Self
from uuid import uuid4

from wings_client._batches import BATCH_ROWS, Cut, Data, to_batches
from wings_client._errors import client_closed, is_passing, lost
from wings_client._messages import TimeValue, build, wire_partition, wire_time
from wings_client._model import Committed, CommittedRange, PartitionValue, Topic
from wings_client._put import PutStream
from wings_client._retry import Backoff
from wings_client._transport import Transport
from wings_client._window import Window, full
from wings_core.contracts.put import BatchMetadata, PutCommand
from wings_core.errors import InvalidArgument, Unavailable, WingsError
from wings_core.model import Accepted, Rejected
from wings_core.times import Deadline

WINDOW_BATCHES_MAX = 64
"""Most batches without an answer; the server remembers so many results of a producer."""

WINDOW_BYTES = 32 * 1024 * 1024
"""Bytes without an answer; one batch may exceed it."""

JOIN_SECONDS = 1.0
"""How long `close` waits for the stream to end, once everything is durable."""


class Producer:
    """Writes to a topic over one open stream; made by `Client.producer`, safe from many threads.

    Attributes:
        topic: Where it writes.
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
    ) -> None:
        if not 1 <= window_batches <= WINDOW_BATCHES_MAX:
            raise InvalidArgument(
                f"window_batches must be from 1 to {WINDOW_BATCHES_MAX}; got {window_batches}"
            )
        if window_bytes < 1 or batch_rows < 1:
            raise InvalidArgument("window_bytes and batch_rows must be at least 1")
        self.topic = topic
        self.producer_id = uuid4().hex if producer_id is None else producer_id
        self._transport = transport
        self._command = build(
            PutCommand,
            InvalidArgument,
            "producer",
            topic=topic.name,
            partition=wire_partition(partition),
            producer_id=self.producer_id,
            sequence=sequence,
        )
        self._cut = Cut.of(topic, batch_rows, routed=partition is None)
        self._window = Window(sequence, window_batches, window_bytes, transport.endpoint)
        # One send at a time, so that its batches lie together. Comes before the window's lock.
        self._sending = threading.Lock()
        self._thread: threading.Thread | None = None
        self._refusal: WingsError | None = None
        """What a batch of the present stream was refused with; the two threads hand it on by
        joining."""

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
    def rows_in_doubt(self) -> int:
        """How many rows may be committed though no answer tells; 0 until the producer has failed.

        They follow those of `rows_committed`, and what is committed of them is their beginning.
        """
        return self._window.rows_in_doubt

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
            data: As for `Client.push`.
            timestamp: That its rows shall bear; None: the time of commit.
            expected_offset: Commit only if this is the partition's next offset; of data that is
                cut into several batches, the first one's.
            timeout: Seconds to wait for room at most; None: for as long as the server goes on
                answering (and within the bounds of `Retry` where it does not).

        Returns:
            What was committed, once it is durable, or the error it was refused with: facts
            `rows_committed` and `batches_committed` tell what went before. Its callbacks run on a
            thread of the producer and must not block.

        Raises:
            SchemaMismatch: The data does not fit the topic; batches before the one that does not
                were sent.
            ResourceExhausted: No room in time; fact `batches_sent` tells how many were sent.
            WingsError: What an earlier batch was refused with.
        """
        deadline = Deadline.never() if timeout is None else Deadline.after(timeout)
        stamp = None if timestamp is None else wire_time(timestamp)
        if not self._sending.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            raise full(0)
        try:
            send = self._window.begin()
            for batch in to_batches(data, self.topic.schema, self._cut):
                metadata = _metadata(stamp, expected_offset)
                self._window.put(send, batch, metadata, deadline)
                self._start()
                expected_offset = None
        finally:
            self._sending.release()
        self._window.complete(send)
        return send.future

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was sent before is durable.

        Args:
            timeout: Seconds; None: for as long as the server goes on answering (and within the
                bounds of `Retry` where it does not).

        Raises:
            Unavailable: Not in time; what is without an answer stays so.
            WingsError: What a batch was refused with.
        """
        self._window.wait_empty(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Flush and close; again does nothing.

        Args:
            timeout: As for `flush`.

        Raises:
            WingsError: As `flush`. The producer is closed all the same; what has no answer by then
                fails.
        """
        if not self._window.close():
            return
        try:
            self._window.wait_empty(timeout)
        except Unavailable as error:
            self._window.fail(error)
            raise
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)

    def cancel(self) -> None:
        """Give up: send nothing more, and fail what has no answer; does not block.

        What was sent may have been committed all the same.
        """
        self._window.close()
        self._window.fail(client_closed(self._transport.endpoint))

    def __enter__(self) -> Self:
        """Return the producer itself."""
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Flush and close; an error that leaves the block is not covered by one of these."""
        try:
            self.close()
        except WingsError:
            if error is None:
                raise

    def _start(self) -> None:
        """Start the writer's thread with the first batch."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="wings-producer", daemon=True)
            self._thread.start()

    # The writer's thread.

    def _run(self) -> None:
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
                self._window.fail(error)
                return
            self._transport.closed.wait(backoff.next_delay())

    def _one_stream(self) -> WingsError | None:
        """Write what is in the window and what comes, until the stream broke or is old.

        Returns:
            What it broke with, or a batch of it was refused with.
        """
        sequence = self._window.begin_stream()
        if sequence is None:
            return None
        # A stream has a gRPC deadline, as nothing else frees a thread from a server that went
        # silent; it is ended well before that, and another one goes on.
        lifetime = self._transport.timeout
        self._refusal = None
        try:
            stream = PutStream(
                self._transport,
                self._command.model_copy(update={"sequence": sequence}),
                self.topic.schema,
                lifetime + self._transport.timeout,
            )
        except WingsError as error:
            return error
        answers = threading.Thread(
            target=self._read_answers, args=(stream,), name="wings-answers", daemon=True
        )
        answers.start()
        expiry = time.monotonic() + lifetime
        while (entry := self._window.next_to_write(expiry)) is not None:
            if not stream.write(entry.batch, entry.metadata):
                break
        stream.finish()
        answers.join()
        ended = stream.close()
        error = self._refusal or ended
        if error is None and self._window.unanswered:
            return lost("a stream ended before its answers", stream.endpoint)
        return error

    # The answers' thread.

    def _read_answers(self, stream: PutStream) -> None:
        try:
            while (answer := stream.read()) is not None:
                if isinstance(answer.result, Rejected):
                    self._refusal = answer.result.error
                    return
                assert isinstance(answer.result, Accepted), "a producer stages nothing"
                committed = answer.result.committed
                self._window.answered([CommittedRange.of(found) for found in committed])
        finally:
            self._window.end_stream()


def _metadata(timestamp: str | None, expected_offset: int | None) -> bytes | None:
    if timestamp is None and expected_offset is None:
        return None
    return build(
        BatchMetadata,
        InvalidArgument,
        "batch",
        timestamp=timestamp,
        expected_offset=expected_offset,
    ).to_bytes()
