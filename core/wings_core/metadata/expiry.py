"""The rule of retention, the same in every store."""

from collections.abc import Iterable


def expired_pages(
    pages: Iterable[tuple[int, int, int]],
    size: int,
    before: int | None,
    bytes_kept: int | None,
    finished_before: int = 0,
) -> int:
    """Return how many of a partition's oldest pages have expired.

    Args:
        pages: Timestamp and offset of the last message and length in bytes of each, in order of
            offset.
        size: Of all pages of the partition, in bytes.
        before: Pages older than this have expired, in microseconds since the epoch; None: none.
        bytes_kept: Pages expire while those after them have so many bytes; None: none.
        finished_before: Pages whose offsets are all less have expired.
    """
    count = 0
    for timestamp, end_offset, length in pages:
        too_old = before is not None and timestamp < before
        too_many = bytes_kept is not None and size - length >= bytes_kept
        finished = end_offset < finished_before
        if not too_old and not too_many and not finished:
            break
        size -= length
        count += 1
    return count
