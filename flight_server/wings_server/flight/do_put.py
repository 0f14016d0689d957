"""DoPut: commits a stream of batches, and answers each in order.

    reading thread:     read ─▶ prepare ─▶ group commit
    answering thread:   take the oldest ─▶ wait for its outcome ─▶ write its PutResult

These are two threads for batches in quick succession, and one for single batches: see `put_turns`.
"""

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from copy import copy
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.flight as flight
import structlog

from wings_core.batches import version_of_stream
from wings_core.contracts.put import (
    BatchMetadata,
    PutCommand,
    command_of,
    parse_batch_metadata,
)
from wings_core.errors import (
    BatchTooLarge,
    InvalidArgument,
    ResourceExhausted,
    SchemaMismatch,
    TopicNotFound,
    Unavailable,
    WingsError,
)
from wings_core.ingest.pending import Pending, PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.log import Log
from wings_core.memory import ReadRoom
from wings_core.model import Rejected, Sequence, StageEntry, Topic
from wings_core.names import TopicName
from wings_core.partitions import Partition, partition_of
from wings_server.flight.put_turns import Answers, Lookout, Turns
from wings_server.metrics import Metrics
from wings_server.quotas import PushQuotas

_logger = structlog.get_logger("wings.flight")

ALONE_SECONDS = 50e-6
"""Waiting time from which a batch may be single, if all before it were answered."""

ALONE_BYTES = 64 * 1024
"""Most bytes of a single batch: while a larger one is written, the next is read."""

ALONE_MAX = 32
"""Single batches in a row after which the next one is read before the answer, as a test.

On a busy machine, batches sent long ago are waited for too. If each were flushed by itself, a
client with 64 batches in flight would pay for 64 flushes instead of one.
"""

_ASKED = re.compile(r"alloc of size (\d+) failed")
"""Pattern of the size in Arrow's message about a failed allocation."""


def parse_descriptor(descriptor: flight.FlightDescriptor) -> PutCommand:
    """Return the command of a descriptor, a path or JSON.

    Raises:
        InvalidArgument: The descriptor is neither, or has an unknown key or bad value.
    """
    return command_of(PutCommand, descriptor.path, descriptor.command, "put command")


class Spacing:
    """A detector of single batches, whose client sends the next one after the answer.

    The first batch is single, as it may be the only one. A later one is single if it and its
    predecessor were waited for, with all earlier batches answered.
    """

    def __init__(self) -> None:
        self._is_first = True
        self._waits = 0
        """Number of consecutive batches that were waited for."""

    def is_alone(self, size: int, seconds: float, *, idle: bool) -> bool:
        """Return whether the next batch is single.

        Args:
            size: Bytes of the batch.
            seconds: Time that it was waited for.
            idle: Whether all batches before it were answered when it arrived.
        """
        small, is_first = size <= ALONE_BYTES, self._is_first
        self._is_first = False
        if is_first:
            return small
        self._waits = self._waits + 1 if small and idle and seconds >= ALONE_SECONDS else 0
        return self._waits > 1 and self._waits % ALONE_MAX > 0


