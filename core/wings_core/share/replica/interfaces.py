"""What a replica of holds offers: operations on ranges of one partition, answered part by part.

`Replica` answers in process, `StandbyReplica` where one of several processes serves it, and
`remote.link` over gRPC.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from wings_core.model import HeldRange, Lease
from wings_core.partitions import Partition
from wings_core.share.model import OffsetRange, ShareKey

if TYPE_CHECKING:
    from wings_core.share.replica.requests import Answer, Request


class Outcome(Enum):
    """What a replica says of a part of a range."""

    OK = 0
    """Done as asked."""
    NOK = 1
    """Not done: another lease holds it, or the lease that was named does not."""
    TOMB = 2
    """Finished, for good."""

    __hash__ = object.__hash__  # An enum's own runs in Python, at each vote.


class Part(NamedTuple):
    """A part `[first, last]` of a range that a replica was asked about, and its answer."""

    first: int
    last: int
    outcome: Outcome
    count: int = 0  # pyright: ignore[reportIncompatibleMethodOverride]
    """Deliveries made, as far as this replica knows."""
    retry_ms: int = 0
    """Of a NOK: asking again earlier than this is in vain unless it is released before."""


class LeaseEntry(NamedTuple):
    """A range and the lease that it is said to be held with."""

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
    """A range and how often it was delivered."""

    first: int
    last: int
    count: int


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What one replica knows of a partition."""

    partition: Partition
    start_offset: int
    """All before it are finished."""
    finished: tuple[OffsetRange, ...]
    """Finished ranges above it, in order, with gaps between them."""
    counts: tuple[CountedRange, ...]
    """Ranges that were delivered and are not finished, in order."""
    in_flight: int
    """Messages held now."""
    holds: tuple[HeldRange, ...] = ()
    """By whom, if that was asked for."""


class HoldReplica(Protocol):
    """One of the replicas that holds are acquired on.

    Ranges of one call do not overlap and are in order; the parts of an answer cover them, in order.
    No call waits for another lease's hold. Over a network each may raise `Unavailable`, and it
    is unknown then whether it was done.
    """

    def hold(
        self,
        key: ShareKey,
        ranges: Sequence[OffsetRange],
        lease: Lease,
        ttl_ms: int,
        in_flight_max: int,
    ) -> list[Part]:
        """Hold what is free for this lease until the TTL has passed here.

        Again with the same lease is OK. May write durably first: the mark that a restart
        respects.

        Args:
            key: The partition of a group.
            ranges: What is wanted.
            lease: Who wants it.
            ttl_ms: How long.
            in_flight_max: No more messages of the partition are held at once.
        """
        ...

    def renew(self, key: ShareKey, entries: Sequence[LeaseEntry], ttl_ms: int) -> list[Part]:
        """Let the TTL of what the leases hold begin anew; parts they do not hold are NOK.

        May write durably first: the mark that a restart respects.
        """
        ...

    def release(self, key: ShareKey, entries: Sequence[ReleaseEntry]) -> list[Part]:
        """Release what the leases hold; parts they do not hold are NOK, and stay as they are.

        A count that it did not know is durable when this returns.
        """
        ...

    def tombstone(
        self, key: ShareKey, entries: Sequence[LeaseEntry], repair: Sequence[OffsetRange] = ()
    ) -> list[Part]:
        """Finish what the leases hold, all or, where a part is NOK, nothing; durable on return.

        Args:
            key: The partition of a group.
            entries: What is finished in the name of its lease. TOMB where it was already.
            repair: Finished, held or not: another replica has their tombstone, or they lie
                below the start of the log or of the group. The answer does not list them.
        """
        ...

    def read(self, group_uuid: str, partitions: Sequence[Partition]) -> list[ReplicaState]:
        """Return what is known of partitions of a group, in the order asked; none: all known."""
        ...

    def forget(self, group_uuid: str) -> None:
        """Forget a group that was deleted, durably; its UUID is not used again."""
        ...

    def perform(self, requests: "Sequence[Request]") -> "Sequence[Answer]":
        """Carry out requests of several partitions in order, durable together on return.

        Args:
            requests: Of any kind but `ForgetRequest`, which goes alone.

        Returns:
            The answer to each; an error is one.
        """
        ...
