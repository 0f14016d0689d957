"""Requests to replicas of holds, their answers, and the procedures that make them.

Ranges of one request do not overlap and are in order; the parts of an answer cover them, in order.
`Replica` answers in process, and `remote.link` over gRPC.

A procedure is a generator. It yields an effect, is sent its result, and returns its own. So the
same code runs over replicas in process, over gRPC, and in a simulation with a virtual clock; only
the runner differs (`quorum.Runner` in the product).
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeVar

from wings_core.errors import WingsError
from wings_core.model import HeldRange, Lease
from wings_core.partitions import Partition
from wings_core.share.model import OffsetRange, PendingDeadLetters, ShareKey

BATCH_MAX = 1_000
"""Requests that a replica carries out together at most, unless one call has more."""


class PartOutcome(Enum):
    """Vote of a replica on a part of a range."""

    OK = 0
    """The request was carried out."""
    NOK = 1
    """Refused: another lease holds it, or the named lease does not."""
    TOMB = 2
    """The range is finished, for good."""

    __hash__ = object.__hash__  # An enum's own runs in Python, at each vote.


class RangeAnswer(NamedTuple):
    """Answer of a replica to the part `[first, last]` of a range."""

    first: int
    last: int
    outcome: PartOutcome
    count: int = 0  # pyright: ignore[reportIncompatibleMethodOverride]
    """Deliveries made, as far as this replica knows."""
    retry_ms: int = 0
    """Time after which a refused part may be free; a release may come earlier."""


class LeaseEntry(NamedTuple):
    """A range, and the lease that is said to hold it."""

    first: int
    last: int
    lease: Lease
    count: int = 0  # pyright: ignore[reportIncompatibleMethodOverride]
    """Deliveries made, this one included, if the replica may know of fewer."""


@dataclass(frozen=True, slots=True)
class ReleaseEntry:
    """A range to release."""

    first: int
    last: int
    lease: Lease
    count: int
    """Deliveries made of it; made durable. 0 for a hold that was not delivered: none more."""
    delay_ms: int = 0
    """How long it is not held again."""


@dataclass(frozen=True, slots=True)
class CountedRange:
    """A range and the number of its deliveries."""

    first: int
    last: int
    count: int


@dataclass(frozen=True, slots=True)
class DelayedRange:
    """A range that nobody may hold for a while."""

    first: int
    last: int
    left_ms: int
    """At least; long delays are cut, so that ranges that touch are one."""


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """State of a partition at one replica."""

    partition: Partition
    start_offset: int
    """All messages before it are finished."""
    finished: tuple[OffsetRange, ...]
    """Finished ranges above it, in order, with gaps between them."""
    counts: tuple[CountedRange, ...]
    """Ranges delivered and not finished, in order."""
    in_flight: int
    """Messages held now."""
    holds: tuple[HeldRange, ...] = ()
    """The held ranges, where the request asked for them."""
    delays: tuple[DelayedRange, ...] = ()
    """The delayed ranges, with the holds."""


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """Holds the free messages of ranges for a lease until the TTL has passed at the replica.

    A range that the lease holds already is OK. The replica may write first: the mark that a restart
    respects.
    """

    key: ShareKey
    ranges: tuple[OffsetRange, ...]
    lease: Lease
    ttl_ms: int
    in_flight_max: int
    """Messages of the partition held at once at most."""
    member: str = ""
    """Name of the member, for reads."""
    next_offset: int | None = None
    """In order: no message is granted while another lease holds any of the partition, and all
    before this offset are finished, which a replica may have missed. None: without order."""


@dataclass(frozen=True, slots=True)
class RenewRequest:
    """Begins the TTL of held ranges anew; parts that the leases do not hold are NOK.

    The replica may write first: the mark that a restart respects.
    """

    key: ShareKey
    entries: tuple[LeaseEntry, ...]
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class ReleaseRequest:
    """Releases held ranges; parts that the leases do not hold are NOK and stay as they are.

    A count that the replica did not know is durable with the answer.
    """

    key: ShareKey
    entries: tuple[ReleaseEntry, ...]


@dataclass(frozen=True, slots=True)
class TombstoneRequest:
    """Finishes held ranges, durably: all of them, or, where a part is NOK, none."""

    key: ShareKey
    entries: tuple[LeaseEntry, ...]
    """The ranges and their leases. TOMB where one was finished before."""
    repair: tuple[OffsetRange, ...] = ()
    """Ranges to finish, held or not: another replica has their tombstone, or they lie below the
    start of the log or of the group. The answer does not list them."""


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Reads the state of partitions of a group, in the order asked; none: of all known."""

    group_uuid: str
    partitions: tuple[Partition, ...]
    with_holds: bool = False
    """Whether the answer lists the held ranges, and not what is finished nor the counts; without
    partitions, only partitions with some."""


@dataclass(frozen=True, slots=True)
class ForgetRequest:
    """Forgets a deleted group, durably; its UUID is not used again."""

    group_uuid: str


Request = (
    HoldRequest | RenewRequest | ReleaseRequest | TombstoneRequest | ReadRequest | ForgetRequest
)
Answer = Sequence[RangeAnswer] | Sequence[ReplicaState] | WingsError
"""Answer of a replica, or its error; to a `ForgetRequest`, nothing."""

Answers = Mapping[int, Answer]
"""Answers to one request, by the number of the replica; silent replicas are missing."""


class ReplicaLink(Protocol):
    """The way to one replica."""

    def begin_all(
        self, requests: Sequence[Request], seconds: float, done: Callable[[int, Answer], None]
    ) -> None:
        """Make requests together; see `Replica.perform`.

        Args:
            requests: At least one.
            seconds: The time within which `done` is called.
            done: Called once for each request, with its index, from any thread, maybe before this
                returns. It must not block.
        """
        ...

    def close(self) -> None:
        """End the requests under way with `Unavailable`, and later ones too."""
        ...


def refused(requests: Sequence[Request], error: WingsError) -> list[Answer]:
    """Return an error as the answer to each request; a copy each, as each may be raised."""
    return [type(error)(error.message, **error.facts) for _ in requests]


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Sends requests to replicas, all at once; the result is the answers by replica.

    It comes when all have answered, when `enough` says so of the answers so far (which may be
    none), when the time is up, or a short while after the `majority`th answer that is no error.
    A request without an answer by then may still be carried out.
    """

    requests: Mapping[int, tuple[Request, ...]]
    """Requests by number of the replica, made of it together."""
    enough: Callable[[Mapping[int, Sequence[Answer]]], bool]
    """Tells whether the answers so far are enough."""
    majority: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Lets some time pass."""

    seconds: float


@dataclass(frozen=True, slots=True)
class FinishDeadLetters:
    """Waits for dead letters to be durable; the result is None or the error."""

    pending: PendingDeadLetters


Effect = Broadcast | Pause | FinishDeadLetters

T = TypeVar("T")
Procedure = Generator[Effect, Any, T]
"""A procedure that returns a `T`."""
