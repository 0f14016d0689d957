"""Pages of list calls: a token is the key of an item, so items may come and go between two pages.

A page holds the items whose keys come next after that of its token, and ends with a token of the
last of them; the store finds them by their keys. To clients of other makes tokens are opaque.
"""

import base64
import binascii
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, cast

import grpc

from wings_core.errors import InvalidArgument
from wings_core.metadata.remote.channel import ServiceChannel
from wings_core.names import NamespaceName, TopicName
from wings_core.partitions import Partition, canonical_partition

T = TypeVar("T")
KeyT = TypeVar("KeyT")
RequestT = TypeVar("RequestT", bound="ListRequest")
ResponseT = TypeVar("ResponseT", bound="ListResponse")

PAGE_SIZE_MAX = 10_000
"""Items in one answer, where they are small."""

Key = tuple[str, ...]
"""Tells items of a list apart, and orders them; each text by its bytes in UTF-8."""

OffsetKey = tuple[TopicName, Partition]


@dataclass(frozen=True, slots=True)
class KeyKind(Generic[KeyT]):
    """Kind of key that tells the items of a list apart, and how a token holds it."""

    texts: int
    """How many texts a key has."""
    texts_of: Callable[[KeyT], Key]
    key_of: Callable[..., KeyT]
    """Returns the key of so many texts; raises InvalidArgument where it is none."""

    def token(self, key: KeyT | None) -> str:
        """Return the token of the page after a key; of None, that of the first page."""
        return "" if key is None else token_of(self.texts_of(key))

    def after(self, token: str) -> KeyT | None:
        """Return the key that a token was made of; None for that of the first page.

        Raises:
            InvalidArgument: `token` is not one of such a list.
        """
        texts = key_of(token, self.texts)
        try:
            return None if texts is None else self.key_of(*texts)
        except InvalidArgument as error:
            raise InvalidArgument(f"{token[:80]!r} is not a page token: {error}") from None


def _namespace_of(tenant: str, namespace: str) -> NamespaceName:
    return NamespaceName.parse(f"tenants/{tenant}/namespaces/{namespace}")


def _offset_key(tenant: str, namespace: str, topic: str, partition: str) -> OffsetKey:
    return (_namespace_of(tenant, namespace).topic(topic), canonical_partition(partition))


BY_TEXT: KeyKind[str] = KeyKind(1, lambda text: (text,), str)
BY_PARTITION: KeyKind[Partition] = KeyKind(1, lambda partition: (partition,), canonical_partition)
BY_NAMESPACE: KeyKind[NamespaceName] = KeyKind(
    2, lambda name: (name.tenant, name.namespace), _namespace_of
)
BY_OFFSET: KeyKind[OffsetKey] = KeyKind(
    4,
    lambda key: (key[0].namespace.tenant, key[0].namespace.namespace, key[0].topic, key[1]),
    _offset_key,
)
"""Key of the offset at which a named consumer reads on."""


class ListRequest(Protocol):
    """A request for a page of a list."""

    page_size: int
    """Most items wanted; 0: as many as the service likes."""
    page_token: str
    """Token from the page before; empty: the first page."""


class ListResponse(Protocol):
    """A page of a list."""

    @property
    def next_page_token(self) -> str:
        """Empty on the last page."""
        ...


def listed(
    channel: ServiceChannel,
    method: "grpc.UnaryUnaryMultiCallable[RequestT, ResponseT]",
    request: RequestT,
    items_of: Callable[[ResponseT], Iterable[T]],
    kind: KeyKind[KeyT],
    after: KeyT | None,
    items_max: int | None,
    key: Callable[[T], object] | None = None,
) -> list[T]:
    """Ask for the pages of a list, one after the other; blocks for as many calls.

    Args:
        channel: To the service.
        method: Answers a page.
        request: For any page; its size and token are set here.
        items_of: Returns the items of a page.
        kind: Kind of the items' keys.
        after: Only those whose key is greater; None: all.
        items_max: The first so many of them; None: all.
        key: The key of an item, where several may have the same.
    """
    found: list[T] = []

    def count(items: list[T]) -> int:
        return len(items) if key is None else len({key(item) for item in items})

    request.page_token = kind.token(after)
    while items_max is None or count(found) < items_max:
        request.page_size = 0 if items_max is None else min(items_max - count(found), PAGE_SIZE_MAX)
        page = channel.look(method, request)
        found += items_of(page)
        request.page_token = page.next_page_token
        if not request.page_token:
            break
    return found


def token_of(key: Key) -> str:
    """Return the token of the page after the item of a key."""
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode("ascii")


def key_of(token: str, texts: int) -> Key | None:
    """Return the key that a token was made of; None for the empty token of the first page.

    Args:
        token: Token given by a client.
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
    if len(key) == texts and all(isinstance(text, str) and _is_storable(text) for text in key):
        return tuple(cast("list[str]", key))
    raise InvalidArgument(f"{token[:80]!r} is not a page token")


def _is_storable(text: str) -> bool:
    if "\0" in text:  # No name holds it; see `checks.check_text`.
        return False
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # JSON can carry half a surrogate pair.
        return False
    return True
