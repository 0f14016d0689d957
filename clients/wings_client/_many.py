"""Many partitions in one stream, resumed where it broke: each row of each of them once."""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from wings_client._messages import OffsetValue, build, wire_offset, wire_partition
from wings_client._model import PartitionValue, RangesBatch
from wings_client._stream import Resumed, warn_of_loss
from wings_client._transport import Transport
from wings_core.contracts.chunks import ManyEnd, reached
from wings_core.contracts.info import InfoCommand
from wings_core.contracts.reads import ALL, PartitionEntry
from wings_core.contracts.tickets import FollowTicket, ScanTicket, parse_ticket
from wings_core.errors import InvalidArgument, OffsetOutOfRange, Unavailable, WingsError
from wings_core.partitions import JsonScalar
from wings_core.times import Deadline

PartitionsValue = Sequence[PartitionValue] | Literal["all"]
"""Many partitions, as calls take them: all, those born later too, or the values of some."""

OffsetsValue = OffsetValue | Mapping[Any, int]
"""Where to begin in each of many partitions: the same in all, or offsets by partition value, such
as `next_offsets` of an earlier read; in others than those, at the start of the log."""


class ManyChunks(Resumed[RangesBatch]):
    """The chunks of one scan or follow of many partitions, over as many streams as it takes.

    Args:
        transport: To the server.
        ticket: With `partitions`. A scan has a list, with numbers for each `offset` and
            `end_offset`. The offsets of a follow are numbers or `"earliest"`, which mean the same
            whenever the stream is opened again.
        deadline: As of `Resumed`, like the others.
        reconnect_seconds: Likewise.
        locations: Likewise.

    Attributes:
        next_offsets: By partition value, the first offset not yet delivered, of each partition of
            which anything is known.
        exact: The partitions in which `on_data_loss` says what becomes of the read where retention
            passes its place; in the others it goes on with what is kept. At first those in
            `next_offsets`.
    """

    def __init__(
        self,
        transport: Transport,
        ticket: ScanTicket | FollowTicket,
        deadline: Deadline | None = None,
        reconnect_seconds: float | None = None,
        locations: Sequence[str] = (),
    ) -> None:
        super().__init__(
            transport,
            deadline,
            is_scan=isinstance(ticket, ScanTicket),
            reconnect_seconds=reconnect_seconds,
            locations=locations,
        )
        assert ticket.partitions is not None
        self._ticket = ticket
        self._grows = not self._is_scan and ticket.schema_version is None
        self.next_offsets: dict[JsonScalar, int] = cast("Any", dict(ticket.positions))
        if ticket.partitions != ALL:
            for entry in ticket.partitions:
                if isinstance(entry.offset, int):
                    self.next_offsets[cast("JsonScalar", entry.partition)] = entry.offset
        self.exact: Container[JsonScalar] = frozenset(self.next_offsets)

    def _one_stream(self) -> Iterator[RangesBatch]:
        ticket = self._next_ticket()
        if ticket is None:
            return
        stream, wait = self._open(ticket)
        for chunk in stream.many(wait):
            # Advanced before the chunk is yielded: from then on it is delivered.
            self.chunks_yielded += 1
            self.next_offsets.update(reached(chunk.ranges))
            yield chunk
        assert isinstance(stream.end, ManyEnd)
        for each in stream.end.partitions:
            self.next_offsets[each.partition] = each.next_offset
        for entry in self._left() if self._is_scan else ():
            if entry.end_offset is None:
                continue
            # Ranges are cut from what is committed: to accept this one would lose messages.
            raise Unavailable(
                f"{stream.endpoint} read to offset {entry.offset} of a range that ends at "
                f"{entry.end_offset}, of partition {entry.partition!r:.80}"
            )

    def _next_ticket(self) -> ScanTicket | FollowTicket | None:
        """Return the ticket that reads on; None where nothing is left of a scan."""
        where = self.where()
        return self._ticket.model_copy(update=where) if where["partitions"] else None

    def where(self) -> dict[str, Any]:
        """Return the keys of a ticket that reads what is not delivered yet; from any thread."""
        if self._ticket.partitions == ALL:
            return {"partitions": ALL, "positions": tuple(dict(self.next_offsets).items())}
        return {"partitions": tuple(self._left())}

    def _left(self) -> Iterator[PartitionEntry]:
        """Yield what is left of a list."""
        assert self._ticket.partitions is not None
        for entry in () if self._ticket.partitions == ALL else self._ticket.partitions:
            assert isinstance(entry, PartitionEntry)
            offset = self.next_offsets.get(cast("JsonScalar", entry.partition))
            if offset is None or entry.end_offset is None or offset < entry.end_offset:
                yield entry if offset is None else entry._replace(offset=offset)

    def _mends(self, error: WingsError) -> bool:
        """Skip what retention took, where that is no error."""
        if not isinstance(error, OffsetOutOfRange):
            return False
        partition, start = error.facts.get("partition"), error.log_start_offset
        if not self._skips_to(partition, start):
            return False
        # It will have passed other partitions too, and each would end a stream.
        for value, kept in starts(self._transport, self._ticket.topic, ALL).items():
            self._skips_to(value, kept)
        return True

    def _skips_to(self, partition: JsonScalar, start: int) -> bool:
        """Go on at a partition's start; returns whether its place was before that, and may move."""
        reached = self.next_offsets.get(partition)
        if reached is None or start <= reached:
            return False
        if partition in self.exact:
            if self.on_data_loss == "error":
                return False
            warn_of_loss(self._ticket.topic, partition, reached, start)
        self.next_offsets[partition] = start
        return True


