"""The nouns of share groups: keys, ranges, requests, acknowledgements, dead letters, a clock.

Ranges of offsets are inclusive at both ends, `[first, last]`, as in all results. Times named
`_seconds` or `at` are on a monotonic clock, so that setting the wall's does holds no harm.
"""

import hashlib
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import pyarrow as pa

from wings_core.errors import WingsError
from wings_core.model import LeasedRange, ShareGroup, Topic
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_core.times import monotonic, now_us

AcknowledgeType = Literal["accept", "release", "reject", "renew"]

ROWS_MAX = 100_000
"""The most messages that one acquire leases, whole batches among them."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class ShareKey:
    """One partition as one group sees it, which is what replicas keep their state by."""

    group_uuid: str
    topic_uuid: str
    partition: Partition

    @classmethod
    def of(cls, group: ShareGroup, partition: Partition) -> "ShareKey":
        """Return the key of a partition of a group."""
        return cls(group.uuid, group.topic.uuid, partition)


class OffsetRange(NamedTuple):
    """The offsets `[first, last]`, at least one."""

    first: int
    last: int

    @property
    def messages(self) -> int:
        """How many offsets it has."""
        return self.last - self.first + 1


class Clock(Protocol):
    """A monotonic clock."""

    @property
    def boot_id(self) -> str:
        """Names the span of time in which readings compare, over restarts of a process too."""
        ...

    def now(self) -> float:
        """Return the time in seconds from any beginning."""
        ...

    def wall_us(self) -> int:
        """Return the time of day, in microseconds since the epoch."""
        ...


class MonotonicClock:
    """The system's monotonic clock."""

    def __init__(self) -> None:
        try:
            self.boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
        except OSError:
            self.boot_id = str(uuid.uuid4())  # Readings of other processes are not to be trusted.

    now = staticmethod(monotonic)
    wall_us = staticmethod(now_us)


ReadTimes = Callable[[Topic, Partition, str, int, int], "pa.Int64Array"]
"""Returns the times of messages `[first, last]` by a column; see `record_fetcher.LogTimes`."""


@dataclass(frozen=True, slots=True)
class AcquireRequest:
    """A member's request for some of the messages of any partition, or of one."""

    group: ShareGroup
    """With its configuration as it is now."""
    member: str
    """Its leases are good for it alone."""
    partition: Partition | None
    """None for any of several: of a topic without a key it is `UNPARTITIONED`."""
    messages_max: int
    """At least 1. Never more in mode `record_limit`; in mode `batch_optimized` the last range goes
    on to the end of its batch."""
    rows_max: int = ROWS_MAX
    """At least 1. Never more in either mode."""
    range_max: int = ROWS_MAX
    """At least 1. In a group that is ordered, no more of one partition, in either mode."""


Leased = list[LeasedRange] | WingsError
"""The ranges that a request got, maybe none, or the error for which it got none."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A member's statement about messages `[first, last]` that it holds."""

    partition: Partition
    first: int
    last: int
    lease: str
    type: AcknowledgeType
    delay_ms: int = 0
    """Time for which released messages are not leased again."""
    reason: str | None = None
    """Error text for the dead letter of a reject, or of a release at the delivery limit."""
    counts: bool = True
    """Whether a released delivery counts; it does not where nothing was done with it."""

    @classmethod
    def of(cls, leased: LeasedRange, kind: AcknowledgeType) -> "Acknowledgement":
        """Return the acknowledgement of a whole range by its lease."""
        return cls(leased.partition, leased.start_offset, leased.end_offset, leased.lease, kind)

    @property
    def messages(self) -> int:
        """Number of messages."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class ArchivedRange:
    """Messages `[first, last]` of one partition that the group archives, for one reason."""

    topic: TopicName
    partition: Partition
    first: int
    last: int
    delivery_count: int
    """How often they were delivered."""
    cause: Literal["rejected", "delivery_limit"]
    reason: str | None
    """Error text of the member that rejected or last released them."""


class PendingDeadLetters(Protocol):
    """Dead letters that were begun."""

    def finish(self) -> None:
        """Block until they are durable in the group's DLQ topic.

        Raises:
            WingsError: They are not; the messages stay held, and are tried again later.
        """
        ...


class DeadLetterSink(Protocol):
    """Writes the dead letters of groups that have a DLQ topic.

    The coordinator begins them before it proves its lease at the replicas (so the rows' fetch
    runs meanwhile), finishes them after, and only then writes the tombstone. A crash, or a
    replica that fails, in between makes it begin the same messages again, perhaps in other ranges
    and on another node: each message is written once, by its `dead_letter_id`.
    """

    def begin(self, group: ShareGroup, letters: Sequence[ArchivedRange]) -> PendingDeadLetters:
        """Queue letters and start to fetch their rows; returns at once.

        Raises:
            WingsError: They cannot be written.
        """
        ...


def dead_letter_id(group_uuid: str, partition: Partition, offset: int) -> str:
    """Return the id of a message's dead letter: the same on every node and each time."""
    text = f"{group_uuid}\0{partition}\0{offset}"
    return hashlib.blake2b(text.encode("utf-8"), digest_size=16).hexdigest()
