"""DoPut: from a stream of batches to commits, and an answer for each, in order.

    handler's thread: read ─▶ prepare ─▶ group commit          (reading never waits for a commit)
    answers' thread:  take the oldest ─▶ wait for its outcome ─▶ write its PutResult

Two traps of pyarrow's server shape this (both measured): an error raised while another thread reads
the stream aborts the process, so the handler's thread reads; and `writer.write` blocks when a
client leaves about 26,000 answers unread, so neither the reader nor the flusher writes.
"""

import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy

import pyarrow as pa
import pyarrow.flight as flight
import structlog

from wings_core.batches import version_of_stream
from wings_core.contracts.put import (
    BatchMetadata,
    PutCommand,
    parse_batch_metadata,
    parse_put_command,
    put_path,
    results_to_json,
)
from wings_core.errors import (
    Internal,
    InvalidArgument,
    ResourceExhausted,
    SchemaMismatch,
    Unavailable,
    WingsError,
)
from wings_core.ingest.group_commit import Pending, PushStream
from wings_core.ingest.prepare import PreparedBatch, Preparer, PushOptions
from wings_core.log import Log
from wings_core.memory import ReadRoom
from wings_core.model import Accepted, CommitResult, Rejected, Sequence, StageEntry, Topic
from wings_core.names import TopicName
from wings_core.partitions import Partition, partition_of
from wings_server.metrics import Metrics
from wings_server.quotas import PushQuotas

_logger = structlog.get_logger("wings.flight")

ANSWERS_WAITING_MAX = 100_000
"""Answers of one stream that wait to be written; a client that reads none is read no further."""

GATHERED_MIN = 4
"""After so many answers at once the batches that they bring are gathered for one flush,"""

GATHERED_BYTES = 64 * 1024
"""up to so many bytes, beyond which a flush is no cheaper for being larger,"""

GATHER_SECONDS_MAX = 0.005
"""and for so long, or as long as the last flush took, if that is less: at most that long would the
last of them wait for a flush that the first had begun."""

UNREAD_SECONDS = 0.01
"""An answer whose write takes so long is one that the client does not read."""


def parse_descriptor(descriptor: flight.FlightDescriptor) -> PutCommand:
    """Return the command of a descriptor, a path or JSON.

    Raises:
        InvalidArgument: Neither, or an unknown key or bad value in it.
    """
    if descriptor.path is not None:
        return put_path(descriptor.path)
    if descriptor.command is not None:
        return parse_put_command(descriptor.command)
    raise InvalidArgument("the descriptor is neither a path [topic] nor a JSON command")