class RowReader(Protocol):
    """The part of a Flight reader that reads batches."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""
        ...

    def read_chunk(self) -> Any:
        """Return the next batch and its metadata; raises StopIteration at the end."""
        ...


class Put:
    """One DoPut call.

    Args:
        log: The log to write to.
        command: The command of the descriptor.
        metrics: Metrics that count committed batches.
        ended: Function that returns the error ending the caller's calls, or None.
        quotas: Quotas of the caller, or None.
        topic_uuid: UUID of the topic, if the caller knows it; None for any topic of the name.

    Raises:
        TopicNotFound: And the other refusals before any batch.
    """

    def __init__(
        self,
        log: Log,
        command: PutCommand,
        metrics: Metrics,
        ended: Callable[[], WingsError | None],
        quotas: PushQuotas | None = None,
        topic_uuid: str | None = None,
    ) -> None:
        self._log = log
        self._quotas = quotas
        self._ended = ended
        self._metrics = metrics
        name = TopicName.parse(command.topic)
        self._topic = log.admin.get_topic(name)
        if topic_uuid not in (None, self._topic.uuid):
            self._topic = log.admin.get_topic(name, fresh=True)  # As another node may know it.
            if topic_uuid != self._topic.uuid:
                raise TopicNotFound(
                    f"topic {name} was deleted, and another of its name was made since: ask for "
                    "its description again"
                )
        self._partition: Partition | None = None
        if "partition" in command.model_fields_set or self._topic.partition_key is None:
            self._partition = partition_of(command.partition, self._topic.key_type)
        self._preparer: Preparer
        """Preparer of batches, set once the stream's schema is known."""
        self._command = command
        self._next_sequence = command.sequence
        self._writing = uuid.uuid4().hex
        self._plain: PushOptions | None = None
        """Options, except the sequence, of each batch without metadata after the first."""
        self._batches = 0
        self._spacing = Spacing()
        self._stream = PushStream(returns=True)

    def run(
        self,
        reader: RowReader,
        writer: flight.FlightMetadataWriter,
        stopping: threading.Event,
        room: ReadRoom,
        lookout: Lookout,
    ) -> None:
        """Read, commit and answer until the client finishes; blocks until then.

        On return, every batch that was read is committed or rejected, even if the client has
        disconnected.

        Raises:
            WingsError: A batch was rejected; raised once the client sends again or finishes.
        """
        answers = Answers(writer, self._stream, self._metrics, room, self._quotas)
        batches = read(reader, room, self._log.limits.batch_bytes_max)

        def read_next() -> bool | None:
            """Read and submit a batch; returns whether it was single, None at the end."""
            answers.let_go()
            began = time.monotonic()
            found = next(batches, None)
            if found is None or self._stream.refused is not None:
                return None
            seconds = time.monotonic() - began
            alone = self._spacing.is_alone(found[2], seconds, idle=answers.idle)
            answers.give_way()
            self._accept(reader, *found, answers, stopping)
            return alone

        lookout.run(Turns(read_next, answers))
        if self._batches == 0:
            self._check_unsent(schema_of(reader))
        if self._stream.refused is not None:
            # A copy: an error that this call refers to, and that refers to this call by its
            # traceback, would keep the last batch in memory until garbage is collected.
            raise copy(self._stream.refused)

    def _accept(
        self,
        reader: RowReader,
        batch: pa.RecordBatch | None,
        app_metadata: pa.Buffer | None,
        size: int,
        answers: Answers,
        stopping: threading.Event,
    ) -> None:
        """Submit the next batch to the group commit, or reject it and all later ones."""
        index = self._batches
        self._batches += 1
        try:
            if stopping.is_set():
                raise Unavailable("the server is stopping")
            if (ended := self._ended()) is not None:
                raise ended
            if batch is None:
                raise InvalidArgument("a message without a batch")
            if index == 0:
                self._use_schema(reader.schema)
            # One that finds none to be joined with is checked when it is prepared.
            checked = (
                app_metadata is None
                and self._plain is not None
                and self._stream.last is not None
                and self._quotas is None
            )
            if checked:
                joined = self._join(batch, size)
                if joined is not None:
                    answers.add(joined)
                    return
            options = self._options(app_metadata, first=index == 0)
            try:
                prepared = self._preparer.prepare(batch, options, checked=checked)
            except SchemaMismatch as error:
                self._allow_nulls(batch, error)
                prepared = self._preparer.prepare(batch, options)
            if self._quotas is not None:
                self._quotas.admit(prepared)
            # A batch whose answer is next is flushed by the thread that answers; one behind others
            # is not, as that thread may be held up by a client that does not read.
            submit = self._log.group_commit.submit
            answers.add(submit(self._stream, prepared, awaited=answers.idle))
        except WingsError as error:
            error.__traceback__ = None
            answers.add(Rejected(error))
            # Batches before this one are good: the stream is refused once they are committed. One
            # of them may fail in its flush; what it failed with comes first.
            answers.finish()
            self._stream.refused = self._stream.refused or error

    def _join(self, batch: pa.RecordBatch, size: int) -> Pending | None:
        """Check a batch without metadata, and join it with the last one if possible."""
        preparer, plain, number = self._preparer, self._plain, self._next_sequence
        partition = self._check_small(batch, size)
        # Batches of two versions are not joined.
        if partition is None or preparer is not self._preparer:
            return None
        assert plain is not None
        if plain.partition not in (None, partition):
            return None  # It is rejected when it is prepared.
        joined = self._log.group_commit.join(
            self._stream, batch, size, partition, plain.timestamp, number
        )
        if joined is not None and number is not None:
            self._next_sequence = number + 1
        return joined

    def _check_small(self, batch: pa.RecordBatch, size: int) -> Partition | None:
        try:
            return self._preparer.check_small(batch, size)
        except SchemaMismatch as error:
            self._allow_nulls(batch, error)
        return self._preparer.check_small(batch, size)

    def _allow_nulls(self, batch: pa.RecordBatch, error: SchemaMismatch) -> None:
        """Switch to a later schema version, unknown so far, in which the columns are nullable.

        Raises:
            SchemaMismatch: `error`, if its cause is not a null in a required column.
        """
        if "nulls" not in error.facts:
            raise error
        self._write_in(version_of_stream(self._log.versions.look_again(self._topic), batch.schema))

    def _options(self, app_metadata: pa.Buffer | None, *, first: bool) -> PushOptions:
        """Return the next batch's options: of its metadata, then of the descriptor."""
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
        """Raise the rejection of a first batch, for a client that finishes without one."""
        self._use_schema(schema)
        self._parse_options(BatchMetadata(), first=True)

    def _use_schema(self, schema: pa.Schema) -> None:
        """Use the last version of the topic's schema that has the stream's columns.

        Raises:
            SchemaMismatch: No version has them.
        """
        try:
            topic = version_of_stream(self._topic, schema)
        except SchemaMismatch:
            # Another node may have added a version meanwhile.
            topic = version_of_stream(self._log.versions.look_again(self._topic), schema)
        self._write_in(topic)

    def _write_in(self, topic: Topic) -> None:
        self._topic = topic
        self._preparer = Preparer(topic, self._log.limits)


