"""Pack the batches of a flush into pages: the small ones of a topic share one.

A page costs some 20 microseconds to frame, and as much to find and verify again, however few rows
it has; to copy a row costs less than one. So the small batches of a topic in one flush become one
page, and the rows that a batch has for a partition a slice of it. Neighbouring slices of a
partition with one timestamp become one location (`metadata.judge`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from wings_core.ingest.prepare import PreparedBatch
from wings_core.model import PageAddress, StoredPage, Topic
from wings_core.partitions import Partition
from wings_core.storage.codecs import PUSHES, PushEncoder
from wings_core.storage.interfaces import EncodedPage
from wings_core.storage.lru import Lru

ENCODERS_KEPT_MAX = 1_024
"""Topics whose encoder is kept for their next flush."""


@dataclass(slots=True)  # Not frozen, which would take three times as long to make.
class _Place:
    """Where a run of rows is: in page number `page` of the flush, from `first_row` (0-based) on."""

    page: int
    first_row: int


class PackedFlush:
    """The pages of a flush, and where in them the runs of its batches are.

    Attributes:
        pages: In the order in which they are written.
    """

    def __init__(self, batches: Sequence[PreparedBatch]) -> None:
        self.pages: list[EncodedPage] = []
        self._batches = batches
        self._places: list[list[_Place]] = [[] for _ in batches]

    def add_encoded(self, index: int) -> None:
        """Add the pages of batch `index`, which was encoded before."""
        batch = self._batches[index]
        first_page = len(self.pages)
        self.pages += batch.pages
        if len(batch.pages) > 1:
            self._places[index] = [_Place(first_page + run, 0) for run in range(len(batch.runs))]
        else:
            self._place_runs(index, first_page, 0)

    def add_packed(self, page: EncodedPage, indices: Iterable[int]) -> None:
        """Add a page that holds the rows of these batches, one after another."""
        first_row = 0
        for index in indices:
            first_row = self._place_runs(index, len(self.pages), first_row)
        self.pages.append(page)

    def stored(self, addresses: Sequence[PageAddress]) -> Iterator[tuple[StoredPage, ...]]:
        """Yield what is stored of each batch, in order, now that its pages have addresses."""
        for batch, places in zip(self._batches, self._places, strict=True):
            yield tuple(
                self._stored_page(partition, rows, place, addresses[place.page])
                for (partition, rows), place in zip(batch.runs, places, strict=True)
            )

    def _place_runs(self, index: int, page: int, first_row: int) -> int:
        """Place the runs of a batch one after another; return the row after them."""
        places = self._places[index]
        for _, rows in self._batches[index].runs:
            places.append(_Place(page, first_row))
            first_row += rows
        return first_row

    def _stored_page(
        self, partition: Partition, rows: int, place: _Place, address: PageAddress
    ) -> StoredPage:
        page_rows = self.pages[place.page].rows
        if rows == page_rows:
            return StoredPage(partition, rows, address)
        first_row = place.first_row
        # By where it begins and ends, so that the slices of a page add up to it.
        end = address.length * (first_row + rows) // page_rows
        return StoredPage(
            partition, rows, address, first_row, end - address.length * first_row // page_rows
        )


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
        for topic, indices in _packed_together(batches):
            rows = [batches[index].rows for index in indices]
            merged = rows[0] if len(rows) == 1 else pa.concat_batches(rows)  # pyright: ignore[reportAttributeAccessIssue] - not in the stubs
            packed.add_packed(self._encoder(topic).encode(merged), indices)
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
