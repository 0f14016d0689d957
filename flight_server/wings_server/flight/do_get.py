"""DoGet: from a ticket to a stream of chunks.

    ticket ─▶ topic, selection, cursors ─▶ Fetcher ─▶ (batch, app_metadata)… ─▶ end chunk

The schema goes out before any wait, or the client's `do_get` itself would block and could not be
cancelled: so `open_get` checks everything that can be checked at once, and the generator waits.
Where many partitions stand is looked up once commits are heard, so that none in between is missed;
but before the schema goes out where the ticket does not begin at `"earliest"`: a client that has
the schema, and pushes, is to find those messages.

A ticket of kind `acquire` is a long poll by which a member of a share group leases messages:

ticket ─▶ group, partition ─▶ Shares.acquire ─▶ leased ranges ─▶ (batch, app_metadata)… ─▶ end
"""

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.flight as flight

from wings_core.batches import empty_batch
from wings_core.contracts.chunks import EndReason, chunk_metadata, end_metadata, many_end_metadata
from wings_core.contracts.share import AcquireEnd, acquire_end_metadata, acquired_metadata
from wings_core.contracts.sql import SqlBody
from wings_core.contracts.tickets import AcquireTicket, AnyRead, FetchTicket, ScanTicket
from wings_core.errors import SchemaMismatch, Unavailable, WingsError
from wings_core.fetch.begins import chosen_of, committed, cursors_of
from wings_core.fetch.chunks import FetchedChunk
from wings_core.fetch.cursors import UNKNOWN, PartitionCursor, Rotation
from wings_core.fetch.engines import Allowance
from wings_core.fetch.fetcher import UNLIMITED, Cancel, Read
from wings_core.fetch.selection import Selection
from wings_core.fetch.state import FetchState
from wings_core.log import Log
from wings_core.metadata.deadlines import calls_until
from wings_core.model import PartitionState, Topic
from wings_core.names import TopicName
from wings_core.partitions import Partition, partitions_of
from wings_core.security.principal import Principal
from wings_core.share.delivery.delivery import delivery_schema
from wings_core.share.model import AcquireRequest
from wings_core.times import Deadline
from wings_server.flight.boundary import ClientGone
from wings_server.flight.calls import ClientWatch
from wings_server.group_actions import wanted_partition
from wings_server.metrics import Metrics
from wings_server.served_log import ServedLog, with_topic

if TYPE_CHECKING:
    from wings_core.sql import Query

READ_AHEAD_SECONDS = 0.001
"""A scan reads ahead for about so long at a time, and then sends what it has: sending a chunk
clears the processor's caches, and code that runs once for many chunks finds them filled."""

READ_AHEAD_BYTES = 64 * 1024 * 1024
"""Stored bytes that it reads ahead, about: mapped pages that were read before take no memory, so
many are read in that time."""

SCHEMAS_KEPT = 256
"""Schemas of reads whose batch without rows is kept."""


