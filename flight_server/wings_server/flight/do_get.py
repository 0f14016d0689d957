"""DoGet: from a ticket to a stream of chunks.

    ticket ─▶ topic, partition, selection, cursor ─▶ Fetcher ─▶ (batch, app_metadata)… ─▶ end chunk

The schema goes out before any wait, or the client's `do_get` itself would block and could not be
cancelled: so `open_get` checks everything that can be checked at once, and the generator waits.
"""

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from wings_core.batches import empty_batch
from wings_core.contracts.chunks import EndReason, chunk_metadata, end_metadata
from wings_core.contracts.offsets import Offset, TimestampOffset
from wings_core.contracts.tickets import AnyRead, FetchTicket, FollowTicket, ScanTicket
from wings_core.errors import Unavailable
from wings_core.fetch.chunks import Chunk
from wings_core.fetch.engines import Allowance
from wings_core.fetch.fetcher import UNLIMITED, Cancel, Cursor, Fetcher
from wings_core.fetch.selection import Selection
from wings_core.fetch.state import FetchState
from wings_core.log import Log
from wings_core.model import Located, Topic
from wings_core.names import TopicName
from wings_core.partitions import Partition, partition_of
from wings_core.times import Deadline
from wings_server.flight.client_watch import ClientWatch
from wings_server.flight.get_many import ManyGet, open_many
from wings_server.metrics import Metrics
from wings_server.versions import with_topic

SCHEMAS_KEPT = 256
"""Schemas of reads whose batch without rows is kept."""


@dataclass(frozen=True, slots=True)
class Get:
    """A validated DoGet, ready to be streamed."""

    fetcher: Fetcher
    cursor: Cursor
    state: FetchState | None
    """None for a scan."""
    end_offset: int
    """Of a scan, exclusive."""

    @property
    def topic(self) -> Topic:
        """The topic that is read."""
        return self.cursor.topic

    @property
    def schema(self) -> pa.Schema:
        """Of every batch of the stream."""
        return self.cursor.selection.schema

    def chunks(self, cancel: Cancel) -> Iterator[list[Chunk]]:
        """Yield the rows, as many chunks at a time as are at hand; blocks while a read waits."""
        if self.state is None:
            return self.fetcher.scan(self.cursor, self.end_offset, cancel)
        return ([chunk] for chunk in self.fetcher.read(self.cursor, self.state, cancel))

    def metadata_of(self, chunk: Chunk) -> bytes:
        """Return the app_metadata of a chunk."""
        return chunk_metadata(chunk.start_offset, chunk.end_offset)

    def end_metadata(self, end: EndReason) -> bytes:
        """Return the app_metadata of the last chunk."""
        # A scan that begins at or past its end, and a wait in vain, end where they began.
        return end_metadata(end, self.cursor.offset, self.cursor.log_end_offset)


def open_get(log: Log, ticket: AnyRead) -> Get | ManyGet:
    """Resolve a ticket against the log.

    Raises:
        InvalidTicket: An unknown column or version of the schema; and the other errors of the
            ticket's contract.
        TopicNotFound: No such topic.
        OffsetOutOfRange: The offset is below the log's start; of many partitions, once they are
            streamed.
        Unavailable: A scan's end is past what this node knows, and metadata cannot be reached.
    """
    arrived_at = time.monotonic()
    deadline = Deadline.never() if isinstance(ticket, ScanTicket) else ticket.deadline_from_now()
    state = None if isinstance(ticket, ScanTicket) else _state(ticket, deadline)

    def open_topic(topic: Topic) -> Get | ManyGet:
        if ticket.partitions is not None:
            return open_many(log, topic, ticket, state)
        return _open_one(log, topic, ticket, state, deadline, arrived_at)

    return with_topic(log, TopicName.parse(ticket.topic), open_topic, ticket.schema_version)


