"""What moves old pages, and drops those that are kept no longer."""

from typing import Protocol

from wings_core.model import Expired
from wings_core.partitions import Partition


class Maintenance(Protocol):
    """What changes where old pages are, and whether they are still kept."""

    def acquire_lease(self, name: str, holder: str, seconds: float) -> int | None:
        """Take a lease, or prolong one's own; by the store's clock.

        Args:
            name: Of what is leased.
            holder: Unique for whoever takes it.
            seconds: How long it lasts from now.

        Returns:
            Its token: the same while the holder prolongs it in time, another after that. None where
            somebody else holds it.
        """
        ...

    def release_lease(self, name: str, holder: str) -> None:
        """Give a lease back; nothing happens where the holder has it no more."""
        ...

    def expire(
        self,
        topic_uuid: str,
        partition: Partition,
        *,
        age_us: int | None,
        bytes_kept: int | None,
        pages_max: int,
    ) -> Expired:
        """Drop the oldest pages of a partition, in one durable transaction: the log starts later.

        A page goes as a whole: when the last of its messages is older than `age_us`, or when the
        pages after it have `bytes_kept` together. Offsets are never used again, and timestamps go
        on from the last one, also where no page is left.

        Args:
            topic_uuid: The topic.
            partition: One that need not have been written to yet.
            age_us: In microseconds, by the store's clock; None: no page is too old.
            bytes_kept: In stored bytes; None: any number is kept.
            pages_max: At most so many pages go; if as many did, more may be due.

        Raises:
            TopicNotFound: The topic was deleted.
        """
        ...
