"""Ranges of an object, and the requests that read them."""

from collections.abc import Sequence

import pyarrow as pa

from wings_core.errors import Internal, StorageCorrupt

MERGE_GAP_BYTES = 64 * 1024
"""Ranges no further apart are read in one request: at 100 MB/s a request that takes 10 ms to begin
costs as much as a megabyte, but a gap is also read, kept and thrown away."""

Range = tuple[int, int]
"""`(start, end)`, in bytes; the end is exclusive."""


def merge(ranges: Sequence[Range]) -> list[Range]:
    """Return the ranges to request: sorted, those close to one another merged."""
    merged: list[Range] = []
    for start, end in sorted(ranges):
        if not 0 <= start < end:
            raise Internal(f"[{start}, {end}) is no range of an object's bytes")
        if merged and start - merged[-1][1] <= MERGE_GAP_BYTES:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def pieces(
    ranges: Sequence[Range], merged: Sequence[Range], read: Sequence[pa.Buffer]
) -> list[pa.Buffer]:
    """Return the bytes of each range, of what was read of those that they were merged into."""
    places = list(zip(merged, read, strict=True))
    return [
        next(
            buffer.slice(start - first, end - start)
            for (first, last), buffer in places
            if first <= start and end <= last
        )
        for start, end in ranges
    ]


def cut_off(name: str, size: int, end: int) -> StorageCorrupt:
    """Return the error of an object that ends within a range."""
    return StorageCorrupt(
        f"object {name} has {size} bytes, and should have {end} at least", folio=name
    )
