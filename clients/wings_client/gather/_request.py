"""Requests and replies of a gather, the rules that it ends by, and its end."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from wings_client._arguments import (
    COUNT,
    TEXT,
    build,
    checked,
    checked_with,
    instance_of,
    one_of,
    wire_offset,
)
from wings_client._model import ConsumedBatch, PartitionValue, RangesBatch
from wings_client._read_options import OffsetsValue, PartitionsValue, place, wire_positions
from wings_client._stream import milliseconds
from wings_client.arrow import RecordBatch
from wings_core.contracts.chunks import PartitionRange
from wings_core.contracts.messages import INT64_MAX
from wings_core.contracts.tickets import FetchTicket, FollowTicket, ScanTicket
from wings_core.errors import InvalidArgument, InvalidTicket, WingsError
from wings_core.partitions import JsonScalar
from wings_core.times import WAIT_SECONDS_MAX

FETCH_MESSAGES: int = FetchTicket.model_fields["max_messages"].default
"""Most messages of a fetch, by default."""

STALL_SECONDS_MIN = 0.001
"""A shorter stall timer counts as none."""


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
            return build(ScanTicket, "request", error=InvalidTicket, **common).to_bytes()
        common["timeout_ms"] = milliseconds(seconds)
        if self.kind == "follow":
            return build(FollowTicket, "request", error=InvalidTicket, **common).to_bytes()
        return build(
            FetchTicket,
            "request",
            error=InvalidTicket,
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


class Empty(Enum):
    """The type of `EMPTY`."""

    EMPTY = "empty"


EMPTY = Empty.EMPTY
"""The sentinel that ends a gather at the first empty reply, which is not delivered."""

Sentinel = Callable[[Reply], bool] | Literal[Empty.EMPTY]
"""A predicate, true to continue (the first reply it is false for is the last one), or `EMPTY`."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A usual way to end: `wait`, `stall` or `first(n)`."""

    stalls: bool = False
    """Whether the default stall timer runs."""
    max_messages: int | None = None


wait = Strategy()
"""Until every source has ended, or the time is up."""


stall = Strategy(stalls=True)
"""Until no reply comes for the lesser of a tenth of the total and the connection's time-out."""


@checked
def first(count: int) -> Strategy:
    """Return the strategy that ends after `count` replies."""
    return Strategy(max_messages=count)


@dataclass(frozen=True, slots=True)
class Rules:
    """Conditions that end a gather, checked.

    Args:
        timeout: Seconds of waiting in all.
        stall_timeout: Seconds of each wait but the first; None: no bound of their own.
        max_messages: How many replies.
        sentinel: Which reply.
        ends_on_error: Whether the first failing source ends all.
    """

    timeout: float
    stall_timeout: float | None
    max_messages: int | None
    sentinel: Sentinel | None
    ends_on_error: bool

    @classmethod
    def of(
        cls,
        *,
        timeout: float | None,
        stall_timeout: float | None,
        max_messages: int | None,
        sentinel: Sentinel | None,
        on_error: str,
        strategy: Strategy,
        client_timeout: float,
    ) -> "Rules":
        """Check a caller's options and fill in the defaults.

        Raises:
            InvalidArgument: A value is out of range.
        """
        total = min(client_timeout if timeout is None else timeout, WAIT_SECONDS_MAX)
        if not total > 0:
            raise InvalidArgument(f"timeout must be positive; got {total}")
        if strategy.max_messages is not None:
            if max_messages is not None:
                raise InvalidArgument("give max_messages or the strategy first(n), not both")
            max_messages = strategy.max_messages
        if max_messages is not None and max_messages < 1:
            raise InvalidArgument(f"max_messages must be at least 1; got {max_messages!r:.80}")
        if sentinel is not None and sentinel is not EMPTY and not callable(sentinel):
            raise InvalidArgument("sentinel must be a predicate or EMPTY")
        if stall_timeout is None and strategy.stalls:
            stall_timeout = min(total / 10, client_timeout)
        if stall_timeout is not None and not STALL_SECONDS_MIN <= stall_timeout < total:
            stall_timeout = None
        return cls(total, stall_timeout, max_messages, sentinel, on_error == "end")


class GatherReason(StrEnum):
    """Why a gather ended."""

    COMPLETE = "complete"
    """Every source has ended."""
    TIMEOUT = "timeout"
    """The total time is up."""
    STALL = "stall"
    """No reply for as long as the stall timer."""
    MAX_MESSAGES = "max_messages"
    """The wanted number of replies was delivered."""
    SENTINEL = "sentinel"
    """A reply ended it."""
    CANCELLED = "cancelled"
    """`cancel` was called."""
    STOPPED = "stopped"
    """The caller left the loop, raised, or never read."""
    NO_RESPONDERS = "no_responders"
    """No server was reached."""
    SERVER_ERROR = "server_error"
    """A server refused a request."""
    DISCONNECTED = "disconnected"
    """A connection failed, while another server was reached."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """The state of one source."""

    request: Request
    replies: int
    """Delivered."""
    rows: int
    """Delivered."""
    next_offset: int | None
    """The offset to resume at after what was delivered; None if unknown."""
    ended: bool
    """Whether its stream has ended, and all its replies were delivered."""
    error: WingsError | None
    next_offsets: Mapping[JsonScalar, int] = field(default_factory=dict[JsonScalar, int])
    """Offsets to resume at, of a source of many partitions, of those that are known."""


@dataclass(frozen=True, slots=True)
class GatherEnd:
    """How a gather ended."""

    reason: GatherReason
    error: BaseException | None
    """The first error, of a source or of the caller's own function."""
    replies: int
    """Delivered, of all sources."""
    rows: int
    """Delivered, of all sources."""
    elapsed: float
    """Seconds since the start."""
    sources: tuple[SourceState, ...]
    """In the order of the requests."""
