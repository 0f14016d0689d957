"""The interface of a replica's durable state.

Tombstones and counts are kept as ranges. A tombstone that touches the start of its partition is
folded into `start_offset`, so a partition that is worked off in order is one row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from wings_core.share.model import ShareKey

Row = tuple[int, int, int]
"""`(first, last, count)`; the count of a tombstone is 0."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Until when a replica may have granted holds of a group, which a restart forgets."""

    boot_id: str
    expires_at: float
    """Time of expiry, by the clock of that boot."""
    ttl_seconds: float
    """No hold was granted for longer than this."""


@dataclass(slots=True)
class StoredPartition:
    """All that is durable of one partition of a group."""

    key: ShareKey
    start_offset: int
    finished: list[Row] = field(default_factory=list)
    counts: list[Row] = field(default_factory=list)


@dataclass(slots=True)
class PartitionWrite:
    """The changes to one partition: ranges by their first offset."""

    key: ShareKey
    start_offset: int
    finished_removed: list[int] = field(default_factory=list)
    finished_added: list[Row] = field(default_factory=list)
    counts_removed: list[int] = field(default_factory=list)
    counts_added: list[Row] = field(default_factory=list)

    @classmethod
    def of(cls, stored: StoredPartition) -> "PartitionWrite":
        """Return the changes that make a new partition."""
        return cls(stored.key, stored.start_offset, [], stored.finished, [], stored.counts)


class HoldStore(Protocol):
    """Durable ranges of one replica; its calls do not overlap."""

    @property
    def is_stale(self) -> bool:
        """Whether a write failed that may have been done: then `load` tells what is there."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether another process has taken over, or damage was found: it is of no use any more."""
        ...

    def check(self) -> None:
        """Make sure that this object alone writes what is stored; never waits.

        Raises:
            Unavailable: It is not certain at the moment, or not so any more.
        """
        ...

    def load(self) -> list[StoredPartition]:
        """Return all partitions; called before anything is written, and when `is_stale`.

        Raises:
            WingsError: They cannot be read.
        """
        ...

    def marks(self) -> dict[str, Mark]:
        """Return the marks of all groups, by UUID."""
        ...

    def write(self, writes: Sequence[PartitionWrite], marks: dict[str, Mark | None]) -> None:
        """Make changes, and marks of groups (None: no more), durable in one transaction.

        Raises:
            WingsError: Nothing was changed, and nothing of it will be there after a restart; or,
                where `is_stale` says so from now on, that is not known.
        """
        ...

    def forget(self, group_uuid: str) -> None:
        """Delete all of a group durably."""
        ...

    def close(self) -> None:
        """Close the store."""
        ...
