"""The ends of a share stream: its opening, its messages and errors, and what it writes."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import pyarrow as pa
import pyarrow.flight as flight
import structlog
from pyarrow.ipc import get_record_batch_size

from wings_core.batches import empty_batch
from wings_core.contracts.share import (
    AcknowledgementEntry,
    AcknowledgeMessage,
    AcquiredWords,
    ShareCommand,
    ShareEnd,
    answer_metadata,
    end_metadata,
    parse_share_command,
    stream_schema,
)
from wings_core.errors import Internal, InvalidArgument, SchemaMismatch, WingsError
from wings_core.log import Log
from wings_core.model import LeasedRange, ShareGroup
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_core.security.principal import ANYONE, Principal
from wings_core.security.quotas import CallUsage
from wings_core.share.delivery.delivery import DeliveredBatch, delivery_schema
from wings_server.group_actions import wanted_partition
from wings_server.metrics import Metrics

UNREAD_BYTES_MAX = 32 * 1024
"""Most unread bytes with which a write does not wait: gRPC buffers 64 KiB."""

FRAME_BYTES = 1_024
"""Approximate bytes of a message in addition to its batch's buffers."""

DELIVERIES_MAX = 10_000
"""Most deliveries to remember; with more, none is remembered."""

_Piece = tuple[LeasedRange, int, int]
"""Messages of a leased range, from the first to the last."""

CHECK_SECONDS = 1.0
"""How often it is looked whether the token of a stream's caller has ended."""

_logger = structlog.get_logger("wings.flight")


class ClientLeft(Exception):  # noqa: N818 - not an error of ours.
    """A write failed: nothing more reaches the client."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A descriptor, resolved against the log."""

    command: ShareCommand
    group: ShareGroup
    partition: Partition | None
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class Admission:
    """The caller that opens a stream, and its rights."""

    allow: Callable[[str], None]
    """Raises `PermissionDenied` for a topic that the caller may not acquire messages of."""
    principal: Principal
    usage: CallUsage | None
    """Use of the principal's quotas by the call; None: it has none."""

    @property
    def check_seconds(self) -> float | None:
        """How often it is looked whether the principal has ended; None: it cannot."""
        return None if self.principal is ANYONE else CHECK_SECONDS


def open_stream(log: Log, descriptor: flight.FlightDescriptor, admission: Admission) -> Opened:
    """Resolve a descriptor.

    Raises:
        InvalidArgument: It is no command of a share stream.
        PermissionDenied: The caller may not acquire messages of its topic.
        TopicNotFound: No such topic.
        GroupNotFound: It has no such group.
        PartitionTypeMismatch: And the other errors of a partition value.
        StorageCorrupt: All groups are closed.
    """
    if descriptor.command is None:
        raise InvalidArgument("the descriptor is no JSON command")
    command = parse_share_command(descriptor.command)
    admission.allow(command.topic)
    group = log.shares.find(TopicName.parse(command.topic), command.group)
    if log.shares.coordinator.damage is not None:
        raise log.shares.coordinator.damage
    partition = wanted_partition(group.topic, command)
    return Opened(command, group, partition, delivery_schema(group.topic))


def refuse(writer: flight.MetadataRecordBatchWriter, error: WingsError) -> None:
    """Tell a client in band why its stream is not opened."""
    schema = pa.schema([])
    try:
        writer.begin(schema)
        end = ShareEnd(error.code, error.message)
        writer.write_with_metadata(empty_batch(schema), pa.py_buffer(end_metadata(end)))
    except (pa.ArrowException, OSError):
        return


def end_of(error: Exception, metrics: Metrics) -> ShareEnd | None:
    """Return what a client is told of an error that ends its stream; None where it has gone."""
    match error:
        case SchemaMismatch():
            # Messages were released: a stream keeps the schema that it began with.
            return ShareEnd(None, "the topic's schema has grown: another stream reads all of it")
        case WingsError():
            metrics.failed("flight", error.code)
            return ShareEnd(error.code, error.message)
        case ClientLeft() | pa.ArrowException() | OSError():
            return None
        case _:
            metrics.failed("flight", Internal.code)
            _logger.error("share stream failed by a fault of the server", exc_info=error)
            return ShareEnd(Internal.code, f"internal error: {type(error).__name__}")


def messages_of(reader: flight.MetadataRecordBatchReader) -> Generator[bytes | None]:
    """Yield the messages of the client until it ends its side or is gone; None: not metadata."""
    while True:
        try:
            chunk = reader.read_chunk()
        except (StopIteration, pa.ArrowException, OSError):
            return
        if chunk.data is not None or chunk.app_metadata is None:
            yield None
        else:
            yield chunk.app_metadata.to_pybytes()


