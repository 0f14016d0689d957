"""What the last small commit to each followed partition brought, for those who follow it.

The rows of a push are what its followers are to get. Whoever follows the partition at the process
that was pushed to takes them as they came, in place of looking up, reading and decoding the page
that they were written to, which takes four fifths of the steps of a delivery.
"""

from dataclasses import dataclass

import pyarrow as pa

from wings_core.model import Accepted, CommitResult
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
    start_offset: int
    next_offset: int
    bytes: int
    """Of the page that they were written to."""
    told: int | None
    """`OffsetRegistry.told` once the commit was told of, if nothing else was meanwhile."""


@dataclass(slots=True)
class Followed:
    """A partition that is followed."""

    schema: pa.Schema
    """Of the rows that its followers want."""
    fields: pa.Schema
    """Those of the schema, without what is said of all of them."""
    latest: LatestRows | None = None


class Latest:
    """The partitions that are followed; all methods may be called from any thread."""

    def __init__(self) -> None:
        self._followed: Lru[tuple[str, Partition], Followed] = Lru(PLACES_MAX)

    def rows(
        self, topic_uuid: str, partition: Partition, offset: int, schema: pa.Schema
    ) -> LatestRows | None:
        """Return the rows of the last commit here, if they begin at an offset.

        Args:
            topic_uuid: The topic's.
            partition: It counts as followed from now on.
            offset: Where the caller reads on.
            schema: Of all columns, as the caller delivers them.
        """
        key = (topic_uuid, partition)
        followed = self._followed.get(key)
        if followed is None or not _is_same(followed.schema, schema):
            self._followed.put(key, Followed(schema, schema.remove_metadata()))
            return None
        latest = followed.latest
        return latest if latest is not None and latest.start_offset == offset else None

    def followed(self, topic_uuid: str, partition: Partition) -> Followed | None:
        """Return a partition where it is followed."""
        return self._followed.get((topic_uuid, partition))


def keep(
    followed: Followed, rows: pa.RecordBatch, size: int, result: CommitResult, told: int | None
) -> None:
    """Keep the rows of a commit for those who follow its partition.

    Args:
        followed: The partition.
        rows: All that the commit appended to it.
        size: The bytes of their page.
        result: Of the commit.
        told: `OffsetRegistry.told` before the commit.
    """
    followed.latest = None
    if not isinstance(result, Accepted) or result.replayed or size > BYTES_MAX:
        return
    if not _is_same(rows.schema.remove_metadata(), followed.fields):
        return
    (committed,) = result.committed
    # The commit was told of once, at the least. Where more was, who waits looks again.
    told = None if told is None else told + 1
    batch = pa.RecordBatch.from_arrays(rows.columns, schema=followed.schema)
    start, end = committed.start_offset, committed.end_offset
    followed.latest = LatestRows(batch, start, end + 1, size, told)


def _is_same(schema: pa.Schema, other: pa.Schema) -> bool:
    """Tell whether two schemas are the same in all that a reader sees."""
    return schema is other or schema.equals(other, check_metadata=True)
