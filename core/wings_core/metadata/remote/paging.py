"""Pages of list calls: a token is the key of an item, so items may come and go between two pages.

A page holds the items whose keys come next after that of its token, and ends with a token of the
last of them; the store finds them by their keys. To clients of other makes tokens are opaque.
"""

import base64
import binascii
import json
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar, cast

from wings_core.errors import InvalidArgument
from wings_core.names import TopicName
from wings_core.partitions import Partition

PAGE_SIZE_MAX = 10_000
"""Items in one answer, where they are small."""

Key = tuple[str, ...]
"""Tells items of a list apart, and orders them; each text by its bytes in UTF-8."""


class Page(Protocol):
    """An answer of a list call."""

    @property
    def next_page_token(self) -> str:
        """Empty on the last page."""
        ...


T = TypeVar("T")
PageT = TypeVar("PageT", bound=Page)


def listed(
    list_page: Callable[[int, str], PageT],
    items_of: Callable[[PageT], Iterable[T]],
    after: Key | None,
    items_max: int | None,
    count: Callable[[list[T]], int] = len,
) -> list[T]:
    """Ask for the pages of a list, one after the other.

    Args:
        list_page: Asks for a page, by its size (0: as many as the service likes) and token.
        items_of: Returns the items of a page.
        after: Only those whose key is greater; None: all.
        items_max: The first so many of them; None: all.
        count: How many keys some items have.
    """
    found: list[T] = []
    token = "" if after is None else token_of(after)
    while items_max is None or count(found) < items_max:
        size = 0 if items_max is None else min(items_max - count(found), PAGE_SIZE_MAX)
        page = list_page(size, token)
        found += items_of(page)
        token = page.next_page_token
        if not token:
            break
    return found


def token_of(key: Key) -> str:
    """Return the token of the page after the item of a key."""
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode("ascii")


def key_of(token: str, texts: int) -> Key | None:
    """Return the key that a token was made of; None for the empty token of the first page.

    Args:
        token: As a client gave it.
        texts: How many the key has.

    Raises:
        InvalidArgument: It is no token of such a list.
    """
    if not token:
        return None
    try:
        found = json.loads(base64.urlsafe_b64decode(token.encode("ascii")))
    except (binascii.Error, ValueError):
        found = None
    key = cast("list[object]", found) if isinstance(found, list) else []
    if len(key) == texts and all(isinstance(text, str) and _is_unicode(text) for text in key):
        return tuple(cast("list[str]", key))
    raise InvalidArgument(f"{token[:80]!r} is not a page token")


def offset_key(topic: TopicName, partition: Partition) -> Key:
    """Return the key of where a consumer reads on."""
    return (topic.namespace.tenant, topic.namespace.namespace, topic.topic, partition)


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # JSON can carry half a surrogate pair.
        return False
    return True