def _open_one(
    log: Log,
    topic: Topic,
    ticket: AnyRead,
    state: FetchState | None,
    deadline: Deadline,
    arrived_at: float,
) -> Get:
    partition = partition_of(ticket.partition, topic.key_type)
    selection = Selection.of(
        topic,
        ticket.columns,
        ticket.filter,
        system_columns=ticket.system_columns,
        allowance=Allowance(deadline),
    )
    offset = resolve_offset(log, topic, partition, ticket.begin)
    # Raises at once for an offset below the log's start, and finds what is committed at arrival.
    cursor = Cursor(topic, partition, offset, selection, clamps=ticket.begin == "earliest")
    located = log.fetcher.locate(cursor, 1)
    cursor.log_end_offset = located.log_end_offset
    if isinstance(ticket, ScanTicket):
        end_offset = _scan_end(log, cursor, located, ticket.end_offset, arrived_at)
        return Get(log.fetcher, cursor, None, end_offset)
    return Get(log.fetcher, cursor, state, 0)


def _scan_end(
    log: Log, cursor: Cursor, located: Located, wanted: int | None, arrived_at: float
) -> int:
    """Return where a scan ends: where its ticket says, but at most at what is committed at arrival.

    Without metadata, that is not known: an end that was planned elsewhere may lie past what this
    node has heard of, and a scan that ends before it would pass for the whole range.
    """
    while wanted is None or located.log_end_offset < wanted:
        if located.asked_at is None or located.asked_at >= arrived_at:
            break
        if not located.locations:  # The answer came from a cache: metadata was not reached.
            if wanted is None:
                break
            raise Unavailable(
                f"the log was last heard to end at offset {located.log_end_offset}, and metadata "
                f"cannot be asked whether it has reached {wanted}"
            )
        located = log.registry.locate(
            cursor.topic.uuid, cursor.partition, located.log_end_offset, 1
        )
        cursor.log_end_offset = located.log_end_offset
    return located.log_end_offset if wanted is None else min(wanted, located.log_end_offset)


def _state(ticket: FetchTicket | FollowTicket, deadline: Deadline) -> FetchState:
    if isinstance(ticket, FetchTicket):
        return FetchState(deadline, ticket.min_messages, ticket.max_messages)
    return FetchState(deadline, UNLIMITED, UNLIMITED)


def resolve_offset(log: Log, topic: Topic, partition: Partition, offset: Offset) -> int:
    """Return the offset that `"earliest"`, `"latest"`, a time or an int stands for."""
    if isinstance(offset, int):
        return offset
    if isinstance(offset, TimestampOffset):
        return log.fetcher.offset_for_timestamp(topic, partition, offset.timestamp_us)
    state = log.registry.partition_state(topic.uuid, partition)
    return state.log_start_offset if offset == "earliest" else state.next_offset


_no_rows = lru_cache(SCHEMAS_KEPT)(empty_batch)
"""The batch of an end chunk, which takes longer to build than all else of a poll without rows."""


def _end_reason(state: FetchState | None) -> EndReason:
    """Return why a stream ended, the first that holds; `state` is None of a scan."""
    if state is None:
        return EndReason.END_OFFSET
    if state.full:
        return EndReason.MAX_MESSAGES
    if state.enough:
        return EndReason.MIN_MESSAGES
    return EndReason.DEADLINE


def stream(
    get: Get | ManyGet, context: flight.ServerCallContext, watch: ClientWatch, metrics: Metrics
) -> Generator[tuple[pa.RecordBatch, bytes]]:
    """Yield what goes on the wire: each chunk with its range, then the empty end chunk."""
    with watch.watched(context, cancel := Cancel()):
        # The two kinds differ in what they make of a chunk, and in nothing else.
        metadata_of: Callable[[Any], bytes] = get.metadata_of
        found: Iterator[list[Any]] = get.chunks(cancel)
        for chunks in found:
            # Handing one on takes no step of ours: see `READ_AHEAD_SECONDS`. Nor is anything done
            # before it that can be done after: a follower waits for this.
            yield from [(chunk.batch, metadata_of(chunk)) for chunk in chunks]
            rows = size = 0
            for chunk in chunks:
                rows += chunk.batch.num_rows
                size += chunk.bytes
            metrics.delivered("flight", rows, size, get.topic.name)
        yield _no_rows(get.schema), get.end_metadata(_end_reason(get.state))
