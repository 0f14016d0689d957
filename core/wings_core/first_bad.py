"""Find the first bad row of many by halving."""

from collections.abc import Callable


def first_bad(count: int, is_bad: Callable[[int, int], bool]) -> int:
    """Return the index of the first bad row, in about log2(count) calls.

    Args:
        count: The number of rows, at least 1, of which at least one is bad.
        is_bad: Whether one of the rows `[low, high)` is bad, of which there is at least one. Rows
            before `low` are known to be good.
    """
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        if is_bad(low, middle):
            high = middle
        else:
            low = middle
    return low
