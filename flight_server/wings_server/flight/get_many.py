"""DoGet of many partitions: from a ticket with `partitions` to chunks that mix them.

Names, columns and filter are checked before the schema goes out; where the partitions stand is
looked up once commits are watched, so that none in between is missed. A read from `"latest"` looks
before the schema goes out too: who has the schema, and pushes, is to find those messages.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from wings_core.contracts.chunks import EndReason, many_end_metadata
from wings_core.contracts.reads import ALL
from wings_core.contracts.tickets import AnyRead, ScanTicket
from wings_core.fetch.engines import Allowance
from wings_core.fetch.fetcher import Cancel
from wings_core.fetch.many import ManyChunk, ManyRead, Rotation, cursors_of, named_partitions
from wings_core.fetch.selection import Selection
from wings_core.fetch.state import FetchState
from wings_core.log import Log
from wings_core.model import Topic
from wings_core.partitions import Partition, partitions_of


@dataclass(frozen=True, slots=True)
class ManyGet:
    """A validated DoGet of many partitions, ready to be streamed."""

    log: Log
    ticket: AnyRead
    many: ManyRead
    state: FetchState | None
    """None for a scan."""
    positions: Mapping[Partition, int]
    """Where the ticket says to begin in some of all partitions."""
    has_begun: bool
    """Whether the partitions were looked at before commits are watched."""

    @property
    def topic(self) -> Topic:
        """The topic that is read."""
        return self.many.topic

    @property
    def schema(self) -> pa.Schema:
        """Of every batch of the stream."""
        return self.many.selection.schema

    def chunks(self, cancel: Cancel) -> Iterator[list[ManyChunk]]:
        """Yield the rows, chunk by chunk; blocks while a read waits.

        Raises:
            OffsetOutOfRange: An offset is below its partition's start, now or later.
        """
        reader = self.log.many
        if self.state is None:
            _begin(self.log, self.many, self.ticket, self.positions)
            for chunk in reader.scan(self.many, cancel):
                yield [chunk]
            return
        with reader.watched(self.many, cancel) as changes:
            if self.has_begun:
                changes.hear(None)  # What was committed in between.
            else:
                _begin(self.log, self.many, self.ticket, self.positions)
            for chunk in reader.read(self.many, self.state, cancel):
                yield [chunk]

    def metadata_of(self, chunk: ManyChunk) -> bytes:
        """Return the app_metadata of a chunk."""
        return chunk.ranges.metadata

    def end_metadata(self, end: EndReason) -> bytes:
        """Return the app_metadata of the last chunk."""
        cursors = self.many.rotation.cursors
        return many_end_metadata(
            end, [(cursor.partition, cursor.offset, cursor.log_end) for cursor in cursors]
        )


def open_many(log: Log, topic: Topic, ticket: AnyRead, state: FetchState | None) -> ManyGet:
    """Resolve a ticket with `partitions`.

    Args:
        log: The log.
        topic: Which the ticket names.
        ticket: The ticket.
        state: The budget and deadline of a fetch or follow; None for a scan.

    Raises:
        InvalidTicket: An unknown column.
        PartitionRequired: And the other errors of a partition value.
        InvalidFilter: The filter is not one that a ticket may have.
    """
    assert ticket.partitions is not None
    selection = Selection.of(
        topic,
        ticket.columns,
        ticket.filter,
        system_columns=ticket.system_columns,
        many=True,
        allowance=None if state is None else Allowance(state.deadline),
    )
    wanted = named_partitions(topic, ticket.partitions)
    key_type = topic.key_type
    at = partitions_of([value for value, _ in ticket.positions], key_type)
    positions = dict(zip(at, (offset for _, offset in ticket.positions), strict=True))
    many = ManyRead(topic, selection, wanted, Rotation())
    entries = () if ticket.partitions == ALL else ticket.partitions
    # What is born after the request came is read from its first message, whatever these say.
    offsets = (ticket.offset, *(each.offset for each in entries))
    has_begun = state is not None and (
        bool(positions) or any(each not in (None, "earliest") for each in offsets)
    )
    if has_begun:
        _begin(log, many, ticket, positions)
    return ManyGet(log, ticket, many, state, positions, has_begun)


def _begin(log: Log, many: ManyRead, ticket: AnyRead, positions: Mapping[Partition, int]) -> None:
    """Look where the partitions stand, and where to begin and end in each."""
    assert ticket.partitions is not None
    states = log.many.states(many.topic, many.wanted)
    end_offset = ticket.end_offset if isinstance(ticket, ScanTicket) else None
    many.rotation.add_all(
        cursors_of(
            log.fetcher, many.topic, states, ticket.partitions, ticket.offset, end_offset, positions
        )
    )
