"""DoPut: from a stream of batches to commits, and an answer for each, in order.

    handler's thread: read ─▶ prepare ─▶ group commit          (reading never waits for a commit)
    answers' thread:  take the oldest ─▶ wait for its outcome ─▶ write its PutResult

Two traps of pyarrow's server shape this (both measured): an error raised while another thread reads
the stream aborts the process, so the handler's thread reads; and `writer.write` blocks when a
client leaves about 26,000 answers unread, so neither the reader nor the flusher writes.
"""

import queue
import threading
import uuid
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight as flight
import structlog

from wings_core.batches import check_stream_schema
from wings_core.contracts.put import (
    BatchMetadata,
    PutCommand,
    parse_batch_metadata,
    parse_put_command,
    put_path,
    result_to_json,
)
from wings_core.errors import InvalidArgument, Unavailable, WingsError
from wings_core.ingest.group_commit import Pending, PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.log import Log
from wings_core.model import Accepted, CommitResult, Rejected, Sequence, StageEntry
from wings_core.names import TopicName
from wings_core.partitions import Partition, partition_of
from wings_server.metrics import Metrics

_logger = structlog.get_logger("wings.flight")

ANSWERS_WAITING_MAX = 100_000
"""Answers of one stream that wait to be written; a client that reads none is read no further."""


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

    Raises:
        TopicNotFound: And the other refusals before any batch.
    """

    def __init__(self, log: Log, command: PutCommand, metrics: Metrics) -> None:
        self._log = log
        self._metrics = metrics
        self._topic = log.admin.get_topic(TopicName.parse(command.topic))
        self._partition: Partition | None = None
        if command.partition is not None or self._topic.partition_key is None:
            self._partition = partition_of(command.partition, self._topic.key_type)
        self._preparer = Preparer(self._topic, log.limits)
        self._command = command
        self._next_sequence = command.sequence
        self._writing = uuid.uuid4().hex
        self._batches = 0
        self._stream = PushStream()

    def run(
        self,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
        stopping: threading.Event,
    ) -> None:
        """Read, commit and answer until the client finishes; blocks for as long as that takes.

        Every batch that was read is committed or refused when this returns, also where the client
        is gone.

        Raises:
            WingsError: What a batch was refused with, once the client sends again or finishes.
        """
        answers = Answers(writer, self._stream, self._metrics)
        try:
            for chunk in _read(reader):
                if self._stream.refused is not None:
                    break
                self._accept(reader.schema, chunk, answers, stopping)
        finally:
            answers.finish()
        if self._batches == 0:
            self._check_unsent(reader.schema)
        if self._stream.refused is not None:
            raise self._stream.refused

    def _accept(
        self,
        schema: pa.Schema,
        chunk: flight.FlightStreamChunk,
        answers: "Answers",
        stopping: threading.Event,
    ) -> None:
        """Submit the next batch to the group commit, or refuse it and all after it."""
        index = self._batches
        self._batches += 1
        try:
            if stopping.is_set():
                raise Unavailable("the server is stopping")
            if chunk.data is None:
                raise InvalidArgument("a message without a batch")
            check_stream_schema(self._topic.schema, schema)
            metadata = parse_batch_metadata(chunk.app_metadata)
            options = self._options(metadata, first=index == 0)
            prepared = self._preparer.prepare(chunk.data, options)
            # A batch whose answer is next is flushed by the thread that answers; one behind others
            # is not, as that thread may be held up by a client that does not read.
            pending = self._log.group_commit.submit(self._stream, prepared, awaited=answers.idle)
            answers.add(index, pending)
        except WingsError as error:
            answers.add(index, Rejected(error))
            # Batches before this one are good: the stream is refused once they are committed. One
            # of them may fail in its flush; what it failed with comes first.
            answers.finish()
            self._stream.refused = self._stream.refused or error

    def _options(self, metadata: BatchMetadata, *, first: bool) -> PushOptions:
        """Return the batch's options: those of its own metadata, then those of the descriptor."""
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
        check_stream_schema(self._topic.schema, schema)
        self._options(BatchMetadata(), first=True)


class Answers:
    """Writes one PutResult for each batch, in order, on a thread of its own.

    Batches that were read before a refusal was known are answered with it too. After a client is
    gone nothing more is written, but the outcomes are still waited for.
    """

    def __init__(
        self, writer: flight.FlightMetadataWriter, stream: PushStream, metrics: Metrics
    ) -> None:
        self._writer = writer
        self._stream = stream
        self._metrics = metrics
        self._queue: queue.SimpleQueue[tuple[int, Pending | Rejected] | None] = queue.SimpleQueue()
        self._places = threading.Semaphore(ANSWERS_WAITING_MAX)
        self._added = 0
        self._answered = 0
        self._thread = threading.Thread(target=self._run, name="wings-answers", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether the next batch added is the next to be answered."""
        return self._added == self._answered

    def add(self, index: int, outcome: Pending | Rejected) -> None:
        """Answer batch `index` once its outcome is known; blocks where too many are unanswered."""
        self._places.acquire()
        self._added += 1
        self._queue.put((index, outcome))

    def finish(self) -> None:
        """Wait until every answer is written; nothing may be added after. Can be called again."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        silent = False
        while (item := self._queue.get()) is not None:
            index, outcome = item
            result = self._outcome(outcome)
            if not silent:
                silent = not self._write(index, result)
            if isinstance(outcome, Pending) and isinstance(result, Accepted):
                # Counted before it is answered: a client that has its answer finds it counted.
                rows = outcome.batch.rows.num_rows
                self._metrics.pushed("flight", rows, outcome.batch.bytes)
            self._answered += 1
            self._places.release()

    def _outcome(self, pending: Pending | Rejected) -> CommitResult:
        if isinstance(pending, Rejected):
            # A batch before it may have been refused since it was read.
            return Rejected(self._stream.refused or pending.error)
        return pending.outcome()

    def _write(self, index: int, result: CommitResult) -> bool:
        """Write an answer; return whether the client is still there."""
        try:
            self._writer.write(pa.py_buffer(result_to_json(index, result)))
        except (pa.ArrowException, OSError) as gone:
            _logger.info("a producer left before its answers", reason=str(gone)[:200])
            return False
        return True


def _read(reader: flight.MetadataRecordBatchReader) -> Iterator[flight.FlightStreamChunk]:
    """Yield the batches that the client sends, with their metadata.

    Raises:
        InvalidArgument: A message that is not Arrow IPC; nothing after it can be read.
    """
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        except flight.FlightError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise InvalidArgument(f"the stream cannot be read: {error!s:.300}") from None
        yield chunk
