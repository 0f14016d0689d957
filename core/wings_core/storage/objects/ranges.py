"""Ranges of an object, and the requests that read them."""

from collections.abc import Sequence

from wings_core.errors import Internal

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


def find(wanted: Range, merged: Sequence[Range]) -> tuple[int, int]:
    """Return which of the merged ranges holds a wanted one, and from which byte of it on."""
    for index, (start, end) in enumerate(merged):
        if start <= wanted[0] and wanted[1] <= end:
            return index, wanted[0] - start
    raise AssertionError("a range is in what it was merged into")
