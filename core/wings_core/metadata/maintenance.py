"""Maintenance: retention, merged pages, files of tables, and the leases under which they change."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from operator import add, attrgetter, sub
from typing import Protocol

from wings_core.errors import InvalidArgument
from wings_core.model import (
    Expired,
    InlineBacklog,
    LargestTopics,
    Location,
    PageFormat,
    Replacement,
    TierState,
    TopicState,
)
from wings_core.partitions import Partition


@dataclass(frozen=True, slots=True)
class MaintenanceLease:
    """A granted lease."""

    name: str
    holder: str
    token: int


@dataclass(frozen=True, slots=True)
class Finished:
    """Progress of a topic's share groups in a partition, at one time."""

    before: int
    """Every group has finished all offsets that are less."""
    groups: frozenset[str]
    """The UUIDs of all groups."""


KEEPS_FOLIOS = "backup/"
"""How the names of leases begin while one of which no folio is retired."""


class Maintenance(Protocol):
    """Expires old pages, replaces pages by merged ones, and grants leases."""

    def acquire_lease(self, name: str, holder: str, seconds: float) -> int | None:
        """Acquire a lease, or renew the holder's own; by the store's clock.

        Where that was set back, another's lease lasts no longer than `seconds` from the first call
        that it refuses.

        Args:
            name: Name of the lease.
            holder: Unique for the process, or the task, that acquires it.
            seconds: How long it lasts from now.

        Returns:
            Its token: the same while the holder renews it in time, another after that. None where
            another holder has it.
        """
        ...

    def lease_holder(self, name: str) -> str | None:
        """Return the holder of a lease; None: it has ended, or was never acquired."""
        ...

    def release_lease(self, name: str, holder: str) -> None:
        """Release a lease; does nothing where the holder's has expired."""
        ...

    def expire(
        self,
        topic_uuid: str,
        partition: Partition,
        *,
        age_us: int | None,
        bytes_kept: int | None,
        finished: Finished | None = None,
        outside_tables: bool = False,
        before_offset: int = 0,
        pages_max: int,
    ) -> Expired:
        """Drop the oldest pages of a partition, in one durable transaction: the log starts later.

        A page goes as a whole: when the last of its messages is older than `age_us`, when the
        pages after it have `bytes_kept` together, when every group has finished it, or when all its
        offsets are less than `before_offset`. A page that has `before_offset` within becomes the
        slice of it from there on; of a Parquet file all pages go or none, as a table has it whole.
        Offsets are never used again, and timestamps go on from the last one, also where no page is
        left.

        Args:
            topic_uuid: The topic.
            partition: One that need not have been written to yet.
            age_us: In microseconds, by the store's clock; None: no page is too old.
            bytes_kept: In stored bytes; None: any number is kept.
            finished: Progress of the topic's groups. Without effect where by now others are there,
                or one was moved. None: no page goes for being finished.
            outside_tables: Without any effect where a table has rows of a page that would go, or is
                about to have them: see `TableStates.plan`.
            before_offset: Offset before which messages are deleted on request.
            pages_max: At most so many pages go; if as many did, more may be due.

        Raises:
            TopicNotFound: The topic was deleted.
        """
        ...

    def replace(
        self,
        topic_uuid: str,
        partition: Partition,
        old: Sequence[Location],
        new: Sequence[Location],
        lease: MaintenanceLease,
    ) -> bool:
        """Put pages into the place of those of one partition; see `replace_all`."""
        replacement = Replacement(topic_uuid, partition, tuple(old), tuple(new))
        return self.replace_all([replacement], lease)[0]

    def replace_all(
        self, replacements: Sequence[Replacement], lease: MaintenanceLease
    ) -> list[bool]:
        """Put pages into the place of those whose messages they hold, in one transaction.

        Args:
            replacements: Replacements in any partitions; those in one do not overlap. The old pages
                of each are all of a range of offsets, as `locate` said, at most `REPLACED_MAX`
                over all; the new ones are of the same range, durable, and of a format with a
                timestamp for each row, so that they have a first timestamp.
            lease: The one under which the new pages were written, which must not have ended since.

        Returns:
            False for a replacement of which nothing is changed, since one of the old pages or the
            topic was changed or deleted meanwhile; False for all where the lease was lost.

        Raises:
            InvalidArgument: The pages are not of one and the same range.
            Internal: A folio of the new pages was retired meanwhile; nothing is changed.
        """
        ...

    def inline_backlog(self, pages_max: int) -> InlineBacklog:
        """Return the pages that metadata keeps inline, to be drained.

        Args:
            pages_max: The first so many, by partition and offset.
        """
        ...

    def tier_states(
        self,
        topic_uuid: str,
        *,
        after: Partition | None = None,
        partitions_max: int | None = None,
    ) -> list[TierState]:
        """Return what a topic's partitions have in each tier, by value, the hot tier first.

        Tiers without a page are left out. Looks at the partitions, and at no page.

        Args:
            topic_uuid: The topic.
            after: Only of partitions whose JSON text is greater; None: of all.
            partitions_max: Most partitions that have pages, those whose text is least; None: all.

        Raises:
            TopicNotFound: The topic was deleted.
        """
        ...

    def topic_state(self, topic_uuid: str) -> TopicState:
        """Return the sums over a topic's partitions, and when it was written to last.

        Looks at the partitions, and at no page.

        Raises:
            TopicNotFound: The topic was deleted.
        """
        ...

    def largest_topics(self, topics_max: int, grouped_max: int) -> LargestTopics:
        """Return the topics with most stored bytes, the sums of all others, and who has groups.

        Looks at all partitions, and at no page.

        Args:
            topics_max: The most topics that are told of one by one.
            grouped_max: The most that are named as they have share groups.
        """
        ...


