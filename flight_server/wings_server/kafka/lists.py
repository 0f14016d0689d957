"""Lists of a request, counted before it is read.

kio's reader reserves memory for the length that a list states, whatever follows. So the bytes of a
request are walked before: strings and records are skipped by their length, values of a fixed size
together. An array of such values is one step.
"""

import struct
import types
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_args, get_origin

ENTRIES_MAX = 20_000
"""Most entries of all lists of a request together: what the event loop answers in a moment."""

_SIZES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "timedelta_i32": 4,
    "timedelta_i64": 8,
    "uuid": 16,
}
"""Bytes of a value, by kio's name of its type; others begin with their length."""

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


@dataclass(slots=True)
class _Walk:
    data: memoryview
    entries: int = 0
    """Entries that the lists so far state together."""


_Skip = Callable[[_Walk, int], int]
"""Returns the position after a value; IndexError and struct.error where the bytes end."""

_Length = Callable[[memoryview, int], tuple[int, int]]
"""Returns the length that a value states, -1 for null, and the position after it."""


def checker_of(entity: type) -> Callable[[memoryview, int], int]:
    """Return a function that checks the lists of a request.

    Args:
        entity: kio's class of its body.

    Returns:
        A function of all of the request, and of the position where its body begins; it returns
        the position where it ends. It raises ValueError where lists state more than `ENTRIES_MAX`
        entries together, one is null that Kafka's specification has no null for, or a length has
        more than 5 bytes; LookupError where a tag is unknown, or the bytes end before, as
        struct.error.
    """
    step = _entity(entity)
    if callable(step):
        return lambda frame, position: step(_Walk(frame), position)
    return lambda _, position: position + step


def _entity(entity: Any) -> int | _Skip:
    """Return the size of an entity, or what skips one whose size differs."""
    is_flexible = entity.__flexible__
    steps: list[tuple[int, _Skip]] = []  # Each after so many bytes of fixed size.
    tagged: dict[int, int | _Skip] = {}
    ahead = 0
    for field in fields(entity):
        step = _field(field, is_flexible=is_flexible)
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = step
        elif callable(step):
            steps.append((ahead, step))
            ahead = 0
        else:
            ahead += step
    if not steps and not is_flexible:
        return ahead
    skip_tags = _tags(tagged)

    def skip(walk: _Walk, position: int) -> int:
        for before, step in steps:
            position = step(walk, position + before)
        position += ahead
        if not is_flexible:
            return position
        return skip_tags(walk, position) if walk.data[position] else position + 1

    return skip


def _field(field: Any, *, is_flexible: bool) -> int | _Skip:
    kind, is_nullable = without_null(field.type)
    is_list = get_origin(kind) is tuple
    element = get_args(kind)[0] if is_list else kind
    kafka_type = field.metadata.get("kafka_type")
    step: int | _Skip
    if is_dataclass(element):
        step = _entity(element)
    elif (size := _SIZES.get(kafka_type)) is not None:
        step = size
    elif is_flexible:
        step = _compact_bytes
    else:
        step = _bytes(_int16 if kafka_type == "string" else _int32)
    if not is_list:
        return step
    length = _compact if is_flexible else _int32
    return _list(field.name, length, step, is_nullable=is_nullable)


def _compact_bytes(walk: _Walk, position: int) -> int:
    size = walk.data[position]
    if size < 0x80:
        return position + (size or 1)
    size, position = _compact(walk.data, position)
    return position + max(0, size)


def _bytes(length: _Length) -> _Skip:
    def skip(walk: _Walk, position: int) -> int:
        size, position = length(walk.data, position)
        return position + max(0, size)

    return skip


def _list(name: str, length: _Length, element: int | _Skip, *, is_nullable: bool) -> _Skip:
    def skip(walk: _Walk, position: int) -> int:
        count, position = length(walk.data, position)
        if count < 0:
            if is_nullable:
                return position
            raise ValueError(f"{name} is null")
        walk.entries += count
        if walk.entries > ENTRIES_MAX:
            raise ValueError("too many entries")
        if not callable(element):
            return position + count * element
        for _ in range(count):
            position = element(walk, position)
        return position

    return skip


def _tags(tagged: dict[int, int | _Skip]) -> _Skip:
    """Return what skips the fields with tags; kio goes by their types, not by their lengths."""

    def skip(walk: _Walk, position: int) -> int:
        data = walk.data
        count, position = _varint(data, position)
        if count > len(tagged):
            raise ValueError("an unknown tag, or one twice")
        for _ in range(count):
            tag, position = _varint(data, position)
            _, position = _varint(data, position)
            step = tagged[tag]
            position = step(walk, position) if callable(step) else position + step
        return position

    return skip


def _int16(data: memoryview, position: int) -> tuple[int, int]:
    return _INT16.unpack_from(data, position)[0], position + _INT16.size


def _int32(data: memoryview, position: int) -> tuple[int, int]:
    return _INT32.unpack_from(data, position)[0], position + _INT32.size


def _compact(data: memoryview, position: int) -> tuple[int, int]:
    found = data[position]
    if found < 0x80:
        return found - 1, position + 1
    found, position = _varint(data, position)
    return found - 1, position


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    found = 0
    for shift in range(0, 35, 7):
        byte = data[position]
        position += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found, position
    raise ValueError("a length of more than 5 bytes")


def without_null(kind: Any) -> tuple[Any, bool]:
    """Return a field's type without null, and whether it may be null."""
    if get_origin(kind) is types.UnionType:
        (inner,) = [each for each in get_args(kind) if each is not types.NoneType]
        return inner, True
    return kind, False
