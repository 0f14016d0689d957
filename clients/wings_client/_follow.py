"""Follow: messages as they are committed, each once, in order within a partition."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, Self, TypeVar, cast

from wings_client._chunks import Chunks, OnDataLoss, chunk_of
from wings_client._model import Chunk, RangesBatch
from wings_client._read_options import command_of, entries_of, starts
from wings_client._results import StreamResult, Unended
from wings_client._scan import plan
from wings_client._transport import Transport
from wings_client.arrow import RecordBatch, Schema
from wings_core.contracts.reads import ALL, PartitionEntry
from wings_core.contracts.tickets import FollowTicket
from wings_core.errors import InvalidArgument
from wings_core.partitions import JsonScalar
from wings_core.times import Deadline

T = TypeVar("T")


class Following(StreamResult, Iterator[T], Generic[T]):
    """An endless read, or one up to a deadline, which can be taken as a whole.

    Iterating blocks while there is nothing new. A lost connection is opened again where the read
    stopped, so every row comes once, in order within its partition. The stream on the server ends
    with `close`, and when the follow is garbage-collected, as after leaving a `for` loop over it.
    One thread iterates; `close` may be called from any.

    Attributes:
        chunks: The read behind it.
    """

    def __init__(self, chunks: Chunks, schema_of: Callable[[], Schema]) -> None:
        self.chunks = chunks
        self._iterator = Unended(iter(chunks))
        self._schema_of = schema_of
        self._schema: Schema | None = None

    @property
    def schema(self) -> Schema:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The schema of the batches; asked of the server once, when it is first used.

        Raises:
            WingsError: The server's refusal, or `Unavailable`.
        """
        if self._schema is None:  # Not `cached_property`: up to Python 3.11 all would share a lock.
            self._schema = self._schema_of()
        return self._schema

    def check_bounded(self) -> None:
        """Make sure that the follow ends, before all its rows are asked for.

        Raises:
            InvalidArgument: It has no deadline.
        """
        if self.chunks.is_endless:
            raise InvalidArgument("a follow without a timeout never ends: give it one, or iterate")

    def _batches_left(self) -> Iterator[RecordBatch]:
        return (each.batch for each in self._iterator)

    def __next__(self) -> T:
        """Return the next rows; blocks until there are some.

        Raises:
            StopIteration: The deadline has passed, or the follow was closed.
            WingsError: The server's refusal; `Unavailable` where it could not be reached again.
        """
        return self.item(next(self._iterator))

    @staticmethod
    @abstractmethod
    def item(batch: RangesBatch) -> T:
        """Return a batch in the form that the follow yields."""

    def close(self) -> None:
        """End the follow; a thread that waits in it gets `StopIteration`."""
        self.chunks.cancel()

    def __enter__(self) -> Self:
        """Return the follow itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the follow."""
        self.close()


class Follow(Following[Chunk]):
    """A follow of one partition, made by `Client.follow`.

    Yields `(batch, start_offset, end_offset)`.
    """

    @staticmethod
    def item(batch: RangesBatch) -> Chunk:
        """Return the batch with its offsets."""
        return chunk_of(batch)

    @property
    def _where(self) -> str:
        return f"next_offset={self.next_offset}"

    @property
    def next_offset(self) -> int:
        """The offset at which it continues: one past the last row delivered or filtered out."""
        (offset,) = self.chunks.next_offsets.values()
        return offset


class ManyFollow(Following[RangesBatch]):
    """A follow of many partitions, made by `Client.follow`; yields `(batch, ranges)`."""

    @staticmethod
    def item(batch: RangesBatch) -> RangesBatch:
        """Return the batch."""
        return batch

    @property
    def _where(self) -> str:
        return f"{len(self.chunks.next_offsets)} partitions"

    @property
    def next_offsets(self) -> dict[JsonScalar, int]:
        """The offsets at which it continues, by partition value.

        Given as `offset` of another follow of all partitions, that one continues there.
        """
        return dict(self.chunks.next_offsets)


def follow(
    transport: Transport,
    ticket: FollowTicket,
    timeout: float | None,
    on_data_loss: OnDataLoss,
    *,
    skips_lost: bool,
) -> Follow | ManyFollow:
    """Open a follow; blocks for a call where the start is not a number. See `Client.follow`.

    Args:
        transport: To the server.
        ticket: The ticket as asked for.
        timeout: Seconds after which it ends; None: never.
        on_data_loss: Outcome where retention has passed its place.
        skips_lost: True skips what retention takes, whatever `on_data_loss` says.
    """
    deadline = Deadline.never() if timeout is None else Deadline.after(timeout)
    chunks = Chunks(
        transport,
        _resolved(transport, ticket, skips=on_data_loss == "skip"),
        deadline,
        transport.retry.reconnect_seconds,
    )
    chunks.on_data_loss = on_data_loss
    is_one = ticket.partitions is None
    if skips_lost:
        chunks.exact = ()

    def schema_of() -> Schema:
        return plan(transport, command_of(ticket, "latest", **ticket.selection))[0]

    followed = (Follow if is_one else ManyFollow)(chunks, schema_of)
    transport.add(followed)
    return followed


def _resolved(transport: Transport, ticket: FollowTicket, *, skips: bool) -> FollowTicket:
    """Return a ticket whose starts mean the same whenever its stream is opened again.

    Args:
        transport: To the server.
        ticket: The ticket as asked for.
        skips: Whether a number below a log's start stands for that start.
    """
    begin = ticket.begin
    if ticket.partitions is None:
        if isinstance(begin, int):
            return ticket
        (begin,) = starts(transport, command_of(ticket, begin)).values()
        return ticket.model_copy(update={"offset": begin})
    if begin == "earliest":
        return ticket
    if skips and isinstance(begin, int):
        kept = starts(transport, command_of(ticket, "earliest"))
        found = {value: max(begin, start) for value, start in kept.items()}
    else:
        found = starts(transport, command_of(ticket, begin))
    update: dict[str, Any] = {"offset": "earliest"}
    if ticket.partitions == ALL:
        return ticket.model_copy(update=update | {"positions": tuple(found.items())})
    entries = tuple(
        PartitionEntry(entry.partition, found.get(cast("JsonScalar", entry.partition)))
        for entry in entries_of(ticket)
    )
    return ticket.model_copy(update=update | {"partitions": entries})
