"""Steps: what the logic of share groups waits for, told rather than done.

A procedure is a generator. It yields a step, is sent what came of it, and returns its result. So
the same code runs over replicas in process, over gRPC, and in a simulation with a clock of its own;
only who runs it differs.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from wings_core.errors import WingsError
from wings_core.partitions import Partition
from wings_core.share.interfaces import (
    HoldReplica,
    LeaseEntry,
    Part,
    PendingDeadLetters,
    ReleaseEntry,
    ReplicaState,
)
from wings_core.share.model import Lease, OffsetRange, ShareKey


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """Asks for `HoldReplica.hold`."""

    key: ShareKey
    ranges: tuple[OffsetRange, ...]
    lease: Lease
    ttl_ms: int
    in_flight_max: int


@dataclass(frozen=True, slots=True)
class RenewRequest:
    """Asks for `HoldReplica.renew`."""

    key: ShareKey
    entries: tuple[LeaseEntry, ...]
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class ReleaseRequest:
    """Asks for `HoldReplica.release`."""

    key: ShareKey
    entries: tuple[ReleaseEntry, ...]


@dataclass(frozen=True, slots=True)
class TombstoneRequest:
    """Asks for `HoldReplica.tombstone`."""

    key: ShareKey
    entries: tuple[LeaseEntry, ...]
    repair: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Asks for `HoldReplica.read`."""

    group_uuid: str
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class ForgetRequest:
    """Asks for `HoldReplica.forget`."""

    group_uuid: str


Request = (
    HoldRequest | RenewRequest | ReleaseRequest | TombstoneRequest | ReadRequest | ForgetRequest
)
Answer = Sequence[Part] | Sequence[ReplicaState] | WingsError
"""What a replica answered, or why it did not; of `ForgetRequest`, nothing."""

Answers = Mapping[int, Answer]
"""By number of the replica; those that have not answered are missing."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask replicas, all at once; the result is `Answers`.

    It comes when all have answered, when `enough` says so of the answers so far (which may be
    none), when the time is up, or a short while after the `majority`th answer that is no error.
    What was asked may still happen after that.
    """

    requests: Mapping[int, Request]
    seconds: float
    enough: Callable[[Answers], bool]
    majority: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Let some time pass."""

    seconds: float


@dataclass(frozen=True, slots=True)
class FinishDeadLetters:
    """Wait for dead letters to be durable; the result is None or the error."""

    pending: PendingDeadLetters


Step = Ask | Pause | FinishDeadLetters

T = TypeVar("T")
Steps = Generator[Step, Any, T]
"""A procedure."""


def perform(replica: HoldReplica, request: Request) -> Answer:
    """Make a request of a replica; an error is an answer too."""
    try:
        match request:
            case HoldRequest(key, ranges, lease, ttl_ms, in_flight_max):
                return replica.hold(key, ranges, lease, ttl_ms, in_flight_max)
            case RenewRequest(key, entries, ttl_ms):
                return replica.renew(key, entries, ttl_ms)
            case ReleaseRequest(key, entries):
                return replica.release(key, entries)
            case TombstoneRequest(key, entries, repair):
                return replica.tombstone(key, entries, repair)
            case ReadRequest(group_uuid, partitions):
                return replica.read(group_uuid, partitions)
            case ForgetRequest(group_uuid):
                replica.forget(group_uuid)
                return ()
    except WingsError as error:
        return error
