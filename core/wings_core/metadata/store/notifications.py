"""What a transaction changed, for the waiters to be woken by it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from wings_core.metadata.waiters import Waiters
from wings_core.partitions import Partition


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class Notification:
    """What waiters may want to look at again."""

    ends: Mapping[tuple[str, Partition], int] = field(
        default_factory=dict[tuple[str, Partition], int]
    )
    """The next offset of partitions written to, by topic UUID and partition."""
    topics: tuple[str, ...] = ()
    """UUIDs of topics that were deleted, or of which any partition was written to."""
    everything: bool = False
    """Whether any partition of any topic may have been written to."""

    def wake(self, waiters: Waiters) -> None:
        """Call back the waiters that any of it concerns."""
        if self.everything:
            waiters.notify_all()
        if self.ends:
            waiters.notify(self.ends)
        for topic_uuid in self.topics:
            waiters.notify_deleted(topic_uuid)


def of_ends(ends: Mapping[tuple[str, Partition], int]) -> Notification | None:
    """Return the notification of a commit, None where it wrote nothing."""
    return Notification(ends) if ends else None
