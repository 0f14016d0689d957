"""DoGet of kind `acquire`: a long poll by which a member of a share group leases messages.

ticket ─▶ group, partition ─▶ Shares.acquire ─▶ leased ranges ─▶ (batch, app_metadata)… ─▶ end
"""

from collections.abc import Generator
from contextlib import closing, suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.flight as flight

from wings_core.batches import empty_batch
from wings_core.contracts.chunks import EndReason
from wings_core.contracts.share import AcquireEnd, acquire_end_metadata, acquired_metadata
from wings_core.contracts.tickets import AcquireTicket
from wings_core.errors import SchemaMismatch
from wings_core.fetch.fetcher import Cancel
from wings_core.log import Log
from wings_core.model import ShareGroup, Topic
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED, Partition, partition_of
from wings_core.share.delivery.delivery import delivery_schema
from wings_core.share.model import AcquireRequest
from wings_core.times import Deadline
from wings_server.flight.boundary import ClientGone
from wings_server.flight.client_watch import ClientWatch
from wings_server.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Acquire:
    """A validated acquire, ready to be streamed."""

    log: Log
    group: ShareGroup
    member: str
    partition: Partition | None
    """None: any."""
    messages_max: int
    deadline: Deadline
    schema: pa.Schema
    """Schema of every batch of the stream."""

    def end(self, delivered: int, next_offset: int | None) -> AcquireEnd:
        """Return why the stream ended, and where the log stands."""
        if delivered >= self.messages_max:
            reason = EndReason.MAX_MESSAGES
        else:
            reason = EndReason.MIN_MESSAGES if delivered else EndReason.DEADLINE
        if self.partition is None:
            return AcquireEnd(reason, None, None)
        state = self.log.registry.partition_state(self.group.topic.uuid, self.partition)
        log_end_offset = state.next_offset
        return AcquireEnd(
            reason, log_end_offset if next_offset is None else next_offset, log_end_offset
        )


def open_acquire(log: Log, ticket: AcquireTicket) -> Acquire:
    """Resolve a ticket against the log.

    Raises:
        TopicNotFound: No such topic.
        GroupNotFound: It has no such group.
        PartitionTypeMismatch: And the other errors of a partition value.
    """
    deadline = ticket.deadline_from_now()
    group = log.shares.find(TopicName.parse(ticket.topic), ticket.group)
    return Acquire(
        log=log,
        group=group,
        member=ticket.member,
        partition=wanted_partition(
            group.topic, ticket.partition, any_partition=ticket.any_partition
        ),
        messages_max=ticket.max_messages,
        deadline=deadline,
        schema=delivery_schema(group.topic),
    )


def wanted_partition(topic: Topic, value: object, *, any_partition: bool) -> Partition | None:
    """Return the partition that an acquire is for; None for any of several.

    Raises:
        PartitionTypeMismatch: And the other errors of a partition value.
    """
    if any_partition:
        return UNPARTITIONED if topic.partition_key is None else None
    return partition_of(value, topic.key_type)


def stream_acquired(
    acquire: Acquire, context: flight.ServerCallContext, watch: ClientWatch, metrics: Metrics
) -> Generator[tuple[pa.RecordBatch, bytes]]:
    """Yield what goes on the wire: each leased range with its lease, then the empty end chunk.

    Ranges that were leased and not sent, as the client has gone, are released.
    """
    cancel = Cancel()
    shares = acquire.log.shares
    delivered = 0
    next_offset: int | None = None
    with watch.watched(context, cancel):
        leased = shares.coordinator.acquire(
            AcquireRequest(acquire.group, acquire.member, acquire.partition, acquire.messages_max),
            acquire.deadline,
            cancel,
        )
        if leased and context.is_cancelled():
            # The watch polls: this client left since its last look.
            cancel.cancel(ClientGone("the client has gone away"))
        with (
            closing(shares.deliver(acquire.group, acquire.member, leased, cancel)) as parts,
            suppress(SchemaMismatch),  # They were released: the next acquire knows what came since.
        ):
            for part in parts:
                topic = acquire.group.topic.name
                metrics.delivered("flight", part.batch.num_rows, part.batch.nbytes, topic)
                delivered += part.range.messages
                next_offset = part.range.end_offset + 1
                leased = part.range
                traces = acquire.log.pushed_in(
                    acquire.group.topic, leased.partition, leased.start_offset, leased.end_offset
                )
                yield part.batch, acquired_metadata(leased, traces)
        end = acquire.end(delivered, next_offset)
    yield empty_batch(acquire.schema), acquire_end_metadata(end)