class Put:
    """One DoPut call.

    Args:
        log: Where the batches go.
        command: From the descriptor.
        metrics: Counts the batches committed.
        check: Raises once the caller's token has ended.
        quotas: What the caller's quotas ask; None: nothing.

    Raises:
        TopicNotFound: And the other refusals before any batch.
    """

    def __init__(
        self,
        log: Log,
        command: PutCommand,
        metrics: Metrics,
        check: Callable[[], None],
        quotas: PushQuotas | None = None,
    ) -> None:
        self._log = log
        self._quotas = quotas
        self._check = check
        self._metrics = metrics
        self._topic = log.admin.get_topic(TopicName.parse(command.topic))
        self._partition: Partition | None = None
        if command.partition is not None or self._topic.partition_key is None:
            self._partition = partition_of(command.partition, self._topic.key_type)
        self._preparer = Preparer(self._topic, log.limits)
        self._command = command
        self._next_sequence = command.sequence
        self._writing = uuid.uuid4().hex
        self._plain: PushOptions | None = None
        """Of each batch without metadata after the first, but for its sequence."""
        self._batches = 0
        self._stream = PushStream(returns=True)

    def run(
        self,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
        stopping: threading.Event,
        room: ReadRoom,
    ) -> None:
        """Read, commit and answer until the client finishes; blocks for as long as that takes.

        Every batch that was read is committed or refused when this returns, also where the client
        is gone.

        Raises:
            WingsError: What a batch was refused with, once the client sends again or finishes.
        """
        answers = Answers(writer, self._stream, self._metrics, room, self._quotas)
        try:
            for batch, metadata, size in read(reader, room):
                if self._stream.refused is not None:
                    break
                answers.give_way()
                self._accept(reader, batch, metadata, size, answers, stopping)
        finally:
            answers.finish()
        if self._batches == 0:
            self._check_unsent(schema_of(reader))
        if self._stream.refused is not None:
            # A copy: an error that this call refers to, and that refers to this call by its
            # traceback, would keep the last batch in memory until garbage is collected.
            raise copy(self._stream.refused)

    def _accept(
        self,
        reader: flight.MetadataRecordBatchReader,
        batch: pa.RecordBatch | None,
        app_metadata: pa.Buffer | None,
        size: int,
        answers: "Answers",
        stopping: threading.Event,
    ) -> None:
        """Submit the next batch to the group commit, or refuse it and all after it."""
        index = self._batches
        self._batches += 1
        try:
            if stopping.is_set():
                raise Unavailable("the server is stopping")
            self._check()
            if batch is None:
                raise InvalidArgument("a message without a batch")
            if index == 0:
                self._use_schema(reader.schema)
            checked = app_metadata is None and self._plain is not None
            if checked:
                joined = self._join(batch, size)
                if joined is not None:
                    answers.add(joined)
                    return
            options = self._options(app_metadata, first=index == 0)
            prepared = self._prepare(batch, options, checked=checked)
            answers.add(self._submit(prepared, awaited=answers.idle))
        except WingsError as error:
            error.__traceback__ = None
            answers.add(Rejected(error))
            # Batches before this one are good: the stream is refused once they are committed. One
            # of them may fail in its flush; what it failed with comes first.
            answers.finish()
            self._stream.refused = self._stream.refused or error

    def _join(self, batch: pa.RecordBatch, size: int) -> Pending | None:
        """Check a batch without metadata, and join it with the last if that can be at once."""
        preparer, plain, number = self._preparer, self._plain, self._next_sequence
        partition = self._check_small(batch, size)
        # Batches of two versions are not joined.
        if partition is None or preparer is not self._preparer or self._quotas is not None:
            return None
        assert plain is not None
        if self._stream.last is None:
            return None
        joined = self._log.group_commit.join(
            self._stream, batch, size, partition, plain.timestamp, number
        )
        if joined is not None and number is not None:
            self._next_sequence = number + 1
        return joined

    def _submit(self, prepared: PreparedBatch, *, awaited: bool) -> Pending:
        if self._quotas is not None:
            self._quotas.admit(prepared)
        # A batch whose answer is next is flushed by the thread that answers; one behind others is
        # not, as that thread may be held up by a client that does not read.
        return self._log.group_commit.submit(self._stream, prepared, awaited=awaited)

    def _prepare(
        self, batch: pa.RecordBatch, options: PushOptions, *, checked: bool
    ) -> PreparedBatch:
        try:
            return self._preparer.prepare(batch, options, checked=checked)
        except SchemaMismatch as error:
            self._allow_nulls(batch, error)
        return self._preparer.prepare(batch, options)

    def _check_small(self, batch: pa.RecordBatch, size: int) -> Partition | None:
        try:
            return self._preparer.check_small(batch, size)
        except SchemaMismatch as error:
            self._allow_nulls(batch, error)
        return self._preparer.check_small(batch, size)

    def _allow_nulls(self, batch: pa.RecordBatch, error: SchemaMismatch) -> None:
        """Write in a later version, which this stream or node does not know, if there is one.

        Raises:
            SchemaMismatch: `error`, where it is not that a column may not be null.
        """
        if "nulls" not in error.facts:
            raise error
        self._write_in(version_of_stream(self._log.versions.look_again(self._topic), batch.schema))

    def _options(self, app_metadata: pa.Buffer | None, *, first: bool) -> PushOptions:
        """Return the next batch's options: those of its metadata, then those of the descriptor."""
        plain = None if app_metadata is not None else self._plain
        if plain is None:
            options = self._parse_options(parse_batch_metadata(app_metadata), first=first)
            if app_metadata is None and not first:
                self._plain = options
            return options
        if plain.sequence is None:
            return plain
        number = self._next_sequence
        assert number is not None
        self._next_sequence = number + 1
        sequence = Sequence(plain.sequence.producer_id, number)
        return PushOptions(plain.partition, sequence, timestamp=plain.timestamp)

    def _parse_options(self, metadata: BatchMetadata, *, first: bool) -> PushOptions:
        command = self._command
        timestamp = metadata.timestamp_us
        if timestamp is None:
            timestamp = command.timestamp_us
        if command.stage is not None:
            metadata.check_staged()
            entry = StageEntry(command.stage, self._writing, first)
            return PushOptions(self._partition, timestamp=timestamp, stage=entry)
        sequence = self._next_sequence if metadata.sequence is None else metadata.sequence
        if sequence is not None and command.producer_id is None:
            raise InvalidArgument("key 'sequence' needs key 'producer_id' in the descriptor")
        if sequence is None and command.producer_id is not None:
            raise InvalidArgument("key 'producer_id' needs key 'sequence', there or with the batch")
        expected = metadata.expected_offset
        if expected is None and first:
            expected = command.expected_offset
        number = None
        if sequence is not None:
            assert command.producer_id is not None
            self._next_sequence = sequence + 1
            number = Sequence(command.producer_id, sequence)
        return PushOptions(self._partition, number, expected, timestamp)

    def _check_unsent(self, schema: pa.Schema) -> None:
        """Raise, for a client that finishes without a batch, the refusal of the first one."""
        self._use_schema(schema)
        self._parse_options(BatchMetadata(), first=True)

    def _use_schema(self, schema: pa.Schema) -> None:
        """Write in the last version of the topic's schema that has the stream's columns.

        Raises:
            SchemaMismatch: No version has.
        """
        try:
            topic = version_of_stream(self._topic, schema)
        except SchemaMismatch:
            # Another node may have made one since this node looked.
            topic = version_of_stream(self._log.versions.look_again(self._topic), schema)
        if topic is not self._topic:
            self._write_in(topic)

    def _write_in(self, topic: Topic) -> None:
        self._topic = topic
        self._preparer = Preparer(topic, self._log.limits)


