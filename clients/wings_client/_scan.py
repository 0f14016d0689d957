"""Scans and follows: what is committed, read lazily, or each message once as it is committed.

GetFlightInfo fixes the ranges, so that a scan reads one state of the log however long it takes, and
resumes a part whose connection broke.
"""

import threading
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator
from typing import Any, Generic, NamedTuple, Self, TypeVar, cast

from wings_client._chunks import Chunks, OnDataLoss, chunk_of
from wings_client._model import Chunk, RangesBatch
from wings_client._read_options import command_of, entries_of, starts
from wings_client._results import Read, StreamResult, Unended, counted, in_notebook
from wings_client._threads import ReadAhead
from wings_client._transport import Transport
from wings_client.arrow import RecordBatch, Schema
from wings_core.contracts.info import InfoCommand
from wings_core.contracts.reads import ALL, PartitionEntry
from wings_core.contracts.tickets import FollowTicket, ScanTicket, parse_ticket
from wings_core.errors import InvalidArgument
from wings_core.partitions import JsonScalar
from wings_core.times import Deadline

PARALLEL_MAX = 64
"""Most streams of one scan at once, each with a thread."""

ROWS_PER_PART_MIN = 65_536
"""A range is not cut into parts smaller than a full batch."""

JOIN_SECONDS = 1.0
"""How long the end of a scan waits for each of its threads; one that is opening a stream on a
silent server ends with that stream."""

BATCHES_WAITING_PER_STREAM = 2
"""Batches that a parallel scan has read and not yet delivered, for each of its streams."""

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


class ScanPart(NamedTuple):
    """A range of one partition or of each of many, and the nodes that serve it."""

    ticket: ScanTicket
    locations: tuple[str, ...]
    """The nodes to ask, in order; empty: the node that calls go to."""
    clamps: bool = False
    """Whether what retention takes before it is read is skipped; else it is an error."""

    def read(self, transport: Transport, *, skips_lost: bool = False) -> Chunks:
        """Return its chunks, no stream opened yet."""
        chunks = Chunks(transport, self.ticket, locations=self.locations)
        if self.clamps or skips_lost:
            chunks.exact = ()
        return chunks


class ScanRead(Read):
    """A range that is being read: its parts one after another, or several at once.

    Args:
        transport: To the server.
        command: The range.
        parallel: Most streams at once, each with a thread.
        skips_lost: True skips what retention takes before it is read, as of a range from
            `"earliest"` on; False raises an error.
    """

    kind = "scan"

    def __init__(
        self,
        transport: Transport,
        command: InfoCommand,
        parallel: int,
        *,
        skips_lost: bool = False,
    ) -> None:
        self.schema, parts = ranges(transport, command, parallel)
        self.rows = None if command.filter else sum(map(rows_of, parts))
        self.streams = min(parallel, len(parts))
        self._topic = command.topic.rsplit("/")[-1]
        self._transport = transport
        self._chunks = [part.read(transport, skips_lost=skips_lost) for part in parts]

    def sources(self) -> list[Iterator[RecordBatch]]:
        """Return the batches of each part, in order of offset."""
        return [(chunk.batch for chunk in chunks) for chunks in self._chunks]

    def batches(self) -> Generator[RecordBatch]:
        """Yield the batches of all parts; in a notebook, display how far it is."""
        batches = self._at_once() if self.streams > 1 else self._in_turn()
        if in_notebook():
            batches = counted(batches, f"scan of {self._topic}", self.rows)
        return batches

    def cancel(self) -> None:
        """End all streams; does not block."""
        if not self._transport.is_inherited:
            for chunks in self._chunks:
                chunks.cancel()

    def _in_turn(self) -> Generator[RecordBatch]:
        for chunks in self._chunks:
            for chunk in chunks:
                yield chunk.batch

    def _at_once(self) -> Generator[RecordBatch]:
        waiting_max = self.streams * BATCHES_WAITING_PER_STREAM
        ahead = ReadAhead(self.sources(), self.cancel, waiting_max, self.streams)
        started: list[threading.Thread] = []
        try:
            for index in range(self.streams):
                thread = threading.Thread(
                    target=ahead.read, name=f"wings-scan-{index}", daemon=True
                )
                thread.start()
                started.append(thread)
            while True:
                self._transport.check_process()
                batch = ahead.handover.take()
                if batch is None:
                    return
                yield batch
        finally:
            if not self._transport.is_inherited:
                ahead.cancel()
            for thread in started:
                thread.join(JOIN_SECONDS)


def ranges(
    transport: Transport, command: InfoCommand, parallel: int
) -> tuple[Schema, list[ScanPart]]:
    """Return the ranges of `plan`, cut so that `parallel` streams have work.

    With `partitions`, each is of many partitions.
    """
    if not 1 <= parallel <= PARALLEL_MAX:
        raise InvalidArgument(f"parallel must be from 1 to {PARALLEL_MAX}; got {parallel}")
    if command.partitions is not None:
        schema, parts = plan(transport, command.model_copy(update={"splits": parallel}))
        only = None if command.system_columns else _only_partition(parts)
        if only is not None:
            return schema, list(_cut(only, parallel, 1))
        return schema, parts
    schema, parts = plan(transport, command)
    return schema, [cut for part in parts for cut in _cut(part, parallel, len(parts))]


def plan(transport: Transport, command: InfoCommand) -> tuple[Schema, list[ScanPart]]:
    """Return the parts that make up a range of one partition or of many, their ends fixed.

    Returns:
        The schema of the batches, and the parts: by partition value where the command does not have
        `partitions`.
    """
    info = transport.info(command)
    clamps = command.begin == "earliest"
    parts: list[ScanPart] = []
    for endpoint in info.endpoints:
        ticket = parse_ticket(endpoint.ticket.ticket)
        if isinstance(ticket, ScanTicket):
            locations = tuple(each.uri.decode() for each in endpoint.locations)
            parts.append(ScanPart(ticket, locations, clamps))
    return cast("Schema", info.schema), parts


def _only_partition(parts: list[ScanPart]) -> ScanPart | None:
    """Return the parts of a topic without a key as one, of its partition; None: it has a key."""
    entries = [entry for part in parts for entry in entries_of(part.ticket)]
    if not entries or any(entry.partition is not None for entry in entries):
        return None
    ticket = parts[0].ticket.model_copy(
        update={
            "partitions": None,
            "offset": entries[0].offset,
            "end_offset": entries[-1].end_offset,
        }
    )
    return parts[0]._replace(ticket=ticket)


def rows_of(part: ScanPart) -> int:
    """Return how many rows the range of a part has, those that retention takes included."""
    return sum(
        each.end_offset - each.offset
        for each in entries_of(part.ticket)
        if isinstance(each.offset, int) and each.end_offset
    )


def _cut(part: ScanPart, parallel: int, parts_planned: int) -> Iterator[ScanPart]:
    """Cut a range, so that `parallel` streams have work where there are fewer ranges.

    Each cut is read from another node first, where there are several.
    """
    ticket, locations = part.ticket, part.locations
    assert isinstance(ticket.offset, int)
    assert ticket.end_offset is not None
    start_offset, rows = ticket.offset, ticket.end_offset - ticket.offset
    cuts = min(-(-parallel // parts_planned), -(-rows // ROWS_PER_PART_MIN))
    for index in range(cuts):
        update = {
            "offset": start_offset + rows * index // cuts,
            "end_offset": start_offset + rows * (index + 1) // cuts,
        }
        first = index % len(locations) if locations else 0
        yield part._replace(
            ticket=ticket.model_copy(update=update),
            locations=(*locations[first:], *locations[:first]),
        )
