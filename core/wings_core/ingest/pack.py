"""Packs the batches of a flush into pages: small batches of a topic share one.

Framing a page takes some 20 microseconds, and so does locating and verifying it, however few rows
it has; copying a row takes less than one. So the small batches of a topic in a flush become one
page, and the rows of a batch in one partition become a slice of it. Neighbouring slices of a
partition with one timestamp become one location (`metadata.judge`).
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import pyarrow as pa

from wings_core.ingest.prepare import SHARED_PAGE_BYTES, SHARED_PAGE_ROWS, PreparedBatch
from wings_core.model import PageAddress, StoredPage
from wings_core.partitions import Partition
from wings_core.storage.codecs import PUSHES
from wings_core.storage.interfaces import EncodedPage
from wings_core.storage.lru import BySchema
from wings_core.storage.page import PageEncoder

ENCODERS_KEPT_MAX = 1_024
"""Topics whose encoder is cached."""


_Span = tuple[int, int, int, int]
"""Position of neighbouring runs of a batch that share a page: index of the page in the flush, first
row in it (0-based), bytes of the runs before, and the number of runs."""


class _Unit(NamedTuple):
    """Rows of a batch that are packed next to each other."""

    batch: int
    """Index of the batch in the flush."""
    first_run: int
    runs: int
    partition: Partition
    """Partition of the first run."""
    rows: int
    bytes: int


class PackedFlush:
    """The pages of a flush, and the positions of the batches' runs in them.

    Attributes:
        pages: Pages, in the order of writing.
    """

    def __init__(self, batches: Sequence[PreparedBatch]) -> None:
        self.pages: list[EncodedPage] = []
        self._batches = batches
        self._spans: list[dict[int, _Span]] = [{} for _ in batches]
        """Spans of each batch, by the index of the first run."""
        self._sizes: list[int] = []
        """Approximate bytes of all runs in each page."""

    def add_encoded(self, index: int) -> None:
        """Add the pages of batch `index`, which is encoded already."""
        batch = self._batches[index]
        first = 0
        for page, runs in zip(batch.pages, batch.page_runs, strict=True):
            self._begin(page)
            self._place(index, first, runs, 0)
            first += runs

    def add_packed(self, page: EncodedPage, units: Iterable[_Unit]) -> None:
        """Add a page that holds the rows of units, in order."""
        self._begin(page)
        first_row = 0
        for unit in units:
            self._place(unit.batch, unit.first_run, unit.runs, first_row)
            first_row += unit.rows

    def stored(self, addresses: Sequence[PageAddress]) -> Iterator[tuple[StoredPage, ...]]:
        """Yield the stored pages of each batch, in order, given the pages' addresses."""
        pages = [
            (address, page.rows, size)
            for address, page, size in zip(addresses, self.pages, self._sizes, strict=True)
        ]
        for batch, spans in zip(self._batches, self._spans, strict=True):
            stored: list[StoredPage] = []
            version = batch.topic.schema_version
            for run, (number, first_row, end, runs) in sorted(spans.items()):
                address, page_rows, size = pages[number]
                length = address.length
                cut = length * end // size
                places = slice(run, run + runs)
                for (partition, rows), run_bytes in zip(
                    batch.runs[places], batch.run_bytes[places], strict=True
                ):
                    if rows == page_rows:
                        stored.append(StoredPage(partition, rows, address, None, None, version))
                        continue
                    # From the rounded start and end, so that the slices add up to the page.
                    end += run_bytes
                    begin, cut = cut, length * end // size
                    stored.append(
                        StoredPage(partition, rows, address, first_row, cut - begin, version)
                    )
                    first_row += rows
            yield tuple(stored)

    def _place(self, index: int, run: int, runs: int, first_row: int) -> None:
        """Record the position of a batch's runs from `run` on: in the last page."""
        self._spans[index][run] = len(self.pages) - 1, first_row, self._sizes[-1], runs
        self._sizes[-1] += sum(self._batches[index].run_bytes[run : run + runs])

    def _begin(self, page: EncodedPage) -> None:
        self.pages.append(page)
        self._sizes.append(0)


