"""Follow: the messages of a partition as they are committed, each once, in order."""

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from wings_client._messages import OffsetValue, build, wire_offset, wire_partition
from wings_client._model import Chunk, PartitionValue
from wings_client._stream import Chunks
from wings_client._transport import Transport
from wings_core.contracts.info import InfoCommand
from wings_core.contracts.tickets import FollowTicket, ScanTicket, parse_ticket
from wings_core.errors import InvalidTicket, PartitionRequired
from wings_core.times import Deadline


class Follow(Iterator[Chunk]):
    """An endless read, or one up to a deadline; made by `Client.follow`.

    Iterating yields `(batch, start_offset, end_offset)` and blocks while there is nothing new. A
    lost connection is opened again at the next offset, so every row comes once, in order. The
    stream on the server ends with `close`, and when the follow is garbage-collected, as after
    leaving a `for` loop over it. One thread iterates; `close` may be called from any.
    """

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        self._iterator = iter(chunks)

    @property
    def next_offset(self) -> int:
        """The offset at which it continues: one past the last row delivered or filtered out."""
        return self._chunks.next_offset

    def __next__(self) -> Chunk:
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

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the follow."""
        self.close()


def follow(
    transport: Transport,
    topic: str,
    partition: PartitionValue,
    offset: OffsetValue,
    timeout: float | None,
    **keys: Any,
) -> Follow:
    """Open a follow; see `Client.follow`."""
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
    chunks = Chunks(transport, ticket, deadline, transport.retry.reconnect_seconds)
    followed = Follow(chunks)
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
    if len(tickets) != 1 or tickets[0].partition != command.partition:
        raise PartitionRequired("the topic is partitioned: give a partition value")
    (ticket,) = tickets
    assert isinstance(ticket, ScanTicket)
    assert isinstance(ticket.offset, int)
    return ticket.offset