@dataclass(frozen=True, slots=True)
class Get:
    """A validated DoGet, ready to be streamed."""

    log: Log
    ticket: AnyRead
    read: Read
    state: FetchState | None
    """None for a scan."""
    positions: Mapping[Partition, int]
    """Where the ticket says to begin in some of all partitions."""
    has_begun: bool
    """Whether the cursors are known already."""

    def chunks(self, cancel: Cancel) -> Iterator[FetchedChunk]:
        """Yield the rows, chunk by chunk; blocks while a read waits.

        Raises:
            OffsetOutOfRange: An offset is below its partition's start, now or later.
        """
        if self.state is not None:
            begin = None if self.has_begun else self.begin
            return self.log.fetcher.read(self.read, self.state, cancel, begin)
        if not self.has_begun:
            self.read.rotation.add_all(self.begin())
        return self.log.fetcher.scan(self.read, cancel)

    def begin(self) -> Iterator[PartitionCursor]:
        """Look where the partitions stand, and yield where to begin and end in each."""
        fetcher, topic, ticket = self.log.fetcher, self.read.topic, self.ticket
        if ticket.partitions is None and self.state is not None and isinstance(ticket.offset, int):
            assert self.read.chosen.named is not None
            (partition,) = self.read.chosen.named
            return iter([PartitionCursor(partition, ticket.offset)])  # The first look tells.
        end_offset = ticket.end_offset if isinstance(ticket, ScanTicket) else None
        states = fetcher.states(topic, self.read.chosen)
        if ticket.partitions is None and end_offset is not None:
            states = [self._up_to(states[0], end_offset)]
        cursors = cursors_of(fetcher, topic, states, ticket, end_offset, self.positions)
        if ticket.partitions is None and self.state is not None:
            (cursor,) = cursors
            cursor.stop = UNKNOWN  # The first look tells.
            return iter([cursor])
        return cursors

    def _up_to(self, state: PartitionState, end_offset: int) -> PartitionState:
        """Return where a partition stands, by metadata and not by memory if it is to go further.

        A scan that ends before the range that was planned elsewhere would pass for all of it.

        Raises:
            Unavailable: Metadata cannot be reached.
        """
        if end_offset <= state.next_offset:
            return state
        located = self.log.registry.locate(
            self.read.topic.uuid, state.partition, state.next_offset, 1
        )
        if located.asked_at == -math.inf:
            raise Unavailable(
                f"the log was last heard to end at offset {state.next_offset}, and metadata "
                f"cannot be asked whether it has reached {end_offset}"
            )
        return state._replace(next_offset=located.log_end_offset)

    def metadata_of(self, chunk: FetchedChunk) -> bytes:
        """Return the app_metadata of a chunk; of one partition that was named alone, its range."""
        if self.ticket.partitions is not None:
            ranges = chunk.ranges
            if self.ticket.slots is None:
                return ranges.metadata
            return ranges.metadata_with_slots(self.read.topic)
        ((_, start_offset, end_offset, _),) = chunk.ranges
        return chunk_metadata(start_offset, end_offset)

    def end_metadata(self) -> bytes:
        """Return the app_metadata of the last chunk."""
        end = self._end_reason()
        cursors = self.read.rotation.cursors.values()
        if self.ticket.partitions is not None:
            return many_end_metadata(
                end, [(each.partition, each.offset, each.log_end) for each in cursors]
            )
        # A scan that begins at or past its end, and a wait in vain, end where they began.
        (cursor,) = cursors
        return end_metadata(end, cursor.offset, cursor.log_end)

    def _end_reason(self) -> EndReason:
        """Return why the stream ended, the first that holds."""
        if self.state is None:
            return EndReason.END_OFFSET
        if self.state.full:
            return EndReason.MAX_MESSAGES
        return EndReason.MIN_MESSAGES if self.state.enough else EndReason.DEADLINE


def open_get(log: Log, ticket: AnyRead) -> Get:
    """Resolve a ticket against the log.

    Raises:
        InvalidTicket: An unknown column or version of the schema; and the other errors of the
            ticket's contract.
        TopicNotFound: No such topic.
        OffsetOutOfRange: An offset is below its log's start; maybe later, when rows are streamed.
        Unavailable: A scan's end is past what this node knows, and metadata cannot be reached.
    """
    state = None
    if not isinstance(ticket, ScanTicket):
        limits = UNLIMITED, UNLIMITED
        if isinstance(ticket, FetchTicket):
            limits = ticket.min_messages, ticket.max_messages
        state = FetchState(ticket.deadline_from_now(), *limits)

    opened = partial(_open, log, ticket, state)
    with calls_until(Deadline.never() if state is None else state.deadline):
        return with_topic(log, TopicName.parse(ticket.topic), opened, ticket.schema_version)


def _open(log: Log, ticket: AnyRead, state: FetchState | None, topic: Topic) -> Get:
    many = ticket.partitions is not None
    allowance = None if state is None else Allowance(state.deadline)
    selection = Selection.of(topic, ticket, many=many, allowance=allowance)
    read = Read(topic, selection, chosen_of(topic, ticket), Rotation(), hears_topic=many)
    if state is not None:
        read.since = state.arrived_at
    positions = dict(committed(log.registry, topic, ticket))
    if ticket.positions:
        values, offsets = zip(*ticket.positions, strict=True)
        positions.update(zip(partitions_of(values, topic.key_type), offsets, strict=True))
    get = Get(log, ticket, read, state, positions, _begins_at_once(ticket))
    if get.has_begun:
        read.rotation.add_all(get.begin())
    return get


def _begins_at_once(ticket: AnyRead) -> bool:
    """Tell whether the cursors are found before the schema goes out."""
    if ticket.partitions is None:
        return True
    if isinstance(ticket, ScanTicket):
        return False
    entries = ticket.partitions if isinstance(ticket.partitions, tuple) else ()
    # What is born after the request came is read from its first message, whatever these say.
    offsets = (ticket.offset, *[each.offset for each in entries])
    if ticket.positions:
        return True
    return any(each not in (None, "earliest") for each in offsets)


_no_rows = lru_cache(SCHEMAS_KEPT)(empty_batch)
"""The batch of an end chunk, which takes longer to build than all else of a poll without rows."""


