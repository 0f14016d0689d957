"""Merging ranges of an object into requests."""

from collections.abc import Sequence

import pyarrow as pa

from wings_core.errors import Internal, StorageCorrupt

MERGE_GAP_BYTES = 64 * 1024
"""Largest gap between ranges that one request reads: at 100 MB/s a request's latency of 10 ms costs
as much as a megabyte, but a gap is also held in memory and discarded."""

Range = tuple[int, int]
"""A pair `(start, end)` in bytes; the end is exclusive."""


def merge(ranges: Sequence[Range]) -> list[Range]:
    """Return the ranges to request: sorted, with neighbouring ones merged."""
    merged: list[Range] = []
    for start, end in sorted(ranges):
        if not 0 <= start < end:
            raise Internal(f"[{start}, {end}) is not a range of bytes")
        if merged and start - merged[-1][1] <= MERGE_GAP_BYTES:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def pieces(
    ranges: Sequence[Range], merged: Sequence[Range], read: Sequence[pa.Buffer]
) -> list[pa.Buffer]:
    """Return the bytes of each range, as slices of the merged ranges read."""
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
        f"object {name} has {size} bytes, and should have at least {end}", folio=name
    )
