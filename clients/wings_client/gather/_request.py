"""The request of a gather to one source, and a reply."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from wings_client._arguments import COUNT, TEXT, checked_with, instance_of, one_of
from wings_client._messages import build, wire_offset
from wings_client._model import ConsumedBatch, PartitionValue, RangesBatch
from wings_client._read_options import OffsetsValue, PartitionsValue, place, wire_positions
from wings_client._stream import milliseconds
from wings_client.arrow import RecordBatch
from wings_core.contracts.chunks import PartitionRange
from wings_core.contracts.messages import INT64_MAX
from wings_core.contracts.tickets import FetchTicket, FollowTicket, ScanTicket
from wings_core.errors import InvalidTicket

FETCH_MESSAGES: int = FetchTicket.model_fields["max_messages"].default
"""Most messages of a fetch, by default."""


@checked_with(
    endpoint=TEXT,
    kind=one_of("fetch", "scan", "follow"),
    received=COUNT,
    ticket=instance_of("bytes", bytes),
)
@dataclass(frozen=True, slots=True)
class Request:
    """One request of a gather: a read of one partition, or many, on this server or another.

    `min_messages` and `max_messages` are of this source, and only of a fetch.
    """

    topic: str = ""
    """Its full name, or an id in the default namespace."""
    partition: PartitionValue = None
    offset: OffsetsValue = "earliest"
    """Offset; of many partitions also one for each, by partition value. A negative number counts
    from the end, on the client's server alone."""
    kind: Literal["fetch", "scan", "follow"] = "fetch"
    timeout: float | None = None
    """Seconds that the server may wait; None: as long as the gather lasts."""
    min_messages: int | None = None
    max_messages: int | None = None
    columns: tuple[str, ...] | None = None
    filter: str | None = None
    system_columns: bool = False
    endpoint: str | None = None
    """Another server than the client's, like `grpc://host:7777`."""
    ticket: bytes | None = None
    """A ticket to send as it is, of any Flight server, instead of all but `endpoint`."""
    partitions: PartitionsValue | None = None
    """Instead of `partition`: many in one stream, `"all"` or the values of some. They are one
    source, whose replies are `ManyReply`."""
    schema_version: int | None = None
    """Read as an earlier version of the topic's schema has the columns."""

    def to_ticket(
        self, seconds: float, offset: "int | Mapping[Any, int] | None" = None, received: int = 0
    ) -> bytes:
        """Return the ticket to send.

        Args:
            seconds: How long the server may wait.
            offset: The offset to resume at, or those of many partitions; None: that of the request.
            received: Rows already received, to be subtracted from those asked for.

        Raises:
            InvalidTicket: A value is out of range.
        """
        if self.ticket is not None:
            return self.ticket
        common = {
            "topic": self.topic,
            "columns": self.columns,
            "filter": self.filter,
            "system_columns": self.system_columns,
            "schema_version": self.schema_version,
            **self._where(offset),
        }
        if self.kind == "scan":
            return build(ScanTicket, InvalidTicket, "request", **common).to_bytes()
        common["timeout_ms"] = milliseconds(seconds)
        if self.kind == "follow":
            return build(FollowTicket, InvalidTicket, "request", **common).to_bytes()
        return build(
            FetchTicket,
            InvalidTicket,
            "request",
            min_messages=max(1, (self.min_messages or 1) - received)
            if received
            else self.min_messages,
            max_messages=(self.max_messages or FETCH_MESSAGES) - received
            if received
            else self.max_messages,
            **common,
        ).to_bytes()

    def _where(self, reached: "int | Mapping[Any, int] | None") -> dict[str, Any]:
        """Return the keys that say what is read, from where it was reached."""
        if self.partitions is None:
            return place(self.partition, None, self.offset if reached is None else reached)
        if self.partition is not None:
            raise InvalidTicket("request: partition and partitions exclude each other")
        if not isinstance(reached, Mapping):
            return place(None, self.partitions, self.offset)
        if isinstance(self.offset, Mapping):
            merged = {**wire_positions(self.offset), **reached}
            return place(None, self.partitions, merged)
        return place(None, self.partitions, reached) | {"offset": wire_offset(self.offset)}

    @property
    def waits(self) -> bool:
        """Whether the server waits for messages, for as long as the ticket says."""
        return self.ticket is None and self.kind != "scan"


_all_but_place = attrgetter(
    *(name for name in Request.__dataclass_fields__ if name not in {"partition", "offset"})
)


def check_requests(requests: Iterable[Request], seconds: float) -> None:
    """Check all requests; one that differs from the last in its numbers alone is as valid.

    Args:
        requests: The requests.
        seconds: How long the gather lasts.

    Raises:
        InvalidTicket: A value is out of range.
    """
    last: object = None
    for request in requests:
        rest, offset = _all_but_place(request), request.offset
        partition = request.partition
        is_plain = type(partition) is int or (isinstance(partition, str) and partition.isascii())
        if is_plain and rest == last and type(offset) is int and 0 <= offset <= INT64_MAX:
            continue
        if request.timeout is not None and not request.timeout > 0:
            raise InvalidTicket(f"request: timeout must be positive; got {request.timeout}")
        request.to_ticket(seconds if request.timeout is None else request.timeout)
        last = rest if type(offset) is int else None


class Reply(NamedTuple):
    """One batch of one source."""

    batch: RecordBatch
    request: Request
    """The request that it answers: its source."""
    start_offset: int | None
    end_offset: int | None
    """Inclusive; both are None if the server does not send them."""


class ManyReply(Reply):
    """One batch of a source of many partitions; its offsets are those of its ranges.

    Attributes:
        ranges: Which rows are of which partition, in the order of the rows.
    """

    ranges: Sequence[PartitionRange]

    @classmethod
    def of(
        cls, batch: RecordBatch, request: Request, ranges: Sequence[PartitionRange]
    ) -> "ManyReply":
        """Return a reply of many partitions."""
        reply = cls(batch, request, None, None)
        reply.ranges = ranges
        return reply

    def parts(self) -> Iterator[ConsumedBatch]:
        """Yield the rows of each range by themselves, without a copy."""
        return RangesBatch(self.batch, self.ranges).parts()
