"""The two ends of a share stream: its descriptor, its messages, and the errors that end it."""

from collections.abc import Callable, Generator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.flight as flight
import structlog

from wings_core.batches import empty_batch
from wings_core.contracts.share import (
    ShareCommand,
    ShareEnd,
    end_metadata,
    parse_share_command,
)
from wings_core.errors import Internal, InvalidArgument, SchemaMismatch, WingsError
from wings_core.log import Log
from wings_core.model import ShareGroup
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_core.security.principal import ANYONE, Principal
from wings_core.security.quotas import CallUsage
from wings_core.share.delivery.delivery import delivery_schema
from wings_server.flight.acquire import wanted_partition
from wings_server.metrics import Metrics

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
    partition = wanted_partition(
        group.topic, command.partition, any_partition=command.any_partition
    )
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
