"""Pages: where they lie, how their bytes hold rows, and which offsets those have."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, NamedTuple, NoReturn

from wings_core.errors import Internal
from wings_core.names import TopicName
from wings_core.partitions import Partition

INLINE_SUFFIX = ".inline"
"""Of the names of folios that metadata keeps itself."""

INLINE_FOLIOS_MAX = 32
"""So many of them are read at once."""

LOST_FOLIO = "lost"
"""The file that pages lie in, as metadata says after a repair, of which nothing is left."""


StoreRole = Literal["hot", "remote"]
"""What an object store of a log is for."""


STORE_MESSAGES: dict[StoreRole, str] = {"hot": "new", "remote": "old"}
"""Which messages it has."""


class PageAddress(NamedTuple):
    """Where a page lies: bytes `[position, position + length)` of a folio or segment file."""

    folio: str
    position: int
    length: int

    @property
    def pushed_format(self) -> "PageFormat":
        """The format of a page that was pushed to this place."""
        return PageFormat.INLINE if self.folio.endswith(INLINE_SUFFIX) else PageFormat.PLAIN


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class InlineFolio:
    """The pages of a small flush, kept by metadata in the transaction that assigns offsets."""

    name: str
    """Ends in `INLINE_SUFFIX`."""
    data: bytes
    """All of its pages, one after another."""


class PageFormat(IntEnum):
    """How a page's bytes hold its rows; metadata stores the number, which never changes."""

    PLAIN = 1
    """As pushed: one Arrow IPC message, uncompressed; all rows have the page's timestamp."""
    SEGMENT = 2
    """Merged from other pages: one compressed Arrow IPC message in a segment file, with a timestamp
    for each row in a last column of its own."""
    INLINE = 3
    """As PLAIN, in a folio that metadata keeps until it is drained."""
    DRAINED = 4
    """Gathered from pages that were inline: as PLAIN, with a timestamp for each row in a last
    column of its own."""
    PARQUET = 5
    """As SEGMENT, but a row group of a Parquet file."""

    @property
    def is_merged(self) -> bool:
        """Whether maintenance wrote such pages, into the remote store, out of others."""
        return self in {PageFormat.SEGMENT, PageFormat.PARQUET}

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise Internal(f"a page has format {value}, which only a later version of Wings reads")


_FORMATS = {int(each): each for each in PageFormat}


def page_format(number: int) -> PageFormat:
    """Return the format of a number out of metadata; quicker than the enumeration's own look-up.

    Raises:
        Internal: Only a later version knows it.
    """
    return _FORMATS.get(number) or PageFormat(number)


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class StoredPage:
    """Rows of one partition that are durable and wait for their offsets."""

    partition: Partition
    rows: int
    address: PageAddress
    first_row: int | None = None
    """Where they begin in the page (0-based), if they are a slice of it; None: all of it."""
    slice_bytes: int | None = None
    """The slice's share of the page's bytes; None: all of it."""
    schema_version: int = 1
    """Of the topic's schema, in which the page is written."""

    @property
    def bytes(self) -> int:
        """Stored bytes of the rows."""
        return self.address.length if self.slice_bytes is None else self.slice_bytes

    def joined(self, page: "StoredPage") -> "StoredPage | None":
        """Return these rows and those of the slice that follows, None where `page` is not that."""
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
    """The offsets `[start_offset, end_offset]`, and where their rows lie: a page or a slice."""

    start_offset: int
    end_offset: int
    timestamp: int
    """Of the last row of the page, in microseconds since the epoch; never before the others'."""
    address: PageAddress
    first_timestamp: int | None = None
    """Of the first row; None: every row has `timestamp`."""
    format: PageFormat = PageFormat.PLAIN
    first_row: int | None = None
    """Where the rows begin in the page (0-based), if they are a slice of it; None: all of it."""
    slice_bytes: int | None = None
    """The slice's share of the page's bytes; None: all of it."""
    schema_version: int = 1
    """Of the topic's schema, in which the page is written."""

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
        """The timestamp of its first row, in microseconds since the epoch."""
        return self.timestamp if self.first_timestamp is None else self.first_timestamp


@dataclass(frozen=True, slots=True)
class InlinePage:
    """A page that is to be drained, and whose it is."""

    topic: TopicName
    topic_uuid: str
    partition: Partition
    location: Location


@dataclass(frozen=True, slots=True)
class InlineBacklog:
    """What metadata keeps inline."""

    pages: tuple[InlinePage, ...]
    """The first of those that are visible, by partition and offset."""
    bytes: int
    """Of all inline folios, in stages too."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """Pages of a partition, and those of the same offsets that take their place."""

    topic_uuid: str
    partition: Partition
    old: tuple[Location, ...]
    new: tuple[Location, ...]
