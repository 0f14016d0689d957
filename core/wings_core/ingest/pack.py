"""Pack the batches of a flush into pages: the small ones of a topic share one.

A page costs some 20 microseconds to frame, and as much to find and verify again, however few rows
it has; to copy a row costs less than one. So the small batches of a topic in one flush become one
page, and the rows that a batch has for a partition a slice of it. Neighbouring slices of a
partition with one timestamp become one location (`metadata.judge`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from wings_core.ingest.prepare import SHARED_PAGE_BYTES, PreparedBatch
from wings_core.model import PageAddress, StoredPage, Topic
from wings_core.partitions import Partition
from wings_core.storage.codecs import PUSHES, PushEncoder
from wings_core.storage.interfaces import EncodedPage
from wings_core.storage.lru import Lru

ENCODERS_KEPT_MAX = 1_024
"""Topics whose encoder is kept for their next flush."""


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class _Place:
    """Where a run is: in page number `page` of the flush, from `first_row` (0-based) on."""

    page: int
    first_row: int
    start: int
    """So many bytes of the page's runs come before it."""
    end: int


class PackedFlush:
    """The pages of a flush, and where in them the runs of its batches are.

    Attributes:
        pages: In the order in which they are written.
    """

    def __init__(self, batches: Sequence[PreparedBatch]) -> None:
        self.pages: list[EncodedPage] = []
        self._batches = batches
        self._places: list[list[_Place]] = [[] for _ in batches]
        self._sizes: list[int] = []
        """About how many bytes the runs of each page have together."""

    def add_encoded(self, index: int) -> None:
        """Add the pages of batch `index`, which was encoded before."""
        batch = self._batches[index]
        pages = iter(batch.pages)
        first_row = page_rows = 0
        for (_, rows), size in zip(batch.runs, batch.run_bytes, strict=True):
            if first_row == page_rows:
                page = next(pages)
                first_row, page_rows = 0, page.rows
                self._begin(page)
            self._place(index, first_row, size)
            first_row += rows

    def add_packed(self, page: EncodedPage, indices: Iterable[int]) -> None:
        """Add a page that holds the rows of these batches, one after another."""
        self._begin(page)
        first_row = 0
        for index in indices:
            batch = self._batches[index]
            for (_, rows), size in zip(batch.runs, batch.run_bytes, strict=True):
                self._place(index, first_row, size)
                first_row += rows

    def stored(self, addresses: Sequence[PageAddress]) -> Iterator[tuple[StoredPage, ...]]:
        """Yield what is stored of each batch, in order, now that its pages have addresses."""
        for batch, places in zip(self._batches, self._places, strict=True):
            yield tuple(
                self._stored_page(partition, rows, place, addresses[place.page])
                for (partition, rows), place in zip(batch.runs, places, strict=True)
            )

    def _begin(self, page: EncodedPage) -> None:
        self.pages.append(page)
        self._sizes.append(0)

    def _place(self, index: int, first_row: int, size: int) -> None:
        """Place the next run of batch `index` in the last page."""
        page = len(self.pages) - 1
        start = self._sizes[page]
        end = start + max(1, size)  # Rows of nulls alone may have no bytes.
        self._sizes[page] = end
        self._places[index].append(_Place(page, first_row, start, end))

    def _stored_page(
        self, partition: Partition, rows: int, place: _Place, address: PageAddress
    ) -> StoredPage:
        if rows == self.pages[place.page].rows:
            return StoredPage(partition, rows, address)
        # By where it begins and ends, so that the slices of a page add up to it.
        size = self._sizes[place.page]
        start, end = (address.length * at // size for at in (place.start, place.end))
        return StoredPage(partition, rows, address, place.first_row, end - start)


class Packer:
    """Packs the batches of one flush after another; used by one thread at a time."""

    def __init__(self) -> None:
        self._encoders: Lru[str, tuple[pa.Schema, PushEncoder]] = Lru(ENCODERS_KEPT_MAX)

    def pack(self, batches: Sequence[PreparedBatch]) -> PackedFlush:
        """Return the pages of a flush of these batches."""
        packed = PackedFlush(batches)
        for index, batch in enumerate(batches):
            if batch.pages:
                packed.add_encoded(index)
        for topic, group in _packed_together(batches):
            encoder = self._encoder(topic)
            for indices in _page_by_page(batches, group):
                rows = [batches[index].rows for index in indices]
                merged = rows[0] if len(rows) == 1 else pa.concat_batches(rows)  # pyright: ignore[reportAttributeAccessIssue] - not in the stubs
                packed.add_packed(encoder.encode(merged), indices)
        return packed

    def _encoder(self, topic: Topic) -> PushEncoder:
        kept = self._encoders.get(topic.uuid)
        if kept is not None and kept[0] is topic.schema:
            return kept[1]
        encoder = PUSHES.encoder(topic.uuid, topic.schema)
        self._encoders.put(topic.uuid, (topic.schema, encoder))
        return encoder


def _packed_together(batches: Sequence[PreparedBatch]) -> Iterator[tuple[Topic, list[int]]]:
    """Yield the small batches that become one page: of one topic and schema, by partition."""
    groups: dict[str, list[list[int]]] = {}
    for index, batch in enumerate(batches):
        if batch.pages or not batch.runs:
            continue
        same_topic = groups.setdefault(batch.topic.uuid, [])
        for group in same_topic:
            # Names inside lists and nullability may differ between producers.
            if batches[group[0]].rows.schema.equals(batch.rows.schema):
                group.append(index)
                break
        else:
            same_topic.append([index])
    for same_topic in groups.values():
        for group in same_topic:
            yield batches[group[0]].topic, _by_partition(batches, group)


def _page_by_page(batches: Sequence[PreparedBatch], indices: list[int]) -> Iterator[list[int]]:
    """Yield the batches that share a page of about `SHARED_PAGE_BYTES`."""
    page: list[int] = []
    size = 0
    for index in indices:
        if page and size + batches[index].bytes > SHARED_PAGE_BYTES:
            yield page
            page, size = [], 0
        page.append(index)
        size += batches[index].bytes
    if page:
        yield page


def _by_partition(batches: Sequence[PreparedBatch], indices: list[int]) -> list[int]:
    """Order batches so that those of one partition are neighbours, in the order in which they came.

    A batch of several partitions stays where the first of them is.
    """
    ranks: dict[Partition, int] = {}
    for index in indices:
        ranks.setdefault(batches[index].runs[0][0], len(ranks))
    if len(ranks) == 1:
        return indices
    return sorted(indices, key=lambda index: ranks[batches[index].runs[0][0]])
