"""Pages and partitions: addresses, formats and offsets, states, located pages, and totals."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, NamedTuple, NoReturn

from wings_core.errors import Internal
from wings_core.names import TopicName
from wings_core.partitions import Partition

INLINE_SUFFIX = ".inline"
"""Suffix of inline folios, which metadata stores."""

INLINE_FOLIOS_MAX = 32
"""Most inline folios per read."""

LOST_FOLIO = "lost"
"""Folio name that a repair gives to lost pages."""


StoreRole = Literal["hot", "remote"]
"""Role of an object store of a log."""


STORE_MESSAGES: dict[StoreRole, str] = {"hot": "new", "remote": "old"}
"""Word for the messages in the store of each role."""


class PageAddress(NamedTuple):
    """Address of a page: bytes `[position, position + length)` of a folio or segment file."""

    folio: str
    position: int
    length: int

    @property
    def pushed_format(self) -> "PageFormat":
        """Format of a pushed page at this address."""
        return PageFormat.INLINE if self.folio.endswith(INLINE_SUFFIX) else PageFormat.PLAIN


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class InlineFolio:
    """The pages of a small flush, stored by the metadata transaction that assigns their offsets."""

    name: str
    """Name, with the suffix `INLINE_SUFFIX`."""
    data: bytes
    """All of its pages, concatenated."""


class PageFormat(IntEnum):
    """Formats of pages; metadata stores the numbers, which never change."""

    PLAIN = 1
    """Rows as pushed: one uncompressed Arrow IPC message, with one timestamp for the page."""
    SEGMENT = 2
    """Merged from other pages: one compressed Arrow IPC message in a segment file, with a timestamp
    for each row in a last column of its own."""
    INLINE = 3
    """PLAIN in an inline folio, which metadata stores until it is drained."""
    DRAINED = 4
    """Gathered from inline pages: PLAIN with a last column for the timestamp of each row."""
    PARQUET = 5
    """Merged from other pages: a row group of a Parquet file."""

    @property
    def is_merged(self) -> bool:
        """Whether tiering writes such pages to the remote store."""
        return self is PageFormat.SEGMENT or self is PageFormat.PARQUET

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise Internal(f"a page has format {value}, which needs a later version of Wings")


_FORMATS = {int(each): each for each in PageFormat}


def page_format(number: int) -> PageFormat:
    """Return the format of a number in metadata; faster than the enumeration's own look-up.

    Raises:
        Internal: The format belongs to a later version.
    """
    return _FORMATS.get(number) or PageFormat(number)


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class StoredPage:
    """Durable rows of one partition that have no offsets yet."""

    partition: Partition
    rows: int
    address: PageAddress
    first_row: int | None = None
    """First row of a slice of the page (0-based); None for the whole page."""
    slice_bytes: int | None = None
    """The slice's share of the page's bytes; None for the whole page."""
    schema_version: int = 1
    """Version of the topic's schema that the page is written in."""

    @property
    def bytes(self) -> int:
        """Stored bytes of the rows."""
        return self.address.length if self.slice_bytes is None else self.slice_bytes

    def joined(self, page: "StoredPage") -> "StoredPage | None":
        """Return these rows joined with those of `page`; None unless it is the following slice."""
        if self.first_row is None or page.first_row != self.first_row + self.rows:
            return None
        if page.address != self.address or page.partition != self.partition:
            return None
        size = self.bytes + page.bytes
        return StoredPage(
            self.partition,
            self.rows + page.rows,
            self.address,
            self.first_row,
            size,
            self.schema_version,
        )


