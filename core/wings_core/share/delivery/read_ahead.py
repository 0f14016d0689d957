"""ChunksReadAhead: rows that were read beside the ones asked for, for the requests that come next.

Workers that take a few messages at a time take neighbours, one after the other. Rows of a log never
change, so what was read once is delivered again without a look at the log or its pages.
"""

import threading
from collections import OrderedDict

import pyarrow as pa

from wings_core.fetch.selection import OFFSET_FIELD
from wings_core.partitions import Partition

AHEAD_ROWS = 1_000
"""How many rows are read where the ones before them were read just now."""

CACHED_BYTES_MAX = 16 * 1024 * 1024
"""Bytes that are kept; those unused for longest go first."""

CHUNK_BYTES_MAX = 1024 * 1024
"""Larger chunks are not kept: they hold enough for a request of their own."""


class ChunksReadAhead:
    """The last chunk read of each of some partitions; all methods from any thread.

    A topic is named by its UUID and the version of its schema.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunks: OrderedDict[tuple[str, Partition], tuple[int, pa.RecordBatch]] = OrderedDict()
        self._bytes = 0

    def rows(
        self, topic: str, partition: Partition, first: int, last: int
    ) -> pa.RecordBatch | None:
        """Return the rows `[first, last]`, if all of them are kept."""
        with self._lock:
            found = self._chunks.get((topic, partition))
            if found is None:
                return None
            start, chunk = found
            if first < start or last >= start + chunk.num_rows:
                return None
            self._chunks.move_to_end((topic, partition))
        return chunk.slice(first - start, last - first + 1)

    def stop_offset(self, topic: str, partition: Partition, first: int, stop: int) -> int:
        """Return up to where to read for `[first, stop)`: further, where it goes on from before."""
        with self._lock:
            found = self._chunks.get((topic, partition))
        if found is None or not found[0] < first <= found[0] + found[1].num_rows:
            return stop
        return max(stop, first + AHEAD_ROWS)

    def keep(self, topic: str, partition: Partition, chunk: pa.RecordBatch) -> None:
        """Keep a chunk with the column `__offset`, in place of the one before."""
        size, offsets = chunk.nbytes, chunk.column(OFFSET_FIELD.name)
        if not chunk.num_rows or size > CHUNK_BYTES_MAX:
            return
        start: int = offsets[0].as_py()
        if offsets[-1].as_py() != start + chunk.num_rows - 1:
            return  # Some are missing.
        with self._lock:
            before = self._chunks.pop((topic, partition), None)
            if before is not None:
                self._bytes -= before[1].nbytes
            self._chunks[topic, partition] = (start, chunk)
            self._bytes += size
            while self._bytes > CACHED_BYTES_MAX:
                _, (_, oldest) = self._chunks.popitem(last=False)
                self._bytes -= oldest.nbytes
