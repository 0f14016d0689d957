"""The rule of retention, whatever store the pages are indexed in."""

from collections.abc import Iterable


def expired_pages(
    pages: Iterable[tuple[int, int]], size: int, before: int | None, bytes_kept: int | None
) -> int:
    """Return how many of a partition's oldest pages are kept no longer.

    Args:
        pages: Timestamp of the last message and length in bytes of each, in order of offset.
        size: Of all pages of the partition, in bytes.
        before: Pages older than this time are not kept, in microseconds since the epoch.
        bytes_kept: Pages are not kept while those after them have so many bytes.
    """
    count = 0
    for timestamp, length in pages:
        too_old = before is not None and timestamp < before
        too_many = bytes_kept is not None and size - length >= bytes_kept
        if not too_old and not too_many:
            break
        size -= length
        count += 1
    return count
