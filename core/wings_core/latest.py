"""What the last small commit to each followed partition brought, for those who follow it.

Those who follow the partition at the process that was pushed to take them out of the page as it was
written, in place of looking up and reading it, which takes most of the steps of a delivery.
"""

from dataclasses import dataclass

import pyarrow as pa

from wings_core.model import Accepted, CommitResult, Topic
from wings_core.partitions import Partition
from wings_core.storage.interfaces import EncodedPage
from wings_core.storage.lru import Lru

PLACES_MAX = 512
"""Partitions of which the last rows are kept."""

BYTES_MAX = 16 * 1024
"""Bytes of the page that is kept of one; more take longer to send than to read."""


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class LatestRows:
    """What a commit appended to a partition."""

    message: bytes
    """Of the page that they were written to. Not the producer's batch, whose buffers are parts of
    the message that it came in: that may be far larger."""
    page_bytes: int
    start_offset: int
    next_offset: int
    timestamp: int
    """That all of them bear, in microseconds since the epoch."""
    told: int | None
    """`OffsetRegistry.told` once the commit was told of, if nothing else was meanwhile."""
    _rows: pa.RecordBatch | None = None

    def rows(self, topic: Topic) -> pa.RecordBatch:
        """Return the rows, in the version of the topic that they were found for."""
        rows = self._rows
        if rows is None:
            rows = self._rows = pa.ipc.read_record_batch(pa.py_buffer(self.message), topic.schema)
        return rows


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


def keep(followed: Followed, page: EncodedPage, result: CommitResult, told: int | None) -> None:
    """Keep the rows of a commit for those who follow its partition.

    Args:
        followed: The partition.
        page: All that the commit appended to it.
        result: Of the commit.
        told: `OffsetRegistry.told` before the commit.
    """
    followed.latest = None
    if not isinstance(result, Accepted) or result.replayed or page.length > BYTES_MAX:
        return
    (committed,) = result.committed
    # The commit was told of once, at the least. Where more was, who waits looks again.
    told = None if told is None else told + 1
    followed.latest = LatestRows(
        page.message(),
        page.length,
        committed.start_offset,
        committed.end_offset + 1,
        committed.timestamp,
        told,
    )
