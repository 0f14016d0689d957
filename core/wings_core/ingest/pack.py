"""Pack the batches of a flush into pages: the small ones of a topic share one.

A page costs some 20 microseconds to frame, and as much to find and verify again, however few rows
it has; to copy a row costs less than one. So the small batches of a topic in one flush become one
page, and the rows that a batch has for a partition a slice of it. Neighbouring slices of a
partition with one timestamp become one location (`metadata.judge`).
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from wings_core.ingest.prepare import SHARED_PAGE_BYTES, SHARED_PAGE_ROWS, PreparedBatch
from wings_core.model import PageAddress, StoredPage
from wings_core.partitions import Partition
from wings_core.storage.by_schema import BySchema
from wings_core.storage.codecs import PUSHES, PushEncoder
from wings_core.storage.interfaces import EncodedPage

ENCODERS_KEPT_MAX = 1_024
"""Topics whose encoder is kept for their next flush."""


_Span = tuple[int, int, int, int]
"""Where neighbouring runs of a batch are that share a page: the page's number in the flush, the
first row in it (0-based), how many bytes of its runs come before, and how many runs these are."""


class PackedFlush:
    """The pages of a flush, and where in them the runs of its batches are.

    Attributes:
        pages: In the order in which they are written.
    """

    def __init__(self, batches: Sequence[PreparedBatch]) -> None:
        self.pages: list[EncodedPage] = []
        self._batches = batches
        self._spans: list[list[_Span]] = [[] for _ in batches]
        self._sizes: list[int] = []
        """About how many bytes the runs of each page have together."""

    def add_encoded(self, index: int) -> None:
        """Add the pages of batch `index`, which was encoded before."""
        batch = self._batches[index]
        first = 0
        for page, runs in zip(batch.pages, batch.page_runs, strict=True):
            self._begin(page)
            self._place(index, 0, batch.run_bytes[first : first + runs])
            first += runs

    def add_packed(self, page: EncodedPage, indices: Iterable[int]) -> None:
        """Add a page that holds the rows of these batches, one after another."""
        self._begin(page)
        first_row = 0
        for index in indices:
            batch = self._batches[index]
            self._place(index, first_row, batch.run_bytes)
            first_row += batch.num_rows

    def stored(self, addresses: Sequence[PageAddress]) -> Iterator[tuple[StoredPage, ...]]:
        """Yield what is stored of each batch, in order, now that its pages have addresses."""
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
                    # By where it begins and ends, so that the slices of a page add up to it.
                    end += run_bytes
                    begin, cut = cut, length * end // size
                    stored.append(
                        StoredPage(partition, rows, address, first_row, cut - begin, version)
                    )
                    first_row += rows
            yield tuple(stored)

    def _place(self, index: int, first_row: int, run_bytes: Sequence[int]) -> None:
        """Note where the next runs of a batch are: in the last page, from a row on."""
        self._spans[index].append((len(self.pages) - 1, first_row, self._sizes[-1], len(run_bytes)))
        self._sizes[-1] += sum(run_bytes)

    def _begin(self, page: EncodedPage) -> None:
        self.pages.append(page)
        self._sizes.append(0)


class Packer:
    """Packs the batches of one flush after another; used by one thread at a time."""

    def __init__(self) -> None:
        self._encoders: BySchema[PushEncoder] = BySchema(
            lambda topic: PUSHES.encoder(topic.uuid, topic.schema), ENCODERS_KEPT_MAX
        )

    def only_page(self, batch: PreparedBatch) -> EncodedPage | None:
        """Return the page of a flush of one batch; None where it is not one page of one run."""
        if batch.pages or len(batch.runs) != 1:
            return None
        return self._encoders.get(batch.topic).encode(_merged(batch.parts))

    def pack(self, batches: Sequence[PreparedBatch]) -> PackedFlush:
        """Return the pages of a flush of these batches."""
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
            yield _by_partition(batches, group)


def _page_by_page(batches: Sequence[PreparedBatch], indices: list[int]) -> Iterator[list[int]]:
    """Yield the batches that share a page, of about `SHARED_PAGE_BYTES` and `SHARED_PAGE_ROWS`."""
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
    """Order batches so that those of one partition are neighbours, in the order in which they came.

    A batch of several partitions stays where the first of them is.
    """
    ranks: dict[Partition, int] = {}
    for index in indices:
        ranks.setdefault(batches[index].runs[0][0], len(ranks))
    if len(ranks) == 1:
        return indices
    return sorted(indices, key=lambda index: ranks[batches[index].runs[0][0]])