class Answers:
    """Writes one PutResult for each batch, in order, on a thread of its own.

    Batches that were read before a refusal was known are answered with it too. After a client is
    gone nothing more is written, but the outcomes are still waited for. While the reader's thread
    waits for the client to read, it holds no room of the budget of memory: a client that never
    does would keep it from all others.
    """

    def __init__(
        self,
        writer: flight.FlightMetadataWriter,
        stream: PushStream,
        metrics: Metrics,
        room: ReadRoom,
        quotas: PushQuotas | None = None,
    ) -> None:
        self._quotas = quotas
        self._room = room
        self._writer = writer
        self._stream = stream
        self._metrics = metrics
        self._queue: queue.SimpleQueue[Pending | Rejected | None] = queue.SimpleQueue()
        self._last: Pending | Rejected | None = None
        self._added = 0  # Counted by the reader's thread alone,
        self._answered = 0  # and this by the answers' thread.
        self._silent = False
        self._writing = threading.Lock()
        """Held by the answers' thread for as long as there is something to write."""
        self._has_turn = False
        self._unread_at = -1
        self._before = 0
        """How many were answered before the last answers that were written at once."""
        self._flush_seconds = 0.0
        """How long the last outcome was waited for."""
        self._gathered: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._wanted = 0
        """How many unanswered batches the answers' thread waits for; 0: it does not."""
        self._thread = threading.Thread(target=self._run, name="wings-answers", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether the next batch added is the next to be answered."""
        return self._added == self._answered

    def add(self, outcome: Pending | Rejected) -> None:
        """Answer the next batch once its outcome is known; blocks where too many are unanswered.

        Args:
            outcome: Its own, or, joined with the batches before it, the same that those have.

        Raises:
            Internal: The answers' thread has ended by a fault.
        """
        while self._added - self._answered >= ANSWERS_WAITING_MAX:
            if not self._thread.is_alive():
                raise Internal("the thread that answers a stream has ended by a fault")
            self._room.close()
            self._thread.join(UNREAD_SECONDS)
        self._added += 1
        if outcome is not self._last:
            self._last = outcome
            self._queue.put(outcome)
        if self._wanted and (
            self._added - self._answered >= self._wanted
            or (isinstance(outcome, Pending) and outcome.batch.bytes >= GATHERED_BYTES)
        ):
            self._gathered.put(None)
            self._wanted = 0

    def give_way(self) -> None:
        """Wait while answers are written, unless the client leaves them unread.

        Were batches taken in meanwhile, the two threads would pass the interpreter's lock to and
        fro with each of them, which costs more than the batches (a fifth of all CPU, measured). And
        a batch that comes right after an answer is flushed by the thread that wrote it, once that
        says so, not by the flusher.
        """
        answered = self._answered
        if not self._writing.locked() or answered == self._unread_at:
            return
        if self._writing.acquire(timeout=UNREAD_SECONDS):
            self._writing.release()
        elif answered == self._answered:
            self._unread_at = answered

    def finish(self) -> None:
        """Wait until every answer is written; nothing may be added after. Can be called again."""
        self._room.close()
        if self._thread.is_alive():
            self._queue.put(None)
            self._gathered.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (outcome := self._next()) is not None:
            results = self._outcomes(outcome)
            if not self._has_turn:
                self._has_turn = self._writing.acquire()
            rows = [0]
            if isinstance(outcome, Pending):
                batch = outcome.batch
                if self._quotas is not None:
                    self._quotas.release(batch)
                rows = [part.num_rows for part in batch.parts]
                # Counted before they are answered: a client that has its answer finds it counted.
                self._count(batch, results, rows)
            for answer in results_to_json(self._answered, results, rows):
                self._write(answer)
                self._answered += 1

    def _count(
        self, batch: PreparedBatch, results: tuple[CommitResult, ...], rows: list[int]
    ) -> None:
        """Count those of some joined batches that were committed."""
        size = batch.bytes
        if not isinstance(results[-1], Accepted):
            # All of them were refused, or staged, or the last.
            before = len([result for result in results if isinstance(result, Accepted)])
            if not before:
                return
            size = size * sum(rows[:before]) // sum(rows)
            rows = rows[:before]
        self._metrics.pushed("flight", batch.topic.name, sum(rows), size, len(rows))

    def _next(self) -> Pending | Rejected | None:
        """Return what is to be answered next, None at the end; ends its turn to wait for it."""
        if self._queue.empty():
            self._end_turn()
            self._gather()
        outcome = self._queue.get()
        if not isinstance(outcome, Pending):
            self._end_turn()
        elif not outcome.done:
            self._end_turn()
            self._gather()
        return outcome

    def _gather(self) -> None:
        """After several answers at once, wait a moment for the batches that they will bring.

        A client that keeps many in flight sends one for each answer. Were a flush begun with the
        first of them, the others would wait for it and the next; and the two groups into which
        they fall, as uneven as 63 and 1, would last: two flushes for each round.
        """
        burst, self._before = self._answered - self._before, self._answered
        if burst < GATHERED_MIN:
            return
        while not self._gathered.empty():
            self._gathered.get()
        wanted = (burst + self._added - self._answered) * 3 // 4
        self._wanted = wanted
        if self._added - self._answered < wanted:
            with suppress(queue.Empty):
                self._gathered.get(timeout=self._gather_seconds())
        self._wanted = 0

    def _gather_seconds(self) -> float:
        return min(self._flush_seconds, GATHER_SECONDS_MAX)

    def _end_turn(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self._writing.release()

    def _outcomes(self, pending: Pending | Rejected) -> tuple[CommitResult, ...]:
        if isinstance(pending, Rejected):
            # A batch before it may have been refused since it was read.
            return (Rejected(self._stream.refused or pending.error),)
        if pending.done:
            return pending.outcomes()
        began = time.monotonic()
        results = pending.outcomes()
        self._flush_seconds = time.monotonic() - began
        return results

    def _write(self, answer: bytes) -> None:
        """Write an answer, unless the client is gone."""
        if self._silent:
            return
        try:
            self._writer.write(pa.py_buffer(answer))
        except (pa.ArrowException, OSError) as gone:
            _logger.info("a producer left before its answers", reason=str(gone)[:200])
            self._silent = True


def schema_of(reader: flight.MetadataRecordBatchReader) -> pa.Schema:
    """Return the schema of a stream; waits for its first message.

    Raises:
        InvalidArgument: The client sends none.
    """
    try:
        return reader.schema
    except flight.FlightError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise InvalidArgument(f"the stream cannot be read: {error!s:.300}") from None


def read(
    reader: flight.MetadataRecordBatchReader, room: ReadRoom
) -> Iterator[tuple[pa.RecordBatch | None, pa.Buffer | None, int]]:
    """Yield the batches that the client sends; each is read once it has room.

    With each its metadata, and the bytes of its buffers: to ask a chunk for its batch again makes
    another object of it.

    Raises:
        InvalidArgument: A message that is not Arrow IPC; nothing after it can be read.
        ResourceExhausted: There is no room for the next; it is not read.
    """
    while True:
        room.begin()
        try:
            batch, metadata = reader.read_chunk()
        except StopIteration:
            return
        except flight.FlightError:
            raise
        except MemoryError as error:
            raise ResourceExhausted(f"the stream cannot be read: {error!s:.300}") from None
        except (pa.ArrowException, OSError) as error:
            raise InvalidArgument(f"the stream cannot be read: {error!s:.300}") from None
        size = 0 if batch is None else batch.get_total_buffer_size()
        room.end(size)
        yield batch, metadata, size