REPLACED_MAX = 20_000
"""The most pages that one transaction takes the place of."""

_TIMED = (PageFormat.SEGMENT, PageFormat.DRAINED, PageFormat.PARQUET)


def check_replacements(replacements: Sequence[Replacement]) -> None:
    """Check that pages hold the same offsets and timestamps as those that they replace.

    Raises:
        InvalidArgument: They do not, or there are more than `REPLACED_MAX`.
    """
    for pages in ([each.old for each in replacements], [each.new for each in replacements]):
        if sum(map(len, pages)) > REPLACED_MAX:
            raise InvalidArgument(f"at most {REPLACED_MAX} pages can be replaced at once")
    reach: dict[tuple[str, Partition], int] = {}
    for each in sorted(replacements, key=lambda each: each.old[0].start_offset if each.old else 0):
        _check_replacement(each.old, each.new)
        key = (each.topic_uuid, each.partition)
        if reach.get(key, -1) >= each.old[0].start_offset:
            raise InvalidArgument("two replacements in a partition overlap")
        reach[key] = each.old[-1].end_offset


def _check_replacement(old: Sequence[Location], new: Sequence[Location]) -> None:
    for pages in (old, new):
        if not pages or any(
            page.end_offset + 1 != after.start_offset for page, after in pairwise(pages)
        ):
            raise InvalidArgument("the pages are not one range of offsets without gaps")
    if (old[0].start_offset, old[-1].end_offset) != (new[0].start_offset, new[-1].end_offset):
        raise InvalidArgument("the new pages hold other offsets than the old ones")
    if any(
        page.rows < 1 or page.first_timestamp is None or page.format not in _TIMED for page in new
    ):
        raise InvalidArgument(
            "a page that replaces others has rows, and a timestamp for each of them"
        )
    earliest = old[0].earliest_timestamp
    # Rows deleted from the start of a page leave it their timestamp.
    latest = earliest if old[0].first_row is None else old[0].timestamp
    if not earliest <= new[0].earliest_timestamp <= latest or (
        new[-1].timestamp != old[-1].timestamp
    ):
        raise InvalidArgument("the new pages have other timestamps than the old ones")


def expired_pages(
    pages: Iterable[tuple[int, int, int]],
    size: int,
    before: int | None,
    bytes_kept: int | None,
    finished_before: int = 0,
) -> int:
    """Return how many of a partition's oldest pages have expired.

    Args:
        pages: Timestamp and offset of the last message and length in bytes of each, in order of
            offset.
        size: Bytes of all pages of the partition.
        before: Pages older than this have expired, in microseconds since the epoch; None: none.
        bytes_kept: Pages expire while those after them have so many bytes; None: none.
        finished_before: Pages whose offsets are all less have expired.
    """
    count = 0
    for timestamp, end_offset, length in pages:
        too_old = before is not None and timestamp < before
        too_many = bytes_kept is not None and size - length >= bytes_kept
        finished = end_offset < finished_before
        if not too_old and not too_many and not finished:
            break
        size -= length
        count += 1
    return count


