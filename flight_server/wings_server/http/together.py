"""Entries of one topic in `POST /v1/fetch`: a slice of each, in one read.

Their pages are read in the order in which they lie, and neighbours in a page once. An entry is read
by itself if it has more bytes than its share, or merged pages, whose rows may be far larger than
what is stored, or if it fails.
"""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from wings_core.fetch.chunks import Chunk
from wings_core.fetch.fetcher import Cursor
from wings_core.fetch.many import ManyReader, PartitionCursor, PieceFailed
from wings_core.fetch.state import FetchState
from wings_core.metadata.located import many_located
from wings_core.model import LocatedPartition
from wings_core.partitions import Partition


class Slice(NamedTuple):
    """An entry to be read, and what was found of it."""

    cursor: Cursor
    located: LocatedPartition
    bytes_max: int
    """The entry's share of the answer's bytes, less what it has."""

    @property
    def rows(self) -> int:
        """How many rows were found."""
        pages = self.located.locations
        return pages[-1].end_offset + 1 - self.cursor.offset if pages else 0


def may_share(entry: Slice) -> bool:
    """Tell whether an entry can be read with others."""
    pages = entry.located.locations
    return (
        bool(pages)
        and entry.cursor.offset >= entry.located.state.log_start_offset
        and sum(page.bytes for page in pages) <= entry.bytes_max
        and not any(page.format.is_merged for page in pages)
    )


def read_together(
    reader: ManyReader,
    slices: Sequence[Slice],
    state: FetchState,
    deliver: Callable[[Partition, Chunk], None],
) -> bool:
    """Read a slice of each of several entries of one topic, within the budget.

    Args:
        reader: Reads them.
        slices: The entries, all of which `may_share`, with one selection.
        state: The budget; of which each gets an equal share, one row at least, and where there are
            fewer rows than entries, some get none, chosen by chance.
        deliver: Takes rows; the entry's cursor is past them.

    Returns:
        Whether all that was reserved could be read; else its entries are to be read by themselves.
    """
    granted = reserved = state.reserve(sum(each.rows for each in slices), len(slices))
    if granted == 0:
        return True
    chosen = list(slices)
    if granted < len(chosen):
        chosen = random.sample(chosen, granted)
    each_max = granted // len(chosen)
    entries = {each.cursor.partition: each.cursor for each in chosen}
    cursors = [
        PartitionCursor(
            cursor.partition,
            cursor.offset,
            min(cursor.offset + each_max, cursor.offset + each.rows),
            each.located.state.next_offset,
            clamps=False,
        )
        for each in chosen
        for cursor in (each.cursor,)
    ]
    first = chosen[0].cursor
    located = many_located(each.located for each in chosen)
    try:
        for chunk in reader.read_located(first.topic, cursors, located, each_max, first.selection):
            state.release(chunk.batch.num_rows, chunk.batch.num_rows)
            reserved -= chunk.batch.num_rows
            at = 0
            for partition, start, end, rows in chunk.ranges:
                entries[partition].offset = end + 1
                batch = chunk.batch.slice(at, rows)
                deliver(partition, Chunk(batch, start, end, batch.nbytes))
                at += rows
    except PieceFailed:
        return False
    finally:
        state.release(reserved, 0)
    return True
