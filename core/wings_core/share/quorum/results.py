"""What became of something that was asked of a majority of the replicas."""

from dataclasses import dataclass
from enum import Enum

from wings_core.share.model import OffsetRange
from wings_core.share.replica.interfaces import CountedRange


class Verdict(Enum):
    """What became of something that leases were to do."""

    DONE = 0
    REFUSED = 1
    """The leases do not hold at any majority; nothing was done, nor ever will be."""
    UNKNOWN = 2
    """It may have been done on some replicas, and may be done by the others later."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A range that could not be held, and when it is worth asking again, as far as is known."""

    first: int
    last: int
    retry_seconds: float


@dataclass(frozen=True, slots=True)
class Held:
    """What became of the ranges that were to be held."""

    granted: list[CountedRange]
    """Held at a majority, with the deliveries made before; the majority counts one more."""
    finished: list[OffsetRange]
    """At a majority."""
    refused: list[Refused]


@dataclass(frozen=True, slots=True)
class Renewed:
    """What became of a renewal."""

    verdict: Verdict
    counts: list[CountedRange]
    """Where it is done: deliveries of each part, the present one included."""
