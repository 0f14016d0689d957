"""Suggestions: what an error about an unknown name adds to it."""

import difflib
from collections.abc import Iterable

NEAR_MAX = 3
"""The most names that are suggested."""

LISTED_CHARACTERS_MAX = 350
"""A longer list of all names is left out: messages are short."""


def nearest(asked: str, known: Iterable[str]) -> list[str]:
    """Return the names most similar to one, whatever their case, the most similar first."""
    by_lower = {name.lower(): name for name in reversed(list(known))}
    near = difflib.get_close_matches(asked[:LISTED_CHARACTERS_MAX].lower(), by_lower, NEAR_MAX)
    return [by_lower[name] for name in near]


def did_you_mean(asked: str, known: Iterable[str]) -> str:
    """Return the names most similar to one as the end of a sentence; empty where none is."""
    near = nearest(asked, known)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def suggested(asked: str, known: Iterable[str]) -> str:
    """Return the end of a sentence that says that a name is unknown.

    Args:
        asked: The name.
        known: All that there are, in the order in which they are listed.
    """
    names = list(known)
    end = did_you_mean(asked, names)
    listed = ", ".join(name if name.isprintable() else repr(name) for name in names)
    if not 0 < len(listed) <= LISTED_CHARACTERS_MAX:
        return end
    verb = "is" if len(names) == 1 else "are"
    return f"{end} There {verb} {listed}" if end else f"; there {verb} {listed}"
