"""Pages of list calls, as the service makes them; see `wings_core.metadata.remote.paging`."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from wings_core.errors import InvalidArgument
from wings_core.metadata.remote.paging import PAGE_SIZE_MAX, Key, token_of

TOPICS_PAGE_SIZE_MAX = 100
"""Topics in one answer: each comes with its schema."""

T = TypeVar("T")


def page_size_of(page_size: int, size_max: int = PAGE_SIZE_MAX) -> int:
    """Return how many items go into an answer.

    Args:
        page_size: As asked for; 0: as many as go into one answer.
        size_max: Most items in one answer.

    Raises:
        InvalidArgument: The size asked for is negative.
    """
    if page_size < 0:
        raise InvalidArgument(f"page_size is {page_size}, expected 0 or more")
    return min(page_size or size_max, size_max)


def page(items: Sequence[T], key: Callable[[T], Key], size: int) -> tuple[list[T], str]:
    """Return what goes into an answer, and the token of the next page, empty on the last.

    Args:
        items: Those of the next `size + 1` keys, or of all that are left, in the order in which
            they are answered.
        key: Of an item; several may have the same.
        size: How many keys go into one answer.
    """
    keys = sorted({key(item) for item in items})
    if len(keys) <= size:
        return list(items), ""
    kept = set(keys[:size])
    return [item for item in items if key(item) in kept], token_of(keys[size - 1])