def schema_of(reader: RowReader) -> pa.Schema:
    """Return the schema of a stream; waits for its first message.

    Raises:
        InvalidArgument: The client sends no schema.
    """
    try:
        return reader.schema
    except flight.FlightError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise InvalidArgument(f"the stream cannot be read: {error!s:.300}") from None


def read(
    reader: RowReader, room: ReadRoom, bytes_max: int
) -> Iterator[tuple[pa.RecordBatch | None, pa.Buffer | None, int]]:
    """Yield the client's batches; each is read once it has room.

    Each comes with its metadata and the size of its buffers: a chunk makes a new object whenever
    its batch is requested.

    Args:
        reader: Reader of the call.
        room: Room of the call.
        bytes_max: Most bytes of a batch.

    Raises:
        BatchTooLarge: A buffer decompresses to more, and Arrow may not allocate as much.
        InvalidArgument: A message is not Arrow IPC; nothing after it can be read.
        ResourceExhausted: The next batch finds no room, and is not read.
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
            raise _not_read(error, bytes_max) from None
        except (pa.ArrowException, OSError) as error:
            raise InvalidArgument(f"the stream cannot be read: {error!s:.300}") from None
        size = 0 if batch is None else batch.get_total_buffer_size()
        room.end(size)
        yield batch, metadata, size
        del batch, metadata  # Not while the next is waited for.


def _not_read(error: MemoryError, bytes_max: int) -> WingsError:
    asked = _ASKED.search(str(error))
    size = int(asked[1]) if asked else 0
    if size <= bytes_max:
        return ResourceExhausted(f"the stream cannot be read: {error!s:.300}")
    return BatchTooLarge(
        f"a buffer of the batch decompresses to {size} bytes, the limit of a batch is {bytes_max}",
        bytes=size,
        bytes_max=bytes_max,
    )
