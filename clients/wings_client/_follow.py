"""Follow: messages as they are committed, each once, in order within a partition."""

from abc import ABC
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Self, TypeVar, cast

from wings_client._chunks import Chunks, OnDataLoss, of_one
from wings_client._many import (
    OffsetsValue,
    PartitionsValue,
    starts,
    where,
    wire_partitions,
)
from wings_client._messages import OffsetValue, build, wire_offset, wire_partition
from wings_client._model import Chunk, PartitionValue, RangesBatch
from wings_client._scan import plan
from wings_client._transport import Transport
from wings_client.arrow import RecordBatchReader, Schema
from wings_core.contracts.info import InfoCommand
from wings_core.contracts.tickets import FollowTicket, ScanTicket, parse_ticket
from wings_core.errors import InvalidTicket, PartitionRequired
from wings_core.partitions import JsonScalar
from wings_core.times import Deadline

T = TypeVar("T")


class Following(ABC, Iterator[T], Generic[T]):
    """An endless read, or one up to a deadline.

    Iterating blocks while there is nothing new. A lost connection is opened again where the read
    stopped, so every row comes once, in order within its partition. The stream on the server ends
    with `close`, and when the follow is garbage-collected, as after leaving a `for` loop over it.
    One thread iterates; `close` may be called from any.
    """

    def __init__(self, chunks: Chunks, items: Iterator[T], schema_of: Callable[[], Schema]) -> None:
        self._chunks = chunks
        self._iterator = items
        self._schema_of = schema_of
        self._schema: Schema | None = None

    @property
    def schema(self) -> Schema:
        """The schema of the batches; asked of the server once, when it is first used.

        Raises:
            WingsError: The server's refusal, or `Unavailable`.
        """
        if self._schema is None:  # Not `cached_property`: up to Python 3.11 all would share a lock.
            self._schema = self._schema_of()
        return self._schema

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the rows to come by Arrow's PyCapsule interface, for DuckDB, Polars and others.

        What reads it waits as iterating does: without a timeout, for ever. Rows that were iterated
        over before are not in it. It ends in an error where the topic's schema grows meanwhile.
        """
        batches = (cast("Chunk | RangesBatch", each).batch for each in self)
        reader = RecordBatchReader.from_batches(self.schema, batches)
        return cast("Any", reader).__arrow_c_stream__(requested_schema)

    def __next__(self) -> T:
        """Return the next rows; blocks until there are some.

        Raises:
            StopIteration: The deadline has passed, or the follow was closed.
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        return next(self._iterator)

    def close(self) -> None:
        """End the follow; a thread that waits in it gets `StopIteration`."""
        self._chunks.cancel()

    def __enter__(self) -> Self:
        """Return the follow itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the follow."""
        self.close()


class Follow(Following[Chunk]):
    """Of one partition, made by `Client.follow`: yields `(batch, start_offset, end_offset)`."""

    def __init__(self, chunks: Chunks, schema_of: Callable[[], Schema]) -> None:
        super().__init__(chunks, of_one(chunks), schema_of)

    def __repr__(self) -> str:
        """Return where it continues."""
        return f"Follow(next_offset={self.next_offset})"

    @property
    def next_offset(self) -> int:
        """The offset at which it continues: one past the last row delivered or filtered out."""
        (offset,) = self._chunks.next_offsets.values()
        return offset


class ManyFollow(Following[RangesBatch]):
    """Of many partitions, made by `Client.follow`: yields `(batch, ranges)`."""

    def __init__(self, chunks: Chunks, schema_of: Callable[[], Schema]) -> None:
        super().__init__(chunks, iter(chunks), schema_of)

    def __repr__(self) -> str:
        """Return of how many partitions something is known."""
        return f"ManyFollow({len(self._chunks.next_offsets)} partitions)"

    @property
    def next_offsets(self) -> dict[JsonScalar, int]:
        """The offsets at which it continues, by partition value.

        Given as `offset` of another follow of all partitions, that one continues there.
        """
        return dict(self._chunks.next_offsets)


def follow(
    transport: Transport,
    topic: str,
    partition: PartitionValue,
    offset: OffsetValue,
    timeout: float | None,
    on_data_loss: OnDataLoss,
    **keys: Any,
) -> Follow:
    """Open a follow of a partition; see `Client.follow`."""
    deadline = Deadline.never() if timeout is None else Deadline.after(timeout)
    ticket = build(
        FollowTicket,
        InvalidTicket,
        "follow",
        topic=topic,
        partition=wire_partition(partition),
        offset=resolve_offset(transport, topic, partition, offset),
        **keys,
    )
    seconds = transport.retry.reconnect_seconds
    chunks = Chunks(transport, ticket, deadline, seconds)
    if offset == "earliest":
        chunks.exact = ()
    chunks.on_data_loss = on_data_loss
    followed = Follow(chunks, lambda: plan(transport, topic, partition, "latest", **keys)[0])
    transport.add(followed)
    return followed


def follow_many(
    transport: Transport,
    topic: str,
    partitions: PartitionsValue,
    offset: OffsetsValue,
    timeout: float | None,
    on_data_loss: OnDataLoss,
    **keys: Any,
) -> ManyFollow:
    """Open a follow of many partitions; see `Client.follow`."""
    deadline = Deadline.never() if timeout is None else Deadline.after(timeout)
    if offset != "earliest" and not isinstance(offset, Mapping):
        # Resolved once, so that a stream that is opened again begins at the same places.
        if on_data_loss == "skip" and isinstance(offset, int):
            kept = starts(transport, topic, partitions)
            offset = {value: max(offset, start) for value, start in kept.items()}
        else:
            offset = starts(transport, topic, partitions, offset)
    ticket = build(
        FollowTicket, InvalidTicket, "follow", topic=topic, **where(partitions, offset), **keys
    )
    chunks = Chunks(transport, ticket, deadline, transport.retry.reconnect_seconds)
    chunks.on_data_loss = on_data_loss
    selection: dict[str, Any] = keys | {"partitions": wire_partitions(partitions)}
    followed = ManyFollow(
        chunks, lambda: plan(transport, topic, None, "latest", None, **selection)[0]
    )
    transport.add(followed)
    return followed


def resolve_offset(
    transport: Transport, topic: str, partition: PartitionValue, offset: OffsetValue
) -> int:
    """Return the number that an offset stands for now.

    Resolved once, so that a stream that is opened again begins at the same place.
    """
    if isinstance(offset, int):
        return offset
    command = build(
        InfoCommand,
        InvalidTicket,
        "follow",
        topic=topic,
        partition=wire_partition(partition),
        offset=wire_offset(offset),
    )
    tickets = [parse_ticket(found.ticket.ticket) for found in transport.info(command).endpoints]
    # Without a partition, a topic with a key responds with all its partitions.
    if len(tickets) != 1 or getattr(tickets[0], "partition", None) != command.partition:
        raise PartitionRequired("the topic is partitioned: give a partition value")
    (ticket,) = tickets
    assert isinstance(ticket, ScanTicket)
    assert isinstance(ticket.offset, int)
    return ticket.offset
