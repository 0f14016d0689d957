"""Lists of a request, counted before it is read, and its unknown tagged fields, left out.

kio's reader reserves memory for the length that a list states, whatever follows, and refuses tags
that it does not know, which later clients may send. So the bytes of a request are walked before:
strings and records are skipped by their length, values of a fixed size together. An array of such
values is one step.
"""

import struct
import types
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
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
    cuts: list[tuple[int, int, bytes]] = field(default_factory=list[tuple[int, int, bytes]])
    """Where the bytes of unknown fields, and counts with them, begin and end, and what replaces
    them."""

    def count(self, entries: int) -> None:
        self.entries += entries
        if self.entries > ENTRIES_MAX:
            raise ValueError("too many entries")

    def known(self) -> memoryview:
        """Return the request without its unknown fields."""
        if not self.cuts:
            return self.data
        parts: list[bytes | memoryview] = []
        position = 0
        for begin, end, instead in sorted(self.cuts):
            parts += (self.data[position:begin], instead)
            position = end
        return memoryview(b"".join([*parts, self.data[position:]]))


_Skip = Callable[[_Walk, int], int]
"""Returns the position after a value; IndexError and struct.error where the bytes end."""

_Length = Callable[[memoryview, int], tuple[int, int]]
"""Returns the length that a value states, -1 for null, and the position after it."""


def checker_of(header: type, body: type) -> Callable[[memoryview], tuple[memoryview, int]]:
    """Return a function that checks the lists of a request.

    Args:
        header: kio's class of its header.
        body: kio's class of its body.

    Returns:
        A function of all of the request; it returns the request without unknown tagged fields, and
        the position where it ends in what is given. It raises ValueError where lists and tagged
        fields state more than `ENTRIES_MAX` entries together, a list is null that Kafka's
        specification has no null for, tags are not in order, or a length has more than 5 bytes;
        LookupError where the bytes end before, as struct.error.
    """
    steps = _entity(header), _entity(body)

    def check(frame: memoryview) -> tuple[memoryview, int]:
        walk, position = _Walk(frame), 0
        for step in steps:
            position = step(walk, position) if callable(step) else position + step
        return walk.known(), position

    return check


def _entity(entity: Any) -> int | _Skip:
    """Return the size of an entity, or what skips one whose size differs."""
    is_flexible = entity.__flexible__
    steps: list[tuple[int, _Skip]] = []  # Each after so many bytes of fixed size.
    tagged: dict[int, int | _Skip] = {}
    ahead = 0
    for each in fields(entity):
        # The header's text is of the old form in all versions.
        step = _field(each, is_flexible=is_flexible and each.name != "client_id")
        if "tag" in each.metadata:
            tagged[each.metadata["tag"]] = step
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


def _field(given: Any, *, is_flexible: bool) -> int | _Skip:
    kind, is_nullable = without_null(given.type)
    is_list = get_origin(kind) is tuple
    element = get_args(kind)[0] if is_list else kind
    kafka_type = given.metadata.get("kafka_type")
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
    return _list(given.name, length, step, is_nullable=is_nullable)


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
        walk.count(count)
        if not callable(element):
            return position + count * element
        for _ in range(count):
            position = element(walk, position)
        return position

    return skip


def _tags(tagged: dict[int, int | _Skip]) -> _Skip:
    """Return what skips the fields with tags; kio goes by their types, not by their lengths."""

    def skip(walk: _Walk, position: int) -> int:
        data, begin, before, known = walk.data, position, -1, 0
        count, position = _varint(data, position)
        first = position
        walk.count(count)
        for _ in range(count):
            at = position
            tag, position = _varint(data, position)
            size, position = _varint(data, position)
            if tag <= before:
                raise ValueError("tags are not in order")
            before, step = tag, tagged.get(tag)
            if step is None:
                position += size
                walk.cuts.append((at, position, b""))
                continue
            position = step(walk, position) if callable(step) else position + step
            known += 1
        if position > len(data):
            raise ValueError("a tagged field beyond the end")
        if known < count:
            walk.cuts.append((begin, first, bytes([known])))
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