def stream(
    get: Get, context: flight.ServerCallContext, watch: ClientWatch, metrics: Metrics
) -> Generator[tuple[pa.RecordBatch, bytes]]:
    """Yield what goes on the wire: each chunk with its ranges, then the empty end chunk."""
    topic = get.read.topic.name
    with watch.watched(context, cancel := Cancel()):
        for chunks in _ahead(get.chunks(cancel), 0.0 if get.state else READ_AHEAD_SECONDS):
            # Nothing is done before that can be done after: a follower waits for it.
            yield from [(chunk.batch, get.metadata_of(chunk)) for chunk in chunks]
            rows = sum([chunk.batch.num_rows for chunk in chunks])
            size = sum([chunk.bytes for chunk in chunks])
            metrics.delivered("flight", rows, size, topic)
        yield _no_rows(get.read.selection.schema), get.end_metadata()


def _ahead(chunks: Iterator[FetchedChunk], seconds: float) -> Iterator[list[FetchedChunk]]:
    """Yield chunks, some at a time and at least one; all that were read come before an error."""
    some: list[FetchedChunk] = []
    size = 0
    ends_at = time.monotonic() + seconds
    try:
        for chunk in chunks:
            some.append(chunk)
            size += chunk.bytes
            if size >= READ_AHEAD_BYTES or time.monotonic() >= ends_at:
                yield some
                some, size = [], 0
                ends_at = time.monotonic() + seconds
    except WingsError:
        if some:
            yield some
        raise
    if some:
        yield some


def open_sql(
    log: ServedLog,
    asked: SqlBody,
    allow: Callable[[str], None],
    principal: Principal,
    cancel: Cancel,
) -> "Query":
    """Return a query, planned and not begun; see `Sql.open`.

    Args:
        log: The log to read.
        asked: The statement.
        allow: Function that raises if the caller may not read a topic.
        principal: The caller.
        cancel: Cancellation of the query.
    """
    return log.sql.open(
        asked.sql,
        allow,
        asked.parameters,
        asked.default_namespace,
        cancel,
        asked.seconds_max,
        principal,
        asked.sent_tables,
    )


def stream_sql(
    query: "Query",
    cancel: Cancel,
    context: flight.ServerCallContext,
    watch: ClientWatch,
    metrics: Metrics,
) -> Generator[tuple[pa.RecordBatch, bytes]]:
    """Yield the rows of a query, without metadata."""
    with watch.watched(context, cancel), closing(query), closing(query.batches()) as batches:
        for batch in batches:
            metrics.delivered("flight", batch.num_rows, batch.nbytes)
            yield batch, b""


@dataclass(frozen=True, slots=True)
class Acquire:
    """A validated acquire, ready to be streamed."""

    log: Log
    request: AcquireRequest
    deadline: Deadline
    schema: pa.Schema
    """Schema of every batch of the stream."""

    def end(self, delivered: int, next_offset: int | None) -> AcquireEnd:
        """Return why the stream ended, and where the log stands."""
        request = self.request
        if delivered >= request.messages_max:
            reason = EndReason.MAX_MESSAGES
        else:
            reason = EndReason.MIN_MESSAGES if delivered else EndReason.DEADLINE
        if request.partition is None:
            return AcquireEnd(reason, None, None)
        state = self.log.registry.partition_state(request.group.topic.uuid, request.partition)
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
    partition = wanted_partition(group.topic, ticket)
    request = AcquireRequest(group, ticket.member, partition, ticket.max_messages)
    return Acquire(log, request, deadline, delivery_schema(group.topic))


def stream_acquired(
    acquire: Acquire, context: flight.ServerCallContext, watch: ClientWatch, metrics: Metrics
) -> Generator[tuple[pa.RecordBatch, bytes]]:
    """Yield what goes on the wire: each leased range with its lease, then the empty end chunk.

    Ranges that were leased and not sent, as the client has gone, are released.
    """
    cancel = Cancel()
    shares, request = acquire.log.shares, acquire.request
    topic = request.group.topic
    delivered = 0
    next_offset: int | None = None
    with watch.watched(context, cancel):
        leased = shares.coordinator.acquire(request, acquire.deadline, cancel)
        if leased and context.is_cancelled():
            # The watch polls: this client left since its last look.
            cancel.cancel(ClientGone("the client has gone away"))
        with (
            closing(shares.deliver(request.group, request.member, leased, cancel)) as parts,
            suppress(SchemaMismatch),  # They were released: the next acquire knows what came since.
        ):
            for part in parts:
                metrics.delivered("flight", part.batch.num_rows, part.batch.nbytes, topic.name)
                delivered += part.range.messages
                next_offset = part.range.end_offset + 1
                leased = part.range
                traces = acquire.log.pushed_in(
                    topic, leased.partition, leased.start_offset, leased.end_offset
                )
                yield part.batch, acquired_metadata(leased, traces)
        end = acquire.end(delivered, next_offset)
    yield empty_batch(acquire.schema), acquire_end_metadata(end)
