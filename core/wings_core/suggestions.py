"""Suggestions of known names in errors about unknown ones."""

import difflib
from collections.abc import Callable, Iterable

NEAR_MAX = 3
"""Most names suggested."""

LISTED_CHARACTERS_MAX = 350
"""Longest list of all names in a message, in characters."""


def nearest(asked: str, known: Iterable[str]) -> list[str]:
    """Return the most similar known names, ignoring case, the best first."""
    by_lower = {name.lower(): name for name in reversed(list(known))}
    near = difflib.get_close_matches(asked[:LISTED_CHARACTERS_MAX].lower(), by_lower, NEAR_MAX)
    return [by_lower[name] for name in near]


def did_you_mean(asked: str, known: Iterable[str]) -> str:
    """Return the most similar known names as the end of a sentence; empty without any."""
    near = nearest(asked, known)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def suggested(asked: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: similar names, or all names.

    Args:
        asked: The unknown name.
        known: All known names, in the order to list them.
    """
    names = list(known)
    end = did_you_mean(asked, names)
    listed = ", ".join(name if name.isprintable() else repr(name) for name in names)
    if not 0 < len(listed) <= LISTED_CHARACTERS_MAX:
        return end
    verb = "is" if len(names) == 1 else "are"
    return f"{end} There {verb} {listed}" if end else f"; there {verb} {listed}"


def first_bad(count: int, is_bad: Callable[[int, int], bool]) -> int:
    """Return the index of the first bad row, in about log2(count) calls.

    Args:
        count: Number of rows, at least one of which is bad.
        is_bad: Returns whether one of the rows `[low, high)`, never empty, is bad. Rows before
            `low` are known to be good.
    """
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        if is_bad(low, middle):
            high = middle
        else:
            low = middle
    return low
