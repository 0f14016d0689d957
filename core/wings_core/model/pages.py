"""Pages: their addresses, formats, and offsets."""

from dataclasses import dataclass
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
        return self in {PageFormat.SEGMENT, PageFormat.PARQUET}

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


@dataclass(frozen=True, slots=True)
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