class Unread:
    """Unread bytes of one stream; used by one thread at a time.

    A client that acknowledges a delivery has read everything written up to it.
    """

    def __init__(self) -> None:
        self._written = 0
        self._read = 0
        self._deliveries: dict[tuple[str, int], int] = {}
        """Bytes written up to each delivery, by lease and first offset."""

    def wrote(self, batch_bytes: int, delivered: tuple[str, int] | None = None) -> bool:
        """Count a message; returns whether it may be written without waiting for the client.

        Args:
            batch_bytes: Bytes of the message's batch.
            delivered: Lease and first offset, if the message is a delivery.
        """
        self._written += batch_bytes + FRAME_BYTES
        if delivered is not None:
            if len(self._deliveries) >= DELIVERIES_MAX:
                self._deliveries.clear()
            self._deliveries[delivered] = self._written
        return self._written - self._read <= UNREAD_BYTES_MAX

    def acknowledged(self, entries: Iterable[AcknowledgementEntry]) -> None:
        """Record that the client has read the deliveries that begin where the entries do."""
        deliveries, read = self._deliveries, self._read
        for entry in entries:
            written = deliveries.pop((entry.lease, entry.first), 0)
            if written > read:
                read = written
        self._read = read


class ShareWriter:
    """Writes to the client of one stream; used by who has its turn.

    Args:
        log: Where the group is.
        opened: The stream's descriptor.
        writer: To the client.
        metrics: Counts what is delivered.
        usage: Use of the caller's quotas.
    """

    def __init__(
        self,
        log: Log,
        opened: Opened,
        writer: flight.MetadataRecordBatchWriter,
        metrics: Metrics,
        usage: CallUsage | None,
    ) -> None:
        self._pushed_in = log.pushed_in
        self._opened = opened
        self._topic = opened.group.topic
        self._writer = writer
        self._metrics = metrics
        self._usage = usage
        self._nothing = empty_batch(opened.schema)
        self._unread = Unread()
        self.outbox: deque[tuple[pa.RecordBatch, bytes, _Piece | None]] = deque()
        """Messages left to be written by `write_rest`."""

    def begin(self) -> None:
        """Send the schema."""
        self._writer.begin(stream_schema(self._opened.schema, self._opened.group.config))

    def answer(self, message: AcknowledgeMessage, errors: Sequence[WingsError | None]) -> None:
        """Answer a request, or leave that to `write_rest` where it might wait for the client."""
        self._unread.acknowledged(message.acks)
        answer = answer_metadata(message.request, message.acks, errors)
        self._put(self._nothing, answer, len(answer))

    def deliver(self, part: DeliveredBatch) -> None:
        """Deliver a part in as many pieces as the client wants, counted as one; see `answer`."""
        rows, leased = part.batch.num_rows, part.range
        size = get_record_batch_size(part.batch)
        self._metrics.delivered("flight", rows, size, self._topic.name)
        usage = self._usage
        words, most = AcquiredWords.of(leased), self._opened.command.max_messages
        # All of a small one may lie unread, however its bytes are spread.
        about = size * most // rows if most < rows and size <= UNREAD_BYTES_MAX // 2 else None
        place = (self._topic, leased.partition)
        traced = bool(self._pushed_in(*place, leased.start_offset, leased.end_offset))
        for first, last, batch in _pieces(part, most):
            bytes_ = get_record_batch_size(batch) if about is None else about
            traces = self._pushed_in(*place, first, last) if traced else ()
            if usage is not None:  # Counted, and not refused: it is leased already.
                usage.hold(bytes_)
            metadata = words.metadata(first, last, traces)
            self._put(batch, metadata, bytes_, (leased, first, last))
            if usage is not None:
                usage.release(bytes_)

    def write_rest(self) -> None:
        """Write what might wait for the client; blocks for it.

        Raises:
            ClientLeft: It has gone.
        """
        while self.outbox:
            batch, metadata, _ = self.outbox[0]
            if not self._try_write(batch, metadata):
                raise ClientLeft
            self.outbox.popleft()

    def unwritten(self) -> list[LeasedRange]:
        """Return what was to be delivered, and was never written."""
        pieces = [piece for _, _, piece in self.outbox if piece is not None]
        return [replace(of, start_offset=first, end_offset=last) for of, first, last in pieces]

    def end(self, end: ShareEnd) -> None:
        """Write the last message."""
        self._try_write(self._nothing, end_metadata(end))

    def _put(
        self, batch: pa.RecordBatch, metadata: bytes, size: int, piece: _Piece | None = None
    ) -> None:
        """Write so many bytes to the client, or leave it to `write_rest` where that might wait."""
        delivered = None if piece is None else (piece[0].lease, piece[1])
        has_room = self._unread.wrote(size, delivered) and not self.outbox
        if not has_room or not self._try_write(batch, metadata):
            self.outbox.append((batch, metadata, piece))

    def _try_write(self, batch: pa.RecordBatch, metadata: bytes) -> bool:
        """Write to the client; False where it has gone."""
        try:
            self._writer.write_with_metadata(batch, pa.py_buffer(metadata))
        except (pa.ArrowException, OSError):
            return False
        return True


def _pieces(part: DeliveredBatch, messages_max: int) -> Iterator[tuple[int, int, pa.RecordBatch]]:
    """Cut a delivery into some of at most so many messages, with the range that each covers."""
    rows, first, last = part.batch.num_rows, part.range.start_offset, part.range.end_offset
    if rows <= messages_max:
        yield first, last, part.batch
        return
    offsets = cast("list[int]", part.batch.column("__offset").to_pylist())
    for row in range(0, rows, messages_max):
        after = row + messages_max
        end = last if after >= rows else offsets[after] - 1
        yield first, end, part.batch.slice(row, messages_max)
        first = end + 1
