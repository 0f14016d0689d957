"""Search for the first bad row by bisection."""

from collections.abc import Callable


def first_bad(count: int, is_bad: Callable[[int, int], bool]) -> int:
    """Return the index of the first bad row, in about log2(count) calls.

    Args:
        count: Number of rows, at least one of which is bad.
        is_bad: Returns whether one of the rows `[low, high)`, never empty, is bad. Rows before
            `low` are
            known to be good.
    """
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        if is_bad(low, middle):
            high = middle
        else:
            low = middle
    return low
