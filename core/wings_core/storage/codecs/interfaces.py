"""The interface of a page format: reads columns of rows, checks pages, encodes rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from wings_core.errors import StorageCorrupt
from wings_core.model import Location, PageAddress, Topic
from wings_core.storage.interfaces import EncodedPage, FolioStore


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns and rows of pages that a reader wants."""

    columns: Sequence[int] | None = None
    """Indices into the topic's schema, in the order to return; None for all."""
    start_offset: int = 0
    """First offset wanted."""
    stop_offset: int | None = None
    """End of the offsets wanted, exclusive; None for no end."""
    timestamps: bool = False
    """Whether the timestamp of each row is needed, not just that of its page."""

    def part_of(self, location: Location) -> tuple[int, int]:
        """Return the index in a location of the first wanted row, and the number of wanted rows."""
        if self.start_offset == 0 and self.stop_offset is None:
            return 0, location.rows
        start = max(self.start_offset, location.start_offset)
        stop = location.end_offset + 1
        if self.stop_offset is not None:
            stop = min(self.stop_offset, stop)
        return start - location.start_offset, max(0, stop - start)


class PageRows(NamedTuple):  # Not a frozen dataclass: construction would take three times as long.
    """The wanted rows of one page."""

    rows: pa.RecordBatch
    """Rows with the wanted columns."""
    timestamps: "int | pa.Array[Any]"
    """Timestamp of all rows, or of each; in microseconds since the epoch."""
    page_bytes: int
    """Approximate memory of all rows of the page, in at least the columns read."""


class PageCodec(Protocol):
    """A format of pages. Thread-safe; the encoding depends on no state."""

    def read(
        self, store: FolioStore, topic: Topic, locations: Sequence[Location], wanted: Wanted
    ) -> Iterator[PageRows]:
        """Yield the wanted rows of each page, in the order given.

        Args:
            store: Store of the pages.
            topic: Topic of the pages.
            locations: Locations of pages of this format.
            wanted: Columns and rows wanted: at least one row of each page.

        Raises:
            StorageCorrupt: A page is damaged, missing, or differs from metadata in its number of
                rows; raised in the place of its rows.
            Unavailable: Storage cannot be reached.
        """
        ...

    def check(self, store: FolioStore, topic: Topic, address: PageAddress) -> pa.RecordBatch:
        """Verify all bytes of a page; returns its rows in the topic's columns.

        Raises:
            StorageCorrupt: The page is damaged, or violates its format.
            Unavailable: Storage cannot be reached.
        """
        ...


class PushEncoder(Protocol):
    """An encoder of one topic's pushed rows as pages, for one thread."""

    def encode(self, batch: pa.RecordBatch) -> EncodedPage:
        """Encode rows of one partition as a page.

        The page of a large batch refers to its buffers, which must not change.
        """
        ...


class PushCodec(PageCodec, Protocol):
    """A format in which pushed rows are stored."""

    def encoder(self, topic_uuid: str, schema: pa.Schema) -> PushEncoder:
        """Return an encoder for rows of a topic.

        Raises:
            InvalidSchema: A column's type cannot be stored.
        """
        ...


class TimedCodec(PageCodec, Protocol):
    """A format for rows of many pushes, with a timestamp for each row."""

    def schema(self, topic: Topic) -> pa.Schema:
        """Return the schema of its pages: the topic's columns, then the timestamp.

        Returns the same object while the topic's schema is the same object.
        """
        ...

    def encoder(self, topic: Topic) -> PushEncoder:
        """Return an encoder for rows of `schema`."""
        ...


class MergedFile(Protocol):
    """A file of merged pages, built in memory by one thread."""

    @property
    def schema(self) -> pa.Schema:
        """Schema of the batches to write: the topic's columns, then the timestamp."""
        ...

    @property
    def length(self) -> int:
        """Bytes so far."""
        ...

    def write(self, batch: pa.RecordBatch) -> tuple[int, int]:
        """Append rows of `schema` as a page; returns its position and length in the file.

        Raises:
            pa.ArrowInvalid: The format cannot hold a value.
        """
        ...

    def finish(self) -> list[bytes | memoryview]:
        """Return the whole file as consecutive parts."""
        ...


class MergeCodec(PageCodec, Protocol):
    """A format for merged pages, with a timestamp for each row."""

    suffix: str
    """Suffix of its files, after the suffix that selects their store."""

    def begin_file(self, topic: Topic, about: Mapping[str, str]) -> MergedFile:
        """Begin a file for consecutive pages of one partition.

        Args:
            topic: Topic of the rows; its schema has their columns and types.
            about: Metadata of the schema, for other readers of the file: `wings.topic_uuid`,
                `wings.start_offset` and others.

        Raises:
            InvalidSchema: The format has no type for a column.
        """
        ...


def slices_by_page(locations: Sequence[Location]) -> list[list[Location]]:
    """Group locations: neighbouring slices of a page together, so that it is read once."""
    pages: list[list[Location]] = []
    for location in locations:
        if location.first_row is not None and pages and pages[-1][-1].address == location.address:
            pages[-1].append(location)
        else:
            pages.append([location])
    return pages


def rows_of(topic: Topic, location: Location, page: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of a location from its page, without a copy.

    Raises:
        StorageCorrupt: The page differs from metadata in its number of rows.
    """
    first = location.first_row
    if first is None and page.num_rows == location.rows:
        return page
    if first is not None and 0 <= first <= page.num_rows - location.rows:
        return page.slice(first, location.rows)
    address = location.address
    said = location.rows if first is None else f"at least {first + location.rows}"
    raise StorageCorrupt(
        f"a page of {topic.name} has {page.num_rows} rows where metadata says {said} "
        f"(file {address.folio}, position {address.position})",
        folio=address.folio,
        position=address.position,
    )