class Packer:
    """A packer of batches into pages, used by one thread at a time."""

    def __init__(self) -> None:
        self._encoders: BySchema[PageEncoder] = BySchema(
            lambda topic: PUSHES.encoder(topic.uuid, topic.schema), ENCODERS_KEPT_MAX
        )

    def only_page(self, batch: PreparedBatch) -> EncodedPage | None:
        """Return the page of a flush of one batch; None unless it is one page of one run."""
        if batch.pages or len(batch.runs) != 1:
            return None
        return self._encoders.get(batch.topic).encode(_merged(batch.parts))

    def pack(self, batches: Sequence[PreparedBatch]) -> PackedFlush:
        """Return the pages of a flush of `batches`."""
        packed = PackedFlush(batches)
        for index, batch in enumerate(batches):
            if batch.pages:
                packed.add_encoded(index)
        for group in _packed_together(batches):
            for units in _page_by_page(_by_partition(_units(batches, group))):
                self._add(packed, batches, units)
        return packed

    def _add(
        self, packed: PackedFlush, batches: Sequence[PreparedBatch], units: Sequence[_Unit]
    ) -> None:
        """Add the page that units of one topic and schema share."""
        rows: list[pa.RecordBatch] = []
        for unit in units:
            batch = batches[unit.batch]
            if batch.is_spread:
                rows.append(batch.parts[unit.first_run])
            else:
                rows += batch.parts
        encoder = self._encoders.get(batches[units[0].batch].topic)
        packed.add_packed(encoder.encode(_merged(rows)), units)


def _merged(rows: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return rows[0] if len(rows) == 1 else pa.concat_batches(rows)  # pyright: ignore[reportAttributeAccessIssue] - not in the stubs


def _packed_together(batches: Sequence[PreparedBatch]) -> Iterator[list[int]]:
    """Yield groups of small batches of one topic and schema, which share pages."""
    groups: dict[tuple[str, int], list[list[int]]] = {}
    for index, batch in enumerate(batches):
        if batch.pages or not batch.runs:
            continue
        key = batch.topic.uuid, batch.topic.schema_version
        same_topic = groups.setdefault(key, [])
        for group in same_topic:
            # Names inside lists, and nullability, may differ between producers.
            if batches[group[0]].parts[0].schema.equals(batch.parts[0].schema):
                group.append(index)
                break
        else:
            same_topic.append([index])
    for same_topic in groups.values():
        yield from same_topic


def _units(batches: Sequence[PreparedBatch], indices: Iterable[int]) -> Iterator[_Unit]:
    """Yield the units of batches: of joined ones of several partitions each is one."""
    for index in indices:
        batch = batches[index]
        if batch.is_spread:
            for run, (partition, rows) in enumerate(batch.runs):
                yield _Unit(index, run, 1, partition, rows, batch.run_bytes[run])
        else:
            partition = batch.runs[0][0]
            yield _Unit(index, 0, len(batch.runs), partition, batch.num_rows, batch.bytes)


def _page_by_page(units: Iterable[_Unit]) -> Iterator[list[_Unit]]:
    """Yield the units of each page, of about `SHARED_PAGE_BYTES` and `SHARED_PAGE_ROWS`."""
    page: list[_Unit] = []
    size = rows = 0
    for unit in units:
        size += unit.bytes
        rows += unit.rows
        if page and (size > SHARED_PAGE_BYTES or rows > SHARED_PAGE_ROWS):
            yield page
            page, size, rows = [], unit.bytes, unit.rows
        page.append(unit)
    if page:
        yield page


def _by_partition(units: Iterable[_Unit]) -> list[_Unit]:
    """Order units by partition, keeping the order within a partition.

    A batch of several partitions is placed with its first one.
    """
    grouped: dict[Partition, list[_Unit]] = {}
    for unit in units:
        grouped.setdefault(unit.partition, []).append(unit)
    return list(chain.from_iterable(grouped.values()))
