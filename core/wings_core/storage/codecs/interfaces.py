"""What a format of pages must do: read some columns of some rows, check a page, encode rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from wings_core.errors import StorageCorrupt
from wings_core.model import Location, PageAddress, Topic
from wings_core.storage.interfaces import EncodedPage, FolioStore


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns and rows of pages that a reader asks for."""

    columns: Sequence[int] | None = None
    """Indices into the topic's schema, in the order wanted; None for all."""
    start_offset: int = 0
    """Rows before this offset are left out."""
    stop_offset: int | None = None
    """Rows from this offset on are left out; None: none are."""
    timestamps: bool = False
    """Whether each row's timestamp is needed: where not, the page's serves for all."""

    def part_of(self, location: Location) -> tuple[int, int]:
        """Return the index in a location of the first row wanted, and their number."""
        start = max(self.start_offset, location.start_offset)
        stop = location.end_offset + 1
        if self.stop_offset is not None:
            stop = min(self.stop_offset, stop)
        return start - location.start_offset, max(0, stop - start)


class PageRows(NamedTuple):  # Not a frozen dataclass, which would take three times as long to make.
    """The wanted rows of one page."""

    rows: pa.RecordBatch
    """Of the wanted columns of the topic."""
    timestamps: "int | pa.Array[Any]"
    """One for all rows, or one for each; in microseconds since the epoch."""
    page_bytes: int
    """About so many bytes that all rows of the page take in memory, in the columns that were read
    at least."""


class PageCodec(Protocol):
    """One format of pages; without state that a page depends on, for all threads."""

    def read(
        self, store: FolioStore, topic: Topic, locations: Sequence[Location], wanted: Wanted
    ) -> Iterator[PageRows]:
        """Yield the wanted rows of each page, in the order given.

        Args:
            store: Where the pages lie.
            topic: Whose pages they are.
            locations: All of this format.
            wanted: Of each page, at least one row.

        Raises:
            StorageCorrupt: A page is damaged, missing, or has another number of rows than metadata
                says; raised where its rows would come.
            Unavailable: Storage cannot be reached.
        """
        ...

    def check(self, store: FolioStore, topic: Topic, address: PageAddress) -> pa.RecordBatch:
        """Return all rows of a page, in the topic's columns, once all of its bytes were verified.

        Raises:
            StorageCorrupt: Bytes are damaged, or the page breaks a rule of its format.
            Unavailable: Storage cannot be reached.
        """
        ...


class PushEncoder(Protocol):
    """Encodes pushed rows of one topic as pages, for one thread."""

    def encode(self, batch: pa.RecordBatch) -> EncodedPage:
        """Return rows of one partition as a page.

        The page of a large batch refers to its buffers, which must not change.
        """
        ...


class PushCodec(PageCodec, Protocol):
    """A format in which pushed rows are stored."""

    def encoder(self, topic_uuid: str, schema: pa.Schema) -> PushEncoder:
        """Return what encodes rows of a topic.

        Raises:
            InvalidSchema: A column's type cannot be stored.
        """
        ...


class TimedCodec(PageCodec, Protocol):
    """A format in which rows of many pushes are stored: each row has its own timestamp."""

    def schema(self, topic: Topic) -> pa.Schema:
        """Return the schema of its pages: the columns of the topic, then each timestamp.

        The same object each time, for as long as the topic's schema is.
        """
        ...

    def encoder(self, topic: Topic) -> PushEncoder:
        """Return what encodes rows of `schema`."""
        ...


class MergedFile(Protocol):
    """A file of merged pages, written in memory, for one thread."""

    @property
    def schema(self) -> pa.Schema:
        """Of the batches written: the topic's columns, and each row's timestamp as the last."""
        ...

    @property
    def length(self) -> int:
        """The number of bytes so far."""
        ...

    def write(self, batch: pa.RecordBatch) -> tuple[int, int]:
        """Append rows of `schema` as a page; return its position and length in the file.

        Raises:
            pa.ArrowInvalid: The format cannot hold a value.
        """
        ...

    def finish(self) -> list[bytes | memoryview]:
        """Return the whole file, in parts that follow one another."""
        ...


class MergeCodec(PageCodec, Protocol):
    """A format in which maintenance stores merged pages: each row has its own timestamp."""

    suffix: str
    """Of the names of its files, after what says where they are."""

    def begin_file(self, topic: Topic, about: Mapping[str, str]) -> MergedFile:
        """Begin a file for pages of one partition, whose offsets follow one another.

        Args:
            topic: Whose rows they are, in the columns and types of its schema.
            about: Stored with the schema, for other readers of the file: `wings.topic_uuid`,
                `wings.start_offset` and others.

        Raises:
            InvalidSchema: The format has no type for a column.
        """
        ...


def slices_by_page(locations: Sequence[Location]) -> list[list[Location]]:
    """Return the locations, neighbouring slices of a page together: it is read once."""
    pages: list[list[Location]] = []
    for location in locations:
        if location.first_row is not None and pages and pages[-1][-1].address == location.address:
            pages[-1].append(location)
        else:
            pages.append([location])
    return pages


def rows_of(topic: Topic, location: Location, page: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of a location out of its page, without a copy.

    Raises:
        StorageCorrupt: The page has not as many rows as metadata says.
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
