"""The opening of a share stream: who may, of which group, and the refusal in band."""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.flight as flight

from wings_core.batches import empty_batch
from wings_core.contracts.share_stream import (
    ShareCommand,
    ShareEnd,
    end_metadata,
    parse_share_command,
)
from wings_core.errors import InvalidArgument, WingsError
from wings_core.log import Log
from wings_core.model import ShareGroup
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_core.security.principal import ANYONE, Principal
from wings_core.security.quotas import CallUsage
from wings_core.share.delivery.delivery import delivery_schema
from wings_server.flight.acquire import wanted_partition

CHECK_SECONDS = 1.0
"""How often it is looked whether the token of a stream's caller has ended."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A descriptor, resolved against the log."""

    command: ShareCommand
    group: ShareGroup
    partition: Partition | None
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class Admission:
    """Who opens a stream, and whether it may."""

    allow: Callable[[str], None]
    """Raises `PermissionDenied` for a topic that the caller may not acquire messages of."""
    principal: Principal
    usage: CallUsage | None
    """What the call uses of the principal's quotas; None: it has none."""

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
    if log.shares.damage is not None:
        raise log.shares.damage
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
