"""What the last small commit to each followed partition brought, for those who follow it.

The rows of a push are what its followers are to get. Whoever follows the partition at the process
that was pushed to takes them as they came, in place of looking up, reading and decoding the page
that they were written to, which takes four fifths of the steps of a delivery.
"""

from dataclasses import dataclass

import pyarrow as pa

from wings_core.model import Accepted, CommitResult, Topic
from wings_core.partitions import Partition
from wings_core.storage.lru import Lru

PLACES_MAX = 512
"""Partitions of which the last rows are kept."""

BYTES_MAX = 16 * 1024
"""Bytes of rows that are kept of one; more take longer to send than to read."""


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class LatestRows:
    """What a commit appended to a partition."""

    rows: pa.RecordBatch
    """Of the topic's types; what else is said of its columns may be the producer's."""
    start_offset: int
    next_offset: int
    bytes: int
    """Of the page that they were written to."""
    timestamp: int
    """That all of them bear, in microseconds since the epoch."""
    told: int | None
    """`OffsetRegistry.told` once the commit was told of, if nothing else was meanwhile."""


@dataclass(slots=True)
class Followed:
    """A partition that is followed."""

    topic: Topic
    """In the version that its followers read."""
    latest: LatestRows | None = None


class Latest:
    """The partitions that are followed; all methods may be called from any thread."""

    def __init__(self) -> None:
        self._followed: Lru[tuple[str, Partition], Followed] = Lru(PLACES_MAX)

    def rows(self, topic: Topic, partition: Partition, offset: int) -> LatestRows | None:
        """Return the rows of the last commit here, if they begin at an offset.

        Args:
            topic: In the version that the caller delivers.
            partition: It counts as followed from now on.
            offset: Where the caller reads on.
        """
        key = (topic.uuid, partition)
        followed = self._followed.get(key)
        if followed is None or followed.topic.schema_version != topic.schema_version:
            self._followed.put(key, Followed(topic))
            return None
        latest = followed.latest
        return latest if latest is not None and latest.start_offset == offset else None

    def followed(self, topic: Topic, partition: Partition) -> Followed | None:
        """Return a partition where it is followed, in this version of the topic."""
        found = self._followed.get((topic.uuid, partition))
        if found is None or found.topic.schema_version != topic.schema_version:
            return None
        return found


def keep(
    followed: Followed, rows: pa.RecordBatch, size: int, result: CommitResult, told: int | None
) -> None:
    """Keep the rows of a commit for those who follow its partition.

    Args:
        followed: The partition.
        rows: All that the commit appended to it, of the topic's types.
        size: The bytes of their page.
        result: Of the commit.
        told: `OffsetRegistry.told` before the commit.
    """
    followed.latest = None
    if not isinstance(result, Accepted) or result.replayed or size > BYTES_MAX:
        return
    (committed,) = result.committed
    # The commit was told of once, at the least. Where more was, who waits looks again.
    told = None if told is None else told + 1
    start, end = committed.start_offset, committed.end_offset
    followed.latest = LatestRows(rows, start, end + 1, size, committed.timestamp, told)