def starts(
    transport: Transport,
    topic: str,
    partitions: PartitionsValue,
    offset: OffsetValue = "earliest",
) -> dict[JsonScalar, int]:
    """Return the number that an offset stands for now, by partition value, of those that exist.

    Of a list: of each partition in it.
    """
    command = build(
        InfoCommand,
        InvalidArgument,
        "offsets",
        topic=topic,
        partitions=wire_partitions(partitions),
        offset=wire_offset(offset),
    )
    found: dict[JsonScalar, int] = {}
    for endpoint in transport.info(command).endpoints:
        ticket = parse_ticket(endpoint.ticket.ticket)
        assert isinstance(ticket, ScanTicket)
        for entry in ticket.partitions or ():
            assert isinstance(entry, PartitionEntry)
            assert isinstance(entry.offset, int)
            found[cast("JsonScalar", entry.partition)] = entry.offset
    return found


def wire_partitions(
    partitions: PartitionsValue, offsets: Mapping[Any, int] | None = None
) -> Literal["all"] | tuple[PartitionEntry, ...]:
    """Return partitions in their wire form.

    Args:
        partitions: Values, or all.
        offsets: Where to begin in those of a list that are in it.
    """
    if partitions == ALL:
        return ALL
    given = wire_positions(offsets or {})
    values = [wire_partition(value) for value in partitions]
    return tuple(PartitionEntry(value, given.get(value)) for value in values)


def wire_positions(offsets: Mapping[Any, int]) -> dict[JsonScalar, int]:
    """Return offsets by partition value in their wire form."""
    return {wire_partition(value): offset for value, offset in offsets.items()}


def where(partitions: PartitionsValue, offset: OffsetsValue) -> dict[str, Any]:
    """Return the keys of a ticket that say which partitions are read, and from where.

    Args:
        partitions: Which.
        offset: Where to begin.
    """
    if not isinstance(offset, Mapping):
        return {"partitions": wire_partitions(partitions), "offset": wire_offset(offset)}
    if partitions == ALL:
        return {
            "partitions": ALL,
            "positions": tuple(wire_positions(offset).items()),
            "offset": "earliest",
        }
    return {"partitions": wire_partitions(partitions, offset), "offset": "earliest"}
