"""Pack the batches of a flush into pages: the small ones of a topic share one.

A page costs some 20 microseconds to frame, and as much to find and verify again, however few rows
it has; to copy a row costs less than one. So the small batches of a topic in one flush become one
page, and the rows that a batch has for a partition a slice of it. Neighbouring slices of a
partition with one timestamp become one location (`metadata.judge`).
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from wings_core.ingest.prepare import SHARED_PAGE_BYTES, PreparedBatch
from wings_core.model import PageAddress, StoredPage, Topic
from wings_core.partitions import Partition
from wings_core.storage.codecs import PUSHES, PushEncoder
from wings_core.storage.interfaces import EncodedPage
from wings_core.storage.lru import Lru

ENCODERS_KEPT_MAX = 1_024
"""Topics whose encoder is kept for their next flush."""


_Place = tuple[int, int, int, int]
"""Where a run is: number of the page in the flush, first row in it (0-based), and how many bytes of
the page's runs come before it, and before the next."""


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
        places = self._places[index]
        pages = iter(batch.pages)
        first_row = page_rows = end = 0
        for (_, rows), size in zip(batch.runs, batch.run_bytes, strict=True):
            if first_row == page_rows:
                page = next(pages)
                first_row, page_rows, end = 0, page.rows, 0
                self._begin(page)
            start, end = end, end + (size or 1)  # Rows of nulls alone may have no bytes.
            places.append((len(self.pages) - 1, first_row, start, end))
            self._sizes[-1] = end
            first_row += rows

    def add_packed(self, page: EncodedPage, indices: Iterable[int]) -> None:
        """Add a page that holds the rows of these batches, one after another."""
        self._begin(page)
        number = len(self.pages) - 1
        first_row = end = 0
        for index in indices:
            batch = self._batches[index]
            places = self._places[index]
            for (_, rows), size in zip(batch.runs, batch.run_bytes, strict=True):
                start, end = end, end + (size or 1)
                places.append((number, first_row, start, end))
                first_row += rows
        self._sizes[number] = end

    def stored(self, addresses: Sequence[PageAddress]) -> Iterator[tuple[StoredPage, ...]]:
        """Yield what is stored of each batch, in order, now that its pages have addresses."""
        pages = [
            (address, page.rows, size)
            for address, page, size in zip(addresses, self.pages, self._sizes, strict=True)
        ]
        for batch, places in zip(self._batches, self._places, strict=True):
            stored: list[StoredPage] = []
            version = batch.topic.schema_version
            for (partition, rows), (page, first_row, start, end) in zip(
                batch.runs, places, strict=True
            ):
                address, page_rows, size = pages[page]
                if rows == page_rows:
                    stored.append(StoredPage(partition, rows, address, schema_version=version))
                    continue
                # By where it begins and ends, so that the slices of a page add up to it.
                share = address.length * end // size - address.length * start // size
                stored.append(StoredPage(partition, rows, address, first_row, share, version))
            yield tuple(stored)

    def _begin(self, page: EncodedPage) -> None:
        self.pages.append(page)
        self._sizes.append(0)


class Packer:
    """Packs the batches of one flush after another; used by one thread at a time."""

    def __init__(self) -> None:
        self._encoders: Lru[tuple[str, int], tuple[pa.Schema, PushEncoder]] = Lru(ENCODERS_KEPT_MAX)
        """By topic and version of its schema."""

    def pack(self, batches: Sequence[PreparedBatch]) -> PackedFlush:
        """Return the pages of a flush of these batches."""
        packed = PackedFlush(batches)
        for index, batch in enumerate(batches):
            if batch.pages:
                packed.add_encoded(index)
        for topic, group in _packed_together(batches):
            encoder = self._encoder(topic)
            for indices in _page_by_page(batches, group):
                rows = [part for index in indices for part in batches[index].parts]
                merged = rows[0] if len(rows) == 1 else pa.concat_batches(rows)  # pyright: ignore[reportAttributeAccessIssue] - not in the stubs
                packed.add_packed(encoder.encode(merged), indices)
        return packed

    def _encoder(self, topic: Topic) -> PushEncoder:
        key = topic.uuid, topic.schema_version
        kept = self._encoders.get(key)
        if kept is not None and kept[0] is topic.schema:
            return kept[1]
        encoder = PUSHES.encoder(topic.uuid, topic.schema)
        self._encoders.put(key, (topic.schema, encoder))
        return encoder


def _packed_together(batches: Sequence[PreparedBatch]) -> Iterator[tuple[Topic, list[int]]]:
    """Yield the small batches that become one page: of one topic and schema, by partition."""
    groups: dict[tuple[str, int], list[list[int]]] = {}
    for index, batch in enumerate(batches):
        if batch.pages or not batch.runs:
            continue
        key = batch.topic.uuid, batch.topic.schema_version
        same_topic = groups.setdefault(key, [])
        for group in same_topic:
            # Names inside lists and nullability may differ between producers.
            if batches[group[0]].parts[0].schema.equals(batch.parts[0].schema):
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