@dataclass(frozen=True, slots=True)
class PageCounts:
    """Numbers of pages, their rows and bytes, and of the merged ones among them."""

    pages: int = 0
    rows: int = 0
    bytes: int = 0
    merged_pages: int = 0
    merged_rows: int = 0
    merged_bytes: int = 0

    @classmethod
    def of(cls, pages: Iterable[tuple[int, int, PageFormat]]) -> "PageCounts":
        """Count pages, each given as `(rows, bytes, format)`."""
        counts = [0] * 6
        for rows, size, format_ in pages:
            # A merged page counts among all, and among the merged ones.
            for first in (0, 3) if format_.is_merged else (0,):
                counts[first] += 1
                counts[first + 1] += rows
                counts[first + 2] += size
        return cls(*counts)

    @classmethod
    def of_locations(cls, locations: Sequence[Location]) -> "PageCounts":
        """Count the pages of locations."""
        return cls.of([(page.rows, page.bytes, page.format) for page in locations])

    def __add__(self, other: "PageCounts") -> "PageCounts":
        """Return the counts of both."""
        return PageCounts(*map(add, _counts_of(self), _counts_of(other)))

    def __sub__(self, other: "PageCounts") -> "PageCounts":
        """Return the differences of the counts."""
        return PageCounts(*map(sub, _counts_of(self), _counts_of(other)))

    def tiers(self, partition: Partition) -> list[TierState]:
        """Return the counts of each tier that has pages, the hot one first."""
        hot = self.pages - self.merged_pages
        found: list[TierState] = []
        if hot:
            rows, size = self.rows - self.merged_rows, self.bytes - self.merged_bytes
            found.append(TierState(partition, False, hot, rows, size))
        if self.merged_pages:
            found.append(
                TierState(partition, True, self.merged_pages, self.merged_rows, self.merged_bytes)
            )
        return found


_counts_of = attrgetter(*(each.name for each in fields(PageCounts)))


@dataclass(frozen=True, slots=True)
class TableSegment:
    """A file of a table."""

    folio: str
    partition: Partition
    end_offset: int
    """The last of its rows, inclusive."""
    rows: int
    added: int
    """The number of the commit that puts it into the table."""
    removed: int | None = None
    """The number of the commit that takes it out; None: it stays."""


class TableStates(Protocol):
    """Remembers the files of tables, and keeps those from being deleted, until it is told else.

    A commit has its number here before it is made, so that after a crash the next node makes the
    same one again, or finds it made.
    """

    def tables(self) -> Mapping[str, str]:
        """Return the identifier of each table, by the UUID of its topic, deleted ones too."""
        ...

    def begin(self, topic_uuid: str, identifier: str) -> int:
        """Remember that a topic is a table; return the last commit known to be made, 0 for none."""
        ...

    def segments(self, topic_uuid: str) -> list[TableSegment]:
        """Return what is known of the files of a table, by name."""
        ...

    def plan(
        self,
        topic_uuid: str,
        number: int,
        add: Sequence[TableSegment],
        remove: Sequence[str],
        lease: MaintenanceLease,
    ) -> bool:
        """Say what the commit of a number will do, in one transaction.

        Returns:
            False where nothing was changed: the lease was lost, or a file to add is no longer one
            of the log's.
        """
        ...

    def confirm(self, topic_uuid: str, number: int) -> None:
        """Say that a commit is made: files that it took out may be deleted."""
        ...

    def adopt(
        self,
        topic_uuid: str,
        number: int,
        segments: Sequence[TableSegment],
        lease: MaintenanceLease,
    ) -> bool:
        """Replace all that is known of a table's files; False where the lease was lost.

        Args:
            topic_uuid: Topic of the table.
            number: Number of its last commit.
            segments: Its files.
            lease: Under which it was looked at.
        """
        ...

    def forget(self, topic_uuid: str) -> None:
        """Forget a table and its files."""
        ...
