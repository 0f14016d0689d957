"""Pages of list calls, as the service makes them; see `wings_core.metadata.remote.paging`."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from wings_core.errors import InvalidArgument
from wings_core.metadata.remote.paging import PAGE_SIZE_MAX, KeyKind, ListRequest

TOPICS_PAGE_SIZE_MAX = 100
"""Topics in one answer: each comes with its schema."""

TOPICS_BYTES_MAX = 16 << 20
"""Bytes of the topics in one answer, but for a single one: each comes with all its schemas."""

STEP_MAX = 10_000
"""Pages purged, and stages swept, by one call: in one transaction, which others wait for."""

T = TypeVar("T")
KeyT = TypeVar("KeyT")


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


def page(
    request: ListRequest,
    kind: KeyKind[KeyT],
    find: Callable[[KeyT | None, int], Sequence[T]],
    key: Callable[[T], KeyT],
    size_max: int = PAGE_SIZE_MAX,
) -> tuple[list[T], str]:
    """Return what goes into an answer, and the token of the next page, empty on the last.

    Args:
        request: Says which page, and how large.
        kind: What the items are told apart by.
        find: Returns the items of so many keys after a key (None: from the first), or of all that
            are left, in the order in which they are answered.
        key: Of an item; several may have the same.
        size_max: How many keys go into one answer at most.

    Raises:
        InvalidArgument: The size or the token asked for is not valid.
    """
    size = page_size_of(request.page_size, size_max)
    items = find(kind.after(request.page_token), size + 1)
    keys = {kind.texts_of(key(item)): key(item) for item in items}
    if len(keys) <= size:
        return list(items), ""
    kept = sorted(keys)[:size]
    within = set(kept)
    found = [item for item in items if kind.texts_of(key(item)) in within]
    return found, kind.token(keys[kept[-1]])


def step(name: str, number: int) -> int:
    """Return how much one call does, at most `STEP_MAX`.

    Raises:
        InvalidArgument: Less than one was asked for.
    """
    if number < 1:
        raise InvalidArgument(f"{name} is {number}, expected 1 or more")
    return min(number, STEP_MAX)
