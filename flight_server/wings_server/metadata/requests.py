"""Fields of gRPC requests, checked before a handler sees the message, and pages of lists.

Each field has the rule of its name, or else that of its type. Names of topics and the like, and
partitions, are checked by what parses them.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from wings_core.contracts.share import DELAY_MS_MAX
from wings_core.errors import InvalidArgument
from wings_core.metadata.remote.rpc import PAGE_SIZE_MAX, KeyKind, ListRequest

INT64_MAX = (1 << 63) - 1

ROWS_MAX = (1 << 31) - 1
"""Most rows of one page."""

BYTES_MAX = 1 << 53
"""Most bytes of a folio: its last position, and the length of a page."""

OFFSET_MAX = 1 << 62
"""The last offset of a page, or of a range of messages: one more is still a number of 64 bits."""

SECONDS_MAX = 10 * 366 * 86_400.0
"""The longest time that a request may name, in seconds."""

ID_CHARACTERS_MAX = 1_024
FOLIO_CHARACTERS_MAX = 512

Check = Callable[[Any], bool]
"""Whether a value is allowed."""


def _within(least: int, most: int) -> tuple[Check, str]:
    return lambda value: least <= value <= most, f"expected {least} to {most}"


def _is_folio(name: str) -> bool:
    """Whether a name stays in its store: parts with slashes between, none of which leads out."""
    leading_out = {"", ".", ".."}
    return (
        len(name) <= FOLIO_CHARACTERS_MAX
        and name.isprintable()
        and leading_out.isdisjoint(name.split("/"))
    )


_ANY: tuple[Check, str] = (lambda _: True, "")
_COUNT = _within(0, INT64_MAX)
_OFFSET = _within(0, OFFSET_MAX)
_SECONDS: tuple[Check, str] = (
    # A negative time is one in the future of a clock that is behind; what has none refuses it.
    lambda value: abs(value) <= SECONDS_MAX,
    f"expected at most {SECONDS_MAX:.0f} seconds",
)
_ID: tuple[Check, str] = (
    lambda value: len(value) <= ID_CHARACTERS_MAX and "\0" not in value,
    f"expected at most {ID_CHARACTERS_MAX} characters, and no NUL",
)
_FOLIO: tuple[Check, str] = _is_folio, "expected the name of a folio"

_RULES: dict[str, tuple[Check, str]] = {
    # Of any sign: a time before 1970, or what is refused with its batch alone.
    **dict.fromkeys(("timestamp_us", "timestamps_us", "first_timestamp_us"), _ANY),
    **dict.fromkeys(("sequence", "stream"), _ANY),
    "ExpectedOffset.offset": _ANY,
    **dict.fromkeys(("PartitionSequence.epoch", "PartitionSequence.first"), _ANY),
    "OffsetLocationRequest.offset": _ANY,
    "age_us": _within(-OFFSET_MAX, OFFSET_MAX),
    "page_size": _ANY,
    "number": _within(0, (1 << 64) - 1),
    "rows": _within(1, ROWS_MAX),
    "first_row": _within(0, ROWS_MAX),
    "position": _within(0, BYTES_MAX),
    "length": _within(1, BYTES_MAX),
    "ShardProgress.position": _COUNT,
    "TableSegment.end_offset": _within(-1, OFFSET_MAX),
    "TableSegment.rows": _COUNT,
    "TableSegment.folio": _ID,  # One of another store is its URL.
    **dict.fromkeys(("start_offset", "end_offset", "first", "last"), _OFFSET),
    "delay_ms": _within(0, DELAY_MS_MAX),
    **dict.fromkeys(("folio", "folios"), _FOLIO),
    **dict.fromkeys(
        ("uuid", "topic_uuid", "group_uuid", "id", "address", "writer", "writing", "lease"), _ID
    ),
    **dict.fromkeys(("holder", "coordinator", "member_tag", "identifier", "remove"), _ID),
}
"""Rules by the name of a field, or of a message and its field."""


def check_request(message: Message) -> None:
    """Check every field of a request, also of messages inside it.

    Raises:
        InvalidArgument: One has a value that it cannot have; it is named.
    """
    for name, repeated, check, expected in _plan(message.DESCRIPTOR):
        value = getattr(message, name)
        if check is None:
            if repeated:
                for each in value:
                    check_request(each)
            elif message.HasField(name):
                check_request(value)
            continue
        for each in cast("Iterable[object]", value if repeated else (value,)):
            if not check(each):
                shown = each if isinstance(each, int | float) else f"{each!r:.80}"
                raise InvalidArgument(f"{name} is {shown}: {expected}")


@lru_cache(maxsize=1_024)
def _plan(message: Descriptor) -> tuple[tuple[str, bool, Check | None, str], ...]:
    """Return the fields of a message that are checked: how, or None for a message inside it."""
    plan: list[tuple[str, bool, Check | None, str]] = []
    for field in message.fields:
        if field.message_type is not None:
            if field.message_type.file.package == message.file.package:
                plan.append((field.name, field.is_repeated, None, ""))
            continue
        check, expected = _rule(message, field)
        if check is not _ANY[0]:
            plan.append((field.name, field.is_repeated, check, expected))
    return tuple(plan)


def _rule(message: Descriptor, field: FieldDescriptor) -> tuple[Check, str]:
    for name in (f"{message.name}.{field.name}", field.name):
        if name in _RULES:
            return _RULES[name]
    if field.enum_type is not None:
        known = frozenset(field.enum_type.values_by_number)
        return known.__contains__, f"expected one of {sorted(known)}"
    if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
        return _COUNT
    if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return _SECONDS
    return _ANY


TOPICS_BYTES_MAX = 16 << 20
"""Bytes of the topics in one answer, but for a single one: each comes with all its schemas."""

T = TypeVar("T")
KeyT = TypeVar("KeyT")


def page_size_of(page_size: int, size_max: int = PAGE_SIZE_MAX) -> int:
    """Return how many items go into an answer.

    Args:
        page_size: Size given in the request; 0: as many as go into one answer.
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
        kind: Kind of the items' keys.
        find: Returns the items of so many keys after a key (None: from the first), or of all that
            are left, in the order in which they are answered.
        key: Returns an item's key; several items may have the same.
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


def snake_case(name: str) -> str:
    """Return the name of the method that handles an RPC."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