class Location(NamedTuple):
    """Offsets `[start_offset, end_offset]`, and the page or slice that holds their rows."""

    start_offset: int
    end_offset: int
    timestamp: int
    """Timestamp of the last row, the latest of the page, in microseconds since the epoch."""
    address: PageAddress
    first_timestamp: int | None = None
    """Timestamp of the first row, or of one before it that was deleted; None if every row has
    `timestamp`."""
    format: PageFormat = PageFormat.PLAIN
    first_row: int | None = None
    """First row of a slice of the page (0-based); None for the whole page."""
    slice_bytes: int | None = None
    """The slice's share of the page's bytes; None for the whole page."""
    schema_version: int = 1
    """Version of the topic's schema that the page is written in."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.end_offset - self.start_offset + 1

    @property
    def bytes(self) -> int:
        """Stored bytes of the rows."""
        return self.address.length if self.slice_bytes is None else self.slice_bytes

    @property
    def earliest_timestamp(self) -> int:
        """Timestamp of the first row, in microseconds since the epoch."""
        return self.timestamp if self.first_timestamp is None else self.first_timestamp


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class InlinePage:
    """A page to drain, with its topic and partition."""

    topic: TopicName
    topic_uuid: str
    partition: Partition
    location: Location


@dataclass(frozen=True, slots=True)
class InlineBacklog:
    """The inline pages of metadata."""

    pages: tuple[InlinePage, ...]
    """First visible pages, ordered by partition and offset."""
    bytes: int
    """Bytes of all inline folios, staged ones included."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """Pages of a partition, and the pages of the same offsets that replace them."""

    topic_uuid: str
    partition: Partition
    old: tuple[Location, ...]
    new: tuple[Location, ...]


class PartitionState(NamedTuple):
    """State of a partition."""

    partition: Partition
    log_start_offset: int
    next_offset: int
    bytes: int
    """Stored bytes of all pages."""
    last_timestamp: int | None
    """Timestamp of the last message in microseconds since the epoch; None before the first one."""


@dataclass(frozen=True, slots=True)
class Located:
    """Result of `OffsetRegistry.locate`, consistent at one moment."""

    locations: tuple[Location, ...]
    """Consecutive locations; the first contains the offset asked for. Empty at the log's end."""
    log_start_offset: int
    log_end_offset: int
    asked_at: float | None = field(default=None, compare=False)
    """Monotonic time of the look-up's start if it may precede the call, so that it may lack later
    commits. None if it started after the call; minus infinity for a cached result while metadata
    cannot be reached."""


class LocatedPartition(NamedTuple):
    """Result of `OffsetRegistry.locate_many` for one partition."""

    state: PartitionState
    locations: tuple[Location, ...]
    """Locations as in `Located`; for an offset below the log's start, from the start on."""


@dataclass(frozen=True, slots=True)
class Position:
    """An offset in a partition that a reader waits at."""

    topic_uuid: str
    partition: Partition
    offset: int


@dataclass(frozen=True, slots=True)
class Expired:
    """Result of one retention step in a partition."""

    log_start_offset: int
    """New start offset of the log."""
    pages: int
    rows: int
    bytes: int


class TierState(NamedTuple):
    """Totals of a partition in one tier."""

    partition: Partition
    remote: bool
    """Whether this is the tier of merged pages, in the remote store."""
    pages: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PartitionSums:
    """Totals over partitions."""

    partitions: int = 0
    """Partitions that were written to."""
    messages: int = 0
    """Sum of their next offsets."""
    pages: int = 0
    rows: int = 0
    bytes: int = 0
    merged_pages: int = 0
    merged_rows: int = 0
    merged_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TopicSums:
    """A topic, and the totals over its partitions."""

    topic: TopicName
    topic_uuid: str
    sums: PartitionSums


@dataclass(frozen=True, slots=True)
class TopicState:
    """Result of `Maintenance.topic_state`, consistent at one moment."""

    sums: PartitionSums
    last_timestamp: int | None
    """Timestamp of the last message in microseconds since the epoch; None before the first one."""


@dataclass(frozen=True, slots=True)
class LargestTopics:
    """Result of `Maintenance.largest_topics`, consistent at one moment."""

    topics: tuple[TopicSums, ...]
    """Topics with the most stored bytes, in descending order of bytes."""
    others: int
    """Number of other topics."""
    of_others: PartitionSums
    grouped: tuple[TopicName, ...]
    """Topics with share groups, those with the most bytes."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A named consumer's position in a partition; `offset` is the next one to read."""

    topic: TopicName
    partition: Partition
    offset: int
    committed_at: int
    """Time of the commit in microseconds since the epoch."""
    note: str = ""
    """Text that was committed with it."""
