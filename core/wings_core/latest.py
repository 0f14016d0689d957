"""The rows of the last small commit to each followed partition, for its followers.

Followers at the process that committed take the rows from the written page in memory instead of
looking up and reading it, which would take most of the time of a delivery.
"""

from dataclasses import dataclass

import pyarrow as pa

from wings_core.model import Accepted, CommitResult, Topic
from wings_core.partitions import Partition
from wings_core.storage.interfaces import EncodedPage
from wings_core.storage.lru import Lru

PLACES_MAX = 512
"""Most partitions whose last rows are kept."""

BYTES_MAX = 16 * 1024
"""Largest page kept; sending a larger one takes longer than reading it."""


@dataclass(slots=True)  # Not frozen: construction would take three times as long.
class LatestRows:
    """The rows that a commit appended to a partition."""

    message: bytes
    """Message of the page that they were written to. Not the producer's batch, whose buffers would
    keep its whole, possibly far larger, message in memory."""
    page_bytes: int
    start_offset: int
    next_offset: int
    timestamp: int
    """Timestamp of all rows, in microseconds since the epoch."""
    told: int | None
    """`OffsetRegistry.told` after this commit's notification, if there was no other in between."""
    _rows: pa.RecordBatch | None = None

    def rows(self, topic: Topic) -> pa.RecordBatch:
        """Return the rows, given the topic at the version that they were looked up for."""
        rows = self._rows
        if rows is None:
            rows = self._rows = pa.ipc.read_record_batch(pa.py_buffer(self.message), topic.schema)
        return rows


@dataclass(slots=True)
class Followed:
    """A followed partition."""

    topic: Topic
    """The topic at the version that its followers read."""
    latest: LatestRows | None = None


class Latest:
    """The followed partitions. Thread-safe."""

    def __init__(self) -> None:
        self._followed: Lru[tuple[str, Partition], Followed] = Lru(PLACES_MAX)

    def rows(self, topic: Topic, partition: Partition, offset: int) -> LatestRows | None:
        """Return the rows of the last commit of this process, if they begin at `offset`.

        Args:
            topic: The topic at the version that the caller delivers.
            partition: The partition, which counts as followed from now on.
            offset: The caller's next offset.
        """
        key = (topic.uuid, partition)
        followed = self._followed.get(key)
        if followed is None or followed.topic.schema_version != topic.schema_version:
            self._followed.put(key, Followed(topic))
            return None
        latest = followed.latest
        return latest if latest is not None and latest.start_offset == offset else None

    def followed(self, topic: Topic, partition: Partition) -> Followed | None:
        """Return a partition if it is followed at this version of the topic."""
        found = self._followed.get((topic.uuid, partition))
        if found is None or found.topic.schema_version != topic.schema_version:
            return None
        return found


def keep(followed: Followed, page: EncodedPage, result: CommitResult, told: int | None) -> None:
    """Keep the rows of a commit for the followers of its partition.

    Args:
        followed: The partition.
        page: The page of all appended rows.
        result: Result of the commit.
        told: Value of `OffsetRegistry.told` before the commit.
    """
    followed.latest = None
    if not isinstance(result, Accepted) or result.replayed or page.length > BYTES_MAX:
        return
    (committed,) = result.committed
    # At least one notification follows; after more than one, waiting readers look up again.
    told = None if told is None else told + 1
    followed.latest = LatestRows(
        page.message(),
        page.length,
        committed.start_offset,
        committed.end_offset + 1,
        committed.timestamp,
        told,
    )
