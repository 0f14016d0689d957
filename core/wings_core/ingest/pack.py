"""Packs the batches of a flush into pages: small batches of a topic share one.

Framing a page takes some 20 microseconds, and so does locating and verifying it, however few rows
it has; copying a row takes less than one. So the small batches of a topic in a flush become one
page, and the rows of a batch in one partition become a slice of it. Neighbouring slices of a
partition with one timestamp become one location (`metadata.judge`).
"""

from collections.abc import Iterable, Iterator, Sequence

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


class PackedFlush:
    """The pages of a flush, and the positions of the batches' runs in them.

    Attributes:
        pages: Pages, in the order of writing.
    """

    def __init__(self, batches: Sequence[PreparedBatch]) -> None:
        self.pages: list[EncodedPage] = []
        self._batches = batches
        self._spans: list[list[_Span]] = [[] for _ in batches]
        self._sizes: list[int] = []
        """Approximate bytes of all runs in each page."""

    def add_encoded(self, index: int) -> None:
        """Add the pages of batch `index`, which is encoded already."""
        batch = self._batches[index]
        first = 0
        for page, runs in zip(batch.pages, batch.page_runs, strict=True):
            self._begin(page)
            self._place(index, 0, batch.run_bytes[first : first + runs])
            first += runs

    def add_packed(self, page: EncodedPage, indices: Iterable[int]) -> None:
        """Add a page that holds the rows of the batches `indices`, in order."""
        self._begin(page)
        first_row = 0
        for index in indices:
            batch = self._batches[index]
            self._place(index, first_row, batch.run_bytes)
            first_row += batch.num_rows

    def stored(self, addresses: Sequence[PageAddress]) -> Iterator[tuple[StoredPage, ...]]:
        """Yield the stored pages of each batch, in order, given the pages' addresses."""
        pages = [
            (address, page.rows, size)
            for address, page, size in zip(addresses, self.pages, self._sizes, strict=True)
        ]
        for batch, spans in zip(self._batches, self._spans, strict=True):
            stored: list[StoredPage] = []
            version = batch.topic.schema_version
            run = 0
            for number, first_row, end, runs in spans:
                address, page_rows, size = pages[number]
                length = address.length
                cut = length * end // size
                places = slice(run, run + runs)
                run += runs
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

    def _place(self, index: int, first_row: int, run_bytes: Sequence[int]) -> None:
        """Record the position of a batch's next runs: the last page, from `first_row` on."""
        self._spans[index].append((len(self.pages) - 1, first_row, self._sizes[-1], len(run_bytes)))
        self._sizes[-1] += sum(run_bytes)

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
            for indices in _page_by_page(batches, group):
                self._add(packed, batches, indices)
        return packed

    def _add(
        self, packed: PackedFlush, batches: Sequence[PreparedBatch], indices: Sequence[int]
    ) -> None:
        """Add the page that batches of one topic and schema share."""
        rows = [part for index in indices for part in batches[index].parts]
        encoder = self._encoders.get(batches[indices[0]].topic)
        packed.add_packed(encoder.encode(_merged(rows)), indices)


def _merged(rows: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return rows[0] if len(rows) == 1 else pa.concat_batches(rows)  # pyright: ignore[reportAttributeAccessIssue] - not in the stubs


def _packed_together(batches: Sequence[PreparedBatch]) -> Iterator[list[int]]:
    """Yield groups of small batches of one topic and schema that share pages, by partition."""
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
        for group in same_topic:
            yield _by_partition(batches, group)


def _page_by_page(batches: Sequence[PreparedBatch], indices: list[int]) -> Iterator[list[int]]:
    """Yield the batches of each page, of about `SHARED_PAGE_BYTES` and `SHARED_PAGE_ROWS`."""
    page: list[int] = []
    size = rows = 0
    for index in indices:
        batch = batches[index]
        size += batch.bytes
        rows += batch.num_rows
        if page and (size > SHARED_PAGE_BYTES or rows > SHARED_PAGE_ROWS):
            yield page
            page, size, rows = [], batch.bytes, batch.num_rows
        page.append(index)
    if page:
        yield page


def _by_partition(batches: Sequence[PreparedBatch], indices: list[int]) -> list[int]:
    """Order batches by partition, keeping the order within a partition.

    A batch of several partitions is placed with its first one.
    """
    ranks: dict[Partition, int] = {}
    for index in indices:
        ranks.setdefault(batches[index].runs[0][0], len(ranks))
    if len(ranks) == 1:
        return indices
    return sorted(indices, key=lambda index: ranks[batches[index].runs[0][0]])
