"""The rule of retention, the same in every store."""

from collections.abc import Iterable


def expired_pages(
    pages: Iterable[tuple[int, int]], size: int, before: int | None, bytes_kept: int | None
) -> int:
    """Return how many of a partition's oldest pages have expired.

    Args:
        pages: Timestamp of the last message and length in bytes of each, in order of offset.
        size: Of all pages of the partition, in bytes.
        before: Pages older than this have expired, in microseconds since the epoch; None: none.
        bytes_kept: Pages expire while those after them have so many bytes; None: none.
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
