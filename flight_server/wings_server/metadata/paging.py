"""Pages of list calls: the token is the key of the last item, so items may come and go between."""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from wings_core.errors import InvalidArgument

PAGE_SIZE_MAX = 10_000
"""Items in one answer, where they are small."""

TOPICS_PAGE_SIZE_MAX = 100
"""Topics in one answer: each comes with its schema."""

T = TypeVar("T")
Key = str | list[str]


def page(
    items: Sequence[T],
    key: Callable[[T], Key],
    page_size: int,
    page_token: str,
    *,
    order: Callable[[Any], Any] = lambda key: key,
    size_max: int = PAGE_SIZE_MAX,
) -> tuple[Sequence[T], str]:
    """Return a page of a list and the token of the next one, empty on the last.

    Args:
        items: All, in order.
        key: Tells items apart.
        page_size: As asked for; 0: as many as go into one answer.
        page_token: Of the page before, or empty.
        order: By which the keys are in order.
        size_max: Most items in one answer.

    Raises:
        InvalidArgument: A negative size, or a token that is none.
    """
    size = page_size_of(page_size, size_max)
    if page_token:
        last = order(_key(page_token))
        items = [item for item in items if order(key(item)) > last]
    if len(items) <= size:
        return items, ""
    return items[:size], _token(key(items[size - 1]))


def page_size_of(page_size: int, size_max: int = PAGE_SIZE_MAX) -> int:
    """Return how many items go into an answer.

    Raises:
        InvalidArgument: The size asked for is negative.
    """
    if page_size < 0:
        raise InvalidArgument(f"page_size is {page_size}, expected 0 or more")
    return min(page_size or size_max, size_max)


def _token(key: Key) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode("ascii")


def _key(token: str) -> Key:
    try:
        key = json.loads(base64.urlsafe_b64decode(token.encode("ascii")))
    except (binascii.Error, ValueError):
        key = None
    if not isinstance(key, (str, list)):
        raise InvalidArgument(f"{token[:80]!r} is not a page token")
    return key  # pyright: ignore[reportUnknownVariableType] - what it holds, `page` compares.
