"""Requests of a replica as values, so that they can be sent, simulated and told again."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from wings_core.errors import WingsError
from wings_core.model import Lease
from wings_core.partitions import Partition
from wings_core.share.model import OffsetRange, ShareKey
from wings_core.share.replica.interfaces import (
    LeaseEntry,
    Part,
    ReleaseEntry,
    ReplicaState,
)


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """Asks for `HoldReplica.hold`."""

    key: ShareKey
    ranges: tuple[OffsetRange, ...]
    lease: Lease
    ttl_ms: int
    in_flight_max: int
    member: str = ""
    """What the member calls itself, to be told by reads."""
    next_offset: int | None = None
    """Hold none while another lease holds any of the partition; all before this offset are
    finished, which a replica may have missed. None: hold what is free."""


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
    with_holds: bool = False
    """Whether to tell who holds what; without partitions, of those alone where some is held."""


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
class Bundle:
    """Requests that are made of a replica together; its answer is a list of theirs."""

    requests: tuple[Request, ...]
    """At least two, of any kind but `ForgetRequest`."""


def unbundled(requests: Iterable[Request | Bundle]) -> list[Request]:
    """Return the requests in order, those of bundles among them."""
    found: list[Request] = []
    for each in requests:
        if isinstance(each, Bundle):
            found += each.requests
        else:
            found.append(each)
    return found


def bundled(
    requests: Iterable[Request | Bundle], answers: Sequence[Answer]
) -> list[Answer | list[Answer]]:
    """Return the answers to requests, some of which are bundles, from those of `unbundled`."""
    found: list[Answer | list[Answer]] = []
    at = 0
    for each in requests:
        if isinstance(each, Bundle):
            end = at + len(each.requests)
            found.append(one_of(list(answers[at:end])))
            at = end
        else:
            found.append(answers[at])
            at += 1
    return found


def one_of(parts: list[Answer]) -> list[Answer] | WingsError:
    """Return the answer to a bundle: an error where each of its requests has failed."""
    first = parts[0]
    if isinstance(first, WingsError) and all(isinstance(each, WingsError) for each in parts):
        return first
    return parts
